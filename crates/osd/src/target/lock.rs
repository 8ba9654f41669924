//! The lock file of a target: only the process that has locked it may use the target.
//!
//! The file names its process, for the error messages of other processes, and the NIDs of its node,
//! for standby servers.

use std::{fs, io, io::Write, os::unix::fs::FileExt, path::Path};

use rustix::fs::{FlockOperation, flock};
use wire::Nid;

use super::{LOCK, TargetError, generation};
use crate::files;

/// The start of the line with the NIDs.
const NIDS: &str = "nids ";

/// The server that was the last one to lock a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetServer {
    pub(super) generation: u32,
    /// The text of the lock file: `pid N`, and in a second line the NIDs, once they are known.
    text: String,
}

impl TargetServer {
    /// The server of the target in this directory.
    ///
    /// # Errors
    ///
    /// [`TargetError::Io`] if the generation or the lock file cannot be read.
    pub fn of(target: &Path) -> Result<TargetServer, TargetError> {
        let generation = generation::current(target)?;
        let path = target.join(generation::name_in(LOCK, generation));
        match fs::read_to_string(&path) {
            Ok(text) => Ok(TargetServer { generation, text }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(TargetServer {
                generation,
                text: String::new(),
            }),
            Err(source) => Err(TargetError::Io { path, source }),
        }
    }

    /// The NIDs of the server's node; none if it has not recorded them yet.
    pub fn nids(&self) -> Vec<Nid> {
        let line = self.text.lines().find_map(|line| line.strip_prefix(NIDS));
        let nids = line.unwrap_or_default().split(',');
        nids.filter_map(|nid| nid.parse().ok()).collect()
    }

    /// The error of a process that needs the target of this server.
    pub(super) fn in_use(&self, target: &Path) -> TargetError {
        let by = self.text.lines().collect::<Vec<_>>().join(", ");
        TargetError::InUse {
            path: target.into(),
            by: Some(by).filter(|by| !by.is_empty()),
        }
    }
}

/// Adds the NIDs of this process's node to the lock file that it has locked.
pub(super) fn write_nids(lock: &fs::File, nids: &[Nid]) -> io::Result<()> {
    let nids: Vec<String> = nids.iter().map(Nid::to_string).collect();
    let text = format!("{}{NIDS}{}\n", own_line(), nids.join(","));
    // In place: a reader finds the process at any moment.
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.sync_all()
}

/// The line with the id of this process.
fn own_line() -> String {
    format!("pid {}\n", std::process::id())
}

/// Locks the directory in its present generation, and returns that. With `note_pid`, writes this
/// process's id into the lock file, for the error messages of other processes. Without it, changes
/// no file.
pub(crate) fn lock(dir: &Path, note_pid: bool) -> Result<(fs::File, u32), TargetError> {
    loop {
        let generation = generation::current(dir)?;
        let file = lock_file(dir, &generation::name_in(LOCK, generation), note_pid)?;
        // Another server may have taken the target over meanwhile.
        if generation::current(dir)? == generation {
            return Ok((file, generation));
        }
    }
}

/// Locks the file `name`, see [`lock`].
pub(super) fn lock_file(dir: &Path, name: &str, note_pid: bool) -> Result<fs::File, TargetError> {
    let path = dir.join(name);
    let io = |source| TargetError::Io {
        path: path.clone(),
        source,
    };
    let mut file = files::options()
        .create(note_pid)
        .truncate(false)
        .read(true)
        .write(note_pid)
        .open(&path)
        .map_err(io)?;
    if !try_flock(&file).map_err(io)? {
        let text = fs::read_to_string(&path).unwrap_or_default();
        return Err(TargetServer { generation: 0, text }.in_use(dir));
    }
    if !note_pid {
        return Ok(file);
    }
    file.set_len(0)
        .and_then(|()| file.write_all(own_line().as_bytes()))
        .map_err(io)?;
    Ok(file)
}

/// Locks a file with flock. False if another process holds the lock.
pub(super) fn try_flock(file: &fs::File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
