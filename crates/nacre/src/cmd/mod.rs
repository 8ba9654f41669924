//! The commands, a module each.

mod bench;
mod demo;
mod destroy;
mod down;
mod fsck;
mod lctl;
mod lfs;
pub(crate) mod lnetctl;
mod lst;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod nodemap;
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
use crate::node::MountRequest;
use crate::running::Running;
use crate::session::mount_namespace;

/// A process that stops bounds every step; all of them fit into this.
const STOP_MAX: Duration = Duration::from_secs(120);
/// How long a process may take to say that it is there.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// A mount waits for servers at most so long.
const MOUNT_MAX: Duration = Duration::from_secs(600);
/// How long it may then take to end.
const END_MAX: Duration = Duration::from_secs(10);

/// Runs a command.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(args),
        Command::Status(args) => status::run(args),
        Command::Down(args) => down::run(args),
        Command::Destroy(args) => destroy::run(args),
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

/// Asks a running process to mount; `false` when it is about to end.
fn mount_in(running: &Running, mount: MountRequest, told: Vec<String>) -> Result<bool> {
    let request = Request::Mount {
        mount,
        told,
        mount_ns: mount_namespace(),
    };
    let answer = control::ask(&running.control, &request, MOUNT_MAX)?;
    Ok(answer["mounted"].as_bool().unwrap_or(false))
}

/// Asks a running process to stop, and waits until it is gone. One that does not answer is sent a signal, which detaches its
/// mounts: without `lazy` only if it has none.
fn stop(running: &Running, lazy: bool) -> Result<()> {
    if let Err(e) = control::ask(&running.control, &Request::Status, ANSWER_MAX) {
        if !lazy && !running.mounts.is_empty() {
            let what = format!(
                "process {} does not answer; --lazy stops it by a signal",
                running.pid
            );
            return Err(e).context(what);
        }
        running.terminate()?;
        return wait_for_end(running);
    }
    let answer = control::ask(&running.control, &Request::Stop { lazy }, STOP_MAX);
    if let Err(e) = answer {
        // It may have gone between the question and the answer.
        if running.alive() {
            return Err(e).with_context(|| format!("nacre (process {}) did not stop", running.pid));
        }
    }
    wait_for_end(running)
}

fn wait_for_end(running: &Running) -> Result<()> {
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
    running.clear();
    Ok(done)
}
