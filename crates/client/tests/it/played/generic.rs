//! Answers without a captured counterpart: to pings, cancellations, disconnects, and requests of
//! our client alone.

use crate::played::answer::{self, Answer};
use crate::played::library::Library;
use crate::played::server::{Asked, State};
use bytes::Bytes;
use wire::{
    DISP_IT_EXECD, ELDLM_LOCK_ABORTED, Errno, LDLM_EXTENT, LdlmReply, LuSeqRange, LustreHandle, MdtBody,
    Message, OBD_FL_SHORT_IO, OstBody, OstLvb, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY, PtlrpcBody, WireStruct,
};

fn plain(asked: &Asked, status: i32, bufs: Vec<Bytes>) -> Answer {
    let kind = if status >= 0 {
        PTL_RPC_MSG_REPLY
    } else {
        PTL_RPC_MSG_ERR
    };
    let body = PtlrpcBody {
        pb_type: kind,
        pb_version: asked.body.pb_version,
        pb_opc: asked.body.pb_opc,
        pb_status: status,
        pb_timeout: 5,
        pb_service_time: 1,
        ..PtlrpcBody::default()
    };
    Answer {
        message: Message::new(&body, bufs),
        bulk: Vec::new(),
        fetch: Vec::new(),
        blocked: false,
    }
}

/// The answer to an unsupported request.
pub fn refusal(asked: &Asked) -> Answer {
    plain(asked, Errno::EOPNOTSUPP.status(), Vec::new())
}

/// The answer to a request that needs no captured one.
pub fn answer(state: &mut State, asked: &Asked, library: &Library) -> Option<Answer> {
    match asked.body.pb_opc {
        wire::OBD_PING
        | wire::LDLM_CANCEL
        | wire::MDS_DISCONNECT
        | wire::OST_DISCONNECT
        | wire::MGS_DISCONNECT => Some(plain(asked, 0, Vec::new())),
        wire::FLD_QUERY => {
            let seq = asked.msg.get::<LuSeqRange>(2).ok()?.lsr_start;
            let own = LuSeqRange {
                lsr_start: seq,
                lsr_end: seq + 1,
                ..LuSeqRange::default()
            };
            let range = library.location(seq).unwrap_or(own);
            Some(plain(asked, 0, vec![range.to_bytes()]))
        }
        wire::MDS_CLOSE => {
            let bufs = vec![MdtBody::default().to_bytes(), Bytes::new(), Bytes::new()];
            Some(changed(state, plain(asked, 0, bufs)))
        }
        wire::OST_WRITE => {
            let body = asked.msg.get::<OstBody>(1).ok()?;
            let niobufs = asked.msg.buf(3).len() / wire::NiobufRemote::SIZE;
            let rcs = Bytes::from(vec![0; 4 * niobufs]);
            let mut answer = plain(asked, 0, vec![body.to_bytes(), rcs]);
            if body.oa.o_flags & OBD_FL_SHORT_IO == 0 {
                answer.fetch = answer::lengths(asked);
            }
            Some(changed(state, answer))
        }
        wire::LDLM_CONVERT => {
            let rep = LdlmReply {
                lock_handle: LustreHandle {
                    cookie: crate::played::key::lock_request(&asked.msg)?.lock_handle[0],
                },
                ..LdlmReply::default()
            };
            Some(plain(asked, 0, vec![rep.to_bytes()]))
        }
        wire::LDLM_ENQUEUE if asked.format.name == "RQF_LDLM_INTENT_GETXATTR" => {
            let rep = LdlmReply {
                lock_policy_res1: DISP_IT_EXECD,
                ..LdlmReply::default()
            };
            let mut bufs = vec![rep.to_bytes(), MdtBody::default().to_bytes()];
            bufs.resize(7, Bytes::new());
            Some(plain(asked, ELDLM_LOCK_ABORTED as i32, bufs))
        }
        wire::LDLM_ENQUEUE if asked.format.name == "RQF_LDLM_ENQUEUE" => Some(grant(state, asked, library)),
        _ => None,
    }
}

fn changed(state: &mut State, mut answer: Answer) -> Answer {
    let mut body = answer.message.body().unwrap_or_default();
    body.pb_transno = state.next_transno();
    body.pb_last_committed = body.pb_transno;
    answer.message.set_body(&body);
    answer
}

/// Grants a lock without conflicts. The object is as captured, or empty.
fn grant(state: &mut State, asked: &Asked, library: &Library) -> Answer {
    let mut desc = crate::played::key::lock_request(&asked.msg)
        .map(|r| r.lock_desc)
        .unwrap_or_default();
    desc.l_granted_mode = desc.l_req_mode;
    let cookie = state.fresh_handle();
    let rep = LdlmReply {
        lock_desc: desc,
        lock_handle: LustreHandle { cookie },
        ..LdlmReply::default()
    };
    let lvb = match desc.l_resource.lr_type {
        LDLM_EXTENT => {
            let lvb = library.lvb(&desc.l_resource.lr_name, &state.capture, state.changed_us);
            lvb.unwrap_or_else(|| OstLvb::default().to_bytes())
        }
        _ => Bytes::new(),
    };
    plain(asked, 0, vec![rep.to_bytes(), lvb])
}
