//! Files whose layouts another client exchanges (`lfs migrate`): a mount uses a file's new objects
//! at once, also through open descriptors, and never those of another file.

#![allow(clippy::unwrap_used)]

use crate::cluster::{Cluster, FSNAME};
use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags};
use rpc::{BoxFuture, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::{
    Errno, Fid, MDS_SWAP_LAYOUTS, MdcSwapLayouts217, MdtBody, Message, Nid, OBD_CONNECT_ATTRFID,
    OBD_CONNECT_FID, OBD_CONNECT_FULL20, OBD_CONNECT_IBITS, OBD_CONNECT_LAYOUTLOCK, OBD_CONNECT_VERSION,
    ObdConnectData, WireStruct,
};

const RW: OpenFlags = OpenFlags::READ_WRITE;
const LEN: usize = 3 << 20;

/// A client without locks.
struct NoLocks;

impl ImportOwner for NoLocks {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, _e: ImportEvent) {}
}

/// A client that exchanges layouts.
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

/// Creates a file with this data on the servers.
async fn create(c: &Client, name: &str, data: &Bytes) -> (Fid, Arc<OpenFile>) {
    let root = Cred::root();
    let made = c.create(&root, c.root(), name.as_bytes(), 0o644, RW);
    let (found, file) = made.await.unwrap();
    assert_eq!(c.write(&file, 0, data.clone()).await, Ok(data.len()));
    c.fsync(&file, false).await.unwrap();
    (found.attr.fid, file)
}

async fn read(c: &Client, file: &OpenFile) -> Vec<u8> {
    c.read(file, 0, 2 * LEN).await.unwrap().concat()
}

async fn size(c: &Client, fid: Fid) -> u64 {
    c.getattr(&Cred::root(), fid).await.unwrap().attr.size
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_descriptors_use_the_new_objects() {
    let cluster = Cluster::start(2).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let swapper = Swapper::connect(&cluster).await;
    let (old, new) = (Bytes::from(vec![1; LEN]), Bytes::from(vec![2; LEN / 2]));
    let ((one, file), (two, other)) = (create(&a, "one", &old).await, create(&a, "two", &new).await);
    let reader = b.open(&Cred::root(), one, OpenFlags::READ).await.unwrap();
    assert!(read(&b, &reader).await == old);
    swapper.swap(one, two).await;
    assert!(read(&b, &reader).await == new && read(&a, &other).await == old);
    assert_eq!(
        (size(&b, one).await, size(&b, two).await),
        (new.len() as u64, old.len() as u64)
    );
    // The objects accept changes for their new files.
    for (file, name) in [(&file, "one"), (&other, "two")] {
        assert_eq!(a.write(file, 1, Bytes::from_static(&[3])).await, Ok(1), "{name}");
        a.fsync(file, false).await.unwrap();
    }
    let mut expected = new.to_vec();
    expected[1] = 3;
    assert!(read(&b, &reader).await == expected);
    let append = OpenFlags { append: true, ..RW };
    let appender = b.open(&Cred::root(), one, append).await.unwrap();
    swapper.swap(one, two).await;
    assert_eq!(b.write(&appender, 0, Bytes::from_static(b"x")).await, Ok(1));
    assert_eq!(size(&a, one).await, old.len() as u64 + 1);
    for (c, file) in [(&a, file), (&a, other), (&b, reader), (&b, appender)] {
        c.release(&file).await.unwrap();
    }
    a.umount().await;
    b.umount().await;
    swapper.0.disconnect().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_sees_the_data_while_the_file_moves() {
    let cluster = Cluster::start(2).await;
    let (a, b) = (cluster.mount().await, cluster.mount().await);
    let swapper = Swapper::connect(&cluster).await;
    let data = Bytes::from(vec![7; LEN]);
    let (one, file) = create(&a, "one", &data).await;
    a.release(&file).await.unwrap();
    let moved = Arc::new(AtomicBool::new(false));
    let reading = {
        let (b, data, moved) = (b.clone(), data.clone(), moved.clone());
        tokio::spawn(async move {
            let direct = OpenFlags {
                direct: true,
                ..OpenFlags::READ
            };
            for flags in [OpenFlags::READ, direct].into_iter().cycle() {
                if moved.load(Ordering::Acquire) {
                    return;
                }
                let file = b.open(&Cred::root(), one, flags).await.unwrap();
                for _ in 0..4 {
                    assert!(read(&b, &file).await == data, "direct: {}", flags.direct);
                    assert_eq!(size(&b, one).await, LEN as u64);
                }
                b.release(&file).await.unwrap();
            }
        })
    };
    for _ in 0..100 {
        let (copy, file) = create(&a, "copy", &data).await;
        a.release(&file).await.unwrap();
        swapper.swap(one, copy).await;
        a.unlink(&Cred::root(), a.root(), b"copy").await.unwrap();
        tokio::task::yield_now().await;
    }
    moved.store(true, Ordering::Release);
    reading.await.unwrap();
    a.umount().await;
    b.umount().await;
    swapper.0.disconnect().await;
    cluster.stop().await;
}
