//! Mounts with a nodemap that requires capabilities for objects work as others do, and continue
//! when capabilities expire, keys are replaced, or the requirement changes.

#![allow(clippy::unwrap_used)]

use crate::cluster::Cluster;
use bytes::Bytes;
use client::{Client, Cred, Fallocate, OpenFile, OpenFlags, Seek, SetAttr, SetTime};
use std::sync::Arc;
use std::time::Duration;
use wire::{Errno, Fid, Time};

const RW: OpenFlags = OpenFlags::READ_WRITE;
/// Longer than the lifetime of a capability, in seconds.
const BEYOND_LIFETIME_SECS: u64 = 2000;

async fn create(c: &Client, cred: &Cred, name: &str, mode: u32) -> Arc<OpenFile> {
    let created = c.create(cred, c.root(), name.as_bytes(), mode, RW).await;
    created.unwrap().1
}

async fn write(c: &Client, file: &OpenFile, offset: u64, data: &'static [u8]) -> Result<(), Errno> {
    c.write(file, offset, Bytes::from_static(data)).await?;
    c.fsync(file, false).await
}

async fn read(c: &Client, fid: Fid) -> Vec<u8> {
    let file = c.open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    let data = c.read(&file, 0, 4096).await.unwrap().concat();
    c.release(&file).await.unwrap();
    data
}

async fn size(c: &Client, fid: Fid) -> Result<u64, Errno> {
    Ok(c.getattr(&Cred::root(), fid).await?.attr.size)
}

fn to_size(size: u64) -> SetAttr {
    SetAttr {
        size: Some(size),
        ..SetAttr::default()
    }
}

async fn end(cluster: Cluster, mounts: &[Arc<Client>]) {
    for mount in mounts {
        mount.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_mounts_work_with_required_capabilities() {
    let cluster = Cluster::start(2).await;
    cluster.require_capabilities(true).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let file = create(&a, &root, "f", 0o644).await;
    write(&a, &file, 0, b"one two").await.unwrap();
    assert_eq!(size(&b, file.fid).await, Ok(7));
    assert_eq!(read(&b, file.fid).await, b"one two");
    let other = b.open(&root, file.fid, RW).await.unwrap();
    write(&b, &other, 7, b" three").await.unwrap();
    assert_eq!(read(&a, file.fid).await, b"one two three");
    a.setattr(&root, file.fid, &to_size(3), Some(&file))
        .await
        .unwrap();
    assert_eq!(read(&b, file.fid).await, b"one");
    a.fallocate(&file, Fallocate::Allocate { keep_size: false }, 0, 8192)
        .await
        .unwrap();
    assert_eq!(size(&b, file.fid).await, Ok(8192));
    assert!(a.seek(&file, Seek::Data, 0).await.is_ok());
    a.rename(&root, (a.root(), b"f"), (a.root(), b"g")).await.unwrap();
    b.unlink(&root, b.root(), b"g").await.unwrap();
    write(&a, &file, 0, b"no name").await.unwrap();
    for (c, f) in [(&a, &file), (&b, &other)] {
        c.release(f).await.unwrap();
    }
    end(cluster, &[a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncate_and_times_of_a_closed_file_need_only_the_users_right() {
    let cluster = Cluster::start(2).await;
    cluster.require_capabilities(true).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let (root, user) = (
        Cred::root(),
        Cred {
            uid: 5,
            gid: 5,
            ..Cred::default()
        },
    );
    let writable_by_all = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    a.setattr(&root, a.root(), &writable_by_all, None).await.unwrap();
    let file = create(&a, &user, "f", 0o600).await;
    write(&a, &file, 0, b"data").await.unwrap();
    a.release(&file).await.unwrap();
    b.setattr(&user, file.fid, &to_size(2), None).await.unwrap();
    assert_eq!(read(&a, file.fid).await, b"da");
    // The owner sets the times of a read-only file.
    let read_only = SetAttr {
        mode: Some(0o444),
        ..SetAttr::default()
    };
    a.setattr(&user, file.fid, &read_only, None).await.unwrap();
    let old = SetAttr {
        mtime: Some(SetTime::At(Time::secs(1000))),
        ..SetAttr::default()
    };
    let c = cluster.mount().await;
    c.setattr(&user, file.fid, &old, None).await.unwrap();
    let mtime = b.getattr(&root, file.fid).await.unwrap().attr.mtime;
    assert_eq!(mtime, Time::secs(1000));
    let stranger = Cred {
        uid: 6,
        gid: 6,
        ..Cred::default()
    };
    let result = c.setattr(&stranger, file.fid, &to_size(0), None).await;
    assert_eq!(result.err(), Some(Errno::EACCES));
    end(cluster, &[a, b, c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_truncates_continue_when_the_requirement_changes() {
    let cluster = Cluster::start(1).await;
    let a = cluster.mount().await;
    let user = Cred {
        uid: 5,
        gid: 5,
        ..Cred::default()
    };
    let writable_by_all = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    a.setattr(&Cred::root(), a.root(), &writable_by_all, None)
        .await
        .unwrap();
    // Only the open file grants the right to write.
    let file = create(&a, &user, "f", 0o400).await;
    let closed = create(&a, &user, "closed", 0o600).await;
    write(&a, &closed, 0, b"data").await.unwrap();
    a.release(&closed).await.unwrap();
    for required in [false, true, false, true] {
        cluster.require_capabilities(required).await;
        write(&a, &file, 0, if required { b"with" } else { b"none" })
            .await
            .unwrap();
        let size = if required { 2 } else { 1 };
        a.setattr(&user, closed.fid, &to_size(size), None).await.unwrap();
    }
    assert_eq!(read(&a, file.fid).await, b"with");
    a.release(&file).await.unwrap();
    end(cluster, &[a]).await;
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_renewed_after_expiry_and_key_rotation() {
    let cluster = Cluster::start(1).await;
    cluster.require_capabilities(true).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let file = create(&a, &Cred::root(), "f", 0o644).await;
    write(&a, &file, 0, b"first").await.unwrap();
    // Twice: the previous key is valid until the next rotation.
    for data in [b"key 2", b"key 3"] {
        cluster.rotate_capability_keys().await;
        cluster.rotate_capability_keys().await;
        write(&a, &file, 0, data).await.unwrap();
        assert_eq!(read(&b, file.fid).await, data);
    }
    // The MDT's clock is slow: its capabilities have expired on arrival.
    cluster.clock.set_behind(BEYOND_LIFETIME_SECS);
    let c = cluster.mount().await;
    assert_eq!(size(&c, file.fid).await, Err(Errno::EACCES));
    cluster.clock.set_behind(0);
    assert_eq!(size(&c, file.fid).await, Ok(5));
    a.release(&file).await.unwrap();
    end(cluster, &[a, b, c]).await;
}

/// A new capability is rejected if it expired in flight, or if the metadata target learns of a key
/// rotation later than the object target.
#[tokio::test(start_paused = true)]
async fn a_rejected_new_capability_is_replaced_by_a_later_one() {
    let cluster = Cluster::start(1).await;
    cluster.require_capabilities(true).await;
    let a = cluster.mount().await;
    let file = create(&a, &Cred::root(), "f", 0o644).await;
    write(&a, &file, 0, b"first").await.unwrap();
    let b = cluster.mount().await;
    cluster.clock.set_behind(BEYOND_LIFETIME_SECS);
    let set_clock = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.clock.set_behind(0);
    };
    let (size, ()) = tokio::join!(size(&b, file.fid), set_clock);
    assert_eq!(size, Ok(5));
    a.release(&file).await.unwrap();
    end(cluster, &[a, b]).await;
}
