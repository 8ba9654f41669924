//! The words of `lst`: what it prints for people and for the scripts that read it. Pure.

use super::command::{GroupCounts, NodeCounts};
use super::state::{State, Tally, Test};
use super::{NodeState, TestKind};
use std::fmt::{self, Write};
use wire::{LNET_PID_LUSTRE, Nid};

/// The heads of the columns that nodes are counted in.
pub(super) const NODES_TITLE: &str = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\n";

/// A node, as its process on the network is called.
pub(super) fn id(nid: Nid) -> String {
    format!("{LNET_PID_LUSTRE}-{nid}")
}

impl Tally {
    /// Its columns.
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

/// Those nodes that are in one of `states`, a line each, and how many they are.
pub(super) fn nodes(state: &State, nids: &[Nid], states: &[NodeState]) -> (String, usize) {
    let shown = nids.iter().map(|&nid| (nid, state.state_of(nid)));
    let shown: Vec<_> = shown.filter(|(_, is)| states.contains(is)).collect();
    let lines = shown
        .iter()
        .map(|(nid, is)| format!("\t{}: {}\n", id(*nid), is.name()));
    (lines.collect(), shown.len())
}

/// One test of a batch.
pub(super) fn test(number: usize, test: &Test) -> String {
    let kind = match test.kind {
        TestKind::Ping => "ping",
        TestKind::Brw { .. } => "brw",
    };
    let (loops, concurrency) = (test.loops, test.concurrency);
    format!("\tTest {number}({kind}) (loop: {loops}, concurrency: {concurrency})\n")
}

/// How clients and servers are.
pub(super) fn sides(clients: &Tally, servers: &Tally) -> String {
    format!(
        "{NODES_TITLE}client{}\nserver{}\n",
        clients.columns(),
        servers.columns()
    )
}

/// What of a group's rates is shown; nothing chosen is everything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RatesShown {
    /// Bandwidth.
    pub bw: bool,
    /// Messages a second.
    pub rate: bool,
    /// Received.
    pub read: bool,
    /// Sent.
    pub write: bool,
    /// The mean of the nodes.
    pub avg: bool,
    /// The least of the nodes.
    pub min: bool,
    /// The most of the nodes.
    pub max: bool,
    /// Megabytes of 1,000,000 bytes.
    pub mbs: bool,
}

/// What the nodes of a group did between two moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    name: String,
    failed: usize,
    /// Messages and bytes a second that each node received.
    received: Vec<(f64, f64)>,
    /// The same that it sent.
    sent: Vec<(f64, f64)>,
}

impl Rates {
    /// Between what was counted first and later. Nodes that did not answer both times count as failed.
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
            let per_second = |of: fn(&NodeCounts) -> (u32, u64)| {
                let (messages, bytes) = (
                    of(new).0.wrapping_sub(of(old).0),
                    of(new).1.wrapping_sub(of(old).1),
                );
                (f64::from(messages) / seconds, bytes as f64 / seconds)
            };
            rates.received.push(per_second(|n| n.received));
            rates.sent.push(per_second(|n| n.sent));
        }
        rates
    }

    /// As `lst stat` prints it.
    pub fn show(&self, shown: RatesShown) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out, shown);
        out
    }

    fn write(&self, out: &mut String, shown: RatesShown) -> fmt::Result {
        if self.failed > 0 {
            writeln!(out, "Failed to stat on {} nodes", self.failed)?;
        }
        if self.received.is_empty() {
            return Ok(());
        }
        let (unit, divisor) = if shown.mbs {
            ("MB/s  ", 1e6)
        } else {
            ("MiB/s ", 1_048_576.0)
        };
        let all_sides = shown.read == shown.write;
        let all_values = !(shown.avg || shown.min || shown.max);
        for bandwidth in [false, true] {
            if shown.bw != shown.rate && shown.bw != bandwidth {
                continue;
            }
            writeln!(
                out,
                "[LNet {} of {}]",
                if bandwidth { "Bandwidth" } else { "Rates" },
                self.name
            )?;
            for (mark, of, wanted) in [("R", &self.received, shown.read), ("W", &self.sent, shown.write)] {
                if !all_sides && !wanted {
                    continue;
                }
                let values: Vec<f64> = of
                    .iter()
                    .map(|(m, b)| if bandwidth { b / divisor } else { *m })
                    .collect();
                let avg = values.iter().sum::<f64>() / values.len() as f64;
                let (min, max) = values
                    .iter()
                    .fold((f64::MAX, 0.0), |(lo, hi), v| (v.min(lo), v.max(hi)));
                write!(out, "[{mark}] ")?;
                let chosen = [
                    ("Avg", avg, shown.avg),
                    ("Min", min, shown.min),
                    ("Max", max, shown.max),
                ];
                for (name, value, wanted) in chosen {
                    match (all_values || wanted, bandwidth) {
                        (false, _) => {}
                        (true, true) => write!(out, "{name}: {value:<8.2} {unit}")?,
                        (true, false) => write!(out, "{name}: {value:<8.0} RPC/s ")?,
                    }
                }
                // No blanks at the end.
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
    fn rates_are_printed_as_lst_prints_them() {
        let first = counts(1000, (u32::MAX, 0), &["a", "b"]);
        let later = counts(3000, (1999, 4 << 20), &["a", "c"]);
        let rates = Rates::between(&counts(1000, (0, 0), &["a"]), &later);
        assert_eq!(
            rates.show(RatesShown::default()),
            "Failed to stat on 1 nodes\n\
             [LNet Rates of servers]\n\
             [R] Avg: 1999     RPC/s Min: 1999     RPC/s Max: 1999     RPC/s\n\
             [W] Avg: 1000     RPC/s Min: 1000     RPC/s Max: 1000     RPC/s\n\
             [LNet Bandwidth of servers]\n\
             [R] Avg: 4.00     MiB/s Min: 4.00     MiB/s Max: 4.00     MiB/s\n\
             [W] Avg: 2.00     MiB/s Min: 2.00     MiB/s Max: 2.00     MiB/s\n"
        );
        let only = RatesShown {
            rate: true,
            write: true,
            max: true,
            ..RatesShown::default()
        };
        // Counters of 32 bits come round.
        assert_eq!(
            Rates::between(&first, &counts(3000, (1999, 0), &["a"])).show(only),
            "[LNet Rates of servers]\n[W] Max: 1000     RPC/s\n"
        );
    }
}
