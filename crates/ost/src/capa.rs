//! Capability checks (docs/security.md). If the client's nodemap requires capabilities, each
//! request about an object must carry one: for this object, this client and this target, signed by
//! an MDT.

use std::time::{SystemTime, UNIX_EPOCH};

use lnet::warn_rate_limited;
use mgc::{CapaError, CapaScope};
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    Errno, LDLM_ENQUEUE, LdlmRequest, LustreCapa, OST_READ, OST_WRITE, ObdIoobj, OstBody, OstId,
    capability_needed,
};

use crate::{Ost, target::WRITE_MODES};

/// The reason why a request fails the capability check.
#[derive(Debug, thiserror::Error)]
enum CapabilityRefusal {
    #[error("the request carries no capability (Lustre's own clients send none)")]
    Missing,
    #[error("the capability is for another object")]
    OtherObject,
    #[error("the capability does not grant this operation")]
    NoRight,
    #[error("{0}")]
    Bad(#[from] CapaError),
}

impl Ost {
    /// Checks that a request about an object carries a valid capability.
    ///
    /// # Errors
    ///
    /// `EACCES` if it carries none, or an invalid one; `EINPROGRESS` if the signing key is not yet
    /// known here; `EPROTO` if the request is malformed.
    pub(crate) fn check_capability(&self, req: &ServerRequest) -> Result<(), Errno> {
        let Some((rights, buffer)) = capability_needed(req.opc, enqueues_write_lock(req)?) else {
            return Ok(());
        };
        // A client claims its locks after a restart without a capability. A lock alone gives no
        // access to data.
        if req.opc == LDLM_ENQUEUE && self.is_claim(req) {
            return Ok(());
        }
        let object = object_of(req)?;
        // A sync of all objects names no object.
        if object == OstId::default() {
            return Ok(());
        }
        let Err(why) = self.verify(req, object, rights, buffer) else {
            return Ok(());
        };
        warn_rate_limited!(ost = %self.svname, peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, object = %object.fid(), "request refused: {why}; the nodemap of the client's NID has capabilities=1");
        Err(match why {
            // The key arrives from the MGS a moment later: let the client retry.
            CapabilityRefusal::Bad(CapaError::NewKey(_)) => Errno::EINPROGRESS,
            _ => Errno::EACCES,
        })
    }

    /// Checks the capability in `buffer`: signature, object, and that it has one of `rights`.
    fn verify(
        &self,
        req: &ServerRequest,
        object: OstId,
        rights: u64,
        buffer: usize,
    ) -> Result<(), CapabilityRefusal> {
        let capa: LustreCapa = req.msg.get(buffer).map_err(|_| CapabilityRefusal::Missing)?;
        let scope = CapaScope {
            target: &self.uuid,
            client: &req.export.client_uuid,
        };
        match self.is_claim(req) {
            // The capability was valid before the restart.
            true => self.capa_keys.check_signature(scope, &capa)?,
            false => self.capa_keys.check(scope, &capa, now())?,
        }
        if capa.lc_fid != object.fid() {
            return Err(CapabilityRefusal::OtherObject);
        }
        if capa.lc_opc & rights == 0 {
            return Err(CapabilityRefusal::NoRight);
        }
        Ok(())
    }
}

/// Seconds since 1970. The MDTs' clocks must agree with this one.
fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |time| time.as_secs())
}

/// Whether the request enqueues a lock in a write mode.
fn enqueues_write_lock(req: &ServerRequest) -> Result<bool, Errno> {
    Ok(req.opc == LDLM_ENQUEUE
        && req.get::<LdlmRequest>(bufs::DLM_REQ)?.lock_desc.l_req_mode & WRITE_MODES != 0)
}

/// The object of a request. Reads the same field as the handler of the request, so both use the
/// same object.
fn object_of(req: &ServerRequest) -> Result<OstId, Errno> {
    match req.opc {
        OST_READ | OST_WRITE => Ok(req.get::<ObdIoobj>(bufs::BRW_IOOBJ)?.ioo_oid),
        LDLM_ENQUEUE => {
            let [oi_id, oi_seq, ..] = req
                .get::<LdlmRequest>(bufs::DLM_REQ)?
                .lock_desc
                .l_resource
                .lr_name
                .name;
            Ok(OstId { oi_id, oi_seq })
        }
        _ => Ok(req.get::<OstBody>(bufs::OST_BODY)?.oa.o_oi),
    }
}
