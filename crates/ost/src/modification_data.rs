//! For each client, the requests that last set the times of its recent objects (Lustre's filter
//! modification data, fmd).
//!
//! Writes and attribute changes run in different services. The target may therefore handle a write
//! after a setattr that the client sent later. Such a write must not change the times.

use std::collections::VecDeque;

use parking_lot::Mutex;
use wire::{Fid, Xid};

/// Number of objects recorded for each client, as in Lustre. A delayed write wrongly changes times
/// only if the client has set the times of this many other objects since.
const OBJECTS_MAX: usize = 128;

/// The objects whose times one client set last, each with the highest xid of these requests. The
/// latest recorded object is last.
#[derive(Debug, Default)]
pub(crate) struct ModificationData(Mutex<VecDeque<(Fid, Xid)>>);

impl ModificationData {
    /// Records that the request `xid` sets an object's times.
    pub(crate) fn add(&self, fid: Fid, xid: Xid) {
        let mut entries = self.0.lock();
        let position = entries.iter().position(|(object, _)| *object == fid);
        let former = position
            .and_then(|position| entries.remove(position))
            .map_or(Xid::NONE, |(_, xid)| xid);
        if entries.len() == OBJECTS_MAX {
            entries.pop_front();
        }
        entries.push_back((fid, former.max(xid)));
    }

    /// Whether a recorded request sent after `xid` set the object's times.
    pub(crate) fn has_later_change(&self, fid: Fid, xid: Xid) -> bool {
        let entries = self.0.lock();
        entries
            .iter()
            .rev()
            .any(|(object, set_by)| *object == fid && *set_by > xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_time_changes_are_found() {
        let modifications = ModificationData::default();
        let fid = |n| Fid::new(0x100, n, 0);
        modifications.add(fid(1), Xid(10));
        assert!(modifications.has_later_change(fid(1), Xid(9)));
        assert!(
            !modifications.has_later_change(fid(1), Xid(11))
                && !modifications.has_later_change(fid(2), Xid(9))
        );
        modifications.add(fid(1), Xid(8));
        assert!(
            modifications.has_later_change(fid(1), Xid(9)),
            "an older request may arrive later"
        );
        for n in 2..=OBJECTS_MAX as u32 {
            modifications.add(fid(n), Xid(20));
        }
        assert!(modifications.has_later_change(fid(1), Xid(9)));
        modifications.add(fid(1), Xid(30));
        modifications.add(fid(500), Xid(31));
        assert!(
            modifications.has_later_change(fid(1), Xid(29))
                && !modifications.has_later_change(fid(2), Xid(9))
        );
        assert_eq!(modifications.0.lock().len(), OBJECTS_MAX);
    }
}
