//! LNet's four messages as plain data, and their header on the wire (guide 2.2). Pure.

use crate::Payload;
use wire::{
    LNET_MAX_PAYLOAD, LNET_MSG_ACK, LNET_MSG_GET, LNET_MSG_PUT, LNET_MSG_REPLY, LNET_PID_LUSTRE,
    LNET_WIRE_HANDLE_COOKIE_NONE, LnetAck, LnetGet, LnetHandleWire, LnetHdrNid4, LnetPut, LnetReply, Nid,
    WireError, WireStruct, Writer,
};

/// The handle that says "no ACK wanted".
const NO_HANDLE: LnetHandleWire = LnetHandleWire {
    wh_interface_cookie: LNET_WIRE_HANDLE_COOKIE_NONE,
    wh_object_cookie: LNET_WIRE_HANDLE_COOKIE_NONE,
};

/// One message.
#[derive(Debug, Clone)]
pub(crate) struct Msg {
    /// Who sent it first.
    pub(crate) src: Nid,
    /// For whom it is.
    pub(crate) dst: Nid,
    /// What it is.
    pub(crate) op: Op,
    /// What it carries: nothing but for PUT and REPLY.
    pub(crate) payload: Payload,
}

/// What a message is, and what its header holds for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// A PUT arrived.
    Ack(LnetAck),
    /// Data for a buffer that the receiver has attached.
    Put(LnetPut),
    /// Asks for the data of a buffer that the receiver has attached.
    Get(LnetGet),
    /// The data that a GET asked for.
    Reply(LnetReply),
}

impl Op {
    /// A PUT; without `ack` none is wanted.
    pub(crate) fn put(
        ack: Option<LnetHandleWire>,
        ptl_index: u32,
        match_bits: u64,
        offset: u32,
        hdr_data: u64,
    ) -> Op {
        Op::Put(LnetPut {
            ack_wmd: ack.unwrap_or(NO_HANDLE),
            match_bits,
            hdr_data,
            ptl_index,
            offset,
        })
    }

    /// The handle to acknowledge a PUT with, if it wants that.
    pub(crate) fn ack_wanted(put: &LnetPut) -> Option<LnetHandleWire> {
        (put.ack_wmd != NO_HANDLE).then_some(put.ack_wmd)
    }

    /// The operation in a header, and how much payload follows it. Lengths are checked here, before memory is taken.
    pub(crate) fn parse(hdr: &LnetHdrNid4) -> Result<(Op, usize), WireError> {
        let (op, limit) = match hdr.r#type {
            LNET_MSG_ACK => (Op::Ack(LnetAck::from_bytes(&hdr.msg)?), 0),
            LNET_MSG_PUT => (Op::Put(LnetPut::from_bytes(&hdr.msg)?), LNET_MAX_PAYLOAD),
            LNET_MSG_GET => (Op::Get(LnetGet::from_bytes(&hdr.msg)?), 0),
            LNET_MSG_REPLY => (Op::Reply(LnetReply::from_bytes(&hdr.msg)?), LNET_MAX_PAYLOAD),
            other => {
                let expected = "ACK, PUT, GET or REPLY";
                return Err(WireError::Value {
                    what: "LNet message type",
                    expected,
                    found: other.into(),
                });
            }
        };
        if hdr.payload_length > limit {
            let (limit, found) = (limit as usize, hdr.payload_length as usize);
            return Err(WireError::TooLong {
                what: "LNet payload",
                limit,
                found,
            });
        }
        Ok((op, hdr.payload_length as usize))
    }
}

impl Msg {
    /// The header to send it with, from this node's NID `src`.
    pub(crate) fn header(&self, src: Nid) -> LnetHdrNid4 {
        let (r#type, msg) = match &self.op {
            Op::Ack(ack) => (LNET_MSG_ACK, union40(ack)),
            Op::Put(put) => (LNET_MSG_PUT, union40(put)),
            Op::Get(get) => (LNET_MSG_GET, union40(get)),
            Op::Reply(reply) => (LNET_MSG_REPLY, union40(reply)),
        };
        LnetHdrNid4 {
            dest_nid: self.dst,
            src_nid: src,
            dest_pid: LNET_PID_LUSTRE,
            src_pid: LNET_PID_LUSTRE,
            r#type,
            // A payload longer than LNET_MAX_PAYLOAD is refused before a message is made of it.
            payload_length: self.payload.len() as u32,
            msg,
        }
    }
}

/// The header's 40 bytes that differ by type.
fn union40<T: WireStruct>(part: &T) -> [u8; 40] {
    let mut w = Writer::with_capacity(40);
    part.write(&mut w);
    w.pad_to(40);
    let mut out = [0; 40];
    out.copy_from_slice(&w.finish());
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Msg, Op};
    use crate::Payload;
    use wire::{LNET_MAX_PAYLOAD, LnetAck, LnetGet, LnetHandleWire, LnetReply, Nid};

    fn msg(op: Op, payload: Payload) -> Msg {
        Msg {
            src: Nid::LO,
            dst: Nid(7),
            op,
            payload,
        }
    }

    #[test]
    fn every_operation_survives_its_header() {
        let wmd = LnetHandleWire {
            wh_interface_cookie: 1,
            wh_object_cookie: 2,
        };
        for op in [
            Op::Ack(LnetAck {
                dst_wmd: wmd,
                match_bits: 3,
                mlength: 4,
            }),
            Op::put(Some(wmd), 4, 5, 6, 7),
            Op::Get(LnetGet {
                return_wmd: wmd,
                match_bits: 3,
                ptl_index: 4,
                src_offset: 5,
                sink_length: 6,
            }),
            Op::Reply(LnetReply { dst_wmd: wmd }),
        ] {
            let hdr = msg(op, Payload::new()).header(Nid(9));
            assert_eq!((hdr.src_nid, hdr.dest_nid), (Nid(9), Nid(7)));
            assert_eq!(Op::parse(&hdr).unwrap(), (op, 0));
        }
    }

    #[test]
    fn a_put_that_wants_no_ack_says_so_with_all_ones() {
        let Op::Put(put) = Op::put(None, 4, 5, 6, 7) else {
            unreachable!()
        };
        assert_eq!(put.ack_wmd.wh_object_cookie, u64::MAX);
        assert_eq!(Op::ack_wanted(&put), None);
    }

    #[test]
    fn lengths_and_types_beyond_the_protocol_are_refused() {
        let mut hdr = msg(Op::put(None, 4, 5, 6, 7), Payload::new()).header(Nid(9));
        hdr.payload_length = LNET_MAX_PAYLOAD + 1;
        assert!(Op::parse(&hdr).is_err());
        hdr.payload_length = LNET_MAX_PAYLOAD;
        assert!(Op::parse(&hdr).is_ok());
        hdr.r#type = 4;
        assert!(Op::parse(&hdr).is_err());
        hdr.r#type = wire::LNET_MSG_GET;
        assert!(Op::parse(&hdr).is_err(), "a GET carries nothing");
    }
}
