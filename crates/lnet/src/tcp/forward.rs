//! Decides whether a message is for this node, and forwards messages that are not.
//!
//! Before this router reads the payload of a message to forward, it reserves a buffer of the
//! sending peer's share and one of the partition. It holds both until the message has been sent, so
//! a slow destination blocks its senders, and memory stays bounded. The router drops a message that
//! it cannot send in time; the original sender treats this like any other loss.

use super::SharedState;
use super::conn::Conn;
use super::peer::Peer;
use crate::credits::Credit;
use crate::message::Msg;
use crate::router::buffers::SMALL_MAX;
use crate::warn_rate_limited;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use wire::{LnetHdrNid4, Nid};

/// The next step for a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    /// Deliver it to this node. `routed`: a router forwarded it.
    Local { routed: bool },
    /// Forward it.
    Forward,
    /// Drop it; the reason.
    Drop(&'static str),
    /// Close the connection: the peer violated the protocol.
    Violation(String),
}

/// Decides the next step for a message by its header. A peer may send only its own messages, a
/// router also messages of nodes behind it. Mistakes of these nodes must not close the router's
/// connection.
pub(super) fn classify(conn: &Conn, peer: &Peer, header: &LnetHdrNid4) -> Disposition {
    let nets = peer.shared.core.nets.snapshot();
    let (src, dest) = (header.src_nid, header.dest_nid);
    let routed = src != peer.nid;
    if routed {
        if !nets.is_gateway(peer.nid) {
            return Disposition::Violation(format!("it sends a message of {src} but is not a router"));
        }
        if !src.is_tcp() || nets.is_local(src) || !nets.leads_to(peer.nid, src.net()) {
            return Disposition::Drop("no route of this node leads to its sender through this router");
        }
        let uses_peer = |r: &&Arc<crate::router::Route>| r.spec.gateway == peer.nid;
        nets.routes
            .iter()
            .filter(uses_peer)
            .for_each(|r| r.gateway.note_sign_of_life());
    }
    if dest == conn.ni.nid || nets.is_local(dest) {
        return Disposition::Local { routed };
    }
    let refuse = |why: &str| match nets.is_gateway(peer.nid) {
        true => Disposition::Drop("its destination is not this node"),
        false => Disposition::Violation(format!("it sends a message for {dest}, {why}")),
    };
    if !nets.forwarding {
        return refuse("which is not this node");
    }
    if !dest.is_tcp() || dest.net() == peer.nid.net() {
        return refuse("which is not behind this router");
    }
    let addr = dest.addr();
    if addr.is_unspecified() || addr.is_broadcast() || addr.is_multicast() {
        return Disposition::Drop("its destination is not a unicast address");
    }
    let reachable = nets.ni_for(dest).is_some() || nets.routes.iter().any(|r| r.spec.net == dest.net());
    if reachable {
        Disposition::Forward
    } else {
        Disposition::Drop("no route leads to its destination")
    }
}

/// The buffers that a message holds while it is forwarded: of the peer's share, and of the
/// partition.
pub(super) type BufferReservation = (Credit, Option<Credit>);

/// Waits for buffers for a message of `len` bytes.
pub(super) async fn reserve(conn: &Conn, peer: &Peer, len: usize) -> BufferReservation {
    let of_peer = peer.router_credits.take().await;
    (of_peer, peer.shared.buffers.take(conn.cpt, len).await)
}

/// Forwards the message; its buffers are released when it has been sent or dropped.
pub(super) fn forward(conn: &Conn, peer: &Arc<Peer>, mut msg: Msg, reservation: BufferReservation) {
    let shared = peer.shared.clone();
    let len = msg.payload.len();
    if len <= SMALL_MAX {
        // A small payload must not keep the whole read buffer alive.
        msg.payload = Bytes::copy_from_slice(&msg.payload.into_bytes()).into();
    }
    let (from, cpt, ni) = (peer.nid, conn.cpt, conn.ni.clone());
    let task_shared = shared.clone();
    shared.tasks.spawn(shared.cpts.get(cpt), async move {
        let (op, dst) = (msg.op, msg.dst);
        match transmit_within_limit(&task_shared, from, msg).await {
            Ok(()) => ni.counters(cpt).count_routed(len),
            Err(why) => {
                ni.counters(cpt).count_dropped(&op, len);
                warn_rate_limited!(%from, to = %dst, "dropping a message instead of forwarding it: {why}");
            }
        }
        drop(reservation);
    });
}

async fn transmit_within_limit(shared: &SharedState, from: Nid, msg: Msg) -> Result<(), String> {
    let tcp = shared.tcp.upgrade().ok_or("this node is shutting down")?;
    let limit: Duration = shared.cfg.transaction_timeout / (shared.cfg.retry_count + 1);
    match tokio::time::timeout(limit, tcp.transmit(msg, Some(from))).await {
        Ok(sent) => sent.map_err(|e| e.to_string()),
        Err(_) => Err(format!("not sent within {limit:?}")),
    }
}
