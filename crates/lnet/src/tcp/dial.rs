//! Connecting to a peer: a socket, the connector's request, our hello, the peer's hello; for each connection that is
//! missing, in order.

use super::conn::set_options;
use super::hello::{Answered, ConnType, hello, judge};
use super::peer::Peer;
use super::ports;
use crate::LnetError;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wire::{KsockHelloMsgNid4, LNET_PROTO_ACCEPTOR_MAGIC, LnetAcceptorConnreq, WireStruct};

/// "Not now" answers in a row after which we settle for the connections there are.
const AGAIN_MAX: u32 = 3;
/// "Not now" answers in a row after which we give up if there are none.
const AGAIN_GIVE_UP: u32 = 20;

/// Opens the connections that `peer` lacks, and tells it how that went.
pub(super) async fn dial(peer: &Arc<Peer>) {
    let result = open_all(peer).await;
    peer.dialed(result);
}

async fn open_all(peer: &Arc<Peer>) -> Result<(), LnetError> {
    let failed = |why: String| LnetError::Connect { peer: peer.nid, why };
    for (ctype, n) in ConnType::typed(peer.ni.tunables.conns_per_peer) {
        let mut again = 0;
        while !peer.has(ctype, n) {
            let changed = peer.changed();
            let limit = peer.shared.cfg.connect_timeout;
            let opened = match timeout(limit, open(peer, ctype)).await {
                Ok(opened) => opened.map_err(failed)?,
                Err(_) => return Err(failed(format!("no answer within {limit:?}"))),
            };
            if opened {
                break;
            }
            again += 1;
            if again >= AGAIN_MAX && ctype != ConnType::Control {
                break;
            }
            if again >= AGAIN_GIVE_UP {
                return Err(failed("it keeps asking to try again later".into()));
            }
            // Most likely the peer is connecting to us, so its connection ends the wait.
            let pause = Duration::from_millis(10 << again.min(6));
            if !peer.has(ctype, n) {
                // Elapsing is as good: then it is our turn again.
                let _ = timeout(pause, changed).await;
            }
        }
    }
    Ok(())
}

/// Opens one connection; `false` if the peer asks to try again.
async fn open(peer: &Arc<Peer>, ctype: ConnType) -> Result<bool, String> {
    let shared = &peer.shared;
    let local = peer.ni.nid;
    let port = shared.cfg.accept_port;
    let to = SocketAddr::from((peer.nid.addr(), port));
    let mut stream = ports::connect(local.addr(), to, &shared.ports)
        .await
        .map_err(|e| format!("port {port}: {e}"))?;
    set_options(&stream, shared.cfg.sock_timeout).map_err(|e| e.to_string())?;
    let mut greeting = LnetAcceptorConnreq::to(peer.nid).to_bytes().to_vec();
    greeting.extend_from_slice(&hello(local, peer.nid, shared.incarnation, ctype.to_wire()).to_bytes());
    stream.write_all(&greeting).await.map_err(|e| e.to_string())?;
    let reply = read_hello(&mut stream).await?;
    match judge(peer.nid, ctype, &reply) {
        Answered::Accepted => {
            peer.add(stream, peer.ni.clone(), ctype, reply.kshm_src_incarnation, None);
            Ok(true)
        }
        Answered::Again => Ok(false),
        Answered::Refused(why) => Err(why),
    }
}

async fn read_hello(stream: &mut TcpStream) -> Result<KsockHelloMsgNid4, String> {
    let closed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset => {
            "it closed the connection without an answer (is this one of its NIDs, and does its acceptor take \
             connections from this port?)"
                .to_owned()
        }
        _ => e.to_string(),
    };
    let mut bytes = [0; KsockHelloMsgNid4::SIZE];
    stream
        .read_exact(&mut bytes[..LnetAcceptorConnreq::SIZE])
        .await
        .map_err(closed)?;
    let connreq = LnetAcceptorConnreq::from_bytes(&bytes).map_err(|e| e.to_string())?;
    if connreq.acr_magic == LNET_PROTO_ACCEPTOR_MAGIC {
        return Err(format!("its acceptor speaks version {}", connreq.acr_version));
    }
    stream
        .read_exact(&mut bytes[LnetAcceptorConnreq::SIZE..])
        .await
        .map_err(closed)?;
    let reply = KsockHelloMsgNid4::from_bytes(&bytes).map_err(|e| e.to_string())?;
    reply.check().map_err(|e| e.to_string())?;
    for _ in 0..reply.kshm_nips {
        stream.read_u32_le().await.map_err(closed)?;
    }
    Ok(reply)
}
