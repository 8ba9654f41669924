//! The acceptor: says hello to peers that connect, and hands their connections on.
//!
//! [`access`] says which connections are taken at all. The NID in a peer's hello must have the address that the connection
//! comes from: nobody connects under the NID of another host. A router connects as itself, too; it may bring messages of
//! other NIDs later (`forward::judge`).

use super::conn::set_options;
use super::hello::{ConnType, RETRY, hello};
use super::hosts::{Guest, Hosts};
use super::peer::Admission;
use super::{Tcp, access};
use crate::{LnetError, warn_seldom};
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

/// Connections of another host that are saying who they are: some are silent for all the time that they have, and others
/// want to be heard. A peer opens three at once. This host, with all its processes, has half of all.
const PENDING_PER_HOST: usize = 16;
/// The version of a connection request that names a NID which is no IPv4 one.
const LARGE_NIDS: u32 = 2;
/// Why a connection is refused that another one races with.
const AGAIN: &str = "it is to try again";
/// Connections that the kernel keeps for us until we accept them.
const BACKLOG: i32 = 127;

/// Binds the acceptor's socket of `nid`.
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

/// Checks that an interface has the address of `nid`.
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

/// Accepts connections until the stack stops, or nobody wants them any more.
pub(super) async fn run(tcp: Arc<Tcp>, gone: impl Future<Output = ()>, listener: StdListener) {
    tokio::select! {
        () = gone => {}
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
    let unknown = Hosts::new(usize::MAX);
    let all = Hosts::new(cfg.accept_max);
    // Never closed: the loop ends with its task.
    while let Ok(slot) = pending.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, from)) => {
                // Before they count: connections that may not be here take no room from those that may.
                let host = match access::admit(&stream, cfg.accept) {
                    Ok(host) => host,
                    Err(why) => {
                        warn_seldom!(%from, "connection refused: {why}");
                        continue;
                    }
                };
                let pending_max = match host.is_loopback() {
                    true => cfg.accept_pending_max / 2,
                    false => PENDING_PER_HOST,
                };
                let Ok(pending_guest) = unknown.enter(host, pending_max) else {
                    warn_seldom!(%from, "connection refused: {pending_max} others of this host have not said who they are");
                    continue;
                };
                let guest = match all.enter(host, cfg.accept_host_max) {
                    Ok(guest) => guest,
                    Err(full) => {
                        warn_seldom!(%from, "connection refused: {full}");
                        continue;
                    }
                };
                let at = tcp.clone();
                let cpt = tcp.shared.cpts.get(tcp.shared.cpts.current());
                tcp.shared.tasks.spawn(cpt, async move {
                    let limit = at.shared.cfg.accept_timeout;
                    let refused = match timeout(limit, greet(&at, stream, guest)).await {
                        Ok(result) => result.err(),
                        Err(_) => Some(format!("no hello within {limit:?}")),
                    };
                    if let Some(why) = refused {
                        // Two nodes that connect to each other at once are no trouble.
                        if why == AGAIN {
                            tracing::debug!(%from, "connection refused: {why}");
                        } else {
                            warn_seldom!(%from, "connection refused: {why}");
                        }
                    }
                    drop((slot, pending_guest));
                });
            }
            Err(e) => {
                // Out of descriptors or memory: others may give some back.
                tracing::warn!("cannot accept a connection: {e}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Hears a connector out and answers it; why it was refused.
async fn greet(tcp: &Arc<Tcp>, mut stream: TcpStream, guest: Guest) -> Result<(), String> {
    let shared = &tcp.shared;
    let own = read_connreq(&mut stream).await?;
    let ni = shared
        .core
        .nets
        .now()
        .nis
        .iter()
        .find(|ni| ni.nid == own)
        .cloned();
    let ni = ni.ok_or_else(|| format!("it wants {own}, which is not this node"))?;
    let theirs = read_hello(&mut stream, own, shared.incarnation).await?;
    let nid = theirs.kshm_src_nid;
    if nid.net() != own.net() {
        return Err(format!(
            "it says that it is {nid}, which is not on the network of {own}"
        ));
    }
    if shared.core.is_local(nid) {
        return Err(format!("it says that it is {nid}, which is this node"));
    }
    let host = stream.peer_addr().map_err(|e| e.to_string())?.ip();
    if host != nid.addr() {
        return Err(format!("it says that it is {nid}, but it connects from {host}"));
    }
    let ctype = ConnType::from_wire(theirs.kshm_ctype)
        .ok_or("its connection has no type")?
        .inverse();
    let towards = shared.core.nets.now().ni_for(nid).cloned();
    let towards = towards.ok_or("its network is gone")?;
    let peer = tcp.peer(nid, &towards).map_err(|e| e.to_string())?;
    let admission = peer.admit(own, ctype, theirs.kshm_src_incarnation);
    let answer = if admission == Admission::Accept {
        ctype.to_wire()
    } else {
        RETRY
    };
    write(
        &mut stream,
        &hello(own, nid, shared.incarnation, answer).to_bytes(),
    )
    .await?;
    if admission == Admission::Retry {
        return Err(AGAIN.to_owned());
    }
    set_options(&stream, shared.cfg.sock_timeout).map_err(|e| e.to_string())?;
    // From here on the socket belongs to the peer's partition.
    let stream = stream.into_std().map_err(|e| e.to_string())?;
    let _partition = shared.cpts.get(ni.cpt_of(nid)).handle().enter();
    let stream = TcpStream::from_std(stream).map_err(|e| e.to_string())?;
    peer.add(stream, ni, ctype, theirs.kshm_src_incarnation, Some(guest));
    Ok(())
}

/// Why a connector of the other byte order is refused.
const BIG_ENDIAN: &str = "it is a big-endian machine, which is not supported";

/// Which NID the connector wants. A connector of another version is told ours.
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
            LARGE_NIDS => "it wants a NID that is no IPv4 one: use IPv4 NIDs for this node".to_owned(),
            version => format!("its connection request is of version {version}, and 1 is known here"),
        }
    } else if magic == LNET_PROTO_ACCEPTOR_MAGIC.swap_bytes() {
        BIG_ENDIAN.to_owned()
    } else if magic == LNET_PROTO_MAGIC || magic == LNET_PROTO_MAGIC.swap_bytes() {
        "it says hello without a connection request, as nodes before Lustre 1.8 do".to_owned()
    } else {
        return Err(format!(
            "it begins with {magic:#x}, not with a connection request"
        ));
    };
    write(stream, &LnetAcceptorConnreq::to(Nid(0)).to_bytes()).await?;
    Err(why)
}

/// The connector's hello. A connector of another version is told ours.
async fn read_hello(stream: &mut TcpStream, own: Nid, incarnation: u64) -> Result<KsockHelloMsgNid4, String> {
    let mut bytes = [0; KsockHelloMsgNid4::SIZE];
    let magic = read_u32(stream, &mut bytes[..4]).await?;
    if magic == LNET_PROTO_MAGIC.swap_bytes() {
        return Err(BIG_ENDIAN.to_owned());
    }
    if magic != LNET_PROTO_MAGIC {
        return Err(format!("its hello begins with {magic:#x}"));
    }
    let version = read_u32(stream, &mut bytes[4..8]).await?;
    if version != KSOCK_PROTO_V3 {
        write(stream, &hello(own, Nid(0), incarnation, RETRY).to_bytes()).await?;
        return Err(format!(
            "it speaks socklnd version {version}, this node version {KSOCK_PROTO_V3}"
        ));
    }
    read(stream, &mut bytes[8..]).await?;
    let theirs = KsockHelloMsgNid4::from_bytes(&bytes).map_err(|e| e.to_string())?;
    theirs.check().map_err(|e| e.to_string())?;
    for _ in 0..theirs.kshm_nips {
        read(stream, &mut [0; 4]).await?;
    }
    Ok(theirs)
}

async fn read(stream: &mut TcpStream, into: &mut [u8]) -> Result<(), String> {
    stream.read_exact(into).await.map(drop).map_err(|e| e.to_string())
}

async fn read_u32(stream: &mut TcpStream, into: &mut [u8]) -> Result<u32, String> {
    read(stream, into).await?;
    into.first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes))
        .ok_or_else(|| "a number needs four bytes".to_owned())
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), String> {
    stream.write_all(bytes).await.map_err(|e| e.to_string())
}
