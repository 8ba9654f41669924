//! Log lines that a peer can provoke, as often as it likes: each place says what happened a few times in a while, and
//! then how often it did not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// How many lines a place writes in one period.
const LINES: u64 = 10;
/// How long a period is, in seconds.
const PERIOD_SECS: u64 = 10;

/// A place in the code that writes log lines about peers.
#[derive(Debug, Default)]
pub struct Seldom {
    /// The period that is counted, and how often something happened in it: upper and lower half.
    now: AtomicU64,
}

impl Seldom {
    /// Nothing has happened yet.
    pub const fn new() -> Seldom {
        Seldom {
            now: AtomicU64::new(0),
        }
    }

    /// It happened: whether to say so; if so, how often it was not said in the period before.
    pub fn say(&self) -> Option<u64> {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        let secs = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
        self.say_at(secs / PERIOD_SECS + 1)
    }

    fn say_at(&self, period: u64) -> Option<u64> {
        let step = |state: u64| {
            let (of, count) = (state >> 32, state & u64::from(u32::MAX));
            let count = if of == period {
                (count + 1).min(u64::from(u32::MAX))
            } else {
                1
            };
            Some(period << 32 | count)
        };
        let before = self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        let before = before.unwrap_or_else(|state| state);
        let (of, count) = (before >> 32, before & u64::from(u32::MAX));
        if of != period {
            return Some(count.saturating_sub(LINES));
        }
        (count < LINES).then_some(0)
    }
}

/// Writes a warning about a peer, unless this place has written many lately.
#[macro_export]
macro_rules! warn_seldom {
    ($($what:tt)+) => {{
        static PLACE: $crate::Seldom = $crate::Seldom::new();
        if let Some(not_said) = PLACE.say() {
            tracing::warn!(not_said, $($what)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::{LINES, Seldom};

    #[test]
    fn a_place_says_little_and_counts_the_rest() {
        let place = Seldom::new();
        let said = (0..100).filter(|_| place.say_at(7).is_some()).count() as u64;
        assert_eq!(said, LINES);
        assert_eq!(place.say_at(8), Some(90));
        assert_eq!(place.say_at(8), Some(0));
        assert_eq!(place.say_at(20), Some(0));
    }
}
