//! A mounted file system: its targets, caches and options. The module `ops` has the operations.

use crate::atime::{Atime, AtimeRules};
use crate::cred::Cred;
use crate::data::Lov;
use crate::error::ClientError;
use crate::inode::Inodes;
use crate::jobs::{Caller, JobIds};
use crate::kernel::{Kernel, KernelCache};
use crate::lmv::Lmv;
use crate::mdc::Mdc;
use crate::mdc_builder::MdcBuilder;
use crate::ops::OpenDirs;
use crate::stats::MountStats;
use crate::umount::{self, SAVE_MAX, STEP_MAX, Unsaved};
use cpt::JoinSet;
use mgc::{FsConfig, Mgc};
use params::{Group, Registry};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use wire::{Fid, LockTerms, Nid, Precision, Time};

/// The longest time that a statfs waits for an OST, or for an MDT other than MDT0000.
pub(crate) const STATFS_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest length of a file system's name, in bytes: the MGS's lock resources hold 8 bytes of it.
const FSNAME_MAX: usize = 8;

/// Returns the time of day.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

/// The file system to mount, and options.
#[derive(Clone)]
pub struct MountOptions {
    /// The NIDs of the MGS.
    pub mgs: Vec<Nid>,
    /// The file system's name.
    pub fsname: String,
    /// The registry for the parameters of this mount.
    pub params: Registry,
    /// Determines the name of each caller's job.
    pub jobs: Arc<JobIds>,
    /// Seed of this mount's UUIDs, parameter names and MDT lock cookies; different for each mount.
    pub seed: u64,
    /// The clock for the times that the client sets.
    pub clock: Clock,
    /// Whether to request times with nanoseconds from the servers.
    pub nanoseconds: bool,
    /// The lock terms to request from metadata targets.
    pub lock_terms: LockTerms,
    /// Which reads update the access times of files.
    pub atime: Atime,
    /// Whether `atime` applies to directories too. False (`nodiratime`): reads of directories
    /// update no access time.
    pub diratime: bool,
    /// The directory to mount, as a path from the file system's root. Empty: the root.
    pub subdir: String,
    /// The mounting user. The MDT checks this user's access to `subdir`. Like the superuser, this
    /// user may use FIDs ([`Client::fid2path`]).
    pub mounter: Cred,
    /// Whether every user may use FIDs (mount option `user_fid2path`).
    pub user_fid2path: bool,
    /// Whether a close does not wait for the file's data (mount option `lazyclose`).
    pub lazy_close: bool,
}

impl MountOptions {
    /// Options to mount `fsname` of the MGS at `mgs`, with the system's clock and the defaults.
    pub fn new(mgs: Vec<Nid>, fsname: impl Into<String>, seed: u64) -> MountOptions {
        MountOptions {
            mgs,
            fsname: fsname.into(),
            params: Registry::default(),
            jobs: Arc::default(),
            seed,
            clock: Arc::new(|| std::time::SystemTime::now().into()),
            nanoseconds: true,
            lock_terms: LockTerms::Nacre,
            atime: Atime::default(),
            diratime: true,
            subdir: String::new(),
            mounter: Cred::root(),
            user_fid2path: false,
            lazy_close: false,
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
    /// Lets one task at a time read the configuration to learn an unknown target.
    pub(crate) unknown_targets: tokio::sync::Mutex<()>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) kernel: Kernel,
    pub(crate) clock: Clock,
    pub(crate) jobs: Arc<JobIds>,
    pub(crate) stats: Arc<MountStats>,
    pub(crate) atime: AtimeRules,
    /// UID of the mounting user. This user may use FIDs.
    pub(crate) mounter: u32,
    /// Whether every user may use FIDs.
    pub(crate) user_fid2path: bool,
    /// Whether a close does not wait for the file's data.
    pub(crate) lazy_close: bool,
    pub(crate) open_dirs: Arc<OpenDirs>,
    /// The result of the last statfs, and the time at which the client computed it.
    pub(crate) statfs: tokio::sync::Mutex<Option<(tokio::time::Instant, crate::ops::StatFs)>>,
    pub(crate) unmounted: AtomicBool,
    /// The parameters of the mount and of its MDCs, until the unmount.
    pub(crate) param_groups: Mutex<Vec<Group>>,
    /// Builds the connections to metadata targets that the file system gets later.
    pub(crate) mdc_builder: MdcBuilder,
}

impl Client {
    /// Runs `work` for the caller's job: the requests that `work` sends carry the job's name.
    /// Without a caller, they carry no job name.
    pub fn run_for<F: Future>(
        &self,
        caller: Option<Caller>,
        work: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let job = caller.map(|caller| self.jobs.job_of(caller));
        rpc::job::run_for(job.unwrap_or_default(), work)
    }

    /// Sets which reads update access times of files. `directories`: `atime` applies to directories
    /// too; otherwise reads of directories update no access time.
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

    /// The suffix of this mount's parameters and imports, such as
    /// `testfs-OST0000-osc-<instance>`.
    pub fn instance(&self) -> &str {
        &self.lov.config().instance
    }

    /// The UUID of this mount, the same for all its imports.
    pub fn uuid(&self) -> &str {
        &self.lov.config().client_uuid
    }

    /// The current configuration of the file system.
    pub fn config(&self) -> Arc<FsConfig> {
        self.config.read().clone()
    }

    /// Sets the front end's kernel caches, which the client invalidates together with its own. A
    /// second call has no effect.
    pub fn set_kernel(&self, cache: Arc<dyn KernelCache>) {
        self.kernel.set(cache);
    }

    /// The time of day at the precision of this metadata target.
    pub(crate) fn now(&self, mdc: &Mdc) -> Time {
        mdc.precision().of((self.clock)())
    }

    /// Whether MDT0000 has agreed to times with nanoseconds.
    pub fn has_nanoseconds(&self) -> bool {
        self.lmv.first().precision() == Precision::Nanoseconds
    }

    /// Unmounts: writes dirty data, waits until the servers have committed all changes, cancels
    /// locks, disconnects. Returns the changes that the servers did not commit within [`SAVE_MAX`];
    /// each other step has a time limit of its own. A second call has no effect.
    pub async fn umount(&self) -> Vec<Unsaved> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Vec::new();
        }
        let deadline = Instant::now() + SAVE_MAX;
        let mut unsaved = self.lov.umount(deadline).await;
        // An OST that stays away must not take the MDTs' time.
        let deadline = deadline.max(Instant::now() + STEP_MAX);
        let mut leaving = JoinSet::new();
        for mdc in self.lmv.all().cloned() {
            leaving.spawn(umount::leave_mdt(mdc, deadline));
        }
        unsaved.extend(leaving.join_all().await.into_iter().flatten());
        umount::leave_mgs(&self.mgc).await;
        self.inodes.clear();
        self.param_groups.lock().clear();
        for changes in &unsaved {
            tracing::error!("unmount: {changes}");
        }
        unsaved
    }

    /// Checks a file system's name: 1 to [`FSNAME_MAX`] letters, digits, `-` or `_`.
    pub(crate) fn check_fsname(fsname: &str) -> Result<(), ClientError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if fsname.is_empty() || fsname.len() > FSNAME_MAX || !fsname.chars().all(is_allowed) {
            return Err(ClientError::Name {
                fsname: fsname.to_owned(),
            });
        }
        Ok(())
    }
}
