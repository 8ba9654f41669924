//! `nacre fsck`: checks names, links, layouts and objects of a stopped file system against each
//! other; with `--repair`, also repairs them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::fsck::{FsckError, Report, Summary, Targets};
use anyhow::{Context, Result, bail};
use osd::check::{Finding, Progress};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::cli::Fsck;
use crate::instance::{self, Instance, Store};
use crate::interrupt;
use crate::output::{errln, outln, shell_word};
use crate::process;
use crate::progress::ProgressLine;

/// Interval of updates of the progress, and of checks for an interruption.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Runs the command.
pub(crate) fn run(args: Fsck) -> Result<ExitCode> {
    let mut dirs = Vec::new();
    let mut locks = Vec::new();
    for dir in &args.dirs {
        let dir = crate::daemon::make_absolute(dir)?;
        match Instance::find(&dir)? {
            Some(instance) => {
                dirs.extend(stopped_target_dirs(&dir, &instance)?);
                locks.push(instance::lock(&dir)?);
            }
            None => dirs.push(dir),
        }
    }
    let targets = Targets::open_dirs(&dirs, args.repair)?.with_data(args.data);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let progress = Arc::new(Progress::default());
    let stop = interrupt::stop_flag()?;
    let line = Arc::new(Mutex::new(ProgressLine::new()));
    let (seen, shown) = (progress.clone(), line.clone());
    let watcher = runtime.spawn(async move {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let text = format!("targets, {} records examined", seen.seen());
            let (done, total) = seen.targets();
            shown.lock().update(&text, done, Some(total));
            if stop.load(Ordering::Relaxed) {
                seen.stop();
            }
        }
    });
    let mut findings = Vec::new();
    let mut print = |report: Report<'_>| match args.json {
        true => findings.push(finding_json(&report)),
        false => {
            line.lock().clear();
            outln!("{}", finding_text(&report));
        }
    };
    let summary = runtime.block_on(::fsck::check(&targets, args.repair, &progress, &mut print));
    watcher.abort();
    // Wait until the watcher has ended, so that it shows no progress after the summary.
    let _ = runtime.block_on(watcher);
    runtime.shutdown_background();
    line.lock().clear();
    let summary = match summary {
        Err(e @ FsckError::Interrupted(_)) => {
            errln!("nacre: {e}");
            return Ok(interrupt::exit_code());
        }
        summary => summary?,
    };
    match args.json {
        true => outln!(
            "{}",
            serde_json::to_string_pretty(&summary_json(&summary, findings))?
        ),
        false => outln!("{}", summary_text(&summary, args.repair)),
    }
    Ok(match summary.left {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The target directories of a file system of `nacre up`. Fails while its process is running, and
/// for a file system in memory.
fn stopped_target_dirs(dir: &Path, instance: &Instance) -> Result<Vec<PathBuf>> {
    if let Some(process) = process::in_dir(dir)?.filter(|r| r.is_up()) {
        bail!(
            "{} is up (process {}): stop it first with nacre down --dir {}",
            dir.display(),
            process.pid,
            shell_word(dir)
        );
    }
    match instance.store {
        Store::Local => Ok(instance.target_dirs(dir)),
        Store::Memory => bail!(
            "{}: this file system was stored in memory and no longer exists",
            dir.display()
        ),
    }
}

fn finding_text(report: &Report<'_>) -> String {
    let Finding {
        kind,
        fid,
        place,
        expected,
        found,
        repair,
    } = report.finding;
    let fid = fid.map(|f| f.to_string()).unwrap_or_default();
    let about = match (place.is_empty(), fid.is_empty() || place.contains(&fid)) {
        (false, true) => place.clone(),
        (false, false) => format!("{place} {fid}"),
        (true, _) => fid,
    };
    let repair = match (repair, &report.repaired) {
        (None, _) => "; cannot be repaired".to_owned(),
        (Some(action), None) => format!("; --repair {action}"),
        (Some(action), Some(Ok(()))) => format!("; repaired: {action}"),
        (Some(_), Some(Err(why))) => format!("; not repaired: {why}"),
    };
    format!(
        "{}: {kind}: {about}: expected {expected}, found {found}{repair}",
        report.target
    )
}

fn finding_json(report: &Report<'_>) -> Value {
    let finding = report.finding;
    json!({
        "target": report.target,
        "what": finding.kind,
        "fid": finding.fid.map(|fid| fid.to_string()),
        "place": finding.place,
        "expected": finding.expected,
        "found": finding.found,
        "repair": finding.repair,
        "repaired": report.repaired.as_ref().map(Result::is_ok),
        "error": report.repaired.as_ref().and_then(|r| r.as_ref().err()),
    })
}

fn summary_json(summary: &Summary, findings: Vec<Value>) -> Value {
    json!({
        "targets": summary.targets,
        "unchecked": summary.unchecked,
        "inodes": summary.counts.inodes,
        "directories": summary.counts.directories,
        "names": summary.counts.names,
        "orphans": summary.counts.orphans,
        "objects": summary.objects,
        "found": summary.found,
        "left": summary.left,
        "findings": findings,
    })
}

fn summary_text(summary: &Summary, repair: bool) -> String {
    let mut out = String::new();
    for line in &summary.unchecked {
        out.push_str(&format!("not checked: {line}\n"));
    }
    let counts = &summary.counts;
    out.push_str(&format!(
        "checked {}: {} inodes ({} directories, {} removed while open), {} names, {} objects\n",
        summary.targets.join(", "),
        counts.inodes,
        counts.directories,
        counts.orphans,
        counts.names,
        summary.objects,
    ));
    out.push_str(&match (summary.found, summary.left, repair) {
        (0, ..) => "no errors".to_owned(),
        (found, 0, _) => format!("errors found: {found}, all repaired"),
        (found, _, false) => format!("errors found: {found}"),
        (found, left, true) => format!("errors found: {found}, left: {left}"),
    });
    out
}
