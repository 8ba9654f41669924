//! The client of one OST: its connection, its locks, the budget for dirty data, and the write-back
//! task. The task writes back old data and whole RPCs; under pressure, all dirty data.

mod eviction;
mod file_of;
mod owner;
mod rpc_stats;
mod tunables;

use super::brw::{BrwParams, ObjectId, SHORT_IO_BYTES_MAX};
use super::budget::Budget;
use super::cache_limit::CacheLimit;
use super::losses::Losses;
use super::lov::DataConfig;
use super::object::{DIRTY_AGE_MAX, Object, resource};
use crate::client::{Clock, STATFS_TIMEOUT};
use crate::kernel::Kernel;
use crate::lmv::Lmv;
use crate::stats::MountStats;
use cpt::Handle;
use ldlm::{LockClient, LockClientConfig};
use owner::OscOwner;
use params::Group;
use parking_lot::Mutex;
use rpc::{Import, ImportConfig, ImportKind, Ptlrpc, ReplyMsg, Request, RpcError};
use rpc_stats::RpcStats;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::{fmt, future::Future};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tunables::Tunables;
use wire::checksum::ChecksumType;
use wire::format::bufs;
use wire::{
    Errno, Fid, LdlmResId, NANOSECONDS_REQUESTED, Nid, OBD_CONNECT_64BITHASH, OBD_CONNECT_AT,
    OBD_CONNECT_BRW_SIZE, OBD_CONNECT_BULK_MBITS, OBD_CONNECT_CANCELSET, OBD_CONNECT_CKSUM,
    OBD_CONNECT_EINPROGRESS, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_GRANT,
    OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAXBYTES, OBD_CONNECT_SHORTIO,
    OBD_CONNECT_SRVLOCK, OBD_CONNECT_VBR, OBD_CONNECT_VERSION, OBD_CONNECT2_INC_XID, OBD_CONNECT2_LSEEK,
    OBD_CONNECT2_REP_MBITS, OST_STATFS, ObdConnectData, ObdStatfs, OstIndex, Precision, Time,
};

pub(super) use rpc_stats::Direction;

/// Default of `osc.*.max_rpcs_in_flight`.
const DEFAULT_RPCS_IN_FLIGHT: u32 = 8;
/// Largest default of `osc.*.max_dirty_mb`, in MiB.
const DEFAULT_DIRTY_MIB_MAX: u64 = 64;
/// The default of `osc.*.max_dirty_mb` is at most the memory divided by this, but at least 1 MiB.
const DIRTY_MEMORY_DIVISOR: u64 = 16;
/// Largest bulk of one RPC in bytes.
const BRW_BYTES_MAX: u32 = 4 << 20;
/// Least bulk of one RPC in bytes: a page. Targets without `OBD_CONNECT_BRW_SIZE` get this bulk.
const BRW_BYTES_MIN: u32 = 4096;
/// Grant to request at connect, in bytes.
const GRANT_REQUESTED: u32 = 32 << 20;
/// Default of `osc.*.idle_timeout`.
const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait of the write-back task between two rounds while data is dirty.
const FLUSH_PERIOD: Duration = Duration::from_millis(100);
/// The longest time of each step of an unmount for one OST.
const OST_UMOUNT_STEP_MAX: Duration = Duration::from_secs(20);

/// Identity of an OST and its client.
#[derive(Clone, Debug)]
pub(super) struct OscTarget {
    /// `testfs-OST0000-osc-<instance>`
    pub(super) name: String,
    /// `testfs-OST0000_UUID`
    pub(super) target_uuid: String,
    pub(super) client_uuid: String,
    pub(super) index: OstIndex,
    pub(super) nids: Vec<Nid>,
}

/// The client of one OST.
pub(super) struct Osc {
    target: OscTarget,
    import: OnceLock<Arc<Import>>,
    locks: OnceLock<Arc<LockClient>>,
    budget: Budget,
    tunables: Tunables,
    rpc_stats: RpcStats,
    stats: Arc<MountStats>,
    kernel: Kernel,
    clock: Clock,
    losses: Arc<Losses>,
    lmv: Arc<Lmv>,
    /// Whether the target is known to require capabilities.
    requires_capabilities: AtomicBool,
    runtime: Handle,
    /// All objects that are in use or locked.
    objects: Mutex<BTreeMap<LdlmResId, Arc<Object>>>,
    /// Objects to write back, in the order in which they were queued.
    dirty_objects: Mutex<VecDeque<Arc<Object>>>,
    /// Wakes the write-back task before the end of its period.
    wake_write_back: Notify,
    /// One permit for each concurrent write RPC.
    write_slots: Arc<Semaphore>,
    cache_limit: Arc<CacheLimit>,
    /// Largest object size in bytes, as the target reported it.
    object_bytes_max: AtomicU64,
    /// The write-back task.
    write_back_task: Mutex<Option<AbortHandle>>,
    params: Mutex<Vec<Group>>,
    weak_self: Weak<Osc>,
}

impl fmt::Debug for Osc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Osc")
            .field("name", &self.target.name)
            .finish_non_exhaustive()
    }
}

impl Osc {
    /// Creates the import, lock client and write-back task; connects in the background.
    pub(super) fn start(
        rpc: &Arc<Ptlrpc>,
        target: OscTarget,
        cfg: &DataConfig,
        cache_limit: &Arc<CacheLimit>,
        losses: Arc<Losses>,
    ) -> Arc<Osc> {
        let osc = Arc::new_cyclic(|weak_self: &Weak<Osc>| Osc {
            weak_self: weak_self.clone(),
            target: target.clone(),
            import: OnceLock::new(),
            locks: OnceLock::new(),
            budget: Budget::new(
                (DEFAULT_DIRTY_MIB_MAX << 20)
                    .min(cpt::memory_bytes() / DIRTY_MEMORY_DIVISOR)
                    .max(1 << 20),
            ),
            tunables: Tunables::default(),
            rpc_stats: RpcStats::default(),
            stats: cfg.stats.clone(),
            kernel: cfg.kernel.clone(),
            clock: cfg.clock.clone(),
            losses,
            lmv: cfg.lmv.clone(),
            requires_capabilities: AtomicBool::new(false),
            runtime: Handle::current(),
            objects: Mutex::default(),
            dirty_objects: Mutex::default(),
            wake_write_back: Notify::new(),
            write_slots: Arc::new(Semaphore::new(DEFAULT_RPCS_IN_FLIGHT as usize)),
            cache_limit: cache_limit.clone(),
            object_bytes_max: AtomicU64::new(u64::MAX),
            write_back_task: Mutex::default(),
            params: Mutex::default(),
        });
        cache_limit.add(&osc);
        let owner = Arc::new(OscOwner(Arc::downgrade(&osc)));
        let import = Import::new(
            rpc,
            ImportConfig {
                name: target.name.clone(),
                target_uuid: target.target_uuid.clone(),
                client_uuid: target.client_uuid.clone(),
                nids: target.nids.clone(),
                kind: ImportKind::Osc,
                connect: connect_data(cfg.nanoseconds),
                max_rpcs_in_flight: DEFAULT_RPCS_IN_FLIGHT,
                owner: owner.clone(),
            },
        );
        // Makes the lock cookies of different targets different.
        let seed = u64::from(target.index.0).wrapping_add(1) << 48;
        let locks = LockClient::new(
            owner,
            LockClientConfig {
                seed,
                budget: cfg.lock_budget.clone(),
                ..LockClientConfig::default()
            },
        );
        locks.set_import(import.clone());
        // Set here only, before another task can use the OSC.
        let _ = osc.locks.set(locks);
        let _ = osc.import.set(import.clone());
        *osc.params.lock() = vec![
            osc.register_params(&cfg.params),
            osc.locks().register_params(&cfg.params, &target.name),
        ];
        let task = cpt::spawn(write_back(Arc::downgrade(&osc)));
        *osc.write_back_task.lock() = Some(task.abort_handle());
        import.set_idle_timeout(Some(DEFAULT_IDLE_TIMEOUT));
        import.start_connecting();
        cpt::spawn(async move {
            if let Err(error) = import.connect().await {
                tracing::warn!(import = target.name, %error, "cannot connect to the OST yet; retrying in the background");
            }
        });
        osc
    }

    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    pub(super) fn index(&self) -> OstIndex {
        self.target.index
    }

    pub(super) fn locks(&self) -> &Arc<LockClient> {
        self.locks
            .get()
            .expect("set in start, before the OSC is handed out")
    }

    pub(super) fn import(&self) -> &Arc<Import> {
        self.import
            .get()
            .expect("set in start, before the OSC is handed out")
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) async fn call(&self, request: Request) -> Result<ReplyMsg, RpcError> {
        self.import().call(request).await
    }

    pub(super) fn lmv(&self) -> &Lmv {
        &self.lmv
    }

    /// Whether the target is known to require capabilities.
    pub(super) fn requires_capabilities(&self) -> bool {
        self.requires_capabilities.load(Ordering::Relaxed)
    }

    pub(super) fn set_requires_capabilities(&self) {
        self.requires_capabilities.store(true, Ordering::Relaxed);
    }

    /// Number of times the target has evicted this client.
    pub(super) fn evictions(&self) -> u64 {
        self.import().evictions()
    }

    /// Records a loss of a file's data: fails its descriptors and drops the pages of their mappings
    /// in the kernel. Returns the number of descriptors that newly failed.
    pub(super) fn record_loss(&self, file: Fid, error: Errno) -> usize {
        let newly = self.losses.add(file, error);
        if newly > 0
            && let Some(osc) = self.weak_self.upgrade()
        {
            self.spawn(async move { osc.invalidate_in_kernel(file).await });
        }
        newly
    }

    /// The precision of times agreed with the target.
    pub(super) fn precision(&self) -> Precision {
        self.import().precision()
    }

    /// The time of day at the target's precision.
    pub(super) fn now(&self) -> Time {
        self.precision().of((self.clock)())
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// The parameters of reads and writes agreed with the target.
    pub(super) fn brw_params(&self) -> BrwParams {
        let data = self.import().connect_data();
        let agreed = match data.ocd_connect_flags & OBD_CONNECT_BRW_SIZE {
            0 => BRW_BYTES_MIN,
            _ => data.ocd_brw_size.clamp(BRW_BYTES_MIN, BRW_BYTES_MAX),
        };
        BrwParams {
            brw_bytes_max: u64::from(agreed),
            checksum: self
                .tunables
                .checksums
                .load(Ordering::Relaxed)
                .then(|| self.checksum_type()),
            short_io: data.ocd_connect_flags & OBD_CONNECT_SHORTIO != 0
                && u64::from(agreed) >= SHORT_IO_BYTES_MAX,
        }
    }

    /// The agreed checksum types, as bits of `ocd_cksum_types`.
    fn checksum_types(&self) -> u32 {
        let data = self.import().connect_data();
        match data.ocd_connect_flags & OBD_CONNECT_CKSUM {
            0 => 0,
            _ => data.ocd_cksum_types,
        }
    }

    /// The configured checksum type if it is among the agreed ones; else the best agreed type.
    fn checksum_type(&self) -> ChecksumType {
        let types = self.checksum_types();
        let configured = types & self.tunables.checksum_type.load(Ordering::Relaxed);
        ChecksumType::preferred(if configured != 0 { configured } else { types })
    }

    /// Largest object size in bytes; `u64::MAX`: the target has reported none yet.
    pub(super) fn object_bytes_max(&self) -> u64 {
        self.object_bytes_max.load(Ordering::Relaxed)
    }

    /// The object with this ID: one value for all callers while it is in use or locked.
    pub(super) fn object(self: &Arc<Self>, id: ObjectId) -> Arc<Object> {
        let mut objects = self.objects.lock();
        objects
            .entry(resource(&id))
            .or_insert_with(|| Arc::new(Object::new(self.clone(), id)))
            .clone()
    }

    pub(super) fn find_object(&self, res: &LdlmResId) -> Option<Arc<Object>> {
        self.objects.lock().get(res).cloned()
    }

    /// Removes an object from the table if it is neither in use nor locked. `object` is the
    /// caller's reference.
    pub(super) fn drop_if_unused(&self, object: Arc<Object>) {
        let mut objects = self.objects.lock();
        // The table's reference and the caller's.
        if Arc::strong_count(&object) == 2 && !object.is_locked() {
            objects.remove(object.resource());
        }
    }

    pub(super) fn all_objects(&self) -> Vec<Arc<Object>> {
        self.objects.lock().values().cloned().collect()
    }

    /// The mount's statistics.
    pub(super) fn stats(&self) -> &MountStats {
        &self.stats
    }

    pub(super) fn cache_limit(&self) -> &Arc<CacheLimit> {
        &self.cache_limit
    }

    /// The first object at or after the resource `first`, or the first of all.
    pub(super) fn object_from(&self, first: Option<&LdlmResId>) -> Option<Arc<Object>> {
        let objects = self.objects.lock();
        let next = match first {
            Some(first) => objects.range(first..).next(),
            None => objects.first_key_value(),
        };
        next.map(|(_, object)| object.clone())
    }

    /// Waits for one of the slots of concurrent write RPCs.
    pub(super) async fn acquire_write_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.write_slots.clone().acquire_owned().await.ok()
    }

    /// Records a write of `bytes` into the cache of an object. Wakes the write-back task if
    /// necessary. `newly_dirty`: the object had no dirty data before.
    pub(super) fn note_write(&self, object: &Arc<Object>, newly_dirty: bool, bytes: u64) {
        let is_first_dirty = newly_dirty && {
            let mut dirty = self.dirty_objects.lock();
            dirty.push_back(object.clone());
            dirty.len() == 1
        };
        if is_first_dirty || self.budget.under_pressure() || object.has_filled_rpc(bytes) {
            self.wake_write_back.notify_one();
        }
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Invalidates a file's pages and attributes in the kernel.
    pub(super) async fn invalidate_in_kernel(&self, file: Fid) {
        let invalidation = self.kernel.invalidate_file(file);
        tokio::pin!(invalidation);
        // The kernel may hold a page for a read that waits for the lock that this client is
        // cancelling, so this wait is bounded. While a truncate waits for a slow server, wait on.
        for _ in 0..TRUNCATE_WAITS_MAX {
            let invalidated = tokio::time::timeout(KERNEL_WAIT_MAX, &mut invalidation).await;
            if invalidated.is_ok() || !self.kernel.is_truncating(file) {
                return;
            }
        }
    }

    /// Drops the cached data, dirty or not, of an object that the target will destroy. Cancels its
    /// unused locks, so that the target need not revoke them.
    pub(super) fn discard(&self, id: &ObjectId) {
        let res = resource(id);
        if let Some(object) = self.find_object(&res) {
            object.forget(0..u64::MAX);
            // An in-flight write needs its lock, so the target revokes that lock.
            if !object.is_writing() {
                self.locks().cancel_unused_of(&res);
            }
            self.drop_if_unused(object);
        }
    }

    /// Starts write-back for a writer that waits for the budget.
    pub(super) fn start_write_back(&self) {
        self.wake_write_back.notify_one();
    }

    /// One round of write-back: under pressure all dirty data, else old data and whole RPCs.
    async fn write_back_round(&self) {
        let queued: Vec<Arc<Object>> = self.dirty_objects.lock().drain(..).collect();
        for object in queued {
            let Some(since) = object.dirty_since() else {
                self.drop_if_unused(object);
                continue;
            };
            let is_old = since.elapsed() >= DIRTY_AGE_MAX;
            let full_only = !is_old && !self.budget.under_pressure();
            object.start_writing(0..u64::MAX, full_only).await;
            match object.dirty_since() {
                Some(_) => self.dirty_objects.lock().push_back(object),
                None => self.drop_if_unused(object),
            }
        }
    }

    /// The space of the target.
    pub(super) async fn statfs(&self) -> Result<ObdStatfs, Errno> {
        let mut request = Request::new(OST_STATFS, Vec::new());
        request.timeout = Some(STATFS_TIMEOUT);
        request.no_delay = true;
        self.call(request).await?.get::<ObdStatfs>(bufs::OBD_STATFS)
    }

    /// Writes dirty data, cancels locks and disconnects. Each step is bounded by
    /// [`OST_UMOUNT_STEP_MAX`].
    pub(super) async fn umount(&self) {
        let write_and_cancel = async {
            for object in self.all_objects() {
                object.flush(0..u64::MAX).await;
            }
            self.locks().cancel_all().await;
        };
        if tokio::time::timeout(OST_UMOUNT_STEP_MAX, write_and_cancel)
            .await
            .is_err()
        {
            tracing::error!(
                import = self.name(),
                "unmount: the OST did not take the dirty data and lock cancellations within {OST_UMOUNT_STEP_MAX:?}; data that was not synced may be lost"
            );
        }
        if let Some(task) = self.write_back_task.lock().take() {
            task.abort();
        }
        if tokio::time::timeout(OST_UMOUNT_STEP_MAX, self.import().disconnect())
            .await
            .is_err()
        {
            tracing::warn!(
                import = self.name(),
                "unmount: the OST did not answer OST_DISCONNECT within {OST_UMOUNT_STEP_MAX:?}"
            );
        }
        self.params.lock().clear();
        self.objects.lock().clear();
        self.dirty_objects.lock().clear();
    }

    /// Stores the grant and the largest object size from a connect reply.
    fn handle_connect(&self, data: &ObdConnectData) {
        let grant = if data.ocd_connect_flags & OBD_CONNECT_GRANT != 0 {
            data.ocd_grant
        } else {
            0
        };
        self.budget.set_grant(u64::from(grant));
        if data.ocd_connect_flags & OBD_CONNECT_MAXBYTES != 0 {
            self.object_bytes_max.store(data.ocd_maxbytes, Ordering::Relaxed);
        }
    }
}

/// The connect data for an OST: the features that this client implements.
fn connect_data(nanoseconds: bool) -> ObdConnectData {
    ObdConnectData {
        paddingF: if nanoseconds { NANOSECONDS_REQUESTED } else { 0 },
        ocd_connect_flags: OBD_CONNECT_GRANT
            | OBD_CONNECT_VERSION
            | OBD_CONNECT_BRW_SIZE
            | OBD_CONNECT_CANCELSET
            | OBD_CONNECT_FID
            | OBD_CONNECT_SRVLOCK
            | OBD_CONNECT_AT
            | OBD_CONNECT_VBR
            | OBD_CONNECT_FULL20
            | OBD_CONNECT_64BITHASH
            | OBD_CONNECT_MAXBYTES
            | OBD_CONNECT_EINPROGRESS
            | OBD_CONNECT_LVB_TYPE
            | OBD_CONNECT_LAYOUTLOCK
            | OBD_CONNECT_BULK_MBITS
            | OBD_CONNECT_SHORTIO
            | OBD_CONNECT_CKSUM
            | OBD_CONNECT_FLAGS2,
        ocd_connect_flags2: OBD_CONNECT2_INC_XID | OBD_CONNECT2_LSEEK | OBD_CONNECT2_REP_MBITS,
        ocd_version: wire::LUSTRE_VERSION_CODE,
        ocd_grant: GRANT_REQUESTED,
        ocd_brw_size: BRW_BYTES_MAX,
        ocd_cksum_types: ChecksumType::supported(),
        ..ObdConnectData::default()
    }
}

/// How long the cancellation of a lock waits for the kernel to drop pages.
const KERNEL_WAIT_MAX: Duration = Duration::from_secs(1);
/// How many times as long the cancellation waits while the kernel truncates the file. Servers evict
/// a client that does not cancel much later.
const TRUNCATE_WAITS_MAX: u32 = 15;

/// The write-back task. Ends with the OSC.
async fn write_back(osc: Weak<Osc>) {
    loop {
        let Some(osc) = osc.upgrade() else { return };
        if osc.dirty_objects.lock().is_empty() {
            osc.wake_write_back.notified().await;
        } else {
            // Wakes at the latest after a period: by then some dirty data may be old.
            let _ = tokio::time::timeout(FLUSH_PERIOD, osc.wake_write_back.notified()).await;
        }
        osc.write_back_round().await;
    }
}
