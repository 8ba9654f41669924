//! What two nodes say to each other before the first message (guide 1.1 to 1.3). Pure.

use crate::ni::CONNS_PER_PEER_MAX;
use wire::{
    KSOCK_PROTO_V3, KsockHelloMsgNid4, LNET_PID_LUSTRE, LNET_PROTO_MAGIC, Nid, SOCKLND_CONN_ANY,
    SOCKLND_CONN_BULK_IN, SOCKLND_CONN_BULK_OUT, SOCKLND_CONN_CONTROL, SOCKLND_CONN_NONE,
};

/// What a connection is for, as this node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnType {
    /// Anything: an untyped peer's only connection.
    Any,
    /// Small messages, both ways.
    Control,
    /// The peer's large messages; this node sends nothing on it but cookies and keepalives.
    BulkIn,
    /// This node's large messages.
    BulkOut,
}

impl ConnType {
    /// All connections that a typed peer has, in the order in which they are opened, each with how many of its type there
    /// are then: one for control, `bulk` for bulk each way.
    pub(super) fn typed(bulk: u32) -> impl Iterator<Item = (ConnType, usize)> {
        let pairs = (1..=bulk.max(1) as usize).flat_map(|n| [(ConnType::BulkIn, n), (ConnType::BulkOut, n)]);
        std::iter::once((ConnType::Control, 1)).chain(pairs)
    }

    /// The type that a hello names; `None` for what is no type.
    pub(super) fn from_wire(ctype: i32) -> Option<ConnType> {
        match ctype as u32 {
            SOCKLND_CONN_ANY => Some(ConnType::Any),
            SOCKLND_CONN_CONTROL => Some(ConnType::Control),
            SOCKLND_CONN_BULK_IN => Some(ConnType::BulkIn),
            SOCKLND_CONN_BULK_OUT => Some(ConnType::BulkOut),
            _ => None,
        }
    }

    /// As a hello names it.
    pub(super) fn to_wire(self) -> i32 {
        let ctype = match self {
            ConnType::Any => SOCKLND_CONN_ANY,
            ConnType::Control => SOCKLND_CONN_CONTROL,
            ConnType::BulkIn => SOCKLND_CONN_BULK_IN,
            ConnType::BulkOut => SOCKLND_CONN_BULK_OUT,
        };
        ctype as i32
    }

    /// The same connection as the peer sees it.
    pub(super) fn inverse(self) -> ConnType {
        match self {
            ConnType::BulkIn => ConnType::BulkOut,
            ConnType::BulkOut => ConnType::BulkIn,
            same => same,
        }
    }

    /// How many connections of this type a peer may open. Peers with fast interfaces open several for bulk.
    pub(super) fn limit(self) -> usize {
        match self {
            ConnType::Any | ConnType::Control => 1,
            ConnType::BulkIn | ConnType::BulkOut => CONNS_PER_PEER_MAX as usize,
        }
    }

    /// How well a message suits the connection: best first, `None` not at all.
    pub(super) fn suits(self, large: bool) -> Option<u8> {
        match (self, large) {
            (ConnType::Control, false) | (ConnType::BulkOut, true) | (ConnType::Any, _) => Some(0),
            (ConnType::Control, true) | (ConnType::BulkOut, false) => Some(1),
            (ConnType::BulkIn, _) => None,
        }
    }
}

/// The answer to a hello that means "not now, try again".
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

/// Whether this node refuses a peer that connects while it is connecting to that peer itself: the higher NID wins.
pub(super) fn wins_race(own: Nid, peer: Nid) -> bool {
    // An 8-byte NID compares like the big-endian bytes of the long form.
    peer < own
}

/// What the peer's answer to our hello means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The connection is there.
    Accepted,
    /// Try again: it connects to us right now, or has enough connections.
    Again,
    /// It is not who we wanted, or does not speak what we speak.
    Refused(String),
}

/// Judges the answer `reply` of `peer`, which was asked for a connection of type `wanted`.
pub(super) fn judge(peer: Nid, wanted: ConnType, reply: &KsockHelloMsgNid4) -> Answered {
    if reply.kshm_version != KSOCK_PROTO_V3 {
        return Answered::Refused(format!(
            "it speaks socklnd version {}, this node version {KSOCK_PROTO_V3}",
            reply.kshm_version
        ));
    }
    if reply.kshm_src_nid != peer || reply.kshm_src_pid != LNET_PID_LUSTRE {
        let (nid, pid) = (reply.kshm_src_nid, reply.kshm_src_pid);
        return Answered::Refused(format!("it says that it is {nid}, process {pid:#x}"));
    }
    match reply.kshm_ctype {
        RETRY => Answered::Again,
        ctype if ctype == wanted.inverse().to_wire() => Answered::Accepted,
        ctype => Answered::Refused(format!("it answers {wanted:?} with connection type {ctype}")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Answered, ConnType, RETRY, hello, judge, wins_race};
    use wire::{Nid, WireStruct};

    const A: Nid = Nid(0x0002_0000_0a00_0001);
    const B: Nid = Nid(0x0002_0000_0a00_0002);

    #[test]
    fn a_hello_is_what_a_kernel_sends() {
        // From captures/c1_lctl_ping.pcap, frame 6.
        let captured = "63697245030000001500580a000002000b00580a000002003930000000000000521be7ec35bae9180000000000000000\
                        0100000000000000";
        let mut ours = hello(
            Nid(0x0002_0000_0a58_0015),
            Nid(0x0002_0000_0a58_000b),
            0x18e9_ba35_ece7_1b52,
            1,
        );
        ours.kshm_dst_pid = 0; // the kernel leaves it out, and nobody checks it
        let hex: String = ours.to_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, captured);
    }

    #[test]
    fn types_are_inverted_between_the_two_ends() {
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
        assert!(wins_race(B, A));
        assert!(!wins_race(A, B));
    }

    #[test]
    fn answers_are_judged() {
        let answer = |ctype| hello(B, A, 1, ctype);
        assert_eq!(judge(B, ConnType::BulkIn, &answer(3)), Answered::Accepted);
        assert_eq!(judge(B, ConnType::BulkIn, &answer(RETRY)), Answered::Again);
        assert!(matches!(
            judge(B, ConnType::BulkIn, &answer(2)),
            Answered::Refused(_)
        ));
        assert!(matches!(
            judge(A, ConnType::BulkIn, &answer(3)),
            Answered::Refused(_)
        ));
    }
}
