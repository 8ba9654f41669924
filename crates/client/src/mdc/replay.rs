//! How the client replays opens and mkdirs after a restart of the metadata target.
//!
//! The replay of a mkdir has the layout that the target gave to the directory, with its stripes.
//!
//! The replay of an open names the file that the open found or created, the objects that the target
//! assigned, and the handle, which the file then gets again. It requests no lock: locks are
//! replayed later.

use bytes::Bytes;
use rpc::ReplyMsg;
use wire::format::bufs;
use wire::{
    Fid, LDLM_FL_INTENT_ONLY, LdlmRequest, MDS_OPEN_HAS_EA, MDS_OPEN_HAS_OBJS, MdtBody, MdtRecCreate,
    OBD_MD_FLEASIZE, OBD_MD_MEA, WireStruct,
};

/// Turns the buffers of an open intent into those of its replay. They stay as they are if the open
/// failed.
pub(super) fn replay_open(request: &mut [Bytes], reply: &ReplyMsg) {
    // A failure leaves the buffers unchanged.
    let _ = edit(request, reply);
}

/// Turns the buffers of a mkdir into those of its replay.
pub(crate) fn replay_mkdir(request: &mut [Bytes], reply: &ReplyMsg) {
    let Ok(body) = reply.get::<MdtBody>(bufs::MDT_BODY) else {
        return;
    };
    let layout = reply.bytes(bufs::CREATE_REPLY_MD);
    let len = (body.mbo_eadatasize as usize).min(layout.len());
    // The buffers of a request begin after the `ptlrpc_body`.
    if body.mbo_valid & OBD_MD_MEA != 0
        && len > 0
        && let Some(buf) = request.get_mut(bufs::CREATE_EA - 1)
    {
        // A copy: the slice would keep the whole reply until the commit.
        *buf = Bytes::copy_from_slice(&layout[..len]);
    }
}

fn edit(request: &mut [Bytes], reply: &ReplyMsg) -> Option<()> {
    // The buffers of a request begin after the `ptlrpc_body`.
    let at = |index: usize| index - 1;
    let body: MdtBody = reply.get(bufs::INTENT_REPLY_BODY).ok()?;
    if body.mbo_fid1 == Fid::ZERO {
        return None;
    }
    let dlm = request.get(at(bufs::DLM_REQ))?;
    let mut dlm_req = LdlmRequest::from_bytes(dlm).ok()?;
    dlm_req.lock_flags |= LDLM_FL_INTENT_ONLY as u32;
    let dlm = [dlm_req.to_bytes(), dlm.slice(LdlmRequest::SIZE.min(dlm.len())..)].concat();
    let mut open = MdtRecCreate::from_bytes(request.get(at(bufs::OPEN_REC))?).ok()?;
    open.cr_fid2 = body.mbo_fid1;
    open.cr_open_handle_old = body.mbo_open_handle;
    let layout = reply.bytes(bufs::INTENT_REPLY_MD);
    if body.mbo_valid & OBD_MD_FLEASIZE != 0 && !layout.is_empty() {
        let flags = MDS_OPEN_HAS_EA | MDS_OPEN_HAS_OBJS;
        open.cr_flags_l |= flags as u32;
        open.cr_flags_h |= (flags >> 32) as u32;
    }
    *request.get_mut(at(bufs::OPEN_EA))? = layout;
    request[at(bufs::DLM_REQ)] = dlm.into();
    request[at(bufs::OPEN_REC)] = open.to_bytes();
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{replay_mkdir, replay_open};
    use bytes::Bytes;
    use rpc::ReplyMsg;
    use wire::format::bufs;
    use wire::{
        Fid, LDLM_FL_INTENT_ONLY, LdlmRequest, LustreHandle, MDS_OPEN_HAS_OBJS, MdtBody, MdtRecCreate,
        Message, OBD_MD_FLEASIZE, OBD_MD_MEA, PtlrpcBody, WireStruct,
    };

    fn reply_of(bufs: Vec<Bytes>) -> ReplyMsg {
        ReplyMsg {
            status: 0,
            msg: Message {
                bufs,
                ..Message::default()
            },
            body: PtlrpcBody::default(),
            bulk: Vec::new(),
            uncommitted_guard: None,
        }
    }

    #[test]
    fn the_replay_of_a_mkdir_has_the_stripes_of_the_reply() {
        let replay = |valid| {
            let mut request = vec![Bytes::from_static(b"request"); 6];
            let body = MdtBody {
                mbo_valid: valid,
                mbo_eadatasize: 6,
                ..MdtBody::default()
            };
            let mut reply = vec![Bytes::new(); 4];
            reply[bufs::MDT_BODY] = body.to_bytes();
            reply[bufs::CREATE_REPLY_MD] = Bytes::from_static(b"layoutXX");
            replay_mkdir(&mut request, &reply_of(reply));
            request.swap_remove(bufs::CREATE_EA - 1)
        };
        assert_eq!(&replay(OBD_MD_MEA)[..], b"layout");
        assert_eq!(&replay(0)[..], b"request", "the directory has no stripes");
    }

    #[test]
    fn the_replay_of_an_open_names_its_file_its_handle_and_its_objects() {
        let fid = Fid::new(0x2_0000_0400, 7, 0);
        let mut request = vec![Bytes::new(); 11];
        request[bufs::DLM_REQ - 1] = LdlmRequest::default().to_bytes();
        request[bufs::OPEN_REC - 1] = MdtRecCreate::default().to_bytes();
        let body = MdtBody {
            mbo_fid1: fid,
            mbo_valid: OBD_MD_FLEASIZE,
            mbo_open_handle: LustreHandle { cookie: 77 },
            ..MdtBody::default()
        };
        let mut reply = vec![Bytes::new(); 5];
        reply[0] = PtlrpcBody::default().to_bytes();
        reply[bufs::INTENT_REPLY_BODY] = body.to_bytes();
        reply[bufs::INTENT_REPLY_MD] = Bytes::from_static(b"layout");
        let reply = reply_of(reply);
        replay_open(&mut request, &reply);
        let open = MdtRecCreate::from_bytes(&request[bufs::OPEN_REC - 1]).unwrap();
        assert_eq!((open.cr_fid2, open.cr_open_handle_old.cookie), (fid, 77));
        assert_ne!(u64::from(open.cr_flags_l) & MDS_OPEN_HAS_OBJS, 0);
        assert_eq!(&request[bufs::OPEN_EA - 1][..], b"layout");
        let dlm = LdlmRequest::from_bytes(&request[bufs::DLM_REQ - 1]).unwrap();
        assert_ne!(u64::from(dlm.lock_flags) & LDLM_FL_INTENT_ONLY, 0);
    }
}
