//! Detects dead hosts of peers: hosts that no longer acknowledge data, after a power loss or a
//! network failure.
//!
//! TCP would retry until `sock_timeout` with doubling intervals, and notice a repaired network
//! late. So after [`RETRANSMITS`] retransmissions on one connection of a peer, this node closes all
//! connections of the peer, and senders dial again. [`watch`] queries the kernel (`diag`) about
//! peers that are silent although data was sent to them. A peer that does not read or answer keeps
//! its connections while its host acknowledges.

use super::Tcp;
use super::diag::{Diag, Diagnosis};
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Peers with a sign of life within this time are not checked.
const SILENCE_MIN: Duration = Duration::from_secs(2);
/// Consecutive retransmissions after which the peer's host counts as dead: after 3 s in a local
/// network, later with a longer measured round trip. Further retransmissions would come less often
/// than dial attempts.
const RETRANSMITS: u8 = 4;

/// Recent signs of life of a peer.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Number of messages received until the last check.
    received: u64,
    /// Time of the last sign of life: a message, or an acknowledgement of all data.
    alive_at: Option<Instant>,
}

impl Liveness {
    /// Updates the state of a peer that has sent `received` messages so far; `unacked` tells
    /// whether data may be unacknowledged. Returns whether to query the kernel.
    pub(super) fn should_diagnose(&mut self, now: Instant, received: u64, unacked: bool) -> bool {
        if std::mem::replace(&mut self.received, received) != received || !unacked {
            self.alive_at = Some(now);
        }
        now - *self.alive_at.get_or_insert(now) >= SILENCE_MIN
    }

    /// Evaluates the kernel's answers for connections with unacknowledged data. Returns the last
    /// sign of life if the peer's host is dead.
    pub(super) fn dead_since(&mut self, now: Instant, found: &[Diagnosis]) -> Option<Instant> {
        if found.iter().any(|conn| conn.retransmits >= RETRANSMITS) {
            return self.alive_at;
        }
        if found.iter().all(|conn| conn.unacknowledged == 0) {
            self.alive_at = Some(now);
        }
        None
    }
}

/// Checks all peers every second until none is connected. Ends at once if the kernel has no
/// `sock_diag`.
pub(super) async fn watch(tcp: Weak<Tcp>) {
    let mut diag = match Diag::open() {
        Ok(diag) => diag,
        Err(e) => {
            return tracing::info!(
                "sock_diag: {e}: a dead host of a peer is detected only after sock_timeout"
            );
        }
    };
    loop {
        sleep(CHECK_INTERVAL).await;
        let Some(tcp) = tcp.upgrade() else { return };
        let now = Instant::now();
        let mut connected = false;
        for peer in tcp.peers() {
            connected |= peer.check_liveness(now, &mut diag);
        }
        if connected {
            continue;
        }
        tcp.shared.liveness_running.store(false, Ordering::SeqCst);
        // A peer that connected before the flag was cleared has started no new task.
        let connected_meanwhile = tcp.peers().iter().any(|peer| peer.connections() > 0);
        if !connected_meanwhile || tcp.shared.liveness_running.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Diagnosis, Liveness, RETRANSMITS};
    use std::time::Duration;
    use tokio::time::Instant;

    fn diagnosis(retransmits: u8, unacknowledged: u32) -> Diagnosis {
        Diagnosis {
            state: 1,
            retransmits,
            unacknowledged,
            uid: 0,
            inode: 1,
        }
    }

    #[test]
    fn only_silent_peers_with_unacknowledged_data_are_diagnosed() {
        let t = Instant::now();
        let time = |s: u64| t + Duration::from_secs(s);
        let mut idle = Liveness::default();
        assert!((0..100).all(|s| !idle.should_diagnose(time(s), 5, false)));
        let mut busy = Liveness::default();
        assert!((0..100).all(|s| !busy.should_diagnose(time(s), s, true)));
        let mut silent = Liveness::default();
        let diagnosed: Vec<u64> = (0..5)
            .filter(|s| silent.should_diagnose(time(*s), 5, true))
            .collect();
        assert_eq!(diagnosed, [2, 3, 4]);
        silent.dead_since(time(4), &[diagnosis(0, 0)]);
        assert!(!silent.should_diagnose(time(5), 5, true));
    }

    #[test]
    fn a_host_is_dead_after_enough_retransmissions() {
        let t = Instant::now();
        let after_3s = t + Duration::from_secs(3);
        let mut liveness = Liveness::default();
        liveness.should_diagnose(t, 5, false);
        liveness.should_diagnose(after_3s, 5, true);
        let pending = diagnosis(RETRANSMITS - 1, 100);
        assert_eq!(liveness.dead_since(after_3s, &[diagnosis(0, 0), pending]), None);
        let dead = diagnosis(RETRANSMITS, 100);
        assert_eq!(liveness.dead_since(after_3s, &[diagnosis(0, 0), dead]), Some(t));
    }

    #[test]
    fn a_peer_that_reads_nothing_is_alive_while_its_host_acknowledges() {
        let t = Instant::now();
        let mut stopped = Liveness::default();
        for s in 0..1000 {
            let now = t + Duration::from_secs(s);
            stopped.should_diagnose(now, 5, true);
            assert_eq!(stopped.dead_since(now, &[diagnosis(1, 1 << 20)]), None);
        }
    }
}
