//! A network interface of this node (NI): its NID, the partitions that it is bound to, its credits and its counts.
//!
//! A peer belongs to one of the NI's partitions, the one that its NID hashes to (guide 12.2): there its connections are read
//! and written, and its requests arrive. All that an NI keeps, it keeps for each of its partitions.

use crate::counters::{Counters, Counts};
use crate::credits::Credits;
use crate::interfaces::{self, Interface};
use crate::{LnetConfig, LnetError};
use cpt::{CptId, CptTable, nid_hash};
use parking_lot::Mutex;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::sync::Semaphore;
use wire::Nid;

/// An interface that is to be added; what is `None` is as the configuration says.
#[derive(Debug, Clone)]
pub struct NiSpec {
    /// Its NID.
    pub nid: Nid,
    /// Its name, if it is known; otherwise looked for by the address.
    pub interface: Option<String>,
    /// Whether it accepts connections.
    pub listen: bool,
    /// The partitions that it is bound to; without any, those near the interface, or all.
    pub cpts: Option<Vec<usize>>,
    /// Messages on their way out.
    pub credits: Option<u32>,
    /// Messages on their way to one peer.
    pub peer_credits: Option<u32>,
    /// Router buffers that one peer may hold.
    pub peer_buffer_credits: Option<u32>,
    /// Seconds of silence after which a peer is shown as down.
    pub peer_timeout: Option<u32>,
    /// Connections for bulk each way to a peer.
    pub conns_per_peer: Option<u32>,
}

impl NiSpec {
    /// One that accepts connections, and of which nothing else is said.
    pub fn new(nid: Nid) -> NiSpec {
        NiSpec {
            nid,
            interface: None,
            listen: true,
            cpts: None,
            credits: None,
            peer_credits: None,
            peer_buffer_credits: None,
            peer_timeout: None,
            conns_per_peer: None,
        }
    }
}

/// What an interface was set up with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunables {
    /// Seconds of silence after which a peer is shown as down.
    pub peer_timeout: u32,
    /// Messages on their way to one peer.
    pub peer_credits: u32,
    /// Router buffers that one peer may hold; 0: as many as `peer_credits`.
    pub peer_buffer_credits: u32,
    /// Messages on their way out.
    pub credits: u32,
    /// Connections for bulk each way to a peer.
    pub conns_per_peer: u32,
}

/// One interface.
#[derive(Debug)]
pub(crate) struct Ni {
    pub(crate) nid: Nid,
    pub(crate) interface: Option<String>,
    /// Where its link ends: addresses that begin like its own are reached without a way in between.
    mask: Ipv4Addr,
    pub(crate) cpts: Vec<CptId>,
    /// Whether somebody chose the partitions, or they follow from the machine.
    pub(crate) bound: bool,
    /// The first of the partitions near it, if the machine has such.
    pub(crate) dev_cpt: Option<usize>,
    pub(crate) tunables: Tunables,
    /// By partition of the machine; those that it is not bound to are never used.
    credits: Vec<Arc<Credits>>,
    counters: Vec<Counters>,
    acceptor: Mutex<Option<Arc<Acceptor>>>,
}

/// Of the credits, each partition has at least so many times those of a peer.
const PEERS_AT_ONCE: u32 = 8;

impl Ni {
    pub(crate) fn new(spec: &NiSpec, cfg: &LnetConfig, table: &CptTable) -> Result<Ni, LnetError> {
        let here = interfaces::with_address(spec.nid.addr());
        let mask = here.as_ref().map_or(Ipv4Addr::BROADCAST, |i: &Interface| i.mask);
        let interface = spec.interface.clone().or(here.map(|i| i.name));
        let near = interface
            .as_deref()
            .map(|name| interfaces::near(name, table))
            .unwrap_or_default();
        let dev_cpt = near.first().copied();
        let chosen = match &spec.cpts {
            Some(cpts) => cpts.clone(),
            None if near.is_empty() => (0..table.len()).collect(),
            None => near,
        };
        if let Some(beyond) = chosen.iter().find(|&&cpt| cpt >= table.len()) {
            let why = format!(
                "is to be on CPU partition {beyond}, but this process has {}, numbered from 0",
                table.len()
            );
            return Err(LnetError::Ni { nid: spec.nid, why });
        }
        let cpts: Vec<CptId> = chosen.into_iter().map(CptId).collect();
        let tunables = Tunables {
            peer_timeout: spec.peer_timeout.unwrap_or(cfg.peer_timeout.as_secs() as u32),
            peer_credits: spec.peer_credits.unwrap_or(cfg.peer_credits).max(1),
            peer_buffer_credits: spec.peer_buffer_credits.unwrap_or(cfg.peer_buffer_credits),
            credits: spec.credits.unwrap_or(cfg.credits).max(1),
            conns_per_peer: match spec.conns_per_peer.unwrap_or(cfg.conns_per_peer) {
                0 => interfaces::connections_for(interface.as_deref()),
                n => n.min(CONNS_PER_PEER_MAX),
            },
        };
        let share = (tunables.credits / cpts.len().max(1) as u32)
            .max(PEERS_AT_ONCE * tunables.peer_credits)
            .min(tunables.credits);
        Ok(Ni {
            nid: spec.nid,
            interface,
            mask,
            bound: spec.cpts.is_some(),
            cpts,
            dev_cpt,
            tunables,
            credits: (0..table.len()).map(|_| Credits::new(share)).collect(),
            counters: (0..table.len()).map(|_| Counters::default()).collect(),
            acceptor: Mutex::default(),
        })
    }

    /// The partition of a peer.
    pub(crate) fn cpt_of(&self, peer: Nid) -> CptId {
        self.cpts[nid_hash(peer.0) % self.cpts.len()]
    }

    /// Whether the address is on this interface's link.
    pub(crate) fn is_near(&self, addr: Ipv4Addr) -> bool {
        (self.nid.addr().to_bits() ^ addr.to_bits()) & self.mask.to_bits() == 0
    }

    /// The credits of one of its partitions.
    pub(crate) fn credits(&self, cpt: CptId) -> &Arc<Credits> {
        &self.credits[cpt.0 % self.credits.len()]
    }

    /// What is counted on a partition.
    pub(crate) fn counters(&self, cpt: CptId) -> &Counters {
        &self.counters[cpt.0 % self.counters.len()]
    }

    /// What was counted on all partitions.
    pub(crate) fn counts(&self) -> Counts {
        self.counters.iter().map(Counters::now).sum()
    }

    /// Keeps its address, and accepts connections there.
    pub(crate) fn accept_by(&self, acceptor: Arc<Acceptor>) {
        *self.acceptor.lock() = Some(acceptor);
    }

    /// It is removed: nothing is accepted for it any more.
    pub(crate) fn close(&self) {
        self.acceptor.lock().take();
    }
}

/// What holds one address, and accepts connections to it if it may: one for all interfaces that have it, since networks may
/// share it. It ends with the last of them.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) addr: Ipv4Addr,
    gone: Arc<Semaphore>,
}

impl Acceptor {
    pub(crate) fn new(addr: Ipv4Addr) -> Acceptor {
        Acceptor {
            addr,
            gone: Arc::new(Semaphore::new(0)),
        }
    }

    /// Waits for its end.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let gone = self.gone.clone();
        async move {
            // Has no permits: this resolves, with an error, when it is closed.
            let _ = gone.acquire().await;
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.gone.close();
    }
}

/// A peer may open that many connections for bulk each way.
pub(crate) const CONNS_PER_PEER_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Ni, NiSpec};
    use crate::LnetConfig;
    use cpt::{CptId, CptTable};
    use wire::Nid;

    const NID: Nid = Nid(0x0002_0000_7f00_0001);

    #[tokio::test]
    async fn an_interface_splits_its_credits_and_refuses_partitions_that_are_not_there() {
        let table = CptTable::single_current();
        let ni = Ni::new(&NiSpec::new(NID), &LnetConfig::default(), &table).unwrap();
        assert_eq!(
            (ni.credits(CptId(0)).max(), ni.interface.as_deref()),
            (256, Some("lo"))
        );
        assert!(ni.is_near("127.1.2.3".parse().unwrap()) && !ni.is_near("10.0.0.1".parse().unwrap()));
        let spec = NiSpec {
            cpts: Some(vec![0, 3]),
            ..NiSpec::new(NID)
        };
        let error = Ni::new(&spec, &LnetConfig::default(), &table)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("partition 3") && error.contains("has 1"),
            "{error}"
        );
    }
}
