//! The record of a running process: what it runs, where, and how to talk to it.
//!
//! A process writes its record where commands look for it: `run.json` in each directory that it works for, and a file
//! named for its process id in the run directory of its user, beside its control socket. A record is believed only
//! while the process of that id has the start time that the record says: ids come round again.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::control::{self, Request};

/// How long a process may take to say how it is.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long a process that was killed may take to end.
const DYING_MAX: Duration = Duration::from_secs(10);
/// Name of the record in a directory that is being worked for.
const IN_DIR: &str = "run.json";

/// A mount that a process has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    /// Where it is.
    pub(crate) mountpoint: PathBuf,
    /// `MGSNID:/FSNAME`.
    pub(crate) source: String,
}

/// What a running process says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// `up`, `serve`, `mount`, `lst node` or `lst console`.
    pub(crate) role: String,
    /// Its process id.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since boot: tells it from a later process of the same id.
    pub(crate) start_ticks: u64,
    /// Directories that it works for.
    pub(crate) dirs: Vec<PathBuf>,
    /// Its control socket.
    pub(crate) control: PathBuf,
    /// Its NIDs, the first its main one.
    pub(crate) nids: Vec<String>,
    /// TCP port of its site.
    pub(crate) port: u16,
    /// File systems and targets, such as `nacre-OST0000`; `MGS` for the management server.
    pub(crate) targets: Vec<String>,
    /// What it has mounted.
    pub(crate) mounts: Vec<MountRecord>,
    /// The key of the LNet selftest session whose console it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<u32>,
    /// Where it writes its log.
    pub(crate) log: PathBuf,
}

impl Running {
    /// Whether the process is alive and is the one that wrote this.
    pub(crate) fn alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Whether the process is alive and stays so. One that was killed is still seen for a moment, in which its sockets and
    /// its mounts go: its end is waited for, unless it waits in the kernel for its own mount, and so cannot end.
    pub(crate) fn up(&self) -> bool {
        self.alive()
            && (control::ask(&self.control, &Request::Status, ANSWER_MAX).is_ok()
                || !(self.gone_within(DYING_MAX) || stat(self.pid).is_some_and(|s| s.is_dead())))
    }

    /// Waits until the process is gone, but not longer than this; says whether it is.
    pub(crate) fn gone_within(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        while self.alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Writes the record everywhere it is looked for.
    pub(crate) fn publish(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self).context("the record of this process")?;
        for path in self.files() {
            write_atomically(&path, &text)?;
        }
        Ok(())
    }

    /// Removes the record and the control socket.
    pub(crate) fn withdraw(&self) {
        for path in self.files() {
            // A directory may belong to somebody else by now: only our own record goes.
            if read(&path).is_ok_and(|r| r.is_some_and(|r| r.pid == self.pid)) {
                let _ = fs::remove_file(&path);
            }
        }
        let _ = fs::remove_file(&self.control);
    }

    fn files(&self) -> Vec<PathBuf> {
        let in_run_dir = self.control.with_extension("json");
        self.dirs
            .iter()
            .map(|d| d.join(IN_DIR))
            .chain([in_run_dir])
            .collect()
    }
}

/// The run directory of this user, made if it is not there.
pub(crate) fn run_dir() -> Result<PathBuf> {
    let dir = own_run_dir();
    match fs::DirBuilder::new().mode(0o755).create(&dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e).with_context(|| format!("cannot make the run directory {}", dir.display())),
    }
    let meta = fs::symlink_metadata(&dir).with_context(|| format!("run directory {}", dir.display()))?;
    if !meta.is_dir() || meta.uid() != uid() {
        bail!(
            "the run directory {} belongs to somebody else: remove it, or set XDG_RUNTIME_DIR",
            dir.display()
        );
    }
    Ok(dir)
}

fn own_run_dir() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|d| d.is_dir())
    {
        _ if uid() == 0 => "/run/nacre".into(),
        Some(dir) => dir.join("nacre"),
        None => std::env::temp_dir().join(format!("nacre-{}", uid())),
    }
}

/// The effective user.
pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The record in a directory, if one is there.
pub(crate) fn in_dir(dir: &Path) -> Result<Option<Running>> {
    read(&dir.join(IN_DIR))
}

/// Everything that runs and that this user can see: their own and root's. Leftovers of the dead are removed.
pub(crate) fn all() -> Vec<Running> {
    let mut found: Vec<Running> = Vec::new();
    let mut places = vec![own_run_dir(), PathBuf::from("/run/nacre")];
    places.dedup();
    for entry in places
        .iter()
        .filter_map(|d| fs::read_dir(d).ok())
        .flatten()
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_none_or(|e| e != "json") {
            continue;
        }
        match read(&path) {
            Ok(Some(r)) if r.alive() => found.push(r),
            Ok(Some(r)) => {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(&r.control);
            }
            _ => {}
        }
    }
    found.sort_by_key(|r| r.start_ticks);
    found
}

/// The process that has a mount at this path, or at a directory above it.
pub(crate) fn by_path(path: &Path) -> Result<(Running, MountRecord)> {
    let whole = std::path::absolute(path).with_context(|| format!("path {}", path.display()))?;
    // Links may lead into the mount; a path that cannot be resolved (a stale mount) is taken as it is.
    let whole = fs::canonicalize(&whole).unwrap_or(whole);
    let mut best: Option<(Running, MountRecord)> = None;
    for running in all() {
        for mount in &running.mounts {
            let longer = best.as_ref().is_none_or(|(_, m)| m.mountpoint < mount.mountpoint);
            if whole.starts_with(&mount.mountpoint) && longer {
                best = Some((running.clone(), mount.clone()));
            }
        }
    }
    best.with_context(|| {
        format!(
            "{} is not in a mount of a running nacre (see `nacre status`)",
            path.display()
        )
    })
}

/// Reads a record; nothing if there is none.
fn read(path: &Path) -> Result<Option<Running>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    let record = serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is not the record of a running nacre: remove it",
            path.display()
        )
    })?;
    Ok(Some(record))
}

/// A file that is there whole or not at all.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What the kernel says of a process (`/proc/PID/stat`).
struct Stat {
    state: char,
    threads: u32,
    start_ticks: u64,
}

impl Stat {
    /// Whether its first thread has ended, as it does only when all are to end.
    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the command in parentheses and may hold anything: count from its end.
    let mut after = stat.rsplit_once(')')?.1.split_whitespace();
    Some(Stat {
        state: after.next()?.chars().next()?,
        threads: after.nth(16)?.parse().ok()?,
        start_ticks: after.nth(1)?.parse().ok()?,
    })
}

/// When a process started, in clock ticks since boot.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    // A process that is dead but not yet waited for runs nothing any more; but while it has more threads than its first,
    // what it had open is not all closed.
    let stat = stat(pid).filter(|s| !s.is_dead() || s.threads > 1)?;
    Some(stat.start_ticks)
}

/// The most memory that a process has had.
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(kib.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record(dir: &Path, pid: u32, start_ticks: u64) -> Running {
        Running {
            role: "up".to_owned(),
            pid,
            start_ticks,
            dirs: vec![dir.to_owned()],
            control: dir.join(format!("{pid}.sock")),
            nids: vec!["127.0.0.1@tcp".to_owned()],
            port: 988,
            targets: vec!["MGS".to_owned()],
            mounts: Vec::new(),
            session: None,
            log: dir.join("log"),
        }
    }

    #[test]
    fn a_record_is_believed_only_for_the_process_that_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let ours = record(dir.path(), pid, start_ticks(pid).unwrap());
        assert!(ours.alive());
        assert!(!record(dir.path(), pid, 1).alive());
    }

    #[test]
    fn a_record_is_found_in_its_directory_until_withdrawn() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(in_dir(dir.path()).unwrap(), None);
        let ours = record(dir.path(), 1, 1);
        ours.publish().unwrap();
        assert_eq!(in_dir(dir.path()).unwrap(), Some(ours.clone()));
        ours.withdraw();
        assert_eq!(in_dir(dir.path()).unwrap(), None);
    }

    #[test]
    fn what_is_not_a_record_is_an_error_that_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(IN_DIR), "{").unwrap();
        let error = in_dir(dir.path()).unwrap_err().to_string();
        assert!(error.contains("run.json"), "{error}");
    }
}
