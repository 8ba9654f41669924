//! Peers whose host no longer acknowledges what it is sent: a cable is out, a host has lost its power.
//!
//! TCP would go on for `sock_timeout`, each time after twice the pause, and then be as late when the network works again. So
//! a connection whose bytes were sent [`RETRANSMITS`] times in vain is closed, and whoever needs the peer dials anew. The
//! kernel is asked (`diag`), and only about peers that were silent since they were sent something. A peer whose process
//! merely does not read or answer keeps its connections: its host acknowledges.

use super::Tcp;
use super::diag::{Diag, Diagnosis};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often peers are looked at.
const TICK: Duration = Duration::from_secs(1);
/// A peer that said something so lately is not asked about.
const QUIET: Duration = Duration::from_secs(2);
/// Retransmissions in a row after which the peer's host counts as gone: 3 s in a local network, longer where TCP has
/// measured a longer way. By then the pauses between them would exceed those between attempts to dial.
const RETRANSMITS: u8 = 4;

/// What the peer did lately.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// How many messages had come when it was last looked at.
    heard: u64,
    /// When all was well for the last time: something had come, or everything that was sent was acknowledged.
    well_at: Option<Instant>,
}

impl Silence {
    /// Looks at a peer that has sent `heard` messages so far. `unproven`: something was written that it is not known to have
    /// acknowledged. Whether the kernel should be asked.
    pub(super) fn look(&mut self, now: Instant, heard: u64, unproven: bool) -> bool {
        if std::mem::replace(&mut self.heard, heard) != heard || !unproven {
            self.well_at = Some(now);
        }
        now - *self.well_at.get_or_insert(now) >= QUIET
    }

    /// What the kernel says of the connections on which something is unproven: since when the peer's host has been gone, if
    /// it is.
    pub(super) fn judge(&mut self, now: Instant, found: &[Diagnosis]) -> Option<Instant> {
        if found.iter().any(|conn| conn.retransmits >= RETRANSMITS) {
            return self.well_at;
        }
        if found.iter().all(|conn| conn.unacknowledged == 0) {
            self.well_at = Some(now);
        }
        None
    }
}

/// Looks at all peers until none is connected.
pub(super) async fn watch(tcp: Weak<Tcp>) {
    let mut diag = match Diag::open() {
        Ok(diag) => diag,
        Err(e) => {
            return tracing::info!(
                "sock_diag: {e}: a peer whose host is gone is noticed only after sock_timeout"
            );
        }
    };
    loop {
        sleep(TICK).await;
        let Some(tcp) = tcp.upgrade() else { return };
        let now = Instant::now();
        let mut connected = false;
        for peer in tcp.peers() {
            connected |= peer.look(now, &mut diag);
        }
        if connected {
            continue;
        }
        tcp.shared.watched.store(false, Ordering::SeqCst);
        // A peer that connected before that relied on this task.
        let late = tcp.peers().iter().any(|peer| peer.connections() > 0);
        if !late || tcp.shared.watched.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Diagnosis, RETRANSMITS, Silence};
    use std::time::Duration;
    use tokio::time::Instant;

    fn found(retransmits: u8, unacknowledged: u32) -> Diagnosis {
        Diagnosis {
            state: 1,
            retransmits,
            unacknowledged,
            uid: 0,
            inode: 1,
        }
    }

    #[test]
    fn only_a_peer_that_is_silent_though_it_was_sent_something_is_asked_about() {
        let t = Instant::now();
        let at = |s: u64| t + Duration::from_secs(s);
        let mut idle = Silence::default();
        assert!((0..100).all(|s| !idle.look(at(s), 5, false)));
        let mut busy = Silence::default();
        assert!((0..100).all(|s| !busy.look(at(s), s, true)));
        let mut silent = Silence::default();
        let asked: Vec<u64> = (0..5).filter(|s| silent.look(at(*s), 5, true)).collect();
        assert_eq!(asked, [2, 3, 4]);
        silent.judge(at(4), &[found(0, 0)]);
        assert!(!silent.look(at(5), 5, true));
    }

    #[test]
    fn a_host_is_gone_when_the_kernel_has_sent_often_in_vain() {
        let t = Instant::now();
        let later = t + Duration::from_secs(3);
        let mut silence = Silence::default();
        silence.look(t, 5, false);
        silence.look(later, 5, true);
        let waits = found(RETRANSMITS - 1, 100);
        assert_eq!(silence.judge(later, &[found(0, 0), waits]), None);
        let gone = found(RETRANSMITS, 100);
        assert_eq!(silence.judge(later, &[found(0, 0), gone]), Some(t));
    }

    #[test]
    fn a_peer_that_reads_nothing_is_not_gone_while_its_host_acknowledges() {
        let t = Instant::now();
        let mut stopped = Silence::default();
        for s in 0..1000 {
            let now = t + Duration::from_secs(s);
            stopped.look(now, 5, true);
            assert_eq!(stopped.judge(now, &[found(1, 1 << 20)]), None);
        }
    }
}
