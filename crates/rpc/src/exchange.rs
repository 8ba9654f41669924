//! Sending one message and receiving its reply: shared by imports and by callbacks of exports
//! (docs/protocol.md, "PtlRPC").

use crate::opcode;
use lnet::{Lnet, MatchEntry, Md, MdEvent, MdHandle};
use std::sync::{Arc, LazyLock};
use wire::format::bufs;
use wire::msg::{EARLY_REPLY_SIZE, early_reply_cksum};
use wire::{Message, Nid, PTL_RPC_MSG_REQUEST, PTLRPC_MAX_BUFLEN, PTLRPC_MSG_VERSION, PtlrpcBody};

/// This process's id, `pb_status` of its requests; cached because getting it is a system call.
static PID: LazyLock<i32> = LazyLock::new(|| i32::try_from(std::process::id()).unwrap_or(0));

/// The fields that all requests have in common.
pub(crate) fn request_body(opc: u32) -> PtlrpcBody {
    PtlrpcBody {
        pb_type: PTL_RPC_MSG_REQUEST,
        pb_version: opcode::version(opc) | PTLRPC_MSG_VERSION,
        pb_opc: opc,
        pb_status: *PID,
        ..PtlrpcBody::default()
    }
}

/// A message that arrived in a reply buffer.
#[derive(Debug)]
pub(crate) enum ReplyEvent {
    /// The server needs more time. The new deadline is this many seconds after the client sent the
    /// request.
    Early { timeout_secs: u32 },
    /// The reply.
    Final(Box<(Message, PtlrpcBody)>),
    /// The buffer was too short for the reply, which has `msg_len` bytes.
    Truncated { msg_len: u32 },
}

/// A buffer for the reply, attached before the request is sent.
pub(crate) struct ReplyBuffer {
    md: MdHandle,
    /// Whether early replies may precede the reply; they have offset 0.
    early: bool,
    /// Length of the buffer in bytes.
    max_len: u32,
}

impl ReplyBuffer {
    /// Attaches a buffer for a reply of `reply_len` bytes from `peer`; with `early`, early replies
    /// may precede it.
    pub(crate) fn attach(
        lnet: &Arc<Lnet>,
        peer: Nid,
        portal: u32,
        match_bits: u64,
        reply_len: u32,
        early: bool,
    ) -> ReplyBuffer {
        let max_len = (reply_len + EARLY_REPLY_SIZE as u32).next_power_of_two();
        let me = MatchEntry {
            portal,
            match_bits,
            from: Some(peer),
        };
        ReplyBuffer {
            md: lnet.attach(me, Md::Sink { max_len }),
            early,
            max_len,
        }
    }

    /// Waits for the next well-formed reply. Like [`MdHandle::next`], never returns `None`.
    pub(crate) async fn next(&mut self) -> Option<ReplyEvent> {
        loop {
            if let MdEvent::Put {
                offset,
                payload,
                from,
            } = self.md.next().await?
            {
                match self.parse_event(offset, payload.into_bytes()) {
                    Some(event) => return Some(event),
                    None => lnet::warn_rate_limited!(%from, offset, "malformed reply dropped"),
                }
            }
        }
    }

    fn parse_event(&self, offset: u32, bytes: bytes::Bytes) -> Option<ReplyEvent> {
        let fills_buffer = bytes.len() as u32 + offset == self.max_len;
        let msg = match Message::parse(&bytes) {
            Ok(msg) => msg,
            Err(_) if fills_buffer => {
                let msg_len = message_len(&bytes)?;
                return (msg_len > self.max_len - offset).then_some(ReplyEvent::Truncated { msg_len });
            }
            Err(_) => return None,
        };
        let body = msg.body().ok()?;
        if self.early && offset == 0 {
            if msg.cksum != early_reply_cksum(msg.buf(bufs::PTLRPC_BODY)) {
                return None;
            }
            return Some(ReplyEvent::Early {
                timeout_secs: body.pb_timeout,
            });
        }
        Some(ReplyEvent::Final(Box::new((msg, body))))
    }
}

/// The length of a message in bytes, computed from its header (`lustre_msg_v2`): word 0 is the
/// number of buffers, word 2 the magic, and the lengths of the buffers begin at word 8.
fn message_len(front: &[u8]) -> Option<u32> {
    let word = |i: usize| {
        front
            .get(4 * i..4 * i + 4)?
            .try_into()
            .ok()
            .map(u32::from_le_bytes)
    };
    let count = word(0).filter(|n| (1..=wire::msg::MAX_BUFFERS as u32).contains(n))? as usize;
    if word(2)? != wire::LUSTRE_MSG_MAGIC_V2 {
        return None;
    }
    let mut len = wire::LustreMsgV2::size_of_header(count) as u32;
    for i in 0..count {
        len += word(8 + i)
            .filter(|&n| n <= PTLRPC_MAX_BUFLEN)?
            .next_multiple_of(8);
    }
    (len <= PTLRPC_MAX_BUFLEN).then_some(len)
}
