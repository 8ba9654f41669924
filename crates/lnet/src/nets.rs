//! The networks of one node at one moment: its interfaces and its routes. Senders and receivers look at a snapshot, without
//! a lock; who changes something makes a new one.

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

/// A snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Nets {
    /// The primary one first.
    pub(crate) nis: Vec<Arc<Ni>>,
    pub(crate) routes: Vec<Arc<Route>>,
    /// Whether this node is a router.
    pub(crate) forwarding: bool,
}

/// How a message to a NID leaves.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// The NID is on a network of this node.
    Direct(Arc<Ni>),
    /// By a router, through this interface.
    Routed(Arc<Route>, Arc<Ni>),
}

impl Nets {
    /// The interface by which a peer is reached: of those on its network one whose link it is on, of several of those the one
    /// that its NID hashes to.
    pub(crate) fn ni_for(&self, peer: Nid) -> Option<&Arc<Ni>> {
        let on_net = || self.nis.iter().filter(|ni| ni.nid.net() == peer.net());
        let first = on_net().next()?;
        if on_net().nth(1).is_none() {
            return Some(first);
        }
        let near: Vec<_> = on_net().filter(|ni| ni.is_near(peer.addr())).collect();
        let among = if near.is_empty() { on_net().collect() } else { near };
        among.get(nid_hash(peer.0) % among.len().max(1)).copied()
    }

    pub(crate) fn is_local(&self, nid: Nid) -> bool {
        nid.is_lo() || self.nis.iter().any(|ni| ni.nid == nid)
    }

    /// Whether `peer` is a router of any network.
    pub(crate) fn is_gateway(&self, peer: Nid) -> bool {
        self.routes.iter().any(|route| route.spec.gateway == peer)
    }

    /// Whether `peer` is a router of this network.
    pub(crate) fn leads_to(&self, peer: Nid, net: u32) -> bool {
        self.routes
            .iter()
            .any(|route| route.spec.gateway == peer && route.spec.net == net)
    }

    /// The way to `to`, but not by `not`: of the routes that work those of least priority, of those the shortest, of those
    /// each in `turn`.
    pub(crate) fn way(&self, to: Nid, not: &[Nid], turn: &AtomicUsize) -> Result<Way, LnetError> {
        if let Some(ni) = self.ni_for(to) {
            return Ok(Way::Direct(ni.clone()));
        }
        let usable = || self.routes.iter().filter(|r| r.spec.net == to.net());
        let alive = || usable().filter(|r| r.is_alive() && !not.contains(&r.spec.gateway));
        let Some(best) = alive().map(|r| r.rank()).min() else {
            return Err(match usable().next() {
                None => LnetError::NoRoute { peer: to },
                Some(_) => LnetError::NoRouter { peer: to },
            });
        };
        let equal: Vec<_> = alive().filter(|r| r.rank() == best).collect();
        let n = match equal.len() {
            1 => 0,
            n => turn.fetch_add(1, Ordering::Relaxed) % n,
        };
        let route = equal.get(n).ok_or(LnetError::NoRouter { peer: to })?;
        let ni = self.ni_for(route.spec.gateway).ok_or(LnetError::NoRoute {
            peer: route.spec.gateway,
        })?;
        Ok(Way::Routed((*route).clone(), ni.clone()))
    }
}

/// The snapshot that holds now.
#[derive(Debug, Default)]
pub(crate) struct Current {
    nets: ArcSwap<Nets>,
    change: Mutex<()>,
    changes: AtomicU32,
    turn: AtomicUsize,
    /// What this node sends to itself, by partition.
    pub(crate) lo: Vec<Counters>,
}

impl Current {
    pub(crate) fn new(cpts: usize, forwarding: bool) -> Current {
        Current {
            nets: ArcSwap::from_pointee(Nets {
                forwarding,
                ..Nets::default()
            }),
            lo: (0..cpts.max(1)).map(|_| Counters::default()).collect(),
            ..Current::default()
        }
    }

    /// The snapshot. Not to be kept while waiting.
    pub(crate) fn now(&self) -> Guard<Arc<Nets>> {
        self.nets.load()
    }

    /// How often the interfaces have changed, for pings; never 0.
    pub(crate) fn sequence(&self) -> u32 {
        self.changes.load(Ordering::Relaxed).wrapping_add(1)
    }

    pub(crate) fn way(&self, to: Nid, not: &[Nid]) -> Result<Way, LnetError> {
        self.now().way(to, not, &self.turn)
    }

    /// Changes the networks, or nothing if `change` refuses.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut Nets) -> Result<T, LnetError>,
    ) -> Result<T, LnetError> {
        let _alone = self.change.lock();
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
                why: "is a NID of this node already".into(),
            });
        }
        self.nis.push(ni);
        Ok(())
    }

    pub(crate) fn add_route(&mut self, route: Arc<Route>) -> Result<(), LnetError> {
        let RouteSpec { net, gateway, .. } = route.spec;
        let bad = |why: &str| {
            Err(LnetError::Route {
                gateway,
                why: why.to_owned(),
            })
        };
        if self.nis.iter().any(|ni| ni.nid.net() == net) {
            return bad("this node is on that network itself");
        }
        if self.is_local(gateway) {
            return bad("that is this node");
        }
        if self.ni_for(gateway).is_none() {
            return bad("this node is not on the router's network");
        }
        if self.leads_to(gateway, net) {
            return bad("it is there already");
        }
        self.routes.push(route);
        Ok(())
    }
}
