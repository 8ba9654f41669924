//! The request queue of one partition: limits the requests that wait and run, and decides which one
//! is next.
//!
//! Pure: the time is an argument. High-priority requests have their own queue, which slots serve
//! first. In the ordinary queue each peer has a quota of slots and space: a peer that floods the
//! server, or promises bulk that never arrives, cannot take all of them. This node itself has no
//! quota. The policy determines the order of the ordinary queue ([`super::nrs`]).

use super::nrs::{Key, KeyKind, Policy, Rules, Tbf};
use cpt::{HashSeed, SeededMap};
use std::collections::VecDeque;
use std::time::Instant;
use wire::Nid;

/// Bytes of requests at which the ordinary or the high-priority queue is full.
const BYTES_MAX: usize = 64 << 20;
/// Maximum number of queued ordinary requests of one peer.
const PER_PEER_MAX: usize = 4096;
/// Bytes of queued ordinary requests of one peer at which its further requests are dropped.
const PER_PEER_BYTES_MAX: usize = BYTES_MAX / 2;
/// Bytes counted for each request in addition to its length.
const REQUEST_COST: usize = 1 << 10;

/// Why a request is not queued.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PushError {
    /// The queue is full: LNet retries later.
    QueueFull,
    /// The peer exceeds its quota: the request is dropped.
    PeerQuotaExceeded,
}

/// A request that the TBF policy can classify.
pub(super) trait Classify {
    /// The request's class, by the fields that `kind` selects.
    fn key(&self, kind: KeyKind) -> Key;
}

/// A queued request.
#[derive(Debug)]
struct QueuedRequest<R> {
    from: Nid,
    /// Bytes that count against the limits.
    bytes: usize,
    request: R,
}

/// The order of requests.
#[derive(Debug)]
enum Order<R> {
    Fifo(VecDeque<QueuedRequest<R>>),
    Tbf(KeyKind, Tbf<QueuedRequest<R>>),
}

/// The queue of ordinary or of high-priority requests.
#[derive(Debug)]
struct SubQueue<R> {
    order: Order<R>,
    bytes: usize,
}

/// A peer's use of the ordinary queue.
#[derive(Debug, Default)]
struct PeerUsage {
    /// Requests being handled.
    active: usize,
    /// Queued requests, and their bytes.
    waiting: usize,
    bytes: usize,
}

/// A request that a slot has taken; the caller passes it to [`Queue::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HandlingToken {
    /// The peer, if it counts against a quota.
    peer: Option<Nid>,
    high_priority: bool,
}

/// Numbers of ordinary and high-priority requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) ordinary: usize,
    pub(super) high_priority: usize,
}

/// The queue of one partition.
#[derive(Debug)]
pub(super) struct Queue<R> {
    high_priority: SubQueue<R>,
    ordinary: SubQueue<R>,
    peers: SeededMap<Nid, PeerUsage>,
    /// Maximum number of queued requests of each kind.
    places: usize,
    /// Limit of slots.
    threads: usize,
    /// Requests being handled.
    handling: Counts,
    /// Open slots.
    pub(super) active: usize,
    /// Maximum of open slots so far.
    pub(super) active_max: usize,
    /// Whether the watcher for early replies runs.
    pub(super) has_watcher: bool,
    /// When the waiter for tokens wakes up; `None` if it does not run.
    pub(super) token_waiter_wakes_at: Option<Instant>,
}

impl<R: Classify> SubQueue<R> {
    fn new() -> SubQueue<R> {
        SubQueue {
            order: Order::Fifo(VecDeque::new()),
            bytes: 0,
        }
    }

    fn len(&self) -> usize {
        match &self.order {
            Order::Fifo(waiting) => waiting.len(),
            Order::Tbf(_, tbf) => tbf.len(),
        }
    }

    fn is_full(&self, places: usize) -> bool {
        self.len() >= places || self.bytes >= BYTES_MAX
    }

    fn push(&mut self, waiting: QueuedRequest<R>, now: Instant) {
        self.bytes += waiting.bytes;
        match &mut self.order {
            Order::Fifo(queue) => queue.push_back(waiting),
            Order::Tbf(kind, tbf) => tbf.push(waiting.request.key(*kind), waiting, now),
        }
    }

    /// Takes the next request that `is_allowed` accepts.
    fn pop(
        &mut self,
        now: Instant,
        is_allowed: impl Fn(&QueuedRequest<R>) -> bool,
    ) -> Option<QueuedRequest<R>> {
        let waiting = match &mut self.order {
            Order::Fifo(queue) => {
                let index = queue.iter().position(is_allowed)?;
                queue.remove(index)
            }
            Order::Tbf(_, tbf) => tbf.pop(now, is_allowed),
        }?;
        self.bytes -= waiting.bytes;
        Some(waiting)
    }

    fn has_ready(&self, now: Instant, is_allowed: impl Fn(&QueuedRequest<R>) -> bool) -> bool {
        match &self.order {
            Order::Fifo(queue) => queue.iter().any(is_allowed),
            Order::Tbf(_, tbf) => tbf.has_ready(now, is_allowed),
        }
    }

    fn drain(&mut self) -> Vec<QueuedRequest<R>> {
        self.bytes = 0;
        match &mut self.order {
            Order::Fifo(queue) => queue.drain(..).collect(),
            Order::Tbf(_, tbf) => tbf.drain(),
        }
    }

    fn iter_mut(&mut self) -> Box<dyn Iterator<Item = &mut R> + '_> {
        match &mut self.order {
            Order::Fifo(queue) => Box::new(queue.iter_mut().map(|w| &mut w.request)),
            Order::Tbf(_, tbf) => Box::new(tbf.iter_mut().map(|w| &mut w.request)),
        }
    }
}

impl<R: Classify> Queue<R> {
    /// A queue with `places` for each kind of request and at most `threads` slots. `seed` is for
    /// the hash functions of its tables, because peers choose the keys.
    pub(super) fn new(places: usize, threads: usize, seed: HashSeed) -> Queue<R> {
        Queue {
            high_priority: SubQueue::new(),
            ordinary: SubQueue::new(),
            peers: SeededMap::with_hasher(seed),
            places,
            threads,
            handling: Counts::default(),
            active: 0,
            active_max: 0,
            has_watcher: false,
            token_waiter_wakes_at: None,
        }
    }

    /// Number of queued requests.
    pub(super) fn len(&self) -> usize {
        self.high_priority.len() + self.ordinary.len()
    }

    /// Queued requests of each kind.
    pub(super) fn waiting(&self) -> Counts {
        Counts {
            ordinary: self.ordinary.len(),
            high_priority: self.high_priority.len(),
        }
    }

    /// Requests of each kind that are being handled.
    pub(super) fn handling(&self) -> Counts {
        self.handling
    }

    /// Free places for ordinary requests.
    pub(super) fn free_places(&self) -> usize {
        self.places.saturating_sub(self.ordinary.len())
    }

    /// Limit of slots.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Sets the limit of slots.
    pub(super) fn set_threads(&mut self, threads: usize) {
        self.threads = threads;
    }

    /// Opens a slot.
    pub(super) fn open_slot(&mut self) {
        self.active += 1;
        self.active_max = self.active_max.max(self.active);
    }

    /// Whether the ordinary or the high-priority queue is full.
    pub(super) fn is_full(&self) -> bool {
        self.high_priority.is_full(self.places) || self.ordinary.is_full(self.places)
    }

    /// Queues a request of `bytes` bytes.
    pub(super) fn push(
        &mut self,
        from: Nid,
        bytes: usize,
        high_priority: bool,
        now: Instant,
        request: impl FnOnce() -> R,
    ) -> Result<(), PushError> {
        let bytes = bytes + REQUEST_COST;
        let queue = if high_priority {
            &mut self.high_priority
        } else {
            &mut self.ordinary
        };
        if !high_priority && from != Nid::LO {
            let usage = self.peers.entry(from).or_default();
            if usage.waiting >= PER_PEER_MAX || usage.bytes >= PER_PEER_BYTES_MAX {
                return Err(PushError::PeerQuotaExceeded);
            }
            if queue.is_full(self.places) {
                self.forget_idle(from);
                return Err(PushError::QueueFull);
            }
            usage.waiting += 1;
            usage.bytes += bytes;
        } else if queue.is_full(self.places) {
            return Err(PushError::QueueFull);
        }
        let request = request();
        queue.push(QueuedRequest { from, bytes, request }, now);
        Ok(())
    }

    /// Takes the next request for an open slot.
    pub(super) fn next(&mut self, now: Instant) -> Option<(R, HandlingToken)> {
        if let Some(high_priority) = self.high_priority.pop(now, |_| true) {
            self.handling.high_priority += 1;
            return Some((
                high_priority.request,
                HandlingToken {
                    peer: None,
                    high_priority: true,
                },
            ));
        }
        // Slots above the limit handle only high-priority requests.
        if self.active > self.threads {
            return None;
        }
        let is_allowed = within_quota(&self.peers, self.threads);
        let next = self.ordinary.pop(now, is_allowed)?;
        self.handling.ordinary += 1;
        let mut token = HandlingToken {
            peer: None,
            high_priority: false,
        };
        if let Some(usage) = self.peers.get_mut(&next.from) {
            usage.waiting -= 1;
            usage.bytes -= next.bytes;
            usage.active += 1;
            token.peer = Some(next.from);
        }
        Some((next.request, token))
    }

    /// Records that a request has been handled.
    pub(super) fn finish(&mut self, token: HandlingToken) {
        match token.high_priority {
            true => self.handling.high_priority -= 1,
            false => self.handling.ordinary -= 1,
        }
        let Some(from) = token.peer else { return };
        if let Some(usage) = self.peers.get_mut(&from) {
            usage.active -= 1;
        }
        self.forget_idle(from);
    }

    /// Whether a queued request could run in another slot.
    pub(super) fn needs_slot(&self, now: Instant) -> bool {
        let is_allowed = within_quota(&self.peers, self.threads);
        let ordinary = || self.active < self.threads && self.ordinary.has_ready(now, is_allowed);
        self.high_priority.len() > 0 || ordinary()
    }

    /// When the first request that waits for a token gets it.
    pub(super) fn next_token(&self, now: Instant) -> Option<Instant> {
        match &self.ordinary.order {
            Order::Fifo(_) => None,
            Order::Tbf(_, tbf) => tbf.next_token_at(now),
        }
    }

    /// All queued requests.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.high_priority.iter_mut().chain(self.ordinary.iter_mut())
    }

    /// Drops all queued requests.
    pub(super) fn clear(&mut self) {
        self.high_priority.drain();
        self.ordinary.drain();
        for usage in self.peers.values_mut() {
            (usage.waiting, usage.bytes) = (0, 0);
        }
        self.peers.retain(|_, usage| usage.active > 0);
    }

    /// Switches to a policy, also for queued requests. The same policy with other rules keeps its
    /// buckets.
    pub(super) fn set_policy(&mut self, policy: &Policy, depth: u32, now: Instant) {
        if let (Order::Tbf(old, tbf), Policy::Tbf { kind, rules }) = (&mut self.ordinary.order, policy)
            && old == kind
        {
            return tbf.set_rules(rules.clone(), now);
        }
        let waiting = self.ordinary.drain();
        let new_filter = |rules: &Rules| Tbf::new(rules.clone(), depth, self.peers.hasher().clone(), now);
        self.ordinary.order = match policy {
            Policy::Fifo => Order::Fifo(VecDeque::new()),
            Policy::Tbf { kind, rules } => Order::Tbf(*kind, new_filter(rules)),
        };
        waiting.into_iter().for_each(|w| self.ordinary.push(w, now));
    }

    /// The rules and the classes of a TBF policy, one per line.
    pub(super) fn show_tbf(&self) -> Option<(String, String)> {
        match &self.ordinary.order {
            Order::Fifo(_) => None,
            Order::Tbf(_, tbf) => Some((tbf.show_rules(), tbf.show_classes())),
        }
    }

    /// Forgets a peer without requests.
    fn forget_idle(&mut self, from: Nid) {
        if self
            .peers
            .get(&from)
            .is_some_and(|s| s.active == 0 && s.waiting == 0)
        {
            self.peers.remove(&from);
        }
    }
}

/// Whether a request's peer has slots left in its quota: 7/8 of all.
fn within_quota<R>(
    peers: &SeededMap<Nid, PeerUsage>,
    threads: usize,
) -> impl Fn(&QueuedRequest<R>) -> bool + use<'_, R> {
    let quota = threads - threads / 8;
    move |w| peers.get(&w.from).is_none_or(|s| s.active < quota)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{BYTES_MAX, Classify, HandlingToken, PER_PEER_BYTES_MAX, PER_PEER_MAX, PushError, Queue};
    use crate::server::nrs::{Key, KeyKind, Policy};
    use cpt::HashSeed;
    use std::time::{Duration, Instant};
    use wire::Nid;

    const FLOODING_PEER: Nid = Nid(0x0002_0000_0a00_0001);
    const OTHER_PEER: Nid = Nid(0x0002_0000_0a00_0002);

    /// Uses the number as the uid.
    impl Classify for u32 {
        fn key(&self, _kind: KeyKind) -> Key {
            Key {
                uid: Some(*self),
                ..Key::default()
            }
        }
    }

    const fn token(peer: Option<Nid>) -> HandlingToken {
        HandlingToken {
            peer,
            high_priority: false,
        }
    }

    fn new_queue(places: usize, threads: usize) -> Queue<u32> {
        Queue::new(places, threads, HashSeed::fixed(0))
    }

    /// Queues a request.
    fn push(
        queue: &mut Queue<u32>,
        from: Nid,
        bytes: usize,
        high_priority: bool,
        n: u32,
    ) -> Result<(), PushError> {
        queue.push(from, bytes, high_priority, Instant::now(), || n)
    }

    /// Opens a slot, which takes the next request.
    fn begin(queue: &mut Queue<u32>) -> Option<(u32, HandlingToken)> {
        queue.active += 1;
        let next = queue.next(Instant::now());
        queue.active -= usize::from(next.is_none());
        next
    }

    #[test]
    fn high_priority_requests_go_first() {
        let mut queue = new_queue(8, 2);
        push(&mut queue, FLOODING_PEER, 0, false, 1).unwrap();
        push(&mut queue, FLOODING_PEER, 0, true, 2).unwrap();
        assert_eq!(
            begin(&mut queue),
            Some((
                2,
                HandlingToken {
                    peer: None,
                    high_priority: true
                }
            ))
        );
        assert_eq!(begin(&mut queue), Some((1, token(Some(FLOODING_PEER)))));
        queue.finish(token(Some(FLOODING_PEER)));
        assert!(queue.peers.is_empty() && queue.len() == 0);
    }

    #[test]
    fn a_peer_at_its_quota_leaves_slots_to_others() {
        let mut queue = new_queue(100, 16);
        for n in 0..50 {
            push(&mut queue, FLOODING_PEER, 0, false, n).unwrap();
        }
        let taken = (0..50).map_while(|_| begin(&mut queue)).count();
        assert_eq!(taken, 14);
        assert!(!queue.needs_slot(Instant::now()));
        push(&mut queue, OTHER_PEER, 0, false, 77).unwrap();
        assert!(queue.needs_slot(Instant::now()));
        assert_eq!(begin(&mut queue), Some((77, token(Some(OTHER_PEER)))));
        assert_eq!(begin(&mut queue), None);
        queue.finish(token(Some(FLOODING_PEER)));
        assert_eq!(
            queue.next(Instant::now()),
            Some((14, token(Some(FLOODING_PEER)))),
            "in the order of arrival"
        );
    }

    #[test]
    fn requests_over_lo_have_no_quota() {
        let mut queue = new_queue(100, 16);
        for n in 0..50 {
            push(&mut queue, Nid::LO, 0, false, n).unwrap();
        }
        assert_eq!((0..50).map_while(|_| begin(&mut queue)).count(), 16);
    }

    #[test]
    fn queued_requests_are_limited_in_number_and_bytes() {
        let mut queue = new_queue(3, 1);
        for n in 0..3 {
            push(&mut queue, FLOODING_PEER, 0, false, n).unwrap();
        }
        assert_eq!(
            push(&mut queue, FLOODING_PEER, 0, false, 3),
            Err(PushError::QueueFull)
        );
        assert!(queue.is_full());
        push(&mut queue, FLOODING_PEER, 0, true, 4).unwrap();
        let mut queue = new_queue(2 * PER_PEER_MAX, 1);
        let pushed = (0..)
            .map_while(|n| push(&mut queue, FLOODING_PEER, 0, false, n).ok())
            .count();
        assert_eq!(pushed, PER_PEER_MAX);
        push(&mut queue, OTHER_PEER, 0, false, 0).unwrap();
        queue.clear();
        assert!(queue.peers.is_empty());
        let mut queue = new_queue(PER_PEER_MAX, 1);
        while push(&mut queue, FLOODING_PEER, 1 << 20, false, 0).is_ok() {}
        assert!(queue.ordinary.bytes < PER_PEER_BYTES_MAX + (2 << 20));
        assert_eq!(
            push(&mut queue, FLOODING_PEER, 0, false, 0),
            Err(PushError::PeerQuotaExceeded)
        );
        push(&mut queue, OTHER_PEER, BYTES_MAX, false, 0).unwrap();
        assert_eq!(push(&mut queue, Nid(7), 0, false, 0), Err(PushError::QueueFull));
        assert!(!queue.peers.contains_key(&Nid(7)));
    }

    #[test]
    fn a_new_policy_applies_to_queued_requests() {
        let mut policy = Policy::parse("tbf uid", 10_000).unwrap();
        policy.execute("start slow uid={1} rate=1", 10_000).unwrap();
        let (now, mut queue) = (Instant::now(), new_queue(100, 16));
        [1, 1, 2]
            .into_iter()
            .for_each(|n| push(&mut queue, FLOODING_PEER, 0, false, n).unwrap());
        queue.set_policy(&policy, 1, now);
        push(&mut queue, OTHER_PEER, 0, true, 1).unwrap();
        queue.active = 1;
        let mut take = || queue.next(now).map(|(n, _)| n);
        assert_eq!(
            [take(), take(), take(), take()],
            [Some(1), Some(1), Some(2), None]
        );
        assert!(!queue.needs_slot(now) && queue.len() == 1);
        assert_eq!(queue.next_token(now), Some(now + Duration::from_secs(1)));
        let (rules, classes) = queue.show_tbf().unwrap();
        assert!(
            rules.starts_with("slow uid={1} 1, ref 1\n") && classes.contains("uid={1} rule slow"),
            "{rules}{classes}"
        );
        queue.set_policy(&Policy::Fifo, 1, now);
        assert!(queue.needs_slot(now) && queue.next(now).is_some() && queue.next_token(now).is_none());
    }
}
