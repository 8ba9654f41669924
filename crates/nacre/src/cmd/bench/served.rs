//! A file system of its own for a measurement.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::library::Library;
use crate::cli::Net;
use crate::cmd::served::Served;
use crate::control::{self, Request};
use crate::running;

/// How long an answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// In a process of its own, as a user has it; gone when this is dropped.
pub(super) struct Instance {
    _served: Served,
    /// Where it is mounted.
    pub(super) mount: PathBuf,
    /// The process that it is.
    pub(super) pid: u32,
    /// How long it took until it was mounted.
    pub(super) took: Duration,
    record: running::Running,
}

impl Instance {
    /// Brings it up in a new directory.
    pub(super) fn up(dir: &Path, osts: u32) -> Result<Instance> {
        let mut served = Served::new(dir.to_owned());
        let took = served.up(osts)?;
        let record = running::in_dir(dir)?.context("the file system is not up")?;
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

    /// A client of it in this process.
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
            .context("there is no MDT")?;
        let net = Net {
            listen: None,
            port: Some(self.record.port),
        };
        Library::mount(&mgs, fsname, &net, 1)
    }

    /// Sets parameters of it.
    pub(super) fn set_param(&self, pattern: &str, value: &str) -> Result<()> {
        let request = Request::SetParam {
            pattern: pattern.to_owned(),
            value: value.to_owned(),
        };
        control::ask(&self.record.control, &request, ANSWER_MAX).map(drop)
    }

    /// The value of the one parameter that matches.
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
