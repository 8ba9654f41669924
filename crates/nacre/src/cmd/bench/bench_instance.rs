//! A temporary file system for a benchmark, mounted by a process of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::library::Library;
use crate::cli::Net;
use crate::cmd::temp_instance::TempInstance;
use crate::control::{self, Request};
use crate::process;

/// Time limit for answers of the process.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A mounted file system in another process, as a user runs it; stopped on drop.
pub(super) struct BenchInstance {
    /// Stops the process on drop.
    _instance: TempInstance,
    /// The mount point.
    pub(super) mount: PathBuf,
    /// Id of the process that runs the servers and the mount.
    pub(super) pid: u32,
    /// Duration of `nacre up`, which ends when the file system is mounted.
    pub(super) up_duration: Duration,
    /// The record of that process after its start.
    record: process::ProcessRecord,
}

impl BenchInstance {
    /// Starts a file system in a new directory.
    pub(super) fn up(dir: &Path, osts: u32) -> Result<BenchInstance> {
        let mut instance = TempInstance::new(dir.to_owned());
        let up_duration = instance.up(osts)?;
        let record = process::in_dir(dir)?.context("the file system is not running")?;
        let mount = record
            .mounts
            .first()
            .context("the file system is not mounted")?
            .mountpoint
            .clone();
        Ok(BenchInstance {
            _instance: instance,
            mount,
            pid: record.pid,
            up_duration,
            record,
        })
    }

    /// Mounts the file system with a client in this process.
    pub(super) fn library(&self) -> Result<Library> {
        let mgs: Vec<wire::Nid> = self
            .record
            .nids
            .iter()
            .map(|n| n.parse().context("cannot parse the NID of the file system"))
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

    /// The parameters of the process.
    pub(super) fn params(&self) -> InstanceParams {
        InstanceParams {
            control: self.record.control.clone(),
        }
    }
}

/// The parameters of a process.
pub(super) struct InstanceParams {
    control: PathBuf,
}

impl InstanceParams {
    /// Sets all parameters that match the pattern.
    pub(super) fn set(&self, pattern: &str, value: &str) -> Result<()> {
        let request = Request::SetParam {
            pattern: pattern.to_owned(),
            value: value.to_owned(),
        };
        control::call(&self.control, &request, ANSWER_MAX).map(drop)
    }

    /// The values of all parameters that match the pattern; an error if none does.
    pub(super) fn values(&self, pattern: &str) -> Result<Vec<String>> {
        let request = Request::GetParam {
            pattern: pattern.to_owned(),
        };
        let answer = control::call(&self.control, &request, ANSWER_MAX)?;
        let found: Vec<(String, String)> = control::decode(answer)?;
        if found.is_empty() {
            bail!("no parameter matches '{pattern}'");
        }
        Ok(found.into_iter().map(|(_, value)| value).collect())
    }
}
