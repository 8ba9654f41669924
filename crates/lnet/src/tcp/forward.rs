//! What a connection brings that is not for this node: whether it is to be forwarded, and how.
//!
//! A message that is to be forwarded needs room before its payload is read: one of the buffers that its peer may hold, and
//! one of its partition. Both are held until it has left, so that a destination that is slow holds up who sends to it, and
//! nothing piles up here. What cannot be delivered in time is dropped: its sender finds out, as with any loss.

use super::Shared;
use super::conn::Conn;
use super::peer::Peer;
use crate::credits::Credit;
use crate::message::Msg;
use crate::router::buffers::SMALL_MAX;
use crate::warn_seldom;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use wire::{LnetHdrNid4, Nid};

/// What is to be done with a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is for this node; perhaps a router has brought it.
    Mine { routed: bool },
    /// It is to go on.
    Forward,
    /// Nobody gets it; why.
    Drop(&'static str),
    /// Who sends this is not to be listened to any more.
    Wrong(String),
}

/// Judges a message by its header. A peer speaks for itself; a router also for those behind it, who must not be able to make us
/// close its connection.
pub(super) fn judge(conn: &Conn, peer: &Peer, header: &LnetHdrNid4) -> Fate {
    let nets = peer.shared.core.nets.now();
    let (src, dest) = (header.src_nid, header.dest_nid);
    let routed = src != peer.nid;
    if routed {
        if !nets.is_gateway(peer.nid) {
            return Fate::Wrong(format!("it sends a message of {src}"));
        }
        if !src.is_tcp() || nets.is_local(src) || !nets.leads_to(peer.nid, src.net()) {
            return Fate::Drop("a router brought it that does not lead to where it is from");
        }
        let by = |r: &&Arc<crate::router::Route>| r.spec.gateway == peer.nid;
        nets.routes.iter().filter(by).for_each(|r| r.gateway.heard());
    }
    if dest == conn.ni.nid || nets.is_local(dest) {
        return Fate::Mine { routed };
    }
    let wrong = |why: &str| match nets.is_gateway(peer.nid) {
        true => Fate::Drop("it is for somebody else"),
        false => Fate::Wrong(format!("it sends a message for {dest}, {why}")),
    };
    if !nets.forwarding {
        return wrong("which is not this node");
    }
    if !dest.is_tcp() || dest.net() == peer.nid.net() {
        return wrong("which is not behind this router");
    }
    let addr = dest.addr();
    if addr.is_unspecified() || addr.is_broadcast() || addr.is_multicast() {
        return Fate::Drop("its destination is nobody");
    }
    let reachable = nets.ni_for(dest).is_some() || nets.routes.iter().any(|r| r.spec.net == dest.net());
    if reachable {
        Fate::Forward
    } else {
        Fate::Drop("no route leads to its destination")
    }
}

/// What a message takes while it is here.
pub(super) type Room = (Credit, Option<Credit>);

/// Waits for room for a message of so many bytes.
pub(super) async fn room(conn: &Conn, peer: &Peer, len: usize) -> Room {
    let own = peer.router_credits.take().await;
    (own, peer.shared.buffers.take(conn.cpt, len).await)
}

/// Sends the message on; its room is free when it has left.
pub(super) fn forward(conn: &Conn, peer: &Arc<Peer>, mut msg: Msg, room: Room) {
    let shared = peer.shared.clone();
    let len = msg.payload.len();
    if len <= SMALL_MAX {
        // It must not keep all of the memory that it was read into.
        msg.payload = Bytes::copy_from_slice(&msg.payload.into_bytes()).into();
    }
    let (from, cpt, ni) = (peer.nid, conn.cpt, conn.ni.clone());
    let at = shared.clone();
    shared.tasks.spawn(shared.cpts.get(cpt), async move {
        let (op, dst) = (msg.op, msg.dst);
        match send_on(&at, from, msg).await {
            Ok(()) => ni.counters(cpt).routed(len),
            Err(why) => {
                ni.counters(cpt).dropped(&op, len);
                warn_seldom!(%from, to = %dst, "a message is not forwarded: {why}");
            }
        }
        drop(room);
    });
}

async fn send_on(shared: &Shared, from: Nid, msg: Msg) -> Result<(), String> {
    let tcp = shared.tcp.upgrade().ok_or("this node stops")?;
    let limit: Duration = shared.cfg.transaction_timeout / (shared.cfg.retry_count + 1);
    match tokio::time::timeout(limit, tcp.transmit(msg, Some(from))).await {
        Ok(sent) => sent.map_err(|e| e.to_string()),
        Err(_) => Err(format!("it could not leave within {limit:?}")),
    }
}
