//! A mount from its making to its end.

use crate::error::FuseError;
use crate::fs::Fs;
use crate::hover::Hover;
use crate::kernel_mount;
use crate::mountpoint::{self, SUBTYPE};
use crate::notify::Invalidator;
use crate::state::State;
use client::{Client, Cred};
use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use parking_lot::Mutex;
use rustix::mount::MountFlags;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use wire::Time;

/// How long the end of a session is waited for once it is unmounted.
const END: Duration = Duration::from_secs(10);

/// How to mount.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// What the mount table shows as the source: `10.0.0.1@tcp:/testfs`.
    pub source: String,
    /// Whether other users may come in. As root: yes; else only where `/etc/fuse.conf` has `user_allow_other`.
    pub allow_other: bool,
    /// Read-only, `nosuid` and the like. Only root can have set-user-ID programs and device files that count.
    pub flags: MountFlags,
    /// Threads that read requests.
    pub threads: usize,
    /// Whether reads and writes go past the kernel's pages, where the kernel can map such files (from 6.6 on). Without,
    /// who has a file open may see late what other clients append.
    pub past_pages: bool,
}

impl FuseOptions {
    /// The defaults: open to other users when mounted by root; no set-user-ID programs and no devices, since whoever can
    /// write to the servers could make them; as many threads as CPUs, from two to sixteen: they do
    /// what the servers of this process are asked for, too.
    pub fn new(source: impl Into<String>) -> FuseOptions {
        let cpus = std::thread::available_parallelism().map_or(2, usize::from);
        FuseOptions {
            source: source.into(),
            allow_other: rustix::process::geteuid().is_root(),
            flags: MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RELATIME,
            threads: cpus.clamp(2, 16),
            past_pages: true,
        }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        let either = |flag, with, without| if self.flags.contains(flag) { with } else { without };
        config.mount_options = vec![
            MountOption::FSName(self.source.clone()),
            MountOption::Subtype(SUBTYPE.to_owned()),
            MountOption::DefaultPermissions,
            either(MountFlags::RDONLY, MountOption::RO, MountOption::RW),
            either(MountFlags::NOSUID, MountOption::NoSuid, MountOption::Suid),
            either(MountFlags::NODEV, MountOption::NoDev, MountOption::Dev),
            either(MountFlags::NOEXEC, MountOption::NoExec, MountOption::Exec),
        ];
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

/// A file system that the kernel has mounted.
pub struct Mounted {
    path: PathBuf,
    state: Arc<State>,
    ended: watch::Receiver<bool>,
    /// It is no longer in the tree, but may still be in use.
    detached: AtomicBool,
    /// Unmounts when it is dropped, if that has not been done.
    _session: Mutex<Option<SessionGuard>>,
}

struct SessionGuard {
    path: PathBuf,
    ended: watch::Receiver<bool>,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        if !*self.ended.borrow() {
            let _ = mountpoint::unmount(&self.path, true);
        }
    }
}

/// Mounts a client's file system on a directory. The kernel's requests are answered on the current runtime.
pub async fn mount(client: Arc<Client>, path: &Path, opts: FuseOptions) -> Result<Mounted, FuseError> {
    let (runtime, path) = (Handle::current(), path.to_owned());
    let root = client.getattr(&Cred::root(), client.root()).await;
    let born = root.map_or(Time::default(), |root| root.attr.btime);
    let making = tokio::task::spawn_blocking(move || make(client, born, &path, &opts, runtime));
    making.await.unwrap_or_else(|e| {
        Err(FuseError::NoFuse {
            source: io::Error::other(e),
        })
    })
}

fn make(
    client: Arc<Client>,
    born: Time,
    path: &Path,
    opts: &FuseOptions,
    runtime: Handle,
) -> Result<Mounted, FuseError> {
    let path = mountpoint::check(path)?;
    let failed = |source| mount_error(&path, source);
    let state = Arc::new(State::new(client.clone(), born, runtime.clone(), opts.past_pages));
    let session = begin(Fs(state.clone()), &path, opts).map_err(failed)?;
    let device = session.as_fd().try_clone_to_owned().map_err(failed)?;
    let hover = Hover::new(session.as_fd().try_clone_to_owned().map_err(failed)?);
    state.hover.get_or_init(|| hover);
    let kernel = Invalidator::start(device, state.nodes.clone(), runtime).map_err(failed)?;
    let kernel = state.kernel.get_or_init(|| Arc::new(kernel)).clone();
    client.set_kernel(kernel);
    if let Some(mount) = mountpoint::mounted_at(&path) {
        kernel_mount::follow_flags(client, path.clone(), mount.minor).map_err(failed)?;
    }
    let session = session.spawn().map_err(failed)?;
    let ended = watch_end(session).map_err(failed)?;
    let guard = SessionGuard {
        path: path.clone(),
        ended: ended.clone(),
    };
    Ok(Mounted {
        path,
        state,
        ended,
        detached: AtomicBool::new(false),
        _session: Mutex::new(Some(guard)),
    })
}

/// Mounts by mount(2), or by the helper of users who may not do that, and greets the kernel.
fn begin(fs: Fs, path: &Path, opts: &FuseOptions) -> io::Result<Session<Fs>> {
    let config = opts.config();
    match kernel_mount::mount(path, &opts.source, opts.flags, opts.allow_other) {
        Ok(device) => Session::from_fd(fs, device, config.acl, config)
            .inspect_err(|_| drop(mountpoint::unmount(path, true))),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Session::new(fs, path, &config),
        Err(e) => Err(e),
    }
}

/// Why mounting failed, as well as can be told.
fn mount_error(path: &Path, source: io::Error) -> FuseError {
    match std::fs::File::open("/dev/fuse") {
        Err(e) => FuseError::NoFuse { source: e },
        Ok(_) => FuseError::Mount {
            path: path.to_owned(),
            source,
        },
    }
}

/// A thread that waits for the session's end, however it comes about.
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

impl Mounted {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is unmounted, by us or by anybody.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns when it is unmounted, by us or by anybody.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|e| *e).await;
    }

    /// Unmounts: with `lazy`, also when files are open there. Then closes what was open, so that the client can go.
    pub async fn unmount(&self, lazy: bool) -> Result<(), FuseError> {
        if !self.has_ended() && !self.detached.load(Ordering::Relaxed) {
            let path = self.path.clone();
            let done = tokio::task::spawn_blocking(move || mountpoint::unmount(&path, lazy)).await;
            match done.unwrap_or(Ok(())) {
                // What may be mounted there next is not this one.
                Ok(()) | Err(FuseError::NotMounted { .. }) => self.detached.store(true, Ordering::Relaxed),
                Err(e) => return Err(e),
            }
            if !lazy && tokio::time::timeout(END, self.ended()).await.is_err() {
                tracing::warn!(path = %self.path.display(), "the kernel has not let go of the mount");
            }
        }
        for file in self.state.files.drain() {
            if let Err(e) = self.state.client.release(&file).await {
                tracing::debug!(fid = %file.fid, "close at unmount: {e}");
            }
        }
        Ok(())
    }
}
