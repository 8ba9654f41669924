//! A mount, from its beginning to its end.

use crate::busy_poll::BusyPoll;
use crate::error::FuseError;
use crate::fs::Fs;
use crate::kernel_mount;
use crate::mountpoint::{self, SUBTYPE};
use crate::notify::Invalidator;
use crate::state::State;
use client::{Client, Cred};
use cpt::Handle;
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use parking_lot::Mutex;
use rustix::mount::MountFlags;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use wire::Time;

/// Maximum wait for the session's end after an unmount.
const SESSION_END_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for closing the files that are open at an unmount; a dead server does not answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of a FUSE mount.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// The source shown in the mount table, such as `10.0.0.1@tcp:/testfs`.
    pub source: String,
    /// Whether other users may use the mount. Root may always set this; other users need
    /// `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Mount flags: read-only, `nosuid` and so on. Only root's mounts can honour set-user-ID
    /// programs and device files.
    pub flags: MountFlags,
    /// Number of threads that read requests.
    pub threads: usize,
    /// Whether reads and writes bypass the kernel's page cache, where the kernel can still map such
    /// files (6.6 and later). If they use the page cache, a program with an open file may see
    /// appends of other clients late.
    pub direct_io: bool,
}

impl FuseOptions {
    /// The defaults. Root's mounts are open to other users. The flags include `nosuid` and `nodev`,
    /// because a user with access to the servers could create set-user-ID programs and device
    /// files. There is one thread for each CPU, from two to sixteen, because these threads also
    /// execute requests to servers in this process.
    pub fn new(source: impl Into<String>) -> FuseOptions {
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        FuseOptions {
            source: source.into(),
            allow_other: rustix::process::geteuid().is_root(),
            flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME,
            threads: cpus.clamp(2, 16),
            direct_io: true,
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        let choose = |flag, with, without| if self.flags.contains(flag) { with } else { without };
        config.mount_options = vec![
            MountOption::FSName(self.source.clone()),
            MountOption::Subtype(SUBTYPE.to_owned()),
            MountOption::DefaultPermissions,
            choose(MountFlags::RDONLY, MountOption::RO, MountOption::RW),
            choose(MountFlags::NOSUID, MountOption::NoSuid, MountOption::Suid),
            choose(MountFlags::NODEV, MountOption::NoDev, MountOption::Dev),
            choose(MountFlags::NOEXEC, MountOption::NoExec, MountOption::Exec),
        ];
        // Every version of fusermount3 accepts `noatime`. The other policies need no option: only
        // the client implements their difference from the kernel's default.
        if self.flags.contains(MountFlags::NOATIME) {
            config.mount_options.push(MountOption::NoAtime);
        }
        config.acl = if self.allow_other {
            SessionACL::All
        } else {
            SessionACL::Owner
        };
        config.n_threads = Some(self.threads.max(1));
        config.clone_fd = true;
        config
    }
}

/// A mounted file system. Dropping it unmounts lazily.
pub struct FuseMount {
    path: PathBuf,
    /// The number of the FUSE connection.
    minor: u32,
    state: Arc<State>,
    /// Whether the session has ended.
    ended: watch::Receiver<bool>,
    /// Whether the mount is detached from the tree. It may still be in use.
    detached: AtomicBool,
    /// Unmounts on drop if the session has not ended.
    _session: Mutex<Option<SessionGuard>>,
}

/// Unmounts on drop if the session has not ended.
struct SessionGuard {
    path: PathBuf,
    minor: u32,
    ended: watch::Receiver<bool>,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if !*self.ended.borrow() {
            let _ = mountpoint::unmount_connection(&self.path, self.minor, true);
        }
    }
}

/// Mounts a client's file system on a directory. Requests that have to wait continue on the current
/// runtime.
///
/// # Errors
///
/// See [`FuseError`]; not `InUse`, `Unmount` or `NotMounted`.
pub async fn mount(client: Arc<Client>, path: &Path, opts: FuseOptions) -> Result<FuseMount, FuseError> {
    let (runtime, path) = (Handle::current(), path.to_owned());
    let root = client.getattr(&Cred::root(), client.root()).await;
    let root_btime = root.map_or(Time::default(), |root| root.attr.btime);
    let mount_point = path.clone();
    let mounting =
        tokio::task::spawn_blocking(move || mount_blocking(client, root_btime, &mount_point, &opts, runtime));
    mounting.await.unwrap_or_else(|e| {
        Err(FuseError::Mount {
            path,
            source: io::Error::other(e),
        })
    })
}

fn mount_blocking(
    client: Arc<Client>,
    root_btime: Time,
    path: &Path,
    opts: &FuseOptions,
    runtime: Handle,
) -> Result<FuseMount, FuseError> {
    let path = mountpoint::check_mount_point(path)?;
    let to_error = |source| mount_error(&path, source);
    let state = Arc::new(State::new(
        client.clone(),
        root_btime,
        runtime.clone(),
        opts.direct_io,
    ));
    let session = open_session(Fs(state.clone()), &path, opts).map_err(to_error)?;
    let device = session.as_fd().try_clone_to_owned().map_err(to_error)?;
    let busy_poll = BusyPoll::new(session.as_fd().try_clone_to_owned().map_err(to_error)?);
    state.busy_poll.get_or_init(|| busy_poll);
    let kernel = Invalidator::start(device, state.nodes.clone(), runtime).map_err(to_error)?;
    let kernel = state.kernel.get_or_init(|| Arc::new(kernel)).clone();
    client.set_kernel(kernel);
    let not_mounted = || to_error(io::Error::other("the mount is missing in /proc/self/mountinfo"));
    let minor = mountpoint::mounted_at(&path).ok_or_else(not_mounted)?.minor;
    kernel_mount::watch_flags(client, path.clone(), minor).map_err(to_error)?;
    let session = session.spawn().map_err(to_error)?;
    let ended = watch_end(session).map_err(to_error)?;
    let guard = SessionGuard {
        path: path.clone(),
        minor,
        ended: ended.clone(),
    };
    Ok(FuseMount {
        path,
        minor,
        state,
        ended,
        detached: AtomicBool::new(false),
        _session: Mutex::new(Some(guard)),
    })
}

/// Mounts with mount(2), or with fusermount3 for users without that privilege, and negotiates with
/// the kernel.
fn open_session(fs: Fs, path: &Path, opts: &FuseOptions) -> io::Result<Session<Fs>> {
    let config = opts.config();
    match kernel_mount::mount(path, &opts.source, opts.flags, opts.allow_other) {
        Ok(device) => Session::from_fd(fs, device, config.acl, config)
            .inspect_err(|_| drop(mountpoint::unmount(path, true))),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Session::new(fs, path, &config),
        Err(e) => Err(e),
    }
}

/// Converts a mount error; distinguishes a system without FUSE.
fn mount_error(path: &Path, source: io::Error) -> FuseError {
    match std::fs::File::open("/dev/fuse") {
        Err(e) => FuseError::NoFuse { source: e },
        Ok(_) => FuseError::Mount {
            path: path.to_owned(),
            source,
        },
    }
}

/// Starts a thread that waits for the session's end, and then sets the value of the returned
/// channel to true.
fn watch_end(session: BackgroundSession) -> io::Result<watch::Receiver<bool>> {
    let (tx, rx) = watch::channel(false);
    std::thread::Builder::new()
        .name("fuse-end".into())
        .spawn(move || {
            if let Err(e) = session.join() {
                tracing::warn!("the FUSE session ended with an error: {e}");
            }
            let _ = tx.send(true);
        })?;
    Ok(rx)
}

impl FuseMount {
    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount has ended, for any reason.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Waits until the mount has ended, for any reason.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|e| *e).await;
    }

    /// Unmounts; with `lazy`, also while the mount is in use. Then closes all open files: the
    /// client can unmount only without open files.
    ///
    /// # Errors
    ///
    /// `InUse` if the mount is in use and `lazy` is false; `Unmount` if the kernel or fusermount3
    /// refuses.
    pub async fn unmount(&self, lazy: bool) -> Result<(), FuseError> {
        if !self.has_ended() && !self.detached.load(Ordering::Relaxed) {
            let (path, minor) = (self.path.clone(), self.minor);
            let unmount = move || mountpoint::unmount_connection(&path, minor, lazy);
            let result = tokio::task::spawn_blocking(unmount).await;
            match result.unwrap_or(Ok(())) {
                // Another mount may appear at this path later: never unmount at the path again.
                Ok(()) | Err(FuseError::NotMounted { .. }) => self.detached.store(true, Ordering::Relaxed),
                Err(e) => return Err(e),
            }
            if !lazy
                && tokio::time::timeout(SESSION_END_TIMEOUT, self.ended())
                    .await
                    .is_err()
            {
                tracing::warn!(path = %self.path.display(), "the mount is detached, but the kernel has not ended it after 10 s");
            }
        }
        let closed = tokio::time::timeout(CLOSE_TIMEOUT, async {
            for file in self.state.files.drain() {
                if let Err(e) = self.state.client.release(&file).await {
                    tracing::debug!(fid = %file.fid, "cannot close a file at the unmount: {e}");
                }
            }
        });
        if closed.await.is_err() {
            tracing::warn!(path = %self.path.display(), "files that were open at the unmount are not closed after 10 s: the servers close them when the client disconnects");
        }
        Ok(())
    }
}
