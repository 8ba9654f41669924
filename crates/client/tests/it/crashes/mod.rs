//! The metadata target's machine loses power repeatedly during creates and removals. Afterwards
//! every object belongs to a file, and every synced file has its data.
//!
//! A seed determines the moment of the power loss and the lost changes. `NACRE_CRASH_ROUNDS` sets
//! the number of rounds, `NACRE_CRASH_SEED` the first seed.

#![allow(clippy::unwrap_used, unreachable_pub)]

pub mod index;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, OpenFlags};
use cpt::CptTable;
use fastrand::Rng;
use index::CrashIndex;
use lnet::{Lnet, LnetConfig};
use osd::Index;
use parking_lot::Mutex;
use testkit::Cluster;
use tokio::task::JoinSet;
use wire::Errno;

/// Default number of rounds.
const ROUNDS: u64 = 3;
/// Power losses in a round.
const CRASHES: usize = 3;
/// Concurrent tasks of a round.
const TASKS: usize = 4;
/// Limit of a wait for a reply.
const SOON: Duration = Duration::from_secs(120);
/// Size of a file in bytes.
const SIZE: usize = 100_000;
/// Tolerated growth of an OST's data besides objects, in KiB; less than a file.
const OVERHEAD_KIB: u64 = 50;

/// The number in an environment variable, or `default` without the variable.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// The contents of the file with this name.
fn contents(name: &str) -> Bytes {
    name.bytes().cycle().take(SIZE).collect::<Vec<u8>>().into()
}

/// The changes by the tasks of a round.
#[derive(Default)]
struct TaskLog {
    /// Set at the end of the round.
    stop: AtomicBool,
    /// Files that are completely on disk.
    synced: Mutex<HashSet<String>>,
    /// Names that a task began to remove.
    removed: Mutex<HashSet<String>>,
}

/// Creates a file.
async fn make(client: &Client, name: &str, log: &TaskLog, sync: bool) -> Result<(), Errno> {
    let (root, dir) = (Cred::root(), client.root());
    let flags = OpenFlags::READ_WRITE;
    let (found, file) = client.create(&root, dir, name.as_bytes(), 0o644, flags).await?;
    drop(found);
    let written = async {
        client.write(&file, 0, contents(name)).await?;
        if sync {
            client.fsync(&file, false).await?;
            log.synced.lock().insert(name.to_owned());
        }
        Ok(())
    };
    let written = written.await;
    let closed = client.release(&file).await;
    written.and(closed)
}

/// Creates and removes files until the end of the round. Operations in progress at the power loss
/// may fail.
async fn create_and_remove(client: Arc<Client>, task: String, log: Arc<TaskLog>, mut random: Rng) {
    let (mut created, mut own_files) = (0, Vec::new());
    while !log.stop.load(Ordering::SeqCst) {
        if own_files.is_empty() || random.u8(0..5) < 3 {
            created += 1;
            let name = format!("{task}-{created}");
            let _ = make(&client, &name, &log, random.bool()).await;
            own_files.push(name);
        } else {
            let name = own_files.swap_remove(random.usize(0..own_files.len()));
            log.removed.lock().insert(name.clone());
            let _ = client.unlink(&Cred::root(), client.root(), name.as_bytes()).await;
        }
    }
}

/// Repeats an operation until it succeeds.
async fn retry<T>(mut operation: impl AsyncFnMut() -> Result<T, Errno>) -> T {
    let attempts = async {
        loop {
            match operation().await {
                Ok(value) => return value,
                Err(e) => tracing::debug!("retry after {e}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, attempts).await.unwrap()
}

async fn names(client: &Client) -> Vec<String> {
    let handle = client.opendir(&Cred::root(), client.root()).await.unwrap();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let items = client.readdir(&handle, offset).await.unwrap();
        let Some(last) = items.last() else { break };
        offset = last.next;
        handle.advance(&items, items.len());
        let text = |n: &Bytes| String::from_utf8(n.to_vec()).unwrap();
        names.extend(items.iter().map(|i| text(&i.entry.name)));
    }
    names.retain(|n| n != "." && n != "..");
    names
}

fn free_kib(cluster: &Cluster) -> Vec<u64> {
    let found = cluster.params.get("osd-memory.*OST*.kbytesfree");
    found.iter().map(|(_, v)| v.parse().unwrap()).collect()
}

/// Removes all files, and waits until the OSTs have their space back.
async fn remove_all(cluster: &Cluster, index: &CrashIndex, client: &Client, free: &[u64]) {
    for name in names(client).await {
        retry(
            async || match client.unlink(&Cred::root(), client.root(), name.as_bytes()).await {
                Err(Errno::ENOENT) | Ok(()) => Ok(()),
                Err(e) => Err(e),
            },
        )
        .await;
    }
    index.sync().await.unwrap();
    let back = async {
        while free_kib(cluster)
            .iter()
            .zip(free)
            .any(|(free, free_before)| free + OVERHEAD_KIB < *free_before)
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let back = tokio::time::timeout(SOON, back).await;
    assert!(
        back.is_ok(),
        "objects are left: {free:?} KiB were free, now {:?}",
        free_kib(cluster)
    );
}

async fn round(seed: u64) {
    eprintln!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut index = CrashIndex::new();
    let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
    let mut cluster = Cluster::start_with(lnet, 2, index.clone()).await;
    let mounts = [cluster.mount().await, cluster.mount().await];
    let free = free_kib(&cluster);
    for crash in 0..CRASHES {
        let log = Arc::new(TaskLog::default());
        let mut tasks = JoinSet::new();
        for (task, client) in (0..TASKS).zip(mounts.iter().cycle()) {
            let own = Rng::with_seed(random.u64(..));
            tasks.spawn(create_and_remove(
                client.clone(),
                format!("{crash}-{task}"),
                log.clone(),
                own,
            ));
        }
        // The random moment is part of the test.
        tokio::time::sleep(Duration::from_millis(random.u64(20..300))).await;
        index = index.lose_power(|uncommitted| random.usize(0..=uncommitted));
        cluster.restart_mdt(index.clone()).await;
        tokio::time::sleep(Duration::from_millis(random.u64(0..200))).await;
        log.stop.store(true, Ordering::SeqCst);
        tokio::time::timeout(SOON, tasks.join_all())
            .await
            .expect("the tasks end");

        let client = &mounts[crash % 2];
        retry(async || client.getattr(&Cred::root(), client.root()).await.map(drop)).await;
        let listed: HashSet<String> = names(client).await.into_iter().collect();
        let (synced, removed) = (log.synced.lock().clone(), log.removed.lock().clone());
        for name in &synced {
            assert!(
                listed.contains(name) || removed.contains(name),
                "{name} was synced"
            );
        }
        for name in listed.intersection(&synced) {
            let read = retry(async || {
                let found = client
                    .lookup(&Cred::root(), client.root(), name.as_bytes())
                    .await?;
                let fid = found.attr.fid;
                drop(found);
                let file = client.open(&Cred::root(), fid, OpenFlags::READ).await?;
                let read = client.read(&file, 0, SIZE + 1).await;
                client.release(&file).await?;
                read
            });
            assert!(read.await.concat() == contents(name), "{name} has lost data");
        }
        remove_all(&cluster, &index, client, &free).await;
    }
    for client in mounts {
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_loss_of_the_mdt_leaves_no_orphan_objects_and_loses_no_synced_file() {
    let first = number("NACRE_CRASH_SEED", 1);
    for seed in first..first + number("NACRE_CRASH_ROUNDS", ROUNDS) {
        round(seed).await;
    }
}
