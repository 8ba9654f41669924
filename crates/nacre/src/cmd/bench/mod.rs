//! `nacre bench`: a module for each benchmark and correctness test, and their common parts.

mod bench_instance;
mod caches;
mod compare;
mod demo;
mod fsx;
mod inodes;
mod ior;
mod library;
mod lnet;
mod load;
mod mdsrate;
mod mdtest;
mod survey;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};

use anyhow::{Context, Result, bail};

use super::{clean_up_after, stop};
use crate::cli::{Bench, BenchCommand};
use crate::instance::{self, Lock};
use crate::interrupt::stop_flag;
use crate::output::{describe, errln};
use crate::process;

/// Runs the command.
pub(crate) fn run(args: Bench) -> Result<ExitCode> {
    match &args.command {
        None => compare::run(&args),
        Some(BenchCommand::Demo(demo)) => demo::run(demo),
        Some(BenchCommand::Fsx(fsx)) => fsx::run(fsx),
        Some(BenchCommand::Inodes(args)) => inodes::run(args),
        Some(BenchCommand::Lnet(args)) => lnet::run(args),
        Some(BenchCommand::Ior(ior)) => ior::run(ior),
        Some(BenchCommand::Mdtest(mdtest)) => mdtest::run(mdtest),
        Some(BenchCommand::Mdsrate(mdsrate)) => mdsrate::run(mdsrate),
        Some(BenchCommand::MdsSurvey(survey)) => survey::run(survey),
    }
}

/// Sends SIGTERM to a child process and waits for its exit.
fn stop_child(child: &mut Child) {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid
        && let Err(e) = rustix::process::kill_process(pid, rustix::process::Signal::TERM)
    {
        errln!("cannot stop process {}: {e}", child.id());
    }
    // The process exits on SIGTERM.
    let _ = child.wait();
}

/// Prefix of the names of temporary directories.
const SCRATCH_PREFIX: &str = "nacre-bench-";

/// A temporary directory, removed on drop. The next benchmark with the same base directory removes
/// the temporary directories of killed benchmarks.
struct ScratchDir {
    /// Path of the directory.
    dir: PathBuf,
    /// The lock marks the directory as in use.
    _lock: Lock,
}

impl ScratchDir {
    /// Creates a temporary directory in an existing one.
    fn new(base: impl AsRef<Path>) -> Result<ScratchDir> {
        let base = crate::daemon::make_absolute(base.as_ref())?;
        if !base.is_dir() {
            bail!(
                "{} is not a directory: set an existing one with --dir",
                base.display()
            );
        }
        remove_abandoned_dirs(&base);
        let name = format!("{SCRATCH_PREFIX}{}", std::process::id());
        let (hidden_dir, dir) = (base.join(format!(".{name}")), base.join(name));
        fs::create_dir_all(&hidden_dir).with_context(|| format!("cannot create {}", hidden_dir.display()))?;
        // The directory gets its final name once it is locked, so that no other process removes it
        // as abandoned.
        let lock = instance::lock(&hidden_dir)?;
        fs::rename(&hidden_dir, &dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(ScratchDir { dir, _lock: lock })
    }
}

/// Removes the temporary directories of killed benchmarks, and stops the processes that serve
/// directories in them.
fn remove_abandoned_dirs(base: &Path) {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    let scratch_dirs = entries.filter(|e| e.file_name().to_string_lossy().starts_with(SCRATCH_PREFIX));
    for dir in scratch_dirs.map(|e| e.path()) {
        // If another process has the lock, the directory's benchmark is running. If the lock cannot
        // be created, another user probably owns the directory.
        let Ok(_lock) = instance::lock(&dir) else { continue };
        match stop_processes_in(&dir).and_then(|()| Ok(fs::remove_dir_all(&dir)?)) {
            Ok(()) => errln!("removed {}, left by a benchmark that was killed", dir.display()),
            Err(e) => errln!("cannot remove {}: {}", dir.display(), describe(&e)),
        }
    }
}

/// Stops the processes that serve subdirectories of `dir`, and cleans up after dead processes.
fn stop_processes_in(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        match process::in_dir(&entry?.path())? {
            Some(record) if record.is_alive() => stop(&record, true)?,
            Some(record) => drop(clean_up_after(&record)?),
            None => {}
        }
    }
    Ok(())
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            errln!("cannot remove {}: {e}", self.dir.display());
        }
    }
}
