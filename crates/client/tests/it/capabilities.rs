//! Mounts with a nodemap that requires capabilities for objects work like other mounts. They
//! continue when capabilities expire, keys are replaced, or the requirement changes.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, Fallocate, OpenFile, OpenFlags, Seek, SetAttr, SetTime};
use std::sync::Arc;
use std::time::Duration;
use testkit::Cluster;
use wire::{Errno, Fid, Time};

const RW: OpenFlags = OpenFlags::READ_WRITE;
/// Longer than the lifetime of a capability, in seconds.
const BEYOND_LIFETIME_SECS: u64 = 2000;

async fn create(client: &Client, cred: &Cred, name: &str, mode: u32) -> Arc<OpenFile> {
    let created = client
        .create(cred, client.root(), name.as_bytes(), mode, RW)
        .await;
    created.unwrap().1
}

async fn write(client: &Client, file: &OpenFile, offset: u64, data: &'static [u8]) -> Result<(), Errno> {
    client.write(file, offset, Bytes::from_static(data)).await?;
    client.fsync(file, false).await
}

async fn read(client: &Client, fid: Fid) -> Vec<u8> {
    let file = client.open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    let data = client.read(&file, 0, 4096).await.unwrap().concat();
    client.release(&file).await.unwrap();
    data
}

async fn size(client: &Client, fid: Fid) -> Result<u64, Errno> {
    Ok(client.getattr(&Cred::root(), fid).await?.attr.size)
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
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let root = Cred::root();
    let file = create(&mount_a, &root, "f", 0o644).await;
    write(&mount_a, &file, 0, b"one two").await.unwrap();
    assert_eq!(size(&mount_b, file.fid).await, Ok(7));
    assert_eq!(read(&mount_b, file.fid).await, b"one two");
    let other = mount_b.open(&root, file.fid, RW).await.unwrap();
    write(&mount_b, &other, 7, b" three").await.unwrap();
    assert_eq!(read(&mount_a, file.fid).await, b"one two three");
    mount_a
        .setattr(&root, file.fid, &to_size(3), Some(&file))
        .await
        .unwrap();
    assert_eq!(read(&mount_b, file.fid).await, b"one");
    mount_a
        .fallocate(&file, Fallocate::Allocate { keep_size: false }, 0, 8192)
        .await
        .unwrap();
    assert_eq!(size(&mount_b, file.fid).await, Ok(8192));
    assert!(mount_a.seek(&file, Seek::Data, 0).await.is_ok());
    mount_a
        .rename(&root, (mount_a.root(), b"f"), (mount_a.root(), b"g"))
        .await
        .unwrap();
    mount_b.unlink(&root, mount_b.root(), b"g").await.unwrap();
    write(&mount_a, &file, 0, b"no name").await.unwrap();
    for (client, f) in [(&mount_a, &file), (&mount_b, &other)] {
        client.release(f).await.unwrap();
    }
    end(cluster, &[mount_a, mount_b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_right_truncates_and_sets_times_of_a_closed_file() {
    let cluster = Cluster::start(2).await;
    cluster.require_capabilities(true).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
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
    mount_a
        .setattr(&root, mount_a.root(), &writable_by_all, None)
        .await
        .unwrap();
    let file = create(&mount_a, &user, "f", 0o600).await;
    write(&mount_a, &file, 0, b"data").await.unwrap();
    mount_a.release(&file).await.unwrap();
    mount_b.setattr(&user, file.fid, &to_size(2), None).await.unwrap();
    assert_eq!(read(&mount_a, file.fid).await, b"da");
    // The owner sets the times of a read-only file.
    let read_only = SetAttr {
        mode: Some(0o444),
        ..SetAttr::default()
    };
    mount_a.setattr(&user, file.fid, &read_only, None).await.unwrap();
    let old = SetAttr {
        mtime: Some(SetTime::At(Time::secs(1000))),
        ..SetAttr::default()
    };
    let client = cluster.mount().await;
    client.setattr(&user, file.fid, &old, None).await.unwrap();
    let mtime = mount_b.getattr(&root, file.fid).await.unwrap().attr.mtime;
    assert_eq!(mtime, Time::secs(1000));
    let stranger = Cred {
        uid: 6,
        gid: 6,
        ..Cred::default()
    };
    let result = client.setattr(&stranger, file.fid, &to_size(0), None).await;
    assert_eq!(result.err(), Some(Errno::EACCES));
    end(cluster, &[mount_a, mount_b, client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_truncates_continue_when_the_requirement_changes() {
    let cluster = Cluster::start(1).await;
    let mount_a = cluster.mount().await;
    let user = Cred {
        uid: 5,
        gid: 5,
        ..Cred::default()
    };
    let writable_by_all = SetAttr {
        mode: Some(0o777),
        ..SetAttr::default()
    };
    mount_a
        .setattr(&Cred::root(), mount_a.root(), &writable_by_all, None)
        .await
        .unwrap();
    // The mode denies writes: only the open file gives the right to write.
    let file = create(&mount_a, &user, "f", 0o400).await;
    let closed = create(&mount_a, &user, "closed", 0o600).await;
    write(&mount_a, &closed, 0, b"data").await.unwrap();
    mount_a.release(&closed).await.unwrap();
    for required in [false, true, false, true] {
        cluster.require_capabilities(required).await;
        write(&mount_a, &file, 0, if required { b"with" } else { b"none" })
            .await
            .unwrap();
        let size = if required { 2 } else { 1 };
        mount_a
            .setattr(&user, closed.fid, &to_size(size), None)
            .await
            .unwrap();
    }
    assert_eq!(read(&mount_a, file.fid).await, b"with");
    mount_a.release(&file).await.unwrap();
    end(cluster, &[mount_a]).await;
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_renewed_after_expiry_and_key_rotation() {
    let cluster = Cluster::start(1).await;
    cluster.require_capabilities(true).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let file = create(&mount_a, &Cred::root(), "f", 0o644).await;
    write(&mount_a, &file, 0, b"first").await.unwrap();
    // Rotates twice, because the previous key is valid until the next rotation.
    for data in [b"key 2", b"key 3"] {
        cluster.rotate_capability_keys().await;
        cluster.rotate_capability_keys().await;
        write(&mount_a, &file, 0, data).await.unwrap();
        assert_eq!(read(&mount_b, file.fid).await, data);
    }
    // The MDT's clock is behind: its capabilities have expired on arrival.
    cluster.clock.set_behind(BEYOND_LIFETIME_SECS);
    let client = cluster.mount().await;
    assert_eq!(size(&client, file.fid).await, Err(Errno::EACCES));
    cluster.clock.set_behind(0);
    assert_eq!(size(&client, file.fid).await, Ok(5));
    mount_a.release(&file).await.unwrap();
    end(cluster, &[mount_a, mount_b, client]).await;
}

/// A new capability is rejected if it expired in flight, or if the metadata target learns of a key
/// rotation later than the object target.
#[tokio::test(start_paused = true)]
async fn a_rejected_new_capability_is_replaced_by_a_later_one() {
    let cluster = Cluster::start(1).await;
    cluster.require_capabilities(true).await;
    let mount_a = cluster.mount().await;
    let file = create(&mount_a, &Cred::root(), "f", 0o644).await;
    write(&mount_a, &file, 0, b"first").await.unwrap();
    let mount_b = cluster.mount().await;
    cluster.clock.set_behind(BEYOND_LIFETIME_SECS);
    let set_clock = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cluster.clock.set_behind(0);
    };
    let (size, ()) = tokio::join!(size(&mount_b, file.fid), set_clock);
    assert_eq!(size, Ok(5));
    mount_a.release(&file).await.unwrap();
    end(cluster, &[mount_a, mount_b]).await;
}
