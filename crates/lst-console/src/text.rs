//! The output format of `lst`, which scripts parse. No I/O.

use crate::command::{GroupCounts, NodeCounts};
use crate::state::{State, Tally, Test};
use crate::{NodeState, TestKind};
use std::fmt::{self, Write};
use wire::{LNET_PID_LUSTRE, Nid};

/// The title of the columns of node counts.
pub(super) const NODES_TITLE: &str = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\n";

/// A node as an LNet process id: `12345-10.0.0.1@tcp`.
pub(super) fn process_id(nid: Nid) -> String {
    format!("{LNET_PID_LUSTRE}-{nid}")
}

impl Tally {
    /// The counts as columns.
    pub(super) fn columns(&self) -> String {
        let Tally {
            active,
            busy,
            down,
            unknown,
        } = *self;
        let total = active + busy + down + unknown;
        format!("\t{active}\t{busy}\t{down}\t{unknown}\t{total}")
    }
}

/// One line for each node in one of `states`, and the number of lines.
pub(super) fn node_lines(state: &State, nids: &[Nid], states: &[NodeState]) -> (String, usize) {
    let shown = nids.iter().map(|&nid| (nid, state.state_of(nid)));
    let shown: Vec<_> = shown
        .filter(|(_, node_state)| states.contains(node_state))
        .collect();
    let lines = shown
        .iter()
        .map(|(nid, node_state)| format!("\t{}: {}\n", process_id(*nid), node_state.name()));
    (lines.collect(), shown.len())
}

/// The line of a test.
pub(super) fn test_line(number: usize, test: &Test) -> String {
    let kind = match test.kind {
        TestKind::Ping => "ping",
        TestKind::Brw { .. } => "brw",
    };
    let (loops, concurrency) = (test.loops, test.concurrency);
    format!("\tTest {number}({kind}) (loop: {loops}, concurrency: {concurrency})\n")
}

/// The node counts of clients and servers.
pub(super) fn client_server_tallies(clients: &Tally, servers: &Tally) -> String {
    format!(
        "{NODES_TITLE}client{}\nserver{}\n",
        clients.columns(),
        servers.columns()
    )
}

/// Selects the rates to print. If `bw` and `rate` are equal, the output has both. The same holds
/// for `read` and `write`. If none of `avg`, `min` and `max` is set, the output has all three.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RatesFilter {
    /// Bandwidth.
    pub bw: bool,
    /// Messages per second.
    pub rate: bool,
    /// Traffic that the nodes received.
    pub read: bool,
    /// Traffic that the nodes sent.
    pub write: bool,
    /// The mean over the nodes.
    pub avg: bool,
    /// The minimum over the nodes.
    pub min: bool,
    /// The maximum over the nodes.
    pub max: bool,
    /// Print megabytes of 1,000,000 bytes instead of MiB.
    pub mbs: bool,
}

/// The traffic rates of a group's nodes between two samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// The group or list.
    name: String,
    /// Number of nodes without two samples.
    failed: usize,
    /// Messages and bytes received per second, for each node.
    received: Vec<(f64, f64)>,
    /// Messages and bytes sent per second, for each node.
    sent: Vec<(f64, f64)>,
}

impl Rates {
    /// The rates between two samples of counters. Counts nodes of `later` that `first` lacks as
    /// failed, and leaves out nodes with the same `running_ms` in both samples.
    pub fn between(first: &GroupCounts, later: &GroupCounts) -> Rates {
        let mut rates = Rates {
            name: later.name.clone(),
            failed: later.failed,
            received: Vec::new(),
            sent: Vec::new(),
        };
        for new in &later.nodes {
            let Some(old) = first.nodes.iter().find(|old| old.nid == new.nid) else {
                rates.failed += 1;
                continue;
            };
            let seconds = f64::from(new.running_ms.wrapping_sub(old.running_ms)) / 1000.0;
            if seconds <= 0.0 {
                continue;
            }
            let per_second = |counter: fn(&NodeCounts) -> (u32, u64)| {
                let (messages, bytes) = (
                    counter(new).0.wrapping_sub(counter(old).0),
                    counter(new).1.wrapping_sub(counter(old).1),
                );
                (f64::from(messages) / seconds, bytes as f64 / seconds)
            };
            rates.received.push(per_second(|n| n.received));
            rates.sent.push(per_second(|n| n.sent));
        }
        rates
    }

    /// The output of `lst stat`.
    pub fn show(&self, filter: RatesFilter) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut out, filter);
        out
    }

    fn write(&self, out: &mut String, filter: RatesFilter) -> fmt::Result {
        if self.failed > 0 {
            writeln!(out, "Failed to stat on {} nodes", self.failed)?;
        }
        if self.received.is_empty() {
            return Ok(());
        }
        let (unit, divisor) = if filter.mbs {
            ("MB/s  ", 1e6)
        } else {
            ("MiB/s ", 1_048_576.0)
        };
        let both_directions = filter.read == filter.write;
        let all_values = !(filter.avg || filter.min || filter.max);
        for bandwidth in [false, true] {
            if filter.bw != filter.rate && filter.bw != bandwidth {
                continue;
            }
            writeln!(
                out,
                "[LNet {} of {}]",
                if bandwidth { "Bandwidth" } else { "Rates" },
                self.name
            )?;
            for (mark, samples, selected) in [
                ("R", &self.received, filter.read),
                ("W", &self.sent, filter.write),
            ] {
                if !both_directions && !selected {
                    continue;
                }
                let values: Vec<f64> = samples
                    .iter()
                    .map(|(m, b)| if bandwidth { b / divisor } else { *m })
                    .collect();
                let avg = values.iter().sum::<f64>() / values.len() as f64;
                let (min, max) = values
                    .iter()
                    .fold((f64::MAX, 0.0), |(lo, hi), v| (v.min(lo), v.max(hi)));
                write!(out, "[{mark}] ")?;
                let columns = [
                    ("Avg", avg, filter.avg),
                    ("Min", min, filter.min),
                    ("Max", max, filter.max),
                ];
                for (name, value, selected) in columns {
                    match (all_values || selected, bandwidth) {
                        (false, _) => {}
                        (true, true) => write!(out, "{name}: {value:<8.2} {unit}")?,
                        (true, false) => write!(out, "{name}: {value:<8.0} RPC/s ")?,
                    }
                }
                // Remove trailing blanks.
                out.truncate(out.trim_end().len());
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(at_ms: u32, sent: (u32, u64), nids: &[&str]) -> GroupCounts {
        let node = |nid: &&str| NodeCounts {
            nid: (*nid).to_owned(),
            running_ms: at_ms,
            sent,
            received: (sent.0.wrapping_mul(2), sent.1 * 2),
        };
        GroupCounts {
            name: "servers".to_owned(),
            nodes: nids.iter().map(node).collect(),
            failed: 0,
        }
    }

    #[test]
    fn rates_print_in_the_format_of_lst() {
        let first = counts(1000, (u32::MAX, 0), &["a", "b"]);
        let later = counts(3000, (1999, 4 << 20), &["a", "c"]);
        let rates = Rates::between(&counts(1000, (0, 0), &["a"]), &later);
        assert_eq!(
            rates.show(RatesFilter::default()),
            "Failed to stat on 1 nodes\n\
             [LNet Rates of servers]\n\
             [R] Avg: 1999     RPC/s Min: 1999     RPC/s Max: 1999     RPC/s\n\
             [W] Avg: 1000     RPC/s Min: 1000     RPC/s Max: 1000     RPC/s\n\
             [LNet Bandwidth of servers]\n\
             [R] Avg: 4.00     MiB/s Min: 4.00     MiB/s Max: 4.00     MiB/s\n\
             [W] Avg: 2.00     MiB/s Min: 2.00     MiB/s Max: 2.00     MiB/s\n"
        );
        let only = RatesFilter {
            rate: true,
            write: true,
            max: true,
            ..RatesFilter::default()
        };
        // 32-bit counters wrap around.
        assert_eq!(
            Rates::between(&first, &counts(3000, (1999, 0), &["a"])).show(only),
            "[LNet Rates of servers]\n[W] Max: 1000     RPC/s\n"
        );
    }
}
