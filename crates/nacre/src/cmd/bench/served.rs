//! A temporary file system for a benchmark.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::library::Library;
use crate::cli::Net;
use crate::cmd::served::Served;
use crate::control::{self, Request};
use crate::running;

/// Time limit for answers of the process.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A mounted file system in another process, as a user runs it; stopped on drop.
pub(super) struct Instance {
    _served: Served,
    /// The mount point.
    pub(super) mount: PathBuf,
    /// The process id.
    pub(super) pid: u32,
    /// Time from the start until it was mounted.
    pub(super) took: Duration,
    record: running::Running,
}

impl Instance {
    /// Starts a file system in a new directory.
    pub(super) fn up(dir: &Path, osts: u32) -> Result<Instance> {
        let mut served = Served::new(dir.to_owned());
        let took = served.up(osts)?;
        let record = running::in_dir(dir)?.context("the file system is not running")?;
        let mount = record
            .mounts
            .first()
            .context("the file system is not mounted")?
            .mountpoint
            .clone();
        Ok(Instance {
            _served: served,
            mount,
            pid: record.pid,
            took,
            record,
        })
    }

    /// Mounts the file system with a client in this process.
    pub(super) fn library(&self) -> Result<Library> {
        let mgs: Vec<wire::Nid> = self
            .record
            .nids
            .iter()
            .map(|n| n.parse().context("the NID of the file system"))
            .collect::<Result<_>>()?;
        let (fsname, _) = self
            .record
            .targets
            .iter()
            .find_map(|t| t.split_once("-MDT"))
            .context("the file system has no MDT")?;
        let net = Net {
            listen: None,
            port: Some(self.record.port),
        };
        Library::mount(&mgs, fsname, &net, 1)
    }

    /// Sets all parameters that match the pattern.
    pub(super) fn set_param(&self, pattern: &str, value: &str) -> Result<()> {
        let request = Request::SetParam {
            pattern: pattern.to_owned(),
            value: value.to_owned(),
        };
        control::ask(&self.record.control, &request, ANSWER_MAX).map(drop)
    }

    /// The value of the first parameter that matches the pattern.
    pub(super) fn param(&self, pattern: &str) -> Result<String> {
        let request = Request::GetParam {
            pattern: pattern.to_owned(),
        };
        let answer = control::ask(&self.record.control, &request, ANSWER_MAX)?;
        let found: Vec<(String, String)> = serde_json::from_value(answer)?;
        let one = found.into_iter().next();
        Ok(one
            .with_context(|| format!("no parameter matches '{pattern}'"))?
            .1)
    }
}
