//! Reads a connection's frames, hands the messages to the node's portals, and sees to answers and cookies.

use super::conn::Conn;
use super::input::Input;
use super::parked::Parked;
use super::peer::Peer;
use crate::core::Verdict;
use crate::message::Msg;
use crate::{LnetError, warn_seldom};
use std::sync::Arc;
use wire::frame::FrameHead;
use wire::{LnetHdrNid4, SOCKNAL_KEEPALIVE_PING};

/// Reads until the connection ends; why it did.
pub(super) async fn run(conn: &Conn, peer: &Arc<Peer>) -> LnetError {
    match serve(conn, peer).await {
        Err(End::Lost(why)) => LnetError::PeerLost { peer: peer.nid, why },
        Err(End::Wrong(why)) => {
            warn_seldom!(peer = %peer.nid, "a connection is closed: {why}");
            LnetError::PeerLost { peer: peer.nid, why }
        }
        Ok(never) => match never {},
    }
}

/// How a connection ends.
pub(super) enum End {
    /// The peer or the network is gone.
    Lost(String),
    /// The peer sent what nobody may send.
    Wrong(String),
}

async fn serve(conn: &Conn, peer: &Arc<Peer>) -> Result<std::convert::Infallible, End> {
    let shared = &peer.shared;
    let mut input = Input::new(conn, shared.pools[peer.cpt.0].clone(), shared.cfg.sock_timeout);
    let mut parked = Parked::new(peer.clone());
    loop {
        match input.head().await? {
            FrameHead::Noop { cookies } => check_returned(&cookies)?,
            FrameHead::Lnet {
                cookies: [wanted, returned],
                header,
                msg,
            } => {
                let payload = input
                    .payload(header.payload_length as usize)
                    .await
                    .map_err(End::Lost)?;
                if wanted != 0 && !conn.give_back(wanted) {
                    return Err(End::Wrong(
                        "it does not read the zero-copy cookies that it wants back".into(),
                    ));
                }
                check_returned(&[0, returned])?;
                check_ends(conn, peer, &header)?;
                let msg = Msg {
                    src: header.src_nid,
                    dst: header.dest_nid,
                    op: msg,
                    payload: payload.into(),
                };
                receive(peer, &mut parked, msg).await;
            }
        }
        // A peer that sends without a pause shares the worker with others.
        tokio::task::coop::consume_budget().await;
    }
}

async fn receive(peer: &Arc<Peer>, parked: &mut Parked, msg: Msg) {
    let (kind, bytes) = (msg.op.kind(), msg.payload.len());
    peer.shared.counters.received(peer.cpt, bytes);
    match peer
        .shared
        .core
        .receive(msg, peer.cpt, &|portal| parked.waits(portal))
    {
        Verdict::Taken(None) => {}
        Verdict::Taken(Some(answer)) => peer.respond(answer).await,
        Verdict::Full(delayed) => parked.park(*delayed).await,
        Verdict::Dropped(why) => {
            peer.shared.counters.dropped(peer.cpt, bytes);
            tracing::debug!(peer = %peer.nid, kind, "a message was dropped: {why}");
        }
    }
}

/// This node asks for no cookies, so none can come back; a keepalive looks like the return of cookie 1.
fn check_returned(cookies: &[u64; 2]) -> Result<(), End> {
    match cookies {
        [0, 0] => Ok(()),
        [0, keepalive] if *keepalive == u64::from(SOCKNAL_KEEPALIVE_PING) => Ok(()),
        [a, b] => Err(End::Wrong(format!(
            "it gives back the zero-copy cookies {a:#x}, {b:#x}, which it was never given"
        ))),
    }
}

/// Nobody forwards anything: a message on this connection is from this peer, and for this node.
fn check_ends(conn: &Conn, peer: &Peer, header: &LnetHdrNid4) -> Result<(), End> {
    let (src, dest) = (header.src_nid, header.dest_nid);
    if src != peer.nid {
        return Err(End::Wrong(format!("it sends a message of {src}")));
    }
    if dest == conn.local || peer.shared.core.is_local(dest) {
        return Ok(());
    }
    Err(End::Wrong(format!(
        "it sends a message for {dest}, which is not this node"
    )))
}
