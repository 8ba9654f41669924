//! A rate limit for log lines that a peer can provoke at will. Each place in the code logs at most
//! [`LINES`] lines in a period. Its first line of a later period reports the number of suppressed
//! lines.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

/// Lines that one place may log in one period.
const LINES: u64 = 10;
/// Length of a period, in seconds.
const PERIOD_SECS: u64 = 10;

/// The rate limit of one place in the code.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    /// Upper half: the period of the last event. Lower half: the number of events in that period.
    state: AtomicU64,
}

impl LogRateLimit {
    /// A limit without any events.
    pub const fn new() -> LogRateLimit {
        LogRateLimit {
            state: AtomicU64::new(0),
        }
    }

    /// Counts an event. Returns `None` if its line must be suppressed. The first event of a period
    /// returns the number of lines suppressed in the last period with events; others return 0.
    pub fn allow(&self) -> Option<u64> {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        let secs = BEGIN.get_or_init(Instant::now).elapsed().as_secs();
        self.allow_at(secs / PERIOD_SECS + 1)
    }

    fn allow_at(&self, period: u64) -> Option<u64> {
        let step = |state: u64| {
            let (last_period, count) = (state >> 32, state & u64::from(u32::MAX));
            let count = if last_period == period {
                (count + 1).min(u64::from(u32::MAX))
            } else {
                1
            };
            Some(period << 32 | count)
        };
        let before = self
            .state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, step);
        let before = before.unwrap_or_else(|state| state);
        let (last_period, count) = (before >> 32, before & u64::from(u32::MAX));
        if last_period != period {
            return Some(count.saturating_sub(LINES));
        }
        (count < LINES).then_some(0)
    }
}

/// Logs a warning, unless this place in the code exceeds its `LogRateLimit`.
#[macro_export]
macro_rules! warn_rate_limited {
    ($($line:tt)+) => {{
        static LIMIT: $crate::LogRateLimit = $crate::LogRateLimit::new();
        if let Some(suppressed) = LIMIT.allow() {
            tracing::warn!(suppressed, $($line)+);
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::{LINES, LogRateLimit};

    #[test]
    fn lines_beyond_the_limit_are_suppressed_and_counted() {
        let limit = LogRateLimit::new();
        let allowed = (0..100).filter(|_| limit.allow_at(7).is_some()).count() as u64;
        assert_eq!(allowed, LINES);
        assert_eq!(limit.allow_at(8), Some(90));
        assert_eq!(limit.allow_at(8), Some(0));
        assert_eq!(limit.allow_at(20), Some(0));
    }
}
