//! One OST: its import, the objects at hand, and what it says about its space.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use mgc::TargetConf;
use osd::Batch;
use parking_lot::Mutex;
use rpc::{
    BoxFuture, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Ptlrpc, Reply, Request, RpcError,
};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use wire::format::bufs;
use wire::{
    Errno, Fid, LU_SEQ_RANGE_OST, LUSTRE_VERSION_CODE, LuSeqRange, Message, Nid, OBD_CONNECT_AT,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_INDEX,
    OBD_CONNECT_MDS, OBD_CONNECT_SKIP_ORPHAN, OBD_CONNECT_VERSION, OBD_CONNECT2_REP_MBITS, OBD_FL_DELORPHAN,
    OBD_MD_FLBLOCKS, OBD_MD_FLFLAGS, OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_CREATE,
    OST_PUNCH, OST_STATFS, OST_SYNC, ObdConnectData, ObdStatfs, Obdo, OstBody, OstIndex, SEQ_ALLOC_META,
    SEQ_QUERY, Transno, WireStruct,
};

use super::{
    Changes,
    full::{self, Full},
    pool::{Mark, Pool},
    work,
};
use crate::{
    lod::Candidate,
    store::{Store, keys},
};

/// Before an OST that refused is asked again.
const RETRY: Duration = Duration::from_secs(1);
/// How often an OST that new files are put on is asked for its space, to choose among OSTs and to see that it answers; and
/// after which time without an answer it is slow. Together less than a second.
const LOOK: Duration = Duration::from_millis(500);
const SLOW: Duration = Duration::from_millis(400);
/// Requests in flight beside those of [`work`], which may wait for clients to give locks back: new objects do not wait for that.
const OWN: usize = 4;
/// How long what an OST said about its space is true.
const STATFS_AGE: Duration = Duration::from_secs(1);
/// How long an answer about space is waited for.
const STATFS_PATIENCE: Duration = Duration::from_secs(3);

/// An object target.
pub(crate) struct Ost {
    index: OstIndex,
    name: String,
    pub(super) store: Arc<Store>,
    import: Arc<Import>,
    pool: Mutex<Pool>,
    /// Counts connections; even: not connected.
    connection: watch::Sender<u64>,
    /// Told when objects come to hand.
    changes: Changes,
    /// Whether objects were taken since its space was last asked for.
    used: AtomicBool,
    /// Whether it has not answered for a while.
    slow: AtomicBool,
    /// New files are put on it from then on: clients know it by then.
    known_at: Instant,
    /// How often the last object at hand was taken.
    pub(crate) emptied: AtomicU64,
    /// Wakes the task that keeps objects at hand.
    low: Notify,
    space: Mutex<Option<(Instant, ObdStatfs)>>,
    pub(crate) full: Full,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// Who the import belongs to.
struct Owner(Weak<Ost>);

impl ImportOwner for Owner {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        // The metadata target holds no locks on objects.
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, e: ImportEvent) {
        let Some(ost) = self.0.upgrade() else { return };
        let up = matches!(e, ImportEvent::Connected(_));
        tracing::debug!("{}: {}", ost.name, if up { "connected" } else { "not connected" });
        ost.connection.send_if_modified(|c| {
            let changes = up || *c % 2 == 1;
            *c += match (up, *c % 2 == 1) {
                (true, true) => 2,
                (true, false) | (false, true) => 1,
                (false, false) => 0,
            };
            changes
        });
    }
}

impl Ost {
    /// Begins to use an OST: connects in the background, then keeps objects at hand.
    pub(super) fn start(
        rpc: &Arc<Ptlrpc>,
        store: &Arc<Store>,
        mdt: &str,
        target: &TargetConf,
        changes: Changes,
        known_in: Duration,
    ) -> Result<Arc<Ost>, Errno> {
        let mark = match store.index().get(&keys::objects(OstIndex(target.index)))? {
            Some(value) => Mark::decode(&value)?,
            None => Mark::default(),
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
                    max_rpcs_in_flight: (work::PARALLEL + OWN) as u32,
                    owner: Arc::new(Owner(weak.clone())),
                },
            );
            Ost {
                index: OstIndex(target.index),
                name,
                store: store.clone(),
                import,
                pool: Mutex::new(Pool::new(mark)),
                connection: watch::Sender::new(0),
                changes,
                used: AtomicBool::new(false),
                slow: AtomicBool::new(false),
                known_at: Instant::now() + known_in,
                emptied: AtomicU64::new(0),
                low: Notify::new(),
                space: Mutex::default(),
                full: Full::default(),
                tasks: Mutex::default(),
            }
        });
        let tasks = vec![
            tokio::spawn(keep_ready(ost.clone())),
            tokio::spawn(look_again(ost.clone())),
            tokio::spawn(work::run(ost.clone())),
            tokio::spawn(become_known(ost.clone())),
        ];
        *ost.tasks.lock() = tasks;
        Ok(ost)
    }

    /// Sets where it is from now on.
    pub(super) fn set_nids(&self, nids: &[Nid]) {
        self.import.set_nids(nids);
    }

    /// Its index.
    pub(crate) fn index(&self) -> OstIndex {
        self.index
    }

    /// `testfs-OST0000_UUID`.
    pub(crate) fn target_uuid(&self) -> &str {
        self.import.target_uuid()
    }

    /// Whether it can be reached.
    pub(crate) fn is_connected(&self) -> bool {
        !self.connection.borrow().is_multiple_of(2)
    }

    /// The sequence of its objects, the last id given out and the last one made.
    pub(crate) fn objects(&self) -> (u64, u32, u32) {
        self.pool.lock().state()
    }

    /// Its name: `testfs-OST0000-osc-MDT0000`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits until the OST is connected; which connection it is.
    pub(super) async fn connected(&self) -> u64 {
        // The sender is this OST's own, so that the wait cannot fail.
        let connected = self
            .connection
            .subscribe()
            .wait_for(|c| c % 2 == 1)
            .await
            .map(|c| *c);
        connected.unwrap_or_default()
    }

    /// The OST's last transaction that is known to be on its disk.
    pub(super) fn last_committed(&self) -> Transno {
        self.import.last_committed()
    }

    /// Sends a request.
    pub(super) async fn call(&self, req: Request) -> Result<rpc::ReplyMsg, RpcError> {
        self.import.call(req).await
    }

    /// Whether it has objects, and how much space, for the choice of OSTs.
    pub(crate) fn candidate(&self) -> Candidate {
        let connected = self.is_connected();
        let is_known = Instant::now() >= self.known_at;
        let ready = is_known && self.pool.lock().ready() > 0 && connected;
        let free = self
            .space
            .lock()
            .as_ref()
            .map_or(0, |(_, s)| s.os_bavail * u64::from(s.os_bsize));
        Candidate {
            ost: self.index,
            free,
            ready,
            connected,
            full: self.full.is_full(),
            slow: self.is_slow(),
        }
    }

    /// Whether it has not answered for a while.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }

    /// An object for a new file, if one is at hand.
    pub(crate) fn take(&self) -> Result<Option<Fid>, Errno> {
        let mut pool = self.pool.lock();
        let taken = pool.take();
        if taken.is_some() && pool.ready() == 0 {
            self.emptied.fetch_add(1, Ordering::Relaxed);
        }
        if pool.wants().is_some() {
            self.low.notify_one();
        }
        self.used.store(true, Ordering::Relaxed);
        let Some((fid, mark)) = taken else { return Ok(None) };
        if let Some(mark) = mark {
            // In the store before the create that uses the id, and under the same lock as the next id.
            self.note(mark)?;
        }
        Ok(Some(fid))
    }

    fn note(&self, mark: Mark) -> Result<(), Errno> {
        let mut batch = Batch::new();
        batch.put(keys::objects(self.index), mark.encode());
        Ok(self.store.index().apply(batch)?)
    }

    /// What it says about its space; what it said last, when it does not answer.
    pub(crate) async fn statfs(&self) -> Option<ObdStatfs> {
        let known = *self.space.lock();
        if let Some((at, space)) = known
            && at.elapsed() < STATFS_AGE
        {
            return Some(space);
        }
        if !self.is_connected() {
            return known.map(|(_, space)| space);
        }
        let asked = timeout(STATFS_PATIENCE, self.ask_statfs()).await;
        asked.ok().and_then(Result::ok).or(known.map(|(_, space)| space))
    }

    async fn ask_statfs(&self) -> Result<ObdStatfs, Errno> {
        let reply = self.import.call(Request::new(OST_STATFS, Vec::new())).await?;
        let space: ObdStatfs = reply.get(bufs::OBD_STATFS)?;
        *self.space.lock() = Some((Instant::now(), space));
        if self.full.learn(&space) {
            let state = if self.full.is_full() {
                "full"
            } else {
                "has space again"
            };
            tracing::warn!(
                "{}: {state}: {} MiB, {} inodes",
                self.name,
                full::avail_mib(&space),
                space.os_ffree
            );
            self.changes.send_replace(());
        }
        Ok(space)
    }

    /// Extends a new object with a hole to `size` bytes; returns when that is on the OST's disk.
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

    async fn create(&self, oa: Obdo) -> Result<Fid, Errno> {
        let reply = self
            .import
            .call(Request::new(OST_CREATE, vec![OstBody { oa }.to_bytes()]))
            .await?;
        Ok(reply.get::<OstBody>(bufs::OST_BODY)?.oa.o_oi.fid())
    }

    /// After connecting: a sequence, and nothing left above what is given out.
    async fn prepare(&self) -> Result<(), Errno> {
        if self.pool.lock().seq() == 0 {
            return self.begin_sequence().await;
        }
        let given = {
            let mut pool = self.pool.lock();
            pool.forget_ready();
            pool.last_given()
        };
        let oa = Obdo {
            o_valid: OBD_MD_FLFLAGS | OBD_MD_FLGROUP,
            o_flags: OBD_FL_DELORPHAN,
            o_oi: given.into(),
            ..Obdo::default()
        };
        let last = match self.create(oa).await {
            // Its store was replaced by a new one.
            Err(Errno::EINVAL) => {
                lnet::warn_seldom!(ost = %self.name, seq = given.f_seq, "the OST does not know the sequence of its objects: it gets a new one");
                return self.begin_sequence().await;
            }
            last => last?,
        };
        if last.f_seq != given.f_seq {
            tracing::error!("{}: asked to clean up {given}, it answers {last}", self.name);
            return Err(Errno::EPROTO);
        }
        self.pool.lock().cleaned(last.f_oid);
        Ok(())
    }

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
        let mark = self.pool.lock().begin_sequence(range.lsr_start);
        self.note(mark)
    }

    /// Has the OST make more objects while too few are at hand.
    async fn refill(&self) -> Result<(), Errno> {
        loop {
            let (wanted, has_width, before) = {
                let pool = self.pool.lock();
                (pool.wants(), pool.has_width(), pool.ready())
            };
            let Some(wanted) = wanted else { return Ok(()) };
            if !has_width && before == 0 {
                self.begin_sequence().await?;
                continue;
            }
            let oa = Obdo {
                o_valid: OBD_MD_FLGROUP,
                o_oi: wanted.into(),
                ..Obdo::default()
            };
            let last = self.create(oa).await?;
            if last.f_seq != wanted.f_seq {
                return Err(Errno::EPROTO);
            }
            let grew = {
                let mut pool = self.pool.lock();
                pool.precreated(last.f_oid);
                pool.ready() > before
            };
            if !grew {
                return Err(Errno::ENOSPC);
            }
            self.changes.send_replace(());
        }
    }

    /// Stops, and notes which ids are really in use.
    pub(super) async fn stop(&self) {
        for task in std::mem::take(&mut *self.tasks.lock()) {
            task.abort();
        }
        let mark = self.pool.lock().exact_mark();
        if mark.seq != 0
            && let Err(e) = self.note(mark)
        {
            tracing::warn!("{}: the last object's id is not noted: {e}", self.name);
        }
        self.import.disconnect().await;
    }
}

/// Keeps objects at hand, over all connections.
async fn keep_ready(ost: Arc<Ost>) {
    let mut connection = ost.connection.subscribe();
    // Fails when the OST is not there yet; the import goes on trying.
    if let Err(e) = ost.import.connect().await {
        tracing::info!("{}: {e}; trying again", ost.name);
    }
    loop {
        ost.connected().await;
        let now = *connection.borrow_and_update();
        let mut result = ost.prepare().await;
        if result.is_ok() && ost.statfs().await.is_none() {
            tracing::debug!("{}: its space is not known yet", ost.name);
        }
        while *connection.borrow() == now {
            if result.is_ok() {
                result = ost.refill().await;
            }
            match &result {
                Ok(()) => tokio::select! {
                    () = ost.low.notified() => {}
                    _ = connection.changed() => {}
                    () = sleep(RETRY), if ost.full.is_full() => {
                        ost.statfs().await;
                    }
                },
                Err(e) => {
                    tracing::debug!("{}: no objects: {e}", ost.name);
                    sleep(RETRY).await;
                    ost.statfs().await;
                    result = ost.prepare().await;
                }
            }
        }
    }
}

/// Wakes creates that wait for objects when new files may be put on it.
async fn become_known(ost: Arc<Ost>) {
    sleep_until(ost.known_at).await;
    ost.changes.send_replace(());
}

/// Asks an OST that files are made on for its space, over all connections. While it does not answer it is slow.
async fn look_again(ost: Arc<Ost>) {
    loop {
        ost.connected().await;
        sleep(LOOK).await;
        if !ost.used.swap(false, Ordering::Relaxed) {
            continue;
        }
        let mut asked = std::pin::pin!(ost.ask_statfs());
        if timeout(SLOW, &mut asked).await.is_ok() {
            continue;
        }
        tracing::info!("{}: does not answer; new files go to others", ost.name);
        ost.slow.store(true, Ordering::Relaxed);
        let answer = asked.await;
        ost.slow.store(false, Ordering::Relaxed);
        tracing::info!("{}: answers again: {:?}", ost.name, answer.map(drop));
    }
}
