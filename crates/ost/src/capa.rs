//! What a client must show to use an object, where its nodemap requires capabilities: one for this object, this client and
//! this target, signed by a metadata target (docs/security.md).

use std::time::{SystemTime, UNIX_EPOCH};

use lnet::warn_seldom;
use mgc::{Bearer, CapaError};
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    Errno, LDLM_ENQUEUE, LdlmRequest, LustreCapa, OST_READ, OST_WRITE, ObdIoobj, OstBody, OstId,
    capability_needed,
};

use crate::{Ost, target::WRITE_MODES};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the client shows no capability for the object; clients of Lustre cannot")]
    None,
    #[error("the capability is for another object")]
    OtherObject,
    #[error("the capability does not allow this")]
    Rights,
    #[error("{0}")]
    Bad(#[from] CapaError),
}

impl Ost {
    /// Refuses a request about an object for which the client shows no capability.
    pub(crate) fn check_capability(&self, req: &ServerRequest) -> Result<(), Errno> {
        let Some((rights, place)) = capability_needed(req.opc, writes(req)?) else {
            return Ok(());
        };
        let object = object_of(req)?;
        // Sync of all objects: it is about none.
        if object == OstId::default() {
            return Ok(());
        }
        let Err(why) = self.verify(req, object, rights, place) else {
            return Ok(());
        };
        warn_seldom!(ost = %self.svname, peer = %req.peer, client = %req.export.client_uuid, opc = req.opc, object = %object.fid(), "a request is refused: the nodemap of the client's NID has capabilities=1, and {why}");
        Err(match why {
            // It is here a moment later: the client tries again.
            Refusal::Bad(CapaError::NewKey(_)) => Errno::EINPROGRESS,
            _ => Errno::EACCES,
        })
    }

    fn verify(&self, req: &ServerRequest, object: OstId, rights: u64, place: usize) -> Result<(), Refusal> {
        let capa: LustreCapa = req.msg.get(place).map_err(|_| Refusal::None)?;
        let of = Bearer {
            target: &self.uuid,
            client: &req.export.client_uuid,
        };
        self.capa_keys.check(of, &capa, now())?;
        if capa.lc_fid != object.fid() {
            return Err(Refusal::OtherObject);
        }
        if capa.lc_opc & rights == 0 {
            return Err(Refusal::Rights);
        }
        Ok(())
    }
}

/// Seconds since 1970, by the clock that the metadata targets' must agree with.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Whether a request is for a lock in a mode for writing.
fn writes(req: &ServerRequest) -> Result<bool, Errno> {
    Ok(req.opc == LDLM_ENQUEUE
        && req.get::<LdlmRequest>(bufs::DLM_REQ)?.lock_desc.l_req_mode & WRITE_MODES != 0)
}

/// The object that a request is about, as the handlers find it.
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
