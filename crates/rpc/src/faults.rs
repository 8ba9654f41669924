//! Faults made on purpose, as with Lustre's `fail_loc`: a test says which replies are to be lost.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// What is to go wrong on a node.
#[derive(Debug, Default)]
pub struct Faults {
    armed: AtomicBool,
    lost_replies: Mutex<Vec<(u32, u32)>>,
}

impl Faults {
    /// Loses the next `times` replies to requests with this opcode, after the requests were executed.
    pub fn lose_replies(&self, opc: u32, times: u32) {
        self.lost_replies.lock().push((opc, times));
        self.armed.store(true, Ordering::Release);
    }

    pub(crate) fn loses_reply(&self, opc: u32) -> bool {
        if !self.armed.load(Ordering::Acquire) {
            return false;
        }
        let mut lost = self.lost_replies.lock();
        let rule = lost.iter_mut().find(|(of, left)| *of == opc && *left > 0);
        let hit = rule.map(|(_, left)| *left -= 1).is_some();
        lost.retain(|(_, left)| *left > 0);
        self.armed.store(!lost.is_empty(), Ordering::Release);
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::Faults;

    #[test]
    fn as_many_replies_are_lost_as_were_asked_for() {
        let faults = Faults::default();
        faults.lose_replies(36, 2);
        let hits: Vec<bool> = [36, 400, 36, 36].map(|opc| faults.loses_reply(opc)).to_vec();
        assert_eq!(hits, [true, false, true, false]);
    }
}
