//! The commands, a module each.

mod bench;
mod demo;
mod down;
mod fsck;
mod lctl;
mod lfs;
pub(crate) mod lnetctl;
mod lst;
pub(crate) mod mkfs;
mod mount;
mod serve;
mod served;
mod status;
mod umount;
mod up;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cli::{Cli, Command};
use crate::control::{self, Request};
use crate::running::Running;

/// A process that stops bounds every step; all of them fit into this.
const STOP_MAX: Duration = Duration::from_secs(120);
/// How long it may then take to end.
const END_MAX: Duration = Duration::from_secs(10);

/// Runs a command.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(args),
        Command::Status(args) => status::run(args),
        Command::Down(args) => down::run(args),
        Command::Mkfs(args) => mkfs::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Lfs(args) => lfs::run(args),
        Command::Lctl(args) => lctl::run(args),
        Command::Lnetctl(args) => lnetctl::run(args),
        Command::Lst(command) => lst::run(command),
        Command::Fsck(args) => fsck::run(args),
        Command::Decode(args) => crate::decode::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args),
    }
}

/// The directory that `up` uses when none is given.
fn default_dir() -> Result<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute());
    let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/share"));
    let base = data
        .or_else(home)
        .context("HOME is not set: say where with --dir")?;
    Ok(base.join("nacre/default"))
}

/// A directory from the command line, or the default one, as an absolute path.
fn dir_or_default(dir: Option<&Path>) -> Result<PathBuf> {
    match dir {
        Some(dir) => crate::daemon::absolute(dir),
        None => default_dir(),
    }
}

/// Asks a running process to stop, and waits until it is gone.
fn stop(running: &Running, lazy: bool) -> Result<()> {
    let answer = control::ask(&running.control, &Request::Stop { lazy }, STOP_MAX);
    if let Err(e) = answer {
        // It may have gone between the question and the answer.
        if running.alive() {
            return Err(e).with_context(|| format!("nacre (process {}) did not stop", running.pid));
        }
    }
    if !running.gone_within(END_MAX) {
        let log = running.log.display();
        bail!(
            "nacre (process {}) has stopped its work but does not end; its log is {log}",
            running.pid
        );
    }
    Ok(())
}

/// Cleans up after a process that died: stale mounts and its record. Says what was cleaned.
fn clean_up_after(running: &Running) -> Result<Vec<String>> {
    let mut done = Vec::new();
    for mount in &running.mounts {
        if crate::mounts::detach_of_dead(&mount.mountpoint)? {
            done.push(format!("unmounted {}", mount.mountpoint.display()));
        }
    }
    running.withdraw();
    Ok(done)
}
