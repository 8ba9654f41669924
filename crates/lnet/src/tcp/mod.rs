//! The driver `tcp`: socklnd, protocol version 3 (guide 1).
//!
//! Pure parts: [`hello`] (who connects to whom, and how), [`zc`] (cookies), and the frames, which `wire` declares.
//! A [`peer::Peer`] has up to one connection per type and direction; each [`conn::Conn`] has a [`reader`] and a
//! [`writer`], on the partition that the peer's NID names. [`listen`] takes connections, [`dial`] opens them.

mod conn;
mod dial;
mod hello;
mod hosts;
mod input;
mod listen;
mod parked;
mod peer;
mod pool;
mod ports;
mod reader;
mod writer;
mod zc;

use crate::core::Core;
use crate::counters::Counters;
use crate::message::Msg;
use crate::tasks::Tasks;
use crate::{LnetConfig, LnetError, PeerEvent};
use cpt::CptTable;
use parking_lot::RwLock;
use peer::Peer;
use pool::Pool;
use ports::Ports;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, broadcast};
use wire::Nid;

/// How long a shutdown waits for what is queued to leave.
const FINISH_LIMIT: Duration = Duration::from_secs(1);

/// What all connections of the node share.
pub(crate) struct Shared {
    core: Arc<Core>,
    counters: Arc<Counters>,
    cpts: Arc<CptTable>,
    cfg: LnetConfig,
    tasks: Arc<Tasks>,
    events: broadcast::Sender<PeerEvent>,
    incarnation: u64,
    nis: RwLock<Vec<Nid>>,
    ports: Ports,
    /// `credits` of the node, split over the partitions.
    credits: Vec<Arc<Semaphore>>,
    /// Room for messages that wait for a sink, of all connections.
    parked: Arc<Semaphore>,
    /// Memory for payloads, by partition.
    pools: Vec<Arc<Pool>>,
}

impl Shared {
    /// This node's NID on the network of `peer`.
    fn local_for(&self, peer: Nid) -> Option<Nid> {
        self.nis.read().iter().copied().find(|ni| ni.net() == peer.net())
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("nis", &self.nis.read())
            .finish_non_exhaustive()
    }
}

/// The driver.
#[derive(Debug)]
pub(crate) struct Tcp {
    shared: Arc<Shared>,
    /// Peers by NID, a table per partition.
    peers: Vec<RwLock<HashMap<Nid, Arc<Peer>>>>,
}

impl Tcp {
    pub(crate) fn new(
        core: Arc<Core>,
        counters: Arc<Counters>,
        cpts: Arc<CptTable>,
        cfg: LnetConfig,
        tasks: Arc<Tasks>,
        events: broadcast::Sender<PeerEvent>,
        incarnation: u64,
    ) -> Arc<Tcp> {
        let partitions = cpts.len();
        let credits = (cfg.credits as usize / partitions)
            .max(cfg.peer_credits as usize)
            .max(1);
        let parked = Arc::new(Semaphore::new(cfg.parked_bytes_max));
        let shared = Shared {
            core,
            counters,
            cpts,
            cfg,
            tasks,
            events,
            incarnation,
            nis: RwLock::default(),
            ports: Ports::default(),
            parked,
            pools: (0..partitions).map(|_| Arc::default()).collect(),
            credits: (0..partitions)
                .map(|_| Arc::new(Semaphore::new(credits)))
                .collect(),
        };
        Arc::new(Tcp {
            shared: Arc::new(shared),
            peers: (0..partitions).map(|_| RwLock::default()).collect(),
        })
    }

    /// Adds an interface; with `listen` it accepts connections.
    pub(crate) fn add(self: &Arc<Self>, nid: Nid, listen: bool) -> Result<(), LnetError> {
        if !nid.is_tcp() {
            return Err(LnetError::NotTcp { nid });
        }
        if !listen {
            listen::check_address(nid)?;
            self.shared.nis.write().push(nid);
            return Ok(());
        }
        let listener = listen::bind(nid, self.shared.cfg.accept_port)?;
        self.shared.nis.write().push(nid);
        let cpt = self.shared.cpts.get(self.shared.cpts.of_nid(nid.0));
        self.shared.tasks.spawn(cpt, listen::run(self.clone(), listener));
        Ok(())
    }

    /// Sends a message of our own to its destination; resolves when it has left.
    pub(crate) async fn send(&self, msg: Msg) -> Result<(), LnetError> {
        let nid = msg.dst;
        if self.shared.tasks.stopped() {
            return Err(LnetError::ShutDown);
        }
        if self.shared.local_for(nid).is_none() {
            return Err(LnetError::NoRoute { peer: nid });
        }
        let too_many = || LnetError::Connect {
            peer: nid,
            why: format!("more than {} peers are connected", self.shared.cfg.peers_max),
        };
        self.peer(nid).ok_or_else(too_many)?.send(msg).await
    }

    /// The peer `nid`; `None` if it is new and there are too many. Those that nobody has to do with are forgotten first.
    fn peer(&self, nid: Nid) -> Option<Arc<Peer>> {
        let table = &self.peers[self.shared.cpts.of_nid(nid.0).0];
        if let Some(peer) = table.read().get(&nid) {
            return Some(peer.clone());
        }
        let mut table = table.write();
        let max = self.shared.cfg.peers_max.max(1);
        if table.len() >= max {
            // Connections and senders have references of their own.
            table.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if table.len() >= max {
            return None;
        }
        Some(
            table
                .entry(nid)
                .or_insert_with(|| Peer::new(nid, self.shared.clone()))
                .clone(),
        )
    }

    /// Takes nothing new, lets what is queued leave within [`FINISH_LIMIT`], and closes all connections.
    pub(crate) async fn finish(&self) {
        let peers: Vec<Arc<Peer>> = self
            .peers
            .iter()
            .flat_map(|t| t.read().values().cloned().collect::<Vec<_>>())
            .collect();
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
