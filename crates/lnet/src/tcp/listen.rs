//! The acceptor: exchanges hellos with connecting peers and passes their connections on.
//!
//! [`access`] decides which connections are accepted at all. The NID in a peer's hello must have
//! the connection's source address, so no host can connect under another host's NID. A router
//! connects under its own NID, too; it may later send messages of other NIDs (`forward::classify`).

use super::conn::set_options;
use super::hello::{ConnType, RETRY, hello};
use super::hosts::{HostLimits, HostSlot};
use super::peer::Admission;
use super::{Tcp, access};
use crate::{LnetError, warn_rate_limited};
use socket2::{Domain, Socket, Type};
use std::future::Future;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use wire::{
    KSOCK_PROTO_V3, KsockHelloMsgNid4, LNET_PROTO_ACCEPTOR_MAGIC, LNET_PROTO_ACCEPTOR_VERSION,
    LNET_PROTO_MAGIC, LnetAcceptorConnreq, Nid, WireStruct,
};

/// Maximum number of connections of one remote host that have not completed their hello: idle
/// connections of one host must not block other hosts. By default, a peer opens three connections.
/// All processes of this host together may use half of `accept_pending_max`.
const PENDING_PER_HOST: usize = 16;
/// The version of connection requests that name a NID of another type than IPv4.
const VERSION_LARGE_NIDS: u32 = 2;
/// The reason for asking a peer to try again: mostly a race with a connection of this node.
const RACE: &str = "it races with a connection of this node, and has to try again";
/// Maximum number of connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 127;
/// Pause after a failed attempt to accept a connection.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Binds the listening socket of `nid`.
pub(super) fn bind(nid: Nid, port: u16) -> Result<StdListener, LnetError> {
    let listen = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::from((nid.addr(), port)).into())?;
        socket.listen(BACKLOG)?;
        Ok(StdListener::from(socket))
    };
    listen().map_err(|e: std::io::Error| LnetError::listen(nid, port, &e))
}

/// Checks that an interface of this machine has the address of `nid`.
pub(super) fn check_address(nid: Nid) -> Result<(), LnetError> {
    StdListener::bind((nid.addr(), 0))
        .map(drop)
        .map_err(|e| match e.kind() {
            ErrorKind::AddrNotAvailable => LnetError::AddrNotAvailable { nid },
            _ => LnetError::Listen {
                nid,
                port: 0,
                why: e.to_string(),
            },
        })
}

/// Accepts connections until the stack stops or `closed` resolves.
pub(super) async fn run(tcp: Arc<Tcp>, closed: impl Future<Output = ()>, listener: StdListener) {
    tokio::select! {
        biased;
        () = closed => {}
        () = accept(tcp, listener) => {}
    }
}

async fn accept(tcp: Arc<Tcp>, listener: StdListener) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => return tracing::error!("cannot accept connections: {e}"),
    };
    let pending = Arc::new(Semaphore::new(tcp.shared.cfg.accept_pending_max.max(1)));
    let cfg = &tcp.shared.cfg;
    let pending_limits = HostLimits::new(usize::MAX);
    let open_limits = HostLimits::new(cfg.accept_max);
    // The semaphore is never closed: the loop ends with its task.
    while let Ok(slot) = pending.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, from)) => {
                // This check precedes the reservations: unauthorized connections must not use up
                // the slots of others.
                let host = match access::admit(&stream, cfg.accept) {
                    Ok(host) => host,
                    Err(why) => {
                        warn_rate_limited!(%from, "connection refused: {why}");
                        continue;
                    }
                };
                let pending_max = match host.is_loopback() {
                    true => cfg.accept_pending_max / 2,
                    false => PENDING_PER_HOST,
                };
                let Ok(pending_slot) = pending_limits.reserve(host, pending_max) else {
                    warn_rate_limited!(%from, "connection refused: {pending_max} connections of its host have not completed their hello");
                    continue;
                };
                let host_slot = match open_limits.reserve(host, cfg.accept_host_max) {
                    Ok(host_slot) => host_slot,
                    Err(full) => {
                        warn_rate_limited!(%from, "connection refused: {full}");
                        continue;
                    }
                };
                let driver = tcp.clone();
                let cpt = tcp.shared.cpts.get(tcp.shared.cpts.current());
                tcp.shared.tasks.spawn(cpt, async move {
                    let limit = driver.shared.cfg.accept_timeout;
                    let refusal = match timeout(limit, greet(&driver, stream, host_slot)).await {
                        Ok(result) => result.err(),
                        Err(_) => Some(format!("no hello within {limit:?}")),
                    };
                    if let Some(why) = refusal {
                        // Two nodes that connect to each other at the same time are normal.
                        if why == RACE {
                            tracing::debug!(%from, "connection refused: {why}");
                        } else {
                            warn_rate_limited!(%from, "connection refused: {why}");
                        }
                    }
                    drop((slot, pending_slot));
                });
            }
            Err(e) => {
                // The process lacks descriptors or memory: other connections may release some.
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Reads a peer's connection request and hello, and answers them.
///
/// # Errors
///
/// The reason for the refusal.
async fn greet(tcp: &Arc<Tcp>, mut stream: TcpStream, host_slot: HostSlot) -> Result<(), String> {
    let shared = &tcp.shared;
    let own_nid = read_connreq(&mut stream).await?;
    let ni = shared
        .core
        .nets
        .snapshot()
        .nis
        .iter()
        .find(|ni| ni.nid == own_nid)
        .cloned();
    let ni = ni.ok_or_else(|| format!("it requests {own_nid}, which is not a NID of this node"))?;
    let peer_hello = read_hello(&mut stream, own_nid, shared.incarnation).await?;
    let nid = peer_hello.kshm_src_nid;
    if nid.net() != own_nid.net() {
        return Err(format!(
            "its hello names {nid}, which is not on the network of {own_nid}"
        ));
    }
    if shared.core.is_local(nid) {
        return Err(format!("its hello names {nid}, a NID of this node"));
    }
    let host = stream.peer_addr().map_err(|e| e.to_string())?.ip();
    if host != nid.addr() {
        return Err(format!("its hello names {nid}, but it connects from {host}"));
    }
    let ctype = ConnType::from_wire(peer_hello.kshm_ctype)
        .ok_or("its hello has an unknown connection type")?
        .inverse();
    let outgoing_ni = shared.core.nets.snapshot().ni_for(nid).cloned();
    let outgoing_ni = outgoing_ni.ok_or("its network was removed")?;
    let peer = tcp.peer(nid, &outgoing_ni).map_err(|e| e.to_string())?;
    let admission = peer.admit(own_nid, ctype, peer_hello.kshm_src_incarnation);
    let answer = if admission == Admission::Accept {
        ctype.to_wire()
    } else {
        RETRY
    };
    write(
        &mut stream,
        &hello(own_nid, nid, shared.incarnation, answer).to_bytes(),
    )
    .await?;
    if admission == Admission::Retry {
        return Err(RACE.to_owned());
    }
    set_options(&stream, shared.cfg.sock_timeout).map_err(|e| e.to_string())?;
    // From here on the socket belongs to the runtime of the peer's partition.
    let stream = stream.into_std().map_err(|e| e.to_string())?;
    let _partition = shared.cpts.get(ni.cpt_of(nid)).handle().tokio().enter();
    let stream = TcpStream::from_std(stream).map_err(|e| e.to_string())?;
    peer.add_connection(
        stream,
        ni,
        ctype,
        peer_hello.kshm_src_incarnation,
        Some(host_slot),
    );
    Ok(())
}

/// The reason for refusing a peer of the other byte order.
const BIG_ENDIAN: &str = "it is a big-endian machine: not supported";

/// Reads the NID that the peer requests. A peer with another version gets a connection request of
/// this node, which has this node's version.
async fn read_connreq(stream: &mut TcpStream) -> Result<Nid, String> {
    let mut bytes = [0; LnetAcceptorConnreq::SIZE];
    let magic = read_u32(stream, &mut bytes[..4]).await?;
    let why = if magic == LNET_PROTO_ACCEPTOR_MAGIC {
        match read_u32(stream, &mut bytes[4..8]).await? {
            LNET_PROTO_ACCEPTOR_VERSION => {
                read(stream, &mut bytes[8..]).await?;
                let connreq = LnetAcceptorConnreq::from_bytes(&bytes).map_err(|e| e.to_string())?;
                return Ok(connreq.acr_nid);
            }
            VERSION_LARGE_NIDS => {
                "it requests a NID that is not IPv4: use IPv4 NIDs for this node".to_owned()
            }
            version => {
                format!("its connection request has version {version}, but only version 1 is supported")
            }
        }
    } else if magic == LNET_PROTO_ACCEPTOR_MAGIC.swap_bytes() {
        BIG_ENDIAN.to_owned()
    } else if magic == LNET_PROTO_MAGIC || magic == LNET_PROTO_MAGIC.swap_bytes() {
        "it sent a hello without a connection request (a node older than Lustre 1.8)".to_owned()
    } else {
        return Err(format!(
            "it started with {magic:#x} instead of a connection request"
        ));
    };
    write(stream, &LnetAcceptorConnreq::to(Nid(0)).to_bytes()).await?;
    Err(why)
}

/// Reads the peer's hello. A peer with another version gets a hello with this node's version.
async fn read_hello(
    stream: &mut TcpStream,
    own_nid: Nid,
    incarnation: u64,
) -> Result<KsockHelloMsgNid4, String> {
    let mut bytes = [0; KsockHelloMsgNid4::SIZE];
    let magic = read_u32(stream, &mut bytes[..4]).await?;
    if magic == LNET_PROTO_MAGIC.swap_bytes() {
        return Err(BIG_ENDIAN.to_owned());
    }
    if magic != LNET_PROTO_MAGIC {
        return Err(format!("its hello starts with {magic:#x}"));
    }
    let version = read_u32(stream, &mut bytes[4..8]).await?;
    if version != KSOCK_PROTO_V3 {
        write(stream, &hello(own_nid, Nid(0), incarnation, RETRY).to_bytes()).await?;
        return Err(format!(
            "it speaks socklnd version {version}, but this node speaks version {KSOCK_PROTO_V3}"
        ));
    }
    read(stream, &mut bytes[8..]).await?;
    let peer_hello = KsockHelloMsgNid4::from_bytes(&bytes).map_err(|e| e.to_string())?;
    peer_hello.check().map_err(|e| e.to_string())?;
    for _ in 0..peer_hello.kshm_nips {
        read(stream, &mut [0; 4]).await?;
    }
    Ok(peer_hello)
}

async fn read(stream: &mut TcpStream, into: &mut [u8]) -> Result<(), String> {
    stream.read_exact(into).await.map(drop).map_err(|e| e.to_string())
}

async fn read_u32(stream: &mut TcpStream, into: &mut [u8]) -> Result<u32, String> {
    read(stream, into).await?;
    into.first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .ok_or_else(|| "fewer than four bytes".to_owned())
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), String> {
    stream.write_all(bytes).await.map_err(|e| e.to_string())
}
