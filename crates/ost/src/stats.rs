//! How much was read and written, as `obdfilter.*.stats` shows it.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Samples of one kind.
#[derive(Debug)]
pub(crate) struct Samples {
    count: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    sum: AtomicU64,
}

impl Default for Samples {
    fn default() -> Samples {
        let zero = || AtomicU64::new(0);
        Samples {
            count: zero(),
            min: AtomicU64::new(u64::MAX),
            max: zero(),
            sum: zero(),
        }
    }
}

impl Samples {
    pub(crate) fn add(&self, value: u64) {
        self.count.fetch_add(1, Relaxed);
        self.min.fetch_min(value, Relaxed);
        self.max.fetch_max(value, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }
}

/// What the target did.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) read_bytes: Samples,
    pub(crate) write_bytes: Samples,
}

impl Stats {
    /// One line each, as Lustre prints them.
    pub(crate) fn show(&self) -> String {
        let mut out = String::new();
        for (name, s) in [
            ("read_bytes", &self.read_bytes),
            ("write_bytes", &self.write_bytes),
        ] {
            let count = s.count.load(Relaxed);
            if count > 0 {
                let (min, max, sum) = (s.min.load(Relaxed), s.max.load(Relaxed), s.sum.load(Relaxed));
                // Writing to a string does not fail.
                let _ = writeln!(out, "{name:<25} {count} samples [bytes] {min} {max} {sum}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_happened_is_shown() {
        let s = Stats::default();
        assert_eq!(s.show(), "");
        s.write_bytes.add(3);
        s.write_bytes.add(5);
        assert_eq!(s.show(), "write_bytes               2 samples [bytes] 3 5 8\n");
    }
}
