//! One OST: its import, its available objects, and its space.

mod limits;
mod replay;
mod statfs;

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use mgc::TargetConf;
use osd::Batch;
use parking_lot::Mutex;
use rpc::{
    BoxFuture, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Ptlrpc, Reply, Request, RpcError,
};
use tokio::{
    sync::{Notify, RwLock, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use wire::format::bufs;
use wire::{
    Errno, Fid, LU_SEQ_RANGE_OST, LUSTRE_VERSION_CODE, LuSeqRange, Message, Nid, OBD_CONNECT_AT,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_INDEX,
    OBD_CONNECT_MDS, OBD_CONNECT_SKIP_ORPHAN, OBD_CONNECT_VERSION, OBD_CONNECT2_REP_MBITS, OBD_FL_DELORPHAN,
    OBD_MD_FLBLOCKS, OBD_MD_FLFID, OBD_MD_FLFLAGS, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLSIZE,
    OBD_OBJECT_EOF, OS_STATFS_DEGRADED, OS_STATFS_READONLY, OST_CREATE, OST_PUNCH, OST_SETATTR, OST_SYNC,
    ObdConnectData, ObdStatfs, Obdo, OstBody, OstIndex, SEQ_ALLOC_META, SEQ_QUERY, Transno, WireStruct,
};

use super::{OstSignals, pool::LastUsedId, shared_pool::SharedPool, watermarks::Watermarks, work};
use crate::{
    layout::StripeObject,
    lod::Candidate,
    store::{Change, Store, keys},
};

pub(crate) use limits::MAX_CREATE_COUNT;

/// Delay before a retry after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of requests in flight in addition to those of [`work`]. A request of [`work`] may
/// wait for clients to cancel locks, and precreation must not wait for it.
const OTHER_REQUESTS_MAX: usize = 4;
/// One OST, as the MDT uses it.
pub(crate) struct Ost {
    index: OstIndex,
    name: String,
    pub(super) store: Arc<Store>,
    import: Arc<Import>,
    pool: SharedPool,
    /// The number of the connection: odd while connected, even while disconnected; each connect and
    /// disconnect increases it.
    connection: watch::Sender<u64>,
    /// Whether the number of the connection is odd; creates read it without a lock.
    connected: AtomicBool,
    signals: OstSignals,
    /// A create has tried to take an object since the statfs task last looked.
    in_use: AtomicBool,
    /// The last statfs request has failed, or has been unanswered for [`statfs::SLOW`].
    slow: AtomicBool,
    /// Held during a statfs request.
    statfs_turn: tokio::sync::Mutex<()>,
    /// New files use the OST from this time on: by then the clients know the OST.
    usable_from: Instant,
    /// Number of times that the last available object was taken.
    pub(crate) times_emptied: AtomicU64,
    /// Wakes the precreation task when too few objects are available.
    precreate_wakeup: Notify,
    /// The last statfs, and the time of its reply.
    space: ArcSwapOption<(Instant, ObdStatfs)>,
    /// Read-locked while an adoption is in flight, write-locked while objects move from one file to
    /// another.
    pub(super) adoption_lock: Arc<RwLock<()>>,
    pub(crate) watermarks: Watermarks,
    /// `osp.*.max_create_count`: maximum number of objects per precreation; 0: no new files.
    pub(crate) max_create_count: Arc<AtomicU64>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The owner of the import: passes its events to the OST.
struct Owner(Weak<Ost>);

impl ImportOwner for Owner {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        // The MDT holds no locks on objects.
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, e: ImportEvent) {
        let Some(ost) = self.0.upgrade() else { return };
        let connects = matches!(e, ImportEvent::Connected(_));
        tracing::debug!(
            "{}: {}",
            ost.name,
            if connects { "connected" } else { "not connected" }
        );
        ost.connection.send_if_modified(|number| {
            let was_connected = *number % 2 == 1;
            *number += match (connects, was_connected) {
                (true, true) => 2,
                (true, false) | (false, true) => 1,
                (false, false) => 0,
            };
            ost.connected.store(connects, Ordering::Release);
            connects || was_connected
        });
    }
}

impl Ost {
    /// Starts the tasks of an OST: they connect to it in the background, then precreate objects.
    /// New files use the OST only after `delay`.
    pub(super) async fn start(
        rpc: &Arc<Ptlrpc>,
        store: &Arc<Store>,
        mdt: &str,
        target: &TargetConf,
        signals: OstSignals,
        delay: Duration,
    ) -> Result<Arc<Ost>, Errno> {
        let last_used = match store.index().get(&keys::objects(OstIndex(target.index))).await? {
            Some(value) => LastUsedId::decode(&value)?,
            None => LastUsedId::default(),
        };
        let name = format!(
            "{}-osc-{}",
            target.name,
            mdt.rsplit_once('-').map_or(mdt, |(_, m)| m)
        );
        let connect = ObdConnectData {
            ocd_connect_flags: OBD_CONNECT_INDEX
                | OBD_CONNECT_MDS
                | OBD_CONNECT_VERSION
                | OBD_CONNECT_AT
                | OBD_CONNECT_FID
                | OBD_CONNECT_SKIP_ORPHAN
                | OBD_CONNECT_FULL20
                | OBD_CONNECT_BULK_MBITS
                | OBD_CONNECT_FLAGS2,
            ocd_connect_flags2: OBD_CONNECT2_REP_MBITS,
            ocd_version: LUSTRE_VERSION_CODE,
            ocd_index: target.index,
            ..ObdConnectData::default()
        };
        let ost = Arc::new_cyclic(|weak: &Weak<Ost>| {
            let import = Import::new(
                rpc,
                ImportConfig {
                    name: name.clone(),
                    target_uuid: target.uuid.clone(),
                    client_uuid: format!("{mdt}-mdtlov_UUID"),
                    nids: target.nids.clone(),
                    kind: ImportKind::Osp,
                    connect,
                    max_rpcs_in_flight: (work::REQUESTS_MAX + OTHER_REQUESTS_MAX) as u32,
                    owner: Arc::new(Owner(weak.clone())),
                },
            );
            Ost {
                index: OstIndex(target.index),
                name,
                store: store.clone(),
                import,
                pool: SharedPool::new(last_used),
                connected: AtomicBool::new(false),
                connection: watch::Sender::new(0),
                signals,
                in_use: AtomicBool::new(false),
                slow: AtomicBool::new(false),
                statfs_turn: tokio::sync::Mutex::default(),
                usable_from: Instant::now() + delay,
                times_emptied: AtomicU64::new(0),
                precreate_wakeup: Notify::new(),
                space: ArcSwapOption::empty(),
                adoption_lock: Arc::default(),
                watermarks: Watermarks::default(),
                max_create_count: Arc::new(MAX_CREATE_COUNT.into()),
                tasks: Mutex::default(),
            }
        });
        let tasks = vec![
            cpt::spawn(precreate_task(ost.clone())),
            cpt::spawn(statfs::run(ost.clone())),
            cpt::spawn(work::run(ost.clone())),
            cpt::spawn(new_ost_delay_task(ost.clone())),
        ];
        *ost.tasks.lock() = tasks;
        Ok(ost)
    }

    /// Sets the OST's NIDs.
    pub(super) fn set_nids(&self, nids: &[Nid]) {
        self.import.set_nids(nids);
    }

    /// Handles the message that the OST has started again ([`Import::target_started`]).
    pub(super) fn target_started(&self, nids: &[Nid], instance: u32) {
        self.import.target_started(nids, instance);
    }

    /// The OST's index.
    pub(crate) fn index(&self) -> OstIndex {
        self.index
    }

    /// The target's UUID, such as `testfs-OST0000_UUID`.
    pub(crate) fn target_uuid(&self) -> &str {
        self.import.target_uuid()
    }

    /// The connection to the OST.
    pub(crate) fn import(&self) -> &Arc<Import> {
        &self.import
    }

    /// Whether the OST is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// The sequence of the OST's new objects, the last allocated id and the last precreated id.
    pub(crate) fn objects(&self) -> (u64, u32, u32) {
        self.pool.lock().state()
    }

    /// The device name, such as `testfs-OST0000-osc-MDT0000`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the OST is connected; returns the number of the connection.
    pub(super) async fn wait_connected(&self) -> u64 {
        // This struct owns the sender, so the wait cannot fail.
        let connection = self
            .connection
            .subscribe()
            .wait_for(|number| number % 2 == 1)
            .await
            .map(|number| *number);
        connection.unwrap_or_default()
    }

    /// The last transaction that the OST reported as committed.
    pub(super) fn last_committed(&self) -> Transno {
        self.import.last_committed()
    }

    /// Sends a request.
    pub(super) async fn call(&self, req: Request) -> Result<rpc::ReplyMsg, RpcError> {
        self.import.call(req).await
    }

    /// The OST's state, by which [`crate::lod`] chooses OSTs. Takes no lock: each create asks every
    /// OST.
    pub(crate) fn candidate(&self) -> Candidate {
        let connected = self.is_connected();
        let is_known = Instant::now() >= self.usable_from;
        let ready = is_known && self.pool.available() > 0 && connected;
        let space = self.space.load();
        let free = space
            .as_deref()
            .map_or(0, |(_, s)| s.os_bavail * u64::from(s.os_bsize));
        let state = space.as_deref().map_or(0, |(_, s)| s.os_state);
        Candidate {
            ost: self.index,
            free,
            ready,
            connected,
            full: self.watermarks.is_full() || self.is_draining(),
            read_only: state & OS_STATFS_READONLY != 0,
            degraded: state & OS_STATFS_DEGRADED != 0,
            slow: self.is_slow(),
        }
    }

    /// Whether the last statfs request has failed, or has been unanswered for [`statfs::SLOW`].
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// Takes an object for a new file, if one is available.
    pub(crate) fn take(&self) -> Result<Option<Fid>, Errno> {
        let mut pool = self.pool.lock();
        let taken = pool.take();
        if taken.is_some() && pool.available() == 0 {
            self.times_emptied.fetch_add(1, Ordering::Relaxed);
        }
        if pool.next_precreate(self.precreate_max()).is_some() {
            self.precreate_wakeup.notify_one();
        }
        self.in_use.store(true, Ordering::Relaxed);
        let Some((fid, last_used)) = taken else {
            return Ok(None);
        };
        if let Some(last_used) = last_used {
            // The store must have the record before the create that uses the id. The pool's lock
            // keeps the records in order.
            self.save_last_used(last_used)?;
        }
        Ok(Some(fid))
    }

    /// Returns an unused object to the pool.
    pub(super) fn put_back(&self, fid: Fid) {
        self.pool.lock().put_back(fid);
    }

    /// Queues the destruction of the allocated objects that no file uses.
    async fn destroy_unused(&self) -> Result<(), Errno> {
        let unused = self.pool.lock().take_unused();
        if unused.is_empty() {
            return Ok(());
        }
        let mut change = Change::new();
        for fid in unused {
            change.queue_destroy(StripeObject { ost: self.index, fid });
        }
        self.store.apply(change).await?;
        Ok(())
    }

    fn save_last_used(&self, last_used: LastUsedId) -> Result<(), Errno> {
        let mut batch = Batch::new();
        batch.put_twice(keys::objects(self.index), last_used.encode());
        Ok(self.store.index().apply(batch)?)
    }

    /// Extends a new object with a hole to `size` bytes, and waits until the size is on the OST's
    /// disk.
    pub(super) async fn extend(&self, object: Fid, size: u64) -> Result<(), Errno> {
        let valid = OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        for (opc, o_size) in [(OST_PUNCH, size), (OST_SYNC, 0)] {
            let oa = Obdo {
                o_oi: object.into(),
                o_valid: valid,
                o_size,
                o_blocks: OBD_OBJECT_EOF,
                ..Obdo::default()
            };
            let body = OstBody { oa }.to_bytes();
            self.call(Request::new(opc, vec![body, Bytes::new()])).await?;
        }
        Ok(())
    }

    /// Detaches an object from its file: the OST then assigns the object to the file that the next
    /// change of the object names. Waits until the object's data is on disk.
    pub(super) async fn detach(&self, object: Fid) -> Result<(), Errno> {
        let oa = Obdo {
            o_oi: object.into(),
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLFID,
            ..Obdo::default()
        };
        let whole = Obdo {
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
            o_blocks: OBD_OBJECT_EOF,
            ..oa
        };
        for (opc, oa) in [(OST_SETATTR, oa), (OST_SYNC, whole)] {
            let body = OstBody { oa }.to_bytes();
            match self.call(Request::new(opc, vec![body, Bytes::new()])).await {
                // ENOENT: the object was never written.
                Ok(_) | Err(RpcError::Status(Errno::ENOENT)) => {}
                Err(e) => return Err(e.errno()),
            }
        }
        Ok(())
    }

    /// Sends OST_CREATE; returns the object FID in the reply.
    async fn create(&self, oa: Obdo) -> Result<Fid, Errno> {
        let reply = self
            .import
            .call(Request::new(OST_CREATE, vec![OstBody { oa }.to_bytes()]))
            .await?;
        Ok(reply.get::<OstBody>(bufs::OST_BODY)?.oa.o_oi.fid())
    }

    /// Prepares a new connection: requests a sequence if there is none. Otherwise, requests orphan
    /// cleanup: the OST destroys the objects above the last allocated id.
    async fn prepare_connection(&self) -> Result<(), Errno> {
        if self.pool.lock().seq() == 0 {
            return self.begin_sequence().await;
        }
        let last_allocated = {
            let mut pool = self.pool.lock();
            pool.drop_precreated();
            pool.last_allocated()
        };
        let oa = Obdo {
            o_valid: OBD_MD_FLFLAGS | OBD_MD_FLGROUP,
            o_flags: OBD_FL_DELORPHAN,
            o_oi: last_allocated.into(),
            ..Obdo::default()
        };
        let last = match self.create(oa).await {
            // The OST does not know the sequence: its store was replaced by a new one.
            Err(Errno::EINVAL) => {
                lnet::warn_rate_limited!(ost = %self.name, seq = last_allocated.f_seq, "the OST does not know the sequence of its objects; requesting a new sequence");
                return self.begin_sequence().await;
            }
            last => last?,
        };
        if last.f_seq != last_allocated.f_seq {
            tracing::error!(
                "{}: orphan cleanup above {last_allocated} returned {last}, of another sequence",
                self.name
            );
            return Err(Errno::EPROTO);
        }
        self.pool.lock().record_orphan_cleanup(last.f_oid);
        Ok(())
    }

    /// Gets a new sequence from the OST, and records it.
    async fn begin_sequence(&self) -> Result<(), Errno> {
        let opc = Bytes::copy_from_slice(&SEQ_ALLOC_META.to_le_bytes());
        let range = LuSeqRange {
            lsr_flags: LU_SEQ_RANGE_OST,
            ..LuSeqRange::default()
        };
        let reply = self
            .import
            .call(Request::new(SEQ_QUERY, vec![opc, range.to_bytes()]))
            .await?;
        let range: LuSeqRange = reply.get(bufs::QUERY_REPLY_RANGE)?;
        if range.lsr_start >= range.lsr_end {
            return Err(Errno::EPROTO);
        }
        let last_used = self.pool.lock().begin_sequence(range.lsr_start);
        self.save_last_used(last_used)?;
        // After a crash, all files that clients create again have objects of this sequence.
        Ok(self.store.index().sync().await?)
    }

    /// Precreates objects until enough are available. `ENOSPC` if the OST creates none.
    async fn precreate(&self) -> Result<(), Errno> {
        loop {
            let (until, has_ids_left, before) = {
                let pool = self.pool.lock();
                let until = pool.next_precreate(self.precreate_max());
                (until, pool.has_ids_left(), pool.available())
            };
            let Some(until) = until else { return Ok(()) };
            if !has_ids_left && before == 0 {
                self.begin_sequence().await?;
                continue;
            }
            let oa = Obdo {
                o_valid: OBD_MD_FLGROUP,
                o_oi: until.into(),
                ..Obdo::default()
            };
            let last = self.create(oa).await?;
            if last.f_seq != until.f_seq {
                return Err(Errno::EPROTO);
            }
            let has_grown = {
                let mut pool = self.pool.lock();
                pool.add_precreated(last.f_oid);
                pool.available() > before
            };
            if !has_grown {
                return Err(Errno::ENOSPC);
            }
            self.signals.wakeup.send_replace(());
        }
    }

    /// Stops the tasks, queues the destruction of unused objects, records the exact last used id,
    /// and disconnects. Returns whether the store has the queue and the record.
    pub(super) async fn stop(&self) -> bool {
        for task in std::mem::take(&mut *self.tasks.lock()) {
            task.abort();
        }
        let mut is_stored = true;
        if let Err(e) = self.destroy_unused().await {
            tracing::warn!(
                "{}: cannot queue the destruction of unused objects: {e}",
                self.name
            );
            is_stored = false;
        }
        let last_used = self.pool.lock().exact_last_used();
        if last_used.seq != 0
            && let Err(e) = self.save_last_used(last_used)
        {
            tracing::warn!("{}: cannot record the last used object id: {e}", self.name);
            is_stored = false;
        }
        self.import.disconnect().await;
        is_stored
    }
}

/// The precreation task: keeps objects available, also after reconnects.
async fn precreate_task(ost: Arc<Ost>) {
    let mut connection = ost.connection.subscribe();
    // The connect fails if the OST is not up yet; the import keeps trying.
    if let Err(e) = ost.import.connect().await {
        tracing::info!("{}: connect failed: {e}; retrying", ost.name);
    }
    loop {
        ost.wait_may_create().await;
        ost.wait_connected().await;
        let number = *connection.borrow_and_update();
        let mut result = ost.prepare_connection().await;
        if result.is_ok() && ost.statfs().await.is_none() {
            tracing::debug!("{}: statfs failed, space unknown", ost.name);
        }
        while *connection.borrow() == number {
            if result.is_ok() {
                result = ost.precreate().await;
            }
            match &result {
                Ok(()) => tokio::select! {
                    biased;
                    _ = connection.changed() => {}
                    () = ost.precreate_wakeup.notified() => {}
                },
                Err(e) => {
                    tracing::debug!("{}: precreation failed: {e}", ost.name);
                    sleep(RETRY_DELAY).await;
                    ost.statfs().await;
                    result = ost.prepare_connection().await;
                }
            }
        }
    }
}

/// The task that wakes waiting creates when the delay of a new OST ends.
async fn new_ost_delay_task(ost: Arc<Ost>) {
    sleep_until(ost.usable_from).await;
    ost.signals.wakeup.send_replace(());
}
