//! The commands, one module each, and the steps that several of them need: requesting a mount,
//! stopping a process, cleaning up after a dead process.

mod bench;
mod debug;
pub(crate) mod decode;
mod demo;
mod destroy;
mod down;
mod fsck;
mod generate;
mod health;
mod install_links;
mod lctl;
mod lfs;
pub(crate) mod lnetctl;
mod lst;
mod metrics;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod nodemap;
mod serve;
mod status;
mod temp_instance;
mod top;
mod umount;
mod up;
mod walk;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cli::{Cli, Command};
use crate::control::{self, Request};
use crate::lifecycle::mount_namespace;
use crate::process::ProcessRecord;
use crate::process_node::{MountRequest, STOP_MAX};

/// Time limit for the answer to a status request.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Time limit for the answer to a mount request: a mount waits for servers.
const MOUNT_MAX: Duration = Duration::from_secs(600);
/// Time limit for a process to exit once it has stopped serving.
const EXIT_MAX: Duration = Duration::from_secs(10);

/// Runs a command.
pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Up(args) => up::run(args),
        Command::Status(args) => status::run(args),
        Command::Health(args) => health::run(args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Top(args) => top::run(&args),
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
        Command::InstallLinks(args) => install_links::run(&args),
        Command::Completions(args) => Ok(generate::completions(&args)),
        Command::ManPages(args) => generate::man_pages(&args),
        Command::Fsck(args) => fsck::run(args),
        Command::Decode(args) => decode::run(args),
        Command::Debug(command) => debug::run(&command),
        Command::Demo(args) => demo::run(args),
        Command::Bench(args) => bench::run(args),
    }
}

/// The default directory of `up`.
fn default_dir() -> Result<PathBuf> {
    let data = std::env::var_os("XDG_DATA_HOME")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute());
    let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".local/share"));
    let base = data
        .or_else(home)
        .context("HOME is not set: set the directory with --dir")?;
    Ok(base.join("nacre/default"))
}

/// The given directory or the default one, as an absolute path.
fn dir_or_default(dir: Option<&Path>) -> Result<PathBuf> {
    match dir {
        Some(dir) => crate::daemon::make_absolute(dir),
        None => default_dir(),
    }
}

/// Requests a mount in a running process. Returns `false` if that process is about to exit.
fn request_mount(process: &ProcessRecord, mount: MountRequest, start_params: Vec<String>) -> Result<bool> {
    let request = Request::Mount {
        mount,
        start_params,
        mount_ns: mount_namespace(),
    };
    let answer = control::call(&process.control, &request, MOUNT_MAX)?;
    Ok(answer["mounted"].as_bool().unwrap_or(false))
}

/// Stops a running process and waits for its exit. A process that does not answer gets SIGTERM.
/// SIGTERM detaches mounts that are in use, so if the process has mounts, this needs `lazy`.
fn stop(process: &ProcessRecord, lazy: bool) -> Result<()> {
    if let Err(e) = control::call(&process.control, &Request::Status, ANSWER_MAX) {
        if !lazy && !process.mounts.is_empty() {
            let remedy = format!(
                "process {} does not answer; stop it by a signal with --lazy",
                process.pid
            );
            return Err(e).context(remedy);
        }
        process.terminate()?;
        return wait_for_exit(process);
    }
    let answer = control::call(&process.control, &Request::Stop { lazy }, STOP_MAX);
    if let Err(e) = answer {
        if e.is::<control::Refused>() {
            return Err(e);
        }
        // The process may have exited before its answer left.
        if process.is_alive() {
            return Err(e).with_context(|| format!("nacre (process {}) did not stop", process.pid));
        }
    }
    wait_for_exit(process)
}

fn wait_for_exit(process: &ProcessRecord) -> Result<()> {
    if !process.wait_for_exit(EXIT_MAX) {
        let log = process.log.display();
        bail!(
            "nacre (process {}) has stopped serving but does not exit; its log is {log}",
            process.pid
        );
    }
    Ok(())
}

/// Cleans up after a dead process: detaches its mounts and removes its records and sockets. Returns
/// a line for each detached mount.
fn clean_up_after(process: &ProcessRecord) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for mount in &process.mounts {
        if crate::mounts::force_detach(&mount.mountpoint)? {
            lines.push(format!("unmounted {}", mount.mountpoint.display()));
        }
    }
    process.clear();
    Ok(lines)
}
