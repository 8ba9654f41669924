//! Targets on simulated disks: the node of all servers and of a client loses power or is killed,
//! and starts again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, MountOptions, OpenFlags};
use cpt::{CptTable, NodeScope};
use lnet::{Lnet, LnetConfig};
use mdt::{Mdt, MdtConfig, WallClock};
use mgc::Mgc;
use mgs::{Mgs, MgsConfig};
use osd::Stores;
use ost::{Ost, OstConfig};
use rpc::{Ptlrpc, RpcConfig};
use sim::store::{DiskConfig, SimDisk};
use tokio::time::{sleep, timeout};
use wire::{
    Errno, LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LDD_F_UPDATE, LDD_F_VIRGIN, MgsTargetInfo, Nid, OstIndex,
    Text, Time,
};

use crate::{Crash, millis, simulate};

const FSNAME: &str = "testfs";
/// Limit of a wait, in virtual time.
const SOON: Duration = Duration::from_secs(600);

/// The disks of a file system with one MDT and one OST.
struct Disks {
    mgs: SimDisk,
    mdt: SimDisk,
    ost: SimDisk,
}

impl Disks {
    fn new(seed: u64) -> Disks {
        let disk = |name: &str, n| {
            let config = DiskConfig {
                name: name.into(),
                ..DiskConfig::default()
            };
            SimDisk::new(config, seed + n)
        };
        Disks {
            mgs: disk("MGS", 0),
            mdt: disk("testfs-MDT0000", 1),
            ost: disk("testfs-OST0000", 2),
        }
    }

    fn all(&self) -> [&SimDisk; 3] {
        [&self.mgs, &self.mdt, &self.ost]
    }
}

/// A running node with all servers and a client.
struct Servers {
    scope: Arc<NodeScope>,
    mgs: Arc<Mgs>,
    mdt: Arc<Mdt>,
    ost: Arc<Ost>,
    mgc: Arc<Mgc>,
    client: Arc<Client>,
}

/// The registration of a target with this disk.
fn target_info(kind: u32, disk: &SimDisk) -> MgsTargetInfo {
    let virgin = if disk.stores().has_run() { 0 } else { LDD_F_VIRGIN };
    let mut info = MgsTargetInfo {
        mti_flags: kind | virgin | LDD_F_UPDATE,
        mti_nid_count: 1,
        mti_fsname: Text::truncated(FSNAME),
        ..MgsTargetInfo::default()
    };
    info.mti_nids[0] = Nid::LO;
    info
}

impl Servers {
    async fn start(disks: &Disks) -> Servers {
        let scope = NodeScope::new(3);
        let started = scope.run(Servers::start_in(scope.clone(), disks));
        timeout(SOON, started).await.expect("the node starts")
    }

    async fn start_in(scope: Arc<NodeScope>, disks: &Disks) -> Servers {
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        let cpts = lnet.cpts().clone();
        let config = RpcConfig {
            seed: 1,
            ..RpcConfig::default()
        };
        let rpc = Ptlrpc::start(lnet, cpts, config);
        let config = MgsConfig {
            seed: 1,
            ..MgsConfig::default()
        };
        let mgs = Mgs::start(&rpc, &disks.mgs.stores(), config).await.unwrap();
        let mgc = Mgc::connect(&rpc, vec![Nid::LO], "servers").await.unwrap();
        mgc.register(target_info(LDD_F_SV_TYPE_MDT, &disks.mdt))
            .await
            .unwrap();
        let params = params::Registry::default();
        let cfg = MdtConfig {
            clock: WallClock::new(|| Time::secs(1)),
            locks: Arc::default(),
            nodemaps: mgc.nodemaps().await.unwrap(),
            capa_keys: mgc.capa_keys().await.unwrap(),
            fsname: FSNAME.to_owned(),
            index: 0,
            seed: 2,
            params: params.clone(),
        };
        let config = || mgc.follow_in_background(&format!("{FSNAME}-client"));
        let mdt = Mdt::start(rpc.clone(), config(), &disks.mdt.stores(), cfg).await;
        let mdt = mdt.unwrap();
        mgc.register(target_info(LDD_F_SV_TYPE_OST, &disks.ost))
            .await
            .unwrap();
        let cfg = OstConfig {
            params,
            nodemaps: mgc.nodemaps().await.unwrap(),
            capa_keys: mgc.capa_keys().await.unwrap(),
            ..OstConfig::new(FSNAME, OstIndex(0))
        };
        let ost = Ost::start(&rpc, config(), &disks.ost.stores(), cfg).await;
        let ost = ost.unwrap();
        mdt.osts_ready(1).await;
        let options = MountOptions::new(vec![Nid::LO], FSNAME, 3);
        let client = Client::mount(&rpc, options).await.unwrap();
        Servers {
            scope,
            mgs,
            mdt,
            ost,
            mgc,
            client,
        }
    }

    /// Runs a program's operation on the node.
    async fn run<T>(&self, operation: impl Future<Output = T>) -> T {
        let operation = self.scope.run(operation);
        timeout(SOON, operation).await.expect("the operation ends")
    }

    /// Creates and writes a file; with `sync` it is on disk when this returns.
    async fn make(&self, name: &str, sync: bool) -> Result<(), Errno> {
        let (client, root, flags) = (&self.client, Cred::root(), OpenFlags::READ_WRITE);
        let created = client.create(&root, client.root(), name.as_bytes(), 0o644, flags);
        let (found, file) = created.await?;
        drop(found);
        client.write(&file, 0, contents(name)).await?;
        if sync {
            client.fsync(&file, false).await?;
        }
        client.release(&file).await
    }

    async fn read(&self, name: &str) -> Result<Bytes, Errno> {
        let client = &self.client;
        let found = client
            .lookup(&Cred::root(), client.root(), name.as_bytes())
            .await?;
        let file = client
            .open(&Cred::root(), found.attr.fid, OpenFlags::READ)
            .await?;
        drop(found);
        let data = client.read(&file, 0, 1 << 20).await?;
        client.release(&file).await?;
        Ok(data.concat().into())
    }

    fn crash(self, disks: &Disks, crash: Crash) {
        self.scope.die();
        for disk in disks.all() {
            match crash {
                Crash::PowerCut => disk.power_cut(),
                Crash::ProcessKill => disk.process_kill(),
            }
        }
        self.scope.abort();
    }

    async fn stop(self) {
        let stop = async {
            self.client.umount().await;
            self.mdt.stop().await;
            self.ost.stop().await.unwrap();
            self.mgc.disconnect().await;
            self.mgs.stop().await.unwrap();
        };
        self.run(stop).await;
        self.scope.die();
        self.scope.abort();
    }
}

fn contents(name: &str) -> Bytes {
    name.bytes().cycle().take(100_000).collect::<Vec<u8>>().into()
}

/// Crashes the node once, and returns the digests of its disks.
async fn round(seed: u64, crash: Crash) -> Vec<u64> {
    let disks = Disks::new(seed);
    let servers = Servers::start(&disks).await;
    servers.run(servers.make("synced", true)).await.unwrap();
    servers.run(servers.make("later", false)).await.unwrap();
    sleep(millis(seed % 80)).await;
    servers.crash(&disks, crash);

    let servers = Servers::start(&disks).await;
    let synced = servers.run(servers.read("synced")).await;
    assert_eq!(synced, Ok(contents("synced")));
    // The client died with its data, so only the name may be left.
    let later = servers.run(servers.read("later")).await;
    assert!(matches!(later, Ok(_) | Err(Errno::ENOENT)), "{later:?}");
    servers.run(servers.make("new", false)).await.unwrap();
    servers.stop().await;
    assert!(disks.all().iter().all(|disk| disk.is_idle()));

    let servers = Servers::start(&disks).await;
    assert_eq!(servers.run(servers.read("new")).await, Ok(contents("new")));
    servers.stop().await;
    disks.all().map(SimDisk::digest).to_vec()
}

#[test]
fn servers_keep_synced_files_in_a_power_cut() {
    for seed in 0..10 {
        simulate(round(seed, Crash::PowerCut));
    }
}

#[test]
fn servers_keep_synced_files_when_their_process_is_killed() {
    for seed in 0..10 {
        simulate(round(seed, Crash::ProcessKill));
    }
}
