//! Starting in the background.
//!
//! The command starts itself again with the same arguments and working directory and an environment
//! variable that marks the child. The child works, and writes reports to its standard output, one
//! on each line. The parent prints the reports. It exits after the last one, which says that the
//! child is ready or has failed. Before its last report, the child starts its own session (setsid).
//! The child's standard error is its log file or the journal.

use crate::output::{self, errln, outln};
use crate::service_manager;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Environment variable that marks the child in the background. Its parent waits for a report.
const CHILD_VARIABLE: &str = "NACRE_BACKGROUND";

/// Interval of the child's checks that its parent still exists.
const PARENT_POLL: Duration = Duration::from_millis(200);

/// The child's report to its parent.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    /// The start waits for another process: the text to print.
    Waiting(String),
    /// The process is ready: the text to print, if any.
    Ready(Option<String>),
    /// The process exits: the error.
    Failed(String),
    /// The request failed, but the process continues, because other commands have mounted through
    /// the process meanwhile: the error.
    Refused(String),
}

/// Whether this process is the background child.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD_VARIABLE).is_some()
}

/// Runs this command in the background. Returns when the child is ready, or its error.
pub(crate) fn spawn(log: &Path) -> Result<ExitCode> {
    let binary = std::env::current_exe().context("cannot find the nacre binary")?;
    let stderr = match service_manager::logs_to_journal() {
        true => Stdio::inherit(),
        false => open_log(log)?.into(),
    };
    let mut args = std::env::args_os();
    // The name under which the binary was called may select a command.
    let name = args.next().unwrap_or_else(|| binary.clone().into());
    let mut child = Command::new(binary)
        .arg0(name)
        .args(args)
        .env(CHILD_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("cannot start nacre in the background")?;
    let reports = child.stdout.take().map(BufReader::new);
    for line in reports.into_iter().flat_map(BufRead::lines) {
        let line = line.context("cannot read the report of the background process")?;
        match serde_json::from_str(&line) {
            Ok(Report::Waiting(text)) => errln!("{text}"),
            Ok(Report::Ready(text)) => {
                print_ready(text);
                return Ok(ExitCode::SUCCESS);
            }
            Ok(Report::Failed(why)) => {
                let _ = child.wait();
                bail!(why)
            }
            Ok(Report::Refused(why)) => bail!(why),
            Err(_) => break,
        }
    }
    let status = child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
    bail!(
        "nacre ended in the background before it was ready ({status}); its log is {}",
        background_log_place(log).display()
    )
}

/// Detaches the child from the session of the parent. The kernel lets only the process group of
/// systemd's helper mount on an automount point, so the child stays in this group until it has
/// mounted.
fn leave_session() {
    // setsid fails only for the leader of a process group, and a child of the command is not one.
    if let Err(e) = rustix::process::setsid() {
        tracing::debug!("cannot leave the session of the parent (setsid): {e}");
    }
}

/// Changes to the root directory: a working directory would keep its file system from being
/// unmounted.
pub(crate) fn leave_working_directory() {
    let _ = std::env::set_current_dir("/");
}

/// Resolves when the parent has exited before the report, as after Ctrl-C. Never resolves in the
/// foreground, where no parent waits.
pub(crate) async fn parent_exited() {
    let parent = rustix::process::getppid();
    while !is_child() || rustix::process::getppid() == parent {
        tokio::time::sleep(PARENT_POLL).await;
    }
}

/// Tells the waiting parent what this process waits for; in the foreground, the service manager.
pub(crate) fn report_waiting(text: &str) {
    if is_child() {
        write_report(&Report::Waiting(text.to_owned()));
    } else {
        service_manager::report_status(text);
    }
}

/// Reports readiness to the waiting parent; in the foreground, prints the text, if any, and reports
/// to the service manager.
pub(crate) fn report_ready(text: Option<String>) {
    if is_child() {
        send_last_report(&Report::Ready(text))
    } else {
        service_manager::report_ready(text.as_deref());
        print_ready(text);
    }
}

fn print_ready(text: Option<String>) {
    if let Some(text) = text {
        outln!("{text}");
    }
}

/// Reports to the waiting parent why this process failed; in the foreground, the caller returns the
/// error.
pub(crate) fn report_failed(error: &anyhow::Error) {
    if is_child() {
        send_last_report(&Report::Failed(output::describe(error)));
    }
}

/// Reports a panic of the main thread to the waiting parent: the log may be on a full disk.
pub(crate) fn report_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        if std::thread::current().name() == Some("main") {
            write_report(&Report::Failed(format!("internal error: {info}")));
        }
    }));
}

/// Reports to the waiting parent why its request failed, although this process continues.
pub(crate) fn report_refused(error: &anyhow::Error) {
    if is_child() {
        send_last_report(&Report::Refused(output::describe(error)));
    }
}

fn write_report(report: &Report) {
    let mut out = std::io::stdout();
    if let Ok(text) = serde_json::to_string(report) {
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

fn send_last_report(report: &Report) {
    leave_session();
    write_report(report);
    // Release the pipe, and keep descriptor 1 in use so that no other file gets it.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

fn open_log(path: &Path) -> Result<File> {
    let file = osd::files::options().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write the log {}", path.display()))
}

/// Where this process logs. `path` is the log file, which it uses only in the background.
pub(crate) fn log_place(path: &Path) -> PathBuf {
    match is_child() || service_manager::logs_to_journal() {
        true => background_log_place(path),
        false => PathBuf::from("standard error"),
    }
}

/// Where a background process with this log file logs: to the file, or to the journal.
fn background_log_place(path: &Path) -> PathBuf {
    match service_manager::logs_to_journal() {
        true => PathBuf::from("the journal"),
        false => path.to_owned(),
    }
}

/// Opens the log file by its name again, as needed after `logrotate` has renamed the file. Does
/// nothing if the log is standard error or the journal.
pub(crate) fn reopen_log(path: &Path) {
    if log_place(path) != path {
        return;
    }
    match open_log(path) {
        Ok(file) => {
            let _ = rustix::stdio::dup2_stderr(&file);
            tracing::info!("log file reopened after SIGHUP");
        }
        Err(e) => tracing::warn!("cannot reopen the log, continuing with the old file: {e:#}"),
    }
}

/// Makes a path from the command line independent of the working directory.
pub(crate) fn make_absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot make {} an absolute path", path.display()))
}
