//! Samples counted as Lustre's `stats` files show them: how many, the smallest, the largest, their sum and the sum of their
//! squares.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Counts samples of one kind; without a lock, so that many may count at once.
#[derive(Debug)]
pub struct Tally {
    count: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    sum: AtomicU64,
    squares: AtomicU64,
}

impl Default for Tally {
    fn default() -> Tally {
        Tally {
            count: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            squares: AtomicU64::new(0),
        }
    }
}

impl Tally {
    /// One sample more.
    pub fn add(&self, value: u64) {
        self.count.fetch_add(1, Relaxed);
        self.min.fetch_min(value, Relaxed);
        self.max.fetch_max(value, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        self.squares.fetch_add(value.saturating_mul(value), Relaxed);
    }

    /// One time more, in microseconds.
    pub fn add_time(&self, took: Duration) {
        self.add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Begins to count anew.
    pub fn clear(&self) {
        self.min.store(u64::MAX, Relaxed);
        for v in [&self.count, &self.max, &self.sum, &self.squares] {
            v.store(0, Relaxed);
        }
    }

    /// What was counted so far.
    pub fn sums(&self) -> Sums {
        Sums {
            count: self.count.load(Relaxed),
            min: self.min.load(Relaxed),
            max: self.max.load(Relaxed),
            sum: self.sum.load(Relaxed),
            squares: self.squares.load(Relaxed),
        }
    }
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// How many samples.
    pub count: u64,
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// All together.
    pub sum: u64,
    /// Their squares together.
    pub squares: u64,
}

impl Default for Sums {
    fn default() -> Sums {
        Tally::default().sums()
    }
}

impl Sums {
    /// Both together.
    pub fn and(self, other: Sums) -> Sums {
        Sums {
            count: self.count + other.count,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            sum: self.sum.saturating_add(other.sum),
            squares: self.squares.saturating_add(other.squares),
        }
    }

    /// The mean, 0 of none.
    pub fn mean(self) -> u64 {
        self.sum / self.count.max(1)
    }

    /// Adds a line of a `stats` file; nothing where nothing was counted.
    pub fn write_line(self, out: &mut String, name: &str, unit: &str) {
        if self.count > 0 {
            let Sums {
                count,
                min,
                max,
                sum,
                squares,
            } = self;
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "{name:<35} {count} samples [{unit}] {min} {max} {sum} {squares}"
            );
        }
    }
}

/// The lines that a `stats` file begins with: now, since when it counts, and how long that is.
pub fn stats_header(since: SystemTime) -> String {
    let now = SystemTime::now();
    let unix = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default();
    let elapsed = now.duration_since(since).unwrap_or_default();
    let lines = [
        ("snapshot_time", unix(now)),
        ("start_time", unix(since)),
        ("elapsed_time", elapsed),
    ];
    let line = |(name, t): (&str, Duration)| {
        format!("{name:<35} {}.{:09} secs.nsecs\n", t.as_secs(), t.subsec_nanos())
    };
    lines.map(line).concat()
}

#[cfg(test)]
mod tests {
    use super::{Sums, Tally, stats_header};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn samples_are_shown_as_lustre_shows_them() {
        let (one, two) = (Tally::default(), Tally::default());
        one.add(3);
        two.add_time(Duration::from_micros(5));
        let both = one.sums().and(two.sums()).and(Sums::default());
        let mut out = String::new();
        both.write_line(&mut out, "req_waittime", "usecs");
        assert_eq!(
            out,
            "req_waittime                        2 samples [usecs] 3 5 8 34\n"
        );
        assert_eq!(both.mean(), 4);
    }

    #[test]
    fn nothing_counted_is_nothing_shown() {
        let tally = Tally::default();
        tally.add(1);
        tally.clear();
        let mut out = String::new();
        tally.sums().write_line(&mut out, "req_qdepth", "reqs");
        assert_eq!((out.as_str(), tally.sums()), ("", Sums::default()));
    }

    #[test]
    fn a_stats_file_says_since_when_it_counts() {
        let header = stats_header(UNIX_EPOCH + Duration::from_millis(1500));
        assert!(
            header.contains("start_time                          1.500000000 secs.nsecs\n"),
            "{header}"
        );
    }
}
