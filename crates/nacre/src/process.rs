//! The record of a running process: its role, directories, NIDs, targets, mounts and control
//! socket.
//!
//! A process publishes its record ([`crate::publish`]) in each directory that it serves and in the
//! run directory of its user, each time beside a control socket. The path of the run directory does
//! not depend on the environment, so `su -`, cron and a new login find the same one. Its files may
//! be lost: a process publishes removed files again.
//!
//! Process ids are reused, so a record counts only while the process with its id has the recorded
//! start time.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use fuse::{MountEntry, MountState};
use lnet::{SERVERS_RUN_DIR, servers_user};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::control::{self, Request};
use crate::daemon;
use crate::output::{errln, shell_word};

/// Time limit for the answer to a status request.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Time limit for the exit of a killed process.
const EXIT_MAX: Duration = Duration::from_secs(10);
/// A live process publishes a removed record again within this time.
const REPUBLISH_MAX: Duration = Duration::from_millis(2500);
/// Interval of the checks whether a process has exited.
const EXIT_POLL: Duration = Duration::from_millis(5);
/// Interval of the checks whether lost records are published again.
const RECORD_POLL: Duration = Duration::from_millis(50);
/// Name of the record in a directory that the process serves.
pub(crate) const RECORD_IN_DIR: &str = "run.json";
/// Name of the control socket in a directory that the process serves.
pub(crate) const SOCKET_IN_DIR: &str = "run.sock";
/// A record is read up to this number of bytes; a longer file counts as damaged.
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// A mount of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    /// Absolute path of the mount point.
    pub(crate) mountpoint: PathBuf,
    /// `MGSNID[,MGSNID...]:/FSNAME[/SUBDIR]`.
    pub(crate) source: String,
}

/// The record that a running process publishes about itself, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    /// `up`, `serve`, `mount`, `lnet`, `lst node` or `lst console`.
    pub(crate) role: String,
    /// The process id.
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot; distinguishes this process from a later one with the
    /// same id.
    pub(crate) start_ticks: u64,
    /// The boot from which `start_ticks` counts.
    #[serde(default)]
    pub(crate) boot_id: String,
    /// Directories that the process serves.
    pub(crate) dirs: Vec<PathBuf>,
    /// The control socket next to this copy of the record.
    #[serde(skip)]
    pub(crate) control: PathBuf,
    /// Owner of the file that held this copy of the record.
    #[serde(skip)]
    pub(crate) owner: u32,
    /// NIDs of the process, the primary one first.
    pub(crate) nids: Vec<String>,
    /// TCP port of the LNet acceptor, the same on all nodes of a site.
    pub(crate) port: u16,
    /// Names of targets, such as `nacre-OST0000`; `MGS` for the management server.
    pub(crate) targets: Vec<String>,
    /// Mounts of the process.
    pub(crate) mounts: Vec<MountRecord>,
    /// Mount point of the mount with which the process started; a user may have unmounted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mountpoint: Option<PathBuf>,
    /// Key of the LNet selftest session, if the process runs its console.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<u32>,
    /// The log file.
    pub(crate) log: PathBuf,
}

impl ProcessRecord {
    /// Whether the process that wrote this record is still alive.
    pub(crate) fn is_alive(&self) -> bool {
        (self.boot_id.is_empty() || self.boot_id == boot_id())
            && start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Whether the process is alive and will stay alive. A killed process remains visible while the
    /// kernel closes its sockets and mounts, so without an answer this function waits for the exit,
    /// at most [`EXIT_MAX`]. A killed process that is blocked in the kernel on its own mount
    /// cannot exit and counts as dead.
    pub(crate) fn is_up(&self) -> bool {
        self.is_alive()
            && (control::call(&self.control, &Request::Status, ANSWER_MAX).is_ok()
                || !(self.wait_for_exit(EXIT_MAX) || stat(self.pid).is_some_and(|s| s.is_dead())))
    }

    /// Waits at most `at_most` for the process to exit. Returns whether the process has exited.
    pub(crate) fn wait_for_exit(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        while self.is_alive() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(EXIT_POLL);
        }
        true
    }

    /// Sends SIGTERM to the process, for use when its control socket does not answer. The process
    /// must belong to this user or to the owner of the record: otherwise a forged record could
    /// select any process.
    pub(crate) fn terminate(&self) -> Result<()> {
        let context = || format!("cannot signal process {}", self.pid);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let fd = pidfd_open(pid.with_context(context)?, PidfdFlags::empty()).with_context(context)?;
        // Check after opening the pidfd, which cannot refer to a later process with the same id.
        let user = user_of(self.pid);
        if !self.is_alive() || (user != Some(uid()) && user != Some(self.owner)) {
            bail!(
                "process {} is not the one that wrote the record (its id was reused, or it has another user)",
                self.pid
            );
        }
        pidfd_send_signal(fd, Signal::TERM).with_context(context)
    }

    /// Whether the process ended without a clean stop, and no other process has served its
    /// directories since.
    fn died_and_not_restarted(&self) -> bool {
        let is_own = |dir: &PathBuf| {
            let found = read(&dir.join(RECORD_IN_DIR), &dir.join(SOCKET_IN_DIR));
            found.is_ok_and(|r| r.is_some_and(|r| (r.pid, r.start_ticks) == (self.pid, self.start_ticks)))
        };
        !self.is_alive() && self.dirs.iter().any(is_own)
    }

    /// The command that starts a process like this one again; `None` without directories.
    pub(crate) fn restart_command(&self) -> Option<String> {
        let dirs: Vec<String> = self.dirs.iter().map(|dir| shell_word(dir)).collect();
        let dirs = dirs.join(" ");
        match (self.role.as_str(), self.nids.first()) {
            ("up", _) => Some(format!("nacre up --dir {dirs}")),
            ("serve", Some(nid)) => {
                let port = self.port;
                Some(format!("nacre serve --listen {nid} --port {port} {dirs}"))
            }
            _ => None,
        }
    }

    /// Whether the process serves this directory.
    fn serves(&self, dir: &Path) -> bool {
        self.dirs.iter().any(|d| d == dir)
    }

    /// The mount point of a process of `nacre up` after a user has unmounted it.
    pub(crate) fn missing_mount(&self) -> Option<&Path> {
        let is_missing = self.role == "up" && self.mounts.is_empty();
        self.mountpoint.as_deref().filter(|_| is_missing)
    }

    /// The sources of the file systems with their MGS and MDT in this process.
    pub(crate) fn sources(&self) -> Vec<String> {
        let runs_mgs = self.targets.iter().any(|target| target == "MGS");
        let mdts = self.targets.iter().filter(|_| runs_mgs);
        let names = mdts.filter_map(|target| target.strip_suffix("-MDT0000"));
        names
            .map(|fsname| format!("{}:/{fsname}", self.nids.join(",")))
            .collect()
    }

    fn has_mount(&self, path: &Path) -> bool {
        self.mounts.iter().any(|m| m.mountpoint == path)
    }

    /// Removes the files of a dead process. Files of other processes and users stay.
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

/// Paths of a process's record and socket in a run directory.
pub(crate) fn in_run_dir(dir: &Path, pid: u32) -> (PathBuf, PathBuf) {
    (dir.join(format!("{pid}.json")), dir.join(format!("{pid}.sock")))
}

/// The run directories of a user, the preferred one first. The user of the packaged server units
/// has [`SERVERS_RUN_DIR`], because the units do not see the host's `/tmp`. The last one,
/// `/run/user/UID/nacre`, is for the case that another user has created `/tmp/nacre-UID`.
fn run_dirs_of(uid: u32) -> Vec<PathBuf> {
    if uid == 0 {
        return vec!["/run/nacre".into()];
    }
    let of_servers = (servers_user() == Some(uid)).then(|| PathBuf::from(SERVERS_RUN_DIR));
    let others = [format!("/tmp/nacre-{uid}"), format!("/run/user/{uid}/nacre")];
    of_servers.into_iter().chain(others.map(PathBuf::from)).collect()
}

/// The run directory of this user; creates it if necessary.
pub(crate) fn run_dir() -> Result<PathBuf> {
    let mut first_error = None;
    for dir in run_dirs_of(uid()) {
        match make_run_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(e) => first_error = first_error.or(Some(e)),
        }
    }
    Err(first_error.unwrap_or_else(|| anyhow::anyhow!("there is no run directory")))
}

fn make_run_dir(dir: &Path) -> Result<()> {
    match fs::create_dir(dir) {
        // Commands of other users connect to sockets in the directory, so the umask must not
        // restrict its mode.
        Ok(()) => fs::set_permissions(dir, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("cannot set the mode of the run directory {}", dir.display()))?,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => {
            return Err(e).with_context(|| format!("cannot create the run directory {}", dir.display()));
        }
    }
    if !is_dir_of(dir, uid()) {
        bail!(
            "the run directory {} belongs to another user: ask its owner or root to remove it",
            dir.display()
        );
    }
    Ok(())
}

/// Whether the path is a directory that the user owns, and not a symbolic link.
fn is_dir_of(dir: &Path, uid: u32) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)
}

/// The effective user id of this process.
pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The record of the process that serves a directory. If the directory has no valid record (a user
/// may have removed it), searches the run directories.
pub(crate) fn in_dir(dir: &Path) -> Result<Option<ProcessRecord>> {
    let found = read(&dir.join(RECORD_IN_DIR), &dir.join(SOCKET_IN_DIR))?;
    if found.is_none() && dir.join(RECORD_IN_DIR).exists() {
        errln!(
            "nacre: warning: {} is empty or damaged, perhaps by a power failure: ignored",
            dir.join(RECORD_IN_DIR).display()
        );
    }
    let in_run_dirs = || scan_all_users().into_iter().find(|r| r.serves(dir));
    Ok(match found {
        None => in_run_dirs(),
        // The file system of the directory may not support sockets.
        Some(r) if !r.control.exists() && r.is_alive() => {
            in_run_dirs().filter(|i| i.pid == r.pid).or(Some(r))
        }
        found => found,
    })
}

/// Records of all processes that this user may use: the user's own and root's. Removes the records
/// and sockets of this user's dead processes, except those of [`dead`].
pub(crate) fn all() -> Vec<ProcessRecord> {
    with_restored_records(|| records_of(&[uid(), 0]))
}

/// Like [`all`]; for root, also the processes of all other users.
pub(crate) fn of_all_users() -> Vec<ProcessRecord> {
    with_restored_records(scan_all_users)
}

fn scan_all_users() -> Vec<ProcessRecord> {
    let mut users = vec![uid(), 0];
    if uid() == 0 {
        let uids_in_names = |dir: &str, prefix: &str| -> Vec<u32> {
            let names = fs::read_dir(dir).into_iter().flatten().flatten();
            names
                .filter_map(|e| e.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
                .collect()
        };
        users.extend(uids_in_names("/tmp", "nacre-"));
        users.extend(uids_in_names("/run/user", ""));
        users.extend(servers_user());
    }
    records_of(&users)
}

/// Returns the records once each live mount of this user appears in one. Waits at most
/// [`REPUBLISH_MAX`], within which a live process publishes a lost record again.
fn with_restored_records(records: impl Fn() -> Vec<ProcessRecord>) -> Vec<ProcessRecord> {
    let deadline = Instant::now() + REPUBLISH_MAX;
    loop {
        let found = records();
        let has_no_record = |m: &MountEntry| {
            m.is_nacre() && m.user == Some(uid()) && !found.iter().any(|r| r.has_mount(&m.path))
        };
        let mounts = fuse::mounts().unwrap_or_default();
        let mut without_record = mounts.iter().filter(|m| has_no_record(m));
        let lost =
            without_record.any(|m| fuse::mount_state(&m.path).is_ok_and(|s| s == MountState::Responds));
        if !lost || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(RECORD_POLL);
    }
}

/// The records of this user's and root's processes that ended without a clean stop, if their
/// directories have not been served since.
pub(crate) fn dead() -> Vec<ProcessRecord> {
    let mut found = Vec::new();
    for_each_record(&[uid(), 0], |_, _, record, _| {
        if record.died_and_not_restarted() {
            found.push(record);
        }
    });
    found
}

/// The records in the run directories of these users, the oldest process first.
fn records_of(users: &[u32]) -> Vec<ProcessRecord> {
    let mut found: Vec<ProcessRecord> = Vec::new();
    for_each_record(users, |path, socket, r, user| {
        if r.is_alive() {
            if user_of(r.pid) == Some(user) {
                found.push(without_foreign_mounts(r, user));
            }
        } else if user == uid() && !r.died_and_not_restarted() {
            let _ = fs::remove_file(path);
            let _ = fs::remove_file(socket);
        }
    });
    found.sort_by_key(|r| (r.start_ticks, r.pid));
    found.dedup_by_key(|r| r.pid);
    found
}

/// Calls `visit` with the file, the socket, the content and the user of each record in the run
/// directories of these users.
fn for_each_record(users: &[u32], mut visit: impl FnMut(&Path, &Path, ProcessRecord, u32)) {
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
            if let Ok(Some(record)) = read(&path, &socket) {
                visit(&path, &socket, record, user);
            }
        }
    }
}

/// Removes from another user's record the mounts that `user` did not create: any user can write a
/// false record. Trusts the records of root and of this process's user.
fn without_foreign_mounts(record: ProcessRecord, user: u32) -> ProcessRecord {
    if user == uid() || user == 0 {
        return record;
    }
    let table = fuse::mounts().unwrap_or_default();
    let created_by_user = |m: &MountRecord| {
        table
            .iter()
            .any(|e| e.path == m.mountpoint && e.user == Some(user))
    };
    let mounts = record
        .mounts
        .iter()
        .filter(|m| created_by_user(m))
        .cloned()
        .collect();
    ProcessRecord { mounts, ..record }
}

/// The process with a mount at exactly this path.
pub(crate) fn with_mount(path: &Path) -> Option<ProcessRecord> {
    of_all_users().into_iter().rfind(|r| r.has_mount(path))
}

/// The process with the innermost mount at or above this path, and that mount.
pub(crate) fn by_path(path: &Path) -> Result<(ProcessRecord, MountRecord)> {
    let absolute = daemon::make_absolute(path)?;
    // The mount itself may hang, so its path is compared without an access to it.
    if let Ok(root) = fuse::real_path(&absolute)
        && let Some(record) = with_mount(&root)
        && let Some(mount) = record.mounts.iter().find(|m| m.mountpoint == root).cloned()
    {
        return Ok((record, mount));
    }
    // Symbolic links may lead into the mount. If the path cannot be resolved (as in a stale mount),
    // use the absolute path.
    let resolved = fs::canonicalize(&absolute).unwrap_or(absolute);
    let mut innermost: Option<(ProcessRecord, MountRecord)> = None;
    for record in of_all_users() {
        for mount in &record.mounts {
            let is_deeper = innermost
                .as_ref()
                .is_none_or(|(_, m)| m.mountpoint < mount.mountpoint);
            if resolved.starts_with(&mount.mountpoint) && is_deeper {
                innermost = Some((record.clone(), mount.clone()));
            }
        }
    }
    innermost.with_context(|| {
        format!(
            "{} is not in a mount of a running nacre (see `nacre status`)",
            path.display()
        )
    })
}

/// Reads a record and adds the path of its control socket and the owner of its file; `None` if
/// there is no record, or if the file is empty or damaged, as after a power failure.
fn read(path: &Path, socket: &Path) -> Result<Option<ProcessRecord>> {
    let cannot = || format!("cannot read {}", path.display());
    // Another user may have created this path: do not follow links, and do not block on a FIFO.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let file = match fs::File::options().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(e).with_context(cannot),
    };
    let meta = file.metadata().with_context(cannot)?;
    let mut text = Vec::new();
    if meta.is_file() {
        file.take(RECORD_BYTES_MAX)
            .read_to_end(&mut text)
            .with_context(cannot)?;
    }
    let Ok(record) = serde_json::from_slice::<ProcessRecord>(&text) else {
        return Ok(None);
    };
    Ok(Some(ProcessRecord {
        control: socket.to_owned(),
        owner: meta.uid(),
        ..record
    }))
}

/// Replaces a file atomically: readers see the old or the new contents.
pub(crate) fn write_atomically(path: &Path, text: &str) -> Result<()> {
    osd::files::replace(path, text.as_bytes(), osd::files::FILE_MODE)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Fields of `/proc/PID/stat`.
struct Stat {
    state: char,
    /// Number of threads.
    threads: u32,
    /// Start time in clock ticks since boot.
    start_ticks: u64,
}

impl Stat {
    /// Whether the main thread has ended; it ends only when the whole process exits.
    fn is_dead(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

fn stat(pid: u32) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command in parentheses, may contain any character: count from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some(Stat {
        state: fields.next()?.chars().next()?,
        threads: fields.nth(16)?.parse().ok()?,
        start_ticks: fields.nth(1)?.parse().ok()?,
    })
}

/// Start time of a process in clock ticks since boot; `None` if the process has ended.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    // A zombie runs no code any more, but while other threads remain, some of its files are still
    // open.
    let stat = stat(pid).filter(|s| !s.is_dead() || s.threads > 1)?;
    Some(stat.start_ticks)
}

/// The id of the current boot.
pub(crate) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// The effective user id of a process.
pub(crate) fn user_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let uids = status.lines().find_map(|l| l.strip_prefix("Uid:"))?;
    uids.split_whitespace().nth(1)?.parse().ok()
}

/// Peak resident memory of a process, in bytes.
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(kib.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests;
