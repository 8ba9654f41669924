//! Zero-copy cookies to return to the peer (docs/protocol.md, "LNet", frames): a pure data
//! structure.
//!
//! A peer that sends a payload without copying it keeps the memory until this node returns its
//! cookie: in the next message, or in a NOOP if there is none. This node never requests cookies
//! itself.

use std::collections::VecDeque;

/// Maximum number of queued cookies; a peer that exceeds it does not read.
const COOKIES_MAX: usize = 1 << 16;

/// The queue of cookies to return.
#[derive(Debug, Default)]
pub(super) struct Cookies(VecDeque<u64>);

impl Cookies {
    /// Queues a cookie; `false` if there are too many.
    pub(super) fn push(&mut self, cookie: u64) -> bool {
        if self.0.len() >= COOKIES_MAX {
            return false;
        }
        self.0.push_back(cookie);
        true
    }

    /// Takes a cookie for the header of a message; 0 if there is none.
    pub(super) fn piggyback(&mut self) -> u64 {
        self.0.pop_front().unwrap_or(0)
    }

    /// Takes the cookies of one NOOP: one alone, or two different ones with the greater first (the
    /// other order means a range). `None` if there are none.
    pub(super) fn noop(&mut self) -> Option<[u64; 2]> {
        let first = self.0.pop_front()?;
        match self.0.pop_front() {
            None => Some([0, first]),
            Some(second) if second == first => Some([0, first]),
            Some(second) => Some([first.max(second), first.min(second)]),
        }
    }

    /// Whether no cookie is queued.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{COOKIES_MAX, Cookies};

    #[test]
    fn a_noop_carries_one_cookie_or_two_in_descending_order() {
        let mut cookies = Cookies::default();
        for c in [5, 9, 4] {
            assert!(cookies.push(c));
        }
        assert_eq!(cookies.noop(), Some([9, 5]));
        assert_eq!(cookies.noop(), Some([0, 4]));
        assert_eq!(cookies.noop(), None);
    }

    #[test]
    fn a_message_carries_one_cookie() {
        let mut cookies = Cookies::default();
        cookies.push(5);
        assert_eq!((cookies.piggyback(), cookies.piggyback()), (5, 0));
        assert!(cookies.is_empty());
    }

    #[test]
    fn the_number_of_queued_cookies_is_limited() {
        let mut cookies = Cookies::default();
        assert_eq!((0..1 << 20).filter(|&c| cookies.push(c)).count(), COOKIES_MAX);
    }
}
