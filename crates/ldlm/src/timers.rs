//! Deadlines for cancelling revoked locks.
//!
//! A holder has one and a half times the longest recent cancel time, and at least the configured
//! minimum (`ldlm_enqueue_min`). Only cancels and conversions count. If an eviction counted, each
//! client that the server evicts for a late cancel would extend the next client's time by half.

use crate::lock::LockId;
use cpt::{HashSeed, SeededMap};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Maximum of the cancel time that counts, as Lustre's `at_max`.
const ESTIMATE_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct RevokeTimer {
    /// When the lock was revoked.
    revoked_at: Instant,
    deadline: Instant,
}

/// The timers of revoked locks.
#[derive(Debug)]
pub(crate) struct Timers {
    running: SeededMap<LockId, RevokeTimer>,
    /// The running timers by deadline.
    due: BTreeSet<(Instant, LockId)>,
    /// The longest recent cancel time. Each faster cancel reduces this estimate by a tenth, but not
    /// below its own time.
    estimate: Duration,
    /// Minimum of [`Timers::cancel_timeout`].
    min: Duration,
}

impl Timers {
    pub(crate) fn new(min: Duration, seed: HashSeed) -> Timers {
        Timers {
            running: SeededMap::with_hasher(seed),
            due: BTreeSet::new(),
            estimate: Duration::ZERO,
            min,
        }
    }

    /// How long a holder has to cancel.
    pub(crate) fn cancel_timeout(&self) -> Duration {
        self.min.max(self.estimate.mul_f32(1.5))
    }

    pub(crate) fn min(&self) -> Duration {
        self.min
    }

    pub(crate) fn set_min(&mut self, min: Duration) {
        self.min = min;
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Starts the timer of a lock that is revoked now.
    pub(crate) fn start(&mut self, id: LockId, now: Instant) {
        self.remove(id);
        let deadline = now + self.cancel_timeout();
        self.due.insert((deadline, id));
        self.running.insert(
            id,
            RevokeTimer {
                revoked_at: now,
                deadline,
            },
        );
    }

    /// Extends the deadline of a running timer, because the holder does I/O under the lock.
    pub(crate) fn prolong(&mut self, id: LockId, now: Instant) {
        let deadline = now + self.cancel_timeout();
        if let Some(timer) = self.running.get_mut(&id)
            && deadline > timer.deadline
        {
            self.due.remove(&(timer.deadline, id));
            timer.deadline = deadline;
            self.due.insert((deadline, id));
        }
    }

    /// Stops the timer of a lock that its holder cancelled or converted, and updates the estimate.
    pub(crate) fn stop(&mut self, id: LockId, now: Instant) {
        if let Some(timer) = self.remove(id) {
            let elapsed = now.saturating_duration_since(timer.revoked_at);
            self.estimate = elapsed.max(self.estimate.mul_f32(0.9)).min(ESTIMATE_MAX);
        }
    }

    /// Stops the timer of a lock that the server drops together with its holder.
    pub(crate) fn discard(&mut self, id: LockId) {
        self.remove(id);
    }

    /// The locks that were revoked before `cutoff` and have running timers.
    pub(crate) fn revoked_before(&self, cutoff: Instant) -> impl Iterator<Item = LockId> {
        let before = move |(id, timer): (&LockId, &RevokeTimer)| (timer.revoked_at < cutoff).then_some(*id);
        self.running.iter().filter_map(before)
    }

    fn remove(&mut self, id: LockId) -> Option<RevokeTimer> {
        let timer = self.running.remove(&id)?;
        self.due.remove(&(timer.deadline, id));
        Some(timer)
    }

    /// The locks with expired timers, and the time since they were revoked. Each is returned once.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<(LockId, Duration)> {
        let mut out = Vec::new();
        while let Some(&(deadline, id)) = self.due.first() {
            if deadline > now {
                break;
            }
            if let Some(timer) = self.remove(id) {
                out.push((id, now.saturating_duration_since(timer.revoked_at)));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Timers;
    use crate::lock::LockId;
    use cpt::HashSeed;
    use std::time::{Duration, Instant};

    const MIN: Duration = Duration::from_secs(100);

    #[test]
    fn a_timer_runs_for_the_minimum_and_expires_once() {
        let mut timers = Timers::new(MIN, HashSeed::fixed(0));
        let started_at = Instant::now();
        timers.start(LockId(1), started_at);
        assert!(timers.expired(started_at + Duration::from_secs(99)).is_empty());
        assert_eq!(timers.expired(started_at + MIN), [(LockId(1), MIN)]);
        assert!(timers.expired(started_at + MIN).is_empty());
        assert!(timers.is_empty());
    }

    #[test]
    fn prolong_extends_the_deadline() {
        let mut timers = Timers::new(MIN, HashSeed::fixed(0));
        let started_at = Instant::now();
        timers.start(LockId(1), started_at);
        timers.prolong(LockId(1), started_at + Duration::from_secs(50));
        assert!(timers.expired(started_at + Duration::from_secs(149)).is_empty());
        assert_eq!(timers.expired(started_at + Duration::from_secs(150)).len(), 1);
    }

    #[test]
    fn locks_revoked_before_a_time_are_found() {
        let mut timers = Timers::new(MIN, HashSeed::fixed(0));
        let started_at = Instant::now();
        timers.start(LockId(1), started_at);
        timers.start(LockId(2), started_at + Duration::from_secs(1));
        let cutoff = started_at + Duration::from_secs(1);
        assert_eq!(timers.revoked_before(cutoff).collect::<Vec<_>>(), [LockId(1)]);
        timers.stop(LockId(1), cutoff);
        assert_eq!(timers.revoked_before(cutoff).count(), 0);
    }

    #[test]
    fn slow_cancels_extend_later_timeouts() {
        let mut timers = Timers::new(MIN, HashSeed::fixed(0));
        let started_at = Instant::now();
        timers.start(LockId(1), started_at);
        timers.stop(LockId(1), started_at + Duration::from_secs(90));
        assert_eq!(timers.cancel_timeout(), Duration::from_secs(135));
    }

    #[test]
    fn the_timeout_has_a_maximum() {
        let mut timers = Timers::new(MIN, HashSeed::fixed(0));
        let mut now = Instant::now();
        for _ in 0..20 {
            timers.start(LockId(1), now);
            now += timers.cancel_timeout();
            timers.stop(LockId(1), now);
        }
        assert_eq!(timers.cancel_timeout(), Duration::from_secs(900));
    }
}
