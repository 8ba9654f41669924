//! The client of one target for data: its connection, its locks, the budget for dirty data, and the
//! parameters. The target is an OST, or an MDT for files with data there. An MDT's connection and
//! locks are those of its [`Mdc`]. The client gets no grant from an MDT, so it sends each write at
//! once.

mod file_of;
mod rpc_stats;
mod tunables;

use super::brw::{BrwParams, SHORT_IO_BYTES_MAX};
use super::budget::Budget;
use super::cache_limit::CacheLimit;
use super::config::DataConfig;
use super::losses::Losses;
use crate::client::{Clock, STATFS_TIMEOUT};
use crate::kernel::Kernel;
use crate::lmv::Lmv;
use crate::mdc::Mdc;
use crate::stats::MountStats;
use cpt::Handle;
use ldlm::{LockClient, LockClientConfig, LockOwner, Policy};
use params::Group;
use parking_lot::Mutex;
use rpc::{Import, ImportConfig, ImportKind, ImportOwner, Ptlrpc, ReplyMsg, Request, RpcError};
use rpc_stats::RpcStats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, future::Future, ops::Range};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tunables::Tunables;
use wire::checksum::ChecksumType;
use wire::format::bufs;
use wire::{
    Errno, Fid, MDS_INODELOCK_DOM, NANOSECONDS_REQUESTED, Nid, OBD_CONNECT_64BITHASH, OBD_CONNECT_AT,
    OBD_CONNECT_BRW_SIZE, OBD_CONNECT_BULK_MBITS, OBD_CONNECT_CANCELSET, OBD_CONNECT_CKSUM,
    OBD_CONNECT_EINPROGRESS, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_GRANT,
    OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_MAXBYTES, OBD_CONNECT_SHORTIO,
    OBD_CONNECT_SRVLOCK, OBD_CONNECT_VBR, OBD_CONNECT_VERSION, OBD_CONNECT2_INC_XID, OBD_CONNECT2_LSEEK,
    OBD_CONNECT2_REP_MBITS, OBD_OBJECT_EOF, OST_STATFS, ObdConnectData, ObdStatfs, OstIndex, Precision, Time,
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

/// The client of one target.
pub(super) struct Osc {
    target: OscTarget,
    import: Arc<Import>,
    locks: Arc<LockClient>,
    budget: Budget,
    tunables: Tunables,
    rpc_stats: RpcStats,
    stats: Arc<MountStats>,
    kernel: Kernel,
    clock: Clock,
    losses: Arc<Losses>,
    lmv: Arc<Lmv>,
    /// Whether the target is an MDT.
    is_mdt: bool,
    /// Whether the target is known to require capabilities.
    requires_capabilities: AtomicBool,
    runtime: Handle,
    /// One permit for each concurrent write RPC.
    write_slots: Arc<Semaphore>,
    cache_limit: Arc<CacheLimit>,
    /// Largest object size in bytes, as the target reported it.
    object_bytes_max: AtomicU64,
    params: Mutex<Vec<Group>>,
}

impl fmt::Debug for Osc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Osc")
            .field("name", &self.target.name)
            .finish_non_exhaustive()
    }
}

impl Osc {
    /// Creates the import and the lock client, which tell `owner` of their events.
    pub(super) fn new<O: ImportOwner + LockOwner>(
        rpc: &Arc<Ptlrpc>,
        target: OscTarget,
        cfg: &DataConfig,
        cache_limit: &Arc<CacheLimit>,
        losses: Arc<Losses>,
        owner: Arc<O>,
    ) -> Arc<Osc> {
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
        let osc = Osc::with_connection(target, (import, locks), cfg, cache_limit, losses);
        let osc = Arc::new(osc);
        *osc.params.lock() = vec![
            osc.register_params(&cfg.params),
            osc.locks().register_params(&cfg.params, osc.name()),
        ];
        osc
    }

    /// The client of a metadata target's data.
    pub(super) fn of_mdt(
        mdc: &Arc<Mdc>,
        cfg: &DataConfig,
        cache_limit: &Arc<CacheLimit>,
        losses: Arc<Losses>,
    ) -> Arc<Osc> {
        let target = OscTarget {
            name: mdc.import.name().to_owned(),
            target_uuid: String::new(),
            client_uuid: cfg.client_uuid.clone(),
            index: OstIndex(mdc.index),
            nids: Vec::new(),
        };
        let connection = (mdc.import.clone(), mdc.locks.clone());
        Arc::new(Osc {
            is_mdt: true,
            ..Osc::with_connection(target, connection, cfg, cache_limit, losses)
        })
    }

    fn with_connection(
        target: OscTarget,
        (import, locks): (Arc<Import>, Arc<LockClient>),
        cfg: &DataConfig,
        cache_limit: &Arc<CacheLimit>,
        losses: Arc<Losses>,
    ) -> Osc {
        Osc {
            target,
            import,
            locks,
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
            is_mdt: false,
            requires_capabilities: AtomicBool::new(false),
            runtime: Handle::current(),
            write_slots: Arc::new(Semaphore::new(DEFAULT_RPCS_IN_FLIGHT as usize)),
            cache_limit: cache_limit.clone(),
            object_bytes_max: AtomicU64::new(u64::MAX),
            params: Mutex::default(),
        }
    }

    /// Connects in the background.
    pub(super) fn start_connecting(&self) {
        let (import, name) = (self.import.clone(), self.target.name.clone());
        import.set_idle_timeout(Some(DEFAULT_IDLE_TIMEOUT));
        import.start_connecting();
        cpt::spawn(async move {
            if let Err(error) = import.connect().await {
                tracing::warn!(import = name, %error, "cannot connect to the OST yet; retrying in the background");
            }
        });
    }

    /// Removes the parameters.
    pub(super) fn remove_params(&self) {
        self.params.lock().clear();
    }

    pub(super) fn name(&self) -> &str {
        &self.target.name
    }

    pub(super) fn index(&self) -> OstIndex {
        self.target.index
    }

    pub(super) fn locks(&self) -> &Arc<LockClient> {
        &self.locks
    }

    pub(super) fn import(&self) -> &Arc<Import> {
        &self.import
    }

    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    pub(super) async fn call(&self, request: Request) -> Result<ReplyMsg, RpcError> {
        let request = Request {
            // Other requests to an MDT may wait until this client has written and released a lock.
            limited: request.limited && !self.is_mdt,
            ..request
        };
        self.import().call(request).await
    }

    /// Whether the target is an MDT.
    pub(super) fn is_mdt(&self) -> bool {
        self.is_mdt
    }

    /// The lock policy of a byte range of an object: on an MDT, the DOM bit of the file. An extent
    /// lock stores its last byte, not its end.
    pub(super) fn lock_policy(&self, range: &Range<u64>) -> Policy {
        match range.end {
            _ if self.is_mdt => Policy::ibits(MDS_INODELOCK_DOM),
            OBD_OBJECT_EOF => Policy::extent(range.start, OBD_OBJECT_EOF),
            end => Policy::extent(range.start, end - 1),
        }
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
        if newly > 0 {
            let kernel = self.kernel.clone();
            self.spawn(async move { invalidate_in_kernel(&kernel, file).await });
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
            syncs_without_grant: !self.is_mdt,
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

    /// The mount's statistics.
    pub(super) fn stats(&self) -> &MountStats {
        &self.stats
    }

    pub(super) fn cache_limit(&self) -> &Arc<CacheLimit> {
        &self.cache_limit
    }

    /// Waits for one of the slots of concurrent write RPCs.
    pub(super) async fn acquire_write_slot(&self) -> Option<OwnedSemaphorePermit> {
        self.write_slots.clone().acquire_owned().await.ok()
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Invalidates a file's pages and attributes in the kernel.
    pub(super) async fn invalidate_in_kernel(&self, file: Fid) {
        invalidate_in_kernel(&self.kernel, file).await;
    }

    /// The space of the target.
    pub(super) async fn statfs(&self) -> Result<ObdStatfs, Errno> {
        let mut request = Request::new(OST_STATFS, Vec::new());
        request.timeout = Some(STATFS_TIMEOUT);
        request.no_delay = true;
        self.call(request).await?.get::<ObdStatfs>(bufs::OBD_STATFS)
    }

    /// Stores the grant and the largest object size from a connect reply.
    pub(super) fn handle_connect(&self, data: &ObdConnectData) {
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

/// Invalidates a file's pages and attributes in the kernel.
async fn invalidate_in_kernel(kernel: &Kernel, file: Fid) {
    let invalidation = kernel.invalidate_file(file);
    tokio::pin!(invalidation);
    // The kernel may hold a page for a read that waits for the lock that this client is cancelling,
    // so this wait is bounded. While a truncate waits for a slow server, wait on.
    for _ in 0..TRUNCATE_WAITS_MAX {
        let invalidated = tokio::time::timeout(KERNEL_WAIT_MAX, &mut invalidation).await;
        if invalidated.is_ok() || !kernel.is_truncating(file) {
            return;
        }
    }
}
