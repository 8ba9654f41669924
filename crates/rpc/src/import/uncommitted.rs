//! Requests with transactions that the server may still lose in a crash (docs/protocol.md,
//! "Recovery"). A client does not replay them: after a crash, [`UncommittedList::take_lost`]
//! returns those that are lost.
//!
//! A request is added when its reply carries a transno. It is removed when `last_committed` reaches
//! that transno and no [`UncommittedGuard`] holds it: an open stays until the file is closed,
//! because only the open can recreate the open handle. Pure: it sees replies and stores messages.

use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UncommittedRequest {
    pub(crate) xid: Xid,
    pub(crate) msg: Bytes,
    /// Whether a guard held the request at the last [`UncommittedList::note_committed`].
    held: bool,
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
    /// Messages of transactions that the server lost in a crash.
    lost: Vec<Bytes>,
}

impl UncommittedList {
    /// Adds the request `xid`, unless `transno` of its reply is committed. With `keep`, adds the
    /// request in any case and returns a guard that keeps it on the list.
    pub(crate) fn add(
        &mut self,
        transno: Transno,
        xid: Xid,
        msg: Bytes,
        keep: bool,
    ) -> Option<UncommittedGuard> {
        let list = if transno > self.last_committed {
            &mut self.uncommitted
        } else {
            &mut self.held
        };
        if transno > self.last_committed || keep {
            list.insert(transno, UncommittedRequest { xid, msg, held: keep });
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
        for released in std::mem::take(&mut *self.released.lock()) {
            if let Some(entry) = self.uncommitted.get_mut(&released) {
                entry.held = false;
            }
            self.held.remove(&released);
        }
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
    }

    /// Records that the server restarted and lost the transactions above `committed`.
    pub(crate) fn note_restart(&mut self, committed: Transno) {
        self.note_committed(committed);
        let lost = self.uncommitted.values().map(|entry| entry.msg.clone());
        self.lost = lost.collect();
    }

    /// Takes the messages of lost transactions.
    pub(crate) fn take_lost(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.lost)
    }

    /// Empties the list after an eviction, because transnos start again. The messages for
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
    use super::UncommittedList;
    use bytes::Bytes;
    use wire::{Transno, Xid};

    fn transnos(numbers: &[u64]) -> Vec<Transno> {
        numbers.iter().copied().map(Transno).collect()
    }

    fn list(numbers: &[u64]) -> UncommittedList {
        let mut list = UncommittedList::default();
        for &transno in numbers {
            assert!(
                list.add(Transno(transno), Xid(transno * 128), Bytes::new(), false)
                    .is_none()
            );
        }
        list
    }

    #[test]
    fn uncommitted_requests_of_a_restarted_server_are_lost() {
        let mut list = list(&[]);
        for transno in 1..=4u8 {
            list.add(
                Transno(transno.into()),
                Xid::NONE,
                Bytes::from(vec![transno]),
                transno == 1,
            );
        }
        list.note_restart(Transno(2));
        list.clear();
        assert_eq!(list.take_lost(), [&[3][..], &[4]]);
        assert!(list.take_lost().is_empty());
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
        assert!(list.add(Transno(6), Xid(1), Bytes::new(), false).is_none());
        assert_eq!(list.listed_transnos(), transnos(&[9]));
    }

    #[test]
    fn an_open_stays_until_its_guard_is_dropped_and_it_is_committed() {
        let mut list = list(&[]);
        let first = list.add(Transno(5), Xid(1), Bytes::new(), true);
        let second = list.add(Transno(6), Xid(2), Bytes::new(), true);
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
