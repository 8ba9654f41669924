//! The target: its parts, dispatch of requests to handlers, start and stop.

use std::sync::{Arc, OnceLock};

use ldlm::{LdlmConfig, LockLimits, LockServer, LockType};
use lnet::warn_rate_limited;
use mgc::{CachedRights, CapaKeyring, FsConfig, Nodemaps, Rights};
use osd::{ClientRecords, DiskShare, Index, Objects, Space, Stores};
use params::{Group, Operations, Registry, as_usecs};
use parking_lot::Mutex;
use rpc::{
    BoxFuture, ConnectRequest, EndReason, Export, Holdings, KnownClient, Mark, Ptlrpc, Reply, Role,
    ServerRequest, Target, services,
};
use tokio::{sync::watch, task::JoinHandle, time::Instant};
use wire::format::bufs;
use wire::{
    Errno, Fid, LCK_CW, LCK_EX, LCK_GROUP, LCK_PW, LDLM_ENQUEUE, LDLM_ENQUEUE_CANCEL_OFF, LdlmRequest,
    OBD_CONNECT_BRW_SIZE, OBD_CONNECT_GRANT, OBD_MD_FLGID, OBD_MD_FLPROJID, OBD_MD_FLUID, OST_CREATE,
    OST_DESTROY, OST_FALLOCATE, OST_GET_INFO, OST_GETATTR, OST_PUNCH, OST_READ, OST_SEEK, OST_SET_INFO,
    OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE, ObdConnectData, OstBody, OstId, OstIndex, SEQ_QUERY,
    Transno,
};

use crate::{
    OstError,
    commit::Committer,
    grant::{ClientGrant, Grants},
    lvb::ObjectLvbs,
    modification_data::ModificationData,
    negotiate::Offer,
    parameters,
    scrub::Scrub,
    sequence::Sequences,
    stats, super_sequence,
    tombstones::Tombstones,
};

/// The largest read or write, bytes.
pub const BRW_SIZE_MAX: u32 = 4 << 20;
/// The largest object, bytes: ext4's limit.
const MAXBYTES: u64 = (16 << 40) - 4096;
/// The largest transfer of a client that negotiated no size: one page.
const BRW_SIZE_DEFAULT: u32 = 4096;

/// Lock modes that allow writing.
pub(crate) const WRITE_MODES: u32 = LCK_EX | LCK_PW | LCK_CW | LCK_GROUP;

/// The configuration of a target.
#[derive(Clone)]
pub struct OstConfig {
    /// The file system's name.
    pub fsname: String,
    /// The target's index.
    pub index: OstIndex,
    /// The largest read or write, bytes; a power of two up to [`BRW_SIZE_MAX`].
    pub brw_size: u32,
    /// The registry for the target's parameters.
    pub params: Registry,
    /// The limits that all lock servers of the process share.
    pub locks: Arc<LockLimits>,
    /// The rights of clients, by NID.
    pub nodemaps: Arc<Nodemaps>,
    /// The keys that verify capabilities.
    pub capa_keys: Arc<CapaKeyring>,
}

impl OstConfig {
    /// The default configuration of a target.
    pub fn new(fsname: &str, index: OstIndex) -> OstConfig {
        OstConfig {
            fsname: fsname.into(),
            index,
            brw_size: BRW_SIZE_MAX,
            params: Registry::default(),
            locks: Arc::default(),
            nodemaps: Arc::default(),
            capa_keys: Arc::default(),
        }
    }

    /// The target's name, such as `testfs-OST000a`.
    pub fn svname(&self) -> String {
        format!("{}-OST{:04x}", self.fsname, self.index)
    }
}

/// An object storage target.
pub struct Ost {
    pub(crate) fsname: String,
    pub(crate) svname: String,
    pub(crate) uuid: String,
    pub(crate) rpc: Arc<Ptlrpc>,
    /// The file system's targets, from the MGS.
    pub(crate) config: watch::Receiver<Arc<FsConfig>>,
    nodemaps: Arc<Nodemaps>,
    pub(crate) capa_keys: Arc<CapaKeyring>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) sequences: Arc<Sequences>,
    pub(crate) tombstones: Tombstones,
    pub(crate) committer: Arc<Committer>,
    pub(crate) client_records: Arc<ClientRecords>,
    /// The clients of earlier starts that may recover.
    pub(crate) known_clients: Vec<KnownClient>,
    pub(crate) grants: Grants,
    pub(crate) space: Arc<Space>,
    pub(crate) scrub: Arc<Scrub>,
    /// The share of the disk that statfs reports.
    pub(crate) share: DiskShare,
    pub(crate) locks: Arc<LockServer>,
    pub(crate) offer: Offer,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    commit_task: Mutex<Option<JoinHandle<()>>>,
    params: Mutex<Vec<Group>>,
}

/// The target's state of one client.
#[derive(Default)]
struct ExportState {
    grant: OnceLock<Arc<ClientGrant>>,
    modifications: ModificationData,
}

impl Ost {
    /// Starts the target on its store; the target serves requests when this returns. `config` is
    /// the file system's client log. It contains the NIDs of MDT0, from which the target requests
    /// its super-sequence.
    ///
    /// # Errors
    ///
    /// The store cannot be opened or holds a malformed record, or a service does not start.
    pub async fn start(
        rpc: &Arc<Ptlrpc>,
        config: watch::Receiver<Arc<FsConfig>>,
        store: &dyn Stores,
        cfg: OstConfig,
    ) -> Result<Arc<Ost>, OstError> {
        let svname = cfg.svname();
        let index = store.open_index().await?;
        let objects = store.open_objects(&index).await?;
        let sequences = Arc::new(Sequences::open(index.clone(), &svname, cfg.index).await?);
        let client_records = Arc::new(ClientRecords::load(index.clone()).await?);
        let nids = rpc.lnet().nids();
        let known_clients = client_records.known(&nids).await?;
        if known_clients.is_empty() {
            client_records.record_server(&nids).await?;
        }
        let committer = Committer::open(
            index.clone(),
            objects.clone(),
            store.boot_id(),
            &svname,
            !known_clients.is_empty(),
        );
        let committer = Arc::new(committer.await?);
        let space = index.space().clone();
        let object_lvbs = ObjectLvbs {
            objects: objects.clone(),
            sequences: sequences.clone(),
        };
        let seed = rpc.config().seed ^ committer.epoch().rotate_left(32) ^ u64::from(cfg.index.0);
        let locks = LockServer::new(
            &format!("filter-{svname}_UUID"),
            Arc::new(object_lvbs),
            LdlmConfig {
                seed,
                limits: cfg.locks.clone(),
                types: &[LockType::Extent],
                ..LdlmConfig::default()
            },
        );
        if !known_clients.is_empty() {
            locks.begin_replay();
        }
        let offer = Offer {
            index: cfg.index,
            instance: committer.epoch() as u32,
            brw_size: cfg.brw_size.min(BRW_SIZE_MAX),
            block_bits: space.statfs()?.bsize.max(4096).ilog2() as u8,
            maxbytes: MAXBYTES,
        };
        let ost = Arc::new(Ost {
            fsname: cfg.fsname.clone(),
            uuid: format!("{svname}_UUID"),
            svname,
            rpc: rpc.clone(),
            config: config.clone(),
            nodemaps: cfg.nodemaps.clone(),
            capa_keys: cfg.capa_keys.clone(),
            objects,
            index,
            sequences,
            tombstones: Tombstones::default(),
            committer,
            client_records,
            known_clients,
            grants: Grants::new(cpt::HashSeed::random()),
            share: space.share(),
            scrub: Arc::default(),
            space,
            locks,
            offer,
            stop: watch::Sender::new(false),
            tasks: Mutex::default(),
            commit_task: Mutex::default(),
            params: Mutex::default(),
        });
        let commit_task = cpt::spawn({
            let (committer, stop) = (ost.committer.clone(), ost.stop.subscribe());
            async move { committer.run(stop).await }
        });
        *ost.commit_task.lock() = Some(commit_task);
        if !ost.sequences.has_range() {
            let fetch = super_sequence::fetch(
                rpc.clone(),
                config,
                ost.sequences.clone(),
                (cfg.fsname, cfg.index),
            );
            ost.tasks.lock().push(cpt::spawn(fetch));
        }
        rpc.serve(services::OSS)?;
        rpc.serve(services::LDLM)?;
        let exports = rpc.add_target(ost.clone());
        *ost.params.lock() = parameters::register(&ost, &exports, &cfg.params);
        let scrub = {
            let (scrub, index, objects) = (ost.scrub.clone(), ost.index.clone(), ost.objects.clone());
            let svname = ost.svname.clone();
            async move { scrub.run(index, objects, svname).await }
        };
        ost.tasks.lock().push(cpt::spawn(scrub));
        let evict = mgc::evict_denied(cfg.nodemaps, Arc::downgrade(&exports));
        ost.tasks.lock().push(cpt::spawn(evict));
        Ok(ost)
    }

    /// The target's name, such as `testfs-OST0000`.
    pub fn svname(&self) -> &str {
        &self.svname
    }

    /// The statistics of the locks.
    #[cfg(feature = "sim")]
    pub fn lock_stats(&self) -> ldlm::LockStats {
        self.locks.stats()
    }

    /// Pairs of granted locks of different clients that conflict; there must be none.
    #[cfg(feature = "sim")]
    pub fn granted_conflicts(&self) -> Vec<String> {
        self.locks.granted_conflicts()
    }

    /// Whether the total of the grants is the sum of the clients' grants.
    #[cfg(feature = "sim")]
    pub fn grants_are_consistent(&self) -> bool {
        self.grants.is_consistent()
    }

    /// The number of this start. Clients and the MGS detect a restart by its change.
    pub fn instance(&self) -> u32 {
        self.offer.instance
    }

    /// Disconnects the clients, stops the tasks, and writes everything to disk.
    ///
    /// # Errors
    ///
    /// The last sync failed.
    pub async fn stop(&self) -> Result<(), OstError> {
        self.rpc.remove_target(&self.uuid).await;
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.params.lock().clear();
        self.stop.send_replace(true);
        let commit_task = self.commit_task.lock().take();
        if let Some(task) = commit_task
            && let Err(e) = task.await
        {
            tracing::error!("{}: the commit task panicked: {e}", self.svname);
        }
        // The commit task has synced already; this reports the result.
        self.objects.sync(None).await?;
        Ok(())
    }

    /// Checks that the sender may send the request, before any handler runs.
    pub(crate) fn check_permissions(&self, req: &ServerRequest) -> Result<(), Errno> {
        if !req.export.is_server() {
            self.check_client(req)?;
        }
        match req.opc {
            LDLM_ENQUEUE => self.check_locked_object(req),
            _ => Ok(()),
        }
    }

    /// Checks a client's request. Only MDTs may create and destroy objects and change their owner;
    /// a nodemap may forbid changes or require capabilities.
    fn check_client(&self, req: &ServerRequest) -> Result<(), Errno> {
        const OWNER: u64 = OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLPROJID;
        let is_mdt_only = match req.opc {
            OST_CREATE | OST_DESTROY | SEQ_QUERY => true,
            OST_SETATTR => req.get::<OstBody>(bufs::OST_BODY)?.oa.o_valid & OWNER != 0,
            _ => false,
        };
        if is_mdt_only {
            warn_rate_limited!(ost = %self.svname, peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, "request refused: only an MDT may send it");
            return Err(Errno::EPERM);
        }
        let changes = match req.opc {
            OST_WRITE | OST_PUNCH | OST_SETATTR | OST_FALLOCATE => true,
            // The holder of such a lock defines the object's size for other clients.
            LDLM_ENQUEUE => req.get::<LdlmRequest>(bufs::DLM_REQ)?.lock_desc.l_req_mode & WRITE_MODES != 0,
            _ => false,
        };
        let rights = self.rights(&req.export);
        if changes && rights.readonly_mount {
            warn_rate_limited!(ost = %self.svname, peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, "change refused: the nodemap of the client's NID has readonly_mount=1");
            return Err(Errno::EROFS);
        }
        if rights.capabilities {
            self.check_capability(req)?;
        }
        Ok(())
    }

    /// Fails an enqueue on an object that was never created here: with a lock the client would
    /// treat the object as empty. A client that recovers gets its lock also if a crash lost the
    /// record of the object's creation.
    fn check_locked_object(&self, req: &ServerRequest) -> Result<(), Errno> {
        let name = req
            .get::<LdlmRequest>(bufs::DLM_REQ)?
            .lock_desc
            .l_resource
            .lr_name
            .name;
        let id = OstId {
            oi_id: name[0],
            oi_seq: name[1],
        };
        match self.object(&id) {
            Err(Errno::EINPROGRESS) if self.is_claim(req) => Ok(()),
            object => object.map(drop),
        }
    }

    /// Cancels the locks listed in a failed enqueue request: its client has dropped them already.
    fn cancel_listed_locks(&self, req: &ServerRequest) {
        if req.opc == LDLM_ENQUEUE {
            let handles = ldlm::handles_to_cancel(req.buf(bufs::DLM_REQ), LDLM_ENQUEUE_CANCEL_OFF as usize);
            self.locks.cancel(&req.export, &handles);
        }
    }

    /// The rights of a client, from its nodemap.
    pub(crate) fn rights(&self, export: &Arc<Export>) -> Rights {
        self.nodemaps.rights(&export.ext::<CachedRights>(), export.peer())
    }

    /// The object of a request that changes it. A change must not create a destroyed object again.
    ///
    /// # Errors
    ///
    /// `ENOENT` if the object was destroyed, and the errors of [`Ost::object`].
    pub(crate) fn object_to_change(&self, id: &OstId) -> Result<Fid, Errno> {
        let fid = self.object(id)?;
        if self.tombstones.contains(&fid) {
            return Err(Errno::ENOENT);
        }
        Ok(fid)
    }

    /// The object of a request.
    ///
    /// # Errors
    ///
    /// `ENOENT` if it was never created. `EINPROGRESS` if it was perhaps created and a crash lost
    /// the record: the MDT reports its last object when it reconnects.
    pub(crate) fn object(&self, id: &OstId) -> Result<Fid, Errno> {
        let fid = self.sequences.fid(id);
        if self.sequences.is_created(&fid) {
            Ok(fid)
        } else if self.sequences.may_exist(&fid) {
            Err(Errno::EINPROGRESS)
        } else {
            Err(Errno::ENOENT)
        }
    }

    /// The client's grant, if it negotiated grants.
    pub(crate) fn grant_of(&self, export: &Arc<Export>) -> Option<Arc<ClientGrant>> {
        if !export.has(OBD_CONNECT_GRANT) {
            return None;
        }
        let state = export.ext::<ExportState>();
        Some(
            state
                .grant
                .get_or_init(|| self.grants.client_grant(&export.client_uuid))
                .clone(),
        )
    }

    /// Records that the request sets an object's times.
    pub(crate) fn record_time_change(&self, req: &ServerRequest, fid: Fid) {
        req.export.ext::<ExportState>().modifications.add(fid, req.xid);
    }

    /// Whether the client set the object's times after it sent this request.
    pub(crate) fn has_later_time_change(&self, req: &ServerRequest, fid: Fid) -> bool {
        req.export
            .ext::<ExportState>()
            .modifications
            .has_later_change(fid, req.xid)
    }

    /// The largest transfer negotiated with the client, bytes.
    pub(crate) fn brw_size_of(&self, export: &Export) -> u32 {
        match export.has(OBD_CONNECT_BRW_SIZE) {
            true => export.data().ocd_brw_size,
            false => BRW_SIZE_DEFAULT,
        }
    }
}

impl Target for Ost {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn admit(&self, req: &ConnectRequest) -> Result<Role, Errno> {
        let role = mgc::role_of(&self.uuid, req, |nid| self.config.borrow().has_mdt_at(nid))?;
        self.nodemaps.admit(&self.uuid, req, role)
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        let mut data = self.offer.reply_data(req)?;
        if data.ocd_connect_flags & OBD_CONNECT_GRANT != 0 {
            // A client that reconnects reports its grant, because its dirty cache depends on it.
            let chunk = match req.reconnects || req.recovers {
                true => u64::MAX,
                // The free space belongs first to the clients that recover.
                false if self.committer.is_recovering() => 0,
                false => self.offer.chunk_bytes(data.ocd_brw_size.max(BRW_SIZE_DEFAULT)),
            };
            let free = self.space.avail_bytes();
            let granted = self
                .grants
                .connect(&req.client_uuid, req.data.ocd_grant.into(), chunk, free);
            data.ocd_grant = u32::try_from(granted).unwrap_or(u32::MAX);
        }
        Ok(data)
    }

    fn last_committed(&self) -> Transno {
        self.committer.last_committed()
    }

    fn replayable(&self) -> bool {
        true
    }

    fn operations(&self) -> Operations {
        stats::OPERATIONS
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            if let Err(errno) = self.permit(req).await {
                self.cancel_listed_locks(req);
                return Err(errno);
            }
            self.claim(req).await?;
            let started = Instant::now();
            let result = match req.opc {
                OST_READ => self.read(req).await,
                OST_WRITE => self.write(req).await,
                OST_GETATTR => self.getattr(req).await,
                OST_SETATTR => self.setattr(req).await,
                OST_PUNCH => self.punch(req).await,
                OST_FALLOCATE => self.fallocate(req).await,
                OST_SEEK => self.seek(req).await,
                OST_SYNC => self.sync(req).await,
                OST_STATFS => self.statfs().await,
                OST_CREATE => self.create(req).await,
                OST_DESTROY => self.destroy(req).await,
                OST_GET_INFO => self.get_info(req).await,
                OST_SET_INFO => self.set_info(req),
                SEQ_QUERY => self.seq_query(req).await,
                _ => self.locks.handle(req).await.unwrap_or(Err(Errno::ENOTSUPP)),
            };
            if let (Some(operation), Ok(_)) = (stats::operation(req.opc), &result) {
                req.record(&[(operation, as_usecs(started.elapsed()))]);
            }
            result
        })
    }

    fn known_clients(&self) -> Vec<KnownClient> {
        self.known_clients.clone()
    }

    fn remember_client<'a>(&'a self, export: &'a Arc<Export>) -> BoxFuture<'a, Result<(), Errno>> {
        Box::pin(self.record_client(export))
    }

    fn record_holdings<'a>(
        &'a self,
        export: &'a Arc<Export>,
        mark: Mark,
        replaced: Vec<Mark>,
    ) -> BoxFuture<'a, Result<(), Errno>> {
        Box::pin(self.record_holding(export, mark, replaced))
    }

    fn replace_holdings(&self, export: &Arc<Export>, before: &Holdings, now: &Holdings) {
        let uuid = &export.client_uuid;
        if let Err(e) = self.client_records.replace_holdings(uuid, before, now) {
            self.client_record_error(uuid, &e);
        }
    }

    fn holdings_of(&self, export: &Arc<Export>) -> Option<Holdings> {
        Some(self.locks.holdings_of(export))
    }

    fn forget_client(&self, client_uuid: &str) {
        self.remove_client_record(client_uuid);
    }

    fn recovered<'a>(&'a self) -> BoxFuture<'a, ()> {
        Box::pin(self.end_recovery())
    }

    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.locks.drop_export(export).await;
            self.grants.remove_client(&export.client_uuid);
            if why != EndReason::TargetStops {
                self.remove_client_record(&export.client_uuid);
            }
        })
    }

    fn last_request_done<'a>(&'a self, export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(self.locks.drop_export(export))
    }
}
