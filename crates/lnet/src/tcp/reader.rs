//! Reads a connection's frames, delivers or forwards their messages, and returns answers and
//! cookies.

use super::backlog::Backlog;
use super::conn::Conn;
use super::forward::{self, Disposition};
use super::input::Input;
use super::peer::Peer;
use crate::core::{Arrival, Delivery};
use crate::message::Msg;
use crate::{LnetError, warn_rate_limited};
use std::sync::Arc;
use tokio::net::tcp::OwnedReadHalf;
use wire::SOCKNAL_KEEPALIVE_PING;
use wire::frame::{FrameHead, LnetOp};

/// Reads until the connection ends; returns the reason for its end.
pub(super) async fn run(conn: &Conn, stream: OwnedReadHalf, peer: &Arc<Peer>) -> LnetError {
    match read_frames(conn, stream, peer).await {
        Err(ReadError::Lost(why)) => LnetError::PeerLost { peer: peer.nid, why },
        Err(ReadError::Violation(why)) => {
            warn_rate_limited!(peer = %peer.nid, "closing a connection after a protocol violation: {why}");
            LnetError::PeerLost { peer: peer.nid, why }
        }
        Ok(never) => match never {},
    }
}

/// Why reading a connection ended.
pub(super) enum ReadError {
    /// The connection broke.
    Lost(String),
    /// The peer violated the protocol.
    Violation(String),
}

async fn read_frames(
    conn: &Conn,
    stream: OwnedReadHalf,
    peer: &Arc<Peer>,
) -> Result<std::convert::Infallible, ReadError> {
    let shared = &peer.shared;
    let mut input = Input::new(stream, shared.pools[conn.cpt.0].clone(), shared.cfg.sock_timeout);
    let mut backlog = Backlog::new(peer.clone());
    loop {
        match input.read_head().await? {
            FrameHead::Noop { cookies } => check_returned(&cookies)?,
            FrameHead::Lnet {
                cookies: [wanted, returned],
                header,
                msg,
            } => {
                let len = header.payload_length as usize;
                let disposition = forward::classify(conn, peer, &header);
                if let Disposition::Violation(why) = disposition {
                    return Err(ReadError::Violation(why));
                }
                let reservation = match disposition {
                    Disposition::Forward => Some(forward::reserve(conn, peer, len).await),
                    _ => None,
                };
                let payload = input.read_payload(len).await.map_err(ReadError::Lost)?;
                if wanted != 0 && !conn.return_cookie(wanted) {
                    return Err(ReadError::Violation(
                        "it does not read the zero-copy cookies returned to it".into(),
                    ));
                }
                check_returned(&[0, returned])?;
                let msg = Msg {
                    src: header.src_nid,
                    dst: header.dest_nid,
                    op: msg,
                    payload: payload.into(),
                };
                peer.count_received(conn, &msg.op, len);
                peer.note_arrival(input.last_frame_was_alone());
                match (disposition, reservation) {
                    (Disposition::Local { routed }, _) => {
                        receive(conn, peer, &mut backlog, msg, routed).await
                    }
                    (Disposition::Drop(why), _) => record_drop(conn, peer, &msg.op, len, why),
                    (_, Some(reservation)) => forward::forward(conn, peer, msg, reservation),
                    (_, None) => {}
                }
            }
        }
        // A peer that sends without a pause must share the worker with others.
        tokio::task::coop::consume_budget().await;
    }
}

async fn receive(conn: &Conn, peer: &Arc<Peer>, backlog: &mut Backlog, msg: Msg, routed: bool) {
    let (op, len) = (msg.op, msg.payload.len());
    let arrival = Arrival {
        cpt: conn.cpt,
        routed,
    };
    match peer
        .shared
        .core
        .receive(msg, arrival, &|portal| backlog.has_queued(portal))
    {
        Delivery::Taken(None) => {}
        Delivery::Taken(Some(answer)) => peer.respond(answer).await,
        Delivery::Full(blocked) => backlog.push(*blocked).await,
        Delivery::Dropped(why) => record_drop(conn, peer, &op, len, why),
    }
}

fn record_drop(conn: &Conn, peer: &Arc<Peer>, op: &LnetOp, len: usize, why: &str) {
    peer.count_dropped(conn, op, len);
    tracing::debug!(peer = %peer.nid, kind = op.kind(), "dropping a message: {why}");
}

/// Checks the cookies that the peer returns. This node requests none, so the peer may return only
/// cookie 1: a keepalive.
fn check_returned(cookies: &[u64; 2]) -> Result<(), ReadError> {
    match cookies {
        [0, 0] => Ok(()),
        [0, keepalive] if *keepalive == u64::from(SOCKNAL_KEEPALIVE_PING) => Ok(()),
        [a, b] => Err(ReadError::Violation(format!(
            "it returned the zero-copy cookies {a:#x}, {b:#x}, which this node never sent"
        ))),
    }
}
