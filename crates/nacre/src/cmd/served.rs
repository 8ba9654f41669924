//! A file system that a command brings up for itself, by the very commands that a user would use, and that goes with it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::running;

/// In a directory, served by a process of its own; gone when this is dropped.
pub(super) struct Served {
    dir: PathBuf,
    /// It may be up, and is to be cleared away whatever happens.
    begun: bool,
}

impl Served {
    /// Not up yet.
    pub(super) fn new(dir: PathBuf) -> Served {
        Served { dir, begun: false }
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Brings it up; how long that took.
    pub(super) fn up(&mut self, osts: u32) -> Result<Duration> {
        let begun = Instant::now();
        self.begun = true;
        self.nacre(&["up", "--osts", &osts.to_string()])?;
        Ok(begun.elapsed())
    }

    /// Stops it; the data stays.
    pub(super) fn down(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.nacre(&["down"])?;
        self.begun = false;
        Ok(begun.elapsed())
    }

    /// Stops it if it is up, also if its mount is in use.
    pub(super) fn clear(&mut self) -> Result<()> {
        if std::mem::take(&mut self.begun) && running::in_dir(&self.dir)?.is_some() {
            self.nacre(&["down", "--lazy"])?;
        }
        Ok(())
    }

    /// It stays as it is.
    pub(super) fn leave(&mut self) {
        self.begun = false;
    }

    /// Runs a command of this same binary. A Ctrl-C is not for it: what it begins it ends.
    fn nacre(&self, args: &[&str]) -> Result<()> {
        let own = std::env::current_exe().context("cannot find the nacre binary")?;
        let out = Command::new(own)
            .args(args)
            .arg("--dir")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .process_group(0)
            .output()
            .context("cannot run nacre")?;
        if !out.status.success() {
            bail!(
                "nacre {} failed: {}",
                args.join(" "),
                String::from_utf8_lossy(&out.stderr).trim()
            );
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            eprintln!("{e}");
        }
    }
}
