//! Tests of local objects and objects in memory, and of the records of the local ones.

#![allow(clippy::unwrap_used)]
use std::fs;

use super::*;
use crate::{LocalConfig, LocalIndex, MemoryObjects};
use wire::Time;

fn fid(oid: u32) -> Fid {
    Fid {
        f_seq: 0x2_4000_0400,
        f_oid: oid,
        f_ver: 0,
    }
}

fn local(dir: &Path) -> LocalObjects {
    let index = Arc::new(LocalIndex::open(&dir.join("index"), LocalConfig::default()).unwrap());
    LocalObjects::open(&dir.join("objects"), index).unwrap()
}

async fn bytes(o: &dyn Objects, oid: u32, offset: u64, len: u32) -> Vec<u8> {
    o.read(fid(oid), offset, len).await.unwrap().concat()
}

/// The behaviour that both implementations share.
async fn check_objects_behaviour(o: &dyn Objects) {
    let none = SetAttr::default();
    assert_eq!(o.attr(fid(1)).await.unwrap(), None);
    assert!(bytes(o, 1, 0, 10).await.is_empty());
    let attr = SetAttr {
        uid: Some(7),
        mtime: Some(Time::new(5, 6)),
        data_version: Some(9),
        ..none
    };
    o.write(
        fid(1),
        3,
        vec![Bytes::from_static(b"abc"), Bytes::from_static(b"def")],
        attr,
    )
    .await
    .unwrap();
    assert_eq!(bytes(o, 1, 0, 100).await, b"\0\0\0abcdef");
    assert_eq!(bytes(o, 1, 4, 2).await, b"bc");
    let a = o.attr(fid(1)).await.unwrap().unwrap();
    assert_eq!(
        (a.size, a.uid, a.mtime, a.data_version),
        (9, 7, Time::new(5, 6), 9)
    );
    assert!(a.blocks > 0);
    // A hole, and a read beyond the end.
    let far = 10 << 20;
    o.write(fid(1), far, vec![Bytes::from_static(b"x")], none)
        .await
        .unwrap();
    assert_eq!(
        o.read(fid(1), 0, u32::MAX)
            .await
            .unwrap()
            .iter()
            .map(Bytes::len)
            .max(),
        Some(1 << 20)
    );
    assert_eq!(o.seek(fid(1), 0, Seek::Data).await.unwrap(), 0);
    let hole = o.seek(fid(1), 0, Seek::Hole).await.unwrap();
    assert!((9..far).contains(&hole));
    let data = o.seek(fid(1), hole, Seek::Data).await.unwrap();
    assert!((hole..=far).contains(&data));
    assert_eq!(o.seek(fid(1), data, Seek::Hole).await.unwrap(), far + 1);
    assert!(matches!(
        o.seek(fid(1), far + 1, Seek::Data).await,
        Err(OsdError::NotFound)
    ));
    // Punch, truncate down and up.
    o.punch(fid(1), 4, 6, none).await.unwrap();
    assert_eq!(bytes(o, 1, 0, 9).await, b"\0\0\0a\0\0def");
    o.punch(fid(1), 5, u64::MAX, none).await.unwrap();
    o.punch(fid(1), 8, u64::MAX, none).await.unwrap();
    assert_eq!(bytes(o, 1, 0, 100).await, b"\0\0\0a\0\0\0\0");
    o.fallocate(fid(1), 0, 20, true).await.unwrap();
    assert_eq!(o.attr(fid(1)).await.unwrap().unwrap().size, 8);
    o.fallocate(fid(1), 0, 20, false).await.unwrap();
    assert_eq!(o.attr(fid(1)).await.unwrap().unwrap().size, 20);
    // Attributes of an object without data; destroy.
    o.setattr(fid(2), SetAttr { gid: Some(3), ..none }).await.unwrap();
    assert_eq!(o.attr(fid(2)).await.unwrap().unwrap().gid, 3);
    o.sync(Some(fid(1))).await.unwrap();
    o.sync(None).await.unwrap();
    assert!(o.destroy(fid(1)).await.unwrap());
    assert!(!o.destroy(fid(1)).await.unwrap());
    assert_eq!(o.attr(fid(1)).await.unwrap(), None);
    o.write(fid(1), 0, vec![Bytes::from_static(b"new")], none)
        .await
        .unwrap();
    assert_eq!(bytes(o, 1, 0, 9).await, b"new");
}

/// Several extents in one call, for both implementations.
async fn check_extents(o: &dyn Objects) {
    let piece = |offset, text: &'static str| ExtentData {
        offset,
        data: vec![Bytes::from_static(text.as_bytes())],
    };
    let extents = vec![
        piece(8, "cd"),
        piece(1 << 20, "end"),
        piece(0, "ab"),
        piece(9, "D"),
    ];
    let attr = SetAttr {
        uid: Some(7),
        ..SetAttr::default()
    };
    let written = o.write_extents(fid(1), extents, attr).await.unwrap();
    assert!(written.len() == 4 && written.iter().all(Result::is_ok));
    let extents = [(0, 3), ((1 << 20) + 1, 9), (2 << 20, 4), (7, 3)];
    let read = |oid| {
        o.read_extents(
            fid(oid),
            extents.map(|(offset, len)| Extent { offset, len }).to_vec(),
        )
    };
    let data = read(1).await.unwrap();
    let data: Vec<Vec<u8>> = data.iter().map(|pieces| pieces.concat()).collect();
    assert_eq!(data, [&b"ab\0"[..], b"nd", b"", b"\0cD"]);
    assert_eq!(read(2).await.unwrap(), vec![Vec::<Bytes>::new(); 4]);
    assert_eq!(o.attr(fid(1)).await.unwrap().unwrap().uid, 7);
}

#[tokio::test]
async fn local_objects_pass_the_shared_checks() {
    let dir = tempfile::tempdir().unwrap();
    check_objects_behaviour(&local(dir.path())).await;
    let dir = tempfile::tempdir().unwrap();
    check_extents(&local(dir.path())).await;
}

#[tokio::test]
async fn memory_objects_pass_the_shared_checks() {
    check_objects_behaviour(&MemoryObjects::default()).await;
    check_extents(&MemoryObjects::default()).await;
}

#[tokio::test]
async fn memory_objects_reserve_and_release_space_and_fail_when_full() {
    let space = crate::Space::of_memory(1 << 20);
    let o = MemoryObjects::new(space.clone());
    let none = SetAttr::default();
    let put = |oid, at, n: usize| o.write(fid(oid), at, vec![Bytes::from(vec![7; n])], none);
    put(1, 0, 10).await.unwrap();
    put(1, 5000, 10).await.unwrap();
    assert_eq!(
        o.attr(fid(1)).await.unwrap().unwrap().blocks,
        16,
        "two pages, not a chunk"
    );
    let used = || space.statfs().map(|s| (s.blocks - s.bfree) * 4096).unwrap();
    assert_eq!(used(), 8192);
    o.fallocate(fid(2), 0, 900 << 10, true).await.unwrap();
    assert!(matches!(
        o.fallocate(fid(2), 0, 1 << 44, true).await,
        Err(OsdError::NoSpace)
    ));
    assert!(matches!(put(3, 0, 200 << 10).await, Err(OsdError::NoSpace)));
    put(2, 0, 900 << 10).await.unwrap();
    assert_eq!(used(), 8192 + (900 << 10), "an overwrite takes no further space");
    o.punch(fid(2), 100, 899 << 10, none).await.unwrap();
    assert_eq!(bytes(&o, 2, 99, 2).await, [7, 0]);
    assert_eq!(bytes(&o, 2, (899 << 10) - 1, 2).await, [0, 7]);
    assert!(used() < 8192 + (80 << 10), "{}", used());
    o.punch(fid(2), 10, u64::MAX, none).await.unwrap();
    assert_eq!(used(), 8192 + 4096);
    assert!(
        o.destroy(fid(1)).await.unwrap()
            && o.destroy(fid(2)).await.unwrap()
            && o.destroy(fid(3)).await.unwrap()
    );
    assert_eq!((used(), space.statfs().unwrap().files), (0, 256));
}

#[tokio::test]
async fn attributes_and_data_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let attr = SetAttr {
        uid: Some(1),
        parent: Some(fid(77)),
        data_version: Some(5),
        ..SetAttr::default()
    };
    {
        let o = local(dir.path());
        o.write(fid(1), 0, vec![Bytes::from_static(b"data")], attr)
            .await
            .unwrap();
        let later = SetAttr {
            mtime: Some(Time::new(8, 9)),
            ..SetAttr::default()
        };
        o.write(fid(1), 4, vec![Bytes::from_static(b"more")], later)
            .await
            .unwrap();
        o.sync(Some(fid(1))).await.unwrap();
    }
    let o = local(dir.path());
    let a = o.attr(fid(1)).await.unwrap().unwrap();
    assert_eq!(
        (a.size, a.uid, a.parent, a.data_version, a.mtime),
        (8, 1, fid(77), 5, Time::new(8, 9))
    );
    assert_eq!(bytes(&o, 1, 0, 9).await, b"datamore");
}

#[tokio::test]
async fn evicted_objects_keep_their_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    for i in 1..=1500 {
        let attr = SetAttr {
            uid: Some(i),
            ..SetAttr::default()
        };
        o.write(fid(i), 0, vec![Bytes::from_static(b"1")], attr)
            .await
            .unwrap();
        o.write(
            fid(i),
            1,
            vec![Bytes::from_static(b"2")],
            SetAttr { gid: Some(i), ..attr },
        )
        .await
        .unwrap();
    }
    for i in 1..=1500 {
        let a = o.attr(fid(i)).await.unwrap().unwrap();
        assert_eq!((a.uid, a.gid, a.size), (i, i, 2));
    }
    o.destroy(fid(1)).await.unwrap();
    assert_eq!(o.shared.cache.removed_in().len(), 1);
    o.sync(None).await.unwrap();
    assert!(o.shared.cache.all_dirty().is_empty());
    assert!(o.shared.cache.removed_in().is_empty());
}

/// Whether a new object without an entry is known to be absent. Reads the index until its reads are
/// fast: otherwise the answer may be [`CachedAttr::Unknown`].
async fn is_absent(o: &LocalObjects, oid: u32) -> bool {
    while let Err(read) = o.shared.index.get(&record::key(&fid(oid))).now() {
        read.await.unwrap();
    }
    o.cached_attr(fid(oid), true) == CachedAttr::Absent
}

#[tokio::test]
async fn never_written_new_object_is_absent_without_a_lookup() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    // A file in place of the object's directory: a lookup fails.
    let blocking_file = dir.path().join("objects").join(format!("{:x}", fid(1).f_seq));
    fs::write(&blocking_file, b"").unwrap();
    assert!(is_absent(&o, 1).await);
    assert_eq!(o.cached_attr(fid(1), false), CachedAttr::Unknown);
    assert!(o.attr(fid(1)).await.is_err());
    fs::remove_file(&blocking_file).unwrap();

    let write = |oid| o.write(fid(oid), 0, vec![Bytes::from_static(b"data")], SetAttr::default());
    write(1).await.unwrap();
    assert!(matches!(o.cached_attr(fid(1), true), CachedAttr::Present(a) if a.size == 4));
    for oid in 2..1500 {
        write(oid).await.unwrap();
    }
    assert!(!is_absent(&o, 1).await, "evicted from the cache");
    assert_eq!(o.attr(fid(1)).await.unwrap().unwrap().size, 4);
    assert!(o.destroy(fid(1)).await.unwrap());
    assert!(is_absent(&o, 1).await);
}

#[tokio::test]
async fn destroy_before_a_waiting_first_write_makes_the_write_fail() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    let entry = o.entry(fid(1)).await.unwrap();
    let write_lock = entry.write_lock.clone().lock_owned().await;
    let mut write = o.write(fid(1), 0, vec![Bytes::from_static(b"data")], SetAttr::default());
    tokio::select! {
        biased;
        done = &mut write => panic!("the write lock is held: {done:?}"),
        () = std::future::ready(()) => {}
    }
    // A destroy skips objects that are known to be absent.
    if o.cached_attr(fid(1), true) != CachedAttr::Absent {
        o.destroy(fid(1)).await.unwrap();
    }
    drop((write_lock, entry));
    assert!(matches!(write.await, Err(OsdError::NotFound)));
    assert_eq!(o.attr(fid(1)).await.unwrap(), None);
}

#[tokio::test]
async fn failed_change_that_created_a_file_writes_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    let max_size = i64::MAX as u64;
    o.fallocate(fid(1), 0, max_size, false).await.unwrap_err();
    o.punch(fid(2), max_size, u64::MAX, SetAttr::default())
        .await
        .unwrap_err();
    for oid in [1, 2] {
        let record = o.shared.index.get(&record::key(&fid(oid))).wait().unwrap();
        assert!(record.is_some(), "{oid}");
        assert!(o.destroy(fid(oid)).await.unwrap());
    }
}

fn path_of(dir: &Path, oid: u32) -> PathBuf {
    file_path(&dir.join("objects"), &fid(oid), 0)
}

/// Writes objects of 100 bytes; they and their records are on disk when this returns.
async fn write_and_sync(dir: &Path, oids: std::ops::Range<u32>) {
    let o = local(dir);
    for oid in oids {
        o.write(fid(oid), 0, vec![Bytes::from(vec![7; 100])], SetAttr::default())
            .await
            .unwrap();
    }
    o.sync(None).await.unwrap();
}

#[tokio::test]
async fn missing_or_truncated_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write_and_sync(dir.path(), 1..5).await;
    fs::remove_file(path_of(dir.path(), 1)).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(path_of(dir.path(), 2))
        .unwrap()
        .set_len(99)
        .unwrap();
    let o = local(dir.path());
    for oid in [1, 2] {
        let damaged = |e: OsdError| assert!(matches!(e, OsdError::DamagedObject { .. }), "{e}");
        damaged(o.read(fid(oid), 0, 10).await.unwrap_err());
        damaged(o.attr(fid(oid)).await.unwrap_err());
        damaged(o.seek(fid(oid), 0, Seek::Data).await.unwrap_err());
        damaged(o.fallocate(fid(oid), 0, 10, false).await.unwrap_err());
        let more = vec![Bytes::from_static(b"x")];
        damaged(o.write(fid(oid), 0, more, SetAttr::default()).await.unwrap_err());
        damaged(
            o.punch(fid(oid), 100, u64::MAX, SetAttr::default())
                .await
                .unwrap_err(),
        );
        assert_eq!(o.cached_attr(fid(oid), false), CachedAttr::Unknown);
    }
    assert!(!path_of(dir.path(), 1).exists());
    assert_eq!(bytes(&o, 3, 0, 200).await.len(), 100);
    // An object that is destroyed or truncated to 0 no longer counts as damaged.
    assert!(o.destroy(fid(1)).await.unwrap());
    assert_eq!(o.attr(fid(1)).await.unwrap(), None);
    o.punch(fid(2), 0, u64::MAX, SetAttr::default()).await.unwrap();
    assert_eq!(o.attr(fid(2)).await.unwrap().unwrap().size, 0);
    o.sync(None).await.unwrap();
    drop(o);
    assert_eq!(local(dir.path()).attr(fid(2)).await.unwrap().unwrap().size, 0);
}

#[tokio::test]
async fn file_truncated_while_open_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    o.write(fid(1), 0, vec![Bytes::from(vec![7; 100])], SetAttr::default())
        .await
        .unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(path_of(dir.path(), 1))
        .unwrap()
        .set_len(50)
        .unwrap();
    let e = o.read(fid(1), 0, 100).await.unwrap_err();
    assert!(
        e.to_string().contains("ends at byte 50, expected at least 100"),
        "{e}"
    );
    assert_eq!(e.errno(), wire::Errno::EIO);
}

#[tokio::test]
async fn unsynced_data_may_be_missing_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    write_and_sync(dir.path(), 1..2).await;
    let o = local(dir.path());
    o.write(fid(2), 0, vec![Bytes::from_static(b"new")], SetAttr::default())
        .await
        .unwrap();
    o.write(fid(1), 100, vec![Bytes::from_static(b"more")], SetAttr::default())
        .await
        .unwrap();
    drop(o);
    fs::remove_file(path_of(dir.path(), 2)).unwrap();
    fs::OpenOptions::new()
        .write(true)
        .open(path_of(dir.path(), 1))
        .unwrap()
        .set_len(100)
        .unwrap();
    let o = local(dir.path());
    assert!(bytes(&o, 2, 0, 9).await.is_empty());
    assert_eq!(bytes(&o, 1, 0, 200).await.len(), 100);
}

#[tokio::test]
async fn truncate_waits_for_the_record_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let index = Arc::new(power_cut::PowerIndex::new());
    let o = LocalObjects::open(&dir.path().join("objects"), index.clone()).unwrap();
    let data = vec![Bytes::from(vec![7; 100])];
    o.write(fid(1), 0, data, SetAttr::default()).await.unwrap();
    o.sync(None).await.unwrap();
    index.switch_off();
    o.punch(fid(1), 10, u64::MAX, SetAttr::default())
        .await
        .unwrap_err();
    assert_eq!(fs::metadata(path_of(dir.path(), 1)).unwrap().len(), 100);
}

#[tokio::test]
async fn truncate_records_the_new_size() {
    let dir = tempfile::tempdir().unwrap();
    write_and_sync(dir.path(), 1..2).await;
    let o = local(dir.path());
    o.punch(fid(1), 10, u64::MAX, SetAttr::default()).await.unwrap();
    let record = o.shared.index.get(&record::key(&fid(1))).wait().unwrap().unwrap();
    assert_eq!(record::read(&record).unwrap().durable_size, Some(10));
    drop(o);
    assert_eq!(bytes(&local(dir.path()), 1, 0, 200).await.len(), 10);
}

#[tokio::test]
async fn sync_overtaken_by_a_truncate_records_no_size() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    o.write(fid(1), 0, vec![Bytes::from(vec![7; 100])], SetAttr::default())
        .await
        .unwrap();
    let dirty = o.shared.cache.all_dirty();
    o.punch(fid(1), 10, u64::MAX, SetAttr::default()).await.unwrap();
    o.shared.record_durable_sizes(&dirty);
    let durable_size = |o: &LocalObjects| o.shared.cache.find(&fid(1)).unwrap().state.lock().durable_size;
    assert_eq!(durable_size(&o), None);
    o.sync(None).await.unwrap();
    assert_eq!(durable_size(&o), Some(10));
}
