//! Routers: the routes to other networks, their state, and this node's buffers if it is a router.
//!
//! A message for a network that this node is not on goes to a router on one of this node's
//! networks; the header keeps the original sender and the final destination (docs/protocol.md,
//! "LNet"). [`check`] pings the routers. [`buffers`] limits the messages that a router holds. The
//! driver forwards messages: `tcp::forward`.

pub(crate) mod buffers;
pub(crate) mod check;

use crate::RouteSpec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use wire::Nid;

/// One route to another network.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) spec: RouteSpec,
    pub(crate) gateway: Arc<Gateway>,
    /// Whether the router's last ping reply allows the route; true before the first reply.
    reaches_net: AtomicBool,
}

impl Route {
    pub(crate) fn new(spec: RouteSpec, gateway: Arc<Gateway>) -> Route {
        Route {
            spec,
            gateway,
            reaches_net: AtomicBool::new(true),
        }
    }

    /// Whether the route can be used.
    pub(crate) fn is_alive(&self) -> bool {
        self.gateway.is_alive() && self.reaches_net.load(Ordering::Relaxed)
    }

    /// Order of preference: priority number, then hops (1 if not given); lower is better.
    pub(crate) fn rank(&self) -> (u32, u32) {
        (self.spec.priority, self.spec.hop.unwrap_or(1))
    }
}

/// A router as this node knows it.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) nid: Nid,
    alive: AtomicBool,
    /// Whether the router has connected or sent a message while it was down. The monitor clears the
    /// flag and checks the router.
    sign_of_life: AtomicBool,
    /// Wakes the monitor task of the router (`check::monitor`).
    wake: Notify,
}

impl Gateway {
    pub(crate) fn new(nid: Nid, alive: bool) -> Gateway {
        Gateway {
            nid,
            alive: AtomicBool::new(alive),
            sign_of_life: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Marks the router as down: this node uses other routers until a check finds this one up.
    pub(crate) fn mark_down(&self, why: &dyn std::fmt::Display) {
        if self.alive.swap(false, Ordering::Relaxed) {
            tracing::warn!(router = %self.nid, "router is down: {why}");
            self.wake.notify_one();
        }
    }

    /// Records that the router has connected or sent a message. If the router is down, the monitor
    /// checks it at once.
    pub(crate) fn note_sign_of_life(&self) {
        if !self.is_alive() && !self.sign_of_life.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    fn mark_up(&self) {
        if !self.alive.swap(true, Ordering::Relaxed) {
            tracing::info!(router = %self.nid, "router is up");
        }
    }
}
