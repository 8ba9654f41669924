//! The requests that last set the times of each object (Lustre's filter modification data, fmd).
//!
//! Writes and attribute changes run in different services, so that the target may handle a write
//! after a setattr that its client sent later. The write must then leave the times alone.

use std::collections::VecDeque;

use parking_lot::Mutex;
use wire::{Fid, Xid};

/// Objects remembered for each client, as in Lustre. A write never arrives so late that its client
/// has changed more objects since.
const OBJECTS_MAX: usize = 128;

/// The objects that one client changed the times of, and the xid of each request; the latest last.
#[derive(Debug, Default)]
pub(crate) struct ModificationData(Mutex<VecDeque<(Fid, Xid)>>);

impl ModificationData {
    /// Records that the request `xid` sets an object's times.
    pub(crate) fn add(&self, fid: Fid, xid: Xid) {
        let mut set = self.0.lock();
        let before = set.iter().position(|(of, _)| *of == fid);
        let before = before
            .and_then(|at| set.remove(at))
            .map_or(Xid::NONE, |(_, xid)| xid);
        if set.len() == OBJECTS_MAX {
            set.pop_front();
        }
        set.push_back((fid, before.max(xid)));
    }

    /// Whether a request sent after `xid` set the object's times.
    pub(crate) fn set_after(&self, fid: Fid, xid: Xid) -> bool {
        let set = self.0.lock();
        set.iter().rev().any(|(of, later)| *of == fid && *later > xid)
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
        assert!(modifications.set_after(fid(1), Xid(9)));
        assert!(!modifications.set_after(fid(1), Xid(11)) && !modifications.set_after(fid(2), Xid(9)));
        modifications.add(fid(1), Xid(8));
        assert!(
            modifications.set_after(fid(1), Xid(9)),
            "an earlier request may arrive later"
        );
        for n in 2..=OBJECTS_MAX as u32 {
            modifications.add(fid(n), Xid(20));
        }
        assert!(modifications.set_after(fid(1), Xid(9)));
        modifications.add(fid(1), Xid(30));
        modifications.add(fid(500), Xid(31));
        assert!(modifications.set_after(fid(1), Xid(29)) && !modifications.set_after(fid(2), Xid(9)));
        assert_eq!(modifications.0.lock().len(), OBJECTS_MAX);
    }
}
