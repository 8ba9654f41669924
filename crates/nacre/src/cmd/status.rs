//! `nacre status`: running processes with their targets and mounts, and stale mounts of dead
//! processes.

use std::process::ExitCode;

use anyhow::Result;
use fuse::{MountEntry, MountState};
use serde_json::{Value, json};

use super::{ANSWER_MAX, default_dir};
use crate::cli::Status;
use crate::control::{self, Request};
use crate::daemon;
use crate::instance::Instance;
use crate::output::{outln, printable, shell_word};
use crate::process::{self, ProcessRecord};

/// Exit status if no process is running, as for the `status` action of init scripts.
pub(super) const EXIT_NOT_UP: u8 = 3;

/// Runs the command.
pub(crate) fn run(args: Status) -> Result<ExitCode> {
    let mut dead_process = None;
    let processes = match &args.dir {
        None => all_processes(),
        Some(dir) => match process::in_dir(&daemon::make_absolute(dir)?)? {
            Some(r) if r.is_alive() => vec![r],
            dead => {
                dead_process = dead;
                Vec::new()
            }
        },
    };
    let stale = match args.dir {
        None => stale_mounts(&processes),
        Some(_) => Vec::new(),
    };
    let dead = match args.dir {
        None => process::dead(),
        Some(_) => Vec::new(),
    };
    let mut live: Vec<Value> = processes.iter().map(live_status).collect();
    if args.json {
        live.extend(stale.iter().map(|(mount, state)| {
            let state = describe_state(*state);
            json!({ "stale_mount": { "mountpoint": mount.path, "source": mount.source, "state": state } })
        }));
        live.extend(dead.iter().filter_map(|record| {
            let command = record.restart_command()?;
            Some(json!({ "dead_process": { "record": record, "restart": command } }))
        }));
        outln!("{}", serde_json::to_string_pretty(&live)?);
    } else {
        for (record, live) in processes.iter().zip(&live) {
            print_process(record, live);
        }
        for (mount, state) in &stale {
            print_line(format!(
                "mount of {} on {} {}: {}",
                mount.source,
                mount.path.display(),
                describe_state(*state),
                remedy(mount)
            ));
        }
        for record in &dead {
            if let Some(command) = record.restart_command() {
                print_line(format!(
                    "nacre {} (process {}) has died: start it again with `{command}`",
                    record.role, record.pid
                ));
            }
        }
        if let Some(dead) = dead_process {
            outln!(
                "nacre (process {}) has died; clean up with `nacre down`",
                dead.pid
            );
        } else if processes.is_empty() {
            match &args.dir {
                Some(dir) => outln!(
                    "no nacre process runs in {} (`nacre status` without --dir lists all)",
                    dir.display()
                ),
                None => outln!("nothing is up"),
            }
        }
    }
    Ok(if processes.is_empty() {
        ExitCode::from(EXIT_NOT_UP)
    } else {
        ExitCode::SUCCESS
    })
}

/// All running processes of this user and of root (for root, of all users), including the
/// process of the default directory if its record is missing in the run directory.
pub(super) fn all_processes() -> Vec<ProcessRecord> {
    let mut processes = process::of_all_users();
    let default = default_dir().ok().and_then(|dir| process::in_dir(&dir).ok()?);
    if let Some(r) = default.filter(|r| r.is_alive() && !processes.iter().any(|f| f.pid == r.pid)) {
        processes.push(r);
    }
    processes
}

/// Nacre's mounts that belong to no running process and do not answer.
pub(super) fn stale_mounts(processes: &[ProcessRecord]) -> Vec<(MountEntry, MountState)> {
    let has_process = |m: &MountEntry| {
        processes
            .iter()
            .any(|r| r.mounts.iter().any(|mount| mount.mountpoint == m.path))
    };
    let mounts = fuse::mounts().unwrap_or_default().into_iter();
    let checks: Vec<_> = mounts
        .filter(|m| m.is_nacre() && !has_process(m))
        .map(|m| std::thread::spawn(move || fuse::mount_state(&m.path).map(|state| (m, state))))
        .collect();
    let states = checks.into_iter().filter_map(|c| c.join().ok()?.ok());
    states
        .filter(|(_, state)| *state != MountState::Responds)
        .collect()
}

/// The remedy for a mount without a process. `nacre up` cleans up, too, and starts the servers.
pub(super) fn remedy(mount: &MountEntry) -> String {
    match mount.path.parent().filter(|dir| Instance::exists_in(dir)) {
        Some(dir) => format!("start it again with nacre up --dir {}", shell_word(dir)),
        None => format!("clean up with nacre umount {}", shell_word(&mount.path)),
    }
}

pub(super) fn describe_state(state: MountState) -> &'static str {
    match state {
        MountState::Responds => "answers",
        MountState::Dead => "is left over from a process that died",
        MountState::Hung => "does not answer",
    }
}

/// The process's current record and memory use; without an answer, its published record and the
/// error.
fn live_status(record: &ProcessRecord) -> Value {
    match control::call(&record.control, &Request::Status, ANSWER_MAX) {
        Ok(mut value) => {
            if let Some(problems) = super::health::target_problems(record) {
                value["problems"] = json!(problems);
            }
            value
        }
        Err(e) => json!({ "record": record, "error": format!("{e:#}") }),
    }
}

/// Prints a line without control characters: other users' processes supply part of the text.
pub(super) fn print_line(text: String) {
    outln!("{}", printable(&text));
}

fn print_process(record: &ProcessRecord, live: &Value) {
    let dirs: Vec<String> = record.dirs.iter().map(|d| d.display().to_string()).collect();
    let location = if dirs.is_empty() {
        String::new()
    } else {
        format!(" in {}", dirs.join(" "))
    };
    let user = match record.owner {
        owner if owner == process::uid() => String::new(),
        owner => format!(", user {owner}"),
    };
    print_line(format!(
        "nacre {}{location} (process {}{user})",
        record.role, record.pid
    ));
    for mount in &record.mounts {
        print_line(format!(
            "  mount    {} on {}",
            mount.source,
            mount.mountpoint.display()
        ));
    }
    if let (Some(mountpoint), Some(dir)) = (record.missing_mount(), record.dirs.first()) {
        print_line(format!(
            "  mount    none on {}: mount it again with nacre up --dir {}",
            mountpoint.display(),
            shell_word(dir)
        ));
    }
    for source in record.sources() {
        print_line(format!("  source   {source}"));
    }
    if !record.targets.is_empty() {
        print_line(format!("  targets  {}", record.targets.join(" ")));
    }
    print_line(format!(
        "  listens  {} port {}",
        record.nids.join(" "),
        record.port
    ));
    print_line(format!("  log      {}", record.log.display()));
    if let Some(resident) = live["resident_bytes"].as_u64() {
        outln!("  memory   {} MiB", resident >> 20);
    }
    let problems = live["problems"].as_array().into_iter().flatten();
    for problem in problems.chain(live.get("error")).filter_map(Value::as_str) {
        print_line(format!("  problem  {problem}"));
    }
}
