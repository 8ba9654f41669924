//! Publishes the record and control socket of a process and keeps them published.
//!
//! The process publishes in each directory that it serves (`run.json`, `run.sock`) and in the run
//! directory of its user (`PID.json`, `PID.sock`). Each record has its own socket beside it, so any
//! one place may be lost. [`Publisher::restore`] replaces removed files while their directory
//! exists.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use rustix::fs::{Mode, OFlags, open};
use tokio::task::JoinHandle;

use crate::control::{self, Handler};
use crate::process::{self, ProcessRecord, RECORD_IN_DIR, SOCKET_IN_DIR, write_atomically};

/// The places in which a process publishes its record.
pub(crate) struct Publisher {
    publications: Vec<Publication>,
}

/// One directory with a record and a socket.
struct Publication {
    location: Location,
    /// Name of the record's file.
    record: String,
    /// Name of the socket's file.
    socket: String,
    /// The socket, once it listens.
    listener: Option<ControlListener>,
}

enum Location {
    /// A directory that the process serves, held open: the descriptor follows the directory when it
    /// is renamed, and never refers to a directory put in its place.
    Dir(PathBuf, OwnedFd),
    /// The run directory, created again if it was removed.
    RunDir,
}

/// A listening socket and the identity (device, inode) of its file.
struct ControlListener {
    task: JoinHandle<()>,
    file: (u64, u64),
}

impl Publisher {
    /// Prepares to publish in these directories; publishes nothing yet.
    pub(crate) fn new(dirs: &[PathBuf], pid: u32) -> Result<Publisher> {
        let mut publications = Vec::new();
        for dir in dirs {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir_fd =
                open(dir, flags, Mode::empty()).with_context(|| format!("cannot open {}", dir.display()))?;
            publications.push(Publication {
                location: Location::Dir(dir.clone(), dir_fd),
                record: RECORD_IN_DIR.to_owned(),
                socket: SOCKET_IN_DIR.to_owned(),
                listener: None,
            });
        }
        publications.push(Publication {
            location: Location::RunDir,
            record: format!("{pid}.json"),
            socket: format!("{pid}.sock"),
            listener: None,
        });
        Ok(Publisher { publications })
    }

    /// Publishes a record everywhere. Fails only if every place fails.
    pub(crate) fn publish(&mut self, record: &ProcessRecord, handler: &Arc<dyn Handler>) -> Result<()> {
        let text =
            serde_json::to_string_pretty(record).context("cannot encode the record of this process")?;
        let (mut published, mut first_error) = (false, None);
        for publication in &mut self.publications {
            match publication.publish(&text, handler) {
                Ok(()) => published = true,
                Err(e) => {
                    tracing::warn!(
                        "cannot publish the process record in {}: {e:#}",
                        publication.location
                    );
                    first_error = first_error.or(Some(e));
                }
            }
        }
        match published {
            true => Ok(()),
            false => {
                Err(first_error.unwrap_or_else(|| anyhow!("no directory to publish the process record in")))
            }
        }
    }

    /// Publishes again where the record or the socket was removed.
    pub(crate) fn restore(&mut self, record: &ProcessRecord, handler: &Arc<dyn Handler>) -> Result<()> {
        let text =
            serde_json::to_string_pretty(record).context("cannot encode the record of this process")?;
        for publication in self.publications.iter_mut().filter(|p| !p.is_intact()) {
            match publication.publish(&text, handler) {
                Ok(()) => tracing::info!("published the process record again in {}", publication.location),
                // The directory was probably removed for good.
                Err(e) => tracing::debug!(
                    "cannot publish the process record in {}: {e:#}",
                    publication.location
                ),
            }
        }
        Ok(())
    }

    /// Removes all published records and sockets.
    pub(crate) fn withdraw(&mut self) {
        for publication in &mut self.publications {
            let Some(listener) = publication.listener.take() else {
                continue;
            };
            listener.task.abort();
            if let Ok(dir) = publication.location.path() {
                let _ = fs::remove_file(dir.join(&publication.record));
                let _ = fs::remove_file(dir.join(&publication.socket));
            }
        }
    }
}

impl Publication {
    fn publish(&mut self, text: &str, handler: &Arc<dyn Handler>) -> Result<()> {
        let dir = self.location.path()?;
        if !self.is_listening(&dir) {
            let path = dir.join(&self.socket);
            // Remove the socket of a dead process, or another file in the place of this process's
            // socket.
            let _ = fs::remove_file(&path);
            let task = control::listen(&path, handler.clone())?;
            let file = file_identity(&path).context("cannot stat the control socket")?;
            if let Some(old) = self.listener.replace(ControlListener { task, file }) {
                old.task.abort();
            }
        }
        let path = dir.join(&self.record);
        match self.location {
            Location::Dir(..) => write_atomically(&path, text),
            // Commands of other users find the socket of a mount's process here, so the record is
            // world-readable.
            Location::RunDir => osd::files::replace(&path, text.as_bytes(), 0o644)
                .with_context(|| format!("cannot write {}", path.display())),
        }
    }

    fn is_listening(&self, dir: &Path) -> bool {
        let found = file_identity(&dir.join(&self.socket)).ok();
        found.is_some() && found == self.listener.as_ref().map(|l| l.file)
    }

    fn is_intact(&self) -> bool {
        let has_both_files = |dir: PathBuf| self.is_listening(&dir) && dir.join(&self.record).exists();
        self.location.path().is_ok_and(has_both_files)
    }
}

impl Location {
    /// A valid path of the directory, short enough for the address of a Unix socket.
    fn path(&self) -> Result<PathBuf> {
        match self {
            Location::Dir(_, dir_fd) => Ok(format!("/proc/self/fd/{}", dir_fd.as_raw_fd()).into()),
            Location::RunDir => process::run_dir(),
        }
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Location::Dir(path, _) => write!(f, "{}", path.display()),
            Location::RunDir => f.write_str("the run directory"),
        }
    }
}

fn file_identity(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// Calls `connect` with a path of the socket that fits into a socket address (107 bytes). A longer
/// path becomes a short one through a descriptor of the socket's directory.
pub(crate) fn with_short_path<T>(
    socket: &Path,
    connect: impl FnOnce(&Path) -> std::io::Result<T>,
) -> std::io::Result<T> {
    const ADDRESS_MAX: usize = 107;
    match (socket.parent(), socket.file_name()) {
        (Some(dir), Some(name)) if socket.as_os_str().len() > ADDRESS_MAX => {
            let dir = File::from(open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?);
            connect(&Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))
        }
        _ => connect(socket),
    }
}
