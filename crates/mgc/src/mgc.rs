//! The connection to the MGS: reads logs, follows them, registers targets (docs/protocol.md,
//! "Configuration (MGS)").
//!
//! A node that follows a log holds a lock (plain, CR) on the log's resource. When the MGS revokes
//! the lock, this client cancels it at once and wakes the follower (`follow`).

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use cpt::BoxFuture;
use ldlm::{Enqueue, LockClient, LockClientConfig, LockInfo, LockMode, LockOwner, Policy};
use parking_lot::Mutex;
use rpc::{
    Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, ImportState, Ptlrpc, Reply, Request, RpcError,
};
use tokio::sync::{Notify, OnceCell, watch};
use tokio::task::JoinHandle;
use wire::config::Config as Record;
use wire::format::bufs;
use wire::llog_file::{CHUNK, records};
use wire::{
    Errno, LLOG_CONFIG_ORIG_CTXT, LLOG_F_IS_PLAIN, LLOG_ORIGIN_HANDLE_CREATE, LLOG_ORIGIN_HANDLE_NEXT_BLOCK,
    LLOG_ORIGIN_HANDLE_READ_HEADER, LUSTRE_VERSION_CODE, LdlmResId, LlogLogHdr, LlogdBody, MGS_CFG_T_CONFIG,
    MGS_CFG_T_NODEMAP, MGS_CFG_T_PARAMS, MGS_CFG_T_RECOVER, MGS_TARGET_REG, MdtBody, Message, MgsTargetInfo,
    Nid, OBD_CFG_REC, OBD_CONNECT_AT, OBD_CONNECT_BULK_MBITS, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20,
    OBD_CONNECT_IMP_RECOV, OBD_CONNECT_LVB_TYPE, OBD_CONNECT_VERSION, OBD_CONNECT2_REP_MBITS, ObdConnectData,
    OstLvb, WireStruct, nul_terminated,
};

use crate::follow::{Followed, Follower, follow_capa_keys, follow_nodemaps, keys_in_log, nodemap_table};
use crate::{CapaKeyring, CapaKeys, FsConfig, JoinToken, MgcError, NodemapTable, Nodemaps, registration};

/// The connect flags that this client requests.
const FLAGS: u64 = OBD_CONNECT_VERSION
    | OBD_CONNECT_AT
    | OBD_CONNECT_FULL20
    | OBD_CONNECT_IMP_RECOV
    | OBD_CONNECT_LVB_TYPE
    | OBD_CONNECT_BULK_MBITS
    | OBD_CONNECT_FLAGS2;
/// Maximum number of concurrent requests, which are rare and small.
const RPCS_IN_FLIGHT: u32 = 8;
/// Reply buffer of a registration in bytes, for the target's information or a refusal's reason.
const REGISTER_REPLY_LEN: u32 = 8192;
/// First pause between attempts to register while MDT0000 is missing; doubled each time.
const REGISTER_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between attempts to register.
const REGISTER_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed connection to the MGS, before a registration waits for the next one.
const CONNECT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The name of a file system's table of NIDs ends with this; clients of Lustre use this name.
pub const NID_TABLE_SUFFIX: &str = "-cliir";
/// The log of nodemaps, and of the MGS's list of server NIDs. The log's format is not Lustre's.
pub const NODEMAPS: &str = "nodemaps";
/// The log of the keys of object capabilities, and the name of its only parameter. The MGS lets
/// only registered targets read it.
pub const CAPA_KEYS: &str = "capa_keys";

/// A client of the MGS.
pub struct Mgc {
    /// The MGS's NIDs.
    nids: Vec<Nid>,
    import: Arc<Import>,
    locks: Arc<LockClient>,
    callbacks: Arc<CallbackRouter>,
    pub(crate) tasks: Mutex<Vec<JoinHandle<()>>>,
    nodemaps: OnceCell<Arc<Nodemaps>>,
    capa_keys: OnceCell<Arc<CapaKeyring>>,
    weak_self: Weak<Mgc>,
}

/// Passes callbacks of the MGS to the lock client, and notifies followers of changes.
#[derive(Default)]
struct CallbackRouter {
    locks: OnceLock<Weak<LockClient>>,
    /// The resource of each followed log, and the follower's [`Notify`].
    followers: Mutex<Vec<(LdlmResId, Weak<Notify>)>>,
}

impl CallbackRouter {
    /// Notifies the followers of logs with the resource `changed`; `None`: all followers.
    fn notify_followers(&self, changed: Option<LdlmResId>) {
        self.followers.lock().retain(|(res, follower)| {
            let follower = follower.upgrade();
            if let Some(follower) = &follower
                && changed.is_none_or(|changed| changed == *res)
            {
                follower.notify_one();
            }
            follower.is_some()
        });
    }

    fn locks(&self) -> Option<Arc<LockClient>> {
        self.locks.get()?.upgrade()
    }
}

impl ImportOwner for CallbackRouter {
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            match self.locks() {
                Some(locks) => locks.ast(opc, msg).await,
                None => Err(Errno::ESHUTDOWN),
            }
        })
    }

    fn event(&self, event: ImportEvent) {
        match event {
            ImportEvent::Evicted => {
                if let Some(locks) = self.locks() {
                    locks.clear();
                }
            }
            // The MGS may have changed its logs while it was disconnected.
            ImportEvent::Connected(_) => self.notify_followers(None),
            ImportEvent::Disconnected | ImportEvent::Idle | ImportEvent::Closed => {}
        }
    }
}

impl LockOwner for CallbackRouter {
    fn blocking<'a>(&'a self, lock: LockInfo, _cancel_bits: u64) -> BoxFuture<'a, ()> {
        self.notify_followers(Some(lock.res));
        Box::pin(std::future::ready(()))
    }

    fn glimpse(&self, _lock: LockInfo) -> Option<OstLvb> {
        None
    }

    fn dropped(&self, lock: LockInfo, _bits: u64) {
        self.notify_followers(Some(lock.res));
    }
}

/// The resource of a log's lock: the first 8 bytes of the file system's name (of the log's name, if
/// the log belongs to no file system) and the kind of log, `MGS_CFG_T_*`.
pub fn config_resource(logname: &str, kind: u32) -> LdlmResId {
    let name = logname.rsplit_once('-').map_or(logname, |(fs, _)| fs);
    let mut first = [0; 8];
    for (to, from) in first.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    LdlmResId {
        name: [u64::from_le_bytes(first), kind.into(), 0, 0],
    }
}

fn resource_of(logname: &str) -> LdlmResId {
    let kind = match logname {
        "params" => MGS_CFG_T_PARAMS,
        NODEMAPS | CAPA_KEYS => MGS_CFG_T_NODEMAP,
        table if table.ends_with(NID_TABLE_SUFFIX) => MGS_CFG_T_RECOVER,
        _ => MGS_CFG_T_CONFIG,
    };
    config_resource(logname, kind)
}

impl Mgc {
    /// Connects to the MGS, at the first of its NIDs that answers.
    ///
    /// # Errors
    ///
    /// [`MgcError::Connect`] when each NID has failed once, or the MGS refuses.
    pub async fn connect(rpc: &Arc<Ptlrpc>, mgs: Vec<Nid>, client_uuid: &str) -> Result<Arc<Mgc>, MgcError> {
        let mgc = Mgc::start_connecting(rpc, mgs, client_uuid);
        if let Err(error) = mgc.wait_connected().await {
            mgc.import.disconnect().await;
            return Err(error);
        }
        Ok(mgc)
    }

    /// Starts to connect to the MGS and returns at once; requests wait for the connection.
    pub fn start_connecting(rpc: &Arc<Ptlrpc>, mgs: Vec<Nid>, client_uuid: &str) -> Arc<Mgc> {
        let callbacks = Arc::new(CallbackRouter::default());
        let locks = LockClient::new(
            callbacks.clone(),
            LockClientConfig {
                seed: rpc.config().seed,
                ..Default::default()
            },
        );
        let _ = callbacks.locks.set(Arc::downgrade(&locks));
        let connect = ObdConnectData {
            ocd_connect_flags: FLAGS,
            ocd_connect_flags2: OBD_CONNECT2_REP_MBITS,
            ocd_version: LUSTRE_VERSION_CODE,
            ..ObdConnectData::default()
        };
        let import = Import::new(
            rpc,
            ImportConfig {
                name: format!("MGC{}", mgs.first().map(Nid::to_string).unwrap_or_default()),
                target_uuid: "MGS".to_owned(),
                client_uuid: client_uuid.to_owned(),
                nids: mgs.clone(),
                kind: ImportKind::Mgc,
                connect,
                max_rpcs_in_flight: RPCS_IN_FLIGHT,
                owner: callbacks.clone(),
            },
        );
        locks.set_import(import.clone());
        import.start_connecting();
        Arc::new_cyclic(|weak_self| Mgc {
            nids: mgs,
            import,
            locks,
            callbacks,
            tasks: Mutex::default(),
            nodemaps: OnceCell::new(),
            capa_keys: OnceCell::new(),
            weak_self: weak_self.clone(),
        })
    }

    /// Waits for the connection to the MGS.
    ///
    /// # Errors
    ///
    /// [`MgcError::Connect`] when each NID has failed once (the import keeps trying), or the MGS
    /// refuses.
    pub async fn wait_connected(&self) -> Result<(), MgcError> {
        let connected = self.import.connect().await.map(drop);
        connected.map_err(|source| MgcError::Connect {
            nids: self.nids.iter().map(Nid::to_string).collect::<Vec<_>>().join(","),
            source,
        })
    }

    /// The import, for its state and for requests without a method of this type.
    pub fn import(&self) -> &Arc<Import> {
        &self.import
    }

    /// Reads a log.
    ///
    /// # Errors
    ///
    /// [`MgcError::NoSuchLog`], [`MgcError::Read`], or [`MgcError::Bad`] if it is damaged.
    pub async fn read_config(&self, logname: &str) -> Result<FsConfig, MgcError> {
        let records = self.read_log(logname).await?;
        Ok(FsConfig::from_records(logname, &records))
    }

    /// Follows a log without waiting for the MGS. The value is [`FsConfig::default`] until the log
    /// has been read for the first time.
    pub fn follow_in_background(&self, logname: &str) -> watch::Receiver<Arc<FsConfig>> {
        self.follow_in_background_from(logname, FsConfig::default())
    }

    /// As [`Mgc::follow_in_background`], but with this initial value.
    pub fn follow_in_background_from(
        &self,
        logname: &str,
        initial: FsConfig,
    ) -> watch::Receiver<Arc<FsConfig>> {
        let (follower, rx) = self.follower(logname, initial);
        self.tasks.lock().push(cpt::spawn(follower.run()));
        rx
    }

    /// Reads a log once, and then follows it. The value is [`FsConfig::default`] while the MGS has
    /// no such log.
    ///
    /// # Errors
    ///
    /// As [`Mgc::read_config`], but a missing log is no error.
    pub async fn follow(&self, logname: &str) -> Result<watch::Receiver<Arc<FsConfig>>, MgcError> {
        let (mut follower, rx) = self.follower(logname, FsConfig::default());
        if let Some(mgc) = self.weak_self.upgrade() {
            follower.read(&mgc).await?;
        }
        self.tasks.lock().push(cpt::spawn(follower.run()));
        Ok(rx)
    }

    pub(crate) fn follower<T: Followed>(
        &self,
        logname: &str,
        initial: T,
    ) -> (Follower<T>, watch::Receiver<Arc<T>>) {
        let (tx, rx) = watch::channel(Arc::new(initial));
        let changed = Arc::new(Notify::new());
        let entry = (resource_of(logname), Arc::downgrade(&changed));
        self.callbacks.followers.lock().push(entry);
        (Follower::new(self.weak_self.clone(), logname, changed, tx), rx)
    }

    /// The nodemaps. The first call reads them from the MGS; from then on they follow the log.
    ///
    /// # Errors
    ///
    /// As [`Mgc::follow`].
    pub async fn nodemaps(&self) -> Result<Arc<Nodemaps>, MgcError> {
        let nodemaps = self.nodemaps.get_or_try_init(async || {
            let mut changes = self.follow(NODEMAPS).await?;
            let initial = nodemap_table(&changes.borrow_and_update())?;
            Ok(self.spawn_nodemaps_follower(initial, changes))
        });
        nodemaps.await.cloned()
    }

    /// The nodemaps, without waiting for the MGS: `initial` until the log has been read.
    pub async fn nodemaps_in_background(&self, initial: NodemapTable) -> Arc<Nodemaps> {
        let nodemaps = self
            .nodemaps
            .get_or_init(async || self.spawn_nodemaps_follower(initial, self.follow_in_background(NODEMAPS)));
        nodemaps.await.clone()
    }

    fn spawn_nodemaps_follower(
        &self,
        initial: NodemapTable,
        changes: watch::Receiver<Arc<FsConfig>>,
    ) -> Arc<Nodemaps> {
        let nodemaps = Arc::new(Nodemaps::default());
        nodemaps.set(initial);
        let following = follow_nodemaps(Arc::downgrade(&nodemaps), changes);
        self.tasks.lock().push(cpt::spawn(following));
        nodemaps
    }

    /// The keys of object capabilities. The first call reads them; then they follow the log. Only
    /// registered targets may read them. The ring is empty if the MGS is Lustre's.
    ///
    /// # Errors
    ///
    /// As [`Mgc::read_config`], but a missing log is no error.
    pub async fn capa_keys(&self) -> Result<Arc<CapaKeyring>, MgcError> {
        let ring = self.capa_keys.get_or_try_init(async || {
            let initial = match self.read_config(CAPA_KEYS).await {
                Ok(config) => keys_in_log(&config)?,
                Err(MgcError::NoSuchLog { .. }) => CapaKeys::default(),
                Err(e) => return Err(e),
            };
            Ok(self.spawn_capa_keys_follower(initial))
        });
        ring.await.cloned()
    }

    /// The keys, without waiting for the MGS: none until the log has been read.
    pub async fn capa_keys_in_background(&self) -> Arc<CapaKeyring> {
        let ring = self
            .capa_keys
            .get_or_init(async || self.spawn_capa_keys_follower(CapaKeys::default()));
        ring.await.clone()
    }

    fn spawn_capa_keys_follower(&self, initial: CapaKeys) -> Arc<CapaKeyring> {
        let ring = Arc::new(CapaKeyring::default());
        ring.set(initial);
        let following = follow_capa_keys(Arc::downgrade(&ring), self.follow_in_background(CAPA_KEYS));
        self.tasks.lock().push(cpt::spawn(following));
        ring
    }

    /// Registers a target. Waits for the MGS, and for MDT0000 to register first.
    ///
    /// # Errors
    ///
    /// As [`Mgc::register_with`].
    pub async fn register(&self, info: MgsTargetInfo) -> Result<MgsTargetInfo, MgcError> {
        self.register_with(info, None, None).await
    }

    /// Registers a target, as [`Mgc::register`]. Sends the UUID of the target's store, by which the
    /// MGS recognises the target later, and a proof that the target has the MGS's join token.
    ///
    /// # Errors
    ///
    /// [`MgcError::NotAdmitted`] if the node may not register targets, [`MgcError::Refused`] with
    /// the MGS's reason, or [`MgcError::Register`].
    pub async fn register_with(
        &self,
        info: MgsTargetInfo,
        store: Option<&str>,
        token: Option<&JoinToken>,
    ) -> Result<MgsTargetInfo, MgcError> {
        let svname = info.mti_svname.to_string();
        let register_error = |source| MgcError::Register {
            svname: svname.clone(),
            source,
        };
        let mut pause = REGISTER_PAUSE_MIN;
        loop {
            let handle = self.import.server_handle();
            // The proof is bound to a connection, so wait for one.
            if handle == 0 && self.import.state() != ImportState::Closed {
                if self.wait_connected().await.is_err() {
                    tokio::time::sleep(CONNECT_POLL_INTERVAL).await;
                }
                continue;
            }
            let info_buf = info.to_bytes();
            let proof = token.map(|token| token.prove(handle, &info_buf, store));
            let request = Request {
                reply_len: REGISTER_REPLY_LEN,
                return_error_replies: true,
                ..Request::new(MGS_TARGET_REG, registration::request(info_buf, proof, store))
            };
            let reply = self.import.call(request).await.map_err(register_error)?;
            match Errno::from_status(reply.status) {
                None => {
                    return reply
                        .get(bufs::MGS_TARGET_INFO)
                        .map_err(|e| register_error(RpcError::Status(e)));
                }
                Some(Errno::EAGAIN) => {
                    if pause == REGISTER_PAUSE_MIN {
                        tracing::info!("{svname} waits for MDT0000 to register");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(REGISTER_PAUSE_MAX);
                }
                // The proof was for an earlier connection: retry.
                Some(Errno::EACCES) if token.is_some() && self.import.server_handle() != handle => {}
                Some(Errno::EACCES) => {
                    let nids = info.mti_nids.iter().take(info.mti_nid_count as usize);
                    return Err(MgcError::NotAdmitted {
                        svname,
                        nids: nids.map(Nid::to_string).collect::<Vec<_>>().join(" "),
                        mgs: self.import.peer(),
                    });
                }
                Some(errno) => {
                    return Err(match registration::refusal_reason(&reply) {
                        Some(why) => MgcError::Refused { why, errno },
                        None => register_error(RpcError::Status(errno)),
                    });
                }
            }
        }
    }

    /// Stops all followers and disconnects from the MGS.
    pub async fn disconnect(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.import.disconnect().await;
    }

    /// Takes the lock on a log's resource, unless this client holds it.
    pub(crate) async fn lock(&self, logname: &str) -> Result<(), RpcError> {
        let res = resource_of(logname);
        if self.locks.find(&res, LockMode::Cr, Policy::Plain).is_none() {
            self.locks
                .enqueue(Enqueue::new(res, LockMode::Cr, Policy::Plain))
                .await?;
        }
        Ok(())
    }

    /// Sends a request about a log; `ENOENT` becomes [`MgcError::NoSuchLog`].
    async fn call(&self, logname: &str, opc: u32, bufs: Vec<Bytes>) -> Result<rpc::ReplyMsg, MgcError> {
        let request = Request {
            reply_len: 2 * CHUNK as u32,
            ..Request::new(opc, bufs)
        };
        self.call_about(logname, request).await
    }

    /// Sends a request about a log; `ENOENT` becomes [`MgcError::NoSuchLog`].
    pub(crate) async fn call_about(
        &self,
        logname: &str,
        request: Request,
    ) -> Result<rpc::ReplyMsg, MgcError> {
        self.import.call(request).await.map_err(|source| match source {
            RpcError::Status(Errno::ENOENT) => MgcError::NoSuchLog {
                logname: logname.to_owned(),
            },
            source => MgcError::Read {
                logname: logname.to_owned(),
                source,
            },
        })
    }

    async fn read_log(&self, logname: &str) -> Result<Vec<Record>, MgcError> {
        let bad = |why: String| MgcError::Bad {
            logname: logname.to_owned(),
            why,
        };
        let body = LlogdBody {
            lgd_ctxt_idx: LLOG_CONFIG_ORIG_CTXT,
            ..LlogdBody::default()
        };
        let name = nul_terminated(logname.as_bytes());
        let open = vec![body.to_bytes(), name, MdtBody::default().to_bytes()];
        let opened = self.call(logname, LLOG_ORIGIN_HANDLE_CREATE, open).await?;
        let opened: LlogdBody = opened
            .get(bufs::LLOGD_BODY)
            .map_err(|e| bad(format!("the reply to the open has no body: {e}")))?;
        let body = LlogdBody {
            lgd_logid: opened.lgd_logid,
            // A Lustre server creates the header of an empty log from these flags.
            lgd_llh_flags: LLOG_F_IS_PLAIN,
            ..body
        };

        let reply = self
            .call(logname, LLOG_ORIGIN_HANDLE_READ_HEADER, vec![body.to_bytes()])
            .await?;
        let header = LlogLogHdr::from_bytes(reply.buf(bufs::LLOG_HEADER))
            .and_then(|h| h.check().map(|()| Box::new(h)));
        let header = header.map_err(|e| bad(e.to_string()))?;
        let last = header.last_index();
        let body = LlogdBody {
            lgd_llh_flags: header.llh_flags,
            lgd_len: CHUNK as u32,
            ..body
        };

        let (mut out, mut next, mut offset) = (Vec::new(), 1, CHUNK as u64);
        while next <= last {
            let body = LlogdBody {
                lgd_index: next,
                lgd_saved_index: next - 1,
                lgd_cur_offset: offset,
                ..body
            };
            let reply = self
                .call(logname, LLOG_ORIGIN_HANDLE_NEXT_BLOCK, vec![body.to_bytes()])
                .await?;
            let answer: LlogdBody = reply
                .get(bufs::LLOGD_BODY)
                .map_err(|e| bad(format!("the reply with a block has no body: {e}")))?;
            offset = answer.lgd_cur_offset;
            let before = next;
            for record in records(reply.buf(bufs::LLOG_RECORDS)) {
                let record = record.map_err(|e| bad(e.to_string()))?;
                if record.index < next {
                    continue;
                }
                next = record.index + 1;
                if header.is_live(record.index) && record.kind == OBD_CFG_REC {
                    out.push(Record::parse(record.data).map_err(|e| bad(e.to_string()))?);
                }
            }
            if next == before {
                return Err(bad(format!("record {next} of {last} is missing")));
            }
        }
        Ok(out)
    }
}

impl Followed for FsConfig {
    async fn read(mgc: &Mgc, logname: &str) -> Result<FsConfig, MgcError> {
        mgc.read_config(logname).await
    }
}

impl Drop for Mgc {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().drain(..) {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_of_a_log_has_lustres_name() {
        // The names are from the debug log of a Lustre client.
        assert_eq!(resource_of("testfs-client").name, [0x7366_7473_6574, 0, 0, 0]);
        assert_eq!(resource_of("testfs-MDT0000").name, [0x7366_7473_6574, 0, 0, 0]);
        assert_eq!(resource_of("params").name, [0x736d_6172_6170, 3, 0, 0]);
    }
}
