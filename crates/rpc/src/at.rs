//! Adaptive timeouts: the longest recent service time, and the deadlines that follow from it
//! (docs/protocol.md, "PtlRPC").
//!
//! Pure: the time is an argument. The history consists of four bins, each for a quarter of the
//! history's length; the oldest bin is dropped when a new one begins.

use std::time::{Duration, Instant};

/// Number of bins of the history.
const BINS: usize = 4;

/// The longest recent service time, in whole seconds as on the wire.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    /// The longest time in each bin, in seconds; the newest bin first.
    bins: [u32; BINS],
    /// When the newest bin began.
    newest_began_at: Instant,
    bin_len: Duration,
    /// Bounds of the estimate, in seconds.
    min: u32,
    max: u32,
}

impl Estimate {
    pub(crate) fn new(now: Instant, min: Duration, max: Duration, history: Duration) -> Estimate {
        let secs = |d: Duration| u32::try_from(d.as_secs()).unwrap_or(u32::MAX);
        let bin_len = (history / BINS as u32).max(Duration::from_secs(1));
        Estimate {
            bins: [0; BINS],
            newest_began_at: now,
            bin_len,
            min: secs(min).max(1),
            max: secs(max).max(1),
        }
    }

    /// Records a service time in seconds, measured here or reported by the server.
    pub(crate) fn record(&mut self, now: Instant, secs: u32) {
        self.drop_expired_bins(now);
        self.bins[0] = self.bins[0].max(secs);
    }

    /// The longest recent service time in seconds, within the configured minimum and maximum.
    pub(crate) fn secs(&mut self, now: Instant) -> u32 {
        self.drop_expired_bins(now);
        let longest = self.bins.iter().copied().max().unwrap_or(0);
        longest.max(self.min).min(self.max)
    }

    fn drop_expired_bins(&mut self, now: Instant) {
        let passed =
            now.saturating_duration_since(self.newest_began_at).as_millis() / self.bin_len.as_millis();
        let passed = usize::try_from(passed).unwrap_or(BINS);
        if passed == 0 {
            return;
        }
        let shift = passed.min(BINS);
        self.bins.rotate_right(shift);
        self.bins[..shift].fill(0);
        self.newest_began_at += self.bin_len * u32::try_from(passed).unwrap_or(u32::MAX);
    }
}

/// `pb_timeout`, in seconds, of requests to a service with the estimate `secs`: as in Lustre, the
/// estimate plus a quarter of it plus five seconds.
pub(crate) fn timeout_secs(secs: u32) -> u32 {
    secs.saturating_add(secs / 4).saturating_add(5)
}

/// A duration in the wire's unit: whole seconds, rounded up, at least 1.
pub(crate) fn wire_secs(d: Duration) -> u32 {
    u32::try_from(d.as_millis().div_ceil(1000))
        .unwrap_or(u32::MAX)
        .max(1)
}

#[cfg(test)]
mod tests {
    use super::{Estimate, timeout_secs, wire_secs};
    use std::time::Duration;
    use std::time::Instant;

    #[test]
    fn the_longest_recent_time_counts_until_it_expires() {
        let secs = Duration::from_secs;
        let start = Instant::now();
        let mut estimate = Estimate::new(start, secs(5), secs(600), secs(600));
        assert_eq!(estimate.secs(start), 5);
        estimate.record(start, 40);
        estimate.record(start + secs(10), 20);
        assert_eq!(estimate.secs(start + secs(20)), 40);
        assert_eq!(estimate.secs(start + secs(449)), 40);
        estimate.record(start + secs(449), 30);
        assert_eq!(estimate.secs(start + secs(600)), 30);
        assert_eq!(estimate.secs(start + secs(5000)), 5);
        estimate.record(start + secs(5000), 100_000);
        assert_eq!(estimate.secs(start + secs(5001)), 600);
    }

    #[test]
    fn a_timeout_is_the_estimate_a_quarter_of_it_and_five_seconds() {
        assert_eq!(timeout_secs(5), 11);
        assert_eq!(timeout_secs(100), 130);
    }

    #[test]
    fn wire_seconds_are_rounded_up() {
        assert_eq!(wire_secs(Duration::from_millis(1)), 1);
        assert_eq!(wire_secs(Duration::from_millis(1001)), 2);
    }
}
