//! Files with their first component on the MDT, made and used by mounts.

#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, Fallocate, OpenFile, OpenFlags, Seek, SetAttr};
use cpt::CptTable;
use fastrand::Rng;
use lnet::{Lnet, LnetConfig, NiSpec};
use osd::Index;
use testkit::{Cluster, FSNAME, SettableClock, start_node};
use wire::striping::{CompositeLayout, LovLayout, PlainLayout};
use wire::{Errno, Fid, LovCompMdEntryV1, LuExtent, Nid};

use crate::crashes::index::CrashIndex;

pub(crate) const RW: OpenFlags = OpenFlags::READ_WRITE;
const KIB: u64 = 1 << 10;
/// The end of the component on the MDT.
pub(crate) const ON_MDT: u64 = 128 * KIB;
const EOF: u64 = u64::MAX;
/// Limit of a wait for an operation.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// `lfs setstripe -E 128K -L mdt`, and with `rest` also `-E -1 -S 64K -c 2`.
pub(crate) fn layout(rest: bool) -> Bytes {
    let component = |e_start, e_end, plain| {
        let entry = LovCompMdEntryV1 {
            lcme_extent: LuExtent { e_start, e_end },
            ..Default::default()
        };
        (entry, plain)
    };
    let mut components = vec![component(0, ON_MDT, PlainLayout::request_on_mdt(ON_MDT as u32))];
    if rest {
        components.push(component(ON_MDT, EOF, PlainLayout::request(64 << 10, 2, None)));
    }
    LovLayout::Composite(CompositeLayout::new(components)).build()
}

pub(crate) fn pattern(len: usize, seed: u64) -> Bytes {
    let byte = |i: usize| (((i as u64 + seed) * 2_654_435_761) >> 7) as u8;
    (0..len).map(byte).collect::<Vec<u8>>().into()
}

/// An address that no other test uses.
fn new_nid() -> Nid {
    static NEXT: AtomicU8 = AtomicU8::new(100);
    let pid = std::process::id();
    let last = NEXT.fetch_add(1, Ordering::Relaxed);
    let ip = Ipv4Addr::new(127, (pid % 250) as u8 + 1, (pid / 250 % 250) as u8 + 1, last);
    Nid::tcp(ip, 0)
}

fn node(nid: Nid) -> Arc<Lnet> {
    let node = Lnet::new(CptTable::single_current(), LnetConfig::default());
    node.add_ni(&NiSpec::new(nid)).unwrap();
    node
}

/// An MDT with an index that can lose power, two OSTs and two mounts.
pub(crate) struct Mounts {
    pub(crate) cluster: Cluster,
    index: Arc<CrashIndex>,
    pub(crate) mounts: [Arc<Client>; 2],
}

impl Mounts {
    pub(crate) async fn start() -> Mounts {
        let index = CrashIndex::new();
        let lnet = Lnet::new(CptTable::single_current(), LnetConfig::default());
        let cluster = Cluster::start_with(lnet, 2, index.clone()).await;
        Mounts {
            mounts: [cluster.mount().await, cluster.mount().await],
            index,
            cluster,
        }
    }

    /// Both mounts are on a node of their own: a client on the node of a target does not recover.
    pub(crate) async fn start_remote() -> Mounts {
        let (index, servers) = (CrashIndex::new(), new_nid());
        let cluster = Cluster::start_with(node(servers), 2, index.clone()).await;
        let clients = start_node(node(new_nid()), 7, &SettableClock::default());
        let mount = async || {
            let options = clients.mount_options(vec![servers], FSNAME).unwrap();
            clients.mount(options).await.unwrap()
        };
        Mounts {
            mounts: [mount().await, mount().await],
            index,
            cluster,
        }
    }

    /// Creates a file, and opens it on both mounts with these flags.
    pub(crate) async fn open(
        &self,
        name: &str,
        layout: Bytes,
        flags: OpenFlags,
    ) -> (Fid, [Arc<OpenFile>; 2]) {
        let [a, b] = &self.mounts;
        let (cred, name) = (Cred::root(), (a.root(), name.as_bytes()));
        let (found, file) = a.create_with(&cred, name, 0o644, flags, layout).await.unwrap();
        let fid = found.attr.fid;
        // It holds a lock that the other mount's open revokes.
        drop(found);
        (fid, [file, b.open(&Cred::root(), fid, flags).await.unwrap()])
    }

    pub(crate) async fn release(&self, files: [Arc<OpenFile>; 2]) {
        for (client, file) in self.mounts.iter().zip(&files) {
            client.release(file).await.unwrap();
        }
    }

    pub(crate) async fn size(&self, mount: usize, fid: Fid) -> u64 {
        let found = self.mounts[mount].getattr(&Cred::root(), fid).await;
        found.unwrap().attr.size
    }

    pub(crate) async fn truncate(&self, mount: usize, fid: Fid, size: u64) -> Result<(), Errno> {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.mounts[mount]
            .setattr(&Cred::root(), fid, &set, None)
            .await
            .map(drop)
    }

    pub(crate) async fn read(&self, mount: usize, file: &OpenFile, at: u64, len: usize) -> Vec<u8> {
        self.mounts[mount].read(file, at, len).await.unwrap().concat()
    }

    pub(crate) async fn write(&self, mount: usize, file: &Arc<OpenFile>, at: u64, bytes: Bytes) {
        let len = bytes.len();
        assert_eq!(self.mounts[mount].write(file, at, bytes).await, Ok(len));
    }

    /// The number of records with data on the MDT.
    pub(crate) async fn data_records(&self) -> usize {
        self.index.scan(b"b", b"c", usize::MAX).await.unwrap().len()
    }

    /// The MDT's machine loses power; of the uncommitted batches, the first `kept` stay.
    pub(crate) async fn lose_power(&mut self, kept: impl FnOnce(usize) -> usize) {
        self.index = self.index.lose_power(kept);
        self.cluster.restart_mdt(self.index.clone()).await;
    }

    pub(crate) async fn stop(self) {
        for client in &self.mounts {
            assert_eq!(client.umount().await, []);
        }
        self.cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_file_has_its_data_on_the_mdt_and_both_mounts_see_it() {
    let m = Mounts::start().await;
    for rest in [false, true] {
        let (fid, [file, other]) = m.open(&format!("f{rest}"), layout(rest), RW).await;
        assert_eq!((m.size(0, fid).await, m.size(1, fid).await), (0, 0));
        let data = pattern(100_000, 0);
        m.write(0, &file, 0, data.slice(..10)).await;
        assert_eq!((m.size(0, fid).await, m.size(1, fid).await), (10, 10));
        m.write(0, &file, 10, data.slice(10..)).await;
        // A glimpse, because the first mount holds the lock.
        assert_eq!(m.size(1, fid).await, 100_000);
        assert!(m.read(1, &other, 0, 200_000).await == data);
        assert!(m.read(0, &file, 5000, 200_000).await == data[5000..]);
        // The other mount overwrites a part: the first one must not read its cache.
        m.write(1, &other, 7000, Bytes::from_static(b"changed")).await;
        assert_eq!(
            m.read(0, &file, 6999, 9).await,
            [&data[6999..7000], b"changed", &data[7007..7008]].concat()
        );
        let blocks = m.mounts[0].getattr(&Cred::root(), fid).await.unwrap().attr.blocks;
        assert_eq!(blocks, 100_000u64.div_ceil(4096) * 8);
        m.release([file, other]).await;
    }
    assert_eq!(m.data_records().await, 2 * (1 + 100_000usize.div_ceil(16 << 10)));
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_crosses_into_the_next_component_and_back() {
    let m = Mounts::start().await;
    let (fid, [file, other]) = m.open("f", layout(true), RW).await;
    let data = pattern(400_000, 1);
    m.write(0, &file, 0, data.clone()).await;
    assert!(m.read(1, &other, 0, 500_000).await == data);
    assert_eq!(m.size(1, fid).await, 400_000);
    m.truncate(1, fid, 50_000).await.unwrap();
    assert_eq!(m.size(0, fid).await, 50_000);
    assert!(m.read(0, &file, 0, 500_000).await == data[..50_000]);
    m.truncate(0, fid, 300_000).await.unwrap();
    let read = m.read(1, &other, 0, 500_000).await;
    assert!(read[..50_000] == data[..50_000] && read[50_000..].iter().all(|b| *b == 0));
    assert_eq!(read.len(), 300_000);
    m.truncate(1, fid, ON_MDT).await.unwrap();
    assert_eq!(m.size(0, fid).await, ON_MDT);
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_is_only_on_the_mdt_has_a_largest_size() {
    let m = Mounts::start().await;
    let (fid, [file, other]) = m.open("f", layout(false), RW).await;
    let written = m.mounts[0].write(&file, ON_MDT - 5, pattern(10, 0)).await;
    assert_eq!(written, Ok(5));
    let beyond = m.mounts[1].write(&other, ON_MDT, pattern(1, 0)).await;
    assert_eq!(beyond, Err(Errno::EFBIG));
    assert_eq!(m.truncate(1, fid, ON_MDT + 1).await, Err(Errno::EFBIG));
    assert_eq!(m.size(1, fid).await, ON_MDT);
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_two_mounts_follow_each_other() {
    let m = Mounts::start().await;
    let append = OpenFlags { append: true, ..RW };
    let (fid, files) = m.open("f", layout(true), append).await;
    let task = |mount: usize| {
        let (m, file) = (&m, &files[mount]);
        async move {
            for n in 0..40u64 {
                let bytes = Bytes::from(vec![mount as u8 * 100 + n as u8; 5000]);
                assert_eq!(m.mounts[mount].write(file, 0, bytes).await, Ok(5000));
            }
        }
    };
    tokio::time::timeout(SOON, async { tokio::join!(task(0), task(1)) })
        .await
        .unwrap();
    assert_eq!(m.size(0, fid).await, 400_000);
    let reader = m.mounts[0]
        .open(&Cred::root(), fid, OpenFlags::READ)
        .await
        .unwrap();
    let read = m.read(0, &reader, 0, 500_000).await;
    let mut next = [0, 100];
    for chunk in read.chunks(5000) {
        let mount = usize::from(chunk[0] >= 100);
        assert!(
            chunk.iter().all(|b| *b == next[mount]),
            "appends of a mount are in order"
        );
        next[mount] += 1;
    }
    m.mounts[0].release(&reader).await.unwrap();
    m.release(files).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_are_found_and_punched_and_space_is_not_reserved() {
    let m = Mounts::start().await;
    let (_, [file, other]) = m.open("f", layout(false), RW).await;
    let [a, b] = &m.mounts;
    m.write(0, &file, 32 * KIB, pattern(40_000, 3)).await;
    assert_eq!(b.seek(&other, Seek::Data, 0).await, Ok(32 * KIB));
    assert_eq!(b.seek(&other, Seek::Hole, 0).await, Ok(0));
    assert_eq!(
        a.seek(&file, Seek::Data, 32 * KIB + 40_000).await,
        Err(Errno::ENXIO)
    );
    b.fallocate(&other, Fallocate::PunchHole, 33 * KIB, 2 * KIB)
        .await
        .unwrap();
    let mut expected = pattern(40_000, 3).to_vec();
    expected[1024..3072].fill(0);
    assert!(m.read(0, &file, 32 * KIB, 50_000).await == expected);
    let reserve = Fallocate::Allocate { keep_size: false };
    assert_eq!(a.fallocate(&file, reserve, 0, 4096).await, Err(Errno::EOPNOTSUPP));
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_frees_the_data_after_the_last_close() {
    let m = Mounts::start().await;
    let [a, b] = &m.mounts;
    let (fid, [file, other]) = m.open("f", layout(true), RW).await;
    m.write(0, &file, 0, pattern(100_000, 0)).await;
    assert!(m.data_records().await > 1);
    b.unlink(&Cred::root(), b.root(), b"f").await.unwrap();
    // It stays usable while it is open.
    m.write(1, &other, 100_000, pattern(10, 0)).await;
    assert_eq!(m.size(0, fid).await, 100_010);
    assert_eq!(m.read(0, &file, 100_000, 20).await, pattern(10, 0));
    m.release([file, other]).await;
    let (_, files) = m.open("g", layout(true), RW).await;
    m.write(0, &files[0], 0, pattern(10, 0)).await;
    m.release(files).await;
    a.unlink(&Cred::root(), a.root(), b"g").await.unwrap();
    let freed = async {
        while m.data_records().await > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(SOON, freed)
        .await
        .expect("the data is freed");
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_inherit_the_layout_of_their_directory() {
    let m = Mounts::start().await;
    let [a, b] = &m.mounts;
    let cred = Cred::root();
    let dir = a.mkdir(&cred, a.root(), b"d", 0o755).await.unwrap().attr.fid;
    a.setstripe(&cred, dir, layout(true)).await.unwrap();
    let sub = b.mkdir(&cred, dir, b"sub", 0o755).await.unwrap().attr.fid;
    for (dir, seed) in [(dir, 1), (sub, 2)] {
        let (found, file) = b.create(&cred, dir, b"f", 0o644, RW).await.unwrap();
        let fid = found.attr.fid;
        drop(found);
        let LovLayout::Composite(layout) = LovLayout::parse(&a.getstripe(&cred, fid).await.unwrap()).unwrap()
        else {
            panic!("a layout with components");
        };
        let (entry, first) = &layout.components[0];
        assert!(first.is_on_mdt() && first.objects.is_empty());
        assert_eq!((first.stripe_size, first.stripe_count), (ON_MDT as u32, 0));
        assert_eq!(entry.lcme_flags, wire::LCME_FL_INIT);
        m.write(1, &file, 0, pattern(1000, seed)).await;
        b.release(&file).await.unwrap();
        let file = a.open(&cred, fid, OpenFlags::READ).await.unwrap();
        assert_eq!(m.read(0, &file, 0, 2000).await, pattern(1000, seed));
        a.release(&file).await.unwrap();
    }
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dom_stripesize_limits_the_part_on_the_mdt() {
    let m = Mounts::start().await;
    let limit = |bytes: u64| {
        let set = m.cluster.params.set("lod.*.dom_stripesize", &bytes.to_string());
        assert!(set.is_ok(), "{set:?}");
    };
    limit(64 * KIB);
    let (fid, files) = m.open("f", layout(true), RW).await;
    let ea = m.mounts[1].getstripe(&Cred::root(), fid).await.unwrap();
    let LovLayout::Composite(shown) = LovLayout::parse(&ea).unwrap() else {
        panic!("a layout with components");
    };
    let ends: Vec<_> = shown
        .components
        .iter()
        .map(|(e, _)| e.lcme_extent.e_end)
        .collect();
    assert_eq!(ends, [64 * KIB, EOF]);
    m.write(0, &files[0], 0, pattern(200_000, 0)).await;
    assert!(m.read(1, &files[1], 0, 300_000).await == pattern(200_000, 0));
    m.release(files).await;
    limit(0);
    let (fid, files) = m.open("g", layout(true), RW).await;
    let ea = m.mounts[1].getstripe(&Cred::root(), fid).await.unwrap();
    let LovLayout::Composite(shown) = LovLayout::parse(&ea).unwrap() else {
        panic!("a layout with components");
    };
    assert!(shown.components.len() == 1 && !shown.components[0].1.is_on_mdt());
    m.release(files).await;
    let (cred, name) = (Cred::root(), (m.mounts[0].root(), &b"h"[..]));
    let refused = m.mounts[0]
        .create_with(&cred, name, 0o644, RW, layout(false))
        .await;
    assert_eq!(refused.map(drop), Err(Errno::EINVAL));
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_times_and_data_times_agree_on_both_mounts() {
    let m = Mounts::start().await;
    let (fid, [file, other]) = m.open("f", layout(true), RW).await;
    m.write(0, &file, 0, pattern(10, 0)).await;
    let times = async |mount: usize| {
        let attr = m.mounts[mount].getattr(&Cred::root(), fid).await.unwrap().attr;
        (attr.mtime, attr.ctime)
    };
    let written = times(0).await;
    assert_eq!(times(1).await, written);
    let past = wire::Time::secs(1_000_000);
    let set = SetAttr {
        mtime: Some(client::SetTime::At(past)),
        ..SetAttr::default()
    };
    m.mounts[1].setattr(&Cred::root(), fid, &set, None).await.unwrap();
    assert_eq!((times(0).await.0, times(1).await.0), (past, past));
    m.write(0, &file, 0, pattern(10, 0)).await;
    assert!(times(1).await.0 >= written.0);
    m.release([file, other]).await;
    m.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsynced_data_survives_a_power_loss_of_the_mdt() {
    for seed in 0..4 {
        let mut m = Mounts::start_remote().await;
        let mut random = Rng::with_seed(seed);
        let (fid, [file, other]) = m.open("f", layout(true), RW).await;
        let mut model = vec![0u8; 0];
        for round in 0..3 {
            for step in 0..random.u64(1..8) {
                let mount = random.usize(0..2);
                let (at, len) = (random.usize(0..150_000), random.usize(1..60_000));
                let bytes = pattern(len, seed * 1000 + round * 100 + step);
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&bytes);
                m.write(mount, [&file, &other][mount], at as u64, bytes).await;
                if random.u8(0..3) == 0 {
                    let size = random.usize(0..160_000);
                    m.truncate(mount, fid, size as u64).await.unwrap();
                    model.resize(size, 0);
                }
                if random.u8(0..4) == 0 {
                    m.mounts[mount]
                        .fsync([&file, &other][mount], false)
                        .await
                        .unwrap();
                }
            }
            m.lose_power(|uncommitted| random.usize(0..=uncommitted)).await;
            for (mount, file) in [&file, &other].into_iter().enumerate() {
                let read = tokio::time::timeout(SOON, m.read(mount, file, 0, 300_000))
                    .await
                    .unwrap();
                assert_eq!(read.len(), model.len(), "seed {seed} round {round} mount {mount}");
                assert!(read == model, "seed {seed} round {round} mount {mount}");
                assert_eq!(m.size(mount, fid).await, model.len() as u64);
            }
        }
        m.release([file, other]).await;
        m.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_changes_by_two_mounts_match_a_buffer_in_memory() {
    let m = Mounts::start().await;
    for seed in 0..6 {
        let mut random = Rng::with_seed(seed);
        let (fid, files) = m.open(&format!("f{seed}"), layout(seed % 2 == 0), RW).await;
        let max = if seed % 2 == 0 { 400_000 } else { ON_MDT as usize };
        let mut model = vec![0u8; 0];
        for step in 0..60 {
            let mount = random.usize(0..2);
            let file = &files[mount];
            match random.u8(0..5) {
                0 | 1 => {
                    let at = random.usize(0..max);
                    let bytes = pattern(random.usize(1..=(max - at).min(50_000)), seed * 100 + step);
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                    m.write(mount, file, at as u64, bytes).await;
                }
                2 => {
                    let size = random.usize(0..=max);
                    m.truncate(mount, fid, size as u64).await.unwrap();
                    model.resize(size, 0);
                }
                3 => assert_eq!(
                    m.size(mount, fid).await,
                    model.len() as u64,
                    "seed {seed} step {step}"
                ),
                _ => {
                    let (at, len) = (random.usize(0..max), random.usize(1..100_000));
                    let expected = &model[at.min(model.len())..(at + len).min(model.len())];
                    assert!(
                        m.read(mount, file, at as u64, len).await == expected,
                        "seed {seed} step {step}"
                    );
                }
            }
        }
        m.release(files).await;
    }
    m.stop().await;
}
