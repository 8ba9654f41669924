//! Locks that survive the client's own changes (lock terms of Nacre). A client keeps its lock on a
//! directory that it changes. The creator of a file knows that the file is unwritten until another
//! open for writing. Both save requests; changes by other clients stay visible.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, DirHandle, KernelCache, OpenFile, OpenFlags, SetAttr};
use cpt::BoxFuture;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;
use tokio::task::{JoinSet, yield_now};
use tokio::time::timeout;
use wire::{Errno, Fid, LockTerms};

/// Largest number of deferred closes for which the client may still send close requests.
const DEFERRED_CLOSES_MAX: u64 = 16;

/// Requests that the servers have handled, once they are idle.
async fn requests(cluster: &Cluster) -> u64 {
    loop {
        let stats = cluster.rpc.stats();
        if stats.iter().all(|s| s.active == 0 && s.queued == 0) {
            return stats.iter().map(|s| s.handled).sum();
        }
        tokio::task::yield_now().await;
    }
}

async fn mkdir(client: &Client, name: &str) -> Fid {
    let created = client
        .mkdir(&Cred::root(), client.root(), name.as_bytes(), 0o755)
        .await;
    created.unwrap().attr.fid
}

/// Creates a file like a kernel: first checks the permission and looks the name up.
async fn create(client: &Client, dir: Fid, name: &str) -> Arc<OpenFile> {
    let root = Cred::root();
    client.getattr(&root, dir).await.unwrap();
    let absent = client.lookup(&root, dir, name.as_bytes()).await;
    assert_eq!(absent.map(|f| f.attr.fid), Err(Errno::ENOENT), "{name}");
    let create = client.create(&root, dir, name.as_bytes(), 0o755, OpenFlags::READ_WRITE);
    let (found, file) = create.await.unwrap();
    assert_eq!((found.attr.size, found.attr_cached), (0, true));
    file
}

async fn size(client: &Client, fid: Fid) -> u64 {
    client.getattr(&Cred::root(), fid).await.unwrap().attr.size
}

async fn names(client: &Client, dir: &DirHandle) -> BTreeSet<String> {
    let (mut names, mut offset) = (BTreeSet::new(), 0);
    loop {
        let items = client.readdir(dir, offset).await.unwrap();
        let Some(last) = items.last() else { return names };
        offset = last.next;
        let all = items
            .iter()
            .map(|i| String::from_utf8_lossy(&i.entry.name).into_owned());
        names.extend(all.filter(|n| n != "." && n != ".."));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_needs_one_request_and_a_stat_none() {
    let cluster = Cluster::start(2).await;
    let client = cluster.mount().await;
    let dir = mkdir(&client, "d").await;
    let root = Cred::root();
    client.getattr(&root, dir).await.unwrap();
    let mut fids = Vec::new();
    for i in 0..20 {
        let file = create(&client, dir, &format!("first{i}")).await;
        client.release(&file).await.unwrap();
    }
    let before = requests(&cluster).await;
    for i in 0..100 {
        let file = create(&client, dir, &format!("f{i}")).await;
        fids.push(file.fid);
        client.release(&file).await.unwrap();
    }
    let sent = requests(&cluster).await - before;
    // The targets send each other a few requests.
    assert!(sent < 150, "{sent} requests for 100 files");
    let before = requests(&cluster).await;
    for fid in fids {
        let found = client.getattr(&root, fid).await.unwrap();
        assert!(found.attr_cached && found.attr.size == 0);
    }
    // The metadata target polls the object targets' space now and then.
    assert!(requests(&cluster).await < before + 10 + DEFERRED_CLOSES_MAX);
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_file_without_objects_has_a_deferred_close_and_visible_writes() {
    let cluster = Cluster::start(2).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let dir = mkdir(&a, "d").await;
    let root = Cred::root();
    let flags = OpenFlags {
        delay_create: true,
        ..OpenFlags::READ_WRITE
    };
    let make = async |name: String| {
        let created = a.create(&root, dir, name.as_bytes(), 0o644, flags).await;
        created.unwrap().1
    };
    for i in 0..20 {
        let file = make(format!("first{i}")).await;
        a.release(&file).await.unwrap();
    }
    let before = requests(&cluster).await;
    for i in 0..100 {
        let file = make(format!("f{i}")).await;
        a.release(&file).await.unwrap();
    }
    let sent = requests(&cluster).await - before;
    assert!(sent < 150, "{sent} requests for 100 files");
    for opener in [&a, &b] {
        let own_file = make(format!("written by {opener:p}")).await;
        assert_eq!(
            (size(&a, own_file.fid).await, size(&b, own_file.fid).await),
            (0, 0)
        );
        let file = opener
            .open(&root, own_file.fid, OpenFlags::READ_WRITE)
            .await
            .unwrap();
        opener.write(&file, 0, Bytes::from_static(b"one")).await.unwrap();
        assert_eq!(
            (size(&a, own_file.fid).await, size(&b, own_file.fid).await),
            (3, 3)
        );
        opener.release(&file).await.unwrap();
        a.release(&own_file).await.unwrap();
        assert_eq!(
            (size(&a, own_file.fid).await, size(&b, own_file.fid).await),
            (3, 3)
        );
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_lustres_lock_terms_no_lock_survives_a_change() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount_with(|o| o.lock_terms = LockTerms::Lustre).await;
    let dir = mkdir(&client, "d").await;
    let before = requests(&cluster).await;
    for i in 0..10 {
        let file = create(&client, dir, &format!("f{i}")).await;
        client.release(&file).await.unwrap();
    }
    assert!(requests(&cluster).await - before >= 40);
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_of_another_mount_to_a_new_file_are_visible_at_once() {
    let cluster = Cluster::start(2).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    for round in 0..20 {
        let name = format!("f{round}");
        let own_file = create(&a, dir, &name).await;
        let fid = own_file.fid;
        assert_eq!(size(&a, fid).await, 0);
        // The other mount writes after the creator's close, or while the creator has the file open.
        if round % 2 == 0 {
            a.release(&own_file).await.unwrap();
        }
        match round % 4 {
            0 | 1 => {
                let other_file = b.open(&root, fid, OpenFlags::READ_WRITE).await.unwrap();
                assert_eq!(size(&a, fid).await, 0);
                b.write(&other_file, 0, Bytes::from(vec![1; 1000])).await.unwrap();
                assert_eq!(size(&a, fid).await, 1000);
                b.write(&other_file, 1000, Bytes::from(vec![1; 1000]))
                    .await
                    .unwrap();
                assert_eq!(size(&a, fid).await, 2000);
                b.release(&other_file).await.unwrap();
            }
            _ => {
                let set = SetAttr {
                    size: Some(2000),
                    ..SetAttr::default()
                };
                b.setattr(&root, fid, &set, None).await.unwrap();
            }
        }
        assert_eq!(size(&a, fid).await, 2000);
        if round % 2 == 1 {
            a.write(&own_file, 2000, Bytes::from_static(b"x")).await.unwrap();
            assert_eq!(size(&b, fid).await, 2001);
            a.release(&own_file).await.unwrap();
        }
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_truncates_of_the_creator_change_the_size_of_a_new_file() {
    let cluster = Cluster::start(2).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    let file = create(&a, dir, "f").await;
    a.write(&file, 0, Bytes::from_static(b"one")).await.unwrap();
    assert_eq!((size(&a, file.fid).await, size(&b, file.fid).await), (3, 3));
    let cut = SetAttr {
        size: Some(10),
        ..SetAttr::default()
    };
    let other = create(&a, dir, "g").await;
    a.setattr(&root, other.fid, &cut, Some(&other)).await.unwrap();
    assert_eq!((size(&a, other.fid).await, size(&b, other.fid).await), (10, 10));
    // The creator opens the file a second time.
    let third = create(&a, dir, "h").await;
    let again = a.open(&root, third.fid, OpenFlags::READ_WRITE).await.unwrap();
    a.write(&again, 0, Bytes::from_static(b"two")).await.unwrap();
    assert_eq!((size(&a, third.fid).await, size(&b, third.fid).await), (3, 3));
    for file in [&file, &other, &third, &again] {
        a.release(file).await.unwrap();
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_created_by_others_are_found_in_a_listed_directory() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    let handle = a.opendir(&root, dir).await.unwrap();
    let mut expected = BTreeSet::new();
    for round in 0..50 {
        // Looks up missing names until a lookup needs no request.
        let mut sent = u64::MAX;
        for miss in 0..100 {
            let before = requests(&cluster).await;
            let absent = a.lookup(&root, dir, format!("no{round}.{miss}").as_bytes()).await;
            assert!(absent.is_err());
            a.getattr(&root, dir).await.unwrap();
            sent = requests(&cluster).await - before;
            if sent == 0 {
                break;
            }
        }
        assert_eq!(sent, 0, "round {round}: lookups still need requests");
        let (by_a, by_b) = (format!("a{round}"), format!("b{round}"));
        b.mkdir(&root, dir, by_b.as_bytes(), 0o755).await.unwrap();
        a.mknod(&root, dir, by_a.as_bytes(), 0o100_644, 0).await.unwrap();
        expected.extend([by_a.clone(), by_b.clone()]);
        for client in [&a, &b] {
            for name in [&by_a, &by_b] {
                client.lookup(&root, dir, name.as_bytes()).await.unwrap();
            }
        }
        let md = a.getattr(&root, dir).await.unwrap();
        assert_eq!(u64::from(md.attr.nlink), 3 + round);
        assert_eq!(names(&a, &handle).await, expected);
        if round % 3 == 0 {
            a.rename(&root, (dir, by_a.as_bytes()), (dir, b"moved"))
                .await
                .unwrap();
            a.lookup(&root, dir, b"moved").await.unwrap();
            a.unlink(&root, dir, b"moved").await.unwrap();
            expected.remove(&by_a);
            for client in [&a, &b] {
                let gone = client.lookup(&root, dir, by_a.as_bytes()).await;
                assert_eq!(gone.map(|f| f.attr.fid), Err(Errno::ENOENT));
            }
        }
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_ends_even_if_its_caller_stops_waiting() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let dir = mkdir(&client, "d").await;
    let root = Cred::root();
    for steps in 0..12 {
        let (a, b) = (format!("a{steps}"), format!("b{steps}"));
        let create = client.create(&root, dir, a.as_bytes(), 0o644, OpenFlags::READ_WRITE);
        let make = client.mkdir(&root, dir, b.as_bytes(), 0o755);
        let caller_stops = async {
            for _ in 0..=steps / 2 {
                yield_now().await;
            }
        };
        match steps % 2 {
            0 => tokio::select! { biased; created = create => drop(created), () = caller_stops => {} },
            _ => tokio::select! { biased; created = make => drop(created), () = caller_stops => {} },
        }
    }
    // The directory's attributes are cached again.
    let cached_again = async { while !client.getattr(&root, dir).await.unwrap().attr_cached {} };
    timeout(Duration::from_secs(60), cached_again).await.unwrap();
    client.umount().await;
    cluster.stop().await;
}

/// Records the invalidations of a kernel.
#[derive(Default)]
struct RecordedInvalidations(Mutex<Vec<Fid>>);

impl KernelCache for RecordedInvalidations {
    fn inval_entry<'a>(&'a self, _: Fid, _: &'a [u8], _: Fid) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn inval_inode(&self, fid: Fid, _: i64, _: i64) -> BoxFuture<'_, ()> {
        self.0.lock().push(fid);
        Box::pin(async {})
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kernel_that_may_store_old_directory_attributes_is_invalidated() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let kernel = Arc::new(RecordedInvalidations::default());
    let dir = mkdir(&client, "d").await;
    client.set_kernel(kernel.clone());
    let task = |pid| Cred { pid, ..Cred::root() };
    let invalidated = || std::mem::take(&mut *kernel.0.lock());
    let stat_twice = async |pid| {
        client.getattr(&task(pid), dir).await.unwrap();
        assert!(client.getattr(&task(pid), dir).await.unwrap().attr_cached);
    };
    // If only one task reads the attributes, the kernel has stored each answer before the task's
    // next request.
    for name in ["a", "b", "c"] {
        stat_twice(1).await;
        let cred = task(1);
        let create = client.create(&cred, dir, name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
        client.release(&create.await.unwrap().1).await.unwrap();
    }
    assert_eq!(invalidated(), []);
    stat_twice(1).await;
    stat_twice(2).await;
    client.unlink(&task(1), dir, b"a").await.unwrap();
    assert!(
        invalidated().contains(&dir),
        "the invalidation comes before the answer"
    );
    client.mkdir(&task(1), dir, b"e", 0o755).await.unwrap();
    assert_eq!(invalidated(), [], "no task has read the attributes since");
    stat_twice(2).await;
    client.mkdir(&task(1), dir, b"f", 0o755).await.unwrap();
    assert_eq!(invalidated(), [dir]);
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_of_an_existing_name_keeps_the_cache() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let root = Cred::root();
    let dir = mkdir(&client, "d").await;
    let file = create(&client, dir, "f").await;
    client.release(&file).await.unwrap();
    let handle = client.opendir(&root, dir).await.unwrap();
    let is_cached = async || {
        assert_eq!(names(&client, &handle).await.len(), 1);
        client.getattr(&root, dir).await.unwrap().attr_cached
    };
    assert!(is_cached().await);
    let exclusive = OpenFlags {
        excl: true,
        ..OpenFlags::READ_WRITE
    };
    let before = requests(&cluster).await;
    let rounds = 10;
    for _ in 0..rounds {
        for flags in [exclusive, OpenFlags::READ] {
            match client.create(&root, dir, b"f", 0o644, flags).await {
                Ok((_, file)) => client.release(&file).await.unwrap(),
                Err(e) => assert!(e == Errno::EEXIST && flags.excl),
            }
            assert!(is_cached().await);
        }
    }
    // A round sends two opens and perhaps a close; the targets send each other a few requests.
    let sent = requests(&cluster).await - before;
    assert!(sent < 5 * rounds, "{sent} requests");
    client.umount().await;
    cluster.stop().await;
}

const EXECUTE: OpenFlags = OpenFlags {
    exec: true,
    ..OpenFlags::READ
};

/// Creates an executable file of 10 bytes, and closes it.
async fn create_script(client: &Client, dir: Fid) -> Arc<OpenFile> {
    let file = create(client, dir, "f").await;
    client
        .write(&file, 0, Bytes::from_static(b"#!/bin/sh\n"))
        .await
        .unwrap();
    client.release(&file).await.unwrap();
    file
}

/// Opens a file for writing, writes and closes it.
async fn fill(client: &Client, fid: Fid) {
    let file = client
        .open(&Cred::root(), fid, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    client
        .write(&file, 0, Bytes::from_static(b"#!/bin/sh\n"))
        .await
        .unwrap();
    client.release(&file).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_created_and_then_written_can_be_executed_at_once() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    for round in 0..5 {
        let mut files = Vec::new();
        for i in 0..100 {
            files.push(create(&a, dir, &format!("f{round}.{i}")).await);
        }
        // More closes than a few requests can carry.
        for file in &files {
            a.release(file).await.unwrap();
        }
        let filled_by_a = files.last().unwrap().fid;
        fill(&a, filled_by_a).await;
        let run = a.open(&root, filled_by_a, EXECUTE).await.unwrap();
        a.release(&run).await.unwrap();
        let filled_by_b = files[50].fid;
        fill(&b, filled_by_b).await;
        let run = b.open(&root, filled_by_b, EXECUTE).await.unwrap();
        b.release(&run).await.unwrap();
        // `b` writes while the creator still has the file open.
        let shared = create(&a, dir, &format!("shared{round}")).await;
        fill(&b, shared.fid).await;
        a.release(&shared).await.unwrap();
        let run = b.open(&root, shared.fid, EXECUTE).await.unwrap();
        b.release(&run).await.unwrap();
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_not_truncated_while_another_mount_executes_it() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    let file = create_script(&a, dir).await;
    let truncate = async |size: u64| {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        a.setattr(&root, file.fid, &set, None).await.map(|f| f.attr.size)
    };
    let running = b.open(&root, file.fid, EXECUTE).await.unwrap();
    assert_eq!(truncate(4).await, Err(Errno::ETXTBSY));
    assert_eq!(truncate(100).await, Err(Errno::ETXTBSY));
    for read in [true, false] {
        let flags = OpenFlags {
            read,
            truncate: true,
            ..OpenFlags::READ_WRITE
        };
        let result = a.open(&root, file.fid, flags).await.map(drop);
        assert_eq!(result, Err(Errno::ETXTBSY));
    }
    assert_eq!(size(&b, file.fid).await, 10);
    b.release(&running).await.unwrap();
    assert_eq!(truncate(4).await, Ok(4));
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_for_reading_that_truncates_counts_as_a_writer() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    let file = create_script(&a, dir).await;
    let truncating = OpenFlags {
        truncate: true,
        ..OpenFlags::READ
    };
    let denied = a.open(&Cred::user(1000, 1000), file.fid, truncating).await;
    assert_eq!(denied.map(drop), Err(Errno::EACCES));
    assert_eq!(size(&b, file.fid).await, 10);
    let opened = a.open(&root, file.fid, truncating).await.unwrap();
    assert_eq!((size(&a, file.fid).await, size(&b, file.fid).await), (0, 0));
    // The client does not defer the close, which would deny the execution.
    a.release(&opened).await.unwrap();
    let executed = b.open(&root, file.fid, EXECUTE).await.unwrap();
    b.release(&executed).await.unwrap();
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_waits_until_the_same_client_has_closed_the_file() {
    let cluster = Cluster::start(1).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let dir = mkdir(&a, "d").await;
    let file = create(&a, dir, "f").await;
    a.write(&file, 0, Bytes::from_static(b"#!/bin/sh\n"))
        .await
        .unwrap();
    let busy = b.open(&root, file.fid, EXECUTE).await.map(|_| ());
    assert_eq!(busy, Err(Errno::ETXTBSY), "another client has it open");
    let before = requests(&cluster).await;
    let close = async {
        while requests(&cluster).await == before {}
        a.release(&file).await
    };
    let (run, closed) = tokio::join!(a.open(&root, file.fid, EXECUTE), close);
    closed.unwrap();
    a.release(&run.unwrap()).await.unwrap();
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}

/// Several tasks of two mounts create and remove names of their own in one directory: each task
/// sees its own changes, and the directory's attributes are never older than them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_task_sees_its_own_changes_at_once() {
    let cluster = Cluster::start(0).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let dir = mkdir(&a, "d").await;
    let mut tasks = JoinSet::new();
    for task in 0..6u32 {
        let client = if task < 4 { a.clone() } else { b.clone() };
        tasks.spawn(async move {
            let root = Cred::root();
            let mut dirs = 0;
            for i in 0..300u32 {
                let name = format!("{task}.{}", i % 7);
                let mtime = client.getattr(&root, dir).await.unwrap().attr.mtime;
                if i % 14 < 7 {
                    client.mkdir(&root, dir, name.as_bytes(), 0o755).await.unwrap();
                    dirs += 1;
                    client.lookup(&root, dir, name.as_bytes()).await.unwrap();
                } else {
                    client.rmdir(&root, dir, name.as_bytes()).await.unwrap();
                    dirs -= 1;
                    let gone = client.lookup(&root, dir, name.as_bytes()).await;
                    assert_eq!(gone.map(|f| f.attr.fid), Err(Errno::ENOENT));
                }
                let attr = client.getattr(&root, dir).await.unwrap().attr;
                assert!(attr.mtime > mtime && attr.nlink >= 2 + dirs);
            }
            dirs
        });
    }
    let dirs: u32 = tasks.join_all().await.into_iter().sum();
    for client in [&a, &b] {
        let attr = client.getattr(&Cred::root(), dir).await.unwrap().attr;
        assert_eq!(attr.nlink, 2 + dirs);
    }
    a.umount().await;
    b.umount().await;
    cluster.stop().await;
}
