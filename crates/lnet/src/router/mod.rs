//! Routers: the ways to other networks, whether they work, and this node as a router itself.
//!
//! A message for a network that this node is not on goes to a router on a network that it is on; its header keeps who sent it
//! first and for whom it is (guide 2.6). [`check`] asks the routers whether they live; [`buffers`] bounds what waits in a
//! node that is one. Forwarding itself is the driver's: `tcp::forward`.

pub(crate) mod buffers;
pub(crate) mod check;

use crate::RouteSpec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;
use wire::Nid;

/// One way to another network.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) spec: RouteSpec,
    pub(crate) gateway: Arc<Gateway>,
    /// Whether the router has said nothing against it.
    reaches: AtomicBool,
}

impl Route {
    pub(crate) fn new(spec: RouteSpec, gateway: Arc<Gateway>) -> Route {
        Route {
            spec,
            gateway,
            reaches: AtomicBool::new(true),
        }
    }

    /// Whether it is worth trying.
    pub(crate) fn is_alive(&self) -> bool {
        self.gateway.is_alive() && self.reaches.load(Ordering::Relaxed)
    }

    /// Better ways have less.
    pub(crate) fn rank(&self) -> (u32, u32) {
        (self.spec.priority, self.spec.hop.unwrap_or(1))
    }
}

/// A router, as far as this node knows it.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) nid: Nid,
    alive: AtomicBool,
    /// It has been heard of since it was last asked.
    heard: AtomicBool,
    wake: Notify,
}

impl Gateway {
    pub(crate) fn new(nid: Nid, alive: bool) -> Gateway {
        Gateway {
            nid,
            alive: AtomicBool::new(alive),
            heard: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// It does not take messages: others are used until it answers again.
    pub(crate) fn failed(&self, why: &dyn std::fmt::Display) {
        if self.alive.swap(false, Ordering::Relaxed) {
            tracing::warn!(router = %self.nid, "router is down: {why}");
            self.wake.notify_one();
        }
    }

    /// It has connected, or brought something: perhaps it is alive again.
    pub(crate) fn heard(&self) {
        if !self.is_alive() && !self.heard.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    fn set_alive(&self) {
        if !self.alive.swap(true, Ordering::Relaxed) {
            tracing::info!(router = %self.nid, "router is up");
        }
    }
}
