//! Changes a node's configuration at its start and later: networks, routes, forwarding, router
//! buffers, portal rotor.

use crate::nets::Nets;
use crate::ni::{Ni, NiSpec};
use crate::router::check;
use crate::router::{Gateway, Route};
use crate::{Lnet, LnetError, PortalRotor, RouteSpec, interfaces};
use std::sync::Arc;
use wire::Nid;

impl Lnet {
    /// Brings up the networks and routes of the configuration. With `listen`, the interfaces accept
    /// connections.
    ///
    /// # Errors
    ///
    /// An interface does not exist, or an interface or route cannot be added.
    pub fn configure(self: &Arc<Self>, listen: bool) -> Result<(), LnetError> {
        for mut spec in interfaces::resolve(&self.cfg.networks)? {
            spec.listen = listen;
            self.add_ni(&spec)?;
        }
        self.cfg
            .routes
            .iter()
            .try_for_each(|route| self.add_route(*route))
    }

    /// Adds an interface. With `spec.listen`, and unless `accept` is `none`, peers can connect to
    /// it.
    ///
    /// # Errors
    ///
    /// The NID is not of a TCP network or exists already, a route leads to its network, a partition
    /// does not exist, or the address or its port cannot be used.
    pub fn add_ni(self: &Arc<Self>, spec: &NiSpec) -> Result<(), LnetError> {
        if !spec.nid.is_tcp() {
            return Err(LnetError::NotTcp { nid: spec.nid });
        }
        let ni = Arc::new(Ni::new(spec, &self.cfg, &self.cpts)?);
        let net = spec.nid.net();
        let (shares_net, socket) = self.core.nets.change(|nets| {
            let shares_net = nets.nis.iter().any(|n| n.nid.net() == net);
            if nets.routes.iter().any(|r| r.spec.net == net) {
                let why = "a route leads to its network: delete the route first".into();
                return Err(LnetError::Ni { nid: spec.nid, why });
            }
            nets.add_ni(ni.clone())?;
            // The node keeps its former snapshot if opening the address fails.
            Ok((shares_net, self.lnd.open(&ni, spec)?))
        })?;
        if shares_net {
            self.lnd
                .forget(net, "this node has another interface on its network");
        }
        // Accept connections only after the change: a peer that connects needs the new snapshot.
        if let Some(socket) = socket {
            self.lnd.accept(socket);
        }
        Ok(())
    }

    /// Removes an interface. Closes its connections and all others of its network.
    ///
    /// # Errors
    ///
    /// The NID is not one of this node, or a route needs it.
    pub fn del_ni(&self, nid: Nid) -> Result<(), LnetError> {
        let ni = self.core.nets.change(|nets| {
            let index = nets.nis.iter().position(|ni| ni.nid == nid);
            let index = index.ok_or_else(|| LnetError::Ni {
                nid,
                why: "not a NID of this node".into(),
            })?;
            let ni = nets.nis.remove(index);
            let unreachable = |r: &&Arc<Route>| nets.ni_for(r.spec.gateway).is_none();
            match nets.routes.iter().find(unreachable) {
                None => Ok(ni),
                Some(route) => {
                    let why = format!(
                        "the only interface to the router {}: delete its routes first",
                        route.spec.gateway
                    );
                    Err(LnetError::Ni { nid, why })
                }
            }
        })?;
        ni.close();
        self.lnd.forget(nid.net(), "its interface was removed");
        Ok(())
    }

    /// Disconnects a peer and forgets its state. The next message to or from it makes it a new
    /// peer.
    pub fn del_peer(&self, nid: Nid) {
        self.lnd.forget_if(|peer| peer == nid, "it was deleted");
    }

    /// Adds a route to another network.
    ///
    /// # Errors
    ///
    /// The route exists already, or its router cannot be used.
    pub fn add_route(self: &Arc<Self>, spec: RouteSpec) -> Result<(), LnetError> {
        let new_gateway = self.core.nets.change(|nets| {
            let route = nets.routes.iter().find(|r| r.spec.gateway == spec.gateway);
            let known_gateway = route.map(|r| r.gateway.clone());
            let is_new = known_gateway.is_none();
            let gateway = known_gateway
                .unwrap_or_else(|| Arc::new(Gateway::new(spec.gateway, !self.cfg.check_routers_before_use)));
            nets.add_route(Arc::new(Route::new(spec, gateway.clone())))?;
            Ok(is_new.then_some(gateway))
        })?;
        if let Some(gateway) = new_gateway {
            let cpt = self.cpts.get(self.cpt_of(gateway.nid));
            self.tasks
                .spawn(cpt, check::monitor(Arc::downgrade(self), gateway));
        }
        Ok(())
    }

    /// Removes a route to another network.
    ///
    /// # Errors
    ///
    /// The route does not exist.
    pub fn del_route(&self, net: u32, gateway: Nid) -> Result<(), LnetError> {
        self.core.nets.change(|nets: &mut Nets| {
            let index = nets
                .routes
                .iter()
                .position(|r| r.spec.net == net && r.spec.gateway == gateway);
            let index = index.ok_or_else(|| LnetError::Route {
                gateway,
                why: "no such route to that network".into(),
            })?;
            nets.routes.remove(index);
            Ok(())
        })
    }

    /// The routes through one router.
    pub(crate) fn routes_via_gateway(&self, gateway: &Arc<Gateway>) -> Vec<Arc<Route>> {
        let nets = self.core.nets.snapshot();
        let uses_gateway = |r: &&Arc<Route>| Arc::ptr_eq(&r.gateway, gateway);
        nets.routes.iter().filter(uses_gateway).cloned().collect()
    }

    /// Whether a route through `router` leads to the network of `peer`.
    pub fn has_route_via(&self, peer: Nid, router: Nid) -> bool {
        self.core.nets.snapshot().leads_to(router, peer.net())
    }

    /// Switches forwarding between networks (the router function) on or off.
    pub fn set_forwarding(&self, on: bool) {
        let set_flag = |nets: &mut Nets| {
            nets.forwarding = on;
            Ok(())
        };
        // This change cannot fail.
        let _ = self.core.nets.change::<()>(set_flag);
    }

    /// Whether this node is a router.
    pub fn forwarding(&self) -> bool {
        self.core.nets.snapshot().forwarding
    }

    /// The configured numbers of a router's tiny, small and large buffers, over all partitions; 0:
    /// the default.
    pub fn router_buffers(&self) -> [u32; 3] {
        self.buffers.configured()
    }

    /// Sets the numbers that [`Lnet::router_buffers`] returns.
    pub fn set_router_buffers(&self, configured: [u32; 3]) {
        self.buffers.resize(configured);
    }

    /// The distribution of requests over the partitions of their service.
    pub fn portal_rotor(&self) -> PortalRotor {
        self.core.rotor.mode()
    }

    /// Sets the distribution of requests over the partitions of their service.
    pub fn set_portal_rotor(&self, mode: PortalRotor) {
        self.core.rotor.set(mode);
    }
}
