//! Opens the missing connections to a peer. The steps for each are: socket, connection request,
//! this node's hello, the peer's hello.

use super::conn::set_options;
use super::hello::{ConnType, HelloReply, check_reply, hello};
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

/// Number of "try again" answers after which dialling goes on without this bulk connection.
const BULK_AGAIN_MAX: u32 = 3;
/// Number of "try again" answers for the control connection after which dialling fails.
const CONTROL_AGAIN_MAX: u32 = 20;

/// After this time without an answer, connecting starts over with a new socket. TCP itself would
/// retry after 1 s, then after 2, 4 and 8 s more. Starting over retries every second, so this node
/// notices a repaired network within a second.
const SYN_TIMEOUT: Duration = Duration::from_secs(2);

/// Why dialling failed.
pub(super) struct DialFailure {
    pub(super) why: String,
    /// Whether the peer's address does not answer, or does not complete the hellos under the peer's
    /// NID. False for failures of this node, for a slow peer, and for one that answers "try again".
    pub(super) unreachable: bool,
}

impl DialFailure {
    fn unreachable(why: String) -> DialFailure {
        let unreachable = true;
        DialFailure { why, unreachable }
    }

    fn other(why: String) -> DialFailure {
        let unreachable = false;
        DialFailure { why, unreachable }
    }
}

/// Opens the connections that `peer` lacks, and records the result in it.
pub(super) async fn dial(peer: &Arc<Peer>) {
    let result = open_all(peer).await;
    peer.finish_dial(result);
}

async fn open_all(peer: &Arc<Peer>) -> Result<(), DialFailure> {
    for (ctype, n) in ConnType::dial_order(peer.ni.tunables.conns_per_peer) {
        let mut try_again_answers = 0;
        while !peer.has_connections(ctype, n) {
            let changed = peer.changed();
            if open(peer, ctype).await? {
                break;
            }
            try_again_answers += 1;
            if try_again_answers >= BULK_AGAIN_MAX && ctype != ConnType::Control {
                break;
            }
            if try_again_answers >= CONTROL_AGAIN_MAX {
                return Err(DialFailure::other("it keeps answering \"try again\"".into()));
            }
            // 20 to 640 ms. Most likely the peer is connecting to this node; its connection ends
            // the pause.
            let pause = Duration::from_millis(10 << try_again_answers.min(6));
            if !peer.has_connections(ctype, n) {
                // The result does not matter: this node tries again in both cases.
                let _ = timeout(pause, changed).await;
            }
        }
    }
    Ok(())
}

/// Opens one connection; `false` if the peer answers "try again".
async fn open(peer: &Arc<Peer>, ctype: ConnType) -> Result<bool, DialFailure> {
    let limit = peer.shared.cfg.connect_timeout;
    let deadline = Instant::now() + limit;
    let stream = match timeout_at(deadline, connect(peer)).await {
        Ok(stream) => stream?,
        Err(_) => return Err(DialFailure::unreachable(format!("no answer within {limit:?}"))),
    };
    match timeout_at(deadline, greet(peer, ctype, stream)).await {
        Ok(opened) => opened.map_err(DialFailure::unreachable),
        Err(_) => {
            let why = format!("its host accepted the connection, but no hello arrived within {limit:?}");
            Err(DialFailure::other(why))
        }
    }
}

/// Connects a socket to the peer's address.
async fn connect(peer: &Peer) -> Result<TcpStream, DialFailure> {
    let shared = &peer.shared;
    let port = shared.cfg.accept_port;
    let to = SocketAddrV4::new(peer.nid.addr(), port);
    let stream = loop {
        match timeout(
            SYN_TIMEOUT,
            ports::connect(peer.ni.nid.addr(), to.into(), &shared.ports),
        )
        .await
        {
            Ok(connected) => break connected,
            Err(_) => tracing::debug!(peer = %peer.nid, "no answer within {SYN_TIMEOUT:?}, connecting again"),
        }
    };
    let stream = stream.map_err(|e| DialFailure {
        why: format!("port {port}: {e}"),
        unreachable: matches!(
            e.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionReset
                | ErrorKind::HostUnreachable
                | ErrorKind::TimedOut
        ),
    })?;
    set_options(&stream, shared.cfg.sock_timeout).map_err(|e| DialFailure::other(e.to_string()))?;
    Ok(stream)
}

/// Exchanges hellos; `false` if the peer answers "try again".
async fn greet(peer: &Arc<Peer>, ctype: ConnType, mut stream: TcpStream) -> Result<bool, String> {
    let (shared, local) = (&peer.shared, peer.ni.nid);
    let to = SocketAddrV4::new(peer.nid.addr(), shared.cfg.accept_port);
    let mut greeting = LnetAcceptorConnreq::to(peer.nid).to_bytes().to_vec();
    greeting.extend_from_slice(&hello(local, peer.nid, shared.incarnation, ctype.to_wire()).to_bytes());
    let own_addr = stream.local_addr().map_err(|e| e.to_string())?;
    let reply = match exchange_hellos(&mut stream, &greeting).await {
        Ok(reply) => reply,
        Err(HelloError::Closed) => {
            let why =
                access::why_refused(own_addr, to).unwrap_or_else(|| "it may not have this NID".to_owned());
            return Err(format!("it closed the connection without an answer: {why}"));
        }
        Err(HelloError::Other(why)) => return Err(why),
    };
    match check_reply(peer.nid, ctype, &reply) {
        HelloReply::Accepted => {
            access::check_server(&stream)?;
            peer.add_connection(stream, peer.ni.clone(), ctype, reply.kshm_src_incarnation, None);
            Ok(true)
        }
        HelloReply::Retry => Ok(false),
        HelloReply::Refused(why) => Err(why),
    }
}

/// Why no usable hello arrived.
enum HelloError {
    /// The peer closed the connection.
    Closed,
    /// Any other reason.
    Other(String),
}

impl From<std::io::Error> for HelloError {
    fn from(e: std::io::Error) -> HelloError {
        match e.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                HelloError::Closed
            }
            _ => HelloError::Other(e.to_string()),
        }
    }
}

/// Sends this node's greeting and reads the peer's hello.
async fn exchange_hellos(stream: &mut TcpStream, greeting: &[u8]) -> Result<KsockHelloMsgNid4, HelloError> {
    let parse_error = |e: wire::WireError| HelloError::Other(e.to_string());
    stream.write_all(greeting).await?;
    let mut bytes = [0; KsockHelloMsgNid4::SIZE];
    stream.read_exact(&mut bytes[..LnetAcceptorConnreq::SIZE]).await?;
    let connreq = LnetAcceptorConnreq::from_bytes(&bytes).map_err(parse_error)?;
    if connreq.acr_magic == LNET_PROTO_ACCEPTOR_MAGIC {
        let why = format!("its acceptor speaks version {}", connreq.acr_version);
        return Err(HelloError::Other(why));
    }
    stream.read_exact(&mut bytes[LnetAcceptorConnreq::SIZE..]).await?;
    let reply = KsockHelloMsgNid4::from_bytes(&bytes).map_err(parse_error)?;
    reply.check().map_err(parse_error)?;
    for _ in 0..reply.kshm_nips {
        stream.read_u32_le().await?;
    }
    Ok(reply)
}
