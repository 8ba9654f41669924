//! The target: what it is made of, who handles which request, start and stop.

use std::sync::{Arc, OnceLock};

use ldlm::{LdlmConfig, LockLimits, LockServer, LockType};
use lnet::warn_seldom;
use mgc::{CapaKeyring, FsConfig, KnownRights, Nodemaps, Rights};
use osd::{Index, Objects, RunOfMachine, Share, Space, StoreKind};
use params::{Group, Registry};
use parking_lot::Mutex;
use rpc::{BoxFuture, ConnectRequest, Export, Ptlrpc, Reply, Role, ServerRequest, Target, services};
use tokio::{sync::watch, task::JoinHandle};
use wire::format::bufs;
use wire::{
    Errno, Fid, LCK_CW, LCK_EX, LCK_GROUP, LCK_PW, LDLM_ENQUEUE, LDLM_ENQUEUE_CANCEL_OFF, LdlmRequest,
    OBD_CONNECT_BRW_SIZE, OBD_CONNECT_GRANT, OBD_MD_FLGID, OBD_MD_FLPROJID, OBD_MD_FLUID, OST_CREATE,
    OST_DESTROY, OST_FALLOCATE, OST_GET_INFO, OST_GETATTR, OST_PUNCH, OST_READ, OST_SEEK, OST_SET_INFO,
    OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE, ObdConnectData, OstBody, OstId, OstIndex, SEQ_QUERY,
};

use crate::{
    OstError,
    commit::Committer,
    gone::Gone,
    grant::{ClientGrant, Grants},
    lvb::Lvbs,
    negotiate::Offer,
    params_of,
    sequence::Sequences,
    settings::Settings,
    stats::Stats,
    super_sequence,
};

/// The largest read or write, bytes.
pub const BRW_SIZE_MAX: u32 = 4 << 20;
/// The largest object: what ext4 takes.
const MAXBYTES: u64 = (16 << 40) - 4096;
/// Transfers of a client that did not agree on a size are one page.
const BRW_SIZE_NOT_AGREED: u32 = 4096;

/// Modes of locks that are for writing.
pub(crate) const WRITE_MODES: u32 = LCK_EX | LCK_PW | LCK_CW | LCK_GROUP;

/// What a target is started with.
#[derive(Clone)]
pub struct OstConfig {
    /// The file system.
    pub fsname: String,
    /// The target's index.
    pub index: OstIndex,
    /// The largest read or write, bytes; a power of two up to [`BRW_SIZE_MAX`].
    pub brw_size: u32,
    /// Where the target's parameters are to be found.
    pub params: Registry,
    /// How many locks its clients may have.
    pub locks: Arc<LockLimits>,
    /// What its clients may do.
    pub nodemaps: Arc<Nodemaps>,
    /// What it checks capabilities with.
    pub capa_keys: Arc<CapaKeyring>,
}

impl OstConfig {
    /// With what is usual.
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

    /// `testfs-OST000a`.
    pub fn svname(&self) -> String {
        format!("{}-OST{:04x}", self.fsname, self.index)
    }
}

/// An object target.
pub struct Ost {
    pub(crate) svname: String,
    pub(crate) uuid: String,
    rpc: Arc<Ptlrpc>,
    /// The targets of the file system, as the MGS knows them.
    config: watch::Receiver<Arc<FsConfig>>,
    nodemaps: Arc<Nodemaps>,
    pub(crate) capa_keys: Arc<CapaKeyring>,
    pub(crate) objects: Arc<dyn Objects>,
    pub(crate) index: Arc<dyn Index>,
    pub(crate) sequences: Arc<Sequences>,
    pub(crate) gone: Gone,
    pub(crate) committer: Arc<Committer>,
    pub(crate) grants: Grants,
    pub(crate) space: Arc<Space>,
    /// The part of its disk that this target shows to clients.
    pub(crate) share: Share,
    pub(crate) locks: Arc<LockServer>,
    pub(crate) stats: Stats,
    pub(crate) offer: Offer,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    committing: Mutex<Option<JoinHandle<()>>>,
    params: Mutex<Vec<Group>>,
}

/// What the target has for each client.
#[derive(Default)]
struct PerExport {
    grant: OnceLock<Arc<ClientGrant>>,
    settings: Settings,
}

impl Ost {
    /// Starts the target on its store; requests are served when this returns. `config` is the file system's client log:
    /// where MDT0 is, which gives the target its sequences.
    pub async fn start(
        rpc: &Arc<Ptlrpc>,
        config: watch::Receiver<Arc<FsConfig>>,
        store: &StoreKind,
        cfg: OstConfig,
    ) -> Result<Arc<Ost>, OstError> {
        let svname = cfg.svname();
        let index = osd::open_index(store).await?;
        let objects = osd::open_objects(store, &index).await?;
        let sequences = Arc::new(Sequences::open(index.clone(), &svname, cfg.index)?);
        let committer =
            Arc::new(Committer::open(index.clone(), objects.clone(), RunOfMachine::this(), &svname).await?);
        let space = index.space().clone();
        let lvbs = Lvbs {
            objects: objects.clone(),
            sequences: sequences.clone(),
        };
        let seed = rpc.config().seed ^ committer.epoch().rotate_left(32) ^ u64::from(cfg.index.0);
        let locks = LockServer::new(
            &format!("filter-{svname}_UUID"),
            Arc::new(lvbs),
            LdlmConfig {
                seed,
                limits: cfg.locks.clone(),
                types: &[LockType::Extent],
                ..LdlmConfig::default()
            },
        );
        let offer = Offer {
            index: cfg.index,
            instance: committer.epoch() as u32,
            brw_size: cfg.brw_size.min(BRW_SIZE_MAX),
            block_bits: space.statfs()?.bsize.max(4096).ilog2() as u8,
            maxbytes: MAXBYTES,
        };
        let ost = Arc::new(Ost {
            uuid: format!("{svname}_UUID"),
            svname,
            rpc: rpc.clone(),
            config: config.clone(),
            nodemaps: cfg.nodemaps.clone(),
            capa_keys: cfg.capa_keys.clone(),
            objects,
            index,
            sequences,
            gone: Gone::default(),
            committer,
            grants: Grants::default(),
            share: space.share(),
            space,
            locks,
            stats: Stats::default(),
            offer,
            stop: watch::Sender::new(false),
            tasks: Mutex::default(),
            committing: Mutex::default(),
            params: Mutex::default(),
        });
        let committing = tokio::spawn({
            let (committer, stop) = (ost.committer.clone(), ost.stop.subscribe());
            async move { committer.run(stop).await }
        });
        *ost.committing.lock() = Some(committing);
        if !ost.sequences.has_range() {
            let fetching = super_sequence::fetch(
                rpc.clone(),
                config,
                ost.sequences.clone(),
                (cfg.fsname, cfg.index),
            );
            ost.tasks.lock().push(tokio::spawn(fetching));
        }
        rpc.serve(services::OSS)?;
        rpc.serve(services::LDLM)?;
        let exports = rpc.add_target(ost.clone());
        *ost.params.lock() = params_of::register(&ost, &exports, &cfg.params);
        let evicting = mgc::evict_denied(cfg.nodemaps, Arc::downgrade(&exports));
        ost.tasks.lock().push(tokio::spawn(evicting));
        Ok(ost)
    }

    /// Its name: `testfs-OST0000`.
    pub fn svname(&self) -> &str {
        &self.svname
    }

    /// Which start of the target this is; clients and the management server tell by it that it was restarted.
    pub fn instance(&self) -> u32 {
        self.offer.instance
    }

    /// Ends service: clients are disconnected, and everything is on disk when this returns.
    pub async fn stop(&self) -> Result<(), OstError> {
        self.rpc.remove_target(&self.uuid).await;
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.params.lock().clear();
        self.stop.send_replace(true);
        let committing = self.committing.lock().take();
        if let Some(task) = committing
            && let Err(e) = task.await
        {
            tracing::error!("{}: the committing task ended early: {e}", self.svname);
        }
        // The committing task has done that; what matters here is its result.
        self.objects.sync(None).await?;
        Ok(())
    }

    /// Refuses what is refused before anything is done.
    fn check(&self, req: &ServerRequest) -> Result<(), Errno> {
        if !req.export.is_server() {
            self.check_client(req)?;
        }
        match req.opc {
            LDLM_ENQUEUE => self.check_locked_object(req),
            _ => Ok(()),
        }
    }

    /// Refuses what this client may not ask for: to make and destroy objects and to change whose they are, which only
    /// MDTs do; changes where it may only read; and objects that it needs a capability for and shows none.
    fn check_client(&self, req: &ServerRequest) -> Result<(), Errno> {
        const OWNER: u64 = OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLPROJID;
        let for_mdts = match req.opc {
            OST_CREATE | OST_DESTROY | SEQ_QUERY => true,
            OST_SETATTR => req.get::<OstBody>(bufs::OST_BODY)?.oa.o_valid & OWNER != 0,
            _ => false,
        };
        if for_mdts {
            warn_seldom!(ost = %self.svname, peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, "a client's request is refused: only an MDT may ask for this");
            return Err(Errno::EPERM);
        }
        let changes = match req.opc {
            OST_WRITE | OST_PUNCH | OST_SETATTR | OST_FALLOCATE => true,
            // The holder of such a lock tells others how long the object is.
            LDLM_ENQUEUE => req.get::<LdlmRequest>(bufs::DLM_REQ)?.lock_desc.l_req_mode & WRITE_MODES != 0,
            _ => false,
        };
        let rights = self.rights(&req.export);
        if changes && rights.readonly_mount {
            warn_seldom!(ost = %self.svname, peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, "a change is refused: the nodemap of the client's NID has readonly_mount=1");
            return Err(Errno::EROFS);
        }
        if rights.capabilities {
            self.check_capability(req)?;
        }
        Ok(())
    }

    /// Refuses a lock on an object that was never made here: a client would take it for an empty one.
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
        self.object(&id).map(drop)
    }

    /// Cancels the locks that come along with a refused request for a lock: its client has given them up already.
    fn cancel_along(&self, req: &ServerRequest) {
        if req.opc == LDLM_ENQUEUE {
            let handles = ldlm::handles(req.buf(bufs::DLM_REQ), LDLM_ENQUEUE_CANCEL_OFF as usize);
            self.locks.cancel(&req.export, &handles);
        }
    }

    /// What the nodemap of a client lets it do.
    pub(crate) fn rights(&self, export: &Arc<Export>) -> Rights {
        self.nodemaps.rights(&export.ext::<KnownRights>(), export.peer())
    }

    /// The object of a request that changes it: one that was destroyed does not come back.
    pub(crate) fn object_to_change(&self, id: &OstId) -> Result<Fid, Errno> {
        let fid = self.object(id)?;
        if self.gone.has(&fid) {
            return Err(Errno::ENOENT);
        }
        Ok(fid)
    }

    /// The object of a request, if it was made. That it was may have been lost with the power, until the MDT says how far it
    /// came.
    pub(crate) fn object(&self, id: &OstId) -> Result<Fid, Errno> {
        let fid = self.sequences.fid(id);
        if self.sequences.is_made(&fid) {
            Ok(fid)
        } else if self.sequences.may_be_made(&fid) {
            Err(Errno::EINPROGRESS)
        } else {
            Err(Errno::ENOENT)
        }
    }

    /// The client's grant, if it has agreed to have one.
    pub(crate) fn grant_of(&self, export: &Arc<Export>) -> Option<Arc<ClientGrant>> {
        if !export.has(OBD_CONNECT_GRANT) {
            return None;
        }
        let per = export.ext::<PerExport>();
        Some(
            per.grant
                .get_or_init(|| self.grants.client(&export.client_uuid))
                .clone(),
        )
    }

    /// The request sets an object's times.
    pub(crate) fn sets_times(&self, req: &ServerRequest, fid: Fid) {
        req.export.ext::<PerExport>().settings.add(fid, req.xid);
    }

    /// Whether the client has set the object's times after it sent this request.
    pub(crate) fn times_were_set_since(&self, req: &ServerRequest, fid: Fid) -> bool {
        req.export.ext::<PerExport>().settings.since(fid, req.xid)
    }

    /// The largest transfer that was agreed with the client.
    pub(crate) fn brw_size_of(&self, export: &Export) -> u32 {
        match export.has(OBD_CONNECT_BRW_SIZE) {
            true => export.data().ocd_brw_size,
            false => BRW_SIZE_NOT_AGREED,
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
        let mut data = self.offer.answer(req)?;
        if data.ocd_connect_flags & OBD_CONNECT_GRANT != 0 {
            // A client that comes back says how much it has; some of that is used, by what it has cached.
            let chunk = match req.reconnects {
                true => u64::MAX,
                false => self.offer.chunk_bytes(data.ocd_brw_size.max(BRW_SIZE_NOT_AGREED)),
            };
            let free = self.space.avail_bytes();
            let has = self
                .grants
                .connect(&req.client_uuid, req.data.ocd_grant.into(), chunk, free);
            data.ocd_grant = u32::try_from(has).unwrap_or(u32::MAX);
        }
        Ok(data)
    }

    fn last_committed(&self) -> u64 {
        self.committer.last_committed()
    }

    fn replayable(&self) -> bool {
        true
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            if let Err(refused) = self.check(req) {
                self.cancel_along(req);
                return Err(refused);
            }
            match req.opc {
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
            }
        })
    }

    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, _evicted: bool) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.locks.drop_export(export).await;
            self.grants.forget(&export.client_uuid);
        })
    }

    fn last_request_done<'a>(&'a self, export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(self.locks.drop_export(export))
    }
}
