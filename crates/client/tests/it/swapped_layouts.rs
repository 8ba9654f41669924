//! Files whose layouts another client swaps (`lfs migrate`). A mount uses a file's new objects at
//! once, even through open descriptors, and never uses another file's objects.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, Fallocate, OpenFile, OpenFlags, SetAttr, SetTime};
use ldlm::{Enqueue, Extent, LockClient, LockClientConfig, LockInfo, LockMode, LockOwner, LockRef, Policy};
use rpc::{BoxFuture, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Reply, Request};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use testkit::{Cluster, FSNAME};
use tokio::task::yield_now;
use tokio::time::timeout;
use wire::striping::PlainLayout;
use wire::{
    Errno, Fid, LdlmResId, MDS_SWAP_LAYOUTS, MdcSwapLayouts217, MdtBody, Message, Nid, OBD_CONNECT_ATTRFID,
    OBD_CONNECT_FID, OBD_CONNECT_FULL20, OBD_CONNECT_IBITS, OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_VERSION,
    ObdConnectData, OstLvb, Time, WireStruct,
};

const RW: OpenFlags = OpenFlags::READ_WRITE;
/// Length of a file, in bytes.
const LEN: usize = 3 << 20;

/// The import owner of a client without locks.
struct NoLocks;

impl ImportOwner for NoLocks {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, _e: ImportEvent) {}
}

/// A client that swaps layouts.
struct Swapper(Arc<Import>);

impl Swapper {
    async fn connect(cluster: &Cluster) -> Swapper {
        let flags = OBD_CONNECT_ATTRFID
            | OBD_CONNECT_FID
            | OBD_CONNECT_FULL20
            | OBD_CONNECT_IBITS
            | OBD_CONNECT_LAYOUTLOCK
            | OBD_CONNECT_VERSION;
        let import = Import::new(
            &cluster.rpc,
            ImportConfig {
                name: "swapper".into(),
                target_uuid: format!("{FSNAME}-MDT0000_UUID"),
                client_uuid: "00000000-0000-4000-8000-00000000abcd".into(),
                nids: vec![Nid::LO],
                kind: ImportKind::Mdc,
                connect: ObdConnectData {
                    ocd_connect_flags: flags,
                    ocd_ibits_known: 0x3f,
                    ..ObdConnectData::default()
                },
                max_rpcs_in_flight: 8,
                owner: Arc::new(NoLocks),
            },
        );
        import.connect().await.unwrap();
        Swapper(import)
    }

    async fn swap(&self, a: Fid, b: Fid) {
        let body = MdtBody {
            mbo_fid1: a,
            mbo_fid2: b,
            mbo_capability: u32::MAX,
            ..MdtBody::default()
        };
        let bufs = vec![body.to_bytes(), MdcSwapLayouts217::default().to_bytes()];
        self.0
            .call(Request::modifying(MDS_SWAP_LAYOUTS, bufs))
            .await
            .unwrap();
    }
}

/// A cluster with two OSTs, two mounts and a client that swaps layouts.
struct SwappingCluster {
    cluster: Cluster,
    mount_a: Arc<Client>,
    mount_b: Arc<Client>,
    swapper: Swapper,
}

impl SwappingCluster {
    async fn start() -> SwappingCluster {
        let cluster = Cluster::start(2).await;
        SwappingCluster {
            mount_a: cluster.mount().await,
            mount_b: cluster.mount().await,
            swapper: Swapper::connect(&cluster).await,
            cluster,
        }
    }

    async fn stop(self) {
        self.mount_a.umount().await;
        self.mount_b.umount().await;
        self.swapper.0.disconnect().await;
        self.cluster.stop().await;
    }
}

/// A client that takes group locks on objects.
struct GroupLocker {
    import: Arc<Import>,
    locks: Arc<LockClient>,
}

#[derive(Default)]
struct GroupLockOwner(OnceLock<Arc<LockClient>>);

impl ImportOwner for GroupLockOwner {
    fn callback<'a>(&'a self, opc: u32, msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move { self.0.get().ok_or(Errno::ENODEV)?.ast(opc, msg).await })
    }

    fn event(&self, _e: ImportEvent) {}
}

impl LockOwner for GroupLockOwner {
    fn blocking<'a>(&'a self, _lock: LockInfo, _cancel_bits: u64) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }

    fn glimpse(&self, _lock: LockInfo) -> Option<OstLvb> {
        None
    }

    fn dropped(&self, _lock: LockInfo, _bits: u64) {}
}

impl GroupLocker {
    async fn connect(cluster: &Cluster) -> GroupLocker {
        let owner = Arc::<GroupLockOwner>::default();
        let import = Import::new(
            &cluster.rpc,
            ImportConfig {
                name: "group locker".into(),
                target_uuid: format!("{FSNAME}-OST0000_UUID"),
                client_uuid: "00000000-0000-4000-8000-00000000abce".into(),
                nids: vec![Nid::LO],
                kind: ImportKind::Osc,
                connect: ObdConnectData {
                    ocd_connect_flags: OBD_CONNECT_FID | OBD_CONNECT_FULL20 | OBD_CONNECT_VERSION,
                    ..ObdConnectData::default()
                },
                max_rpcs_in_flight: 8,
                owner: owner.clone(),
            },
        );
        let config = LockClientConfig {
            seed: 1 << 60,
            ..LockClientConfig::default()
        };
        let locks = LockClient::new(owner.clone(), config);
        locks.set_import(import.clone());
        let _ = owner.0.set(locks.clone());
        import.connect().await.unwrap();
        GroupLocker { import, locks }
    }

    async fn lock(&self, object: Fid) -> LockRef {
        let extent = Extent {
            start: 0,
            end: u64::MAX,
            gid: 7,
        };
        let enqueue = Enqueue::new(resource(object), LockMode::Group, Policy::Extent(extent));
        self.locks.enqueue(enqueue).await.unwrap().lock.unwrap()
    }
}

/// The lock resource of an object.
fn resource(object: Fid) -> LdlmResId {
    wire::OstId::from(object).res_id()
}

/// The objects of a file.
async fn objects(client: &Client, fid: Fid) -> Vec<Fid> {
    let layout = client.getstripe(&Cred::root(), fid).await.unwrap();
    let layout = PlainLayout::parse(&layout).unwrap();
    layout.objects.iter().map(|o| o.l_ost_oi.fid()).collect()
}

/// Waits until the OSTs know that these objects belong to the file with this name.
async fn wait_until_adopted(client: &Client, objects: &[Fid], name: &str) {
    let all = async {
        for object in objects {
            let expected = Ok(vec![name.as_bytes().to_vec()]);
            while client.fid2path(&Cred::root(), *object).await != expected {
                yield_now().await;
            }
        }
    };
    timeout(Duration::from_secs(60), all)
        .await
        .expect("the objects are adopted");
}

/// The content of a file, read through a new descriptor.
async fn content(client: &Client, fid: Fid) -> Vec<u8> {
    let file = client.open(&Cred::root(), fid, OpenFlags::READ).await.unwrap();
    let data = read(client, &file).await;
    client.release(&file).await.unwrap();
    data
}

/// Creates a file with this data on the servers.
async fn create(client: &Client, name: &str, data: &Bytes) -> (Fid, Arc<OpenFile>) {
    let root = Cred::root();
    let made = client.create(&root, client.root(), name.as_bytes(), 0o644, RW);
    let (found, file) = made.await.unwrap();
    assert_eq!(client.write(&file, 0, data.clone()).await, Ok(data.len()));
    client.fsync(&file, false).await.unwrap();
    (found.attr.fid, file)
}

async fn read(client: &Client, file: &OpenFile) -> Vec<u8> {
    client.read(file, 0, 2 * LEN).await.unwrap().concat()
}

async fn size(client: &Client, fid: Fid) -> u64 {
    client.getattr(&Cred::root(), fid).await.unwrap().attr.size
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_descriptors_use_the_new_objects() {
    let fs = SwappingCluster::start().await;
    let (mount_a, mount_b, swapper) = (&fs.mount_a, &fs.mount_b, &fs.swapper);
    let (old, new) = (Bytes::from(vec![1; LEN]), Bytes::from(vec![2; LEN / 2]));
    let ((one, file), (two, other)) = (
        create(mount_a, "one", &old).await,
        create(mount_a, "two", &new).await,
    );
    let reader = mount_b.open(&Cred::root(), one, OpenFlags::READ).await.unwrap();
    assert!(read(mount_b, &reader).await == old);
    swapper.swap(one, two).await;
    assert!(read(mount_b, &reader).await == new && read(mount_a, &other).await == old);
    assert_eq!(
        (size(mount_b, one).await, size(mount_b, two).await),
        (new.len() as u64, old.len() as u64)
    );
    // The objects accept changes for their new files.
    for (file, name) in [(&file, "one"), (&other, "two")] {
        assert_eq!(
            mount_a.write(file, 1, Bytes::from_static(&[3])).await,
            Ok(1),
            "{name}"
        );
        mount_a.fsync(file, false).await.unwrap();
    }
    let mut expected = new.to_vec();
    expected[1] = 3;
    assert!(read(mount_b, &reader).await == expected);
    let append = OpenFlags { append: true, ..RW };
    let appender = mount_b.open(&Cred::root(), one, append).await.unwrap();
    swapper.swap(one, two).await;
    assert_eq!(mount_b.write(&appender, 0, Bytes::from_static(b"x")).await, Ok(1));
    assert_eq!(size(mount_a, one).await, old.len() as u64 + 1);
    for (client, file) in [
        (mount_a, file),
        (mount_a, other),
        (mount_b, reader),
        (mount_b, appender),
    ] {
        client.release(&file).await.unwrap();
    }
    fs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_keep_the_data_that_is_written_after_they_moved() {
    let fs = SwappingCluster::start().await;
    let (mount_a, mount_b, swapper) = (&fs.mount_a, &fs.mount_b, &fs.swapper);
    let (of_one, of_two) = (Bytes::from(vec![1; LEN]), Bytes::from(vec![2; LEN / 2]));
    let ((one, file), (two, other)) = (
        create(mount_a, "one", &of_one).await,
        create(mount_a, "two", &of_two).await,
    );
    let (mut expected_one, mut expected_two) = (of_one.to_vec(), of_two.to_vec());
    for round in 0..4 {
        swapper.swap(one, two).await;
        std::mem::swap(&mut expected_one, &mut expected_two);
        for (fid, name) in [(one, "one"), (two, "two")] {
            wait_until_adopted(mount_b, &objects(mount_b, fid).await, name).await;
        }
        // The other descriptor keeps the former layout, and its objects, until its next use.
        let (used, expected) = match round % 2 {
            0 => (&other, &mut expected_two),
            _ => (&file, &mut expected_one),
        };
        let at = 10 + round;
        assert_eq!(
            mount_a.write(used, at as u64, Bytes::from_static(&[9])).await,
            Ok(1)
        );
        mount_a.fsync(used, false).await.unwrap();
        expected[at] = 9;
        assert!(content(mount_b, one).await == expected_one, "round {round}");
        assert!(content(mount_b, two).await == expected_two, "round {round}");
    }
    for (client, file) in [(mount_a, file), (mount_a, other)] {
        client.write_back(&file).await.unwrap();
        client.release(&file).await.unwrap();
    }
    fs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unwritten_data_moves_with_its_object() {
    let fs = SwappingCluster::start().await;
    let (mount_a, mount_b, swapper) = (&fs.mount_a, &fs.mount_b, &fs.swapper);
    let (of_one, of_two) = (Bytes::from(vec![1; LEN]), Bytes::from(vec![2; LEN / 2]));
    let ((one, file), (two, other)) = (
        create(mount_b, "one", &of_one).await,
        create(mount_b, "two", &of_two).await,
    );
    let writer = mount_a.open(&Cred::root(), one, RW).await.unwrap();
    assert_eq!(mount_a.write(&writer, 5, Bytes::from_static(&[9])).await, Ok(1));
    swapper.swap(one, two).await;
    for (fid, name) in [(one, "one"), (two, "two")] {
        wait_until_adopted(mount_b, &objects(mount_b, fid).await, name).await;
    }
    let mut moved = of_one.to_vec();
    moved[5] = 9;
    assert!(content(mount_b, two).await == moved);
    assert!(content(mount_b, one).await == of_two);
    mount_a.fsync(&writer, false).await.unwrap();
    for (client, file) in [(mount_a, writer), (mount_b, file), (mount_b, other)] {
        client.release(&file).await.unwrap();
    }
    fs.stop().await;
}

/// A change of a file that needs extent locks.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write,
    WriteDirect,
    Append,
    Truncate,
    PunchHole,
    SetTimes,
}

impl Change {
    const ALL: [Change; 6] = [
        Change::Write,
        Change::WriteDirect,
        Change::Append,
        Change::Truncate,
        Change::PunchHole,
        Change::SetTimes,
    ];

    fn flags(self) -> OpenFlags {
        OpenFlags {
            direct: matches!(self, Change::WriteDirect),
            append: matches!(self, Change::Append),
            ..RW
        }
    }

    async fn run(self, client: &Client, file: &Arc<OpenFile>, fid: Fid) {
        let root = Cred::root();
        match self {
            Change::Write | Change::WriteDirect | Change::Append => {
                assert_eq!(
                    client.write(file, 4096, Bytes::from(vec![9; 4096])).await,
                    Ok(4096)
                );
            }
            Change::Truncate => {
                let set = SetAttr {
                    size: Some(5000),
                    ..SetAttr::default()
                };
                client.setattr(&root, fid, &set, Some(file)).await.unwrap();
            }
            Change::PunchHole => {
                let punched = client.fallocate(file, Fallocate::PunchHole, 4096, 4096).await;
                punched.unwrap();
            }
            Change::SetTimes => {
                let set = SetAttr {
                    mtime: Some(SetTime::At(Time::secs(1_000_000))),
                    ..SetAttr::default()
                };
                client.setattr(&root, fid, &set, Some(file)).await.unwrap();
            }
        }
    }

    /// Applies the change to the expected content.
    fn apply(self, content: &mut Vec<u8>) {
        match self {
            Change::Write | Change::WriteDirect => content[4096..8192].fill(9),
            Change::Append => content.extend([9; 4096]),
            Change::Truncate => content.truncate(5000),
            Change::PunchHole => content[4096..8192].fill(0),
            Change::SetTimes => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_wait_for_a_lock_during_a_swap_change_their_own_file() {
    let cluster = Cluster::start(1).await;
    let params = params::Registry::default();
    let mount_a = cluster.mount_with(|o| o.params = params.clone()).await;
    let mount_b = cluster.mount_with(|o| o.params = params.clone()).await;
    let swapper = Swapper::connect(&cluster).await;
    let locker = GroupLocker::connect(&cluster).await;
    // Waits for this number of granted and waiting locks on objects. The mounts keep no unused
    // locks meanwhile.
    let lock_count = async |expected: &str| {
        let reached = async {
            while cluster.params.get("ldlm.namespaces.*OST0000*.lock_count")[0].1 != expected {
                params.set("ldlm.namespaces.*-osc-*.lru_size", "clear").unwrap();
                yield_now().await;
            }
        };
        let reached = timeout(Duration::from_secs(60), reached).await;
        reached.unwrap_or_else(|_| panic!("expected {expected} locks"));
    };
    for change in Change::ALL {
        let (of_one, of_two) = (Bytes::from(vec![1; 10_000]), Bytes::from(vec![2; 20_000]));
        let [name, other_name] = ["one", "two"].map(|name| format!("{name} {change:?}"));
        let (one, file) = create(&mount_b, &name, &of_one).await;
        let (two, other) = create(&mount_b, &other_name, &of_two).await;
        let changed = mount_a.open(&Cred::root(), one, change.flags()).await.unwrap();
        let own = [objects(&mount_b, one).await, objects(&mount_b, two).await].concat();
        let held = [locker.lock(own[0]).await, locker.lock(own[1]).await];
        lock_count("2").await;
        let changing = {
            let (mount_a, changed) = (mount_a.clone(), changed.clone());
            tokio::spawn(async move { change.run(&mount_a, &changed, one).await })
        };
        lock_count("3").await;
        swapper.swap(one, two).await;
        assert!(!changing.is_finished(), "{change:?}");
        drop(held);
        locker.locks.cancel_unused();
        changing.await.unwrap();
        mount_a.fsync(&changed, false).await.unwrap();
        let mut expected = of_two.to_vec();
        change.apply(&mut expected);
        assert!(content(&mount_b, one).await == expected, "{change:?}");
        assert!(content(&mount_b, two).await == of_one, "{change:?}");
        let mtime = async |fid| mount_b.getattr(&Cred::root(), fid).await.unwrap().attr.mtime;
        if matches!(change, Change::SetTimes) {
            assert_eq!(mtime(one).await, Time::secs(1_000_000));
            assert_ne!(mtime(two).await, Time::secs(1_000_000));
        }
        for (client, file) in [(&mount_a, changed), (&mount_b, file), (&mount_b, other)] {
            client.release(&file).await.unwrap();
        }
    }
    mount_a.umount().await;
    mount_b.umount().await;
    swapper.0.disconnect().await;
    locker.import.disconnect().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_the_data_while_the_file_moves() {
    let fs = SwappingCluster::start().await;
    let (mount_a, mount_b, swapper) = (&fs.mount_a, &fs.mount_b, &fs.swapper);
    let data = Bytes::from(vec![7; LEN]);
    let (one, file) = create(mount_a, "one", &data).await;
    mount_a.release(&file).await.unwrap();
    let moved = Arc::new(AtomicBool::new(false));
    let reading = {
        let (mount_b, data, moved) = (mount_b.clone(), data.clone(), moved.clone());
        tokio::spawn(async move {
            let direct = OpenFlags {
                direct: true,
                ..OpenFlags::READ
            };
            for flags in [OpenFlags::READ, direct].into_iter().cycle() {
                if moved.load(Ordering::Acquire) {
                    return;
                }
                let file = mount_b.open(&Cred::root(), one, flags).await.unwrap();
                for _ in 0..4 {
                    assert!(read(&mount_b, &file).await == data, "direct: {}", flags.direct);
                    assert_eq!(size(&mount_b, one).await, LEN as u64);
                }
                mount_b.release(&file).await.unwrap();
            }
        })
    };
    for _ in 0..100 {
        let (copy, file) = create(mount_a, "copy", &data).await;
        mount_a.release(&file).await.unwrap();
        swapper.swap(one, copy).await;
        mount_a
            .unlink(&Cred::root(), mount_a.root(), b"copy")
            .await
            .unwrap();
        tokio::task::yield_now().await;
    }
    moved.store(true, Ordering::Release);
    reading.await.unwrap();
    fs.stop().await;
}
