//! The driver `tcp`: socklnd, protocol version 3 (docs/protocol.md, "LNet").
//!
//! Pure parts: [`hello`] (connection types and races), [`zc`] (cookies), and the frames in `wire`.
//! A [`peer::Peer`] has one connection per type, or several for bulk. Each [`conn::Conn`] has a
//! [`reader`] and a [`writer`] task on the partition that the peer's NID selects. [`listen`]
//! accepts connections, [`dial`] opens them.

mod access;
mod backlog;
mod conn;
mod diag;
mod dial;
mod forward;
mod hello;
mod hosts;
mod input;
mod listen;
mod liveness;
mod netlink;
mod peer;
mod pool;
mod ports;
mod reader;
mod route;
mod writer;
mod zc;

use crate::claim;
use crate::core::Core;
use crate::link::Link;
use crate::message::Msg;
use crate::nets::NextHop;
use crate::ni::{Acceptor, Ni};
use crate::router::buffers::Buffers;
use crate::tasks::Tasks;
use crate::{Accept, LnetConfig, LnetError, PeerEvent};
use cpt::{CptId, CptTable};

use parking_lot::{Mutex, RwLock};
pub(crate) use peer::Peer;
use pool::Pool;
use ports::Ports;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{SocketAddrV4, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast};
use wire::Nid;

/// Time limit of a shutdown for sending the queued messages.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// State that all connections of the node share.
pub(crate) struct SharedState {
    core: Arc<Core>,
    cpts: Arc<CptTable>,
    cfg: LnetConfig,
    tasks: Arc<Tasks>,
    events: broadcast::Sender<PeerEvent>,
    incarnation: u64,
    tcp: Weak<Tcp>,
    ports: Ports,
    /// Whether the task of [`liveness`] is running.
    liveness_running: AtomicBool,
    /// The buffers for forwarding, if this node is a router.
    buffers: Arc<Buffers>,
    /// Limits the bytes in the backlogs of all connections.
    backlog_bytes: Arc<Semaphore>,
    /// Memory for payloads, by partition.
    pools: Vec<Arc<Pool>>,
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

impl SharedState {
    /// Starts the [`liveness`] task if it is not running. Called when a peer has connected.
    fn start_liveness(&self, cpt: CptId) {
        if !self.liveness_running.swap(true, Ordering::SeqCst) {
            let watch = liveness::watch(self.tcp.clone());
            self.tasks.spawn(self.cpts.get(cpt), watch);
        }
    }
}

/// A socket that listens at an interface's address ([`Tcp::accept`]).
pub(crate) struct ListenSocket {
    listener: TcpListener,
    address: SocketAddrV4,
    acceptor: Arc<Acceptor>,
    cpt: CptId,
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Tcp {
    shared: Arc<SharedState>,
    /// Peers by NID, one table for each partition.
    peers: Vec<RwLock<HashMap<Nid, Arc<Peer>>>>,
    /// The acceptors, one for each address; dead ones are removed when an interface is added.
    acceptors: Mutex<Vec<Weak<Acceptor>>>,
}

impl Tcp {
    pub(crate) fn new(
        core: Arc<Core>,
        cpts: Arc<CptTable>,
        cfg: LnetConfig,
        tasks: Arc<Tasks>,
        events: broadcast::Sender<PeerEvent>,
        buffers: Arc<Buffers>,
        incarnation: u64,
    ) -> Arc<Tcp> {
        let partitions = cpts.len();
        let backlog_bytes = Arc::new(Semaphore::new(cfg.backlog_bytes_max));
        let shared = |tcp: &Weak<Tcp>| SharedState {
            tcp: tcp.clone(),
            core,
            cpts,
            cfg,
            tasks,
            events,
            incarnation,
            ports: Ports::default(),
            liveness_running: AtomicBool::new(false),
            buffers,
            backlog_bytes,
            pools: (0..partitions).map(|_| Arc::default()).collect(),
        };
        Arc::new_cyclic(|tcp| Tcp {
            shared: Arc::new(shared(tcp)),
            peers: (0..partitions).map(|_| RwLock::default()).collect(),
            acceptors: Mutex::default(),
        })
    }

    /// Claims the address of an interface for this process and, with `listen`, returns a socket
    /// that listens there. An address that another interface already uses keeps its acceptor.
    pub(crate) fn open(&self, ni: &Arc<Ni>, listen: bool) -> Result<Option<ListenSocket>, LnetError> {
        let nid = ni.nid;
        let listen = listen && self.shared.cfg.accept != Accept::None;
        let mut acceptors = self.acceptors.lock();
        acceptors.retain(|a| a.strong_count() > 0);
        let mut live = acceptors.iter().filter_map(Weak::upgrade);
        if let Some(acceptor) = live.find(|a| a.addr == nid.addr()) {
            ni.set_acceptor(acceptor);
            return Ok(None);
        }
        let port = self.shared.cfg.accept_port;
        listen::check_address(nid)?;
        // The claim precedes binding: a process that finds the port in use must also find its user.
        let claim = match claim::take(nid.addr(), port) {
            Ok(claim) => claim,
            Err(Some(user)) if !claim::excludes(user, port, listen) => {
                tracing::warn!(%nid, "the address is also used by {user}, which may not listen on port {port}");
                None
            }
            Err(by) => return Err(LnetError::AddrInUse { nid, port, by }),
        };
        let listener = listen.then(|| listen::bind(nid, port)).transpose()?;
        let acceptor = Arc::new(Acceptor::new(nid.addr()));
        acceptors.push(Arc::downgrade(&acceptor));
        let cpt = self.shared.cpts.get(ni.cpt_of(nid));
        if let Some(claim) = claim {
            self.shared
                .tasks
                .spawn(cpt, claim::hold(claim, acceptor.closed()));
        }
        ni.set_acceptor(acceptor.clone());
        Ok(listener.map(|listener| ListenSocket {
            address: SocketAddrV4::new(nid.addr(), port),
            listener,
            acceptor,
            cpt: ni.cpt_of(nid),
        }))
    }

    /// Accepts connections until the acceptor is closed.
    pub(crate) fn accept(self: &Arc<Self>, socket: ListenSocket) {
        access::log_missing_checks(socket.address, self.shared.cfg.accept);
        let closed = socket.acceptor.closed();
        let run = listen::run(self.clone(), closed, socket.listener);
        self.shared.tasks.spawn(self.shared.cpts.get(socket.cpt), run);
    }

    /// Disconnects and forgets peers by their NIDs.
    pub(crate) fn forget_if(&self, is_forgotten: impl Fn(Nid) -> bool, why: &str) {
        for table in &self.peers {
            let forgotten = table
                .write()
                .extract_if(|nid, _| is_forgotten(*nid))
                .collect::<Vec<_>>();
            for (nid, peer) in forgotten {
                peer.end(&LnetError::PeerLost {
                    peer: nid,
                    why: why.to_owned(),
                });
            }
        }
    }

    /// Sends a message of this node to its destination; resolves when it has been sent.
    pub(crate) async fn send(&self, msg: Msg) -> Result<(), LnetError> {
        if self.shared.tasks.is_stopping() {
            return Err(LnetError::ShutDown);
        }
        self.transmit(msg, None).await
    }

    /// Sends a message of this node, or forwards one received from `from`. If a router fails, tries
    /// the others.
    async fn transmit(&self, msg: Msg, from: Option<Nid>) -> Result<(), LnetError> {
        let mut excluded: Vec<Nid> = from.into_iter().collect();
        let mut failure = None;
        loop {
            let (route, ni) = match self.shared.core.nets.next_hop(msg.dst, &excluded) {
                Ok(NextHop::Direct(ni)) => return self.peer(msg.dst, &ni)?.send(msg).await,
                Ok(NextHop::Routed(route, ni)) => (route, ni),
                Err(e) => return Err(failure.unwrap_or(e)),
            };
            let router = route.gateway.nid;
            if from.is_none() {
                self.shared.core.set_router(&msg.op, router);
            }
            match self.peer(router, &ni)?.send(msg.clone()).await {
                Err(e @ (LnetError::Connect { .. } | LnetError::PeerLost { .. })) => {
                    route.gateway.mark_down(&e);
                    excluded.push(router);
                    failure = Some(e);
                }
                sent => return sent,
            }
        }
    }

    /// The peer `nid` on the network of `ni`, created if it is new. If its partition has too many
    /// peers, first forgets those without connections and senders. Fails if too many are left.
    fn peer(&self, nid: Nid, ni: &Arc<Ni>) -> Result<Arc<Peer>, LnetError> {
        let table = &self.peers[ni.cpt_of(nid).0];
        if let Some(peer) = table.read().get(&nid) {
            return Ok(peer.clone());
        }
        let mut table = table.write();
        let max = self.shared.cfg.peers_max.max(1);
        if table.len() >= max {
            // Connections and senders hold references of their own.
            table.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if table.len() >= max {
            let why = format!("{max} peers are in use, the limit of a CPU partition");
            return Err(LnetError::Connect { peer: nid, why });
        }
        let new = || Peer::new(nid, ni.clone(), self.shared.clone());
        Ok(table.entry(nid).or_insert_with(new).clone())
    }

    /// The state of the connections to `nid`, a peer on the network of `ni`.
    pub(crate) fn link(&self, nid: Nid, ni: &Ni) -> Link {
        let table = self.peers[ni.cpt_of(nid).0].read();
        table.get(&nid).map(|peer| peer.link()).unwrap_or_default()
    }

    /// Disconnects peers that `in_use` does not list and that exchanged no message since the
    /// previous call. Routers of this node's routes stay connected. A router keeps all its peers,
    /// since it does not know which of them the nodes behind it use.
    pub(crate) fn close_unused(&self, in_use: &HashSet<Nid>) {
        let nets = self.shared.core.nets.snapshot();
        if nets.forwarding {
            return;
        }
        let unused = |peer: &Arc<Peer>| !in_use.contains(&peer.nid) && !nets.is_gateway(peer.nid);
        self.peers()
            .iter()
            .filter(|p| unused(p))
            .for_each(|p| p.close_if_unused());
    }

    /// All peers.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        let peers_of = |t: &RwLock<HashMap<Nid, Arc<Peer>>>| t.read().values().cloned().collect::<Vec<_>>();
        self.peers.iter().flat_map(peers_of).collect()
    }

    /// Refuses new messages, sends the queued ones within [`FINISH_LIMIT`], and closes all
    /// connections.
    pub(crate) async fn finish(&self) {
        let peers = self.peers();
        let conns: Vec<_> = peers.iter().flat_map(|peer| peer.finish()).collect();
        let all_ended = async {
            for conn in &conns {
                conn.ended().await;
            }
        };
        if tokio::time::timeout(FINISH_LIMIT, all_ended).await.is_err() {
            tracing::debug!("some peers did not take their queued messages in time");
        }
        peers.iter().for_each(|peer| peer.close(&LnetError::ShutDown));
    }
}
