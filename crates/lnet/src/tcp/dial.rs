//! Connecting to a peer: a socket, the connector's request, our hello, the peer's hello; for each connection that is
//! missing, in order.

use super::conn::set_options;
use super::hello::{Answered, ConnType, hello, judge};
use super::peer::Peer;
use super::{access, ports};
use std::io::ErrorKind;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};
use wire::{KsockHelloMsgNid4, LNET_PROTO_ACCEPTOR_MAGIC, LnetAcceptorConnreq, WireStruct};

/// "Not now" answers in a row after which we settle for the connections there are.
const AGAIN_MAX: u32 = 3;
/// "Not now" answers in a row after which we give up if there are none.
const AGAIN_GIVE_UP: u32 = 20;

/// After so long without an answer a socket begins to connect anew: TCP itself asks again after 1 s, then after 2, 4, 8. So
/// the peer is asked every second, and a network that works again is noticed within one.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// Why there is no connection.
pub(super) struct Failure {
    pub(super) why: String,
    /// Nobody answered at the peer's address, or somebody who is not it: not for a reason of this node's own, nor because the
    /// peer is slow.
    pub(super) unreachable: bool,
}

impl Failure {
    fn unreachable(why: String) -> Failure {
        let unreachable = true;
        Failure { why, unreachable }
    }

    fn other(why: String) -> Failure {
        let unreachable = false;
        Failure { why, unreachable }
    }
}

/// Opens the connections that `peer` lacks, and tells it how that went.
pub(super) async fn dial(peer: &Arc<Peer>) {
    let result = open_all(peer).await;
    peer.dialed(result);
}

async fn open_all(peer: &Arc<Peer>) -> Result<(), Failure> {
    for (ctype, n) in ConnType::typed(peer.ni.tunables.conns_per_peer) {
        let mut again = 0;
        while !peer.has(ctype, n) {
            let changed = peer.changed();
            if open(peer, ctype).await? {
                break;
            }
            again += 1;
            if again >= AGAIN_MAX && ctype != ConnType::Control {
                break;
            }
            if again >= AGAIN_GIVE_UP {
                return Err(Failure::other("it keeps asking to try again later".into()));
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
async fn open(peer: &Arc<Peer>, ctype: ConnType) -> Result<bool, Failure> {
    let limit = peer.shared.cfg.connect_timeout;
    let deadline = Instant::now() + limit;
    let stream = match timeout_at(deadline, connect(peer)).await {
        Ok(stream) => stream?,
        Err(_) => return Err(Failure::unreachable(format!("no answer within {limit:?}"))),
    };
    match timeout_at(deadline, greet(peer, ctype, stream)).await {
        Ok(opened) => opened.map_err(Failure::unreachable),
        Err(_) => {
            let why = format!("its host took the connection, but it said no hello within {limit:?}");
            Err(Failure::other(why))
        }
    }
}

/// A socket that is connected to the peer's address.
async fn connect(peer: &Peer) -> Result<TcpStream, Failure> {
    let shared = &peer.shared;
    let port = shared.cfg.accept_port;
    let to = SocketAddrV4::new(peer.nid.addr(), port);
    let stream = loop {
        match timeout(
            HANDSHAKE,
            ports::connect(peer.ni.nid.addr(), to.into(), &shared.ports),
        )
        .await
        {
            Ok(connected) => break connected,
            Err(_) => tracing::debug!(peer = %peer.nid, "no answer within {HANDSHAKE:?}, connecting anew"),
        }
    };
    let stream = stream.map_err(|e| Failure {
        why: format!("port {port}: {e}"),
        unreachable: matches!(
            e.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::HostUnreachable
                | ErrorKind::TimedOut
        ),
    })?;
    set_options(&stream, shared.cfg.sock_timeout).map_err(|e| Failure::other(e.to_string()))?;
    Ok(stream)
}

/// Says hello and hears the peer's; `false` if it asks to try again.
async fn greet(peer: &Arc<Peer>, ctype: ConnType, mut stream: TcpStream) -> Result<bool, String> {
    let (shared, local) = (&peer.shared, peer.ni.nid);
    let to = SocketAddrV4::new(peer.nid.addr(), shared.cfg.accept_port);
    let mut greeting = LnetAcceptorConnreq::to(peer.nid).to_bytes().to_vec();
    greeting.extend_from_slice(&hello(local, peer.nid, shared.incarnation, ctype.to_wire()).to_bytes());
    let own = stream.local_addr().map_err(|e| e.to_string())?;
    let reply = match converse(&mut stream, &greeting).await {
        Ok(reply) => reply,
        Err(Silence::Closed) => {
            let why = access::why_refused(own, to).unwrap_or_else(|| "is this one of its NIDs?".to_owned());
            return Err(format!("it closed the connection without an answer: {why}"));
        }
        Err(Silence::Bad(why)) => return Err(why),
    };
    match judge(peer.nid, ctype, &reply) {
        Answered::Accepted => {
            access::check_server(&stream)?;
            peer.add(stream, peer.ni.clone(), ctype, reply.kshm_src_incarnation, None);
            Ok(true)
        }
        Answered::Again => Ok(false),
        Answered::Refused(why) => Err(why),
    }
}

/// Why there is no answer to a greeting.
enum Silence {
    /// The peer closed the connection.
    Closed,
    /// Another reason.
    Bad(String),
}

impl From<std::io::Error> for Silence {
    fn from(e: std::io::Error) -> Silence {
        match e.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Silence::Closed,
            _ => Silence::Bad(e.to_string()),
        }
    }
}

/// Says who we are and reads the peer's hello.
async fn converse(stream: &mut TcpStream, greeting: &[u8]) -> Result<KsockHelloMsgNid4, Silence> {
    let bad = |e: wire::WireError| Silence::Bad(e.to_string());
    stream.write_all(greeting).await?;
    let mut bytes = [0; KsockHelloMsgNid4::SIZE];
    stream.read_exact(&mut bytes[..LnetAcceptorConnreq::SIZE]).await?;
    let connreq = LnetAcceptorConnreq::from_bytes(&bytes).map_err(bad)?;
    if connreq.acr_magic == LNET_PROTO_ACCEPTOR_MAGIC {
        let why = format!("its acceptor speaks version {}", connreq.acr_version);
        return Err(Silence::Bad(why));
    }
    stream.read_exact(&mut bytes[LnetAcceptorConnreq::SIZE..]).await?;
    let reply = KsockHelloMsgNid4::from_bytes(&bytes).map_err(bad)?;
    reply.check().map_err(bad)?;
    for _ in 0..reply.kshm_nips {
        stream.read_u32_le().await?;
    }
    Ok(reply)
}
