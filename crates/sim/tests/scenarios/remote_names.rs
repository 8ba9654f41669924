//! Renames, links and removals between directories of three MDTs that die in the middle.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::{Client, Cred, OpenFlags};
use sim::cluster::Death;
use sim::scenario::{Scenario, play_on};
use tokio::time::sleep;
use wire::{Errno, Fid};

use crate::remote_dirs::{SERVERS, START_INTERVAL, check, mkdir, names, with_three_mdts};

/// The server with an MDT.
fn server_of(mdt: usize) -> usize {
    [SERVERS[0], SERVERS[1], SERVERS[1] + 1][mdt]
}

/// A directory of each MDT in the root.
async fn make_dirs(mount: &Client) -> [Fid; 3] {
    let mut dirs = [Fid::ZERO; 3];
    for (mdt, dir) in (0..).zip(&mut dirs) {
        *dir = mkdir(mount, mount.root(), &format!("on{mdt}"), mdt)
            .await
            .unwrap();
    }
    dirs
}

async fn create(mount: &Client, dir: Fid, name: &str) -> Fid {
    let cred = Cred::root();
    let flags = OpenFlags::READ_WRITE;
    let (found, file) = mount
        .create(&cred, dir, name.as_bytes(), 0o644, flags)
        .await
        .unwrap();
    mount.release(&file).await.unwrap();
    found.attr.fid
}

/// Moves files and directories between the MDTs.
async fn work(mount: &Client, [a, b, c]: [Fid; 3]) {
    let cred = Cred::root();
    let rename = async |from: (Fid, &str), to: (Fid, &str)| {
        let (from, to) = ((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()));
        mount.rename(&cred, from, to).await.unwrap();
    };
    for round in 0..3 {
        let (file, dir) = (format!("f{round}"), format!("d{round}"));
        let fid = create(mount, a, &file).await;
        // The names and the inode are on different MDTs: two, then three.
        rename((a, &file), (b, &file)).await;
        mount.link(&cred, fid, c, file.as_bytes()).await.unwrap();
        rename((b, &file), (c, "last")).await;
        // The moved and the replaced directory are on different MDTs.
        mkdir(mount, a, &dir, 1 + round % 2).await.unwrap();
        rename((a, &dir), (c, "dir")).await;
        if round == 1 {
            mount.unlink(&cred, c, file.as_bytes()).await.unwrap();
        }
    }
}

/// Kills MDTs during the work, starts them in this order, and checks the result.
fn survives(seed: u64, dead: &'static [usize], start_order: &'static [usize]) {
    for step in 0..16 {
        play_on(with_three_mdts(seed + step), async move |s: Scenario| {
            let dirs = s.on(0, async |mount: Arc<Client>| make_dirs(&mount).await).await;
            let client = s.host(0).client().unwrap();
            let work = s.host(0).scope().run(async move { work(&client, dirs).await });
            let after = Duration::from_micros(step * 2_300);
            let faults = async {
                sleep(after).await;
                for mdt in dead {
                    let host = s.cluster.servers[server_of(*mdt)].clone();
                    s.cluster.kill(&host, Death::PowerCut).await;
                }
                let start = async |place: usize| {
                    let Some(mdt) = start_order.get(place) else {
                        return;
                    };
                    // An MDT waits for the MGS, which is on the server of MDT0000.
                    sleep(START_INTERVAL * place as u32).await;
                    let host = s.cluster.servers[server_of(*mdt)].clone();
                    s.cluster.start(&host).await.unwrap();
                };
                tokio::join!(start(0), start(1), start(2));
            };
            tokio::join!(work, faults);
            let [a, b, c] = dirs;
            let found = s.on(1, async |mount: Arc<Client>| {
                let last = mount.lookup(&Cred::root(), c, b"last").await.unwrap();
                assert_eq!(last.attr.nlink, 2, "killed after {after:?}");
                let gone = mount.lookup(&Cred::root(), c, b"f1").await.err();
                assert_eq!(gone, Some(Errno::ENOENT));
                [
                    names(&mount, a).await,
                    names(&mount, b).await,
                    names(&mount, c).await,
                ]
            });
            let expected = [&[][..], &[], &["dir", "f0", "f2", "last"]];
            assert_eq!(found.await, expected, "killed after {after:?}");
            check(&s).await;
        });
    }
}

#[test]
fn operations_of_three_mdts_survive_the_death_of_any_one() {
    survives(1100, &[0], &[0]);
    survives(1200, &[1], &[1]);
    survives(1300, &[2], &[2]);
}

#[test]
fn operations_of_three_mdts_survive_the_death_of_two_in_any_order() {
    survives(1400, &[0, 1], &[1, 0]);
    survives(1500, &[1, 2], &[2, 1]);
    survives(1600, &[0, 2], &[0, 2]);
}

#[test]
fn operations_of_three_mdts_survive_the_death_of_all() {
    survives(1700, &[0, 1, 2], &[0, 1, 2]);
    survives(1800, &[2, 0, 1], &[2, 1, 0]);
}

/// Whether MDT0000 or MDT0001 has names locked for another MDT.
fn has_locked_names(s: &Scenario) -> bool {
    [0, 1].iter().any(|mdt| {
        let node = s.cluster.servers[server_of(*mdt)].node().unwrap();
        let values = node.registry().get("mdt.*.update_records");
        assert_eq!(values.len(), 1);
        !values.iter().all(|(_, text)| text.contains("locked_names: 0"))
    })
}

#[test]
fn abort_recovery_unlocks_the_names_of_a_dead_coordinator() {
    let held = Arc::new(AtomicUsize::new(0));
    for step in 0..16 {
        let held = held.clone();
        play_on(with_three_mdts(1900 + step), async move |s: Scenario| {
            let cred = Cred::root();
            let (client, mount) = (s.host(0).client().unwrap(), s.host(0).client().unwrap());
            let prepare = async move {
                let [a, b, c] = make_dirs(&mount).await;
                create(&mount, a, "file").await;
                mount.rename(&cred, (a, b"file"), (b, b"file")).await.unwrap();
                [b, c]
            };
            let [b, c] = s.host(0).scope().run(prepare).await;
            let rename = async move {
                let _ = client.rename(&Cred::root(), (b, b"file"), (c, b"file")).await;
                std::future::pending::<()>().await;
            };
            let coordinator = s.cluster.servers[server_of(2)].clone();
            let death = async {
                sleep(Duration::from_micros(step * 4_000)).await;
                s.cluster.kill(&coordinator, Death::PowerCut).await;
                // Until the others have evicted it.
                sleep(Duration::from_secs(300)).await;
            };
            tokio::select! {
                () = s.host(0).scope().run(rename) => {}
                () = death => {}
            }
            held.fetch_add(usize::from(has_locked_names(&s)), Ordering::Relaxed);
            for mdt in [0, 1] {
                let node = s.cluster.servers[server_of(mdt)].node().unwrap();
                node.registry().set("mdt.*.abort_recovery", "1").unwrap();
            }
            assert!(!has_locked_names(&s), "killed at step {step}");
        });
    }
    assert_ne!(held.load(Ordering::Relaxed), 0, "no death left names locked");
}
