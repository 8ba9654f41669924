//! Scenarios written by hand: a cluster in virtual time, whose network and nodes the scenario
//! controls. CONTRIBUTING.md has an example.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Cred, OpenFile, OpenFlags};
use lnet::sim::{Fabric, Fate, FrameInfo, Weather};
use parking_lot::Mutex;

use crate::cluster::{Cluster, Death, Host};
use crate::run::{CLIENTS, Failure, NEWCOMERS, OSTS, Settings, in_simulation};

/// Delivery time of a frame.
const LATENCY: Duration = Duration::from_millis(1);

/// Decides whether a frame is lost.
type Rule = Box<dyn FnMut(&FrameInfo) -> bool + Send>;

/// A network that loses the frames that a rule selects.
struct RuledWeather(Arc<Mutex<Option<Rule>>>);

impl Weather for RuledWeather {
    fn fate(&mut self, frame: &FrameInfo) -> Fate {
        match self.0.lock().as_mut().is_some_and(|rule| rule(frame)) {
            true => Fate::Lose,
            false => Fate::Deliver(LATENCY),
        }
    }

    fn arrived(&mut self, _: &FrameInfo) {}
}

/// A running cluster: metadata servers, two object servers and four clients, and a host for a
/// client that mounts later.
pub struct Scenario {
    /// The nodes and the network.
    pub cluster: Arc<Cluster>,
    rule: Arc<Mutex<Option<Rule>>>,
}

/// Starts a cluster, and runs a scenario on it.
///
/// # Panics
///
/// If the cluster does not start, or the scenario panics.
pub fn play<S, F>(seed: u64, scenario: S)
where
    S: FnOnce(Scenario) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    play_on(Settings::of(seed), scenario);
}

/// As [`play`], on a cluster with the seed and the number of MDTs in `settings`.
///
/// # Panics
///
/// As [`play`].
pub fn play_on<S, F>(settings: Settings, scenario: S)
where
    S: FnOnce(Scenario) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let seed = settings.seed;
    let played = in_simulation(seed, async move || {
        let rule = Arc::<Mutex<Option<Rule>>>::default();
        let fabric = Fabric::new(Box::new(RuledWeather(rule.clone())));
        tokio::spawn(fabric.clone().run());
        let cluster = Arc::new(Cluster::new(seed, fabric, settings.size(), None));
        let later = NEWCOMERS as usize;
        for host in cluster.hosts().take(cluster.hosts().count() - later) {
            let started = cluster.start(host).await;
            assert_eq!(started, Ok(()), "node {}", host.id);
        }
        scenario(Scenario { cluster, rule }).await;
    });
    match played {
        Ok(()) => {}
        Err(Failure::Panic(panic)) => std::panic::resume_unwind(panic),
        Err(stuck) => panic!("{stuck}"),
    }
}

impl Scenario {
    /// The host of the client with this index, from 0.
    pub fn host(&self, client: usize) -> &Arc<Host> {
        &self.cluster.clients[client]
    }

    /// Kills a server and starts it again.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub async fn restart(&self, server: usize, death: Death) {
        let host = &self.cluster.servers[server];
        self.cluster.kill(host, death).await;
        let started = self.cluster.start(host).await;
        assert_eq!(started, Ok(()), "server {server}");
    }

    /// Mounts on the host for a later client, which has the index [`CLIENTS`].
    ///
    /// # Panics
    ///
    /// If the mount fails.
    pub async fn mount_newcomer(&self) {
        let started = self.cluster.start(self.host(CLIENTS as usize)).await;
        assert_eq!(started, Ok(()), "the new client");
    }

    /// Runs a call on a client.
    ///
    /// # Panics
    ///
    /// If the client is not mounted.
    pub async fn on<T>(&self, client: usize, call: impl AsyncFnOnce(Arc<Client>) -> T) -> T {
        let host = self.host(client);
        let Some(mount) = host.client() else {
            panic!("client {client} is not mounted");
        };
        host.scope().run(call(mount)).await
    }

    /// Opens a file of the root directory on a client; creates it if it is missing.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub async fn open(&self, client: usize, name: &str) -> Arc<OpenFile> {
        let opened = self.on(client, async |mount| {
            let (cred, root) = (Cred::root(), mount.root());
            let created = mount.create(&cred, root, name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
            created.await.map(|(_, file)| file)
        });
        match opened.await {
            Ok(file) => file,
            Err(errno) => panic!("open of {name} on client {client}: {errno}"),
        }
    }

    /// Cuts or restores the network between a client and all servers.
    pub fn isolate(&self, client: usize, isolated: bool) {
        self.block(client, &self.cluster.servers, isolated);
    }

    /// Closes or opens the ways between a client and the object servers.
    pub fn isolate_from_osts(&self, client: usize, isolated: bool) {
        self.block(client, &self.cluster.servers[1..=OSTS as usize], isolated);
    }

    /// Closes or opens the ways between a client and the metadata server.
    pub fn isolate_from_mds(&self, client: usize, isolated: bool) {
        self.block(client, &self.cluster.servers[..1], isolated);
    }

    fn block(&self, client: usize, servers: &[Arc<Host>], isolated: bool) {
        let nid = self.host(client).nid;
        for server in servers {
            self.cluster.fabric.block(nid, server.nid, isolated);
            self.cluster.fabric.block(server.nid, nid, isolated);
        }
    }

    /// Makes the network lose the frames for which `rule` returns true.
    pub fn lose(&self, rule: impl FnMut(&FrameInfo) -> bool + Send + 'static) {
        *self.rule.lock() = Some(Box::new(rule));
    }
}
