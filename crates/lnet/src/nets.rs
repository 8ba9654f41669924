//! The networks of one node: its interfaces and routes. Senders and receivers read an immutable
//! snapshot without a lock; a change installs a new snapshot.

use crate::counters::Counters;
use crate::ni::Ni;
use crate::router::Route;
use crate::{LnetError, RouteSpec};
use arc_swap::{ArcSwap, Guard};
use cpt::nid_hash;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use wire::Nid;

/// A snapshot of the networks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nets {
    /// The interfaces, the primary one first.
    pub(crate) nis: Vec<Arc<Ni>>,
    pub(crate) routes: Vec<Arc<Route>>,
    /// Whether this node is a router.
    pub(crate) forwarding: bool,
}

/// The next hop of a message.
#[derive(Debug, Clone)]
pub(crate) enum NextHop {
    /// The destination is on a network of this node, reached through this interface.
    Direct(Arc<Ni>),
    /// A router, reached through this interface.
    Routed(Arc<Route>, Arc<Ni>),
}

impl Nets {
    /// The interface through which this node reaches a peer on one of its networks. Interfaces on
    /// the peer's link come first; among several, the hash of the peer's NID selects one.
    pub(crate) fn ni_for(&self, peer: Nid) -> Option<&Arc<Ni>> {
        let on_net = || self.nis.iter().filter(|ni| ni.nid.net() == peer.net());
        let first = on_net().next()?;
        if on_net().nth(1).is_none() {
            return Some(first);
        }
        let on_link: Vec<_> = on_net().filter(|ni| ni.is_on_link(peer.addr())).collect();
        let candidates = if on_link.is_empty() {
            on_net().collect()
        } else {
            on_link
        };
        candidates
            .get(nid_hash(peer.0) % candidates.len().max(1))
            .copied()
    }

    pub(crate) fn is_local(&self, nid: Nid) -> bool {
        nid.is_lo() || self.nis.iter().any(|ni| ni.nid == nid)
    }

    /// Whether `peer` is a router of any route.
    pub(crate) fn is_gateway(&self, peer: Nid) -> bool {
        self.routes.iter().any(|route| route.spec.gateway == peer)
    }

    /// Whether a route through `peer` leads to the network `net`.
    pub(crate) fn leads_to(&self, peer: Nid, net: u32) -> bool {
        self.routes
            .iter()
            .any(|route| route.spec.gateway == peer && route.spec.net == net)
    }

    /// The next hop to `to`, without the routers `excluded`. Of the usable routes, those with the
    /// lowest priority number and then the fewest hops are used in turn; `turn` is their counter.
    pub(crate) fn next_hop(
        &self,
        to: Nid,
        excluded: &[Nid],
        turn: &AtomicUsize,
    ) -> Result<NextHop, LnetError> {
        if let Some(ni) = self.ni_for(to) {
            return Ok(NextHop::Direct(ni.clone()));
        }
        let to_net = || self.routes.iter().filter(|r| r.spec.net == to.net());
        let usable = || to_net().filter(|r| r.is_alive() && !excluded.contains(&r.spec.gateway));
        let Some(best) = usable().map(|r| r.rank()).min() else {
            return Err(match to_net().next() {
                None => LnetError::NoRoute { peer: to },
                Some(_) => LnetError::NoRouter { peer: to },
            });
        };
        let candidates: Vec<_> = usable().filter(|r| r.rank() == best).collect();
        let index = match candidates.len() {
            1 => 0,
            count => turn.fetch_add(1, Ordering::Relaxed) % count,
        };
        let route = candidates.get(index).ok_or(LnetError::NoRouter { peer: to })?;
        let ni = self.ni_for(route.spec.gateway).ok_or(LnetError::NoRoute {
            peer: route.spec.gateway,
        })?;
        Ok(NextHop::Routed((*route).clone(), ni.clone()))
    }
}

/// The current snapshot and its changes.
#[derive(Debug, Default)]
pub(crate) struct CurrentNets {
    nets: ArcSwap<Nets>,
    /// Serializes changes.
    change: Mutex<()>,
    /// The number of changes.
    changes: AtomicU32,
    /// Selects among equally good routes.
    turn: AtomicUsize,
    /// Counters of messages from this node to itself, by partition.
    pub(crate) lo_counters: Vec<Counters>,
}

impl CurrentNets {
    pub(crate) fn new(cpts: usize, forwarding: bool) -> CurrentNets {
        CurrentNets {
            nets: ArcSwap::from_pointee(Nets {
                forwarding,
                ..Nets::default()
            }),
            lo_counters: (0..cpts.max(1)).map(|_| Counters::default()).collect(),
            ..CurrentNets::default()
        }
    }

    /// The current snapshot. Callers must not hold it across an await.
    pub(crate) fn snapshot(&self) -> Guard<Arc<Nets>> {
        self.nets.load()
    }

    /// The sequence number in ping replies: one more than the number of changes.
    pub(crate) fn sequence(&self) -> u32 {
        self.changes.load(Ordering::Relaxed).wrapping_add(1)
    }

    /// [`Nets::next_hop`] of the current snapshot.
    pub(crate) fn next_hop(&self, to: Nid, excluded: &[Nid]) -> Result<NextHop, LnetError> {
        self.snapshot().next_hop(to, excluded, &self.turn)
    }

    /// Replaces the snapshot with a changed copy; keeps the old one if `change` fails.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Nets) -> Result<T, LnetError>,
    ) -> Result<T, LnetError> {
        let _guard = self.change.lock();
        let mut next = Nets::clone(&self.nets.load());
        let done = change(&mut next)?;
        self.nets.store(Arc::new(next));
        self.changes.fetch_add(1, Ordering::Relaxed);
        Ok(done)
    }
}

impl Nets {
    pub(crate) fn add_ni(&mut self, ni: Arc<Ni>) -> Result<(), LnetError> {
        if self.is_local(ni.nid) {
            return Err(LnetError::Ni {
                nid: ni.nid,
                why: "already a NID of this node".into(),
            });
        }
        self.nis.push(ni);
        Ok(())
    }

    pub(crate) fn add_route(&mut self, route: Arc<Route>) -> Result<(), LnetError> {
        let RouteSpec { net, gateway, .. } = route.spec;
        let route_error = |why: &str| {
            Err(LnetError::Route {
                gateway,
                why: why.to_owned(),
            })
        };
        if self.nis.iter().any(|ni| ni.nid.net() == net) {
            return route_error("this node is directly on that network");
        }
        if self.is_local(gateway) {
            return route_error("the router is this node itself");
        }
        if self.ni_for(gateway).is_none() {
            return route_error("this node is not on the router's network");
        }
        if self.leads_to(gateway, net) {
            return route_error("the route already exists");
        }
        self.routes.push(route);
        Ok(())
    }
}
