//! Which of a client's requests set an object's times last.
//!
//! Writes and settings come through services of their own, so that a write may be done after a setting that its client
//! sent later: then its times are not those of the file any more. (Lustre calls it filter modification data, fmd.)

use std::collections::VecDeque;

use parking_lot::Mutex;
use wire::Fid;

/// Objects remembered of each client, as with Lustre; a write that is so late that more were set meanwhile does not happen.
const OBJECTS_MAX: usize = 128;

/// What one client has set, the latest last.
#[derive(Debug, Default)]
pub(crate) struct Settings(Mutex<VecDeque<(Fid, u64)>>);

impl Settings {
    /// The request `xid` sets an object's times.
    pub(crate) fn add(&self, fid: Fid, xid: u64) {
        let mut set = self.0.lock();
        let before = set.iter().position(|(of, _)| *of == fid);
        let before = before.and_then(|at| set.remove(at)).map_or(0, |(_, xid)| xid);
        if set.len() == OBJECTS_MAX {
            set.pop_front();
        }
        set.push_back((fid, before.max(xid)));
    }

    /// Whether times were set by a request that was sent after `xid`.
    pub(crate) fn since(&self, fid: Fid, xid: u64) -> bool {
        let set = self.0.lock();
        set.iter().rev().any(|(of, later)| *of == fid && *later > xid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_knows_what_was_set_after_it_was_sent() {
        let settings = Settings::default();
        let fid = |n| Fid::new(0x100, n, 0);
        settings.add(fid(1), 10);
        assert!(settings.since(fid(1), 9));
        assert!(!settings.since(fid(1), 11) && !settings.since(fid(2), 9));
        settings.add(fid(1), 8);
        assert!(settings.since(fid(1), 9), "settings too come out of order");
        for n in 2..=OBJECTS_MAX as u32 {
            settings.add(fid(n), 20);
        }
        assert!(settings.since(fid(1), 9));
        settings.add(fid(1), 30);
        settings.add(fid(500), 31);
        assert!(settings.since(fid(1), 29) && !settings.since(fid(2), 9));
        assert_eq!(settings.0.lock().len(), OBJECTS_MAX);
    }
}
