//! The nodes of a simulated cluster: a metadata server with MGS and MDT0000, object servers,
//! further metadata servers, and clients. Nodes die and start again; their disks survive.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use cpt::{CptTable, NodeScope};
use lnet::sim::Fabric;
use lnet::{Lnet, LnetConfig};
use node::{Node, NodeConfig, RandomSource, SERVER_NIDS_PARAM, TargetSpec};
use osd::target::{TargetKind, TargetLabel};
use parking_lot::Mutex;
use wire::Nid;

use crate::store::{DiskConfig, SimDisk};

/// Longest time of a read of the MDT's index, in every second seed.
const INDEX_READ_MAX: Duration = Duration::from_millis(20);
/// The file system's name.
pub const FSNAME: &str = "sim";
/// How long a target waits for the MGS, and a mount for the servers.
const START_MAX: Duration = Duration::from_secs(300);

/// The largest number of CPU partitions of a server.
const CPTS_MAX: u64 = 3;

/// How a node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Its process is killed: its writes stay in the host's page cache, and the host resets its
    /// connections.
    Process,
    /// Its host loses power: disks lose data that is not synced, and its peers get no answer.
    PowerCut,
}

/// A target's disk and label.
struct Target {
    label: TargetLabel,
    disk: SimDisk,
}

/// A host: its disks, and the node that runs on it.
pub struct Host {
    /// Number of the host, which is also the id of its nodes' scopes.
    pub id: u32,
    /// Its NID.
    pub nid: Nid,
    targets: Vec<Target>,
    state: Mutex<HostState>,
}

struct HostState {
    /// Number of starts.
    boots: u64,
    scope: Arc<NodeScope>,
    node: Option<Arc<Node>>,
    client: Option<Arc<Client>>,
    /// Whether the last start has ended.
    started: bool,
}

/// The numbers of hosts of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// MDTs: the first one shares a host with the MGS, each other one has a host.
    pub mdts: u32,
    /// Object servers with an OST each.
    pub osts: u32,
    /// Clients.
    pub clients: u32,
}

impl Size {
    /// Number of servers.
    fn servers(self) -> u32 {
        self.mdts + self.osts
    }

    /// The ids of the clients' hosts.
    pub fn client_ids(self) -> Range<u32> {
        self.servers()..self.servers() + self.clients
    }
}

/// A cluster.
pub struct Cluster {
    seed: u64,
    /// The network.
    pub fabric: Arc<Fabric>,
    /// The servers: the one with the MGS and MDT0000, those with an OST, those with a further MDT.
    pub servers: Vec<Arc<Host>>,
    /// The clients.
    pub clients: Vec<Arc<Host>>,
}

fn nid(id: u32) -> Nid {
    // TEST-NET-1 (RFC 5737): no interface of this machine has such an address.
    Nid::tcp(Ipv4Addr::new(192, 0, 2, id as u8 + 1), 0)
}

/// Derives a number for one purpose from the seed of the run.
fn derive(seed: u64, purpose: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed.wrapping_add(purpose.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    rng.u64(..)
}

impl Host {
    fn new(id: u32, targets: Vec<Target>) -> Arc<Host> {
        Arc::new(Host {
            id,
            nid: nid(id),
            targets,
            state: Mutex::new(HostState {
                boots: 0,
                scope: NodeScope::new(id),
                node: None,
                client: None,
                started: false,
            }),
        })
    }

    /// The scope of the running node.
    pub fn scope(&self) -> Arc<NodeScope> {
        self.state.lock().scope.clone()
    }

    /// The mount, on a client that has mounted.
    pub fn client(&self) -> Option<Arc<Client>> {
        self.state.lock().client.clone()
    }

    /// The running node.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.state.lock().node.clone()
    }

    /// The disks.
    pub fn disks(&self) -> impl Iterator<Item = &SimDisk> {
        self.targets.iter().map(|target| &target.disk)
    }

    /// The name of each target, with its index and disk.
    pub(crate) fn targets(&self) -> impl Iterator<Item = (String, u32, &SimDisk)> {
        let targets = self.targets.iter();
        targets.map(|target| (target.label.svname(), target.label.index, &target.disk))
    }

    /// Whether the last start has ended. A start that its caller drops never ends.
    pub fn has_started(&self) -> bool {
        self.state.lock().started
    }

    /// Whether a node runs here.
    pub fn is_up(&self) -> bool {
        let state = self.state.lock();
        state.node.is_some() && !state.scope.is_dead()
    }
}

fn label(kind: TargetKind, index: u32, size: Size) -> TargetLabel {
    let mgsnode = match kind {
        TargetKind::Mgs => Vec::new(),
        _ => vec![nid(0)],
    };
    let fsname = match kind {
        TargetKind::Mgs => String::new(),
        _ => FSNAME.to_owned(),
    };
    let servers: Vec<String> = (1..size.servers()).map(|id| nid(id).to_string()).collect();
    let params = match kind {
        TargetKind::Mgs => vec![(SERVER_NIDS_PARAM.to_owned(), servers.join(" "))],
        _ => Vec::new(),
    };
    TargetLabel {
        format_version: osd::target::FORMAT_VERSION,
        kind,
        fsname,
        index,
        uuid: format!("{kind}-{index}"),
        mgsnode,
        service_nodes: Vec::new(),
        initialised: false,
        params,
    }
}

impl Cluster {
    /// Hosts without nodes. `ost_bytes`: the capacity of each OST's disk; `None`: the default.
    pub fn new(seed: u64, fabric: Arc<Fabric>, size: Size, ost_bytes: Option<u64>) -> Cluster {
        let target = |kind: TargetKind, index: u32| {
            let label = label(kind, index, size);
            let mut config = DiskConfig {
                name: label.svname(),
                ..DiskConfig::default()
            };
            if let Some(bytes) = ost_bytes.filter(|_| kind == TargetKind::Ost) {
                config.capacity = bytes;
            }
            if kind == TargetKind::Mdt && (seed / 12).is_multiple_of(2) {
                config.read_time_max = INDEX_READ_MAX;
            }
            let purpose = 1 + kind as u64 * 100 + u64::from(index);
            Target {
                label,
                disk: SimDisk::new(config, derive(seed, purpose)),
            }
        };
        let mds = Host::new(0, vec![target(TargetKind::Mgs, 0), target(TargetKind::Mdt, 0)]);
        let oss = (0..size.osts).map(|i| Host::new(1 + i, vec![target(TargetKind::Ost, i)]));
        let further_mds = (1..size.mdts).map(|i| Host::new(size.osts + i, vec![target(TargetKind::Mdt, i)]));
        Cluster {
            seed,
            fabric,
            servers: std::iter::once(mds).chain(oss).chain(further_mds).collect(),
            clients: size.client_ids().map(|id| Host::new(id, Vec::new())).collect(),
        }
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &Arc<Host>> {
        self.servers.iter().chain(&self.clients)
    }

    /// Starts a node on a host, with its targets or, on a client, a mount.
    ///
    /// # Errors
    ///
    /// A description of the failure.
    pub async fn start(&self, host: &Arc<Host>) -> Result<(), String> {
        let (scope, boots) = {
            let mut state = host.state.lock();
            state.boots += 1;
            state.started = false;
            state.scope = NodeScope::new(host.id);
            (state.scope.clone(), state.boots)
        };
        self.fabric.power_on(host.nid);
        let started = scope.run(self.start_node(host.clone(), boots));
        tokio::select! {
            biased;
            started = started => {
                host.state.lock().started = true;
                started
            }
            // A fault killed the node during its start: this is no failure of the start.
            () = scope.died() => Ok(()),
        }
    }

    /// The CPU partitions of a host: one on a client; on a server up to [`CPTS_MAX`], chosen by the
    /// seed.
    fn cpts(&self, host: &Host) -> Arc<CptTable> {
        let count = match host.targets.is_empty() {
            true => 1,
            false => 1 + derive(self.seed, 2_000_000 + u64::from(host.id)) % CPTS_MAX,
        };
        match count {
            1 => CptTable::single_current(),
            _ => CptTable::simulated(count as usize),
        }
    }

    async fn start_node(&self, host: Arc<Host>, boots: u64) -> Result<(), String> {
        let lnet = Lnet::simulated(
            self.cpts(&host),
            LnetConfig::default(),
            self.fabric.clone(),
            boots,
        );
        let show = |what: &str, e: &dyn std::fmt::Display| format!("{} cannot {what}: {e}", host.nid);
        lnet.add_tcp(host.nid, true)
            .await
            .map_err(|e| show("open its network", &e))?;
        let purpose = 1_000 + u64::from(host.id) * 100 + boots;
        let config = NodeConfig::new(RandomSource::seeded(derive(self.seed, purpose)));
        let node = Node::start(lnet, config).map_err(|e| show("start", &e))?;
        host.state.lock().node = Some(node.clone());
        if host.targets.is_empty() {
            return self.mount(&host, &node).await;
        }
        let specs = host.targets.iter().map(|target| TargetSpec {
            label: target.label.clone(),
            stores: Box::new(target.disk.stores()),
            files: None,
            token: None,
        });
        let served = node.serve(specs.collect(), START_MAX).await;
        served.map_err(|e| show("serve", &e))
    }

    async fn mount(&self, host: &Arc<Host>, node: &Arc<Node>) -> Result<(), String> {
        let options = node
            .mount_options(vec![nid(0)], FSNAME)
            .map_err(|e| e.to_string())?;
        let mounting = async {
            loop {
                match node.mount(options.clone()).await {
                    Ok(client) => return client,
                    Err(e) => tracing::debug!("client {}: {e}", host.id),
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        match tokio::time::timeout(START_MAX, mounting).await {
            Ok(client) => {
                host.state.lock().client = Some(client);
                Ok(())
            }
            Err(_) => Err(format!("client {} cannot mount within {START_MAX:?}", host.id)),
        }
    }

    /// Kills the node on a host.
    pub async fn kill(&self, host: &Arc<Host>, death: Death) {
        let scope = host.scope();
        scope.die();
        match death {
            Death::Process => self.fabric.end_process(host.nid),
            Death::PowerCut => self.fabric.power_off(host.nid),
        }
        for target in &host.targets {
            match death {
                Death::Process => target.disk.process_kill(),
                Death::PowerCut => target.disk.power_cut(),
            }
        }
        let parts = {
            let mut state = host.state.lock();
            (state.client.take(), state.node.take())
        };
        scope.abort();
        // Let the runtime drop the tasks.
        tokio::task::yield_now().await;
        drop(parts);
    }

    /// Stops the node on a host cleanly.
    ///
    /// # Errors
    ///
    /// The node's error as a text, or that it took too long.
    pub async fn stop(&self, host: &Arc<Host>) -> Result<(), String> {
        let (scope, node) = (host.scope(), host.node());
        let Some(node) = node else { return Ok(()) };
        let stopped = tokio::time::timeout(START_MAX, scope.run(async move { node.stop().await })).await;
        host.state.lock().client = None;
        host.state.lock().node = None;
        match stopped {
            Ok(result) => result.map_err(|e| format!("{} cannot stop: {e}", host.nid)),
            Err(_) => Err(format!("{} does not stop within {START_MAX:?}", host.nid)),
        }
    }
}
