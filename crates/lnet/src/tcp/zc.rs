//! Zero-copy cookies that the peer wants back (guide 1.5). Pure.
//!
//! A peer that sent a payload without copying it keeps its memory until it gets the cookie back: with the next message,
//! or, if there is none, in a NOOP. This node never asks for cookies itself.

use std::collections::VecDeque;

/// Cookies that wait for their way back; a peer that lets more pile up is not reading.
const COOKIES_MAX: usize = 1 << 16;

/// Cookies to give back.
#[derive(Debug, Default)]
pub(super) struct Cookies(VecDeque<u64>);

impl Cookies {
    /// Remembers one; `false` if there are too many.
    pub(super) fn push(&mut self, cookie: u64) -> bool {
        if self.0.len() >= COOKIES_MAX {
            return false;
        }
        self.0.push_back(cookie);
        true
    }

    /// One to travel with a message, or 0.
    pub(super) fn piggyback(&mut self) -> u64 {
        self.0.pop_front().unwrap_or(0)
    }

    /// The cookies of one NOOP: one alone, or two, the greater first (the other way round means a range).
    pub(super) fn noop(&mut self) -> Option<[u64; 2]> {
        let first = self.0.pop_front()?;
        match self.0.pop_front() {
            None => Some([0, first]),
            Some(second) if second == first => Some([0, first]),
            Some(second) => Some([first.max(second), first.min(second)]),
        }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{COOKIES_MAX, Cookies};

    #[test]
    fn a_noop_carries_one_cookie_or_two_in_falling_order() {
        let mut cookies = Cookies::default();
        for c in [5, 9, 4] {
            assert!(cookies.push(c));
        }
        assert_eq!(cookies.noop(), Some([9, 5]));
        assert_eq!(cookies.noop(), Some([0, 4]));
        assert_eq!(cookies.noop(), None);
    }

    #[test]
    fn a_message_takes_one_along() {
        let mut cookies = Cookies::default();
        cookies.push(5);
        assert_eq!((cookies.piggyback(), cookies.piggyback()), (5, 0));
        assert!(cookies.is_empty());
    }

    #[test]
    fn cookies_do_not_pile_up_without_end() {
        let mut cookies = Cookies::default();
        assert_eq!((0..1 << 20).filter(|&c| cookies.push(c)).count(), COOKIES_MAX);
    }
}
