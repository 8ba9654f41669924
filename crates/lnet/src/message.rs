//! One LNet message: addresses, operation, payload.

use crate::Payload;
use wire::frame::{FrameHead, LnetOp};
use wire::{LNET_PID_LUSTRE, LnetHandleWire, LnetHdrNid4, LnetPut, Nid};

/// A message to send, deliver or forward.
#[derive(Debug, Clone)]
pub(crate) struct Msg {
    /// The original sender. If it is `Nid::default()`, the connection that sends the message fills
    /// in this node's NID.
    pub(crate) src: Nid,
    /// The final destination.
    pub(crate) dst: Nid,
    /// The operation and its parameters.
    pub(crate) op: LnetOp,
    /// The data of a PUT or REPLY; empty for others.
    pub(crate) payload: Payload,
}

impl Msg {
    /// A message from this node to itself.
    pub(crate) fn to_self(op: LnetOp, payload: Payload) -> Msg {
        Msg {
            src: Nid::LO,
            dst: Nid::LO,
            op,
            payload,
        }
    }

    /// A message to a peer. The connection that sends it fills in the source: the NID by which the
    /// peer or the router knows this node.
    pub(crate) fn to_peer(dst: Nid, op: LnetOp, payload: Payload) -> Msg {
        Msg {
            src: Nid::default(),
            dst,
            op,
            payload,
        }
    }

    /// The frame header for sending the message over a connection of this node's NID `local`.
    /// `cookie` is a zero-copy cookie to return; 0: none. Answers and forwarded messages keep their
    /// source.
    pub(crate) fn head(&self, local: Nid, cookie: u64) -> FrameHead {
        let src = if self.src == Nid::default() {
            local
        } else {
            self.src
        };
        // At most LNET_MAX_PAYLOAD: the API, `Core` (REPLYs) and the parser (messages to forward)
        // refuse longer payloads.
        let len = self.payload.len() as u32;
        let header = LnetHdrNid4::new((src, LNET_PID_LUSTRE), (self.dst, LNET_PID_LUSTRE), &self.op, len);
        FrameHead::Lnet {
            cookies: [0, cookie],
            header,
            msg: self.op,
        }
    }
}

/// A PUT. Without the handle `ack` it requests no ACK.
pub(crate) fn put(
    ack: Option<LnetHandleWire>,
    ptl_index: u32,
    match_bits: u64,
    offset: u32,
    hdr_data: u64,
) -> LnetOp {
    LnetOp::Put(LnetPut {
        ack_wmd: ack.unwrap_or(LnetHandleWire::NONE),
        match_bits,
        hdr_data,
        ptl_index,
        offset,
    })
}
