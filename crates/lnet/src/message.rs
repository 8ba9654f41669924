//! One LNet message as this node handles it: addresses, operation, payload.

use crate::Payload;
use wire::frame::{FrameHead, LnetMsg};
use wire::{LNET_PID_LUSTRE, LnetHandleWire, LnetHdrNid4, LnetPut, Nid};

/// One message.
#[derive(Debug, Clone)]
pub(crate) struct Msg {
    /// Who sent it first.
    pub(crate) src: Nid,
    /// For whom it is.
    pub(crate) dst: Nid,
    /// What it is.
    pub(crate) op: LnetMsg,
    /// What it carries: nothing but for PUT and REPLY.
    pub(crate) payload: Payload,
}

impl Msg {
    /// A message of this node to itself.
    pub(crate) fn to_self(op: LnetMsg, payload: Payload) -> Msg {
        Msg {
            src: Nid::LO,
            dst: Nid::LO,
            op,
            payload,
        }
    }

    /// A message to a peer. The connection that takes it fills in the source: the NID of this node that the peer, or the
    /// router, knows.
    pub(crate) fn to_peer(dst: Nid, op: LnetMsg, payload: Payload) -> Msg {
        Msg {
            src: Nid::default(),
            dst,
            op,
            payload,
        }
    }

    /// The head of the frame that carries it over a connection of this node's NID `local`, giving back one zero-copy cookie
    /// (or 0). Answers, and what is forwarded, keep the source that they have.
    pub(crate) fn head(&self, local: Nid, cookie: u64) -> FrameHead {
        let src = if self.src == Nid::default() {
            local
        } else {
            self.src
        };
        // A payload longer than LNET_MAX_PAYLOAD is refused before a message is made of it.
        let len = self.payload.len() as u32;
        let header = LnetHdrNid4::new((src, LNET_PID_LUSTRE), (self.dst, LNET_PID_LUSTRE), &self.op, len);
        FrameHead::Lnet {
            cookies: [0, cookie],
            header,
            msg: self.op,
        }
    }
}

/// A PUT; without a handle no ACK is wanted.
pub(crate) fn put(
    ack: Option<LnetHandleWire>,
    ptl_index: u32,
    match_bits: u64,
    offset: u32,
    hdr_data: u64,
) -> LnetMsg {
    LnetMsg::Put(LnetPut {
        ack_wmd: ack.unwrap_or(LnetHandleWire::NONE),
        match_bits,
        hdr_data,
        ptl_index,
        offset,
    })
}
