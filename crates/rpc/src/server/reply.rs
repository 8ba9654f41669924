//! Replies: their contents, and sending them to the right match bits and offset with the current
//! `last_committed`.

use super::reply_cache::Outcome;
use super::{Arrival, Route};
use crate::{Ptlrpc, at, opcode};
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::Instant;
use wire::format::bufs;
use wire::msg::{EARLY_REPLY_SIZE, early_reply_cksum};
use wire::{
    Errno, LustreHandle, Message, PTL_RPC_MSG_ERR, PTL_RPC_MSG_REPLY, PTLRPC_MSG_VERSION, PtlrpcBody, Transno,
};

/// A reply without the fields that the RPC layer fills in: opcode, `last_committed`, service times.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// `pb_status`: the operation's result (0 or more), a negative errno, or an `ELDLM_*`.
    pub status: i32,
    /// The buffers after the `ptlrpc_body`.
    pub bufs: Vec<Bytes>,
    /// `pb_transno`: the request's transaction; 0 if it has none.
    pub transno: Transno,
    /// `pb_pre_versions`: the objects' versions before the operation.
    pub pre_versions: [u64; 4],
    /// `pb_limit`: maximum number of locks that the client may cache; 0: unlimited.
    pub limit: u32,
    /// `pb_slv`: the server lock volume.
    pub slv: u64,
    /// `pb_handle` of a reply to a connect.
    pub(crate) handle: u64,
    /// `pb_op_flags` of a reply to a connect.
    pub(crate) op_flags: u32,
}

impl Reply {
    /// Success, with these buffers.
    pub fn new(bufs: Vec<Bytes>) -> Reply {
        Reply {
            bufs,
            ..Reply::default()
        }
    }

    /// A reply with a status and no buffers.
    pub fn status(status: i32) -> Reply {
        Reply {
            status,
            ..Reply::default()
        }
    }

    /// The same reply with a transno.
    pub fn with_transno(self, transno: Transno) -> Reply {
        Reply { transno, ..self }
    }

    /// The same reply with a status.
    pub fn with_status(self, status: i32) -> Reply {
        Reply { status, ..self }
    }
}

/// Whether a status means that the request was not executed, rather than that the operation failed.
/// Replies with such a status and no buffers have the type `PTL_RPC_MSG_ERR`, which Lustre's
/// clients log.
fn prevents_execution(status: i32) -> bool {
    let refusals = [
        Errno::EPROTO,
        Errno::EFAULT,
        Errno::ENOTSUPP,
        Errno::ENOTCONN,
        Errno::ENODEV,
        Errno::ENOMEM,
    ];
    Errno::from_status(status).is_some_and(|errno| refusals.contains(&errno))
}

/// Builds the message of a reply.
fn build_reply(arrival: &Arrival, outcome: &Outcome, last_committed: Transno, now: Instant) -> Bytes {
    let error_reply;
    let reply = match outcome {
        Ok(reply) => reply,
        Err(errno) => {
            error_reply = Reply::status(errno.status());
            &error_reply
        }
    };
    let is_err = reply.bufs.is_empty() && prevents_execution(reply.status);
    let body = PtlrpcBody {
        pb_handle: LustreHandle { cookie: reply.handle },
        pb_type: if is_err {
            PTL_RPC_MSG_ERR
        } else {
            PTL_RPC_MSG_REPLY
        },
        pb_status: reply.status,
        pb_last_committed: last_committed.0,
        pb_transno: reply.transno.0,
        pb_op_flags: reply.op_flags,
        pb_timeout: arrival.estimate_secs,
        pb_limit: reply.limit,
        pb_slv: reply.slv,
        pb_pre_versions: reply.pre_versions,
        ..common_body(arrival, now)
    };
    Message::default().build_with(&body, &reply.bufs)
}

/// The fields of the body that replies and early replies have in common.
fn common_body(arrival: &Arrival, now: Instant) -> PtlrpcBody {
    PtlrpcBody {
        pb_version: PTLRPC_MSG_VERSION,
        pb_opc: arrival.body.pb_opc,
        pb_service_time: at::wire_secs(now.saturating_duration_since(arrival.arrived_at)),
        ..PtlrpcBody::default()
    }
}

/// Sends a request's reply. If this server cannot reach the client, the client resends the request
/// later.
pub(crate) async fn send(
    rpc: &Ptlrpc,
    arrival: &Arrival,
    route: &Route,
    outcome: &Outcome,
    last_committed: Transno,
) {
    #[cfg(feature = "faults")]
    if rpc.faults().loses_reply(arrival.body.pb_opc) {
        return;
    }
    let msg = build_reply(arrival, outcome, last_committed, Instant::now());
    put(rpc, arrival, route, reply_offset(arrival), msg).await;
}

/// Sends a request's reply, unless an injected fault loses it (`is_lost`). The result is whether
/// the client's node has acknowledged it. The caller must await the result: until then the reply
/// may wait for credits, and would be lost.
pub(crate) fn send_acknowledged(
    rpc: &Arc<Ptlrpc>,
    arrival: &Arrival,
    route: &Route,
    outcome: &Outcome,
    last_committed: Transno,
    is_lost: bool,
) -> impl Future<Output = bool> + use<> {
    #[cfg(feature = "faults")]
    let is_lost = is_lost || rpc.faults().loses_reply(arrival.body.pb_opc);
    let msg = build_reply(arrival, outcome, last_committed, Instant::now());
    let offset = reply_offset(arrival);
    let (lnet, portal, peer) = (
        rpc.lnet().clone(),
        opcode::reply_portal(arrival.portal),
        route.peer,
    );
    let (bits, xid) = (route.reply_bits, arrival.xid);
    async move {
        if is_lost {
            return false;
        }
        match lnet.put(peer, portal, bits, offset, 0, msg.into(), true).await {
            Ok(_) => true,
            Err(e) => {
                lnet::warn_rate_limited!(%peer, %xid, error = %e, "cannot send reply, or it was not acknowledged");
                false
            }
        }
    }
}

/// The offset of the reply in the client's buffer: early replies precede it.
fn reply_offset(arrival: &Arrival) -> u32 {
    match arrival.takes_early() {
        true => EARLY_REPLY_SIZE as u32,
        false => 0,
    }
}

/// Sends an early reply, which moves the deadline to `secs` seconds after the request's arrival.
pub(crate) async fn send_early(rpc: &Ptlrpc, arrival: &Arrival, route: &Route, secs: u32) {
    let body = PtlrpcBody {
        pb_type: PTL_RPC_MSG_REPLY,
        pb_timeout: secs,
        ..common_body(arrival, Instant::now())
    };
    let mut msg = Message {
        flags: 0,
        ..Message::new(&body, [])
    };
    msg.cksum = early_reply_cksum(msg.buf(bufs::PTLRPC_BODY));
    put(rpc, arrival, route, 0, msg.build()).await;
}

async fn put(rpc: &Ptlrpc, arrival: &Arrival, route: &Route, offset: u32, msg: Bytes) {
    let portal = opcode::reply_portal(arrival.portal);
    if let Err(e) = rpc
        .lnet()
        .put(route.peer, portal, route.reply_bits, offset, 0, msg.into(), false)
        .await
    {
        lnet::warn_rate_limited!(peer = %route.peer, xid = %arrival.xid, error = %e, "cannot send reply");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::prevents_execution;
    use wire::Errno;

    #[test]
    fn operation_results_do_not_prevent_execution_and_refusals_do() {
        assert!(
            !prevents_execution(0)
                && !prevents_execution(301)
                && !prevents_execution(Errno::ENODATA.status())
        );
        assert!(prevents_execution(Errno::ENOTCONN.status()) && prevents_execution(Errno::ENOTSUPP.status()));
    }
}
