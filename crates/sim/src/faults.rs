//! The faults of a run.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;

use crate::cluster::{Cluster, Death, Host};
use crate::data::ClientId;
use crate::history::History;
use crate::newcomer::{Arrival, Missing};
use crate::store::SimDisk;
use crate::verify::Losses;
use crate::weather::NetworkFaultRates;

/// The kinds of faults of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Frames are lost, delayed, duplicated and reordered, and connections break.
    pub storms: bool,
    /// The network between two hosts is cut, in one direction or both.
    pub partitions: bool,
    /// Clients freeze: their tasks do not run for a while.
    pub freezes: bool,
    /// Clients die.
    pub client_deaths: bool,
    /// The metadata server dies and starts again.
    pub mds_deaths: bool,
    /// Object servers die and start again.
    pub oss_deaths: bool,
    /// Syncs take seconds.
    pub slow_disks: bool,
    /// The disks of the OSTs are so small that the calls fill them.
    pub small_disks: bool,
    /// Changes of objects fail for a while, or other users of a disk fill it.
    pub disk_faults: bool,
    /// Syncs of a disk fail; its server loses power some time later.
    pub disk_deaths: bool,
    /// The clocks of the nodes differ.
    pub clocks: bool,
}

impl Plan {
    /// Whether no fault of this plan delays a call or makes a client lose its locks.
    pub fn is_calm(self) -> bool {
        Plan {
            clocks: false,
            small_disks: false,
            ..self
        } == Plan::default()
    }
}

impl Plan {
    /// The plan of a seed: two of twelve runs have many kinds of faults, the others at most two.
    pub fn of(seed: u64) -> Plan {
        let none = Plan::default();
        let all = Plan {
            storms: true,
            partitions: true,
            freezes: true,
            client_deaths: true,
            mds_deaths: true,
            oss_deaths: true,
            slow_disks: true,
            clocks: true,
            ..none
        };
        match seed % 12 {
            0 => Plan { clocks: true, ..none },
            1 => Plan { storms: true, ..none },
            2 => Plan {
                partitions: true,
                ..none
            },
            3 => Plan {
                client_deaths: true,
                slow_disks: true,
                ..none
            },
            4 => Plan {
                freezes: true,
                storms: true,
                ..none
            },
            5 => Plan {
                mds_deaths: true,
                ..none
            },
            6 => Plan {
                oss_deaths: true,
                ..none
            },
            7 => all,
            8 => Plan {
                small_disks: true,
                ..none
            },
            9 => Plan {
                disk_faults: true,
                ..none
            },
            10 => Plan {
                disk_deaths: true,
                ..none
            },
            _ => Plan {
                disk_faults: true,
                disk_deaths: true,
                ..all
            },
        }
    }
}

/// Injects faults into a cluster.
pub struct Faults {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// Where the faults are recorded.
    pub history: History,
    /// The faults that weaken promises, for the checks.
    pub losses: Arc<Mutex<Losses>>,
    /// The climate of the network.
    pub climate: Arc<Mutex<NetworkFaultRates>>,
    /// Makes all random choices.
    pub rng: Rng,
    /// The kinds of faults.
    pub plan: Plan,
    /// Whether the metadata server has the data of files.
    pub data_on_mdt: bool,
    /// The arrival of a new client during a recovery.
    pub arrival: Arrival,
}

/// Maximum rate of each kind of network fault in a storm, frames per million.
const SHARE_MAX: u32 = 60_000;
/// Maximum number of polls of a node's tasks until the node dies.
const STEPS_MAX: u64 = 3_000;
/// Maximum space that other users leave free on a full disk, bytes.
const SPACE_LEFT_MAX: u64 = 2 << 20;
/// Time after which a node is killed even if its tasks are not polled so often.
const DEATH_MAX: Duration = Duration::from_secs(5);

impl Faults {
    /// Injects faults until the caller drops the future. [`Faults::heal`] then ends the active
    /// faults.
    pub async fn run(&mut self) {
        loop {
            let pause = Duration::from_millis(self.rng.u64(50..2_000));
            tokio::time::sleep(pause).await;
            let kinds: [(bool, u8); 9] = [
                (self.plan.storms, 0),
                (self.plan.partitions, 1),
                (self.plan.freezes, 2),
                (self.plan.client_deaths, 3),
                (self.plan.mds_deaths, 4),
                (self.plan.oss_deaths, 5),
                (self.plan.slow_disks, 6),
                (self.plan.disk_faults, 7),
                (self.plan.disk_deaths, 8),
            ];
            let planned: Vec<u8> = kinds
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, kind)| *kind)
                .collect();
            match self.rng.choice(&planned).copied() {
                Some(0) => self.storm().await,
                Some(1) => self.partition().await,
                Some(2) => self.freeze().await,
                Some(3) => self.client_death().await,
                Some(4) => self.server_death(0).await,
                Some(5) => {
                    let oss = self.rng.usize(1..self.cluster.servers.len());
                    self.server_death(oss).await;
                }
                Some(6) => self.slow_disk().await,
                Some(7) => match self.rng.bool() {
                    true => self.failing_changes().await,
                    false => self.full_disk().await,
                },
                Some(_) => self.disk_death().await,
                None => {}
            }
        }
    }

    fn seconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.u64(range.start * 1000..range.end * 1000))
    }

    async fn storm(&mut self) {
        let mut share = || match self.rng.bool() {
            true => self.rng.u32(0..SHARE_MAX),
            false => 0,
        };
        let climate = NetworkFaultRates {
            lost: share(),
            doubled: share(),
            overtaken: share(),
            broken: share(),
            broken_after: share(),
            late: share(),
        };
        self.history.note(format!("{climate:?}"));
        *self.climate.lock() = climate;
        let time = self.seconds(1..20);
        tokio::time::sleep(time).await;
        *self.climate.lock() = NetworkFaultRates::default();
        self.history.note("the storm ends");
    }

    async fn partition(&mut self) {
        let hosts: Vec<Arc<Host>> = self.cluster.hosts().cloned().collect();
        let client = self.rng.choice(&self.cluster.clients).cloned();
        let other = self.rng.choice(&hosts).cloned();
        let (Some(a), Some(b)) = (client, other) else {
            return;
        };
        let ways: Vec<_> = match self.rng.u8(0..3) {
            0 => vec![(a.nid, b.nid)],
            1 => vec![(b.nid, a.nid)],
            _ => vec![(a.nid, b.nid), (b.nid, a.nid)],
        };
        self.history.note(format!("no way {ways:?}"));
        for (from, to) in &ways {
            self.cluster.fabric.block(*from, *to, true);
        }
        let time = match self.rng.bool() {
            true => self.seconds(1..9),
            false => self.seconds(9..60),
        };
        tokio::time::sleep(time).await;
        for (from, to) in ways {
            self.cluster.fabric.block(from, to, false);
        }
        self.history.note("network restored");
    }

    async fn freeze(&mut self) {
        let Some(host) = self.rng.choice(&self.cluster.clients).cloned() else {
            return;
        };
        self.history.note(format!("client {} stands still", host.id));
        host.scope().freeze();
        let time = match self.rng.u8(0..4) {
            0 => self.seconds(60..150),
            _ => self.seconds(1..15),
        };
        tokio::time::sleep(time).await;
        host.scope().thaw();
        self.history.note(format!("client {} runs", host.id));
    }

    fn death(&mut self) -> Death {
        match self.rng.bool() {
            true => Death::Process,
            false => Death::PowerCut,
        }
    }

    /// Kills a node after a random number of polls of its tasks.
    async fn kill(&mut self, host: &Arc<Host>) {
        let death = self.death();
        let scope = host.scope();
        scope.die_at(scope.polls() + self.rng.u64(1..STEPS_MAX));
        // A timeout is no error: the node is idle, and is killed below.
        let _ = tokio::time::timeout(DEATH_MAX, scope.died()).await;
        self.finish_death(host, death).await;
    }

    async fn finish_death(&self, host: &Arc<Host>, death: Death) {
        host.scope().die();
        let order = self.history.note(format!("node {} dies: {death:?}", host.id));
        {
            let mut losses = self.losses.lock();
            match self
                .cluster
                .servers
                .iter()
                .position(|server| Arc::ptr_eq(server, host))
            {
                None => drop(losses.clients.insert(client_id(host))),
                Some(0) => {
                    losses.mds.push(order);
                    if self.data_on_mdt {
                        losses.oss.push(order);
                    }
                }
                Some(_) => losses.oss.push(order),
            }
        }
        self.cluster.kill(host, death).await;
    }

    async fn client_death(&mut self) {
        let living: Vec<_> = self.cluster.clients.iter().filter(|host| host.is_up()).collect();
        // Keep two clients alive, so that calls can conflict.
        if living.len() <= 2 {
            return;
        }
        let Some(host) = self.rng.choice(living).cloned() else {
            return;
        };
        self.kill(&host).await;
    }

    async fn server_death(&mut self, server: usize) {
        let host = self.cluster.servers[server].clone();
        self.kill(&host).await;
        let time = self.seconds(0..10);
        tokio::time::sleep(time).await;
        let missing = self.arrival.choose_missing(&self.cluster.clients);
        let Some(Missing { host: client, time }) = missing else {
            return self.restart(&host).await;
        };
        let ways = [(client.nid, host.nid), (host.nid, client.nid)];
        for (from, to) in ways {
            self.cluster.fabric.block(from, to, true);
        }
        self.history.note(format!(
            "node {} does not reach node {} for {time:?}",
            client.id, host.id
        ));
        self.restart(&host).await;
        self.arrival.mount();
        tokio::time::sleep(time).await;
        for (from, to) in ways {
            self.cluster.fabric.block(from, to, false);
        }
        self.history.note("network restored");
    }

    async fn restart(&self, host: &Arc<Host>) {
        self.history.note(format!("node {} starts", host.id));
        match self.cluster.start(host).await {
            Ok(()) => self.history.note(format!("node {} has started", host.id)),
            Err(e) => self.history.note(format!("node {} did not start: {e}", host.id)),
        };
    }

    async fn slow_disk(&mut self) {
        let Some(host) = self.rng.choice(&self.cluster.servers).cloned() else {
            return;
        };
        let delay = Duration::from_millis(self.rng.u64(100..5_000));
        self.history
            .note(format!("syncs of node {} take {delay:?}", host.id));
        host.disks().for_each(|disk| disk.set_delay(delay));
        let time = self.seconds(1..20);
        tokio::time::sleep(time).await;
        host.disks().for_each(|disk| disk.set_delay(Duration::ZERO));
        self.history.note(format!("syncs of node {} are fast", host.id));
    }

    /// Lets a share of the changes of an OST's objects fail for a while.
    async fn failing_changes(&mut self) {
        let oss = self.rng.usize(1..self.cluster.servers.len());
        let host = self.cluster.servers[oss].clone();
        let share = self.rng.u32(50..1_000);
        self.begin_disk_fault(
            &host,
            format!("{share} of 1000 changes of objects of node {} fail", host.id),
        );
        host.disks().for_each(|disk| disk.set_failing_changes(share));
        let time = self.seconds(1..10);
        tokio::time::sleep(time).await;
        host.disks().for_each(|disk| disk.set_failing_changes(0));
        self.history
            .note(format!("changes of objects of node {} succeed", host.id));
    }

    /// Lets other users of a disk take almost all of its space for a while.
    async fn full_disk(&mut self) {
        let Some(host) = self.rng.choice(&self.cluster.servers).cloned() else {
            return;
        };
        let left = self.rng.u64(0..SPACE_LEFT_MAX);
        self.begin_disk_fault(&host, format!("node {} has {left} bytes of space left", host.id));
        for disk in host.disks() {
            disk.set_capacity(disk.used_bytes() + left);
        }
        let time = self.seconds(1..20);
        tokio::time::sleep(time).await;
        host.disks().for_each(SimDisk::reset_capacity);
        self.history.note(format!("node {} has space again", host.id));
    }

    fn begin_disk_fault(&self, host: &Host, what: String) {
        let order = self.history.note(what);
        if host.id != self.cluster.servers[0].id || self.data_on_mdt {
            self.losses.lock().disks.push(order);
        }
    }

    /// Lets the syncs of a server's disks fail, until the server loses power.
    async fn disk_death(&mut self) {
        let server = self.rng.usize(..self.cluster.servers.len());
        let host = self.cluster.servers[server].clone();
        self.begin_disk_fault(&host, format!("syncs of node {} fail", host.id));
        host.disks().for_each(|disk| disk.set_failing(true));
        let time = self.seconds(0..10);
        tokio::time::sleep(time).await;
        self.finish_death(&host, Death::PowerCut).await;
        host.disks().for_each(|disk| disk.set_failing(false));
        let time = self.seconds(0..10);
        tokio::time::sleep(time).await;
        self.restart(&host).await;
    }

    /// Ends all faults, and starts the servers that are down.
    pub async fn heal(&self) {
        *self.climate.lock() = NetworkFaultRates::default();
        let hosts: Vec<_> = self.cluster.hosts().cloned().collect();
        for from in &hosts {
            // Cancel a planned death. If the node is dead already, but the fault was dropped before
            // it killed the host's disks and network, do that here.
            from.scope().die_at(u64::MAX);
            if from.scope().is_dead() && from.node().is_some() {
                self.finish_death(from, Death::Process).await;
            }
            from.scope().thaw();
            // After a failed sync, a store takes no changes until its server starts again.
            if from.disks().any(SimDisk::is_failing) {
                self.finish_death(from, Death::PowerCut).await;
            }
            for disk in from.disks() {
                disk.set_delay(Duration::ZERO);
                disk.set_failing(false);
                disk.set_failing_changes(0);
                disk.reset_capacity();
            }
            for to in &hosts {
                self.cluster.fabric.block(from.nid, to.nid, false);
            }
        }
        for host in &self.cluster.servers {
            if !host.has_started() && host.is_up() {
                self.finish_death(host, Death::Process).await;
            }
            if !host.is_up() {
                self.restart(host).await;
            }
        }
        self.history.note("all faults end");
    }
}

/// The number of a client in histories.
pub fn client_id(host: &Host) -> ClientId {
    host.id as ClientId
}
