//! Requests that wait on one partition of a service, and how many are being handled: which comes next, and when there is no
//! room.
//!
//! Pure. Requests that let others go on have a line of their own, which goes first. Of the other line, one peer gets a share:
//! one that sends more than it should, or promises data that never come, leaves slots and places to the others. This node
//! itself is no peer in that sense.

use foldhash::HashMap;
use std::collections::VecDeque;
use wire::Nid;

/// Bytes of requests that wait in a line; with more it is full.
const BYTES_MAX: usize = 64 << 20;
/// What waits of one peer: requests, and their bytes.
const PER_PEER_MAX: usize = 4096;
const PER_PEER_BYTES_MAX: usize = BYTES_MAX / 2;
/// A request's part of that beside its bytes.
const COST_MIN: usize = 1 << 10;

/// Why a request does not get a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The line is full: it may come again.
    Full,
    /// Its peer has more than its share: it is to be dropped.
    Share,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting<R> {
    from: Nid,
    bytes: usize,
    request: R,
}

#[derive(Debug)]
struct Line<R> {
    waiting: VecDeque<Waiting<R>>,
    bytes: usize,
}

/// What a peer has of the line that is shared.
#[derive(Debug, Default)]
struct Share {
    active: usize,
    waiting: usize,
    bytes: usize,
}

/// The queue.
#[derive(Debug)]
pub(super) struct Queue<R> {
    urgent: Line<R>,
    normal: Line<R>,
    peers: HashMap<Nid, Share>,
    places: usize,
    threads: usize,
    /// Slots in use.
    pub(super) active: usize,
    /// Somebody looks after those that wait.
    pub(super) watched: bool,
}

impl<R> Line<R> {
    fn new() -> Line<R> {
        Line {
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }

    fn is_full(&self, places: usize) -> bool {
        self.waiting.len() >= places || self.bytes >= BYTES_MAX
    }

    fn push(&mut self, waiting: Waiting<R>) {
        self.bytes += waiting.bytes;
        self.waiting.push_back(waiting);
    }

    fn remove(&mut self, at: usize) -> Option<Waiting<R>> {
        let waiting = self.waiting.remove(at)?;
        self.bytes -= waiting.bytes;
        Some(waiting)
    }
}

impl<R> Queue<R> {
    /// With so many places in each line, for so many requests at once.
    pub(super) fn new(places: usize, threads: usize) -> Queue<R> {
        Queue {
            urgent: Line::new(),
            normal: Line::new(),
            peers: HashMap::default(),
            places,
            threads,
            active: 0,
            watched: false,
        }
    }

    /// How many requests wait.
    pub(super) fn len(&self) -> usize {
        self.urgent.waiting.len() + self.normal.waiting.len()
    }

    /// Whether one of the lines has no room.
    pub(super) fn is_full(&self) -> bool {
        self.urgent.is_full(self.places) || self.normal.is_full(self.places)
    }

    /// Places a request of so many bytes.
    pub(super) fn push(
        &mut self,
        from: Nid,
        bytes: usize,
        urgent: bool,
        request: impl FnOnce() -> R,
    ) -> Result<(), NoPlace> {
        let bytes = bytes + COST_MIN;
        let line = if urgent {
            &mut self.urgent
        } else {
            &mut self.normal
        };
        if !urgent && from != Nid::LO {
            let share = self.peers.entry(from).or_default();
            if share.waiting >= PER_PEER_MAX || share.bytes >= PER_PEER_BYTES_MAX {
                return Err(NoPlace::Share);
            }
            if line.is_full(self.places) {
                self.forget_idle(from);
                return Err(NoPlace::Full);
            }
            share.waiting += 1;
            share.bytes += bytes;
        } else if line.is_full(self.places) {
            return Err(NoPlace::Full);
        }
        line.push(Waiting {
            from,
            bytes,
            request: request(),
        });
        Ok(())
    }

    /// The next request for a slot that is in use, and whose it is if it counts as a peer's: `finished` has to follow.
    pub(super) fn next(&mut self) -> Option<(R, Option<Nid>)> {
        if let Some(urgent) = self.urgent.remove(0) {
            return Some((urgent.request, None));
        }
        if self.active > self.threads {
            return None;
        }
        let at = self.first_within_share()?;
        let next = self.normal.remove(at)?;
        let Some(share) = self.peers.get_mut(&next.from) else {
            return Some((next.request, None));
        };
        share.waiting -= 1;
        share.bytes -= next.bytes;
        share.active += 1;
        Some((next.request, Some(next.from)))
    }

    /// A request of a peer has been handled.
    pub(super) fn finished(&mut self, from: Nid) {
        if let Some(share) = self.peers.get_mut(&from) {
            share.active -= 1;
        }
        self.forget_idle(from);
    }

    /// Whether a request waits that a further slot could take.
    pub(super) fn needs_slot(&self) -> bool {
        let normal = || self.active < self.threads && self.first_within_share().is_some();
        !self.urgent.waiting.is_empty() || normal()
    }

    /// All requests that wait.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut R> {
        let both = self.urgent.waiting.iter_mut().chain(&mut self.normal.waiting);
        both.map(|waiting| &mut waiting.request)
    }

    /// Forgets those that wait.
    pub(super) fn clear(&mut self) {
        self.urgent = Line::new();
        self.normal = Line::new();
        for share in self.peers.values_mut() {
            (share.waiting, share.bytes) = (0, 0);
        }
        self.peers.retain(|_, share| share.active > 0);
    }

    /// The first request of a peer that does not use its share of the slots already.
    fn first_within_share(&self) -> Option<usize> {
        let most = self.threads - self.threads / 8;
        let may = |w: &Waiting<R>| self.peers.get(&w.from).is_none_or(|s| s.active < most);
        self.normal.waiting.iter().position(may)
    }

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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{BYTES_MAX, NoPlace, PER_PEER_BYTES_MAX, PER_PEER_MAX, Queue};
    use wire::Nid;

    const RUDE: Nid = Nid(0x0002_0000_0a00_0001);
    const POLITE: Nid = Nid(0x0002_0000_0a00_0002);

    /// A slot is opened and takes the next request.
    fn begin(queue: &mut Queue<u32>) -> Option<(u32, Option<Nid>)> {
        queue.active += 1;
        let next = queue.next();
        queue.active -= usize::from(next.is_none());
        next
    }

    #[test]
    fn what_lets_others_go_on_goes_first() {
        let mut queue = Queue::new(8, 2);
        queue.push(RUDE, 0, false, || 1).unwrap();
        queue.push(RUDE, 0, true, || 2).unwrap();
        assert_eq!(begin(&mut queue), Some((2, None)));
        assert_eq!(begin(&mut queue), Some((1, Some(RUDE))));
        queue.finished(RUDE);
        assert!(queue.peers.is_empty() && queue.len() == 0);
    }

    #[test]
    fn one_peer_leaves_slots_to_the_others() {
        let mut queue = Queue::new(100, 16);
        for n in 0..50 {
            queue.push(RUDE, 0, false, || n).unwrap();
        }
        let taken = (0..50).map_while(|_| begin(&mut queue)).count();
        assert_eq!(taken, 14);
        assert!(!queue.needs_slot());
        queue.push(POLITE, 0, false, || 77).unwrap();
        assert!(queue.needs_slot());
        assert_eq!(begin(&mut queue), Some((77, Some(POLITE))));
        assert_eq!(begin(&mut queue), None);
        queue.finished(RUDE);
        assert_eq!(
            queue.next(),
            Some((14, Some(RUDE))),
            "in the order in which they came"
        );
    }

    #[test]
    fn this_node_itself_may_use_all_slots() {
        let mut queue = Queue::new(100, 16);
        for n in 0..50 {
            queue.push(Nid::LO, 0, false, || n).unwrap();
        }
        assert_eq!((0..50).map_while(|_| begin(&mut queue)).count(), 16);
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_bytes() {
        let mut queue = Queue::new(3, 1);
        for n in 0..3 {
            queue.push(RUDE, 0, false, || n).unwrap();
        }
        assert_eq!(queue.push(RUDE, 0, false, || 3), Err(NoPlace::Full));
        assert!(queue.is_full());
        queue.push(RUDE, 0, true, || 4).unwrap();
        let mut queue = Queue::new(2 * PER_PEER_MAX, 1);
        let pushed = (0..).map_while(|n| queue.push(RUDE, 0, false, || n).ok()).count();
        assert_eq!(pushed, PER_PEER_MAX);
        queue.push(POLITE, 0, false, || 0).unwrap();
        queue.clear();
        assert!(queue.peers.is_empty());
        let mut queue = Queue::new(PER_PEER_MAX, 1);
        while queue.push(RUDE, 1 << 20, false, || 0).is_ok() {}
        assert!(queue.normal.bytes < PER_PEER_BYTES_MAX + (2 << 20));
        assert_eq!(queue.push(RUDE, 0, false, || 0), Err(NoPlace::Share));
        queue.push(POLITE, BYTES_MAX, false, || 0).unwrap();
        assert_eq!(queue.push(Nid(7), 0, false, || 0), Err(NoPlace::Full));
        assert!(!queue.peers.contains_key(&Nid(7)));
    }
}
