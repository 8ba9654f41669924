//! Matching, answers and limits of the protocol core, without a driver.
#![allow(clippy::unwrap_used)]

use super::{Arrival, Core, Delivery};
use crate::message::{self, Msg};
use crate::ni::{Ni, NiSpec};
use crate::pending::Answer;
use crate::portals::{IncomingPut, MatchEntry, Md, MdEvent, MdHandle, PutSink, SinkFull};
use crate::{LnetConfig, LnetError, Payload, PortalRotor};
use bytes::Bytes;
use cpt::{BoxFuture, CptId, CptTable};
use std::sync::Arc;
use wire::frame::LnetOp;
use wire::{LNET_PROTO_PING_MATCHBITS, LnetAck, LnetGet, LnetHandleWire, LnetReply, Nid};

const PEER: Nid = Nid(0x0002_0000_0a00_0001);
const OTHER_PEER: Nid = Nid(0x0002_0000_0a00_0002);
const ACK: LnetHandleWire = LnetHandleWire {
    wh_interface_cookie: 1,
    wh_object_cookie: 2,
};

const ARRIVAL: Arrival = Arrival {
    cpt: CptId(0),
    routed: false,
};

fn node() -> Arc<Core> {
    Arc::new(Core::new(9, 1, false, PortalRotor::Off))
}

fn add_nid(core: &Core, nid: Nid) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _here = runtime.enter();
    let ni = Ni::new(
        &NiSpec::new(nid),
        &LnetConfig::default(),
        &CptTable::single_current(),
    )
    .unwrap();
    core.nets.change(|nets| nets.add_ni(Arc::new(ni))).unwrap();
}

fn data(text: &'static str) -> Payload {
    Bytes::from_static(text.as_bytes()).into()
}

fn put(src: Nid, portal: u32, match_bits: u64, offset: u32, text: &'static str) -> Msg {
    Msg {
        src,
        dst: Nid::LO,
        op: message::put(Some(ACK), portal, match_bits, offset, 0),
        payload: data(text),
    }
}

fn get(match_bits: u64, src_offset: u32, sink_length: u32) -> Msg {
    let op = LnetOp::Get(LnetGet {
        return_wmd: ACK,
        match_bits,
        ptl_index: 4,
        src_offset,
        sink_length,
    });
    Msg {
        src: PEER,
        dst: Nid::LO,
        op,
        payload: Payload::new(),
    }
}

fn sink(core: &Arc<Core>, match_bits: u64, from: Option<Nid>, max_len: u32) -> MdHandle {
    core.attach(
        MatchEntry {
            portal: 4,
            match_bits,
            from,
        },
        Md::Sink { max_len },
    )
}

fn acked_length(delivery: Delivery) -> u32 {
    match delivery {
        Delivery::Taken(Some(Msg {
            op:
                LnetOp::Ack(LnetAck {
                    mlength,
                    dst_wmd: ACK,
                    ..
                }),
            dst: PEER,
            ..
        })) => mlength,
        Delivery::Dropped(why) => panic!("dropped: {why}"),
        _ => panic!("no ACK"),
    }
}

fn received_put(buffer: &mut MdHandle) -> (u32, Bytes) {
    match buffer.try_next() {
        Some(MdEvent::Put { offset, payload, .. }) => (offset, payload.into_bytes()),
        other => panic!("{other:?}"),
    }
}

fn is_dropped(delivery: Delivery) -> bool {
    matches!(delivery, Delivery::Dropped(_))
}

#[test]
fn a_put_lands_in_the_buffer_with_its_portal_and_match_bits() {
    let core = node();
    let mut buffer = sink(&core, 7, Some(PEER), 100);
    assert!(is_dropped(core.receive(
        put(PEER, 5, 7, 0, "other portal"),
        ARRIVAL,
        &|_| false
    )));
    assert!(is_dropped(core.receive(
        put(PEER, 4, 8, 0, "other bits"),
        ARRIVAL,
        &|_| false
    )));
    assert!(is_dropped(core.receive(
        put(OTHER_PEER, 4, 7, 0, "other peer"),
        ARRIVAL,
        &|_| false
    )));
    assert_eq!(
        acked_length(core.receive(put(PEER, 4, 7, 3, "hello"), ARRIVAL, &|_| false)),
        5
    );
    assert_eq!(
        acked_length(core.receive(put(PEER, 4, 7, 0, "again"), ARRIVAL, &|_| false)),
        5
    );
    assert_eq!(received_put(&mut buffer), (3, "hello".into()));
    assert_eq!(received_put(&mut buffer), (0, "again".into()));
    drop(buffer);
    assert!(is_dropped(core.receive(
        put(PEER, 4, 7, 0, "late"),
        ARRIVAL,
        &|_| false
    )));
}

#[test]
fn data_beyond_the_buffer_is_truncated_and_the_ack_has_the_accepted_length() {
    let core = node();
    let mut buffer = sink(&core, 7, None, 8);
    assert_eq!(
        acked_length(core.receive(put(PEER, 4, 7, 5, "hello"), ARRIVAL, &|_| false)),
        3
    );
    assert_eq!(received_put(&mut buffer), (5, "hel".into()));
    assert!(is_dropped(core.receive(
        put(PEER, 4, 7, 9, "beyond"),
        ARRIVAL,
        &|_| false
    )));
}

#[test]
fn the_first_matching_buffer_that_admits_the_sender_is_used() {
    let core = node();
    let mut for_other = sink(&core, 7, Some(OTHER_PEER), 100);
    let mut first = sink(&core, 7, Some(PEER), 100);
    let mut second = sink(&core, 7, Some(PEER), 100);
    core.receive(put(PEER, 4, 7, 0, "a"), ARRIVAL, &|_| false);
    assert_eq!(received_put(&mut first).1, "a");
    drop(first);
    core.receive(put(PEER, 4, 7, 0, "b"), ARRIVAL, &|_| false);
    assert_eq!(received_put(&mut second).1, "b");
    assert!(for_other.try_next().is_none());
}

#[test]
fn all_nids_of_this_node_are_one_peer() {
    let core = node();
    add_nid(&core, PEER);
    let mut buffer = sink(&core, 7, Some(PEER), 100);
    assert!(!is_dropped(core.receive(
        put(Nid::LO, 4, 7, 0, "own"),
        ARRIVAL,
        &|_| false
    )));
    assert_eq!(received_put(&mut buffer).1, "own");
}

#[test]
fn unread_events_are_limited() {
    let core = node();
    let _buffer = sink(&core, 7, None, 100);
    let accepted = (0..1000)
        .filter(|_| !is_dropped(core.receive(put(PEER, 4, 7, 0, "x"), ARRIVAL, &|_| false)))
        .count();
    assert_eq!(accepted, super::super::portals::EVENTS_MAX);
}

#[test]
fn a_get_returns_the_requested_range() {
    let core = node();
    let mut buffer = core.attach(
        MatchEntry {
            portal: 4,
            match_bits: 7,
            from: None,
        },
        Md::Source(data("0123456789")),
    );
    let Delivery::Taken(Some(reply)) = core.receive(get(7, 4, 100), ARRIVAL, &|_| false) else {
        panic!()
    };
    assert_eq!(
        (reply.op, reply.dst),
        (LnetOp::Reply(LnetReply { dst_wmd: ACK }), PEER)
    );
    assert_eq!(reply.payload.into_bytes(), "456789");
    assert!(matches!(
        buffer.try_next(),
        Some(MdEvent::Get { len: 6, from: PEER })
    ));
    assert!(is_dropped(core.receive(
        put(PEER, 4, 7, 0, "a source takes no PUT"),
        ARRIVAL,
        &|_| false
    )));
}

#[tokio::test]
async fn an_ack_reaches_only_the_put_that_waits_for_it() {
    let core = node();
    let mut expected = core.expect_answer(PEER, None);
    let ack = |src, dst_wmd| Msg {
        src,
        dst: Nid::LO,
        op: LnetOp::Ack(LnetAck {
            dst_wmd,
            match_bits: 7,
            mlength: 5,
        }),
        payload: Payload::new(),
    };
    let other_boot = LnetHandleWire {
        wh_interface_cookie: 8,
        ..expected.handle
    };
    assert!(is_dropped(
        core.receive(ack(PEER, other_boot), ARRIVAL, &|_| false)
    ));
    assert!(is_dropped(core.receive(
        ack(OTHER_PEER, expected.handle),
        ARRIVAL,
        &|_| false
    )));
    let reply = LnetOp::Reply(LnetReply {
        dst_wmd: expected.handle,
    });
    assert!(is_dropped(core.receive(
        Msg {
            op: reply,
            ..ack(PEER, other_boot)
        },
        ARRIVAL,
        &|_| false
    )));
    assert!(!is_dropped(core.receive(
        ack(PEER, expected.handle),
        ARRIVAL,
        &|_| false
    )));
    assert!(matches!(expected.answer().await, Ok(Answer::Ack(5))));
    assert!(
        is_dropped(core.receive(ack(PEER, expected.handle), ARRIVAL, &|_| false)),
        "a duplicate"
    );
}

#[tokio::test]
async fn a_reply_longer_than_requested_is_refused() {
    let core = node();
    let mut expected = core.expect_answer(PEER, Some(4));
    let reply = |text| Msg {
        src: PEER,
        dst: Nid::LO,
        op: LnetOp::Reply(LnetReply {
            dst_wmd: expected.handle,
        }),
        payload: data(text),
    };
    assert!(is_dropped(core.receive(reply("too long"), ARRIVAL, &|_| false)));
    assert!(!is_dropped(core.receive(reply("fits"), ARRIVAL, &|_| false)));
    assert!(matches!(expected.answer().await, Ok(Answer::Reply(_))));
}

#[tokio::test]
async fn operations_of_a_lost_peer_fail_at_once() {
    let core = node();
    let mut lost_ack = core.expect_answer(PEER, None);
    let mut other_ack = core.expect_answer(OTHER_PEER, None);
    core.fail_pending(
        PEER,
        &LnetError::PeerLost {
            peer: PEER,
            why: "gone".into(),
        },
    );
    assert!(matches!(lost_ack.answer().await, Err(LnetError::PeerLost { .. })));
    core.fail_pending(OTHER_PEER, &LnetError::ShutDown);
    assert!(matches!(other_ack.answer().await, Err(LnetError::ShutDown)));
}

#[test]
fn dropped_operations_and_buffers_leave_no_entries() {
    let core = node();
    drop(core.expect_answer(PEER, None));
    drop(sink(&core, 7, None, 1));
    let waiters = core
        .pending
        .iter()
        .map(|shard| shard.lock().remove_peer(PEER).len());
    assert_eq!(waiters.sum::<usize>(), 0);
    assert!(core.matched.iter().all(|shard| shard.lock().is_empty()));
}

#[test]
fn pings_and_pushes_are_answered() {
    let core = node();
    add_nid(&core, OTHER_PEER);
    let ping = LnetGet {
        return_wmd: ACK,
        match_bits: LNET_PROTO_PING_MATCHBITS,
        ptl_index: 0,
        src_offset: 0,
        sink_length: 272,
    };
    let Delivery::Taken(Some(reply)) = core.receive(
        Msg {
            op: LnetOp::Get(ping),
            ..get(0, 0, 0)
        },
        ARRIVAL,
        &|_| false,
    ) else {
        panic!()
    };
    let info = crate::ping::parse(PEER, &reply.payload.into_bytes()).unwrap();
    assert_eq!(
        info.nis.iter().map(|ni| ni.ns_nid).collect::<Vec<_>>(),
        [Nid::LO, OTHER_PEER]
    );
    assert_eq!(
        acked_length(core.receive(
            put(PEER, 0, LNET_PROTO_PING_MATCHBITS, 0, "push"),
            ARRIVAL,
            &|_| { false }
        )),
        4
    );
    assert!(is_dropped(core.receive(
        put(PEER, 0, 1, 0, "no push"),
        ARRIVAL,
        &|_| false
    )));
}

/// A sink without space.
struct FullSink;

impl PutSink for FullSink {
    fn put(&self, request: IncomingPut) -> Result<(), SinkFull> {
        Err(SinkFull(request))
    }
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

#[test]
fn a_put_refused_by_a_full_sink_is_not_acknowledged_yet() {
    let core = node();
    core.set_sink(12, Arc::new(FullSink));
    let Delivery::Full(blocked) = core.receive(put(PEER, 12, 1, 0, "request"), ARRIVAL, &|_| false) else {
        panic!()
    };
    assert_eq!(blocked.message.payload.clone().into_bytes(), "request");
    assert!(blocked.answer.is_some());
    core.remove_sink(12);
    assert!(is_dropped(core.receive(
        put(PEER, 12, 1, 0, "request"),
        ARRIVAL,
        &|_| false
    )));
}
