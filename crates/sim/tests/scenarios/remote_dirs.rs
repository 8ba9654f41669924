//! Directories on several MDTs, and MDTs that die in the middle of an operation.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Cred, OpenFlags};
use sim::checks::check_file_system;
use sim::cluster::Death;
use sim::run::{OSTS, Settings};
use sim::scenario::{Scenario, play_on};
use sim::workload::layout_on;
use tokio::time::{sleep, timeout};
use wire::{Errno, Fid, RenameFlags};

/// The numbers of the servers with MDT0000 and MDT0001.
pub(crate) const SERVERS: [usize; 2] = [0, 1 + OSTS as usize];

/// Time between the starts of two servers.
pub(crate) const START_INTERVAL: Duration = Duration::from_millis(700);

fn with_two_mdts(seed: u64) -> Settings {
    Settings {
        mdts: 2,
        ..Settings::of(seed)
    }
}

pub(crate) async fn mkdir(mount: &Client, parent: Fid, name: &str, mdt: u32) -> Result<Fid, Errno> {
    let (cred, layout) = (Cred::root(), layout_on(mdt));
    let made = mount
        .mkdir_with(&cred, parent, name.as_bytes(), 0o755, layout)
        .await;
    made.map(|found| found.attr.fid)
}

/// The names in a directory.
pub(crate) async fn names(mount: &Client, dir: Fid) -> Vec<String> {
    let handle = mount.opendir(&Cred::root(), dir).await.unwrap();
    let items = mount.readdir(&handle, 0).await.unwrap();
    let names = items
        .iter()
        .map(|item| String::from_utf8_lossy(&item.entry.name).into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Stops all nodes, and checks all stores.
pub(crate) async fn check(s: &Scenario) {
    for host in s.cluster.hosts() {
        if host.client().is_some() {
            s.cluster.stop(host).await.unwrap();
        }
    }
    for host in s.cluster.servers.iter().rev() {
        s.cluster.stop(host).await.unwrap();
    }
    assert_eq!(check_file_system(&s.cluster).await, Ok(Vec::new()));
}

#[test]
fn a_tree_over_two_mdts_works() {
    play_on(with_two_mdts(61), async |s| {
        s.on(0, async |mount: Arc<Client>| {
            let (cred, root) = (Cred::root(), mount.root());
            let a = mkdir(&mount, root, "a", 1).await.unwrap();
            let b = mkdir(&mount, a, "b", 0).await.unwrap();
            let c = mount.mkdir(&cred, b, b"c", 0o755).await.unwrap().attr.fid;
            let (_, file) = mount
                .create(&cred, a, b"file", 0o644, OpenFlags::READ_WRITE)
                .await
                .unwrap();
            mount
                .write(&file, 0, bytes::Bytes::from_static(b"data"))
                .await
                .unwrap();
            mount.release(&file).await.unwrap();
            assert_eq!(names(&mount, a).await, ["b", "file"]);
            assert_eq!(mount.lookup(&cred, a, b"b").await.unwrap().attr.fid, b);
            let paths = mount.fid2path(&cred, c).await.unwrap();
            assert_eq!(paths, [b"a/b/c".to_vec()]);
            assert_eq!(mount.rmdir(&cred, root, b"a").await, Err(Errno::ENOTEMPTY));
            mount.rename(&cred, (a, b"file"), (a, b"renamed")).await.unwrap();
            mount.rename(&cred, (a, b"renamed"), (b, b"away")).await.unwrap();
            let flags = |flags| mount.rename_with(&cred, (b, b"away"), (a, b"b2"), flags);
            assert_eq!(flags(RenameFlags::WHITEOUT).await, Err(Errno::EXDEV));
            assert_eq!(flags(RenameFlags::EXCHANGE).await, Err(Errno::ENOENT));
            mount.mkdir(&cred, a, b"b2", 0o755).await.unwrap();
            assert_eq!(flags(RenameFlags::EXCHANGE).await, Ok(()));
            assert_eq!(flags(RenameFlags::EXCHANGE).await, Ok(()));
            mount.rmdir(&cred, a, b"b2").await.unwrap();
            let linked = mount.lookup(&cred, b, b"away").await.unwrap().attr.fid;
            let link = mount.link(&cred, linked, root, b"link").await.unwrap().attr;
            assert_eq!((link.nlink, link.size), (2, 4));
            mount.rename(&cred, (b, b"away"), (a, b"renamed")).await.unwrap();
        })
        .await;
        s.on(1, async |mount: Arc<Client>| {
            let (cred, root) = (Cred::root(), mount.root());
            let a = mount.lookup(&cred, root, b"a").await.unwrap().attr;
            assert_eq!(a.nlink, 3);
            let b = mount.lookup(&cred, a.fid, b"b").await.unwrap().attr.fid;
            mount.rmdir(&cred, b, b"c").await.unwrap();
            mount.unlink(&cred, a.fid, b"renamed").await.unwrap();
            assert_eq!(mount.lookup(&cred, root, b"link").await.unwrap().attr.nlink, 1);
            let (_, open) = mount
                .create(&cred, root, b"link", 0o644, OpenFlags::READ_WRITE)
                .await
                .unwrap();
            mount.unlink(&cred, root, b"link").await.unwrap();
            assert_eq!(mount.read(&open, 0, 10).await.unwrap().concat(), b"data");
            mount.release(&open).await.unwrap();
            mount.rmdir(&cred, a.fid, b"b").await.unwrap();
            mount.rmdir(&cred, root, b"a").await.unwrap();
            assert_eq!(mount.lookup(&cred, root, b"a").await.err(), Some(Errno::ENOENT));
        })
        .await;
        let gone = s
            .on(0, async |mount: Arc<Client>| names(&mount, mount.root()).await)
            .await;
        assert_eq!(gone, [""; 0]);
        check(&s).await;
    });
}

/// Creates and removes directories on MDT0001 in the root, while servers die and start again.
async fn work_and_restart(s: &Scenario, dead: &[usize], start_order: &[usize], after: Duration) {
    let client = s.host(0).client().unwrap();
    let work = s.host(0).scope().run(async move {
        for round in 0..4 {
            let name = format!("d{round}");
            let dir = mkdir(&client, client.root(), &name, 1).await.unwrap();
            client.mkdir(&Cred::root(), dir, b"sub", 0o755).await.unwrap();
            if round % 2 == 1 {
                client.rmdir(&Cred::root(), dir, b"sub").await.unwrap();
                client
                    .rmdir(&Cred::root(), client.root(), name.as_bytes())
                    .await
                    .unwrap();
            }
        }
    });
    let faults = async {
        sleep(after).await;
        for server in dead {
            let host = s.cluster.servers[*server].clone();
            s.cluster.kill(&host, Death::PowerCut).await;
        }
        let start = async |place: usize| {
            let Some(server) = start_order.get(place) else {
                return;
            };
            // An MDT waits for the MGS, which is on the server of MDT0000.
            sleep(START_INTERVAL * place as u32).await;
            let host = s.cluster.servers[*server].clone();
            s.cluster.start(&host).await.unwrap();
        };
        tokio::join!(start(0), start(1));
    };
    tokio::join!(work, faults);
}

/// Kills these servers after each of many times, starts them in this order, and checks the result.
fn survives(seed: u64, dead: &'static [usize], start_order: &'static [usize]) {
    for step in 0..16 {
        play_on(with_two_mdts(seed + step), async move |s| {
            let after = Duration::from_micros(step * 1_700);
            work_and_restart(&s, dead, start_order, after).await;
            let found = s
                .on(1, async |mount: Arc<Client>| names(&mount, mount.root()).await)
                .await;
            assert_eq!(found, ["d0", "d2"], "killed after {after:?}");
            check(&s).await;
        });
    }
}

#[test]
fn operations_survive_the_death_of_the_mdt_with_the_name() {
    survives(100, &[SERVERS[0]], &[SERVERS[0]]);
}

#[test]
fn operations_survive_the_death_of_the_mdt_with_the_directory() {
    survives(200, &[SERVERS[1]], &[SERVERS[1]]);
}

#[test]
fn operations_survive_the_death_of_both_mdts_in_either_order() {
    survives(300, &[SERVERS[0], SERVERS[1]], &[SERVERS[0], SERVERS[1]]);
    survives(400, &[SERVERS[1], SERVERS[0]], &[SERVERS[1], SERVERS[0]]);
}

/// Two MDTs die after an operation of both, and one of them starts again. Returns the directory
/// that it has.
async fn one_of_two_dead_partners_starts(s: &Scenario) -> Fid {
    let dir = s.on(0, async |mount: Arc<Client>| {
        let dir = mkdir(&mount, mount.root(), "a", 1).await.unwrap();
        mkdir(&mount, dir, "b", 2).await.unwrap();
        dir
    });
    let dir = dir.await;
    let [_, mdt1] = SERVERS;
    for server in [mdt1, mdt1 + 1] {
        let host = s.cluster.servers[server].clone();
        s.cluster.kill(&host, Death::PowerCut).await;
    }
    let host = s.cluster.servers[mdt1].clone();
    s.cluster.start(&host).await.unwrap();
    let listing = s.on(1, async |mount: Arc<Client>| names(&mount, dir).await);
    let early = timeout(Duration::from_secs(30), listing).await;
    assert!(early.is_err(), "the MDT waits for its partner: {early:?}");
    dir
}

pub(crate) fn with_three_mdts(seed: u64) -> Settings {
    Settings {
        mdts: 3,
        ..Settings::of(seed)
    }
}

#[test]
fn a_restarted_mdt_waits_for_the_operations_that_its_partner_knows() {
    play_on(with_three_mdts(62), async |s| {
        let dir = one_of_two_dead_partners_starts(&s).await;
        let partner = s.cluster.servers[SERVERS[1] + 1].clone();
        s.cluster.start(&partner).await.unwrap();
        let found = s.on(1, async |mount: Arc<Client>| names(&mount, dir).await).await;
        assert_eq!(found, ["b"]);
        check(&s).await;
    });
}

#[test]
fn abort_recovery_ends_the_wait_for_a_dead_partner() {
    play_on(with_three_mdts(63), async |s| {
        let dir = one_of_two_dead_partners_starts(&s).await;
        let node = s.cluster.servers[SERVERS[1]].node().unwrap();
        node.registry().set("mdt.*.abort_recovery", "1").unwrap();
        let made = s.on(2, async |mount: Arc<Client>| {
            for _ in 0..60 {
                match mount.mkdir(&Cred::root(), dir, b"c", 0o755).await {
                    Ok(_) => return true,
                    Err(_) => sleep(Duration::from_secs(1)).await,
                }
            }
            false
        });
        assert!(made.await);
    });
}
