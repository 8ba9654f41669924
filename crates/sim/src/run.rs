//! One run: a cluster, clients that make random calls, faults, and the checks.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use cpt::Bug;
use fastrand::Rng;
use lnet::sim::Fabric;
use parking_lot::Mutex;
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{Errno, Fid, LovCompMdEntryV1, LuExtent};

use crate::checks::{
    check_file_system, find_conflict, find_leftovers, lacks_space, needs_fault, was_evicted,
};
use crate::cluster::{Cluster, Host, Size};
use crate::data::ClientId;
use crate::faults::{Faults, Plan, client_id};
use crate::history::History;
use crate::kernel::KernelModel;
use crate::memory;
use crate::newcomer::{Arrival, Newcomer};
use crate::system;
use crate::verify::{Findings, Losses, verify};
use crate::watchdog::Progress;
use crate::weather::{Counts, Digest, NetworkFaultRates, SeededWeather};
use crate::workload::{DIRS, Workload, block_of, dir_name, layout_of_dir};

/// Number of object servers.
pub const OSTS: u32 = 2;
/// Number of clients.
pub const CLIENTS: u32 = 4;
/// Number of clients that first mount while a server recovers.
pub const NEWCOMERS: u32 = 1;
/// Time after the end of all faults in which all calls must end.
const CALLS_MAX: Duration = Duration::from_secs(900);
/// Maximum time of a call in a run without faults.
const CALM_CALL_MAX: Duration = Duration::from_secs(10);
/// The capacity of a small disk, bytes.
const SMALL_DISK: std::ops::Range<u64> = 1 << 20..3 << 20;
/// Real time without an event after which a simulation counts as stuck.
pub const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Memory that a run may use, bytes. Much more than any run needs, and much less than a cache
/// without a bound would take.
const MEMORY_MAX: usize = 256 << 20;
/// Stack of a simulation's thread, bytes: unoptimised futures are large.
const STACK: usize = 64 << 20;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Determines all random choices of the run.
    pub seed: u64,
    /// Number of MDTs.
    pub mdts: u32,
    /// Whether files have their first 64 KiB on the MDT: all that the workload writes.
    pub data_on_mdt: bool,
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
            mdts: 1,
            data_on_mdt: false,
            calls: 60,
            plan: Plan::of(seed),
            bug: None,
            skipped: BTreeSet::new(),
        }
    }

    /// The size of the cluster.
    pub fn size(&self) -> Size {
        Size {
            mdts: self.mdts,
            osts: OSTS,
            clients: CLIENTS + NEWCOMERS,
        }
    }
}

/// `lfs setstripe -E 64K -L mdt -E -1`.
pub fn layout_on_mdt() -> Bytes {
    const END: u32 = 64 << 10;
    let component = |e_start, e_end, plain| {
        let entry = LovCompMdEntryV1 {
            lcme_extent: LuExtent { e_start, e_end },
            ..Default::default()
        };
        (entry, plain)
    };
    let components = vec![
        component(0, END.into(), PlainLayout::request_on_mdt(END)),
        component(END.into(), CompositeLayout::EOF, PlainLayout::request(0, 0, None)),
    ];
    LovLayout::Composite(CompositeLayout::new(components)).build()
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
    /// Counts of frames and lock callbacks.
    pub counts: Arc<Counts>,
    /// Number of clients that a server evicted.
    pub evicted: usize,
    /// The most memory that the cluster and its history used, bytes.
    pub memory: usize,
    /// Whether the run had no event for [`STUCK_AFTER`] of real time.
    pub is_stuck: bool,
}

/// The end of a simulation without a result.
#[derive(Debug)]
pub enum Failure {
    /// It panicked.
    Panic(Box<dyn Any + Send>),
    /// It had no event for too long in real time; the last event.
    Stuck(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Panic(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                write!(f, "panic: {}", text.unwrap_or("without a text"))
            }
            Failure::Stuck(last) => write!(
                f,
                "a thread blocks, or loops without an await point; the last event: {last}"
            ),
        }
    }
}

/// Runs `work` on a fresh thread, in a runtime with virtual time, from a seed.
///
/// # Errors
///
/// The simulation panics, or has no event for [`STUCK_AFTER`] of real time. In the latter case its
/// thread keeps running.
///
/// # Panics
///
/// If no thread can be started.
pub fn in_simulation<T, W>(seed: u64, work: W) -> Result<T, Failure>
where
    T: Send + 'static,
    W: AsyncFnOnce() -> T + Send + 'static,
{
    in_simulation_within(STUCK_AFTER, seed, work)
}

/// As [`in_simulation`], with another limit of real time without an event.
///
/// # Errors
///
/// As [`in_simulation`].
///
/// # Panics
///
/// If no thread can be started.
pub fn in_simulation_within<T, W>(stuck_after: Duration, seed: u64, work: W) -> Result<T, Failure>
where
    T: Send + 'static,
    W: AsyncFnOnce() -> T + Send + 'static,
{
    let progress = Arc::<Progress>::default();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let own = progress.clone();
    let simulation = move || {
        // Dropped at the end of the thread's work, also by a panic.
        let _ended = ended;
        own.attach();
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
    let thread = thread.expect("a thread");
    let mut events = None;
    while end.recv_timeout(stuck_after) == Err(RecvTimeoutError::Timeout) {
        let now = Some(progress.events());
        if events == now {
            return Err(Failure::Stuck(progress.last()));
        }
        events = now;
    }
    thread.join().map_err(Failure::Panic)
}

/// Runs a simulation.
pub fn run(settings: &Settings) -> Report {
    let own = settings.clone();
    let result = in_simulation(settings.seed, async move || {
        cpt::plant(own.bug);
        Simulation::new(own).run().await
    });
    result.unwrap_or_else(|failure| Report {
        settings: settings.clone(),
        digest: 0,
        findings: Findings {
            broken: vec![failure.to_string()],
            undecided: 0,
        },
        history: String::new(),
        time: Duration::ZERO,
        counts: Arc::default(),
        evicted: 0,
        memory: 0,
        is_stuck: matches!(failure, Failure::Stuck(_)),
    })
}

struct Simulation {
    settings: Settings,
    cluster: Arc<Cluster>,
    history: History,
    digest: Digest,
    counts: Arc<Counts>,
    climate: Arc<Mutex<NetworkFaultRates>>,
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
        let climate = Arc::<Mutex<NetworkFaultRates>>::default();
        let weather = SeededWeather::new(rng.u64(..), climate.clone(), digest.clone(), counts.clone());
        let fabric = Fabric::new(Box::new(weather));
        tokio::spawn(fabric.clone().run());
        let seed = rng.u64(..);
        let small = settings.plan.small_disks;
        let ost_bytes = small.then(|| rng.u64(SMALL_DISK));
        let cluster = Cluster::new(seed, fabric, settings.size(), ost_bytes);
        Simulation {
            settings,
            cluster: Arc::new(cluster),
            history: History::new(digest.clone()),
            digest,
            counts,
            climate,
            losses: Arc::new(Mutex::new(Losses {
                small_disks: small,
                ..Losses::default()
            })),
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
                self.check_leftovers_and_delays().await;
                self.check_service().await;
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
        let memory = usize::try_from(memory::peak()).unwrap_or_default();
        if memory > MEMORY_MAX {
            self.broken.push(format!("the run used {} MiB", memory >> 20));
        }
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
            memory,
            is_stuck: false,
        }
    }

    /// Starts all nodes and makes the directories.
    async fn prepare(&mut self) -> Result<Vec<Fid>, String> {
        if self.settings.plan.clocks {
            for host in self.cluster.hosts() {
                system::set_skew(host.id, self.rng.i64(-300_000..300_000));
            }
        }
        let clients = self.cluster.clients.iter().take(CLIENTS as usize);
        for host in self.cluster.servers.iter().chain(clients) {
            self.cluster.start(host).await?;
        }
        let first = &self.cluster.clients[0];
        let client = first.client().ok_or("the first client is not mounted")?;
        let mut dirs = Vec::new();
        for dir in 0..DIRS {
            let name = dir_name(dir);
            let cred = Cred::root();
            let layout = layout_of_dir(dir, self.settings.mdts);
            let made = client.mkdir_with(&cred, client.root(), name.as_bytes(), 0o755, layout);
            let made = first.scope().run(made).await;
            let fid = made.map_err(|e| format!("mkdir {name}: {e}"))?.attr.fid;
            if self.settings.data_on_mdt {
                let set = client.setstripe(&cred, fid, layout_on_mdt());
                let set = first.scope().run(set).await;
                set.map_err(|e| format!("setstripe {name}: {e}"))?;
            }
            dirs.push(fid);
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
            // Half of the clients have a modelled kernel.
            let kernel = (id % 2 == 0).then(|| KernelModel::attach(&client));
            let workload = Workload::new(
                id,
                client,
                kernel.clone(),
                (dirs.to_vec(), self.settings.mdts),
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
        let (arrival, signal) = Arrival::new(self.settings.seed);
        let newcomer = self.cluster.clients.last().map(|host| Newcomer {
            host: host.clone(),
            cluster: self.cluster.clone(),
            dirs: dirs.to_vec(),
            history: self.history.clone(),
            settings: self.settings.clone(),
        });
        let newcomer = newcomer.map(|newcomer| tokio::spawn(newcomer.run(signal)));
        let mut faults = Faults {
            arrival,
            cluster: self.cluster.clone(),
            history: self.history.clone(),
            losses: self.losses.clone(),
            climate: self.climate.clone(),
            rng: self.rng.fork(),
            plan: self.settings.plan,
            data_on_mdt: self.settings.data_on_mdt,
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
        faults.arrival.cancel();
        let rest = async {
            let broken = match early {
                Some(result) => result,
                None => all.await,
            };
            match newcomer {
                Some(newcomer) if broken.is_none() => {
                    let failed = newcomer.await.err();
                    failed.map(|e| format!("the newcomer's calls: {e}"))
                }
                _ => broken,
            }
        };
        let result = tokio::time::timeout(CALLS_MAX, rest).await;
        let result = result.unwrap_or_else(|_| Some(self.describe_open_calls()));
        self.broken.extend(result);
    }

    /// The calls that have not ended, of clients that live.
    fn describe_open_calls(&self) -> String {
        let open = self.history.entries();
        let dead = &self.losses.lock().clients;
        let open = open
            .iter()
            .filter(|e| e.outcome.is_none() && !dead.contains(&e.client));
        let open: Vec<_> = open.map(ToString::to_string).collect();
        format!(
            "calls did not end within {CALLS_MAX:?} after all faults:\n    {}",
            open.join("\n    ")
        )
    }

    /// Reads everything with a client that lives.
    async fn observe(&mut self, dirs: &[Fid]) {
        let Some((host, client)) = self.observer() else {
            return;
        };
        let id = client_id(&host);
        let kernel = self.kernels.get(&id).cloned().flatten();
        let observer = Workload::new(id, client, kernel, (dirs.to_vec(), 1), self.history.clone(), 0);
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

    /// Checks the nodes after all calls: no uncommitted requests, dirty data or surplus locks are
    /// left, and the totals of grants are right. In a calm run also checks that no call was slow or
    /// failed.
    async fn check_leftovers_and_delays(&mut self) {
        // Longer than the interval of the pings whose replies tell clients about commits.
        tokio::time::sleep(Duration::from_secs(60)).await;
        for host in self.cluster.hosts().filter(|host| host.is_up()) {
            let Some(node) = host.node() else { continue };
            let uncommitted = node.rpc().uncommitted_requests();
            if uncommitted > 0 && !self.settings.plan.small_disks {
                let what = format!("node {} keeps {uncommitted} requests as not committed", host.id);
                self.broken.push(what);
            }
            self.broken.extend(find_leftovers(host));
            if node.osts().iter().any(|ost| !ost.grants_are_consistent()) {
                self.broken.push(format!(
                    "node {}: the total of the grants is not the sum of the clients' grants",
                    host.id
                ));
            }
        }
        for entry in self.history.entries() {
            let time = entry.at.1 - entry.at.0;
            if self.settings.plan.is_calm() && time > CALM_CALL_MAX {
                self.broken
                    .push(format!("a call took {time:?} without a fault: {entry}"));
            }
            let is_full = self.settings.plan.small_disks && lacks_space(entry.outcome.as_ref());
            if self.settings.plan.is_calm() && !is_full && entry.outcome.as_ref().is_some_and(needs_fault) {
                self.broken
                    .push(format!("a call failed without a fault: {entry}"));
            }
        }
    }

    /// Checks that the servers work after all faults: a new file on each OST takes data.
    async fn check_service(&mut self) {
        let Some((host, client)) = self.observer() else {
            return;
        };
        let work = host.scope().run(async move {
            let (cred, root) = (Cred::root(), client.root());
            for number in 0..2 * OSTS {
                let name = format!("probe{number}");
                let flags = OpenFlags::READ_WRITE;
                let (_, file) = client.create(&cred, root, name.as_bytes(), 0o600, flags).await?;
                client.write(&file, 0, block_of(1)).await?;
                client.fsync(&file, false).await?;
                client.release(&file).await?;
                client.unlink(&cred, root, name.as_bytes()).await?;
            }
            Ok::<(), Errno>(())
        });
        match tokio::time::timeout(CALLS_MAX, work).await {
            Ok(Ok(())) => {}
            Ok(Err(Errno::ENOSPC)) if self.settings.plan.small_disks => {}
            Ok(Err(errno)) => self.broken.push(format!(
                "a new file cannot be created and written after all faults: {errno}"
            )),
            Err(_) => self
                .broken
                .push("creating new files does not finish after all faults".into()),
        }
    }

    /// The last client that lives, and its mount.
    fn observer(&self) -> Option<(Arc<Host>, Arc<Client>)> {
        let host = self.cluster.clients.iter().rfind(|host| host.is_up())?.clone();
        let client = host.client()?;
        Some((host, client))
    }

    /// Checks the stores after the stop.
    async fn check_stores(&mut self) {
        for host in &self.cluster.servers {
            for disk in host.disks() {
                self.broken.extend(disk.take_broken_promises());
            }
        }
        let cluster = self.cluster.clone();
        let mds = cluster.servers[0].clone();
        let checked = mds.scope().run(async move { check_file_system(&cluster).await });
        match checked.await {
            Ok(found) => {
                let texts = found
                    .into_iter()
                    .map(|(target, finding)| format!("{target}: {finding:?}"));
                self.broken.extend(texts);
            }
            Err(e) => self.broken.push(format!("the stores cannot be checked: {e}")),
        }
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

async fn until_dead(scope: &Arc<cpt::NodeScope>) {
    while !scope.is_dead() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
