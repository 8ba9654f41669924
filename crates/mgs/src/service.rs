//! The MGS as a target of the RPC layer: serves logs, registers targets, and grants locks on
//! configurations (docs/protocol.md, "Configuration (MGS)").
//!
//! Each follower of a log holds a lock (plain, CR) on the log's resource. After a change the MGS
//! takes an EX lock on the resource, which revokes the followers' locks. The followers cancel their
//! locks, enqueue again and read the change. The MGS takes the lock in a task of its own, so the
//! reply to the change does not wait for followers.

use std::sync::Arc;
use std::time::SystemTime;

use cpt::BoxFuture;
use cpt::Handle;
use ldlm::{LdlmConfig, LockMode, LockServer, LockType, NoLvb, Policy};
use mgc::{CAPA_KEYS, FsConfig, JoinToken, NID_TABLE_SUFFIX, NODEMAPS, NodemapTable, Nodemaps};
use osd::{Index, Stores, TargetFiles};
use params::{Group, Registry};
use parking_lot::Mutex;
use rpc::{ConnectRequest, EndReason, Export, Ptlrpc, Reply, ServerRequest, Target, services};
use wire::format::bufs;
use wire::llog_file::CHUNK;
use wire::{
    Errno, FID_SEQ_LLOG_NAME, LDD_F_OPC_READY, LLOG_F_IS_PLAIN, LLOG_ORIGIN_HANDLE_CREATE,
    LLOG_ORIGIN_HANDLE_NEXT_BLOCK, LLOG_ORIGIN_HANDLE_READ_HEADER, LUSTRE_VERSION_CODE, LdlmResId, LlogLogid,
    LlogdBody, MGS_BULK_PORTAL, MGS_CFG_T_CONFIG, MGS_CFG_T_NODEMAP, MGS_CFG_T_PARAMS, MGS_CFG_T_RECOVER,
    MGS_CONFIG_READ, MGS_TARGET_REG, MgsConfigBody, MgsTargetInfo, Nid, NidList, OBD_CONNECT_AT,
    OBD_CONNECT_BULK_MBITS, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_IMP_RECOV,
    OBD_CONNECT_LVB_TYPE, OBD_CONNECT_VERSION, OBD_CONNECT2_REP_MBITS, ObdConnectData, OstId, Time, Transno,
    WireStruct, before_nul,
};

use crate::admission::Admission;
use crate::capa_keys::{self, KeyFile, KeySource};
use crate::logs::{Log, Logs};
use crate::nid_tables::NidTables;
use crate::{MgsError, fsdb, mgs_params, stored_values};

/// The connect flags that the MGS grants.
const GRANTED_FLAGS: u64 = OBD_CONNECT_VERSION
    | OBD_CONNECT_AT
    | OBD_CONNECT_FULL20
    | OBD_CONNECT_IMP_RECOV
    | OBD_CONNECT_LVB_TYPE
    | OBD_CONNECT_BULK_MBITS
    | OBD_CONNECT_FLAGS2;
/// The connect flags that the MGS grants in `ocd_connect_flags2`.
const GRANTED_FLAGS2: u64 = OBD_CONNECT2_REP_MBITS;

/// The name of the list of server NIDs, as a parameter and in the log of nodemaps.
const SERVER_NIDS: &str = "mgs.MGS.server_nids";

/// The configuration of an MGS.
#[derive(Clone)]
pub struct MgsConfig {
    /// Seed of random choices, different for each run.
    pub seed: u64,
    /// The registry for the MGS's parameters.
    pub params: Registry,
    /// Nodes that may register targets, until `mgs.MGS.server_nids` is set for the first time.
    pub server_nids: NidList,
    /// Targets with this token may register from any node.
    pub token: Option<JoinToken>,
    /// The place of the file with the keys of object capabilities ([`crate::CAPA_KEYS_FILE`]);
    /// without it each start creates new keys.
    pub files: Option<Arc<dyn TargetFiles>>,
    /// Generates the keys of object capabilities, which must be unpredictable.
    pub new_key: KeySource,
    /// The time of day, for the records of the logs.
    pub clock: Clock,
}

/// Returns the time of day.
pub type Clock = Arc<dyn Fn() -> Time + Send + Sync>;

impl Default for MgsConfig {
    fn default() -> MgsConfig {
        MgsConfig {
            seed: 0,
            params: Registry::default(),
            server_nids: NidList::default(),
            token: None,
            files: None,
            new_key: Arc::new(capa_keys::random_key),
            clock: Arc::new(|| SystemTime::now().into()),
        }
    }
}

/// The management server.
pub struct Mgs {
    rpc: Arc<Ptlrpc>,
    index: Arc<dyn Index>,
    /// Locked only for work in memory: applying a change to the store does not wait for the disk.
    logs: Mutex<Logs>,
    /// Where the targets are. Locked only for work in memory.
    nid_tables: Mutex<NidTables>,
    locks: Arc<LockServer>,
    admission: Admission,
    nodemaps: Nodemaps,
    /// Locked only for work in memory.
    capa_keys: Mutex<KeyFile>,
    /// Held during a rotation, while the new key is written to disk: rotations do not overlap.
    rotation: Mutex<()>,
    clock: Clock,
    runtime: Handle,
    param_group: Mutex<Option<Group>>,
}

impl Mgs {
    /// Name and UUID of the target; a node has one MGS.
    pub const UUID: &'static str = "MGS";

    /// Opens the store and serves it. Unless the configuration or `mgs.MGS.server_nids` lists other
    /// nodes, only targets of this host may register.
    ///
    /// # Errors
    ///
    /// If the store or the file of keys cannot be read, or if the services cannot start.
    pub async fn start(
        rpc: &Arc<Ptlrpc>,
        store: &dyn Stores,
        config: MgsConfig,
    ) -> Result<Arc<Mgs>, MgsError> {
        let index = store.open_index().await?;
        let logs = Logs::load(index.clone()).await?;
        let listed = match stored_values::get(&logs, NODEMAPS, SERVER_NIDS) {
            Some(text) => parse_nids(&text)?,
            None => config.server_nids,
        };
        let nodemaps = Nodemaps::default();
        nodemaps.set(nodemaps_of(&logs)?);
        nodemaps.register_params(&config.params);
        let cfg = LdlmConfig {
            seed: config.seed,
            types: &[LockType::Plain],
            ..LdlmConfig::default()
        };
        let locks = LockServer::new(Mgs::UUID, Arc::new(NoLvb), cfg);
        let now = (config.clock)().sec;
        let keys = KeyFile::open(config.files, config.new_key, now)?;
        let mgs = Arc::new(Mgs {
            rpc: rpc.clone(),
            index,
            logs: Mutex::new(logs),
            nid_tables: Mutex::default(),
            locks,
            admission: Admission::new(rpc.lnet().clone(), listed, config.token),
            nodemaps,
            capa_keys: Mutex::new(keys),
            rotation: Mutex::default(),
            clock: config.clock,
            runtime: Handle::current(),
            param_group: Mutex::default(),
        });
        *mgs.param_group.lock() = Some(mgs_params::register(&mgs, &config.params));
        rpc.serve(services::MGS)?;
        rpc.serve(services::LDLM)?;
        rpc.add_target(mgs.clone());
        Ok(mgs)
    }

    /// Disconnects all clients and syncs the store.
    ///
    /// # Errors
    ///
    /// If the sync fails.
    pub async fn stop(&self) -> Result<(), MgsError> {
        self.rpc.remove_target(Mgs::UUID).await;
        *self.param_group.lock() = None;
        self.index.sync().await?;
        Ok(())
    }

    /// Sets a permanent parameter of all nodes, in the log `params`, or removes it if `value` is
    /// `None`. The change is durable when this function returns.
    ///
    /// # Errors
    ///
    /// [`MgsError::Param`] if the name or the value is invalid or a parameter to remove is not set,
    /// [`MgsError::Log`] if the log is full, or an error of the store.
    pub async fn set_permanent_param(&self, name: &str, value: Option<&str>) -> Result<(), MgsError> {
        {
            let mut logs = self.logs.lock();
            stored_values::set(&mut logs, stored_values::PARAMS, name, value, self.now())?;
            logs.save()?;
        }
        self.index.sync().await?;
        self.notify_readers(mgc::config_resource(stored_values::PARAMS, MGS_CFG_T_PARAMS));
        Ok(())
    }

    /// `mgs.MGS.live.params`: the permanent parameters, a line for each.
    pub(crate) fn permanent_params(&self) -> String {
        stored_values::list(&self.logs.lock(), stored_values::PARAMS)
            .into_iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect()
    }

    /// Seconds since 1970.
    fn now(&self) -> i64 {
        (self.clock)().sec
    }

    /// The names of the file systems with a configuration here.
    pub fn filesystems(&self) -> Vec<String> {
        let logs = self.logs.lock();
        logs.names("")
            .filter_map(|log| log.strip_suffix("-client"))
            .map(str::to_owned)
            .collect()
    }

    /// `mgs.MGS.server_nids`: nodes besides this host that may register targets without a token.
    pub(crate) fn server_nids(&self) -> String {
        match self.admission.listed_nids() {
            list if list.is_empty() => "NONE".to_owned(),
            list => list.to_string(),
        }
    }

    /// Sets and stores `server_nids`. The change becomes durable with the store's next sync.
    pub(crate) fn set_server_nids(&self, text: &str) -> Result<(), MgsError> {
        let list = parse_nids(text)?;
        let mut logs = self.logs.lock();
        stored_values::set(
            &mut logs,
            NODEMAPS,
            SERVER_NIDS,
            Some(&list.to_string()),
            self.now(),
        )?;
        logs.save()?;
        self.admission.set_listed_nids(list);
        Ok(())
    }

    /// `mgs.MGS.capa_keys`: the ids of the keys of capabilities.
    pub(crate) fn capa_key_ids(&self) -> String {
        self.capa_keys.lock().ids()
    }

    /// Creates a new key of capabilities in the background, and notifies the targets.
    pub(crate) fn rotate_capa_keys(self: &Arc<Self>) {
        let mgs = self.clone();
        self.runtime.spawn_blocking(move || {
            let _guard = mgs.rotation.lock();
            let prepared = mgs.capa_keys.lock().prepare_rotation();
            let written = prepared.and_then(|write_keys| write_keys());
            match written.and_then(|keys| mgs.capa_keys.lock().publish(keys, mgs.now())) {
                Ok(()) => mgs.notify_readers(mgc::config_resource(CAPA_KEYS, MGS_CFG_T_NODEMAP)),
                Err(e) => tracing::error!("cannot create a new key of capabilities: {e}"),
            }
        });
    }

    /// Whether a NID belongs to this node, or to a registered target of any file system.
    fn is_server(&self, logs: &Logs, nid: Nid) -> bool {
        let has_target = |log: &str| FsConfig::from_records(log, &logs.records(log)).has_target_at(nid);
        self.rpc.lnet().is_local(nid)
            || logs
                .names("")
                .any(|log| log.ends_with("-client") && has_target(log))
    }

    /// Calls `f` with the log that a request reads, and the id of the log. If `is_keys` is set,
    /// this is the log of keys, which only peers at the NIDs of servers may read. Otherwise, it is
    /// the log that `find` returns.
    fn with_log<T>(
        &self,
        req: &ServerRequest,
        is_keys: bool,
        find: impl FnOnce(&Logs) -> Option<&Log>,
        f: impl FnOnce(u64, &Log) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let logs = self.logs.lock();
        if !is_keys {
            let log = find(&logs).ok_or(Errno::ENOENT)?;
            return f(log.id, log);
        }
        if !self.is_server(&logs, req.peer) {
            lnet::warn_rate_limited!(peer = %req.peer, client = %req.export.client_uuid, "reading the keys of capabilities refused: no target is registered at the peer's NID");
            return Err(Errno::EACCES);
        }
        drop(logs);
        let keys = self.capa_keys.lock();
        let (id, log) = keys.log().ok_or(Errno::ENOENT)?;
        f(id, log)
    }

    /// Calls `f` with the log that the request's id names.
    fn with_open_log<T>(
        &self,
        req: &ServerRequest,
        body: &LlogdBody,
        f: impl FnOnce(&Log) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let id = body.lgd_logid.lgl_oi.oi_id;
        self.with_log(
            req,
            KeyFile::is_log_id(id),
            |logs| logs.get_by_id(id),
            |_, log| f(log),
        )
    }

    /// Changes the nodemaps, and notifies the targets. The change is durable when this function
    /// returns.
    ///
    /// # Errors
    ///
    /// [`MgsError::Nodemap`] with the message of `change`, [`MgsError::Log`] if the log is full, or
    /// an error of the store.
    pub async fn change_nodemaps(
        &self,
        change: impl FnOnce(&mut NodemapTable) -> Result<(), String>,
    ) -> Result<(), MgsError> {
        {
            let mut logs = self.logs.lock();
            let old = nodemaps_of(&logs)?;
            let mut new = old.clone();
            change(&mut new).map_err(|why| MgsError::Nodemap { why })?;
            let (before, after) = (old.records(), new.records());
            // Change a copy: a failure leaves the logs unchanged.
            let mut changed = logs.clone();
            for name in before.keys().filter(|name| !after.contains_key(*name)) {
                stored_values::set(&mut changed, NODEMAPS, name, None, self.now())?;
            }
            for (name, value) in &after {
                if before.get(name) != Some(value) {
                    stored_values::set(&mut changed, NODEMAPS, name, Some(value), self.now())?;
                }
            }
            changed.save()?;
            *logs = changed;
            self.nodemaps.set(new);
        }
        self.index.sync().await?;
        self.notify_readers(mgc::config_resource(NODEMAPS, MGS_CFG_T_NODEMAP));
        Ok(())
    }

    async fn register(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let info: MgsTargetInfo = req.get(bufs::MGS_TARGET_INFO)?;
        let store = mgc::registration::store(req)?;
        let (fsname, ready) = (info.mti_fsname, info.mti_flags & LDD_F_OPC_READY != 0);
        let result = fsdb::parse(&info).and_then(|target| {
            self.admission.check(req, &target, store.as_deref())?;
            let mut logs = self.logs.lock();
            // Change a copy: a failure leaves the logs unchanged.
            let mut changed = logs.clone();
            let result = fsdb::register(&mut changed, info, store.as_deref(), self.now())?;
            changed.save()?;
            *logs = changed;
            Ok(result)
        });
        let result = match result {
            Ok(result) => result,
            Err(e) => {
                lnet::warn_rate_limited!(peer = %req.peer, "{e}");
                return match store {
                    Some(_) => Ok(mgc::registration::refusal(e.errno(), &e.to_string())),
                    None => Err(e.errno()),
                };
            }
        };
        self.index.sync().await.map_err(|e| {
            tracing::error!("cannot sync the store of the MGS: {e}");
            e.errno()
        })?;
        if result.changed {
            tracing::info!("{} is at {}", result.info.mti_svname, result.info.mti_nids[0]);
            self.notify_readers(mgc::config_resource(
                &format!("{fsname}-client"),
                MGS_CFG_T_CONFIG,
            ));
        }
        if ready && self.nid_tables.lock().set(&result.info, self.now()) {
            self.notify_readers(mgc::config_resource(
                &format!("{fsname}{NID_TABLE_SUFFIX}"),
                MGS_CFG_T_RECOVER,
            ));
        }
        Ok(Reply::new(vec![result.info.to_bytes()]))
    }

    /// Sends a part of a table of NIDs by bulk.
    async fn read_nid_table(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let body: MgsConfigBody = req.get(bufs::MGS_CONFIG_BODY)?;
        if u32::from(body.mcb_type) != MGS_CFG_T_RECOVER {
            return Err(Errno::EINVAL);
        }
        let name = body.mcb_name.to_string();
        let fsname = name.strip_suffix(NID_TABLE_SUFFIX).ok_or(Errno::ENOENT)?;
        let (result, pages) = self.nid_tables.lock().read(fsname, &body)?;
        req.bulk_put(MGS_BULK_PORTAL, vec![pages.into()]).await?;
        Ok(Reply::new(vec![result.to_bytes()]))
    }

    /// Revokes the locks of a log's followers in the background; the followers then read the log
    /// again.
    fn notify_readers(&self, res: LdlmResId) {
        let locks = self.locks.clone();
        self.runtime.spawn(async move {
            if let Err(e) = locks.lock(None, res, LockMode::Ex, Policy::Plain).await {
                tracing::warn!("cannot notify readers of a changed configuration: {e}");
            }
        });
    }

    /// Opens a log by name. Despite the name of the opcode (`LLOG_ORIGIN_HANDLE_CREATE`), the MGS
    /// creates no log.
    fn open(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let body: LlogdBody = req.get(bufs::LLOGD_BODY)?;
        let name = std::str::from_utf8(before_nul(req.buf(bufs::LLOG_NAME))).map_err(|_| Errno::EINVAL)?;
        let id = self.with_log(req, name == CAPA_KEYS, |logs| logs.get(name), |id, _| Ok(id))?;
        let lgl_oi = OstId {
            oi_id: id,
            oi_seq: FID_SEQ_LLOG_NAME,
        };
        let lgd_logid = LlogLogid { lgl_oi, lgl_ogen: 0 };
        Ok(Reply::new(vec![LlogdBody { lgd_logid, ..body }.to_bytes()]))
    }

    fn read_header(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let body: LlogdBody = req.get(bufs::LLOGD_BODY)?;
        let header = self.with_open_log(req, &body, |log| Ok(log.llog.header().to_bytes()))?;
        Ok(Reply::new(vec![header]))
    }

    fn next_block(&self, req: &ServerRequest) -> Result<Reply, Errno> {
        let body: LlogdBody = req.get(bufs::LLOGD_BODY)?;
        self.with_open_log(req, &body, |log| {
            let (offset, chunk) = log.llog.chunk_of(body.lgd_index).ok_or(Errno::EIO)?;
            let last = wire::llog_file::records(chunk)
                .flatten()
                .last()
                .ok_or(Errno::EIO)?;
            let answer = LlogdBody {
                lgd_saved_index: last.index,
                lgd_cur_offset: (offset + chunk.len()) as u64,
                lgd_len: CHUNK as u32,
                lgd_llh_flags: LLOG_F_IS_PLAIN,
                ..body
            };
            let mut block = chunk.to_vec();
            block.resize(CHUNK, 0);
            Ok(Reply::new(vec![answer.to_bytes(), block.into()]))
        })
    }
}

/// The nodemaps in the logs.
fn nodemaps_of(logs: &Logs) -> Result<NodemapTable, MgsError> {
    let config = FsConfig::from_records(NODEMAPS, &logs.records(NODEMAPS));
    NodemapTable::from_params(&config.params).map_err(|why| MgsError::Store {
        what: format!("log '{NODEMAPS}': {why}"),
    })
}

/// Parses a parameter's list of NIDs; `NONE` is the empty list.
fn parse_nids(text: &str) -> Result<NidList, MgsError> {
    let bad = |e: wire::WireError| MgsError::Param {
        name: SERVER_NIDS.to_owned(),
        why: e.to_string(),
    };
    match text.trim() {
        "NONE" => Ok(NidList::default()),
        ranges => ranges.parse().map_err(bad),
    }
}

impl Target for Mgs {
    fn uuid(&self) -> &str {
        Mgs::UUID
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        let mut data = ObdConnectData {
            ocd_connect_flags: req.data.ocd_connect_flags & GRANTED_FLAGS,
            ocd_version: LUSTRE_VERSION_CODE,
            ..ObdConnectData::default()
        };
        if req.wants(OBD_CONNECT_FLAGS2) {
            data.ocd_connect_flags2 = req.data.ocd_connect_flags2 & GRANTED_FLAGS2;
        }
        Ok(data)
    }

    fn last_committed(&self) -> Transno {
        Transno::NONE
    }

    fn replayable(&self) -> bool {
        false
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            match req.opc {
                LLOG_ORIGIN_HANDLE_CREATE => self.open(req),
                LLOG_ORIGIN_HANDLE_READ_HEADER => self.read_header(req),
                LLOG_ORIGIN_HANDLE_NEXT_BLOCK => self.next_block(req),
                MGS_TARGET_REG => self.register(req).await,
                MGS_CONFIG_READ => self.read_nid_table(req).await,
                _ => self.locks.handle(req).await.unwrap_or(Err(Errno::ENOTSUPP)),
            }
        })
    }

    fn export_gone<'a>(&'a self, export: &'a Arc<Export>, _why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(self.locks.drop_export(export))
    }

    fn last_request_done<'a>(&'a self, export: &'a Arc<Export>) -> BoxFuture<'a, ()> {
        Box::pin(self.locks.drop_export(export))
    }
}
