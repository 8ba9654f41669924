//! Reads a connection's frames, hands the messages to the node's portals, and sees to answers and cookies.

use super::conn::Conn;
use super::forward::{self, Fate};
use super::input::Input;
use super::parked::Parked;
use super::peer::Peer;
use crate::core::{Arrived, Verdict};
use crate::message::Msg;
use crate::{LnetError, warn_seldom};
use std::sync::Arc;
use tokio::net::tcp::OwnedReadHalf;
use wire::SOCKNAL_KEEPALIVE_PING;
use wire::frame::{FrameHead, LnetMsg};

/// Reads until the connection ends; why it did.
pub(super) async fn run(conn: &Conn, stream: OwnedReadHalf, peer: &Arc<Peer>) -> LnetError {
    match serve(conn, stream, peer).await {
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

async fn serve(
    conn: &Conn,
    stream: OwnedReadHalf,
    peer: &Arc<Peer>,
) -> Result<std::convert::Infallible, End> {
    let shared = &peer.shared;
    let mut input = Input::new(stream, shared.pools[conn.cpt.0].clone(), shared.cfg.sock_timeout);
    let mut parked = Parked::new(peer.clone());
    loop {
        match input.head().await? {
            FrameHead::Noop { cookies } => check_returned(&cookies)?,
            FrameHead::Lnet {
                cookies: [wanted, returned],
                header,
                msg,
            } => {
                let len = header.payload_length as usize;
                let fate = forward::judge(conn, peer, &header);
                if let Fate::Wrong(why) = fate {
                    return Err(End::Wrong(why));
                }
                let room = match fate {
                    Fate::Forward => Some(forward::room(conn, peer, len).await),
                    _ => None,
                };
                let payload = input.payload(len).await.map_err(End::Lost)?;
                if wanted != 0 && !conn.give_back(wanted) {
                    return Err(End::Wrong(
                        "it does not read the zero-copy cookies that it wants back".into(),
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
                peer.came(input.came_alone());
                match (fate, room) {
                    (Fate::Mine { routed }, _) => receive(conn, peer, &mut parked, msg, routed).await,
                    (Fate::Drop(why), _) => dropped(conn, peer, &msg.op, len, why),
                    (_, Some(room)) => forward::forward(conn, peer, msg, room),
                    (_, None) => {}
                }
            }
        }
        // A peer that sends without a pause shares the worker with others.
        tokio::task::coop::consume_budget().await;
    }
}

async fn receive(conn: &Conn, peer: &Arc<Peer>, parked: &mut Parked, msg: Msg, routed: bool) {
    let (op, len) = (msg.op, msg.payload.len());
    let arrived = Arrived {
        cpt: conn.cpt,
        routed,
    };
    match peer
        .shared
        .core
        .receive(msg, arrived, &|portal| parked.waits(portal))
    {
        Verdict::Taken(None) => {}
        Verdict::Taken(Some(answer)) => peer.respond(answer).await,
        Verdict::Full(delayed) => parked.park(*delayed).await,
        Verdict::Dropped(why) => dropped(conn, peer, &op, len, why),
    }
}

fn dropped(conn: &Conn, peer: &Arc<Peer>, op: &LnetMsg, len: usize, why: &str) {
    peer.count_dropped(conn, op, len);
    tracing::debug!(peer = %peer.nid, kind = op.kind(), "a message was dropped: {why}");
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
