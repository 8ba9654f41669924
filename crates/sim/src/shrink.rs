//! Shrinks a failing run to few calls.

use crate::run::{Report, Settings, run};

/// Number of runs that a search may take.
const RUNS_MAX: u32 = 400;

/// Leaves out as many calls as possible such that the run still breaks a promise. Returns the
/// report of the smallest run that was found. `clients`: the numbers of the clients.
pub fn shrink(failing: &Settings, clients: impl Iterator<Item = u8>) -> Report {
    let mut best = run(failing);
    let mut kept: Vec<(u8, u32)> = clients
        .flat_map(|client| (0..failing.calls).map(move |call| (client, call)))
        .filter(|call| !failing.skipped.contains(call))
        .collect();
    let (mut runs, mut size) = (1, kept.len().div_ceil(2));
    // Delta debugging: leave out one part after the other, with smaller and smaller parts.
    while size > 0 && runs < RUNS_MAX {
        let mut from = 0;
        while from < kept.len() && runs < RUNS_MAX {
            let part: Vec<_> = kept[from..kept.len().min(from + size)].to_vec();
            let mut settings = best.settings.clone();
            settings.skipped.extend(part);
            let report = run(&settings);
            runs += 1;
            match report.findings.broken.is_empty() {
                true => from += size,
                false => {
                    best = report;
                    kept.drain(from..kept.len().min(from + size));
                }
            }
        }
        size /= 2;
    }
    best
}
