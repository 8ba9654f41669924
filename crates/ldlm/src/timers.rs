//! Deadlines for cancelling revoked locks.
//!
//! A holder has one and a half times the recent cancel time, and at least the configured minimum
//! (`ldlm_enqueue_min`).

use crate::lock::LockId;
use foldhash::HashMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

#[derive(Debug)]
struct Asked {
    since: Instant,
    deadline: Instant,
}

/// The timers of revoked locks.
#[derive(Debug)]
pub(crate) struct Timers {
    asked: HashMap<LockId, Asked>,
    due: BTreeSet<(Instant, LockId)>,
    estimate: Duration,
    min: Duration,
}

impl Timers {
    pub(crate) fn new(min: Duration) -> Timers {
        Timers {
            asked: HashMap::default(),
            due: BTreeSet::new(),
            estimate: Duration::ZERO,
            min,
        }
    }

    /// How long a holder has to cancel.
    pub(crate) fn allowed(&self) -> Duration {
        self.min.max(self.estimate.mul_f32(1.5))
    }

    pub(crate) fn min(&self) -> Duration {
        self.min
    }

    pub(crate) fn set_min(&mut self, min: Duration) {
        self.min = min;
    }

    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Starts the timer of a lock that is revoked now.
    pub(crate) fn arm(&mut self, id: LockId, now: Instant) {
        self.disarm(id);
        let deadline = now + self.allowed();
        self.due.insert((deadline, id));
        self.asked.insert(id, Asked { since: now, deadline });
    }

    /// Restarts the timer, because the holder does I/O under the lock.
    pub(crate) fn prolong(&mut self, id: LockId, now: Instant) {
        let deadline = now + self.allowed();
        if let Some(asked) = self.asked.get_mut(&id)
            && deadline > asked.deadline
        {
            self.due.remove(&(asked.deadline, id));
            asked.deadline = deadline;
            self.due.insert((deadline, id));
        }
    }

    /// Stops the timer of a cancelled lock, and updates the estimate.
    pub(crate) fn done(&mut self, id: LockId, now: Instant) {
        if let Some(asked) = self.disarm(id) {
            let took = now.saturating_duration_since(asked.since);
            self.estimate = took.max(self.estimate.mul_f32(0.9));
        }
    }

    /// The locks that were revoked before `then` and are not cancelled yet.
    pub(crate) fn asked_before(&self, then: Instant) -> impl Iterator<Item = LockId> {
        let before = move |(id, asked): (&LockId, &Asked)| (asked.since < then).then_some(*id);
        self.asked.iter().filter_map(before)
    }

    fn disarm(&mut self, id: LockId) -> Option<Asked> {
        let asked = self.asked.remove(&id)?;
        self.due.remove(&(asked.deadline, id));
        Some(asked)
    }

    /// The locks whose timers expired, and the time since they were revoked. Each is returned once.
    pub(crate) fn expired(&mut self, now: Instant) -> Vec<(LockId, Duration)> {
        let mut out = Vec::new();
        while let Some(&(deadline, id)) = self.due.first() {
            if deadline > now {
                break;
            }
            if let Some(asked) = self.disarm(id) {
                out.push((id, now.saturating_duration_since(asked.since)));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Timers;
    use crate::lock::LockId;
    use std::time::{Duration, Instant};

    const MIN: Duration = Duration::from_secs(100);

    #[test]
    fn a_holder_has_the_minimum_and_is_named_once() {
        let mut t = Timers::new(MIN);
        let start = Instant::now();
        t.arm(LockId(1), start);
        assert!(t.expired(start + Duration::from_secs(99)).is_empty());
        assert_eq!(t.expired(start + MIN), [(LockId(1), MIN)]);
        assert!(t.expired(start + MIN).is_empty());
        assert!(t.is_empty());
    }

    #[test]
    fn work_begins_the_time_again() {
        let mut t = Timers::new(MIN);
        let start = Instant::now();
        t.arm(LockId(1), start);
        t.prolong(LockId(1), start + Duration::from_secs(50));
        assert!(t.expired(start + Duration::from_secs(149)).is_empty());
        assert_eq!(t.expired(start + Duration::from_secs(150)).len(), 1);
    }

    #[test]
    fn a_holder_that_takes_its_time_is_known() {
        let mut t = Timers::new(MIN);
        let start = Instant::now();
        t.arm(LockId(1), start);
        t.arm(LockId(2), start + Duration::from_secs(1));
        let then = start + Duration::from_secs(1);
        assert_eq!(t.asked_before(then).collect::<Vec<_>>(), [LockId(1)]);
        t.done(LockId(1), then);
        assert_eq!(t.asked_before(then).count(), 0);
    }

    #[test]
    fn slow_holders_earn_more_time_for_those_after_them() {
        let mut t = Timers::new(MIN);
        let start = Instant::now();
        t.arm(LockId(1), start);
        t.done(LockId(1), start + Duration::from_secs(90));
        assert_eq!(t.allowed(), Duration::from_secs(135));
    }
}
