//! Files with composite layouts, made and used by mounts: writes, sparse writes, truncates and
//! appends create the objects of components as they are needed.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, FileLayout, OpenFile, OpenFlags, Seek, SetAttr};
use std::sync::Arc;
use testkit::Cluster;
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{Errno, Fid, LovCompMdEntryV1, LuExtent};

const RW: OpenFlags = OpenFlags::READ_WRITE;
const STRIPE_SIZE: u32 = 64 << 10;
const MIB: u64 = 1 << 20;
const EOF: u64 = u64::MAX;

/// `lfs setstripe -S 64K` with a component for each end and stripe count.
fn request(components: &[(u64, u16)]) -> Bytes {
    let mut e_start = 0;
    let component = |&(e_end, count): &(u64, u16)| {
        let entry = LovCompMdEntryV1 {
            lcme_extent: LuExtent { e_start, e_end },
            ..Default::default()
        };
        e_start = e_end;
        (entry, PlainLayout::request(STRIPE_SIZE, count, None))
    };
    let components = components.iter().map(component).collect();
    LovLayout::Composite(CompositeLayout::new(components)).build()
}

/// One stripe up to 1 MiB, two up to 4 MiB, then one on each of three OSTs.
fn three() -> Bytes {
    request(&[(MIB, 1), (4 * MIB, 2), (EOF, 0xffff)])
}

fn pattern(len: usize, seed: u64) -> Bytes {
    let byte = |i: usize| (((i as u64 + seed) * 2_654_435_761) >> 7) as u8;
    (0..len).map(byte).collect::<Vec<u8>>().into()
}

/// The number of objects of each component.
async fn object_counts(client: &Client, fid: Fid) -> Vec<usize> {
    let ea = client.getstripe(&Cred::root(), fid).await.unwrap();
    let layout = FileLayout::parse(ea).unwrap();
    layout.components().iter().map(|c| c.stripes.len()).collect()
}

async fn size_of(client: &Client, fid: Fid) -> u64 {
    client.getattr(&Cred::root(), fid).await.unwrap().attr.size
}

async fn truncate(client: &Client, fid: Fid, size: u64) -> Result<(), Errno> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    client.setattr(&Cred::root(), fid, &set, None).await.map(drop)
}

/// Three OSTs and two mounts.
struct Mounts {
    cluster: Cluster,
    a: Arc<Client>,
    b: Arc<Client>,
}

impl Mounts {
    async fn start() -> Mounts {
        let cluster = Cluster::start(3).await;
        Mounts {
            a: cluster.mount().await,
            b: cluster.mount().await,
            cluster,
        }
    }

    /// Creates a file, and opens it on both mounts with these flags.
    async fn open(&self, name: &str, layout: Bytes, flags: OpenFlags) -> (Fid, [Arc<OpenFile>; 2]) {
        let (cred, name) = (Cred::root(), (self.a.root(), name.as_bytes()));
        let created = self.a.create_with(&cred, name, 0o644, flags, layout).await;
        let (found, file) = created.unwrap();
        let fid = found.attr.fid;
        // It holds a lock that the other mount's open revokes.
        drop(found);
        let other = self.b.open(&cred, fid, flags).await.unwrap();
        (fid, [file, other])
    }

    async fn release(&self, files: [Arc<OpenFile>; 2]) {
        self.a.release(&files[0]).await.unwrap();
        self.b.release(&files[1]).await.unwrap();
    }

    async fn stop(self) {
        self.a.umount().await;
        self.b.umount().await;
        self.cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequential_write_creates_the_objects_of_each_component() {
    let m = Mounts::start().await;
    let (fid, [file, other]) = m.open("f", three(), RW).await;
    assert_eq!(object_counts(&m.b, fid).await, [1, 0, 0]);
    let data = pattern(6_000_000, 0);
    for (chunk, expected) in [
        (0..500_000, [1, 0, 0]),
        (500_000..1_048_576, [1, 0, 0]),
        (1_048_576..1_048_577, [1, 2, 0]),
        (1_048_577..6_000_000, [1, 2, 3]),
    ] {
        let (at, bytes) = (chunk.start as u64, data.slice(chunk));
        assert_eq!(m.a.write(&file, at, bytes.clone()).await, Ok(bytes.len()));
        assert_eq!(object_counts(&m.a, fid).await, expected);
    }
    let read = m.b.read(&other, 0, 7_000_000).await.unwrap().concat();
    assert!(read == data, "the other mount reads the same bytes");
    assert_eq!(size_of(&m.b, fid).await, 6_000_000);
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sparse_write_leaves_components_without_objects() {
    let m = Mounts::start().await;
    let (fid, [file, other]) = m.open("f", three(), RW).await;
    let far = 1 << 40;
    m.b.write(&other, far, Bytes::from_static(b"far")).await.unwrap();
    assert_eq!(object_counts(&m.a, fid).await, [1, 0, 3]);
    assert_eq!(size_of(&m.a, fid).await, far + 3);
    let read = m.a.read(&file, 3 * MIB, 1000).await.unwrap().concat();
    assert!(read == [0; 1000], "a part without objects is zeros");
    assert_eq!(m.a.read(&file, far, 10).await.unwrap().concat(), b"far");
    assert!(m.a.seek(&file, Seek::Hole, 0).await.unwrap() <= MIB);
    let data = m.a.seek(&file, Seek::Data, 0).await.unwrap();
    assert!(data <= far && data > far - MIB, "{data}");
    // Into the part between, from the other mount.
    m.a.write(&file, 3 * MIB, Bytes::from_static(b"mid"))
        .await
        .unwrap();
    assert_eq!(object_counts(&m.b, fid).await, [1, 2, 3]);
    assert_eq!(m.b.read(&other, 3 * MIB, 3).await.unwrap().concat(), b"mid");
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncate_creates_the_objects_of_the_last_byte_and_empties_later_components() {
    let m = Mounts::start().await;
    let (fid, [file, other]) = m.open("f", three(), RW).await;
    truncate(&m.b, fid, 2 * MIB).await.unwrap();
    assert_eq!(object_counts(&m.a, fid).await, [1, 2, 0]);
    assert_eq!(size_of(&m.a, fid).await, 2 * MIB);
    let data = pattern(6_000_000, 1);
    m.a.write(&file, 0, data.clone()).await.unwrap();
    truncate(&m.b, fid, 700_001).await.unwrap();
    assert_eq!(size_of(&m.a, fid).await, 700_001);
    truncate(&m.a, fid, 5 * MIB).await.unwrap();
    let read = m.b.read(&other, 0, 6_000_000).await.unwrap().concat();
    assert!(read[..700_001] == data[..700_001] && read[700_001..].iter().all(|b| *b == 0));
    assert_eq!(read.len() as u64, 5 * MIB);
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_mounts_cross_components() {
    let m = Mounts::start().await;
    let append = OpenFlags { append: true, ..RW };
    let (fid, [file, other]) = m.open("f", three(), append).await;
    let mut expected = Vec::new();
    for n in 0..24u64 {
        let bytes = pattern(250_000, n);
        expected.extend_from_slice(&bytes);
        let (client, file) = match n % 2 {
            0 => (&m.a, &file),
            _ => (&m.b, &other),
        };
        assert_eq!(client.write(file, 0, bytes).await, Ok(250_000));
    }
    assert_eq!(object_counts(&m.a, fid).await, [1, 2, 3]);
    let reader = m.a.open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    let read = m.a.read(&reader, 0, 7_000_000).await.unwrap().concat();
    assert!(read == expected);
    m.a.release(&reader).await.unwrap();
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_beyond_a_bounded_layout_is_efbig() {
    let m = Mounts::start().await;
    let (fid, files) = m.open("f", request(&[(MIB, 1), (2 * MIB, 2)]), RW).await;
    let file = &files[0];
    assert_eq!(
        m.a.write(file, 2 * MIB, Bytes::from_static(b"x")).await,
        Err(Errno::EFBIG)
    );
    // A write across the end writes the bytes that fit.
    assert_eq!(m.a.write(file, 2 * MIB - 5, pattern(10, 0)).await, Ok(5));
    assert_eq!(object_counts(&m.b, fid).await, [1, 2]);
    assert_eq!(size_of(&m.b, fid).await, 2 * MIB);
    assert_eq!(truncate(&m.b, fid, 2 * MIB + 1).await, Err(Errno::EFBIG));
    let direct = OpenFlags { direct: true, ..RW };
    let direct = m.b.open(&Cred::root(), fid, direct).await.unwrap();
    let end = m.b.write(&direct, 2 * MIB - 4096, pattern(8192, 0)).await;
    assert_eq!(end, Ok(4096));
    m.b.release(&direct).await.unwrap();
    m.release(files).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_of_all_components_lose_nothing() {
    let m = Mounts::start().await;
    for round in 0..5u64 {
        let layout = request(&[(MIB, 1), (2 * MIB, 2), (3 * MIB, 3), (EOF, 1)]);
        let (fid, files) = m.open(&format!("f{round}"), layout, RW).await;
        // Each mount writes every second block.
        let block = 100_000;
        let write = async |client: Arc<Client>, file: Arc<OpenFile>, first: u64| {
            for n in (first..40).step_by(2) {
                let written = client.write(&file, n * block, pattern(block as usize, n)).await;
                assert_eq!(written, Ok(block as usize));
            }
        };
        tokio::join!(
            write(m.a.clone(), files[0].clone(), 0),
            write(m.b.clone(), files[1].clone(), 1)
        );
        assert_eq!(object_counts(&m.a, fid).await, [1, 2, 3, 1]);
        for (client, file) in [(&m.a, &files[0]), (&m.b, &files[1])] {
            let read = client.read(file, 0, 5_000_000).await.unwrap().concat();
            assert_eq!(read.len(), 40 * block as usize);
            for (n, bytes) in (0..).zip(read.chunks(block as usize)) {
                assert!(bytes == pattern(block as usize, n), "block {n}");
            }
        }
        m.release(files).await;
    }
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_components_are_renamed_over_and_removed() {
    let m = Mounts::start().await;
    let (cred, root) = (Cred::root(), m.a.root());
    let free = |m: &Mounts| -> Vec<(String, String)> { m.cluster.params.get("osd-memory.*OST*.kbytesfree") };
    let before = free(&m);
    for name in ["old", "new"] {
        let (_, files) = m.open(name, three(), RW).await;
        m.a.write(&files[0], 0, pattern(6_000_000, 0)).await.unwrap();
        m.a.fsync(&files[0], false).await.unwrap();
        m.release(files).await;
    }
    assert_ne!(free(&m), before);
    m.a.rename(&cred, (root, b"new"), (root, b"old")).await.unwrap();
    m.b.unlink(&cred, root, b"old").await.unwrap();
    let gone = async {
        while free(&m) != before {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let gone = tokio::time::timeout(std::time::Duration::from_secs(60), gone).await;
    gone.expect("the objects of all components are destroyed");
    m.stop().await;
}
