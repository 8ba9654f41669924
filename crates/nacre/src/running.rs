//! The record of a running process: what it runs, where, and how to find and ask it.
//!
//! A process publishes its record ([`crate::publish`]) in each directory that it works for, and in the run directory of its
//! user, beside a control socket each time. The run directory is an index that may be lost: it depends on nothing in the
//! environment, so that `su -`, cron and a new login find the same one, and a process publishes again what disappears.
//! A record is believed only while the process of that id has the start time that the record says: ids come round again.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fuse::{MountEntry, MountState};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::control::{self, Request};

/// How long a process may take to say how it is.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long a process that was killed may take to end.
const DYING_MAX: Duration = Duration::from_secs(10);
/// A process that lives publishes a record that was lost again within this time.
const PUBLISHED_AGAIN: Duration = Duration::from_millis(2500);
/// The record, and the socket beside it, in a directory that is being worked for.
pub(crate) const RECORD_IN_DIR: &str = "run.json";
pub(crate) const SOCKET_IN_DIR: &str = "run.sock";
/// A longer file is not a record.
const RECORD_MAX: u64 = 1 << 20;

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
    /// The boot that these ticks count from.
    #[serde(default)]
    pub(crate) boot_id: String,
    /// Directories that it works for.
    pub(crate) dirs: Vec<PathBuf>,
    /// The control socket beside the place where the record was read.
    #[serde(skip)]
    pub(crate) control: PathBuf,
    /// The owner of the file that the record was read from.
    #[serde(skip)]
    pub(crate) owner: u32,
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
        (self.boot_id.is_empty() || self.boot_id == boot_id())
            && start_ticks(self.pid) == Some(self.start_ticks)
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

    /// Asks the process by a signal to end, when it cannot be asked otherwise. The user of the process must be this one, or the
    /// owner of its record: a record that somebody else wrote does not choose which process is stopped.
    pub(crate) fn terminate(&self) -> Result<()> {
        let what = || format!("cannot signal process {}", self.pid);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let fd = pidfd_open(pid.with_context(what)?, PidfdFlags::empty()).with_context(what)?;
        // Checked after it is held: from here on the number cannot come to belong to another process.
        let user = user_of(self.pid);
        if !self.alive() || (user != Some(uid()) && user != Some(self.owner)) {
            bail!("process {} is not the one that wrote the record", self.pid);
        }
        pidfd_send_signal(fd, Signal::TERM).with_context(what)
    }

    /// Whether it works for this directory.
    fn works_for(&self, dir: &Path) -> bool {
        self.dirs.iter().any(|d| d == dir)
    }

    fn has_mount(&self, path: &Path) -> bool {
        self.mounts.iter().any(|m| m.mountpoint == path)
    }

    /// Removes what a process that died left behind. Files of another process, or of another user, stay.
    pub(crate) fn clear(&self) {
        let in_dirs = self
            .dirs
            .iter()
            .map(|d| (d.join(RECORD_IN_DIR), d.join(SOCKET_IN_DIR)));
        let in_run_dirs = run_dirs_of(uid()).into_iter().map(|d| in_run_dir(&d, self.pid));
        for (record, socket) in in_dirs.chain(in_run_dirs) {
            if read(&record, &socket).is_ok_and(|r| r.is_some_and(|r| r.pid == self.pid)) {
                let _ = fs::remove_file(&record);
                let _ = fs::remove_file(&socket);
            }
        }
    }
}

/// The record and the socket of a process in a run directory.
pub(crate) fn in_run_dir(dir: &Path, pid: u32) -> (PathBuf, PathBuf) {
    (dir.join(format!("{pid}.json")), dir.join(format!("{pid}.sock")))
}

/// The run directories of a user, the preferred one first. The second is for a user whose first one somebody else took.
fn run_dirs_of(uid: u32) -> Vec<PathBuf> {
    match uid {
        0 => vec!["/run/nacre".into()],
        _ => vec![
            format!("/tmp/nacre-{uid}").into(),
            format!("/run/user/{uid}/nacre").into(),
        ],
    }
}

/// The run directory of this user, made if it is not there.
pub(crate) fn run_dir() -> Result<PathBuf> {
    let mut why = None;
    for dir in run_dirs_of(uid()) {
        match make_run_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) => why = why.or(Some(e)),
        }
    }
    Err(why.unwrap_or_else(|| anyhow::anyhow!("there is no run directory")))
}

fn make_run_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        // Other users' commands ask through the sockets in it, whatever this process's umask is.
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("run directory {}", dir.display()))?,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e).with_context(|| format!("cannot make the run directory {}", dir.display())),
    }
    if !is_dir_of(dir, uid()) {
        bail!(
            "the run directory {} belongs to somebody else: have it removed",
            dir.display()
        );
    }
    Ok(())
}

/// Whether this is a directory, not a link to one, of that user.
fn is_dir_of(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// The effective user.
pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The record of the process that works for a directory. Where the directory has none, because it was removed, the run
/// directory is asked.
pub(crate) fn in_dir(dir: &Path) -> Result<Option<Running>> {
    let found = read(&dir.join(RECORD_IN_DIR), &dir.join(SOCKET_IN_DIR))?;
    if found.is_none() && dir.join(RECORD_IN_DIR).exists() {
        eprintln!(
            "nacre: warning: {} is empty or damaged, as a power cut can leave it: ignored",
            dir.join(RECORD_IN_DIR).display()
        );
    }
    let indexed = || everyone_now().into_iter().find(|r| r.works_for(dir));
    Ok(match found {
        None => indexed(),
        // A file system may not have sockets.
        Some(r) if !r.control.exists() && r.alive() => indexed().filter(|i| i.pid == r.pid).or(Some(r)),
        found => found,
    })
}

/// Everything that runs and that this user may use: their own and root's. Leftovers of the dead are removed.
pub(crate) fn all() -> Vec<Running> {
    settled(|| records_of(&[uid(), 0]))
}

/// The same, and for root what runs for every other user.
pub(crate) fn everyone() -> Vec<Running> {
    settled(everyone_now)
}

fn everyone_now() -> Vec<Running> {
    let mut users = vec![uid(), 0];
    if uid() == 0 {
        let named = |dir: &str, prefix: &str| -> Vec<u32> {
            let names = fs::read_dir(dir).into_iter().flatten().flatten();
            names
                .filter_map(|e| e.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
                .collect()
        };
        users.extend(named("/tmp", "nacre-"));
        users.extend(named("/run/user", ""));
    }
    records_of(&users)
}

/// Waits a while for the records of processes whose mounts are there and alive, but whose records were lost.
fn settled(records: impl Fn() -> Vec<Running>) -> Vec<Running> {
    let deadline = Instant::now() + PUBLISHED_AGAIN;
    loop {
        let found = records();
        let unknown = |m: &MountEntry| {
            m.is_ours() && m.user == Some(uid()) && !found.iter().any(|r| r.has_mount(&m.path))
        };
        let mounts = fuse::mounts().unwrap_or_default();
        let mut lost = mounts.iter().filter(|m| unknown(m));
        let lost = lost.any(|m| fuse::mount_state(&m.path).is_ok_and(|s| s == MountState::Answers));
        if !lost || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What the run directories of these users say, the oldest first.
fn records_of(users: &[u32]) -> Vec<Running> {
    let mut found: Vec<Running> = Vec::new();
    let mut users = users.to_vec();
    users.sort_unstable();
    users.dedup();
    for user in users {
        let dirs = run_dirs_of(user).into_iter().filter(|d| is_dir_of(d, user));
        for entry in dirs.filter_map(|d| fs::read_dir(d).ok()).flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            let socket = path.with_extension("sock");
            match read(&path, &socket) {
                Ok(Some(r)) if r.alive() && user_of(r.pid) == Some(user) => found.push(of_user(r, user)),
                Ok(Some(r)) if user == uid() && !r.alive() => {
                    let _ = fs::remove_file(&path);
                    let _ = fs::remove_file(&socket);
                }
                _ => {}
            }
        }
    }
    found.sort_by_key(|r| (r.start_ticks, r.pid));
    found.dedup_by_key(|r| r.pid);
    found
}

/// A record as far as its user can be believed: a mount that another user made is not this one's.
fn of_user(record: Running, user: u32) -> Running {
    if user == uid() || user == 0 {
        return record;
    }
    let table = fuse::mounts().unwrap_or_default();
    let made = |m: &MountRecord| {
        table
            .iter()
            .any(|e| e.path == m.mountpoint && e.user == Some(user))
    };
    let mounts = record.mounts.iter().filter(|m| made(m)).cloned().collect();
    Running { mounts, ..record }
}

/// The process that has the mount at this very path.
pub(crate) fn with_mount(path: &Path) -> Option<Running> {
    everyone().into_iter().rfind(|r| r.has_mount(path))
}

/// The process that has a mount at this path, or at a directory above it.
pub(crate) fn by_path(path: &Path) -> Result<(Running, MountRecord)> {
    let whole = std::path::absolute(path).with_context(|| format!("path {}", path.display()))?;
    // Links may lead into the mount; a path that cannot be resolved (a stale mount) is taken as it is.
    let whole = fs::canonicalize(&whole).unwrap_or(whole);
    let mut best: Option<(Running, MountRecord)> = None;
    for running in everyone() {
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

/// Reads a record and says by which socket its process is asked; nothing if there is none. A file that is empty or
/// damaged, as a power cut can leave it, is the record of no process.
fn read(path: &Path, socket: &Path) -> Result<Option<Running>> {
    let cannot = || format!("cannot read {}", path.display());
    // Other users' records are read, too: no link is followed, and nothing that is not a file is waited for.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match fs::File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(e).with_context(cannot),
    };
    let meta = file.metadata().with_context(cannot)?;
    let mut text = Vec::new();
    if meta.is_file() {
        file.take(RECORD_MAX)
            .read_to_end(&mut text)
            .with_context(cannot)?;
    }
    let Ok(record) = serde_json::from_slice::<Running>(&text) else {
        return Ok(None);
    };
    Ok(Some(Running {
        control: socket.to_owned(),
        owner: meta.uid(),
        ..record
    }))
}

/// A file that is there whole or not at all.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<()> {
    osd::files::replace(path, text.as_bytes(), osd::files::FILE_MODE)
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

/// The machine's present boot.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// The effective user of a process.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uids = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    uids.split_whitespace().nth(1)?.parse().ok()
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
            boot_id: boot_id(),
            dirs: vec![dir.to_owned()],
            control: PathBuf::new(),
            owner: uid(),
            nids: vec!["127.0.0.1@tcp".to_owned()],
            port: 988,
            targets: vec!["MGS".to_owned()],
            mounts: Vec::new(),
            session: None,
            log: dir.join("log"),
        }
    }

    fn write(dir: &Path, record: &Running) {
        let text = serde_json::to_string(record).unwrap();
        fs::write(dir.join(RECORD_IN_DIR), text).unwrap();
    }

    #[test]
    fn a_record_is_believed_only_for_the_process_that_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let ours = record(dir.path(), pid, start_ticks(pid).unwrap());
        assert!(ours.alive());
        assert!(!record(dir.path(), pid, 1).alive());
        let of_another_boot = Running {
            boot_id: "another".to_owned(),
            ..ours
        };
        assert!(!of_another_boot.alive());
    }

    #[test]
    fn a_record_is_found_in_its_directory_until_it_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(in_dir(dir.path()).unwrap(), None);
        let dead = record(dir.path(), 1, 1);
        write(dir.path(), &dead);
        let found = in_dir(dir.path()).unwrap().unwrap();
        assert_eq!(
            (found.pid, found.control),
            (1, dir.path().join(SOCKET_IN_DIR)),
            "the socket is beside the record"
        );
        record(dir.path(), 2, 1).clear();
        assert!(in_dir(dir.path()).unwrap().is_some(), "it is of another process");
        dead.clear();
        assert_eq!(in_dir(dir.path()).unwrap(), None);
    }

    #[test]
    fn an_empty_or_damaged_record_is_that_of_no_process_and_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(RECORD_IN_DIR);
        for left in [&b""[..], b"{", b"\0\0\0\0", b"\xff\xfe"] {
            fs::write(&path, left).unwrap();
            assert_eq!(in_dir(dir.path()).unwrap(), None);
            write_atomically(&path, &serde_json::to_string(&record(dir.path(), 1, 1)).unwrap()).unwrap();
            assert_eq!(in_dir(dir.path()).unwrap().map(|r| r.pid), Some(1));
        }
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_record_does_not_choose_which_process_is_signalled() {
        let dir = tempfile::tempdir().unwrap();
        // The record of this test's own process with another start time, as of a process whose id came round again.
        let pid = std::process::id();
        let error = record(dir.path(), pid, 1).terminate().unwrap_err();
        assert!(error.to_string().contains("not the one"), "{error}");
    }
}
