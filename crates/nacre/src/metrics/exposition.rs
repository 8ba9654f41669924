//! Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use params::{BUCKETS, Sums, bucket_max};

use super::families::Family;

/// A label's name and value.
pub(super) type Label<'a> = (&'static str, &'a str);

/// Samples by metric.
#[derive(Default)]
pub(super) struct Exposition {
    /// The header and the samples of each metric, by its name.
    families: BTreeMap<&'static str, String>,
}

impl Exposition {
    /// Adds a sample.
    pub(super) fn add(&mut self, family: &Family, labels: &[Label<'_>], value: u64) {
        write_sample(self.lines(family), family.name, labels, value);
    }

    /// Adds a histogram of durations in microseconds, in seconds.
    pub(super) fn add_histogram(
        &mut self,
        family: &Family,
        labels: &[Label<'_>],
        sums: Sums,
        buckets: &[u64; BUCKETS],
    ) {
        let lines = self.lines(family);
        let name = format!("{}_bucket", family.name);
        let mut count = 0;
        for (bucket, samples) in buckets.iter().enumerate() {
            count += samples;
            let max = bucket_max(bucket).map_or_else(|| "+Inf".to_owned(), |max| Seconds(max).to_string());
            let labels: Vec<Label<'_>> = labels.iter().copied().chain([("le", max.as_str())]).collect();
            write_sample(lines, &name, &labels, count);
        }
        write_sample(lines, &format!("{}_sum", family.name), labels, Seconds(sums.sum));
        // `count`, not `sums.count`: a sample may arrive between the read of the buckets and the
        // read of the sums.
        write_sample(lines, &format!("{}_count", family.name), labels, count);
    }

    fn lines(&mut self, family: &Family) -> &mut String {
        self.families.entry(family.name).or_insert_with(|| {
            let Family { name, kind, help } = family;
            format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str())
        })
    }

    /// The text.
    pub(super) fn finish(self) -> String {
        self.families.into_values().collect()
    }
}

/// Microseconds, shown in seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

fn write_sample(out: &mut String, name: &str, labels: &[Label<'_>], value: impl Display) {
    out.push_str(name);
    for (index, (label, text)) in labels.iter().enumerate() {
        out.push_str(if index == 0 { "{" } else { "," });
        out.push_str(label);
        out.push_str("=\"");
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                c => out.push(c),
            }
        }
        out.push('"');
    }
    if !labels.is_empty() {
        out.push('}');
    }
    // Writing to a string does not fail.
    let _ = writeln!(out, " {value}");
}

#[cfg(test)]
mod tests {
    use super::super::families::{OPERATION_TIME, STATS};
    use super::Exposition;
    use params::{Histogram, Tally};

    #[test]
    fn samples_follow_the_header_of_their_metric() {
        let mut out = Exposition::default();
        out.add(&STATS, &[("target", "fs-MDT0000")], 3);
        out.add(&STATS, &[("target", "a\"b\\c\nd")], 4);
        assert_eq!(
            out.finish(),
            "# HELP lustre_stats_total Operations of an MDT\n\
             # TYPE lustre_stats_total counter\n\
             lustre_stats_total{target=\"fs-MDT0000\"} 3\n\
             lustre_stats_total{target=\"a\\\"b\\\\c\\nd\"} 4\n"
        );
    }

    #[test]
    fn buckets_of_a_histogram_are_cumulative_and_in_seconds() {
        let (histogram, tally) = (Histogram::default(), Tally::default());
        for usecs in [3, 16, 2_000_000] {
            histogram.add(usecs);
            tally.add(usecs);
        }
        let mut out = Exposition::default();
        out.add_histogram(&OPERATION_TIME, &[], tally.sums(), &histogram.counts());
        let text = out.finish();
        let expected = [
            "_bucket{le=\"0.000004\"} 1\n",
            "_bucket{le=\"0.000016\"} 2\n",
            "_bucket{le=\"4.194304\"} 3\n",
            "_bucket{le=\"+Inf\"} 3\n",
            "_sum 2.000019\n",
            "_count 3\n",
        ];
        for line in expected {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
