//! Takeovers by force: another server opens a shared target while its server still runs.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use bytes::Bytes;
use osd::check::{ObjectFiles, Progress, object_generation};
use osd::target::{TargetDir, TargetError, TargetKind, TargetLabel, TargetServer};
use osd::{Batch, Index, LocalStores, Objects, OsdError, SetAttr, Stores};
use wire::Fid;

fn label(nodes: &[&str]) -> TargetLabel {
    let mut label = TargetLabel::new(TargetKind::Ost, "testfs", 0, "0123abcd");
    label.service_nodes = nodes.iter().map(|nid| nid.parse().unwrap()).collect();
    label
}

fn shared_label() -> TargetLabel {
    label(&["10.0.0.1@tcp", "10.0.0.2@tcp"])
}

/// Takes a target over from its present server.
fn take_over(path: &Path) -> Result<TargetDir, TargetError> {
    TargetDir::take_over(path, &TargetServer::of(path)?)
}

/// A running server of a target.
struct Server {
    dir: TargetDir,
    index: Arc<dyn Index>,
    objects: Arc<dyn Objects>,
}

impl Server {
    async fn start(dir: TargetDir) -> Server {
        let stores = LocalStores::of(&dir);
        let index = stores.open_index().await.unwrap();
        let objects = stores.open_objects(&index).await.unwrap();
        stores.set_has_run().await.unwrap();
        Server { dir, index, objects }
    }

    async fn take_over(path: &Path) -> Server {
        Server::start(take_over(path).unwrap()).await
    }

    fn put(&self, key: &str, value: &str) -> Result<(), OsdError> {
        let mut batch = Batch::new();
        batch.put(key.to_owned(), value.to_owned());
        self.index.apply(batch)
    }

    async fn get(&self, key: &str) -> Option<Bytes> {
        self.index.get(key.as_bytes()).await.unwrap()
    }

    async fn write(&self, oid: u32, offset: u64, data: &str) -> Result<(), OsdError> {
        let data = vec![Bytes::from(data.to_owned())];
        self.objects
            .write(fid(oid), offset, data, SetAttr::default())
            .await
    }

    async fn read(&self, oid: u32) -> String {
        let read = self.objects.read(fid(oid), 0, 1 << 20).await.unwrap();
        String::from_utf8(read.concat()).unwrap()
    }
}

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_4000_0400, oid, 0)
}

#[tokio::test]
async fn after_a_takeover_nothing_counts_that_the_old_server_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let old = Server::start(TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap()).await;
    old.put("durable", "1").unwrap();
    old.write(1, 0, "settled").await.unwrap();
    old.objects.sync(None).await.unwrap();
    let new = Server::take_over(&path).await;
    assert_eq!(new.dir.fence().generation(), 1);
    assert_eq!(new.get("durable").await.unwrap(), "1");
    // The old server applies changes, but none becomes durable.
    // Its committer may have found the new generation already.
    let _ = old.put("late", "1");
    let refused = old.index.sync().await.unwrap_err().to_string();
    assert!(refused.contains("taken the target over"), "{refused}");
    assert!(matches!(old.put("later", "1"), Err(OsdError::TakenOver { .. })));
    assert!(old.objects.sync(None).await.is_err());
    old.dir.fence().check().unwrap_err();
    new.put("own", "1").unwrap();
    new.index.sync().await.unwrap();
    assert_eq!(new.get("late").await, None);
    drop((old, new));
    // The next start finds the new generation, and removes the old one.
    let again = Server::start(TargetDir::open(&path).unwrap()).await;
    assert_eq!(
        (again.get("own").await.unwrap(), again.get("late").await),
        (Bytes::from("1"), None)
    );
    assert_eq!(again.read(1).await, "settled");
    assert!(again.dir.fence().remove_earlier_generations().unwrap());
    assert!(!path.join("index").exists() && !path.join("lock").exists());
    drop(again);
    let _ = Server::start(TargetDir::open(&path).unwrap()).await;
}

#[tokio::test]
async fn late_write_of_the_old_server_does_not_reach_objects() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let old = Server::start(TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap()).await;
    for oid in 1..=3 {
        old.write(oid, 0, "old data").await.unwrap();
    }
    old.objects.sync(None).await.unwrap();
    while old.objects.settle(true).await.unwrap() {}
    // The old server is changing object 1 and has opened 2; it has no mark of 2 and 3.
    old.write(1, 8, " and more").await.unwrap();
    assert_eq!(old.read(2).await, "old data");
    let new = Server::take_over(&path).await;
    assert_eq!(new.read(1).await, "old data and more");
    // A write that passed the fence before the takeover arrives now.
    let name = |oid: u32| path.join(format!("objects/240000400/{oid:02x}/{oid:x}"));
    assert!(!name(1).exists(), "the copied file is removed");
    assert!(old.write(1, 0, "LATE").await.is_err() || new.read(1).await == "old data and more");
    // A write to an object without a mark waits for the mark, which cannot become durable.
    old.write(2, 0, "LATE").await.unwrap_err();
    old.objects
        .punch(fid(3), 0, u64::MAX, SetAttr::default())
        .await
        .unwrap_err();
    old.objects
        .fallocate(fid(3), 0, 1 << 20, false)
        .await
        .unwrap_err();
    // A new object of the old server does not become one of the new server.
    let _ = old.write(9, 0, "LATE").await;
    assert_eq!(new.read(2).await, "old data");
    assert_eq!(new.read(3).await, "old data");
    assert_eq!(new.objects.attr(fid(9)).await.unwrap(), None);
    new.write(9, 0, "new data").await.unwrap();
    new.write(1, 0, "NEW").await.unwrap();
    new.objects.sync(None).await.unwrap();
    let _ = old.write(9, 0, "LATE").await;
    drop(old);
    drop(new);
    let again = Server::start(TargetDir::open(&path).unwrap()).await;
    assert_eq!(again.read(9).await, "new data");
    assert_eq!(again.read(1).await, "NEW data and more");
    assert_eq!(object_generation(&*again.index, &fid(1)).await.unwrap(), 1);
    assert_eq!(object_generation(&*again.index, &fid(2)).await.unwrap(), 0);
    let files = ObjectFiles::read(&path.join("objects"), &Progress::default()).unwrap();
    assert_eq!(files.objects.len(), 4);
    assert!(
        files.strays.len() <= 1,
        "only the late object 9: {:?}",
        files.strays
    );
}

#[tokio::test]
async fn late_write_to_a_new_object_does_not_reach_the_next_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let old = Server::start(TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap()).await;
    // The record becomes durable; the data may stay in the page cache of the old server's node.
    old.write(1, 0, "data").await.unwrap();
    old.index.sync().await.unwrap();
    let name = path.join("objects/240000400/01/1");
    let page_cache = fs::OpenOptions::new().write(true).open(&name).unwrap();
    let new = Server::take_over(&path).await;
    assert_eq!(new.read(1).await, "data");
    page_cache.write_all_at(b"LATE", 0).unwrap();
    assert_eq!(new.read(1).await, "data");
    assert_eq!(object_generation(&*new.index, &fid(1)).await.unwrap(), 1);
    // The marks of new objects go as those of others.
    new.write(2, 0, "data").await.unwrap();
    new.objects.sync(None).await.unwrap();
    while new.objects.settle(true).await.unwrap() {}
    let marks = new.index.scan(&[0xf4], &[0xf5], 9).await.unwrap();
    assert!(marks.is_empty(), "{marks:?}");
}

#[tokio::test]
async fn server_that_was_taken_over_reacts_before_its_callers_see_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let target = TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap();
    let reactions = Arc::new(AtomicU32::new(0));
    let counter = reactions.clone();
    target.fence().when_taken_over(move |e| {
        assert!(matches!(e, OsdError::TakenOver { .. }), "{e}");
        counter.fetch_add(1, SeqCst);
    });
    let old = Server::start(target).await;
    old.put("a", "1").unwrap();
    old.index.sync().await.unwrap();
    assert_eq!(reactions.load(SeqCst), 0);
    let _new = take_over(&path).unwrap();
    old.put("b", "1").unwrap();
    let refused = old.index.sync().await.unwrap_err();
    assert!(reactions.load(SeqCst) > 0);
    assert!(matches!(refused, OsdError::TakenOver { .. }), "{refused}");
    let seen = reactions.load(SeqCst);
    old.write(1, 0, "x").await.unwrap_err();
    let refused = old.objects.sync(None).await.unwrap_err();
    assert!(!refused.to_string().contains("Check the disk"), "{refused}");
    assert!(reactions.load(SeqCst) >= seen);
}

/// Takes a target over again and again while servers put numbered keys and report those that are
/// durable: the next server must have each of these.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_durable_batch_survives_takeovers_at_any_moment() {
    const GENERATIONS: u32 = 12;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let mut server =
        Arc::new(Server::start(TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap()).await);
    let mut servers = Vec::new();
    for generation in 0..GENERATIONS {
        let (durable, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let writer = tokio::spawn({
            let (server, durable, stop) = (server.clone(), durable.clone(), stop.clone());
            async move {
                let value = "x".repeat(5000);
                for n in 1.. {
                    let put = server.put(&format!("{generation}-{n}"), &value);
                    if put.is_err() || stop.load(SeqCst) || server.index.sync().await.is_err() {
                        return;
                    }
                    durable.store(n, SeqCst);
                }
            }
        });
        // Let it report some batches.
        while durable.load(SeqCst) < 5 + generation {
            tokio::task::yield_now().await;
        }
        let next = tokio::task::spawn_blocking({
            let path = path.clone();
            move || take_over(&path).unwrap()
        });
        let next = Arc::new(Server::start(next.await.unwrap()).await);
        stop.store(true, SeqCst);
        writer.await.unwrap();
        for n in 1..=durable.load(SeqCst) {
            assert!(
                next.get(&format!("{generation}-{n}")).await.is_some(),
                "generation {generation} lost batch {n}"
            );
        }
        servers.push(std::mem::replace(&mut server, next));
    }
    drop(servers);
    assert!(server.dir.fence().remove_earlier_generations().unwrap());
    let left = fs::read_dir(&path).unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name().into_string().unwrap();
        name.starts_with("index") || name.starts_with("lock")
    });
    assert_eq!(left.count(), 2);
}

#[tokio::test]
async fn interrupted_takeover_is_completed_by_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let old = Server::start(TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap()).await;
    old.put("durable", "1").unwrap();
    old.write(1, 0, "data").await.unwrap();
    old.objects.sync(None).await.unwrap();
    old.write(1, 0, "DATA").await.unwrap();
    old.index.sync().await.unwrap();
    // Killed before it made its index.
    drop(take_over(&path).unwrap());
    // Killed while it copied the index.
    let killed = take_over(&path).unwrap();
    assert_eq!(killed.fence().generation(), 1);
    fs::create_dir(path.join("index.1.new")).unwrap();
    drop(killed);
    let new = Server::take_over(&path).await;
    assert_eq!(
        new.dir.fence().generation(),
        1,
        "the lock of generation 1 was free"
    );
    assert_eq!(new.get("durable").await.unwrap(), "1");
    assert_eq!(new.read(1).await, "DATA");
}

#[tokio::test]
async fn two_takeovers_at_once_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let old = Server::start(TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap()).await;
    old.put("durable", "1").unwrap();
    old.index.sync().await.unwrap();
    // The server of generation 1 hangs while it copies the index.
    let hanging = take_over(&path).unwrap();
    let copying = path.join("index.1.new");
    fs::create_dir(&copying).unwrap();
    let new = Server::take_over(&path).await;
    assert_eq!(new.get("durable").await.unwrap(), "1");
    assert!(copying.exists());
    drop((old, hanging));
    assert!(new.dir.fence().remove_earlier_generations().unwrap());
    assert!(!copying.exists());
    drop(new);
    fs::create_dir(path.join("index.7.new")).unwrap();
    fs::write(path.join("lock.7"), "").unwrap();
    TargetDir::destroy(&path).unwrap();
    assert_eq!(fs::read_dir(&path).map_or(0, Iterator::count), 0);
}

#[test]
fn target_is_taken_over_only_from_the_server_that_was_seen() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ost");
    let first = TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap();
    let nids = ["10.0.0.1@tcp", "10.0.0.1@tcp1"].map(|nid| nid.parse().unwrap());
    assert!(TargetServer::of(&path).unwrap().nids().is_empty());
    first.record_nids(&nids).unwrap();
    let seen = TargetServer::of(&path).unwrap();
    assert_eq!(seen.nids(), nids);
    TargetDir::check_take_over(&path).unwrap();
    assert_eq!(
        TargetServer::of(&path).unwrap(),
        seen,
        "the check changes nothing"
    );
    let second = TargetDir::take_over(&path, &seen).unwrap();
    second.record_nids(&nids[..1]).unwrap();
    let refused = TargetDir::take_over(&path, &seen).unwrap_err();
    assert!(matches!(refused, TargetError::InUse { .. }), "{refused}");
    assert!(refused.to_string().contains("nids 10.0.0.1@tcp)"), "{refused}");
    assert_eq!(TargetServer::of(&path).unwrap().nids(), nids[..1]);
    second.fence().check().unwrap();
    // The same generation, but another server.
    let seen = TargetServer::of(&path).unwrap();
    drop(second);
    let third = TargetDir::open(&path).unwrap();
    third.record_nids(&nids[1..]).unwrap();
    let refused = TargetDir::take_over(&path, &seen).unwrap_err();
    assert!(matches!(refused, TargetError::InUse { .. }), "{refused}");
    third.fence().check().unwrap();
}

#[test]
fn only_shared_targets_can_be_taken_over_and_only_one_server_wins() {
    let dir = tempfile::tempdir().unwrap();
    let single = dir.path().join("single");
    let used = TargetDir::create(&single, &label(&["10.0.0.1@tcp"]), |_| Ok(())).unwrap();
    assert!(matches!(take_over(&single), Err(TargetError::NotShared(_))));
    drop(used);
    // A free lock needs no force.
    take_over(&single).unwrap();

    let path = dir.path().join("shared");
    let old = TargetDir::create(&path, &shared_label(), |_| Ok(())).unwrap();
    let new = take_over(&path).unwrap();
    assert!(matches!(TargetDir::open(&path), Err(TargetError::InUse { .. })));
    drop(old);
    assert!(matches!(TargetDir::open(&path), Err(TargetError::InUse { .. })));
    assert!(matches!(
        TargetDir::open_read_only(&path),
        Err(TargetError::InUse { .. })
    ));
    drop(new);
    assert_eq!(TargetDir::open(&path).unwrap().fence().generation(), 1);
    TargetDir::destroy(&path).unwrap();
    assert_eq!(fs::read_dir(&path).map_or(0, Iterator::count), 0);
}
