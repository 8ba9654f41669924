//! Requests with transactions that the server may still lose in a crash (docs/protocol.md,
//! "Recovery"). The client replays them after a restart of the server. If the server evicts the
//! client instead, [`UncommittedList::take_lost`] returns those that are lost.
//!
//! A request is added when its reply carries a transno. It is removed when `last_committed` reaches
//! that transno and no [`UncommittedGuard`] holds it: an open stays until the file is closed,
//! because only the open can recreate the open handle. Pure: it sees replies and stores messages.

use crate::Request;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use wire::{Transno, Xid};

/// Keeps a request on the [`UncommittedList`], committed or not, until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct UncommittedGuard {
    _held: Arc<Hold>,
}

#[derive(Debug)]
struct Hold {
    transno: Transno,
    released: Arc<Mutex<Vec<Transno>>>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.released.lock().push(self.transno);
    }
}

/// A request on the list.
#[derive(Debug, Clone)]
pub(crate) struct UncommittedRequest {
    pub(crate) xid: Xid,
    /// `pb_tag`
    pub(crate) tag: u16,
    /// `pb_pre_versions` of the reply.
    pub(crate) pre_versions: [u64; 4],
    /// The request, as the client replays it.
    pub(crate) request: Arc<Request>,
    /// Whether a guard held the request at the last [`UncommittedList::note_committed`].
    held: bool,
}

impl UncommittedRequest {
    pub(crate) fn new(
        xid: Xid,
        tag: u16,
        pre_versions: [u64; 4],
        request: Arc<Request>,
    ) -> UncommittedRequest {
        UncommittedRequest {
            xid,
            tag,
            pre_versions,
            held: request.keep_until_closed,
            request,
        }
    }
}

/// The list, ordered by transno.
#[derive(Debug, Default)]
pub(crate) struct UncommittedList {
    uncommitted: BTreeMap<Transno, UncommittedRequest>,
    /// Committed, but held by a guard.
    held: BTreeMap<Transno, UncommittedRequest>,
    /// Transnos with guards that have been dropped since the last
    /// [`UncommittedList::note_committed`].
    released: Arc<Mutex<Vec<Transno>>>,
    last_committed: Transno,
    /// The requests of transactions that the server lost in a crash.
    lost: Vec<Arc<Request>>,
}

impl UncommittedList {
    /// Adds a request, unless `transno` of its reply is committed. A request with
    /// `keep_until_closed` is added in any case; the returned guard keeps it on the list.
    pub(crate) fn add(&mut self, transno: Transno, entry: UncommittedRequest) -> Option<UncommittedGuard> {
        let list = if transno > self.last_committed {
            &mut self.uncommitted
        } else {
            &mut self.held
        };
        let keep = entry.held;
        if transno > self.last_committed || keep {
            list.insert(transno, entry);
        }
        keep.then(|| UncommittedGuard {
            _held: Arc::new(Hold {
                transno,
                released: self.released.clone(),
            }),
        })
    }

    /// Records that transactions up to `transno` are committed, and drops requests that are neither
    /// uncommitted nor held.
    pub(crate) fn note_committed(&mut self, transno: Transno) {
        self.drop_released();
        if transno <= self.last_committed {
            return;
        }
        self.last_committed = transno;
        while let Some(first) = self.uncommitted.first_entry().filter(|e| *e.key() <= transno) {
            let (transno, entry) = first.remove_entry();
            if entry.held {
                self.held.insert(transno, entry);
            }
        }
        // A committed close has released its open.
        self.drop_released();
    }

    /// Drops the held requests without guards.
    fn drop_released(&mut self) {
        let all_released = std::mem::take(&mut *self.released.lock());
        for released in all_released {
            if let Some(entry) = self.uncommitted.get_mut(&released) {
                entry.held = false;
            }
            self.held.remove(&released);
        }
    }

    /// Records that the server restarted without this client, and lost the transactions above
    /// `committed`. If that is a number of a later start of the server (its upper 32 bits are
    /// higher), it says nothing about the transactions of the earlier start: they count as lost.
    pub(crate) fn note_restart(&mut self, committed: Transno) {
        let epoch = |transno: Transno| transno.0 >> 32;
        let last = self.uncommitted.last_key_value();
        if last.is_some_and(|(last, _)| epoch(*last) >= epoch(committed)) {
            self.note_committed(committed);
        }
        let lost = self.uncommitted.values().map(|entry| entry.request.clone());
        self.lost = lost.collect();
    }

    /// Records that the server has restarted, and that this client could not recover there.
    pub(crate) fn lose_all(&mut self) {
        self.lost
            .extend(self.uncommitted.values().map(|entry| entry.request.clone()));
    }

    /// Records that the server could not execute a request again.
    pub(crate) fn lose(&mut self, request: Arc<Request>) {
        self.lost.push(request);
    }

    /// The first request after `replayed` to replay at a restarted server.
    pub(crate) fn next_to_replay(&mut self, replayed: Transno) -> Option<(Transno, UncommittedRequest)> {
        self.drop_released();
        let next = |list: &BTreeMap<Transno, UncommittedRequest>| {
            let range = (Bound::Excluded(replayed), Bound::Unbounded);
            list.range(range).next().map(|(t, entry)| (*t, entry.clone()))
        };
        let all = next(&self.held).into_iter().chain(next(&self.uncommitted));
        all.min_by_key(|(transno, _)| *transno)
    }

    /// Takes the requests of lost transactions.
    pub(crate) fn take_lost(&mut self) -> Vec<Arc<Request>> {
        std::mem::take(&mut self.lost)
    }

    /// Empties the list after an eviction, because transnos start again. The requests for
    /// [`UncommittedList::take_lost`] stay.
    pub(crate) fn clear(&mut self) {
        self.uncommitted.clear();
        self.held.clear();
        self.released.lock().clear();
        self.last_committed = Transno::NONE;
    }

    /// The transnos on the list.
    #[cfg(test)]
    fn listed_transnos(&self) -> Vec<Transno> {
        let mut all: Vec<Transno> = self.held.keys().chain(self.uncommitted.keys()).copied().collect();
        all.sort_unstable();
        all
    }

    /// Number of transactions that are not known to be committed.
    pub(crate) fn count(&self) -> usize {
        self.uncommitted.len()
    }

    /// The highest transno known to be committed.
    pub(crate) fn last_committed(&self) -> Transno {
        self.last_committed
    }
}

#[cfg(test)]
mod tests {
    use super::{UncommittedList, UncommittedRequest};
    use crate::Request;
    use std::sync::Arc;
    use wire::{Transno, Xid};

    fn transnos(numbers: &[u64]) -> Vec<Transno> {
        numbers.iter().copied().map(Transno).collect()
    }

    fn entry(opc: u32, keep: bool) -> UncommittedRequest {
        let request = Request {
            keep_until_closed: keep,
            ..Request::new(opc, Vec::new())
        };
        UncommittedRequest::new(Xid(1), 0, [0; 4], Arc::new(request))
    }

    fn list(numbers: &[u64]) -> UncommittedList {
        let mut list = UncommittedList::default();
        for &transno in numbers {
            assert!(list.add(Transno(transno), entry(1, false)).is_none());
        }
        list
    }

    #[test]
    fn uncommitted_requests_of_a_restarted_server_are_lost() {
        let mut list = list(&[]);
        for transno in 1..=4 {
            list.add(Transno(transno), entry(transno as u32, transno == 1));
        }
        list.note_restart(Transno(2));
        list.clear();
        let lost: Vec<u32> = list.take_lost().iter().map(|request| request.opc).collect();
        assert_eq!(lost, [3, 4]);
        assert!(list.take_lost().is_empty());
    }

    #[test]
    fn a_later_start_of_the_server_does_not_commit_requests_of_an_earlier_one() {
        let mut list = list(&[(1 << 32) + 5]);
        list.note_restart(Transno((3 << 32) + 1));
        assert_eq!(list.take_lost().len(), 1);
    }

    #[test]
    fn an_open_is_not_replayed_after_its_close_is_committed() {
        let mut list = list(&[]);
        let open = list.add(Transno(5), entry(1, true));
        let close = Request {
            ends_open: open,
            ..Request::new(2, Vec::new())
        };
        list.add(
            Transno(6),
            UncommittedRequest::new(Xid(1), 0, [0; 4], Arc::new(close)),
        );
        list.note_committed(Transno(5));
        assert_eq!(
            list.next_to_replay(Transno::NONE).map(|(t, _)| t),
            Some(Transno(5))
        );
        list.note_committed(Transno(6));
        assert!(list.next_to_replay(Transno::NONE).is_none());
    }

    #[test]
    fn requests_are_replayed_in_order_and_with_the_opens_of_open_files() {
        let mut list = list(&[]);
        let _open = list.add(Transno(3), entry(1, true));
        let closed = list.add(Transno(4), entry(1, true));
        for transno in [9, 7, 5] {
            list.add(Transno(transno), entry(1, false));
        }
        drop(closed);
        list.note_committed(Transno(5));
        let mut replayed = vec![Transno::NONE];
        while let Some((transno, _)) = list.next_to_replay(replayed[replayed.len() - 1]) {
            replayed.push(transno);
        }
        assert_eq!(replayed[1..], transnos(&[3, 7, 9]));
    }

    #[test]
    fn committed_requests_leave_the_list() {
        let mut list = list(&[7, 5, 9]);
        assert_eq!(list.listed_transnos(), transnos(&[5, 7, 9]));
        list.note_committed(Transno(7));
        assert_eq!(
            (list.listed_transnos(), list.count(), list.last_committed()),
            (transnos(&[9]), 1, Transno(7))
        );
        list.note_committed(Transno(3));
        assert_eq!(list.last_committed(), Transno(7));
        assert!(list.add(Transno(6), entry(1, false)).is_none());
        assert_eq!(list.listed_transnos(), transnos(&[9]));
    }

    #[test]
    fn an_open_stays_until_its_guard_is_dropped_and_it_is_committed() {
        let mut list = list(&[]);
        let first = list.add(Transno(5), entry(1, true));
        let second = list.add(Transno(6), entry(1, true));
        drop(first);
        list.note_committed(Transno(5));
        assert_eq!(list.listed_transnos(), transnos(&[6]));
        list.note_committed(Transno(6));
        assert_eq!((list.listed_transnos(), list.count()), (transnos(&[6]), 0));
        drop(second);
        list.note_committed(Transno(6));
        assert!(list.listed_transnos().is_empty());
    }
}
