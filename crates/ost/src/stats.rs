//! Counters of read and written bytes, shown as `obdfilter.*.stats`.

use params::Tally;

/// The target's counters.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) read_bytes: Tally,
    pub(crate) write_bytes: Tally,
}

impl Stats {
    /// One line for each counter, in Lustre's format.
    pub(crate) fn show(&self) -> String {
        let mut out = String::new();
        self.read_bytes.sums().write_line(&mut out, "read_bytes", "bytes");
        self.write_bytes
            .sums()
            .write_line(&mut out, "write_bytes", "bytes");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_without_samples_are_hidden() {
        let s = Stats::default();
        assert_eq!(s.show(), "");
        s.write_bytes.add(3);
        s.write_bytes.add(5);
        assert_eq!(
            s.show(),
            "write_bytes                         2 samples [bytes] 3 5 8 34\n"
        );
    }
}
