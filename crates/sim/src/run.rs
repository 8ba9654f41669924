//! One run: a cluster, clients that make random calls, faults, and the checks.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use client::Cred;
use cpt::Bug;
use fastrand::Rng;
use lnet::sim::Fabric;
use osd::Stores;
use parking_lot::Mutex;
use wire::{Errno, Fid};

use crate::cluster::{Cluster, Host};
use crate::data::ClientId;
use crate::faults::{Faults, Plan, client_id};
use crate::history::{History, Outcome};
use crate::kernel::KernelModel;
use crate::names;
use crate::system;
use crate::verify::{Findings, Losses, verify};
use crate::weather::{Climate, Counts, Digest, SeededWeather};
use crate::workload::{DIRS, Workload, dir_name};

/// Number of object servers.
pub const OSTS: u32 = 2;
/// Number of clients.
pub const CLIENTS: u32 = 4;
/// Time after the end of all faults in which all calls must end.
const CALLS_MAX: Duration = Duration::from_secs(900);
/// Interval of the checks of locks.
const LOCKS_INTERVAL: Duration = Duration::from_millis(5);
/// Time of a call in a run without faults.
const CALM_CALL_MAX: Duration = Duration::from_secs(10);
/// Stack of a simulation's thread, bytes: unoptimised futures are large.
const STACK: usize = 64 << 20;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Determines all.
    pub seed: u64,
    /// Number of calls of each client.
    pub calls: u32,
    /// The faults.
    pub plan: Plan,
    /// A bug to plant.
    pub bug: Option<Bug>,
    /// Calls to leave out, by client and number.
    pub skipped: BTreeSet<(ClientId, u32)>,
}

impl Settings {
    /// The settings of a seed.
    pub fn of(seed: u64) -> Settings {
        Settings {
            seed,
            calls: 60,
            plan: Plan::of(seed),
            bug: None,
            skipped: BTreeSet::new(),
        }
    }
}

/// The result of a run.
pub struct Report {
    /// The settings.
    pub settings: Settings,
    /// The digest of all events.
    pub digest: u64,
    /// Broken promises.
    pub findings: Findings,
    /// Calls and faults as text.
    pub history: String,
    /// Virtual time.
    pub time: Duration,
    /// How deep the run went.
    pub counts: Arc<Counts>,
    /// Number of clients that a server evicted.
    pub evicted: usize,
}

/// Runs `work` on a fresh thread, in a runtime with virtual time, from a seed. Returns the panic if
/// it panics.
///
/// # Errors
///
/// The payload of the panic.
///
/// # Panics
///
/// If no thread can be started.
pub fn in_simulation<T, W>(seed: u64, work: W) -> Result<T, Box<dyn Any + Send>>
where
    T: Send + 'static,
    W: AsyncFnOnce() -> T + Send + 'static,
{
    let simulation = move || {
        system::begin(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs no resources");
        runtime.block_on(async {
            system::start_clock();
            work().await
        })
    };
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(simulation);
    thread.expect("a thread").join()
}

/// Runs a simulation.
pub fn run(settings: &Settings) -> Report {
    let own = settings.clone();
    let report = in_simulation(settings.seed, async move || {
        cpt::plant(own.bug);
        Simulation::new(own).run().await
    });
    report.unwrap_or_else(|panic| Report {
        settings: settings.clone(),
        digest: 0,
        findings: Findings {
            broken: vec![format!("panic: {}", panic_text(&*panic))],
            undecided: 0,
        },
        history: String::new(),
        time: Duration::ZERO,
        counts: Arc::default(),
        evicted: 0,
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "without a text".into())
}

struct Simulation {
    settings: Settings,
    cluster: Arc<Cluster>,
    history: History,
    digest: Digest,
    counts: Arc<Counts>,
    climate: Arc<Mutex<Climate>>,
    losses: Arc<Mutex<Losses>>,
    /// The kernels of the clients.
    kernels: BTreeMap<ClientId, Option<Arc<KernelModel>>>,
    rng: Rng,
    broken: Vec<String>,
}

impl Simulation {
    fn new(settings: Settings) -> Simulation {
        let mut rng = Rng::with_seed(settings.seed);
        let (digest, counts) = (Digest::default(), Arc::<Counts>::default());
        let climate = Arc::<Mutex<Climate>>::default();
        let weather = SeededWeather::new(rng.u64(..), climate.clone(), digest.clone(), counts.clone());
        let fabric = Fabric::new(Box::new(weather));
        tokio::spawn(fabric.clone().run());
        Simulation {
            settings,
            cluster: Arc::new(Cluster::new(rng.u64(..), fabric, OSTS, CLIENTS)),
            history: History::new(digest.clone()),
            digest,
            counts,
            climate,
            losses: Arc::default(),
            kernels: BTreeMap::new(),
            rng,
            broken: Vec::new(),
        }
    }

    async fn run(mut self) -> Report {
        let dirs = match self.prepare().await {
            Ok(dirs) => {
                self.work(&dirs).await;
                self.observe(&dirs).await;
                self.check_idle().await;
                dirs
            }
            Err(e) => {
                self.broken.push(e);
                Vec::new()
            }
        };
        let evicted = self.note_evictions();
        if evicted > 0 && self.settings.plan.is_calm() {
            self.broken
                .push(format!("{evicted} clients were evicted without a fault"));
        }
        self.stop().await;
        self.check_stores().await;
        let losses = self.losses.lock().clone();
        let mut findings = verify(&self.history.entries(), &losses, &dirs);
        findings.broken.splice(0..0, self.broken);
        Report {
            settings: self.settings.clone(),
            digest: self.digest.value(),
            findings,
            history: self.history.show(),
            time: system::elapsed(),
            counts: self.counts,
            evicted,
        }
    }

    /// Starts all nodes and makes the directories.
    async fn prepare(&mut self) -> Result<Vec<Fid>, String> {
        if self.settings.plan.clocks {
            for host in self.cluster.hosts() {
                system::set_skew(host.id, self.rng.i64(-300_000..300_000));
            }
        }
        for host in self.cluster.servers.iter().chain(&self.cluster.clients) {
            self.cluster.start(host).await?;
        }
        let first = &self.cluster.clients[0];
        let client = first.client().ok_or("the first client is not mounted")?;
        let mut dirs = Vec::new();
        for dir in 0..DIRS {
            let name = dir_name(dir);
            let cred = Cred::root();
            let made = client.mkdir(&cred, client.root(), name.as_bytes(), 0o755);
            let made = first.scope().run(made).await;
            dirs.push(made.map_err(|e| format!("mkdir {name}: {e}"))?.attr.fid);
        }
        let root = client.root();
        let synced = first.scope().run(async move { client.fsyncdir(root).await });
        synced.await.map_err(|e| format!("sync: {e}"))?;
        Ok(dirs)
    }

    /// Lets the clients work under faults, until all calls have ended.
    async fn work(&mut self, dirs: &[Fid]) {
        let mut tasks = Vec::new();
        for host in &self.cluster.clients {
            let Some(client) = host.client() else { continue };
            let (id, seed) = (client_id(host), self.rng.u64(..));
            // Half of the clients have a kernel.
            let kernel = (id % 2 == 0).then(|| KernelModel::attach(&client));
            let workload = Workload::new(
                id,
                client,
                kernel.clone(),
                dirs.to_vec(),
                self.history.clone(),
                seed,
            );
            self.kernels.insert(id, kernel);
            let (scope, calls) = (host.scope(), self.settings.calls);
            let skipped = self.settings.skipped.iter().filter(|(client, _)| *client == id);
            let skipped = skipped.map(|(_, call)| *call).collect();
            let work = scope.run(workload.run(calls, skipped));
            tasks.push(tokio::spawn(async move {
                tokio::select! {
                    biased;
                    () = work => {}
                    () = until_dead(&scope) => {}
                }
            }));
        }
        let mut faults = Faults {
            cluster: self.cluster.clone(),
            history: self.history.clone(),
            losses: self.losses.clone(),
            climate: self.climate.clone(),
            rng: self.rng.fork(),
            plan: self.settings.plan,
        };
        let mut all = std::pin::pin!(async {
            for task in &mut tasks {
                if let Err(e) = task.await {
                    return Some(format!("a client's calls: {e}"));
                }
            }
            None
        });
        let time = Duration::from_secs(self.rng.u64(10..60));
        let early = tokio::select! {
            biased;
            result = &mut all => Some(result),
            conflict = find_conflict(self.cluster.clone()) => Some(Some(conflict)),
            () = faults.run() => None,
            () = tokio::time::sleep(time) => None,
        };
        faults.heal().await;
        let result = match early {
            Some(result) => result,
            None => tokio::time::timeout(CALLS_MAX, all).await.unwrap_or_else(|_| {
                let open = self.history.entries();
                let dead = &self.losses.lock().clients;
                let open = open
                    .iter()
                    .filter(|e| e.outcome.is_none() && !dead.contains(&e.client));
                let open: Vec<_> = open.map(ToString::to_string).collect();
                Some(format!(
                    "calls did not end within {CALLS_MAX:?} after all faults:\n    {}",
                    open.join("\n    ")
                ))
            }),
        };
        self.broken.extend(result);
    }

    /// Reads everything with a client that lives.
    async fn observe(&mut self, dirs: &[Fid]) {
        let living = self.cluster.clients.iter().rfind(|host| host.is_up()).cloned();
        let Some((host, client)) = living.and_then(|host| Some((host.clone(), host.client()?))) else {
            return;
        };
        let id = client_id(&host);
        let kernel = self.kernels.get(&id).cloned().flatten();
        let observer = Workload::new(id, client, kernel, dirs.to_vec(), self.history.clone(), 0);
        let work = host.scope().run(async move { observer.observe().await });
        if tokio::time::timeout(CALLS_MAX, work).await.is_err() {
            self.broken.push("the last reads did not end".into());
        }
    }

    /// Records the clients that a server evicted; returns their number.
    fn note_evictions(&self) -> usize {
        let evicted: Vec<&Arc<Host>> = self.cluster.clients.iter().filter(|h| was_evicted(h)).collect();
        let ids = evicted.iter().map(|host| client_id(host));
        self.losses.lock().clients.extend(ids);
        evicted.len()
    }

    /// Checks that nothing is left of the clients' calls.
    async fn check_idle(&mut self) {
        // Longer than the pings that learn of commits.
        tokio::time::sleep(Duration::from_secs(60)).await;
        for host in self.cluster.hosts().filter(|host| host.is_up()) {
            let Some(node) = host.node() else { continue };
            let uncommitted = node.rpc().uncommitted_requests();
            if uncommitted > 0 {
                let what = format!("node {} keeps {uncommitted} requests as not committed", host.id);
                self.broken.push(what);
            }
            if node.osts().iter().any(|ost| !ost.grants_are_consistent()) {
                self.broken
                    .push(format!("node {}: the grants have another sum", host.id));
            }
        }
        for entry in self.history.entries() {
            let time = entry.at.1 - entry.at.0;
            if self.settings.plan.is_calm() && time > CALM_CALL_MAX {
                self.broken
                    .push(format!("a call took {time:?} without a fault: {entry}"));
            }
            if self.settings.plan.is_calm() && entry.outcome.as_ref().is_some_and(needs_fault) {
                self.broken.push(format!("a call failed without a fault: {entry}"));
            }
        }
    }

    /// Checks the stores after the stop.
    async fn check_stores(&mut self) {
        let mds = self.cluster.servers[0].clone();
        for host in &self.cluster.servers {
            for disk in host.disks() {
                self.broken.extend(disk.take_broken_promises());
            }
        }
        let checked = mds.scope().run(async move { check_names(&mds).await }).await;
        self.broken.extend(checked);
    }

    async fn stop(&mut self) {
        let hosts: Vec<_> = self
            .cluster
            .clients
            .iter()
            .chain(&self.cluster.servers)
            .cloned()
            .collect();
        for host in hosts {
            if host.is_up()
                && let Err(e) = self.cluster.stop(&host).await
            {
                self.broken.push(e);
            }
        }
    }
}

/// Whether only a fault explains an outcome.
fn needs_fault(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Name(names::Outcome::Unclear(_)) => true,
        // A file that was removed, or a lock of another client.
        Outcome::Failed(errno) => !matches!(*errno, Errno::ENOENT | Errno::ESTALE | Errno::EAGAIN),
        _ => false,
    }
}

/// Looks at the locks of all servers until two conflict.
async fn find_conflict(cluster: Arc<Cluster>) -> String {
    loop {
        tokio::time::sleep(LOCKS_INTERVAL).await;
        for host in cluster.servers.iter().filter(|host| host.is_up()) {
            let Some(node) = host.node() else { continue };
            let of_osts = node.osts().into_iter().flat_map(|ost| ost.granted_conflicts());
            let of_mdts = node.mdts().into_iter().flat_map(|mdt| mdt.granted_conflicts());
            if let Some(conflict) = of_mdts.chain(of_osts).next() {
                return format!("node {}: conflicting locks are granted: {conflict}", host.id);
            }
        }
    }
}

/// The findings of a check of the metadata target's store.
async fn check_names(mds: &Host) -> Vec<String> {
    let Some(disk) = mds.disks().nth(1) else {
        return Vec::new();
    };
    let index = match disk.stores().open_index().await {
        Ok(index) => index,
        Err(e) => return vec![format!("the store of the MDT does not open: {e}")],
    };
    let store = mdt::store::Store::new(index);
    match mdt::check::examine(&store, 0, &osd::check::Progress::default()) {
        Ok(found) => found
            .problems
            .iter()
            .map(|p| format!("{:?}", p.finding(&store)))
            .collect(),
        Err(e) => vec![format!("the store of the MDT cannot be checked: {e}")],
    }
}

async fn until_dead(scope: &Arc<cpt::NodeScope>) {
    while !scope.is_dead() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Whether a server evicted the client: its imports remember it.
fn was_evicted(host: &Host) -> bool {
    let Some(node) = host.node() else { return false };
    let states = node.registry().get("*.*.state");
    states.iter().any(|(_, text)| text.contains("EVICTED"))
}
