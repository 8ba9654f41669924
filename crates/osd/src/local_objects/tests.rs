//! What both kinds of objects do, and what the local ones keep.

#![allow(clippy::unwrap_used)]
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

/// What both implementations do.
async fn behaves_as_objects_do(o: &dyn Objects) {
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
    // A hole, and what is beyond the end.
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
    // Attributes without data; gone is gone.
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

#[tokio::test]
async fn local_objects_behave() {
    let dir = tempfile::tempdir().unwrap();
    behaves_as_objects_do(&local(dir.path())).await;
}

#[tokio::test]
async fn memory_objects_behave() {
    behaves_as_objects_do(&MemoryObjects::default()).await;
}

#[tokio::test]
async fn memory_is_counted_to_the_byte_refused_when_there_is_no_more_and_comes_back() {
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
    assert_eq!(
        used(),
        8192 + (900 << 10),
        "space that is taken is not taken again"
    );
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
async fn more_objects_than_the_cache_holds_keep_their_attributes() {
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

#[tokio::test]
async fn of_a_new_object_that_was_never_written_it_is_known_that_it_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    // Where its directory would be: who looks for it, fails.
    let in_the_way = dir.path().join("objects").join(format!("{:x}", fid(1).f_seq));
    fs::write(&in_the_way, b"").unwrap();
    assert_eq!(o.attr_now(fid(1), true), Some(None));
    assert_eq!(o.attr_now(fid(1), false), None);
    assert!(o.attr(fid(1)).await.is_err());
    fs::remove_file(&in_the_way).unwrap();

    let write = |oid| o.write(fid(oid), 0, vec![Bytes::from_static(b"data")], SetAttr::default());
    write(1).await.unwrap();
    let size = |attr: Option<Option<ObjAttr>>| attr.unwrap().map(|a| a.size);
    assert_eq!(size(o.attr_now(fid(1), true)), Some(4));
    for oid in 2..1500 {
        write(oid).await.unwrap();
    }
    assert_eq!(o.attr_now(fid(1), true), None, "it left the cache");
    assert_eq!(size(Some(o.attr(fid(1)).await.unwrap())), Some(4));
    assert!(o.destroy(fid(1)).await.unwrap());
    assert_eq!(o.attr_now(fid(1), true), Some(None));
}

#[tokio::test]
async fn an_object_that_is_removed_before_its_first_write_has_its_turn_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    let entry = o.entry(fid(1)).await.unwrap();
    let turn = entry.writing.clone().lock_owned().await;
    let mut write = o.write(fid(1), 0, vec![Bytes::from_static(b"data")], SetAttr::default());
    tokio::select! {
        biased;
        done = &mut write => panic!("it is not its turn: {done:?}"),
        () = std::future::ready(()) => {}
    }
    // Whoever removes objects leaves out those of which it is known that they are not there.
    if o.attr_now(fid(1), true) != Some(None) {
        o.destroy(fid(1)).await.unwrap();
    }
    drop((turn, entry));
    assert!(matches!(write.await, Err(OsdError::NotFound)));
    assert_eq!(o.attr(fid(1)).await.unwrap(), None);
}

#[tokio::test]
async fn a_file_that_a_failed_change_has_made_is_known_by_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    let most = i64::MAX as u64;
    o.fallocate(fid(1), 0, most, false).await.unwrap_err();
    o.punch(fid(2), most, u64::MAX, SetAttr::default())
        .await
        .unwrap_err();
    for oid in [1, 2] {
        let record = o.shared.index.get(&record::key(&fid(oid))).unwrap();
        assert!(record.is_some(), "{oid}");
        assert!(o.destroy(fid(oid)).await.unwrap());
    }
}

fn path_of(dir: &Path, oid: u32) -> PathBuf {
    file_path(&dir.join("objects"), &fid(oid))
}

/// Writes objects of 100 bytes, which are on disk with their records when this returns.
async fn written(dir: &Path, oids: std::ops::Range<u32>) {
    let o = local(dir);
    for oid in oids {
        o.write(fid(oid), 0, vec![Bytes::from(vec![7; 100])], SetAttr::default())
            .await
            .unwrap();
    }
    o.sync(None).await.unwrap();
}

#[tokio::test]
async fn a_missing_or_shorter_file_is_an_error_and_not_an_empty_object() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 1..5).await;
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
        assert_eq!(o.attr_now(fid(oid), false), None);
    }
    assert!(!path_of(dir.path(), 1).exists());
    assert_eq!(bytes(&o, 3, 0, 200).await.len(), 100);
    // What is removed or emptied is whole again.
    assert!(o.destroy(fid(1)).await.unwrap());
    assert_eq!(o.attr(fid(1)).await.unwrap(), None);
    o.punch(fid(2), 0, u64::MAX, SetAttr::default()).await.unwrap();
    assert_eq!(o.attr(fid(2)).await.unwrap().unwrap().size, 0);
    o.sync(None).await.unwrap();
    drop(o);
    assert_eq!(local(dir.path()).attr(fid(2)).await.unwrap().unwrap().size, 0);
}

#[tokio::test]
async fn a_file_that_becomes_shorter_while_it_is_open_is_an_error() {
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
async fn what_was_never_synced_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 1..2).await;
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
async fn a_file_is_cut_only_after_its_record_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let index = Arc::new(power::PowerIndex::new());
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
async fn a_cut_file_is_recorded_with_its_new_size() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 1..2).await;
    let o = local(dir.path());
    o.punch(fid(1), 10, u64::MAX, SetAttr::default()).await.unwrap();
    let record = o.shared.index.get(&record::key(&fid(1))).unwrap().unwrap();
    assert_eq!(record::read(&record).unwrap().1, Some(10));
    drop(o);
    assert_eq!(bytes(&local(dir.path()), 1, 0, 200).await.len(), 10);
}

#[tokio::test]
async fn a_sync_that_a_cut_overtakes_records_no_size() {
    let dir = tempfile::tempdir().unwrap();
    let o = local(dir.path());
    o.write(fid(1), 0, vec![Bytes::from(vec![7; 100])], SetAttr::default())
        .await
        .unwrap();
    let dirty = o.shared.cache.all_dirty();
    o.punch(fid(1), 10, u64::MAX, SetAttr::default()).await.unwrap();
    o.shared.settle(&dirty);
    let state = |o: &LocalObjects| o.shared.cache.find(&fid(1)).unwrap().state.lock().on_disk;
    assert_eq!(state(&o), None);
    o.sync(None).await.unwrap();
    assert_eq!(state(&o), Some(10));
}
