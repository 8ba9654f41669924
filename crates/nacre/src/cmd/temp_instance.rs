//! A temporary file system of a command, which runs `nacre up` and `nacre down` as a user does.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::output::errln;
use crate::process;

/// A file system in a directory, served by another process; stopped on drop.
pub(super) struct TempInstance {
    dir: PathBuf,
    /// Whether to stop the file system on drop, because it may be running.
    must_stop: bool,
}

impl TempInstance {
    /// Describes a file system that is not running yet.
    pub(super) fn new(dir: PathBuf) -> TempInstance {
        TempInstance {
            dir,
            must_stop: false,
        }
    }

    /// The directory of the file system.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts and mounts the file system. Returns the duration.
    pub(super) fn up(&mut self, osts: u32) -> Result<Duration> {
        let start_time = Instant::now();
        self.must_stop = true;
        self.run_nacre(&["up", "--osts", &osts.to_string()])?;
        Ok(start_time.elapsed())
    }

    /// Stops the file system and keeps the data. Returns the duration.
    pub(super) fn down(&mut self) -> Result<Duration> {
        let start_time = Instant::now();
        self.run_nacre(&["down"])?;
        self.must_stop = false;
        Ok(start_time.elapsed())
    }

    /// Stops the file system if it is running, even if its mount is in use.
    pub(super) fn stop_if_running(&mut self) -> Result<()> {
        if std::mem::take(&mut self.must_stop) && process::in_dir(&self.dir)?.is_some() {
            self.run_nacre(&["down", "--lazy"])?;
        }
        Ok(())
    }

    /// Keeps the file system running on drop.
    pub(super) fn keep_running(&mut self) {
        self.must_stop = false;
    }

    /// Runs a command of this binary on the directory, in its own process group so that Ctrl-C does
    /// not interrupt the command.
    fn run_nacre(&self, args: &[&str]) -> Result<()> {
        let binary = std::env::current_exe().context("cannot find the nacre binary")?;
        let output = Command::new(binary)
            .args(args)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .process_group(0)
            .output()
            .context("cannot run nacre")?;
        if !output.status.success() {
            bail!(
                "nacre {} failed: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }
}

impl Drop for TempInstance {
    fn drop(&mut self) {
        if let Err(e) = self.stop_if_running() {
            errln!("{e}");
        }
    }
}
