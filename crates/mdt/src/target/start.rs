//! Starts and stops the MDT, and follows the configuration of the file system.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use ldlm::{LdlmConfig, LockServer, LockType};
use mgc::{FsConfig, NidTable};
use osd::{Batch, Index, Stores};
use rpc::{Export, Import, Ptlrpc, TargetExports, services};
use tokio::sync::watch;
use wire::{Errno, Fid, LockTerms, OstIndex, Time};

use super::{
    Mdt, MdtConfig,
    recovery::{Recovery, remove_orphans},
};
use crate::{
    dir_stats::DirStats,
    error::MdtError,
    handles::Cookies,
    intent::DataWithOpen,
    locks::Locks,
    namespace::make_root,
    osp::{
        Osts,
        orphans::{self, IdRanges},
    },
    parameters,
    peers::Peers,
    sequences::Sequences,
    store::{Store, dot_lustre, keys},
    updates::Updates,
};

/// Name of the setting with the index of an MDT other than MDT0000.
pub(crate) const INDEX: &str = "mdt.index";
/// Default of `mdd.*.atime_diff`, seconds.
const ATIME_DIFF_SECS: u64 = 60;

/// Default of `lod.*.dom_stripesize`, bytes; Lustre's default.
const ON_MDT_MAX_DEFAULT: u64 = 1 << 20;
/// Default of `mdt.*.capa_timeout`, seconds; Lustre's default.
const CAPA_TIMEOUT_SECS: u64 = 1800;

impl Mdt {
    /// Opens a store, and starts the target on it like [`Mdt::start_on`].
    ///
    /// # Errors
    ///
    /// [`MdtError::Store`] if the store cannot be opened or read, [`MdtError::NoRoot`] if the
    /// target ran on the store before and the root directory is missing, [`MdtError::NoIndex`] for
    /// the record of the index on other MDTs than MDT0000, or an error of [`Mdt::start_on`].
    pub async fn start(
        rpc: Arc<Ptlrpc>,
        config: watch::Receiver<Arc<FsConfig>>,
        store: &dyn Stores,
        cfg: MdtConfig,
    ) -> Result<Arc<Mdt>, MdtError> {
        let target = cfg.svname();
        let store_error = |source| MdtError::Store {
            target: target.clone(),
            source,
        };
        let index = store.open_index().await.map_err(store_error)?;
        let first_record = match cfg.index {
            0 => keys::inode(Fid::ROOT),
            _ => keys::setting(INDEX),
        };
        let has_first_record = index.get(&first_record).await.map_err(store_error)?.is_some();
        if store.has_run() && !has_first_record {
            return Err(lost_records(target, cfg.index));
        }
        Mdt::start_on(rpc, index, config, cfg).await
    }

    /// Starts the target on an open index: MDT0000 creates the root directory if the index is
    /// empty. Destroys files that were removed while open, connects to the OSTs and to the other
    /// MDTs, and serves clients.
    /// `config` is the file system's configuration from the client log; the target applies its
    /// changes. If clients were connected before the start, they recover first, and the target
    /// destroys nothing before that.
    ///
    /// # Errors
    ///
    /// [`MdtError::NoRoot`] or [`MdtError::NoIndex`] if the index has contents but lacks the root
    /// directory or, on other MDTs than MDT0000, the record of the MDT's index;
    /// [`MdtError::Contents`] if its contents cannot be read, [`MdtError::Rpc`] if the services
    /// cannot start.
    pub async fn start_on(
        rpc: Arc<Ptlrpc>,
        index: Arc<dyn Index>,
        config: watch::Receiver<Arc<FsConfig>>,
        cfg: MdtConfig,
    ) -> Result<Arc<Mdt>, MdtError> {
        let svname = cfg.svname();
        let uuid = format!("{svname}_UUID");
        let contents_error = |records: &'static str| {
            let target = svname.clone();
            move |errno: Errno| MdtError::Contents {
                target,
                records,
                errno,
            }
        };
        let store = Arc::new(Store::new(index));
        let recovery = Recovery::begin(&store, &rpc.lnet().nids())
            .await
            .map_err(contents_error("the records of clients"))?;
        let is_recovering = recovery.is_active();
        // The user of the server process owns the root: there may be no superuser to change its
        // owner.
        let owner = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let is_complete = match cfg.index {
            0 => make_first_directory(&store, owner, cfg.clock.now())
                .await
                .map_err(contents_error("the root directory"))?,
            index => record_index(&store, index)
                .await
                .map_err(contents_error("the index of the MDT"))?,
        };
        if !is_complete {
            return Err(lost_records(svname, cfg.index));
        }
        if cfg.index == 0 {
            dot_lustre::make(&store, owner, cfg.clock.now())
                .await
                .map_err(contents_error("the directory .lustre"))?;
        }
        if !is_recovering {
            let removed = remove_orphans(&store).await;
            removed.map_err(contents_error("the orphan records"))?;
        }
        let unverified = orphans::unverified_ids(&store)
            .await
            .map_err(contents_error("the records of OST objects"))?;
        let peers = Peers::new(rpc.clone(), &cfg.fsname, cfg.index, cfg.params.clone());
        let peers = Arc::new(peers);
        let sequences = Sequences::load(store.clone(), cfg.index, Some(peers.clone()))
            .await
            .map_err(contents_error("the FID sequences"))?;
        let sequences = Arc::new(sequences);
        let ldlm = LdlmConfig {
            seed: cfg.seed,
            limits: cfg.locks.clone(),
            types: &[LockType::Ibits, LockType::Flock],
            ..LdlmConfig::default()
        };
        let locks = Locks::new(LockServer::new(
            &format!("mdt-{uuid}"),
            Arc::new(crate::data::Inodes(store.clone())),
            ldlm,
        ));
        let updates = Updates::load(
            (cfg.index, &svname),
            store.clone(),
            peers.clone(),
            locks.clone(),
            sequences.clone(),
        )
        .await
        .map_err(contents_error("the update records"))?;
        let mdt = Arc::new(Mdt {
            locks,
            updates,
            cookies: Cookies::new(store.transactions().epoch()),
            osts: Osts::new(rpc.clone(), store.clone(), svname.clone(), cfg.params.clone()),
            sequence_owners: Default::default(),
            recovery,
            squash: Default::default(),
            dir_stats: DirStats::new(rpc.partitions()),
            clock: cfg.clock.clone(),
            atime_diff: Arc::new(ATIME_DIFF_SECS.into()),
            index: cfg.index,
            capa_timeout: Arc::new(CAPA_TIMEOUT_SECS.into()),
            on_mdt_max: Arc::new(ON_MDT_MAX_DEFAULT.into()),
            data_with_open: DataWithOpen::default(),
            start_scans: Default::default(),
            orphan_scan: Default::default(),
            tasks: Default::default(),
            groups: Default::default(),
            rpc: rpc.clone(),
            config: config.clone(),
            nodemaps: cfg.nodemaps.clone(),
            capa_keys: cfg.capa_keys.clone(),
            sequences,
            peers,
            store,
            uuid,
        });
        if is_recovering {
            mdt.osts.postpone_creates();
            mdt.locks.server().begin_replay();
        }
        let present = config.borrow().clone();
        mdt.peers.apply_config(&present);
        mdt.osts
            .apply_config(&present, Duration::ZERO)
            .await
            .map_err(contents_error("the records of OST objects"))?;
        let rpc_error = |source| MdtError::Rpc {
            target: svname.clone(),
            source,
        };
        rpc.serve(services::MDS).map_err(rpc_error)?;
        rpc.serve(services::LDLM).map_err(rpc_error)?;
        // Before the target is known to the RPC layer, which may end recovery.
        match is_recovering {
            true => mdt.recovery.postpone_scan(unverified),
            false => mdt.scan_for_orphan_objects(unverified),
        }
        let exports = rpc.add_target(mdt.clone());
        *mdt.groups.lock() = parameters::register(&mdt, &exports, &cfg.params);
        let (store, uuid, progress) = (mdt.store.clone(), mdt.uuid.clone(), mdt.start_scans.clone());
        let inode_count = cpt::spawn(async move {
            if let Err(e) = store.count_inodes(&progress).await {
                tracing::warn!(
                    "{uuid}: cannot count the inodes, so statfs reports those of the local file system: {e}"
                );
            }
        });
        let config_task = follow_config(Arc::downgrade(&mdt), Arc::downgrade(&exports), config);
        let eviction_task = mgc::evict_denied(cfg.nodemaps.clone(), Arc::downgrade(&exports));
        let sequence_task = mdt.sequences.clone().keep_super_sequence();
        let update_recovery = recover_updates(mdt.clone());
        let tasks = [
            inode_count,
            cpt::spawn(config_task),
            cpt::spawn(eviction_task),
            cpt::spawn(sequence_task),
            cpt::spawn(update_recovery),
            cpt::spawn(Updates::forget_settled(Arc::downgrade(&mdt.updates))),
        ];
        mdt.tasks.lock().extend(tasks);
        Ok(mdt)
    }

    /// Starts the scan for objects that belong to no file, among these ids.
    pub(super) fn scan_for_orphan_objects(&self, ids: IdRanges) {
        let (store, uuid, progress) = (self.store.clone(), self.uuid.clone(), self.start_scans.clone());
        let scan = cpt::spawn(async move {
            match orphans::queue_orphans(&store, &ids, &progress).await {
                Ok(0) => {}
                Ok(n) => {
                    tracing::info!(
                        "{uuid}: the last stop was not clean: destroying {n} objects that belong to no file"
                    );
                }
                Err(e) => {
                    tracing::error!(
                        "{uuid}: cannot scan for orphan objects, so some may remain until the next start: {e}"
                    );
                    return false;
                }
            }
            true
        });
        *self.orphan_scan.lock() = Some(scan);
    }

    /// The number of this start, `ocd_instance`. Clients and the MGS detect a restart by its change.
    pub fn instance(&self) -> u32 {
        self.store.transactions().epoch() as u32
    }

    /// Reconnects to OSTs and other MDTs as soon as this table of NIDs says that they have started
    /// again.
    pub fn follow_nid_table(self: &Arc<Self>, table: watch::Receiver<Arc<NidTable>>) {
        let following = cpt::spawn(follow_locations(Arc::downgrade(self), table));
        self.tasks.lock().push(following);
    }

    /// The connections to other targets (Lustre's OSP devices): to the MDTs, then to the OSTs.
    pub fn imports(&self) -> Vec<Arc<Import>> {
        let osts = self.osts.all();
        let of_osts = osts.iter().map(|ost| ost.import().clone());
        self.peers.imports().into_iter().chain(of_osts).collect()
    }

    /// Waits until `count` OSTs have precreated objects for new files, or are too full for them.
    /// Returns the full OSTs that have no objects. Does not wait while clients recover, which may
    /// take long: until then, the target creates no files.
    pub async fn osts_ready(&self, count: usize) -> Vec<OstIndex> {
        self.osts.wait_ready(count).await
    }

    /// Stops the target: disconnects clients and OSTs, and syncs the store. Logs a failed sync.
    pub async fn stop(&self) {
        self.rpc.remove_target(&self.uuid).await;
        self.start_scans.stop();
        let orphan_scan = self.orphan_scan.lock().take();
        let is_scanned = match orphan_scan {
            Some(scan) => scan.await.unwrap_or(false),
            None => false,
        };
        for task in std::mem::take(&mut *self.tasks.lock()) {
            task.abort();
        }
        self.groups.lock().clear();
        self.peers.stop().await;
        self.updates.stop().await;
        self.osts.stop(is_scanned).await;
        if let Err(e) = self.store.index().sync().await {
            tracing::error!("{}: sync failed, the last changes may be lost: {e}", self.uuid);
        }
    }
}

/// Gets the update records that the target may lack, and destroys the directories that they remove.
async fn recover_updates(mdt: Arc<Mdt>) {
    if mdt.updates.is_ready() {
        return;
    }
    mdt.updates.clone().recover().await;
    // The end of the clients' recovery also destroys them.
    if !mdt.recovery.is_active()
        && let Err(e) = remove_orphans(&mdt.store).await
    {
        tracing::error!(
            "{}: cannot destroy removed directories; the next start destroys them: {e}",
            mdt.uuid
        );
    }
}

/// Creates the root directory if the store is empty. Returns false if it is missing in a store with
/// other records.
async fn make_first_directory(store: &Store, owner: (u32, u32), now: Time) -> Result<bool, Errno> {
    if store.find(Fid::ROOT).await?.is_some() {
        return Ok(true);
    }
    if !store.is_empty().await? {
        return Ok(false);
    }
    make_root(store, owner, now).await?;
    // Sync first: after the start, the store is marked as used, and from then on a missing root
    // directory prevents a start.
    store.index().sync().await?;
    Ok(true)
}

/// Records the MDT's index if the store is empty: other MDTs than MDT0000 have no root directory.
/// Returns false if the record is missing in a store with other records, or has another index.
async fn record_index(store: &Store, index: u32) -> Result<bool, Errno> {
    let record = Bytes::copy_from_slice(&index.to_le_bytes());
    if let Some(found) = store.index().get(&keys::setting(INDEX)).await? {
        return Ok(found == record);
    }
    if !store.is_empty().await? {
        return Ok(false);
    }
    let mut batch = Batch::new();
    batch.put_twice(keys::setting(INDEX), record);
    store.index().apply(batch)?;
    store.index().sync().await?;
    Ok(true)
}

/// The error of a store that has lost the record that is written first.
fn lost_records(target: String, index: u32) -> MdtError {
    match index {
        0 => MdtError::NoRoot { target },
        _ => MdtError::NoIndex { target },
    }
}

/// Applies each change of the configuration: adds new OSTs and MDTs, and updates the NIDs of known
/// ones.
async fn follow_config(
    mdt: Weak<Mdt>,
    exports: Weak<TargetExports>,
    mut config: watch::Receiver<Arc<FsConfig>>,
) {
    // New files use the OSTs of the first configuration at once: clients know these OSTs.
    let mut expects_first_config = config.borrow().osts.is_empty();
    while config.changed().await.is_ok() {
        let (Some(mdt), Some(exports)) = (mdt.upgrade(), exports.upgrade()) else {
            return;
        };
        let new_config = config.borrow_and_update().clone();
        mdt.peers.apply_config(&new_config);
        let delay = match std::mem::take(&mut expects_first_config) {
            true => Duration::ZERO,
            false => new_ost_delay(&mdt, &exports),
        };
        if let Err(e) = mdt.osts.apply_config(&new_config, delay).await {
            tracing::error!("{}: cannot use a new OST: {e}", mdt.uuid);
        }
    }
}

/// Reconnects to targets that have started again, until the MDT is dropped.
async fn follow_locations(mdt: Weak<Mdt>, mut table: watch::Receiver<Arc<NidTable>>) {
    while table.changed().await.is_ok() {
        let Some(mdt) = mdt.upgrade() else { return };
        let table = table.borrow_and_update().clone();
        mdt.osts.apply_locations(&table);
        mdt.peers.apply_locations(&table);
    }
}

/// The time for which new files avoid an OST that joins now; zero without Lustre clients. A Nacre
/// client that finds a file on an unknown OST reads the configuration; a Lustre client fails.
fn new_ost_delay(mdt: &Mdt, exports: &TargetExports) -> Duration {
    let is_lustre_client = |e: &Arc<Export>| e.lock_terms() != LockTerms::Nacre && !e.is_server();
    match exports.all().iter().any(is_lustre_client) {
        true => Duration::from_secs(mdt.osts.new_ost_delay().load(Ordering::Relaxed)),
        false => Duration::ZERO,
    }
}
