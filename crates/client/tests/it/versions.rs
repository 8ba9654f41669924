//! Mounts with servers of older releases. These servers grant fewer flags, use other reply portals
//! and do not know some requests. They grant the flags that the releases' sources list as
//! supported.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, Fallocate, FlockRange, FlockType, OpenFlags, Seek};
use testkit::Cluster;
use wire::{Errno, Fid, MDS_CONNECT, MGS_CONNECT, OST_CONNECT, OST_FALLOCATE, OST_SEEK};

/// The servers of a release.
struct Release {
    /// `ocd_version`.
    version: u32,
    /// By opcode of the connect, the granted `ocd_connect_flags` and `ocd_connect_flags2`.
    grants: [(u32, (u64, u64)); 3],
    /// Opcodes of the requests that the servers do not know.
    unknown: &'static [u32],
}

const V2_12: Release = Release {
    version: 0x020c_0900,
    grants: [
        (MDS_CONNECT, (0xae7f_5e79_e744_d7b9, 0x2_4dad)),
        (OST_CONNECT, (0xa047_5afe_e344_047e, 0x2)),
        (MGS_CONNECT, (0x2004_0110_0100_2020, 0)),
    ],
    unknown: &[OST_FALLOCATE, OST_SEEK],
};

const V2_15: Release = Release {
    version: 0x020f_0500,
    grants: [
        (MDS_CONNECT, (0xae7f_5e7b_e744_d3b9, 0xc1e_ffbd)),
        (OST_CONNECT, (0xa047_5afe_e344_007e, 0x14_8202)),
        (MGS_CONNECT, (0xa004_0110_0100_2020, 0x10_0000)),
    ],
    unknown: &[],
};

impl Release {
    /// A file system with servers that appear as this release to clients that connect later.
    async fn start(&self) -> Cluster {
        let cluster = Cluster::start(2).await;
        let faults = cluster.rpc.faults();
        for (opc, flags) in self.grants {
            faults.limit_connect_flags(opc, self.version, flags);
        }
        self.unknown.iter().for_each(|&opc| faults.refuse_requests(opc));
        cluster
    }
}

fn pattern(len: usize) -> Bytes {
    let byte = |i: u64| (i.wrapping_mul(2_654_435_761) >> 7) as u8;
    (0..len as u64).map(byte).collect::<Vec<u8>>().into()
}

async fn read(client: &Client, fid: Fid, len: usize) -> Vec<u8> {
    let file = client.open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    let read = client.read(&file, 0, len).await.unwrap().concat();
    client.release(&file).await.unwrap();
    read
}

/// Operations that every release supports: names, attributes, data of two mounts, revoked locks.
async fn basic_operations(mount_a: &Client, mount_b: &Client) {
    let root = Cred::root();
    let dir = mount_a
        .mkdir(&root, mount_a.root(), b"d", 0o755)
        .await
        .unwrap()
        .attr
        .fid;
    let (found, file) = mount_a
        .create(&root, dir, b"f", 0o644, OpenFlags::READ_WRITE)
        .await
        .unwrap();
    let fid = found.without_locks().attr.fid;
    // The large write is a bulk transfer; the small one fits the request.
    for data in [pattern(5_000_000), Bytes::from_static(b"small")] {
        mount_a.write(&file, 0, data).await.unwrap();
        mount_a.fsync(&file, false).await.unwrap();
    }
    let mut expected = pattern(5_000_000).to_vec();
    expected[..5].copy_from_slice(b"small");
    assert_eq!(read(mount_b, fid, 6_000_000).await, expected);
    mount_a
        .write(&file, 5_000_000, Bytes::from_static(b"not sent yet"))
        .await
        .unwrap();
    assert_eq!(mount_b.getattr(&root, fid).await.unwrap().attr.size, 5_000_012);
    mount_a.release(&file).await.unwrap();
    mount_b.link(&root, fid, dir, b"g").await.unwrap();
    mount_b
        .setxattr(&root, fid, b"user.color", b"blue", 0)
        .await
        .unwrap();
    assert_eq!(
        &mount_a.getxattr(&root, fid, b"user.color").await.unwrap()[..],
        b"blue"
    );
    assert_eq!(mount_a.lookup(&root, dir, b"g").await.unwrap().attr.nlink, 2);
    let whole = FlockRange {
        ty: FlockType::Write,
        start: 0,
        end: FlockRange::END,
        owner: 1,
        pid: 1,
    };
    mount_a.setlk(&root, fid, whole, false).await.unwrap();
    assert_eq!(mount_b.setlk(&root, fid, whole, false).await, Err(Errno::EAGAIN));
    mount_a.release_locks(&root, fid, 1, 1).await.unwrap();
    for i in 0..300 {
        let name = format!("file{i}");
        mount_b
            .mknod(&root, dir, name.as_bytes(), 0o100_644, 0)
            .await
            .unwrap();
    }
    mount_a
        .rename(&root, (dir, b"file7"), (mount_a.root(), b"seven"))
        .await
        .unwrap();
    let handle = mount_b.opendir(&root, dir).await.unwrap();
    let (mut names, mut offset) = (0, 0);
    loop {
        let items = mount_b.readdir(&handle, offset).await.unwrap();
        let Some(last) = items.last() else { break };
        (names, offset) = (names + items.len(), last.next);
    }
    assert_eq!(names, 4 + 299, "., .., f, g and all files but the renamed one");
    assert!(mount_a.statfs().await.unwrap().blocks > 0);
    for i in (0..300).filter(|&i| i != 7) {
        mount_a
            .unlink(&root, dir, format!("file{i}").as_bytes())
            .await
            .unwrap();
    }
    mount_a.unlink(&root, dir, b"g").await.unwrap();
}

/// Seeks and punches a sparse file; returns the results of the data seek, the hole seek and the
/// punch.
async fn seek_and_punch(client: &Client) -> (Result<u64, Errno>, Result<u64, Errno>, Result<(), Errno>) {
    let root = Cred::root();
    let create = client.create(&root, client.root(), b"sparse", 0o644, OpenFlags::READ_WRITE);
    let file = create.await.unwrap().1;
    client.write(&file, 3 << 20, pattern(1 << 20)).await.unwrap();
    let data = client.seek(&file, Seek::Data, 1 << 20).await;
    let hole = client.seek(&file, Seek::Hole, 1 << 20).await;
    let punched = client
        .fallocate(&file, Fallocate::PunchHole, 3 << 20, 65536)
        .await;
    assert_eq!(client.seek(&file, Seek::Data, 4 << 20).await, Err(Errno::ENXIO));
    client.release(&file).await.unwrap();
    (data, hole, punched)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_works_with_servers_of_2_12() {
    let cluster = V2_12.start().await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    basic_operations(&mount_a, &mount_b).await;
    // The servers do not know OST_SEEK and OST_FALLOCATE: a seek treats everything as data, and a
    // punch fails.
    let expected_results = (Ok(1 << 20), Ok(4 << 20), Err(Errno::EOPNOTSUPP));
    assert_eq!(seek_and_punch(&mount_a).await, expected_results);
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_works_with_servers_of_2_15() {
    let cluster = V2_15.start().await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    basic_operations(&mount_a, &mount_b).await;
    assert_eq!(seek_and_punch(&mount_a).await, (Ok(3 << 20), Ok(1 << 20), Ok(())));
    mount_a.umount().await;
    mount_b.umount().await;
    cluster.stop().await;
}
