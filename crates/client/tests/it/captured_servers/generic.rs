//! Answers to pings, cancellations and disconnects, and to other requests that no capture has in
//! this form.

use crate::captured_servers::answer::{self, Answer};
use crate::captured_servers::library::Library;
use crate::captured_servers::server::{ClientRequest, State};
use bytes::Bytes;
use wire::{
    DISP_IT_EXECD, ELDLM_LOCK_ABORTED, Errno, LDLM_EXTENT, LdlmReply, LuSeqRange, LustreHandle, MdtBody,
    Message, OBD_FL_SHORT_IO, OstBody, OstLvb, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY, PtlrpcBody, WireStruct,
};

/// An answer with a status and these buffers after the body.
fn reply_with(req: &ClientRequest, status: i32, bufs: Vec<Bytes>) -> Answer {
    let kind = if status >= 0 {
        PTL_RPC_MSG_REPLY
    } else {
        PTL_RPC_MSG_ERR
    };
    let body = PtlrpcBody {
        pb_type: kind,
        pb_version: req.body.pb_version,
        pb_opc: req.body.pb_opc,
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
pub fn refusal(req: &ClientRequest) -> Answer {
    reply_with(req, Errno::EOPNOTSUPP.status(), Vec::new())
}

/// The answer to a request that needs no captured reply; `None`: the request needs one.
pub fn answer(state: &mut State, (req, target): (&ClientRequest, &str), library: &Library) -> Option<Answer> {
    match req.body.pb_opc {
        wire::SEQ_QUERY => {
            let mut answer = reply_with(req, 0, vec![LuSeqRange::default().to_bytes()]);
            answer::give_own_sequence(&mut answer, target);
            Some(answer)
        }
        wire::OBD_PING
        | wire::LDLM_CANCEL
        | wire::MDS_DISCONNECT
        | wire::OST_DISCONNECT
        | wire::MGS_DISCONNECT => Some(reply_with(req, 0, Vec::new())),
        wire::FLD_QUERY => {
            let seq = req.msg.get::<LuSeqRange>(2).ok()?.lsr_start;
            let seq_only = LuSeqRange {
                lsr_start: seq,
                lsr_end: seq + 1,
                lsr_index: answer::mdt_of_own_sequence(seq).unwrap_or(0),
                ..LuSeqRange::default()
            };
            let range = library.fld_range(seq).unwrap_or(seq_only);
            Some(reply_with(req, 0, vec![range.to_bytes()]))
        }
        wire::MDS_CLOSE => {
            let bufs = vec![MdtBody::default().to_bytes(), Bytes::new(), Bytes::new()];
            Some(with_transno(state, reply_with(req, 0, bufs)))
        }
        wire::OST_WRITE => {
            let body = req.msg.get::<OstBody>(1).ok()?;
            let niobufs = req.msg.buf(3).len() / wire::NiobufRemote::SIZE;
            let rcs = Bytes::from(vec![0; 4 * niobufs]);
            let mut answer = reply_with(req, 0, vec![body.to_bytes(), rcs]);
            if body.oa.o_flags & OBD_FL_SHORT_IO == 0 {
                answer.fetch = answer::bulk_lengths(req);
            }
            Some(with_transno(state, answer))
        }
        wire::LDLM_CONVERT => {
            let rep = LdlmReply {
                lock_handle: LustreHandle {
                    cookie: crate::captured_servers::key::lock_request(&req.msg)?.lock_handle[0],
                },
                ..LdlmReply::default()
            };
            Some(reply_with(req, 0, vec![rep.to_bytes()]))
        }
        wire::LDLM_ENQUEUE if req.format.name == "RQF_LDLM_INTENT_GETXATTR" => {
            let rep = LdlmReply {
                lock_policy_res1: DISP_IT_EXECD,
                ..LdlmReply::default()
            };
            let mut bufs = vec![rep.to_bytes(), MdtBody::default().to_bytes()];
            bufs.resize(7, Bytes::new());
            Some(reply_with(req, ELDLM_LOCK_ABORTED as i32, bufs))
        }
        wire::LDLM_ENQUEUE if req.format.name == "RQF_LDLM_ENQUEUE" => Some(grant_lock(state, req, library)),
        _ => None,
    }
}

/// Sets the next transaction number, as committed, in the answer to a change.
fn with_transno(state: &mut State, mut answer: Answer) -> Answer {
    let mut body = answer.message.body().unwrap_or_default();
    body.pb_transno = state.next_transno();
    body.pb_last_committed = body.pb_transno;
    answer.message.set_body(&body);
    answer
}

/// Grants a lock without conflicts. An object has its captured size and times, or is empty.
fn grant_lock(state: &mut State, req: &ClientRequest, library: &Library) -> Answer {
    let mut desc = crate::captured_servers::key::lock_request(&req.msg)
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
            let lvb = library.captured_lvb(&desc.l_resource.lr_name, &state.capture, state.changed_us);
            lvb.unwrap_or_else(|| OstLvb::default().to_bytes())
        }
        _ => Bytes::new(),
    };
    reply_with(req, 0, vec![rep.to_bytes(), lvb])
}
