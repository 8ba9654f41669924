//! Going to the background.
//!
//! The command starts itself again: the same arguments in the same working directory, with an
//! environment variable that says that somebody waits for word. The child makes a session of its own, works, and writes
//! one line on its standard output when it can be used or has failed; the parent passes that on and ends. What the
//! child writes on standard error goes to its log.

use crate::output::{self, say};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Set for the child: it is in the background and somebody waits for word.
const CHILD: &str = "NACRE_BACKGROUND";

/// How often the child looks whether its parent still waits.
const PARENT_LOOK: Duration = Duration::from_millis(200);

/// What the child reports.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    Ready(String),
    /// The process ends.
    Failed(String),
    /// The process goes on with what others have asked of it meanwhile.
    Refused(String),
}

/// Whether this process is the one in the background.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs this very command in the background; returns when it is ready, with what it says, or its error.
pub(crate) fn spawn(log: &Path) -> Result<ExitCode> {
    let own = std::env::current_exe().context("cannot find the nacre binary")?;
    let stderr = open_log(log)?;
    let mut child = Command::new(own)
        .args(std::env::args_os().skip(1))
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .context("cannot start nacre in the background")?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out)
            .read_line(&mut line)
            .context("word from the background")?;
    }
    match serde_json::from_str(&line) {
        Ok(Word::Ready(text)) => {
            say!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Ok(Word::Failed(why)) => {
            let _ = child.wait();
            bail!(why)
        }
        Ok(Word::Refused(why)) => bail!(why),
        Err(_) => {
            let status = child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
            bail!(
                "nacre ended in the background before it was ready ({status}); its log is {}",
                log.display()
            )
        }
    }
}

/// What the child does first: it leaves the session of whoever started it.
pub(crate) fn detach() {
    // Only a process group's leader cannot; a child that was just spawned is none.
    if let Err(e) = rustix::process::setsid() {
        tracing::debug!("setsid: {e}");
    }
    // Not to keep anybody from unmounting what we were started in.
    let _ = std::env::set_current_dir("/");
}

/// Resolves when the command that waits for word has ended, as by Ctrl-C. Never in the foreground, where nobody waits.
pub(crate) async fn parent_has_ended() {
    let parent = rustix::process::getppid();
    while !is_child() || rustix::process::getppid() == parent {
        tokio::time::sleep(PARENT_LOOK).await;
    }
}

/// Tells the waiting parent that all is ready, or prints it in the foreground.
pub(crate) fn ready(text: &str) {
    if is_child() {
        say(&Word::Ready(text.to_owned()))
    } else {
        say!("{text}")
    }
}

/// Tells the waiting parent why nothing came of it; in the foreground the error goes the ordinary way.
pub(crate) fn failed(error: &anyhow::Error) {
    if is_child() {
        say(&Word::Failed(output::describe(error)));
    }
}

/// Tells the waiting parent why nothing came of what it wanted, although this process goes on.
pub(crate) fn refused(error: &anyhow::Error) {
    if is_child() {
        say(&Word::Refused(output::describe(error)));
    }
}

fn say(word: &Word) {
    let mut out = std::io::stdout();
    if let Ok(text) = serde_json::to_string(word) {
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
    // The pipe has done its work; the descriptor must not stay open on it, nor be taken by something else.
    if let Ok(null) = OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

fn open_log(path: &Path) -> Result<File> {
    let file = osd::files::options().create(true).append(true).open(path);
    file.with_context(|| format!("cannot write the log {}", path.display()))
}

/// Writes the log to the file that now has its name, as after `logrotate` has renamed it. In the foreground the log is standard
/// error, and stays there.
pub(crate) fn reopen_log(path: &Path) {
    if !is_child() {
        return;
    }
    match open_log(path) {
        Ok(file) => {
            let _ = rustix::stdio::dup2_stderr(&file);
            tracing::info!("the log begins here");
        }
        Err(e) => tracing::warn!("the log stays where it is: {e:#}"),
    }
}

/// Makes paths that were given on the command line independent of the working directory.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("path {}", path.display()))
}
