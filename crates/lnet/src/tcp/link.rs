//! Whether a peer is connected, since when it is not, and what became of connecting to it.

use tokio::time::Instant;

/// The connections to a peer, as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether there are any.
    pub up: bool,
    /// Which of its boots the peer named when it connected last; 0 if it never did.
    pub incarnation: u64,
    /// How often it has become connected: what was sent in an earlier generation may be lost.
    pub generation: u64,
    /// Since when it is not connected: when its host was last known to be there. `None` if it never was connected.
    pub lost_at: Option<Instant>,
    /// When dialling last failed because nobody answered at its address, or somebody who is not it; not when this node could not
    /// try, and not when its host answered but the peer was too slow. `None` once it is connected.
    pub unreachable_at: Option<Instant>,
}

impl Link {
    /// The first connection is there.
    pub(super) fn connected(&mut self) {
        self.up = true;
        self.generation += 1;
        self.unreachable_at = None;
    }

    /// The last connection is gone, and since when the peer was not there.
    pub(super) fn lost(&mut self, since: Instant) {
        self.up = false;
        self.lost_at = Some(since);
    }
}
