//! `nacre top`: rates of the targets on this machine, by job, user, client, directory, target or
//! service.
//!
//! The command reads the counts of all processes with targets twice and subtracts ([`rates`]). On
//! a terminal it shows a full screen ([`screen`]), elsewhere a table ([`table`]) or JSON.

mod rates;
mod sample;
mod screen;
mod table;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use serde_json::json;

use crate::cli::{By, Top};
use crate::output::{errln, outln};
use sample::Sample;
use table::Table;

/// Runs the command.
pub(crate) fn run(args: &Top) -> Result<ExitCode> {
    let first = sample::take(args.by == By::Directory)?;
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if is_terminal && !args.once && !args.json && args.count.is_none() {
        return screen::run(args, first);
    }
    let count = match (args.count, args.json && !args.once) {
        (None, true) => u64::MAX,
        (count, _) => count.unwrap_or(1),
    };
    let mut before = first;
    for interval in 0..count {
        std::thread::sleep(args.interval);
        let after = sample::take(args.by == By::Directory)?;
        if args.json {
            print_json(args, &before, &after)?;
        } else {
            if interval > 0 {
                outln!("");
            }
            print_table(args, &before, &after);
        }
        before = after;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(args: &Top, before: &Sample, after: &Sample) -> Result<()> {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let interval = json!({
        "time": time.unwrap_or_default().as_secs_f64(),
        "seconds": after.seconds_since(before),
        "by": args.by,
        "rows": rates::loads(before, after, args.by, args.sort),
        "gaps": after.uncounted_processes(before),
    });
    outln!("{}", serde_json::to_string(&interval)?);
    Ok(())
}

fn print_table(args: &Top, before: &Sample, after: &Sample) {
    let loads = rates::loads(before, after, args.by, args.sort);
    for line in Table::new(args.by, &loads).to_lines() {
        outln!("{line}");
    }
    if loads.is_empty() {
        errln!("nacre: {}", table::empty_text(args.by));
    }
    for gap in after.uncounted_processes(before) {
        errln!("nacre: not counted: {gap}");
    }
}
