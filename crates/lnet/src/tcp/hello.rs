//! The hello messages that open a connection (docs/protocol.md, "LNet", connections): pure
//! functions.

use crate::ni::CONNS_PER_PEER_MAX;
use wire::{
    KSOCK_PROTO_V3, KsockHelloMsgNid4, LNET_PID_LUSTRE, LNET_PROTO_MAGIC, Nid, SOCKLND_CONN_ANY,
    SOCKLND_CONN_BULK_IN, SOCKLND_CONN_BULK_OUT, SOCKLND_CONN_CONTROL, SOCKLND_CONN_NONE,
};

/// The purpose of a connection, from this node's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnType {
    /// All messages: the only connection of a peer that does not use typed connections.
    Any,
    /// Small messages in both directions; large ones only while there is no bulk connection.
    Control,
    /// Large messages from the peer; this node sends only cookies and keepalives on it.
    BulkIn,
    /// Large messages to the peer; small ones only while there is no control connection.
    BulkOut,
}

impl ConnType {
    /// The connections that this node opens to a peer, in order: one for control, then `bulk` for
    /// bulk in each direction. Each comes with the number of connections of its type that exist
    /// once it is open.
    pub(super) fn dial_order(bulk: u32) -> impl Iterator<Item = (ConnType, usize)> {
        let pairs = (1..=bulk.max(1) as usize).flat_map(|n| [(ConnType::BulkIn, n), (ConnType::BulkOut, n)]);
        std::iter::once((ConnType::Control, 1)).chain(pairs)
    }

    /// The type in a hello; `None` for an unknown value.
    pub(super) fn from_wire(ctype: i32) -> Option<ConnType> {
        match ctype as u32 {
            SOCKLND_CONN_ANY => Some(ConnType::Any),
            SOCKLND_CONN_CONTROL => Some(ConnType::Control),
            SOCKLND_CONN_BULK_IN => Some(ConnType::BulkIn),
            SOCKLND_CONN_BULK_OUT => Some(ConnType::BulkOut),
            _ => None,
        }
    }

    /// The value of the type in a hello.
    pub(super) fn to_wire(self) -> i32 {
        let ctype = match self {
            ConnType::Any => SOCKLND_CONN_ANY,
            ConnType::Control => SOCKLND_CONN_CONTROL,
            ConnType::BulkIn => SOCKLND_CONN_BULK_IN,
            ConnType::BulkOut => SOCKLND_CONN_BULK_OUT,
        };
        ctype as i32
    }

    /// The same connection from the peer's point of view.
    pub(super) fn inverse(self) -> ConnType {
        match self {
            ConnType::BulkIn => ConnType::BulkOut,
            ConnType::BulkOut => ConnType::BulkIn,
            same => same,
        }
    }

    /// Maximum number of connections of this type with a peer. If the peer opens another, this node
    /// refuses it, or closes the old ones (`Peer::admit`). Peers with fast interfaces open several
    /// for bulk.
    pub(super) fn limit(self) -> usize {
        match self {
            ConnType::Any | ConnType::Control => 1,
            ConnType::BulkIn | ConnType::BulkOut => CONNS_PER_PEER_MAX as usize,
        }
    }

    /// The rank of the connection for a message, large or not: 0 is best, `None` is unsuitable.
    pub(super) fn rank_for(self, large: bool) -> Option<u8> {
        match (self, large) {
            (ConnType::Control, false) | (ConnType::BulkOut, true) | (ConnType::Any, _) => Some(0),
            (ConnType::Control, true) | (ConnType::BulkOut, false) => Some(1),
            (ConnType::BulkIn, _) => None,
        }
    }
}

/// The connection type in a hello that means "not now, try again".
pub(super) const RETRY: i32 = SOCKLND_CONN_NONE as i32;

/// This node's hello, from `src` to `dst`.
pub(super) fn hello(src: Nid, dst: Nid, incarnation: u64, kshm_ctype: i32) -> KsockHelloMsgNid4 {
    KsockHelloMsgNid4 {
        kshm_magic: LNET_PROTO_MAGIC,
        kshm_version: KSOCK_PROTO_V3,
        kshm_src_nid: src,
        kshm_dst_nid: dst,
        kshm_src_pid: LNET_PID_LUSTRE,
        kshm_dst_pid: LNET_PID_LUSTRE,
        kshm_src_incarnation: incarnation,
        kshm_dst_incarnation: 0,
        kshm_ctype,
        kshm_nips: 0,
    }
}

/// Whether this node refuses the peer's connection when both connect to each other at the same
/// time: the node with the higher NID refuses, and the connection that it opened remains.
pub(super) fn refuses_peers_connection(own: Nid, peer: Nid) -> bool {
    // Lustre compares NIDs in their long form, as big-endian bytes. The order is the same.
    peer < own
}

/// The meaning of the peer's reply to this node's hello.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HelloReply {
    /// The connection is established.
    Accepted,
    /// Try again: the peer is connecting to this node, or has enough connections.
    Retry,
    /// The peer has another NID, speaks another version, or answers with another connection type.
    Refused(String),
}

/// Interprets the reply of `peer` to a request for a connection of type `wanted`.
pub(super) fn check_reply(peer: Nid, wanted: ConnType, reply: &KsockHelloMsgNid4) -> HelloReply {
    if reply.kshm_version != KSOCK_PROTO_V3 {
        return HelloReply::Refused(format!(
            "it speaks socklnd version {}, but this node speaks version {KSOCK_PROTO_V3}",
            reply.kshm_version
        ));
    }
    if reply.kshm_src_nid != peer || reply.kshm_src_pid != LNET_PID_LUSTRE {
        let (nid, pid) = (reply.kshm_src_nid, reply.kshm_src_pid);
        return HelloReply::Refused(format!(
            "another node answers: its hello names {nid}, process id {pid:#x}"
        ));
    }
    match reply.kshm_ctype {
        RETRY => HelloReply::Retry,
        ctype if ctype == wanted.inverse().to_wire() => HelloReply::Accepted,
        ctype => HelloReply::Refused(format!(
            "it answered a request for {wanted:?} with connection type {ctype}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::{ConnType, HelloReply, RETRY, check_reply, hello, refuses_peers_connection};
    use wire::{Nid, WireStruct};

    const A: Nid = Nid(0x0002_0000_0a00_0001);
    const B: Nid = Nid(0x0002_0000_0a00_0002);

    #[test]
    fn a_hello_equals_the_captured_one() {
        // From captures/c1_lctl_ping.pcap, frame 6.
        let captured = "63697245030000001500580a000002000b00580a000002003930000000000000521be7ec35bae9180000000000000000\
                        0100000000000000";
        let mut ours = hello(
            Nid(0x0002_0000_0a58_0015),
            Nid(0x0002_0000_0a58_000b),
            0x18e9_ba35_ece7_1b52,
            1,
        );
        ours.kshm_dst_pid = 0; // Lustre's kernel module leaves it 0, and no node checks it
        let hex: String = ours.to_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, captured);
    }

    #[test]
    fn connection_types_are_inverted_at_the_other_end() {
        for (one, other) in [(1, 1), (2, 3), (3, 2), (0, 0)] {
            assert_eq!(
                ConnType::from_wire(one).map(|t| t.inverse().to_wire()),
                Some(other)
            );
        }
        assert_eq!(ConnType::from_wire(RETRY), None);
    }

    #[test]
    fn the_higher_nid_wins_a_race() {
        assert!(refuses_peers_connection(B, A));
        assert!(!refuses_peers_connection(A, B));
    }

    #[test]
    fn replies_are_accepted_retried_or_refused() {
        let answer = |ctype| hello(B, A, 1, ctype);
        assert_eq!(check_reply(B, ConnType::BulkIn, &answer(3)), HelloReply::Accepted);
        assert_eq!(
            check_reply(B, ConnType::BulkIn, &answer(RETRY)),
            HelloReply::Retry
        );
        assert!(matches!(
            check_reply(B, ConnType::BulkIn, &answer(2)),
            HelloReply::Refused(_)
        ));
        assert!(matches!(
            check_reply(A, ConnType::BulkIn, &answer(3)),
            HelloReply::Refused(_)
        ));
    }
}
