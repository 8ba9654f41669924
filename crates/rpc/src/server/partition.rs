//! One partition of a service: its queue, counters and service time estimate.

use super::nrs::{Key, KeyKind};
use super::queue::{Classify, HandlingToken, PushError, Queue};
use super::request::Arrival;
use super::stats::{CounterIndex, PartitionStats};
use crate::at::{Estimate, wire_secs};
use crate::opcode;
use cpt::{CptId, HashSeed};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Interval of the checks whether queued requests need early replies.
pub(super) const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Statistics of a service on one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStats {
    /// The service.
    pub name: &'static str,
    /// The partition.
    pub cpt: usize,
    /// Limit of requests handled concurrently.
    pub threads: usize,
    /// Requests in the queue.
    pub queued: usize,
    /// Open slots: each handles one request after the other.
    pub active: usize,
    /// Requests handled so far.
    pub handled: u64,
    /// Requests dropped so far: malformed, late, or over the peer's quota.
    pub dropped: u64,
    /// Early replies sent for queued requests.
    pub early: u64,
    /// Sum of the times from arrival to reply of all handled requests.
    pub busy: Duration,
    /// The service time estimate, in seconds.
    pub estimate_secs: u32,
}

/// One partition of a service.
pub(crate) struct ServicePartition {
    pub(super) name: &'static str,
    pub(super) cpt: CptId,
    pub(super) queue: Mutex<Queue<Arrival>>,
    pub(super) stats: PartitionStats,
    estimate: Mutex<Estimate>,
    handled: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) early: AtomicU64,
    /// Sum of the times from arrival to reply, in microseconds.
    busy_us: AtomicU64,
    /// Wakes the token waiter when a token comes earlier than the waiter expects.
    pub(super) earlier_token: Notify,
    /// Counts slots, to run each on the next partition in turn. Unused if slots are bound to this
    /// partition.
    pub(super) turn: AtomicUsize,
}

impl Classify for Arrival {
    fn key(&self, kind: KeyKind) -> Key {
        kind.key(self.from, &self.body)
    }
}

/// Which tasks the caller must spawn after it has queued a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RequiredTasks {
    /// A slot for the request.
    pub(super) slot: bool,
    /// The watcher that sends early replies.
    pub(super) watcher: bool,
    /// The waiter for TBF tokens.
    pub(super) token_waiter: bool,
}

impl ServicePartition {
    pub(super) fn new(
        name: &'static str,
        cpt: CptId,
        places: usize,
        threads: usize,
        estimate: Estimate,
    ) -> ServicePartition {
        ServicePartition {
            name,
            cpt,
            queue: Mutex::new(Queue::new(places.max(1), threads, HashSeed::random())),
            stats: PartitionStats::new(),
            estimate: Mutex::new(estimate),
            handled: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            early: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
            earlier_token: Notify::new(),
            turn: AtomicUsize::new(cpt.0),
        }
    }

    /// Queues a request of `bytes` bytes. High-priority requests have a queue of their own, and an
    /// eighth more slots (at least one).
    pub(super) fn push(&self, arrival: Arrival, bytes: usize) -> Result<RequiredTasks, PushError> {
        let now = arrival.arrived_at.into_std();
        let mut queue = self.queue.lock();
        let high_priority = opcode::is_high_priority(arrival.body.pb_opc);
        let threads = queue.threads();
        let slots = if high_priority {
            threads + (threads / 8).max(1)
        } else {
            threads
        };
        queue.push(arrival.from, bytes, high_priority, now, || arrival)?;
        self.stats.record_arrival(queue.free_places());
        let slot = queue.active < slots && queue.needs_slot(now);
        if slot {
            queue.open_slot();
        }
        let watcher = !slot && !queue.has_watcher;
        queue.has_watcher |= watcher;
        let token_waiter = !slot && self.request_token_waiter(&mut queue, now);
        Ok(RequiredTasks {
            slot,
            watcher,
            token_waiter,
        })
    }

    /// The next request for a slot; `None` ends the slot.
    pub(super) fn next(&self) -> Option<NextRequest<'_>> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        let was_full = queue.is_full();
        let (arrival, token) = queue.next(now.into_std())?;
        let (depth, handling) = (queue.len(), queue.handling());
        drop(queue);
        let estimate_secs = self.estimate.lock().secs(now.into_std());
        let waited = now.saturating_duration_since(arrival.arrived_at);
        self.stats.record_start(
            waited,
            depth,
            handling.ordinary + handling.high_priority,
            estimate_secs,
        );
        Some(NextRequest {
            arrival: Arrival {
                estimate_secs,
                ..arrival
            },
            was_full,
            _handling: HandlingGuard { part: self, token },
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.lock().is_full()
    }

    /// Records that a request has been handled; its execution began at `started_at`.
    pub(super) fn record_handled(&self, counter: CounterIndex, arrived: Instant, started_at: Instant) {
        let now = Instant::now();
        let duration = now.saturating_duration_since(arrived);
        self.stats
            .record_end(counter, now.saturating_duration_since(started_at));
        self.estimate.lock().record(now.into_std(), wire_secs(duration));
        self.handled.fetch_add(1, Ordering::Relaxed);
        self.busy_us.fetch_add(
            u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Extends the deadlines of queued requests that need an early reply, and returns these
    /// requests. `None` if the queue is empty: the watcher ends.
    pub(super) fn extend_deadlines(&self, margin: Duration, extra: Duration) -> Option<Vec<Arrival>> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        if queue.len() == 0 {
            queue.has_watcher = false;
            return None;
        }
        let needs_early_reply = |a: &&mut Arrival| {
            a.takes_early() && a.deadline > now && a.deadline < now + margin + WATCH_INTERVAL
        };
        let extend = |a: &mut Arrival| {
            a.deadline = now + extra;
            a.clone()
        };
        Some(queue.iter_mut().filter(needs_early_reply).map(extend).collect())
    }

    /// Opens slots for queued requests that can run. Returns the number of slots; the caller must
    /// spawn their tasks.
    pub(super) fn open_slots(&self) -> usize {
        let mut queue = self.queue.lock();
        if !queue.needs_slot(cpt::now()) {
            return 0;
        }
        let free = queue.threads().saturating_sub(queue.active).max(1);
        let slots = free.min(queue.len());
        (0..slots).for_each(|_| queue.open_slot());
        slots
    }

    /// Closes a slot. If a queued request needs a slot, opens it again and returns true: the caller
    /// must then spawn the slot's task.
    pub(super) fn close_slot(&self) -> bool {
        let mut queue = self.queue.lock();
        queue.active -= 1;
        let needed = queue.needs_slot(cpt::now());
        if needed {
            queue.open_slot();
        }
        needed
    }

    /// The time of the next token that a request waits for; the waiter must sleep until then.
    /// `None`: no request waits for a token, and the waiter ends.
    pub(super) fn next_token(&self) -> Option<Instant> {
        let mut queue = self.queue.lock();
        queue.token_waiter_wakes_at = queue.next_token(cpt::now());
        queue.token_waiter_wakes_at.map(Instant::from_std)
    }

    /// Whether to spawn a waiter for tokens.
    pub(super) fn needs_token_waiter(&self) -> bool {
        self.request_token_waiter(&mut self.queue.lock(), cpt::now())
    }

    /// Returns true if the caller must spawn a waiter for tokens. Wakes an existing waiter if a
    /// token comes earlier than it expects.
    fn request_token_waiter(&self, queue: &mut Queue<Arrival>, now: std::time::Instant) -> bool {
        let Some(at) = queue.next_token(now) else {
            return false;
        };
        match queue.token_waiter_wakes_at {
            None => {
                queue.token_waiter_wakes_at = Some(at);
                true
            }
            Some(until) => {
                if at < until {
                    queue.token_waiter_wakes_at = Some(at);
                    self.earlier_token.notify_one();
                }
                false
            }
        }
    }

    pub(super) fn stats(&self) -> ServiceStats {
        let (queued, active, threads) = {
            let queue = self.queue.lock();
            (queue.len(), queue.active, queue.threads())
        };
        ServiceStats {
            name: self.name,
            cpt: self.cpt.0,
            threads,
            queued,
            active,
            handled: self.handled.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            early: self.early.load(Ordering::Relaxed),
            busy: Duration::from_micros(self.busy_us.load(Ordering::Relaxed)),
            estimate_secs: self.estimate.lock().secs(cpt::now()),
        }
    }
}

/// A request that a slot took from the queue.
pub(super) struct NextRequest<'a> {
    pub(super) arrival: Arrival,
    /// Whether the queue was full before the slot took the request.
    pub(super) was_full: bool,
    pub(super) _handling: HandlingGuard<'a>,
}

/// Counts a request as being handled.
pub(super) struct HandlingGuard<'a> {
    part: &'a ServicePartition,
    token: HandlingToken,
}

impl Drop for HandlingGuard<'_> {
    fn drop(&mut self) {
        self.part.queue.lock().finish(self.token);
    }
}
