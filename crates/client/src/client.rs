//! A mount: its targets, its caches, its options. The operations are in `ops`, by what they do.

use crate::atime::{Atime, AtimeRule};
use crate::cred::Cred;
use crate::data::Lov;
use crate::error::ClientError;
use crate::inode::Inodes;
use crate::kernel::{Kernel, KernelCache};
use crate::lmv::Lmv;
use crate::mdc::Mdc;
use crate::ops::OpenDirs;
use mgc::{FsConfig, Mgc};
use params::{Group, Registry};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wire::{Fid, LockTerms, Nid, Precision, Time};

/// How long one step of an unmount may take when a server does not answer.
pub(crate) const UMOUNT_STEP: Duration = Duration::from_secs(10);

/// Tells the time of day.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// What to mount, and how.
#[derive(Clone)]
pub struct MountOptions {
    /// Where the MGS may be.
    pub mgs: Vec<Nid>,
    /// The file system's name.
    pub fsname: String,
    /// Where parameters go.
    pub params: Registry,
    /// Makes this mount's UUID and owner numbers: another one for each mount.
    pub seed: u64,
    /// The time of day, for the times that a client sets.
    pub clock: Clock,
    /// Whether servers are asked for times with nanoseconds.
    pub nanoseconds: bool,
    /// On what terms metadata targets are asked for locks.
    pub lock_terms: LockTerms,
    /// Which reads change the time of the last access.
    pub atime: Atime,
    /// Whether reads of directories do (`nodiratime`: not).
    pub diratime: bool,
    /// The directory that becomes the root of the mount, as a path from the file system's root; empty: that root itself.
    pub subdir: String,
    /// Who mounts: may that directory be reached; and may use FIDs ([`Client::fid2path`]), as the superuser may.
    pub mounter: Cred,
    /// Whether every user may use FIDs (`user_fid2path`).
    pub user_fid2path: bool,
}

impl MountOptions {
    /// Mounts `fsname` of the MGS at `mgs`, with the system's clock.
    pub fn new(mgs: Vec<Nid>, fsname: impl Into<String>, seed: u64) -> MountOptions {
        MountOptions {
            mgs,
            fsname: fsname.into(),
            params: Registry::default(),
            seed,
            clock: Arc::new(|| std::time::SystemTime::now().into()),
            nanoseconds: true,
            lock_terms: LockTerms::Nacre,
            atime: Atime::default(),
            diratime: true,
            subdir: String::new(),
            mounter: Cred::root(),
            user_fid2path: false,
        }
    }
}

/// A mounted file system.
pub struct Client {
    pub(crate) fsname: String,
    pub(crate) root: Fid,
    pub(crate) lmv: Arc<Lmv>,
    pub(crate) lov: Arc<Lov>,
    pub(crate) mgc: Arc<Mgc>,
    pub(crate) config: RwLock<Arc<FsConfig>>,
    /// Held while one of those that need a target which is not known reads the configuration.
    pub(crate) unknown_targets: tokio::sync::Mutex<()>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) kernel: Kernel,
    pub(crate) clock: Clock,
    pub(crate) atime: AtimeRule,
    /// The user who mounted, who may use FIDs.
    pub(crate) mounter: u32,
    /// Whether every user may.
    pub(crate) user_fid2path: bool,
    pub(crate) open_dirs: Arc<OpenDirs>,
    pub(crate) statfs: tokio::sync::Mutex<Option<(tokio::time::Instant, crate::ops::StatFs)>>,
    pub(crate) gone: AtomicBool,
    /// The parameters, as long as it is mounted.
    pub(crate) shown: Mutex<Vec<Group>>,
}

impl Client {
    /// Changes which reads change access times: of files, and whether of directories too. For reads from now on.
    pub fn set_atime(&self, atime: Atime, directories: bool) {
        self.atime.set(atime, directories);
    }

    /// The root directory of the mount.
    pub fn root(&self) -> Fid {
        self.root
    }

    /// The file system's name.
    pub fn fsname(&self) -> &str {
        &self.fsname
    }

    /// The configuration as it is now.
    pub fn config(&self) -> Arc<FsConfig> {
        self.config.read().clone()
    }

    /// Gives the client the kernel's caches to keep right. Once.
    pub fn set_kernel(&self, k: Arc<dyn KernelCache>) {
        self.kernel.set(k);
    }

    /// The time of day, as fine as this target keeps it.
    pub(crate) fn now(&self, mdc: &Mdc) -> Time {
        mdc.precision().of((self.clock)())
    }

    /// Whether times have nanoseconds: the metadata target keeps them.
    pub fn has_nanoseconds(&self) -> bool {
        self.lmv.first().precision() == Precision::Nanoseconds
    }

    /// Flushes, cancels locks, disconnects, each in bounded time. The second time it does nothing.
    pub async fn umount(&self) {
        if self.gone.swap(true, Ordering::AcqRel) {
            return;
        }
        self.lov.umount().await;
        for mdc in self.lmv.all() {
            if tokio::time::timeout(UMOUNT_STEP, mdc.locks.cancel_all())
                .await
                .is_err()
            {
                tracing::warn!(target = mdc.index, "locks were not given back in time");
            }
            if tokio::time::timeout(UMOUNT_STEP, mdc.import.disconnect())
                .await
                .is_err()
            {
                tracing::warn!(target = mdc.index, "no answer to the disconnection");
            }
        }
        if tokio::time::timeout(UMOUNT_STEP, self.mgc.disconnect())
            .await
            .is_err()
        {
            tracing::warn!("the MGS did not answer the disconnection");
        }
        self.inodes.clear();
        self.shown.lock().clear();
    }

    /// Checks a fsname: what the MGS's resource names have room for.
    pub(crate) fn check_fsname(fsname: &str) -> Result<(), ClientError> {
        let ok = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if fsname.is_empty() || fsname.len() > 8 || !fsname.chars().all(ok) {
            return Err(ClientError::Name {
                fsname: fsname.to_owned(),
            });
        }
        Ok(())
    }
}
