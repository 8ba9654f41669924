//! The state of the connections to a peer, for the layers above.

use tokio::time::Instant;

/// The connections to a peer as one link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Link {
    /// Whether there is at least one connection.
    pub up: bool,
    /// The peer's incarnation (boot) in its last hello; 0 if it never connected.
    pub incarnation: u64,
    /// Number of times that the link came up. Messages sent in an earlier generation may be lost.
    pub generation: u64,
    /// The last sign of life of the peer's host before the last loss of the link. `None` if the
    /// link was never lost.
    pub lost_at: Option<Instant>,
    /// When dialling last failed because the peer's address did not answer, or because the node
    /// there did not complete the hellos under the peer's NID. A failure of this node, a slow peer
    /// and the answer "try again" do not count. `None` once the link is up.
    pub unreachable_at: Option<Instant>,
}

impl Link {
    /// Records the first connection.
    pub(crate) fn record_connect(&mut self) {
        self.up = true;
        self.generation += 1;
        self.unreachable_at = None;
    }

    /// Records the loss of the last connection; `since` is the last sign of life of the peer's
    /// host.
    pub(crate) fn record_loss(&mut self, since: Instant) {
        self.up = false;
        self.lost_at = Some(since);
    }
}
