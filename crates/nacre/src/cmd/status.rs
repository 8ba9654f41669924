//! `nacre status`: what is up, and where.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use crate::cli::Status;
use crate::control::{self, Request};
use crate::daemon;
use crate::output::say;
use crate::running::{self, Running};

/// Exit status when nothing is up, as service managers have it.
const NOT_UP: u8 = 3;
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Runs the command.
pub(crate) fn run(args: Status) -> Result<ExitCode> {
    let (found, dead) = match &args.dir {
        None => (running::all(), None),
        Some(dir) => match running::in_dir(&daemon::absolute(dir)?)? {
            Some(r) if r.alive() => (vec![r], None),
            dead => (Vec::new(), dead),
        },
    };
    let live: Vec<Value> = found.iter().map(live_status).collect();
    if args.json {
        say!("{}", serde_json::to_string_pretty(&live)?);
    } else {
        for (running, live) in found.iter().zip(&live) {
            show(running, live);
        }
        if let Some(dead) = dead {
            say!(
                "nacre (process {}) has died; `nacre down` cleans up after it",
                dead.pid
            );
        } else if found.is_empty() {
            say!("nothing is up");
        }
    }
    Ok(if found.is_empty() {
        ExitCode::from(NOT_UP)
    } else {
        ExitCode::SUCCESS
    })
}

/// The record, with what the process says of itself now.
fn live_status(running: &Running) -> Value {
    match control::ask(&running.control, &Request::Status, ANSWER_MAX) {
        Ok(value) => value,
        Err(e) => serde_json::json!({ "record": running, "error": format!("{e:#}") }),
    }
}

fn show(r: &Running, live: &Value) {
    let dirs: Vec<String> = r.dirs.iter().map(|d| d.display().to_string()).collect();
    let what = if dirs.is_empty() {
        String::new()
    } else {
        format!(" in {}", dirs.join(" "))
    };
    say!("nacre {}{what} (process {})", r.role, r.pid);
    for mount in &r.mounts {
        say!("  mount    {} on {}", mount.source, mount.mountpoint.display());
    }
    if !r.targets.is_empty() {
        say!("  targets  {}", r.targets.join(" "));
    }
    say!("  listens  {} port {}", r.nids.join(" "), r.port);
    say!("  log      {}", r.log.display());
    if let Some(resident) = live["resident_bytes"].as_u64() {
        say!("  memory   {} MiB", resident >> 20);
    }
    if let Some(error) = live["error"].as_str() {
        say!("  trouble  {error}");
    }
}
