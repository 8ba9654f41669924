//! The driver `tcp`: socklnd, protocol version 3 (guide 1).
//!
//! Pure parts: [`hello`] (who connects to whom, and how), [`zc`] (cookies), and the frames, which `wire` declares.
//! A [`peer::Peer`] has up to one connection per type and direction; each [`conn::Conn`] has a [`reader`] and a
//! [`writer`], on the partition that the peer's NID names. [`listen`] takes connections, [`dial`] opens them.

mod access;
mod conn;
mod diag;
mod dial;
mod forward;
mod hello;
mod hosts;
mod input;
mod link;
mod listen;
mod netlink;
mod parked;
mod peer;
mod pool;
mod ports;
mod reader;
mod route;
mod silence;
mod writer;
mod zc;

use crate::claim;
use crate::core::Core;
use crate::message::Msg;
use crate::nets::Way;
use crate::ni::{Acceptor, Ni};
use crate::router::buffers::Buffers;
use crate::tasks::Tasks;
use crate::{Accept, LnetConfig, LnetError, PeerEvent};
use cpt::{CptId, CptTable};
pub use link::Link;
use parking_lot::{Mutex, RwLock};
pub(crate) use peer::Peer;
use pool::Pool;
use ports::Ports;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddrV4;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast};
use wire::Nid;

/// How long a shutdown waits for what is queued to leave.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// What all connections of the node share.
pub(crate) struct Shared {
    core: Arc<Core>,
    cpts: Arc<CptTable>,
    cfg: LnetConfig,
    tasks: Arc<Tasks>,
    events: broadcast::Sender<PeerEvent>,
    incarnation: u64,
    tcp: Weak<Tcp>,
    ports: Ports,
    /// Whether a task watches for peers whose host is gone.
    watched: AtomicBool,
    /// What bounds forwarding, if this node is a router.
    buffers: Arc<Buffers>,
    /// Room for messages that wait for a sink, of all connections.
    parked: Arc<Semaphore>,
    /// Memory for payloads, by partition.
    pools: Vec<Arc<Pool>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// A peer is connected: its host is watched from now on.
    fn watch(&self, cpt: CptId) {
        if !self.watched.swap(true, Ordering::SeqCst) {
            let watch = silence::watch(self.tcp.clone());
            self.tasks.spawn(self.cpts.get(cpt), watch);
        }
    }
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Tcp {
    shared: Arc<Shared>,
    /// Peers by NID, a table for each partition that they belong to.
    peers: Vec<RwLock<HashMap<Nid, Arc<Peer>>>>,
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
        let parked = Arc::new(Semaphore::new(cfg.parked_bytes_max));
        let shared = |tcp: &Weak<Tcp>| Shared {
            tcp: tcp.clone(),
            core,
            cpts,
            cfg,
            tasks,
            events,
            incarnation,
            ports: Ports::default(),
            watched: AtomicBool::new(false),
            buffers,
            parked,
            pools: (0..partitions).map(|_| Arc::default()).collect(),
        };
        Arc::new_cyclic(|tcp| Tcp {
            shared: Arc::new(shared(tcp)),
            peers: (0..partitions).map(|_| RwLock::default()).collect(),
            acceptors: Mutex::default(),
        })
    }

    /// Takes the address of an interface for this process, and with `listen` begins to accept connections there.
    pub(crate) fn open(self: &Arc<Self>, ni: &Arc<Ni>, listen: bool) -> Result<(), LnetError> {
        let nid = ni.nid;
        let listen = listen && self.shared.cfg.accept != Accept::None;
        let mut acceptors = self.acceptors.lock();
        acceptors.retain(|a| a.strong_count() > 0);
        let mut there = acceptors.iter().filter_map(Weak::upgrade);
        if let Some(acceptor) = there.find(|a| a.addr == nid.addr()) {
            ni.accept_by(acceptor);
            return Ok(());
        }
        let port = self.shared.cfg.accept_port;
        listen::check_address(nid)?;
        // Claimed first, so that whoever finds the port in use learns by whom.
        let claim = match claim::take(nid.addr(), port) {
            Ok(claim) => claim,
            Err(Some(by)) if !claim::excludes(by, port, listen) => {
                tracing::warn!(%nid, "is used by {by}, too, which may not listen on port {port}");
                None
            }
            Err(by) => return Err(LnetError::AddrInUse { nid, port, by }),
        };
        let listener = listen.then(|| listen::bind(nid, port)).transpose()?;
        let acceptor = Arc::new(Acceptor::new(nid.addr()));
        acceptors.push(Arc::downgrade(&acceptor));
        let cpt = self.shared.cpts.get(ni.cpt_of(nid));
        if let Some(claim) = claim {
            self.shared.tasks.spawn(cpt, claim::hold(claim, acceptor.gone()));
        }
        if let Some(listener) = listener {
            access::check_host(SocketAddrV4::new(nid.addr(), port), self.shared.cfg.accept);
            let run = listen::run(self.clone(), acceptor.gone(), listener);
            self.shared.tasks.spawn(cpt, run);
        }
        ni.accept_by(acceptor);
        Ok(())
    }

    /// An interface comes or goes: the peers of its network belong somewhere else now, and connect again.
    pub(crate) fn forget(&self, net: u32, why: &str) {
        for table in &self.peers {
            let gone = table
                .write()
                .extract_if(|nid, _| nid.net() == net)
                .collect::<Vec<_>>();
            for (nid, peer) in gone {
                peer.end(&LnetError::PeerLost {
                    peer: nid,
                    why: why.to_owned(),
                });
            }
        }
    }

    /// Sends a message of our own to its destination; resolves when it has left.
    pub(crate) async fn send(&self, msg: Msg) -> Result<(), LnetError> {
        if self.shared.tasks.stopped() {
            return Err(LnetError::ShutDown);
        }
        self.transmit(msg, None).await
    }

    /// Sends a message, perhaps one that `from` has brought, on its way; a router that does not take it is left out.
    async fn transmit(&self, msg: Msg, from: Option<Nid>) -> Result<(), LnetError> {
        let mut not: Vec<Nid> = from.into_iter().collect();
        let mut failure = None;
        loop {
            let (route, ni) = match self.shared.core.nets.way(msg.dst, &not) {
                Ok(Way::Direct(ni)) => return self.peer(msg.dst, &ni)?.send(msg).await,
                Ok(Way::Routed(route, ni)) => (route, ni),
                Err(e) => return Err(failure.unwrap_or(e)),
            };
            let router = route.gateway.nid;
            if from.is_none() {
                self.shared.core.leaves_by(&msg.op, router);
            }
            match self.peer(router, &ni)?.send(msg.clone()).await {
                Err(e @ (LnetError::Connect { .. } | LnetError::PeerLost { .. })) => {
                    route.gateway.failed(&e);
                    not.push(router);
                    failure = Some(e);
                }
                sent => return sent,
            }
        }
    }

    /// The peer `nid`, on the network of `ni`; an error if it is new and there are too many. Those that nobody has to do with
    /// are forgotten first.
    fn peer(&self, nid: Nid, ni: &Arc<Ni>) -> Result<Arc<Peer>, LnetError> {
        let table = &self.peers[ni.cpt_of(nid).0];
        if let Some(peer) = table.read().get(&nid) {
            return Ok(peer.clone());
        }
        let mut table = table.write();
        let max = self.shared.cfg.peers_max.max(1);
        if table.len() >= max {
            // Connections and senders have references of their own.
            table.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if table.len() >= max {
            let why = format!("more than {max} peers are connected");
            return Err(LnetError::Connect { peer: nid, why });
        }
        let new = || Peer::new(nid, ni.clone(), self.shared.clone());
        Ok(table.entry(nid).or_insert_with(new).clone())
    }

    /// The connections to `nid`, which messages reach by `ni`.
    pub(crate) fn link(&self, nid: Nid, ni: &Ni) -> Link {
        let table = self.peers[ni.cpt_of(nid).0].read();
        table.get(&nid).map(|peer| peer.link()).unwrap_or_default()
    }

    /// Disconnects peers that are not in use and have been silent since this was last called. A router keeps all: it does
    /// not know for whom it forwards.
    pub(crate) fn close_unused(&self, in_use: &HashSet<Nid>) {
        let nets = self.shared.core.nets.now();
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
        let of = |t: &RwLock<HashMap<Nid, Arc<Peer>>>| t.read().values().cloned().collect::<Vec<_>>();
        self.peers.iter().flat_map(of).collect()
    }

    /// Takes nothing new, lets what is queued leave within [`FINISH_LIMIT`], and closes all connections.
    pub(crate) async fn finish(&self) {
        let peers = self.peers();
        let conns: Vec<_> = peers.iter().flat_map(|peer| peer.finish()).collect();
        let drained = async {
            for conn in &conns {
                conn.drained().await;
            }
        };
        if tokio::time::timeout(FINISH_LIMIT, drained).await.is_err() {
            tracing::debug!("some peers did not take what was left for them");
        }
        peers.iter().for_each(|peer| peer.close(&LnetError::ShutDown));
    }
}
