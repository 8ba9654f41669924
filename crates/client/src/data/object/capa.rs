//! Capabilities of an object, for object targets that require them (docs/security.md).
//!
//! Until a target requires a capability, the client requests none. When a target rejects a request
//! for lack of a capability, the client requests one from the metadata target and repeats the
//! request with the capability. From then on the client gets a capability before it uses an object
//! of the target, and renews it in the background before it expires. If the capability has expired
//! all the same, or the servers have replaced its key, the client requests another one after the
//! next rejection.

use super::Object;
use crate::cred::{Cred, NO_GROUP};
use crate::pack;
use bytes::Bytes;
use ldlm::{Enqueue, EnqueueReply, LockMode};
use parking_lot::Mutex;
use rpc::{ReplyMsg, Request, RpcError};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use wire::format::bufs;
use wire::{
    Errno, Fid, LDLM_ENQUEUE, LustreCapa, MDS_GETATTR, MdtBody, OBD_MD_FLOSSCAPA, WireStruct,
    capability_needed,
};

/// The pauses before the requests for a new capability, one after each rejection. The target may
/// reject a new capability too, because it expired on its way, or because the target has newer keys
/// than the metadata target.
const RETRY_PAUSES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// The capability of one object.
#[derive(Debug, Default)]
pub(super) struct Capability {
    cached: Mutex<Option<CachedCapability>>,
    /// Allows one request for a capability at a time.
    request_lock: tokio::sync::Mutex<()>,
    /// Whether a renewal runs in the background.
    renewing: AtomicBool,
}

impl Capability {
    /// Drops the capability, which the metadata target issued for a former file of the object.
    pub(super) fn forget(&self) {
        *self.cached.lock() = None;
    }
}

/// A capability with its times on this client's clock.
#[derive(Clone, Debug)]
struct CachedCapability {
    capa: LustreCapa,
    bytes: Bytes,
    renew_at: Instant,
    expires_at: Instant,
}

impl CachedCapability {
    fn new(capa: LustreCapa, requested_at: Instant) -> CachedCapability {
        // By this client's clock, which may differ from the servers'.
        let lifetime = Duration::from_secs(capa.lc_timeout.into());
        CachedCapability {
            bytes: capa.to_bytes(),
            renew_at: requested_at + lifetime / 2,
            expires_at: requested_at + lifetime,
            capa,
        }
    }

    /// Whether the capability includes one of these rights (`CAPA_OPC_*`).
    fn allows(&self, rights: u64) -> bool {
        self.capa.lc_opc & rights != 0
    }
}

/// The user in a request for a capability. Anonymous for operations that this client's open files
/// allow; else a user with the necessary rights.
#[derive(Clone, Debug)]
pub(crate) struct CapabilityUser(MdtBody);

impl CapabilityUser {
    /// A user that has the necessary rights itself. `suppgid`: the supplementary group to send.
    pub(crate) fn new(cred: &Cred, file: Fid, suppgid: u32) -> CapabilityUser {
        CapabilityUser(pack::body(cred, file, Fid::ZERO, OBD_MD_FLOSSCAPA, suppgid))
    }

    fn anonymous(file: Fid) -> CapabilityUser {
        let anonymous = Cred {
            uid: u32::MAX,
            gid: u32::MAX,
            ..Cred::default()
        };
        CapabilityUser::new(&anonymous, file, NO_GROUP)
    }
}

impl Object {
    /// Sends a request about the object, with a capability if needed.
    pub(super) async fn call(self: &Arc<Self>, request: Request) -> Result<ReplyMsg, RpcError> {
        let Some((rights, position)) = capability_needed(request.opc, false) else {
            return self.osc.call(request).await;
        };
        self.with_capability(rights, |capability| {
            let mut request = request.clone();
            if !capability.is_empty() {
                // `position` counts all buffers of the message. `request.bufs` lacks the first one,
                // the `ptlrpc_body`.
                let index = position - 1;
                request
                    .bufs
                    .resize(request.bufs.len().max(index + 1), Bytes::new());
                request.bufs[index] = capability;
            }
            self.osc.call(request)
        })
        .await
    }

    /// Requests a lock on the object, with a capability if needed.
    pub(super) async fn enqueue_with_capability(
        self: &Arc<Self>,
        enqueue: Enqueue,
    ) -> Result<EnqueueReply, RpcError> {
        let writes = enqueue.mode != LockMode::Pr;
        let Some((rights, _)) = capability_needed(LDLM_ENQUEUE, writes) else {
            return self.osc.locks().enqueue(enqueue).await;
        };
        self.with_capability(rights, |capability| {
            let enqueue = Enqueue {
                capability,
                ..enqueue.clone()
            };
            self.osc.locks().enqueue(enqueue)
        })
        .await
    }

    /// Sends with the current capability, and again with new ones while the target rejects them
    /// ([`RETRY_PAUSES`]).
    async fn with_capability<T, F>(
        self: &Arc<Self>,
        rights: u64,
        send: impl Fn(Bytes) -> F,
    ) -> Result<T, RpcError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let mut current = self.capability_for(rights).await;
        let mut reply = send(current.clone()).await;
        for pause in RETRY_PAUSES {
            if !matches!(reply, Err(RpcError::Status(Errno::EACCES))) {
                break;
            }
            tokio::time::sleep(pause).await;
            let requested = self.request_capability(rights, &current, CapabilityUser::anonymous(self.file()));
            let Ok(new) = requested.await else { break };
            current = new;
            reply = send(current.clone()).await;
        }
        reply
    }

    /// The capability for a request with one of these rights; empty if the target is not known to
    /// require one.
    async fn capability_for(self: &Arc<Self>, rights: u64) -> Bytes {
        let known = self.capability.cached.lock().clone();
        let now = Instant::now();
        match &known {
            Some(known) if known.allows(rights) && now < known.expires_at => {
                if now >= known.renew_at {
                    self.renew(rights);
                }
                return known.bytes.clone();
            }
            None if !self.osc.requires_capabilities() => return Bytes::new(),
            _ => {}
        }
        let old = known.map_or_else(Bytes::new, |known| known.bytes);
        let requested = self
            .request_capability(rights, &old, CapabilityUser::anonymous(self.file()))
            .await;
        requested.unwrap_or(old)
    }

    /// Renews the capability in the background; the old one stays in use meanwhile.
    fn renew(self: &Arc<Self>, rights: u64) {
        if self.capability.renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        let object = self.clone();
        self.osc.spawn(async move {
            let old = object.capability.cached.lock().clone();
            let old = old.map_or_else(Bytes::new, |known| known.bytes);
            let requested = object.request_capability(rights, &old, CapabilityUser::anonymous(object.file()));
            if let Err(error) = requested.await {
                tracing::debug!(object = ?object.id().oi, %error, "cannot renew the object's capability; the next rejected request retries");
            }
            object.capability.renewing.store(false, Ordering::Release);
            // The write-back task drops the object if no other task uses it now.
            let dirty = object.dirty.clone();
            dirty.push(object);
            dirty.wake();
        });
    }

    /// Requests a capability for this user if the object's target is known to require one, and the
    /// current capability lacks these rights.
    pub(in crate::data) async fn authorize(
        self: &Arc<Self>,
        rights: u64,
        user: CapabilityUser,
    ) -> Result<(), Errno> {
        let known = self.capability.cached.lock().clone();
        let old = match known {
            Some(known) if known.allows(rights) => return Ok(()),
            Some(known) => known.bytes,
            None if !self.osc.requires_capabilities() => return Ok(()),
            None => Bytes::new(),
        };
        self.request_capability(rights, &old, user).await.map(drop)
    }

    /// Requests a capability with one of these rights from the metadata target, to replace `old`.
    async fn request_capability(
        &self,
        rights: u64,
        old: &Bytes,
        user: CapabilityUser,
    ) -> Result<Bytes, Errno> {
        let _request_lock = self.capability.request_lock.lock().await;
        let known = self.capability.cached.lock().clone();
        if let Some(known) = &known
            && known.bytes != old
            && known.allows(rights)
        {
            return Ok(known.bytes.clone());
        }
        // The request carries the current rights, which the new capability keeps.
        let old_rights = LustreCapa {
            lc_fid: self.id().oi.fid(),
            ..known.map_or_else(LustreCapa::default, |known| known.capa)
        };
        let requested_at = Instant::now();
        let mdc = self.osc.lmv().mdc_of(self.file()).await?;
        let request = Request {
            // Not limited: requests that wait for this client's write-back must not block this one.
            limited: false,
            ..Request::new(MDS_GETATTR, vec![user.0.to_bytes(), old_rights.to_bytes()])
        };
        let reply = mdc.import.call(request).await?;
        if reply.get::<MdtBody>(bufs::MDT_BODY)?.mbo_valid & OBD_MD_FLOSSCAPA == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let new = CachedCapability::new(reply.get(bufs::CAPA_REPLY)?, requested_at);
        if new.capa.lc_fid != old_rights.lc_fid {
            return Err(Errno::EPROTO);
        }
        self.osc.set_requires_capabilities();
        *self.capability.cached.lock() = Some(new.clone());
        match new.allows(rights) {
            true => Ok(new.bytes),
            false => Err(Errno::EACCES),
        }
    }
}
