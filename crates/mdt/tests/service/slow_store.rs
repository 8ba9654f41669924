//! An MDT on an index with slow reads and commits, in virtual time: requests wait at the same time.

use std::{sync::Arc, time::Duration};

use osd::MemoryIndex;
use testbase::{
    mds_client::Client,
    slow_index::{COMMIT_DELAY, READ_DELAY, SlowIndex},
};
use tokio::{task::JoinSet, time::Instant};
use wire::{Fid, MDS_FMODE_READ, MDS_OPEN_CREAT};

use crate::fixture::Fixture;

/// Number of concurrent requests, each of a client of its own.
const CLIENTS: usize = 32;

async fn fixture(osts: u32) -> (Fixture, Vec<Arc<Client>>) {
    let index = Arc::new(SlowIndex::new(Arc::new(MemoryIndex::default())));
    let f = Fixture::with_index(osts, index).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(f.client().await);
    }
    (f, clients)
}

/// Empties the MDT's cache of inodes.
fn drop_cache(f: &Fixture) {
    f.params.set("mdt.testfs-MDT0000.lu_cache_nr", "4096").unwrap();
}

/// Lets each client look up the file `f` in a directory; returns the time until the last reply.
async fn time_of_lookups(f: &Fixture, lookups: Vec<(Arc<Client>, Fid)>) -> Duration {
    drop_cache(f);
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for (client, dir) in lookups {
        tasks.spawn(async move { client.getattr(dir, "f").await });
    }
    while let Some(found) = tasks.join_next().await {
        assert!(found.unwrap().has_lock());
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn lookups_of_uncached_names_in_many_directories_take_the_time_of_one() {
    let (f, clients) = fixture(0).await;
    let mut dirs = Vec::new();
    for (n, client) in clients.iter().enumerate() {
        let dir = client.mkdir(Fid::ROOT, &format!("d{n}")).await;
        client.make(dir, "f", 0o010666, "").await.unwrap();
        dirs.push(dir);
    }
    let alone = time_of_lookups(&f, vec![(clients[0].clone(), dirs[0])]).await;
    // A lookup reads the directory, the entry and the inode, one after the other.
    assert!(alone >= READ_DELAY * 3 && alone < READ_DELAY * 4, "{alone:?}");
    let all = clients.iter().cloned().zip(dirs).collect();
    let together = time_of_lookups(&f, all).await;
    assert!(together < alone + READ_DELAY, "{together:?}");
}

#[tokio::test(start_paused = true)]
async fn creates_wait_for_no_commit_and_syncs_share_one() {
    let (f, clients) = fixture(1).await;
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for (n, client) in clients.iter().cloned().enumerate() {
        tasks.spawn(async move {
            let created = client
                .open(Fid::ROOT, &format!("f{n}"), MDS_OPEN_CREAT | MDS_FMODE_READ)
                .await;
            assert!(created.status == 0 && created.handle() != 0);
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(started.elapsed() < COMMIT_DELAY, "{:?}", started.elapsed());
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..CLIENTS {
        let index = f.index.clone();
        tasks.spawn(async move { index.sync().await });
    }
    while let Some(synced) = tasks.join_next().await {
        synced.unwrap().unwrap();
    }
    assert!(started.elapsed() < COMMIT_DELAY * 2);
}
