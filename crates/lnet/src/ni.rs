//! A network interface of this node (NI): its NID, partitions, credits and counters.
//!
//! The hash of a peer's NID selects one of the NI's partitions (docs/protocol.md, "LNet"). The
//! peer's connections are read and written there, and its requests arrive there. Credits and
//! counters of an NI are kept per partition.

use crate::counters::{Counters, Counts};
use crate::credits::Credits;
use crate::interfaces::{self, InterfaceAddress};
use crate::{LnetConfig, LnetError};
use cpt::{CptId, CptTable, nid_hash};
use parking_lot::Mutex;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::sync::Semaphore;
use wire::Nid;

/// An interface to add. `None` means the value of the configuration, unless the field says
/// otherwise.
#[derive(Debug, Clone)]
pub struct NiSpec {
    /// Its NID.
    pub nid: Nid,
    /// Its name; if `None`, the name of the interface with the NID's address.
    pub interface: Option<String>,
    /// Whether it accepts connections.
    pub listen: bool,
    /// Its partitions; if `None`, those near the interface, or all.
    pub cpts: Option<Vec<usize>>,
    /// Concurrent sends through the interface, split over its partitions.
    pub credits: Option<u32>,
    /// Concurrent sends to one peer.
    pub peer_credits: Option<u32>,
    /// Router buffers that one peer may hold; 0: the same as `peer_credits`.
    pub peer_buffer_credits: Option<u32>,
    /// In seconds; without effect, see [`LnetConfig::peer_timeout`].
    pub peer_timeout: Option<u32>,
    /// Bulk connections in each direction to a peer; 0: depends on the interface's speed.
    pub conns_per_peer: Option<u32>,
}

impl NiSpec {
    /// An interface that accepts connections, with default settings.
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

/// The effective settings of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunables {
    /// In seconds; without effect, see [`LnetConfig::peer_timeout`].
    pub peer_timeout: u32,
    /// Concurrent sends to one peer.
    pub peer_credits: u32,
    /// Router buffers that one peer may hold; 0: the same as `peer_credits`.
    pub peer_buffer_credits: u32,
    /// Concurrent sends through the interface, split over its partitions.
    pub credits: u32,
    /// Bulk connections in each direction to a peer.
    pub conns_per_peer: u32,
}

/// One interface.
#[derive(Debug)]
pub(crate) struct Ni {
    pub(crate) nid: Nid,
    pub(crate) interface: Option<String>,
    /// Netmask of the NID's address. Addresses with the same prefix are on the interface's link.
    mask: Ipv4Addr,
    pub(crate) cpts: Vec<CptId>,
    /// Whether the administrator chose the partitions.
    pub(crate) bound: bool,
    /// The first of the partitions near the interface, if it has a NUMA node.
    pub(crate) dev_cpt: Option<usize>,
    pub(crate) tunables: Tunables,
    /// Indexed by partition of the process; entries of other partitions than `cpts` stay unused.
    credits: Vec<Arc<Credits>>,
    /// Indexed like `credits`.
    counters: Vec<Counters>,
    acceptor: Mutex<Option<Arc<Acceptor>>>,
}

/// Each partition's share of the credits is at least this many times `peer_credits`, but at most
/// all credits.
const PARTITION_CREDITS_MIN_PEERS: u32 = 8;

impl Ni {
    pub(crate) fn new(spec: &NiSpec, cfg: &LnetConfig, table: &CptTable) -> Result<Ni, LnetError> {
        let with_address = interfaces::with_address(spec.nid.addr());
        let mask = with_address
            .as_ref()
            .map_or(Ipv4Addr::BROADCAST, |i: &InterfaceAddress| i.mask);
        let interface = spec.interface.clone().or(with_address.map(|i| i.name));
        let near_cpts = interface
            .as_deref()
            .map(|name| interfaces::cpts_near(name, table))
            .unwrap_or_default();
        let dev_cpt = near_cpts.first().copied();
        let chosen_cpts = match &spec.cpts {
            Some(cpts) => cpts.clone(),
            None if near_cpts.is_empty() => (0..table.len()).collect(),
            None => near_cpts,
        };
        if let Some(missing) = chosen_cpts.iter().find(|&&cpt| cpt >= table.len()) {
            let why = format!(
                "CPU partition {missing} does not exist: this process has {}, numbered from 0",
                table.len()
            );
            return Err(LnetError::Ni { nid: spec.nid, why });
        }
        let cpts: Vec<CptId> = chosen_cpts.into_iter().map(CptId).collect();
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
            .max(PARTITION_CREDITS_MIN_PEERS * tunables.peer_credits)
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

    /// The partition that a peer belongs to.
    pub(crate) fn cpt_of(&self, peer: Nid) -> CptId {
        self.cpts[nid_hash(peer.0) % self.cpts.len()]
    }

    /// Whether the address is on the interface's link.
    pub(crate) fn is_on_link(&self, addr: Ipv4Addr) -> bool {
        (self.nid.addr().to_bits() ^ addr.to_bits()) & self.mask.to_bits() == 0
    }

    /// The credits of a partition.
    pub(crate) fn credits(&self, cpt: CptId) -> &Arc<Credits> {
        &self.credits[cpt.0 % self.credits.len()]
    }

    /// The counters of a partition.
    pub(crate) fn counters(&self, cpt: CptId) -> &Counters {
        &self.counters[cpt.0 % self.counters.len()]
    }

    /// The sum of the counters of all partitions.
    pub(crate) fn counts(&self) -> Counts {
        self.counters.iter().map(Counters::snapshot).sum()
    }

    /// Keeps the acceptor of the interface's address alive.
    pub(crate) fn set_acceptor(&self, acceptor: Arc<Acceptor>) {
        *self.acceptor.lock() = Some(acceptor);
    }

    /// Releases the acceptor; called when the interface is removed.
    pub(crate) fn close(&self) {
        self.acceptor.lock().take();
    }
}

/// Keeps this process's claim of one address alive and, if the first interface that was added with
/// this address listens, the listener. All interfaces with the address share the acceptor, since
/// several networks may use one address. The acceptor ends when the last interface releases it.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) addr: Ipv4Addr,
    closed: Arc<Semaphore>,
}

impl Acceptor {
    pub(crate) fn new(addr: Ipv4Addr) -> Acceptor {
        Acceptor {
            addr,
            closed: Arc::new(Semaphore::new(0)),
        }
    }

    /// Resolves when the acceptor ends.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let closed = self.closed.clone();
        async move {
            // The semaphore has no permits: this resolves, with an error, when it is closed.
            let _ = closed.acquire().await;
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.closed.close();
    }
}

/// Maximum number of bulk connections in each direction to a peer.
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
    async fn an_interface_is_found_by_its_address_and_refuses_unknown_partitions() {
        let table = CptTable::single_current();
        let ni = Ni::new(&NiSpec::new(NID), &LnetConfig::default(), &table).unwrap();
        assert_eq!(
            (ni.credits(CptId(0)).max(), ni.interface.as_deref()),
            (256, Some("lo"))
        );
        assert!(ni.is_on_link("127.1.2.3".parse().unwrap()) && !ni.is_on_link("10.0.0.1".parse().unwrap()));
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
