//! Statistics of the lines with the same name, such as an opcode: messages, failures, latencies.

use super::line::{Kind, Line, duration};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{self, Write};

#[derive(Debug, Default)]
struct Counts {
    /// Requests, and lines that are neither a request, a reply nor bulk.
    requests: u64,
    /// Replies, without early ones.
    replies: u64,
    /// Replies with a negative status.
    errors: u64,
    /// Sum of the latencies of replies.
    latency_sum_us: u64,
    /// Longest latency of a reply.
    longest_us: u64,
    bulk_bytes: u64,
}

/// Counts by the name of the line.
#[derive(Debug, Default)]
pub(super) struct Summary(BTreeMap<String, Counts>);

impl Summary {
    pub(super) fn add(&mut self, line: &Line) {
        let counts = self.0.entry(line.name.clone()).or_default();
        match line.kind {
            Kind::Request | Kind::Other => counts.requests += 1,
            Kind::Bulk => counts.bulk_bytes += line.bytes as u64,
            Kind::EarlyReply => {}
            Kind::Reply => {
                counts.replies += 1;
                counts.errors += u64::from(line.status.is_some_and(|s| s < 0));
                let latency = line.latency_us.unwrap_or(0);
                counts.latency_sum_us += latency;
                counts.longest_us = counts.longest_us.max(latency);
            }
        }
    }

    pub(super) fn print(&self, out: &mut impl Write, as_json: bool) -> io::Result<()> {
        if !as_json {
            writeln!(
                out,
                "\n{:32} {:>7} {:>7} {:>6} {:>8} {:>8} {:>10}",
                "", "sent", "replies", "failed", "mean", "longest", "bulk bytes"
            )?;
        }
        for (name, counts) in &self.0 {
            let mean_us = counts.latency_sum_us / counts.replies.max(1);
            if as_json {
                let line = json!({"summary": name, "requests": counts.requests, "replies": counts.replies,
                    "errors": counts.errors, "mean_us": mean_us, "longest_us": counts.longest_us,
                    "bulk_bytes": counts.bulk_bytes});
                writeln!(out, "{line}")?;
                continue;
            }
            let (mean, longest) = (duration(mean_us), duration(counts.longest_us));
            writeln!(
                out,
                "{name:32} {:>7} {:>7} {:>6} {mean:>8} {longest:>8} {:>10}",
                counts.requests, counts.replies, counts.errors, counts.bulk_bytes
            )?;
        }
        Ok(())
    }
}
