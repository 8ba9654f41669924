//! `nacre health`: problems of this machine's processes, each with a remedy.
//!
//! The command asks every process that `nacre status` shows for its imports, stores and mounts, and
//! checks the mount table for mounts of dead processes.

use std::fmt;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::lfs::Target;
use super::{ANSWER_MAX, status};
use crate::cli::Health;
use crate::control::{self, Request};
use crate::node_requests::Device;
use crate::output::{outln, shell_word};
use crate::process::{self, MountRecord, ProcessRecord};

/// Exit status if something could not be checked.
const EXIT_UNCHECKED: u8 = 2;
/// A store or target is nearly full below this percentage of free space or inodes.
const FREE_PERCENT_MIN: u64 = 5;

/// Time in seconds for which an eviction counts as a warning. After this time, the programs have
/// probably reopened their files.
const EVICTION_SHOWN_SECS: u64 = 24 * 3600;

/// A problem of a process or a mount.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Problem {
    level: Level,
    /// The process, or `mount` for a mount without a process.
    place: String,
    /// The target, import or mount.
    object: String,
    problem: String,
    remedy: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Something does not work now.
    Problem,
    /// Something was wrong earlier, or may become so.
    Warning,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem {
            level,
            place,
            object,
            problem,
            remedy,
        } = self;
        let word = match level {
            Level::Problem => "problem",
            Level::Warning => "warning",
        };
        write!(f, "{word}: {place}: {object} {problem}: {remedy}")
    }
}

/// The result of all checks.
#[derive(Debug, Default)]
struct Report {
    problems: Vec<Problem>,
    /// Checks that failed, each with the reason.
    unchecked: Vec<String>,
}

impl Report {
    fn has_problem(&self) -> bool {
        self.problems.iter().any(|p| p.level == Level::Problem)
    }
}

/// Runs the command.
pub(crate) fn run(args: Health) -> Result<ExitCode> {
    let processes = status::all_processes();
    let mut report = Report::default();
    let local: Vec<String> = processes.iter().flat_map(|p| p.targets.clone()).collect();
    for process in &processes {
        check_process(process, &local, &mut report);
    }
    for (mount, state) in status::stale_mounts(&processes) {
        report.problems.push(Problem {
            level: Level::Problem,
            place: "mount".to_owned(),
            object: format!("{} on {}", mount.source, mount.path.display()),
            problem: status::describe_state(state).to_owned(),
            remedy: status::remedy(&mount),
        });
    }
    for dead in process::dead() {
        if let Some(command) = dead.restart_command() {
            report.problems.push(Problem {
                level: Level::Problem,
                place: format!("nacre {} (process {})", dead.role, dead.pid),
                object: dead.targets.join(" "),
                problem: "has died".to_owned(),
                remedy: format!("start it again with {command}"),
            });
        }
    }
    if args.json {
        let text = json!({
            "healthy": !report.has_problem() && report.unchecked.is_empty(),
            "processes": processes.iter().map(|p| p.pid).collect::<Vec<_>>(),
            "problems": report.problems,
            "unchecked": report.unchecked,
        });
        outln!("{}", serde_json::to_string_pretty(&text)?);
    } else {
        for problem in &report.problems {
            status::print_line(problem.to_string());
        }
        for line in &report.unchecked {
            status::print_line(format!("not checked: {line}"));
        }
        if let Some(line) = summary(&report, processes.len()) {
            outln!("{line}");
        }
    }
    Ok(match () {
        () if report.has_problem() => ExitCode::FAILURE,
        () if !report.unchecked.is_empty() => ExitCode::from(EXIT_UNCHECKED),
        () if processes.is_empty() => ExitCode::from(status::EXIT_NOT_UP),
        () => ExitCode::SUCCESS,
    })
}

/// The last line of the text; `None` after a problem or a failed check.
fn summary(report: &Report, processes: usize) -> Option<String> {
    if report.has_problem() || !report.unchecked.is_empty() {
        return None;
    }
    let warnings = report.problems.len();
    Some(match (processes, warnings) {
        (0, 0) => "nothing is up".to_owned(),
        (n, 0) => format!("healthy: processes checked: {n}"),
        (n, warnings) => format!("healthy, with warnings ({warnings}): processes checked: {n}"),
    })
}

/// Checks a process. `local` has the names of the targets of all processes on this machine. The
/// check of a mount's targets skips them, because the check of their own process covers them.
fn check_process(process: &ProcessRecord, local: &[String], report: &mut Report) {
    let place = format!("nacre {} (process {})", process.role, process.pid);
    let ask = |request: Request| control::call(&process.control, &request, ANSWER_MAX);
    if let Err(e) = ask(Request::Status) {
        report.problems.push(Problem {
            level: Level::Problem,
            place,
            object: "the process".to_owned(),
            problem: format!("does not answer ({e:#})"),
            remedy: format!(
                "read its log {}, or end it with kill {} and run nacre down",
                shell_word(&process.log),
                process.pid
            ),
        });
        return;
    }
    let mut unchecked = Vec::new();
    let mut note_error = |what: &str, e: anyhow::Error| unchecked.push(format!("{place}: {what}: {e:#}"));
    let mut found = Vec::new();
    let selector = selector(process);
    let devices = ask(Request::Devices).and_then(control::decode::<Vec<Device>>);
    let devices = devices.unwrap_or_else(|e| {
        note_error("imports", e);
        Vec::new()
    });
    found.extend(import_problems(&devices, &selector));
    for (pattern, check) in PARAMETER_CHECKS {
        let request = Request::GetParam {
            pattern: (*pattern).to_owned(),
        };
        match ask(request).and_then(control::decode::<Vec<(String, String)>>) {
            Ok(params) => found.extend(check_all(*check, &params)),
            Err(e) => note_error(pattern, e),
        }
    }
    match store_problems(&ask) {
        Ok(problems) => found.extend(problems),
        Err(e) => note_error("stores", e),
    }
    for mount in &process.mounts {
        match fuse::mount_state(&mount.mountpoint) {
            Ok(fuse::MountState::Responds) => {}
            Ok(fuse::MountState::Hung) if !waits_for(&devices, mount).is_empty() => {
                let problem = format!("waits for {}", waits_for(&devices, mount).join(", "));
                let remedy = "start that server; the mount then goes on, and loses nothing";
                let object = format!("the mount on {}", mount.mountpoint.display());
                found.push(finding(Level::Problem, object, problem, remedy));
            }
            Ok(state) => found.push(mount_problem(mount, status::describe_state(state), process)),
            Err(e) => found.push(mount_problem(mount, &format!("is not mounted ({e})"), process)),
        }
        let request = Request::Df {
            mountpoint: mount.mountpoint.clone(),
        };
        // The process waits up to 5 s for each target.
        let answer = control::call(&process.control, &request, 2 * ANSWER_MAX);
        match answer.and_then(control::decode::<Vec<Target>>) {
            Ok(targets) => found.extend(full_targets(&targets, local)),
            Err(e) => note_error("space", e),
        }
    }
    if let (Some(mountpoint), Some(dir)) = (process.missing_mount(), process.dirs.first()) {
        let object = format!("the mount on {}", mountpoint.display());
        let remedy = format!("mount it again with nacre up --dir {}", shell_word(dir));
        found.push(finding(Level::Warning, object, "was unmounted", &remedy));
    }
    report.problems.extend(found.into_iter().map(|finding| Problem {
        place: place.clone(),
        ..finding
    }));
    report.unchecked.append(&mut unchecked);
}

/// The problems of a process's targets, without remedies; `None` without an answer.
pub(super) fn target_problems(process: &ProcessRecord) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for (pattern, check) in PARAMETER_CHECKS {
        let request = Request::GetParam {
            pattern: (*pattern).to_owned(),
        };
        let answer = control::call(&process.control, &request, ANSWER_MAX);
        let params = answer.and_then(control::decode::<Vec<(String, String)>>).ok()?;
        found.extend(check_all(*check, &params).map(|p| format!("{} {}", p.object, p.problem)));
    }
    Some(found)
}

/// The findings of a check of parameters.
fn check_all(
    check: fn(&str, &str) -> Option<Problem>,
    params: &[(String, String)],
) -> impl Iterator<Item = Problem> {
    params
        .iter()
        .filter_map(move |(name, value)| check(name.split('.').nth(1).unwrap_or(name), value.trim()))
}

/// A problem without its place.
fn finding(level: Level, object: impl Into<String>, problem: impl Into<String>, remedy: &str) -> Problem {
    Problem {
        level,
        place: String::new(),
        object: object.into(),
        problem: problem.into(),
        remedy: remedy.to_owned(),
    }
}

/// The targets of a mount that are not connected.
fn waits_for<'d>(devices: &'d [Device], mount: &MountRecord) -> Vec<&'d str> {
    let of_mount = devices
        .iter()
        .filter(|d| d.mountpoint.as_ref() == Some(&mount.mountpoint));
    let targets = of_mount.filter_map(|d| d.target.as_ref());
    targets
        .filter(|t| !t.connected)
        .map(|t| t.uuid.as_str())
        .collect()
}

/// The option with which `nacre lctl` selects the process.
fn selector(process: &ProcessRecord) -> String {
    match (process.dirs.first(), process.mounts.first()) {
        (Some(dir), _) => format!(" --dir {}", shell_word(dir)),
        (None, Some(mount)) => format!(" --mount {}", shell_word(&mount.mountpoint)),
        (None, None) => String::new(),
    }
}

/// Imports without a connection, and those that a server has evicted, except those of MDTs, which
/// [`PARAMETER_CHECKS`] covers. `selector`: the option that selects the process.
fn import_problems(devices: &[Device], selector: &str) -> Vec<Problem> {
    let mut found = Vec::new();
    for device in devices.iter().filter(|device| device.kind != "osp") {
        let Some(target) = &device.target else { continue };
        if !target.connected {
            let remedy = format!(
                "start that server, or check the way to it with nacre lctl ping {}{selector}",
                target.nid
            );
            let problem = format!("is not connected to {} at {}", target.uuid, target.nid);
            found.push(finding(Level::Problem, &device.name, problem, &remedy));
        }
        if let Some(secs) = target.evicted_secs_ago.filter(|secs| *secs < EVICTION_SHOWN_SECS) {
            let problem = format!(
                "was evicted {} times since its start, last {} minutes ago",
                target.evictions,
                secs / 60
            );
            let remedy = "programs may have lost unwritten data: see the log, and reopen their files";
            found.push(finding(Level::Warning, &device.name, problem, remedy));
        }
    }
    found
}

/// A pattern of parameters, and the check of the value of each, with its target or import.
type ParameterCheck = (&'static str, fn(&str, &str) -> Option<Problem>);

const PARAMETER_CHECKS: &[ParameterCheck] = &[
    ("osd-*.*.store_failure", |target, why| {
        (!why.is_empty()).then(|| {
            let problem = format!("refuses changes since a failure ({why})");
            let remedy = "check its disk and free space, then restart the target";
            finding(Level::Problem, target, problem, remedy)
        })
    }),
    ("osd-*.*.disk_error", |target, why| {
        (!why.is_empty()).then(|| {
            let problem = format!("gets no new files since an error of its disk ({why})");
            let remedy = "check its disk, then restart the target";
            finding(Level::Problem, target, problem, remedy)
        })
    }),
    ("*.*.barrier", |target, state| {
        (state != "none").then(|| {
            let problem = format!("has a barrier ({state}) and may lose later changes");
            let remedy = "restart the target to end it";
            finding(Level::Warning, target, problem, remedy)
        })
    }),
    ("obdfilter.*.scrub_damaged", |target, blocks| {
        (blocks != "0").then(|| {
            let problem = format!("has {blocks} blocks of 4 KiB with wrong data");
            let remedy =
                "check its disk; the log and `nacre fsck --data` name the objects: restore their files";
            finding(Level::Problem, target, problem, remedy)
        })
    }),
    ("osp.*.active", |import, value| {
        let (problem, remedy) = match import.contains("-osp-MDT") {
            true => (
                "is not connected to its MDT",
                "start the MDT; until then its part of the name space waits",
            ),
            false => (
                "is not connected to its OST",
                "start the OST; until then new files use other OSTs",
            ),
        };
        (value == "0").then(|| finding(Level::Problem, import, problem, remedy))
    }),
    ("osp.*.excluded", |import, why| {
        (!why.is_empty()).then(|| {
            let problem = format!("gives no new files to its OST ({why})");
            let remedy = "free space on the OST, or check its disk and restart it; max_create_count=20000 ends max_create_count=0";
            finding(Level::Warning, import, problem, remedy)
        })
    }),
    ("osp.*.slow", |import, value| {
        (value == "1").then(|| {
            let remedy = "check the load and disk of the OST; until it answers, new files use other OSTs";
            finding(Level::Warning, import, "gets slow answers from its OST", remedy)
        })
    }),
];

/// The nearly full stores of the process's own targets; `ask` sends a request to the process.
fn store_problems(ask: &dyn Fn(Request) -> Result<serde_json::Value>) -> Result<Vec<Problem>> {
    let get = |name: &str| -> Result<Vec<(String, String)>> {
        let pattern = format!("osd-*.*.{name}");
        control::decode(ask(Request::GetParam { pattern })?)
    };
    let mut found = Vec::new();
    for (total_name, free_name, what) in [
        ("kbytestotal", "kbytesavail", "space"),
        ("filestotal", "filesfree", "inodes"),
    ] {
        let free = get(free_name)?;
        for (name, total) in get(total_name)? {
            let target = name.trim_end_matches(total_name);
            let free = free
                .iter()
                .find(|(name, _)| name.strip_suffix(free_name) == Some(target));
            let (Ok(total), Some(Ok(free))) = (total.trim().parse(), free.map(|(_, f)| f.trim().parse()))
            else {
                continue;
            };
            let target = target.split('.').nth(1).unwrap_or(target);
            found.extend(nearly_full(target, what, total, free));
        }
    }
    Ok(found)
}

/// Targets on other machines that are nearly full.
fn full_targets(targets: &[Target], local: &[String]) -> Vec<Problem> {
    let others = targets
        .iter()
        .filter(|t| !local.iter().any(|name| *name == t.uuid.trim_end_matches("_UUID")));
    let each = others.filter_map(|t| Some((t.uuid.trim_end_matches("_UUID"), t.space?)));
    each.flat_map(|(name, space)| {
        let bytes = nearly_full(name, "space", space.total_kib, space.free_kib);
        let inodes = nearly_full(name, "inodes", space.inodes, space.inodes_free);
        bytes.into_iter().chain(inodes)
    })
    .collect()
}

/// A problem if little of `what` is free. A total of 0 means that the store does not count `what`,
/// and is no problem.
fn nearly_full(target: &str, what: &str, total: u64, free: u64) -> Option<Problem> {
    let percent = u128::from(free) * 100 / u128::from(total.max(1));
    if total == 0 || percent >= FREE_PERCENT_MIN.into() {
        return None;
    }
    let level = if free == 0 { Level::Problem } else { Level::Warning };
    let problem = match free {
        0 => format!("is full: no {what} is free"),
        _ => format!("is nearly full: {percent}% of its {what} is free"),
    };
    let remedy = match target.contains("-MDT") {
        true => "remove files, or enlarge the disk",
        false => "remove files, enlarge the disk, or add an OST",
    };
    Some(finding(level, target, problem, remedy))
}

fn mount_problem(mount: &MountRecord, problem: &str, process: &ProcessRecord) -> Problem {
    let path = shell_word(&mount.mountpoint);
    let remedy = match process.role.as_str() {
        "up" => "run nacre up again with the same directory".to_owned(),
        _ => format!("run nacre umount {path}, then mount again"),
    };
    finding(
        Level::Problem,
        format!("the mount on {}", mount.mountpoint.display()),
        problem,
        &remedy,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn import(connected: bool, evictions: u64) -> Device {
        serde_json::from_value(json!({
            "kind": "osc",
            "name": "lus-OST0000-osc-ab",
            "uuid": "u",
            "target": {
                "uuid": "lus-OST0000_UUID",
                "nid": "10.0.0.2@tcp",
                "connected": connected,
                "evictions": evictions,
                "evicted_secs_ago": (evictions > 0).then_some(90),
            },
            "mountpoint": null,
        }))
        .unwrap()
    }

    #[test]
    fn disconnected_and_evicted_imports_are_named_with_remedies() {
        assert_eq!(import_problems(&[import(true, 0)], ""), []);
        let found = import_problems(&[import(false, 2)], " --dir d");
        assert_eq!(found[0].level, Level::Problem);
        let text = found[0].to_string();
        assert!(
            text.contains("lus-OST0000-osc-ab is not connected to lus-OST0000_UUID at 10.0.0.2@tcp: start")
                && text.ends_with("nacre lctl ping 10.0.0.2@tcp --dir d"),
            "{text}"
        );
        assert_eq!(found[1].level, Level::Warning);
        assert!(
            found[1]
                .problem
                .contains("evicted 2 times since its start, last 1 minutes ago"),
            "{found:?}"
        );
        let mut old = import(true, 2);
        old.target.as_mut().unwrap().evicted_secs_ago = Some(EVICTION_SHOWN_SECS);
        assert_eq!(import_problems(&[old], ""), []);
    }

    #[test]
    fn targets_with_little_space_are_warnings_and_full_ones_problems() {
        let level = |total, free| nearly_full("lus-OST0000", "space", total, free).map(|p| p.level);
        assert_eq!(level(1000, 50), None);
        assert_eq!(level(1000, 49), Some(Level::Warning));
        assert_eq!(level(1000, 0), Some(Level::Problem));
        assert_eq!(level(0, 0), None, "a store that counts no inodes");
    }

    #[test]
    fn local_targets_are_checked_by_their_stores_only() {
        let targets: Vec<Target> = serde_json::from_value(json!([
            { "uuid": "lus-OST0000_UUID", "kind": "OST", "index": 0, "space": null },
            { "uuid": "lus-OST0001_UUID", "kind": "OST", "index": 1, "space": {
                "total_kib": 100, "used_kib": 99, "free_kib": 1, "inodes": 0, "inodes_free": 0 } },
        ]))
        .unwrap();
        let found = full_targets(&targets, &[]);
        assert_eq!((found.len(), found[0].object.as_str()), (1, "lus-OST0001"));
        assert_eq!(full_targets(&targets, &["lus-OST0001".to_owned()]), []);
    }

    #[test]
    fn failed_store_and_unavailable_ost_are_problems() {
        let problem_of = |pattern: &str, object: &str, value| {
            let (_, check) = PARAMETER_CHECKS.iter().find(|(p, _)| *p == pattern).unwrap();
            check(object, value)
        };
        let check = |pattern: &str, value| problem_of(pattern, "lus-MDT0000", value).map(|p| p.level);
        for (import, kind) in [
            ("lus-OST0000-osc-MDT0001", "OST"),
            ("lus-MDT0000-osp-MDT0001", "MDT"),
        ] {
            let problem = problem_of("osp.*.active", import, "0").unwrap();
            assert!(
                problem.remedy.contains(kind) && problem.problem.ends_with(kind),
                "{import}"
            );
        }
        assert_eq!(check("osd-*.*.store_failure", ""), None);
        assert_eq!(check("osd-*.*.store_failure", "disk full"), Some(Level::Problem));
        assert_eq!(check("osd-*.*.disk_error", ""), None);
        assert_eq!(check("osd-*.*.disk_error", "write: EIO"), Some(Level::Problem));
        assert_eq!(check("*.*.barrier", "none"), None);
        assert_eq!(check("*.*.barrier", "readonly"), Some(Level::Warning));
        assert_eq!(check("obdfilter.*.scrub_damaged", "0"), None);
        assert_eq!(check("obdfilter.*.scrub_damaged", "2"), Some(Level::Problem));
        assert_eq!(check("osp.*.active", "1"), None);
        assert_eq!(check("osp.*.active", "0"), Some(Level::Problem));
        assert_eq!(check("osp.*.slow", "1"), Some(Level::Warning));
        assert_eq!(check("osp.*.excluded", ""), None);
        assert_eq!(check("osp.*.excluded", "0 MiB available"), Some(Level::Warning));
    }

    #[test]
    fn warnings_are_no_problem() {
        let mut report = Report::default();
        assert_eq!(summary(&report, 0).as_deref(), Some("nothing is up"));
        assert_eq!(
            summary(&report, 2).as_deref(),
            Some("healthy: processes checked: 2")
        );
        report.problems = import_problems(&[import(true, 1)], "");
        assert_eq!(
            summary(&report, 2).as_deref(),
            Some("healthy, with warnings (1): processes checked: 2")
        );
        report.unchecked = vec!["space".to_owned()];
        assert_eq!(summary(&report, 2), None);
    }
}
