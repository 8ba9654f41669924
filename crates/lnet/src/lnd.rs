//! The driver that carries messages to other nodes (LND): `tcp` or, with the feature `sim`, the
//! driver of a simulated network.

use crate::link::Link;
use crate::message::Msg;
use crate::ni::Ni;
#[cfg(feature = "sim")]
use crate::sim::SimLnd;
use crate::tcp::{ListenSocket, Peer, Tcp};
use crate::{LnetError, NiSpec};
use std::collections::HashSet;
use std::sync::Arc;
use wire::Nid;

/// The driver of a node.
#[derive(Debug, Clone)]
pub(crate) enum Lnd {
    Tcp(Arc<Tcp>),
    #[cfg(feature = "sim")]
    Sim(Arc<SimLnd>),
}

impl Lnd {
    /// Prepares an interface: [`Tcp::open`].
    pub(crate) fn open(&self, ni: &Arc<Ni>, spec: &NiSpec) -> Result<Option<ListenSocket>, LnetError> {
        match self {
            Lnd::Tcp(tcp) => tcp.open(ni, spec.listen),
            #[cfg(feature = "sim")]
            Lnd::Sim(sim) => {
                sim.open(ni);
                Ok(None)
            }
        }
    }

    /// Accepts connections until the acceptor is closed.
    pub(crate) fn accept(&self, socket: ListenSocket) {
        match self {
            Lnd::Tcp(tcp) => tcp.accept(socket),
            #[cfg(feature = "sim")]
            Lnd::Sim(_) => drop(socket),
        }
    }

    /// Sends a message of this node to its destination; resolves when it has been sent.
    pub(crate) async fn send(&self, msg: Msg) -> Result<(), LnetError> {
        match self {
            Lnd::Tcp(tcp) => tcp.send(msg).await,
            #[cfg(feature = "sim")]
            Lnd::Sim(sim) => sim.send(msg).await,
        }
    }

    /// The state of the connections to `nid`, a peer on the network of `ni`.
    pub(crate) fn link(&self, nid: Nid, ni: &Ni) -> Link {
        match self {
            Lnd::Tcp(tcp) => tcp.link(nid, ni),
            #[cfg(feature = "sim")]
            Lnd::Sim(sim) => sim.link(nid),
        }
    }

    /// Disconnects and forgets the peers of a network after an interface was added or removed: the
    /// peers may now belong to another interface or partition.
    pub(crate) fn forget(&self, net: u32, why: &str) {
        self.forget_if(|nid| nid.net() == net, why);
    }

    /// Disconnects and forgets peers by their NIDs.
    pub(crate) fn forget_if(&self, is_forgotten: impl Fn(Nid) -> bool, why: &str) {
        match self {
            Lnd::Tcp(tcp) => tcp.forget_if(is_forgotten, why),
            #[cfg(feature = "sim")]
            Lnd::Sim(sim) => sim.forget_if(is_forgotten, why),
        }
    }

    /// Disconnects peers that `in_use` does not list and that exchanged no message since the
    /// previous call.
    pub(crate) fn close_unused(&self, in_use: &HashSet<Nid>) {
        match self {
            Lnd::Tcp(tcp) => tcp.close_unused(in_use),
            #[cfg(feature = "sim")]
            Lnd::Sim(sim) => sim.close_unused(in_use),
        }
    }

    /// The peers of the driver `tcp`.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        match self {
            Lnd::Tcp(tcp) => tcp.peers(),
            #[cfg(feature = "sim")]
            Lnd::Sim(_) => Vec::new(),
        }
    }

    /// Sends the queued messages for a limited time, and closes all connections.
    pub(crate) async fn finish(&self) {
        match self {
            Lnd::Tcp(tcp) => tcp.finish().await,
            #[cfg(feature = "sim")]
            Lnd::Sim(sim) => sim.finish(),
        }
    }
}
