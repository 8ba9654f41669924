//! Operations on a store with slow reads, in virtual time: a read delays only the operations that
//! need its value.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use osd::MemoryIndex;
use testbase::slow_index::{READ_DELAY, SlowIndex};
use tokio::time::Instant;
use wire::{Errno, Fid, Time};

use super::{Fixture, ROOT};
use crate::{
    cred::Cred,
    namespace::{ChangeResult, NewInode, create, link, lookup, record_access},
    store::{S_IFREG, Store},
};

/// A store with directories and files, of which the cache holds none. Its reads are slow.
struct Slow {
    store: Arc<Store>,
    index: Arc<SlowIndex>,
    dirs: [Fid; 2],
    /// Files in the first directory; all inodes besides the root belong to one shard.
    files: [Fid; 2],
    cred: Cred,
}

impl Slow {
    fn new() -> Slow {
        let memory = Arc::new(MemoryIndex::default());
        let mut f = Fixture::with_store(Store::new(memory.clone()));
        f.uses_one_shard = true;
        let dirs = [f.dir(ROOT, "a"), f.dir(ROOT, "b")];
        let files = [f.file(dirs[0], "f"), f.file(dirs[0], "g")];
        let index = Arc::new(SlowIndex::new(memory));
        Slow {
            store: Arc::new(Store::new(index.clone())),
            index,
            dirs,
            files,
            cred: Cred::root(),
        }
    }

    /// Reads an inode into the cache.
    async fn cache(&self, fid: Fid) {
        self.store.inode(fid).await.unwrap();
    }

    async fn create(&self, dir: Fid, name: &str, oid: u32) -> Result<ChangeResult, Errno> {
        let node = NewInode {
            fid: Fid::new(0x2_0000_0402, oid, 0),
            mode: S_IFREG | 0o644,
            time: Time::secs(2000),
            ..NewInode::default()
        };
        create(&self.store, &self.cred, dir, name.as_bytes(), &node).await
    }
}

/// Begins a future, which must wait.
async fn begin(mut future: Pin<&mut impl Future>) {
    let waits = poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await;
    assert!(waits, "the read is slow");
}

#[tokio::test(start_paused = true)]
async fn slow_read_of_an_inode_delays_no_operation_on_another_one_of_its_shard() {
    let slow = Slow::new();
    let [file, other] = slow.files;
    slow.cache(other).await;
    let started = Instant::now();
    let mut read = pin!(slow.store.inode(file));
    begin(read.as_mut()).await;
    // Both a read and a change.
    record_access(&slow.store, other, Time::secs(3000)).await.unwrap();
    assert_eq!(slow.store.inode(other).await.unwrap().atime, Time::secs(3000));
    assert_eq!(started.elapsed().as_millis(), 0);
    read.await.unwrap();
    assert!(started.elapsed() >= READ_DELAY);
}

#[tokio::test(start_paused = true)]
async fn operations_in_two_directories_wait_at_the_same_time() {
    let slow = Slow::new();
    let [a, b] = slow.dirs;
    let started = Instant::now();
    slow.create(a, "alone", 1).await.unwrap();
    let alone = started.elapsed();
    slow.store.inode_cache().clear();
    let started = Instant::now();
    let (first, second) = tokio::join!(slow.create(a, "x", 2), slow.create(b, "y", 3));
    assert!(first.is_ok() && second.is_ok());
    assert!(started.elapsed() < alone + READ_DELAY / 2);
    for (dir, name) in [(a, "x"), (b, "y")] {
        let found = lookup(&slow.store, &slow.cred, dir, name.as_bytes()).await;
        assert!(found.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_readers_of_an_inode_share_one_read() {
    let slow = Slow::new();
    let reads = || slow.index.reads.load(std::sync::atomic::Ordering::SeqCst);
    let before = reads();
    let (first, second) = tokio::join!(slow.store.inode(slow.files[0]), slow.store.inode(slow.files[0]));
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(reads(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn read_that_began_before_a_change_hides_it_from_nobody() {
    let slow = Slow::new();
    let file = slow.files[0];
    // The value of this read is from before the change.
    let mut old = pin!(slow.store.inode(file));
    begin(old.as_mut()).await;
    let mut inode = Store::new(slow.index.clone()).inode(file).await.unwrap();
    inode.atime = Time::secs(3000);
    let mut change = crate::store::Change::new();
    change.change_inode(file, &inode);
    slow.store.apply(change).await.unwrap();
    assert_eq!(slow.store.inode(file).await.unwrap().atime, Time::secs(3000));
    assert_ne!(old.await.unwrap().atime, Time::secs(3000));
    assert_eq!(slow.store.inode(file).await.unwrap().atime, Time::secs(3000));
}

#[tokio::test(start_paused = true)]
async fn concurrent_links_in_an_uncached_directory_add_up() {
    let slow = Slow::new();
    slow.store
        .inode_cache()
        .max()
        .store(0, std::sync::atomic::Ordering::Relaxed);
    let [dir, other] = slow.dirs;
    let mut links = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (store, file) = (slow.store.clone(), slow.files[n % 2]);
        let dir = if n < 6 { dir } else { other };
        links.spawn(async move {
            let name = format!("link{n}");
            link(
                &store,
                &Cred::root(),
                file,
                dir,
                name.as_bytes(),
                Time::secs(3000),
            )
            .await
        });
    }
    while let Some(result) = links.join_next().await {
        result.unwrap().unwrap();
    }
    for file in slow.files {
        assert_eq!(slow.store.inode(file).await.unwrap().nlink, 5);
    }
    let found = crate::check::examine(&slow.store, 0, None, &Default::default())
        .await
        .unwrap();
    assert_eq!(found.problems, []);
}
