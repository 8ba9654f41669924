//! The file system under test, as captured: an MGS, an MDT and an OST on one node, an OST on
//! another.

pub(crate) use testkit::FSNAME;

use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use testkit::node::Node;
use testkit::{Cluster, OstNode, SettableClock};
use wire::{Nid, Time};

/// The port of all acceptors.
const PORT: u16 = 7990;
/// The servers' first time of day, seconds since 1970.
const START_TIME: i64 = 1_795_170_711;
/// The longest wait for a message. Long enough for a busy machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);

/// The address of a captured node in this run: a loopback address of this process.
pub(crate) fn local_nid(captured: Nid) -> Nid {
    let last = (u64::from(captured) & 0xff) as u8;
    let pid = std::process::id();
    Nid::tcp(
        Ipv4Addr::new(127, (pid % 250) as u8 + 1, (pid / 250 % 250) as u8 + 1, last),
        0,
    )
}

/// The captured NID of this number, `10.88.0.N@tcp`.
pub(crate) fn captured_nid(last: u8) -> Nid {
    Nid::tcp(Ipv4Addr::new(10, 88, 0, last), 0)
}

/// Starts a node at a captured NID's address.
pub(crate) async fn start_node(captured: Nid) -> Arc<Lnet> {
    let config = LnetConfig {
        accept_port: PORT,
        ..LnetConfig::default()
    };
    let lnet = Lnet::new(CptTable::single_current(), config);
    lnet.add_tcp(local_nid(captured), true).await.unwrap();
    lnet
}

/// The servers of a run.
pub(crate) struct Servers {
    /// The MGS, the MDT and the first OST.
    cluster: Cluster,
    second_ost: OstNode,
}

impl Servers {
    /// Starts the servers. Returns when the MDT can create files.
    pub(crate) async fn start() -> Servers {
        let clock = SettableClock::default();
        clock.set(Time::secs(START_TIME));
        let lnet = start_node(captured_nid(11)).await;
        let cluster = Cluster::start_with_clock(lnet, 1, clock).await;
        let second_ost = cluster.start_ost_on(start_node(captured_nid(12)).await, 1).await;
        let servers = Servers { cluster, second_ost };
        // Waits before a client mounts: the MDT uses an OST that joins later only after a delay.
        servers.osts_ready().await;
        servers
    }

    /// Waits until the MDT can put files on both OSTs.
    pub(crate) async fn osts_ready(&self) {
        let ready = self.cluster.mdt.osts_ready(2);
        tokio::time::timeout(WAIT_MAX, ready)
            .await
            .expect("the MDT has preallocated objects of both OSTs");
    }

    /// The node of the MGS, the MDT and the first OST.
    pub(crate) fn first_node(&self) -> &Arc<Node> {
        &self.cluster.node
    }

    /// Sets the servers' clock to a captured time, in microseconds since 1970.
    pub(crate) fn set_time(&self, us: u64) {
        self.cluster.clock.set(Time::secs((us / 1_000_000) as i64));
    }

    /// Stops the servers.
    pub(crate) async fn stop(self) {
        self.cluster.stop_mdt().await;
        self.second_ost.stop().await;
        self.cluster.stop().await;
    }
}
