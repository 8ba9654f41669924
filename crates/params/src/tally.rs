//! Statistics in the format of Lustre's `stats` files: count, minimum, maximum, sum and sum of
//! squares of samples. The caller chooses the unit of the samples.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Collects samples of one kind. Several threads may add samples at once without a lock.
#[derive(Debug)]
pub struct Tally {
    count: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    sum: AtomicU64,
    /// Sum of the squares.
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
    /// Adds one sample.
    pub fn add(&self, value: u64) {
        self.count.fetch_add(1, Relaxed);
        // A load is cheaper than a read-modify-write, and few samples change the extremes.
        if value < self.min.load(Relaxed) {
            self.min.fetch_min(value, Relaxed);
        }
        if value > self.max.load(Relaxed) {
            self.max.fetch_max(value, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
        self.squares.fetch_add(value.saturating_mul(value), Relaxed);
    }

    /// Adds one duration, in microseconds.
    pub fn add_time(&self, time: Duration) {
        self.add(as_usecs(time));
    }

    /// Removes all samples.
    pub fn clear(&self) {
        self.min.store(u64::MAX, Relaxed);
        for v in [&self.count, &self.max, &self.sum, &self.squares] {
            v.store(0, Relaxed);
        }
    }

    /// The statistics of the samples so far. A sample that another thread adds at the same time may
    /// be part of some of the numbers only.
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

/// A duration in microseconds.
pub fn as_usecs(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The statistics of a set of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// Number of samples.
    pub count: u64,
    /// Smallest sample; `u64::MAX` without samples.
    pub min: u64,
    /// Largest sample; 0 without samples.
    pub max: u64,
    /// Sum of the samples.
    pub sum: u64,
    /// Sum of the squares.
    pub squares: u64,
}

impl Default for Sums {
    fn default() -> Sums {
        Tally::default().sums()
    }
}

impl Sums {
    /// A count of samples without values.
    pub fn of_count(count: u64) -> Sums {
        Sums {
            count,
            ..Sums::default()
        }
    }

    /// The statistics of both sets together.
    pub fn and(self, other: Sums) -> Sums {
        Sums {
            count: self.count + other.count,
            min: self.min.min(other.min),
            max: self.max.max(other.max),
            sum: self.sum.saturating_add(other.sum),
            squares: self.squares.saturating_add(other.squares),
        }
    }

    /// The mean, rounded down; 0 without samples.
    pub fn mean(self) -> u64 {
        self.sum / self.count.max(1)
    }

    /// Appends a line of a `stats` file; nothing if there are no samples. The line of a count of
    /// samples without values is shorter.
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
            let _ = match min > max {
                true => writeln!(out, "{name:<35} {count} samples [{unit}]"),
                false => writeln!(
                    out,
                    "{name:<35} {count} samples [{unit}] {min} {max} {sum} {squares}"
                ),
            };
        }
    }
}

/// The first lines of a `stats` file: the current time, the time `since` of the last reset, and the
/// time between them.
pub fn stats_header(since: SystemTime) -> String {
    times_header(since, "", 35)
}

/// As [`stats_header`], with `mark` after each name, and with names of at least `width` characters.
pub fn times_header(since: SystemTime, mark: &str, width: usize) -> String {
    let now = SystemTime::now();
    let unix = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default();
    let elapsed = now.duration_since(since).unwrap_or_default();
    let lines = [
        ("snapshot_time", unix(now)),
        ("start_time", unix(since)),
        ("elapsed_time", elapsed),
    ];
    let line = |(name, t): (&str, Duration)| {
        let (name, secs, nsecs) = (format!("{name}{mark}"), t.as_secs(), t.subsec_nanos());
        format!("{name:<width$} {secs}.{nsecs:09} secs.nsecs\n")
    };
    lines.map(line).concat()
}

#[cfg(test)]
mod tests {
    use super::{Sums, Tally, stats_header};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn a_line_has_the_format_of_lustre() {
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
    fn a_count_without_values_has_a_short_line() {
        let mut out = String::new();
        Sums::of_count(3).write_line(&mut out, "hits", "pages");
        assert_eq!(out, "hits                                3 samples [pages]\n");
    }

    #[test]
    fn tally_without_samples_writes_no_line() {
        let tally = Tally::default();
        tally.add(1);
        tally.clear();
        let mut out = String::new();
        tally.sums().write_line(&mut out, "req_qdepth", "reqs");
        assert_eq!((out.as_str(), tally.sums()), ("", Sums::default()));
    }

    #[test]
    fn the_header_has_the_time_of_the_reset() {
        let header = stats_header(UNIX_EPOCH + Duration::from_millis(1500));
        assert!(
            header.contains("start_time                          1.500000000 secs.nsecs\n"),
            "{header}"
        );
    }
}
