//! Layouts other than one stripe on each of several OSTs.

#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use client::{Client, Cred, OpenFile, OpenFlags, SetAttr};
use rpc::{BoxFuture, Import, ImportConfig, ImportEvent, ImportKind, ImportOwner, Reply, Request};
use std::collections::BTreeMap;
use std::sync::Arc;
use testkit::{Cluster, FSNAME};
use wire::striping::{LovLayout, PlainLayout};
use wire::{
    Errno, Fid, LOV_MAGIC_FOREIGN, LU_FOREIGN_TYPE_S3, LovForeignMd, MDS_GETATTR, MdtBody, Message, Nid,
    OBD_CONNECT_ATTRFID, OBD_CONNECT_FID, OBD_CONNECT_FLAGS2, OBD_CONNECT_FULL20, OBD_CONNECT_IBITS,
    OBD_CONNECT_VERSION, OBD_CONNECT2_OVERSTRIPING, OBD_MD_FLEASIZE, ObdConnectData, WireStruct,
};

const RW: OpenFlags = OpenFlags::READ_WRITE;
const STRIPE_SIZE: u32 = 64 << 10;
const S_IFREG: u32 = 0o100_000;

async fn create_with(client: &Client, name: &str, layout: PlainLayout) -> (Fid, Arc<OpenFile>) {
    let (cred, root) = (Cred::root(), client.root());
    let create = client.create_with(&cred, (root, name.as_bytes()), 0o644, RW, layout.build());
    let (found, file) = create.await.unwrap();
    (found.attr.fid, file)
}

async fn layout_of(client: &Client, fid: Fid) -> PlainLayout {
    let ea = client.getstripe(&Cred::root(), fid).await.unwrap();
    PlainLayout::parse(&ea).unwrap()
}

/// The number of stripes on each OST.
fn stripes_by_ost(layout: &PlainLayout) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for object in &layout.objects {
        *counts.entry(object.l_ost_idx).or_default() += 1;
    }
    counts
}

fn pattern(len: usize) -> Bytes {
    let byte = |i: usize| ((i as u64 * 2_654_435_761) >> 7) as u8;
    (0..len).map(byte).collect::<Vec<u8>>().into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overstriped_file_has_several_objects_on_each_ost() {
    let cluster = Cluster::start(2).await;
    let (mount_a, mount_b) = (cluster.mount().await, cluster.mount().await);
    let request = PlainLayout::request(STRIPE_SIZE, 7, None).overstriped();
    let (fid, file) = create_with(&mount_a, "f", request).await;
    let layout = layout_of(&mount_a, fid).await;
    assert!(layout.is_overstriped());
    let counts: Vec<_> = stripes_by_ost(&layout).into_values().collect();
    assert!(counts == [3, 4] || counts == [4, 3], "{counts:?}");

    let data = pattern(2_000_000);
    assert_eq!(mount_a.write(&file, 0, data.clone()).await, Ok(data.len()));
    let other = mount_b.open(&Cred::root(), fid, RW).await.unwrap();
    let read = mount_b.read(&other, 0, 3_000_000).await.unwrap().concat();
    assert!(read == data, "the other mount reads the same bytes");
    let size = SetAttr {
        size: Some(700_001),
        ..SetAttr::default()
    };
    mount_b.setattr(&Cred::root(), fid, &size, None).await.unwrap();
    let read = mount_a.read(&file, 0, 3_000_000).await.unwrap().concat();
    assert!(read == data[..700_001], "truncated");
    for (client, file) in [(&mount_a, &file), (&mount_b, &other)] {
        client.release(file).await.unwrap();
        client.umount().await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overstriped_file_waits_for_objects_and_repeats_listed_osts() {
    let cluster = Cluster::start(2).await;
    let client = cluster.mount().await;
    // Many more stripes than the first precreation of an OST has objects.
    let request = PlainLayout::request(STRIPE_SIZE, 300, None).overstriped();
    let (fid, file) = create_with(&client, "many", request).await;
    let counts = stripes_by_ost(&layout_of(&client, fid).await);
    assert_eq!(counts, BTreeMap::from([(0, 150), (1, 150)]));
    client.release(&file).await.unwrap();

    let object = |ost: u32| wire::LovOstDataV1 {
        l_ost_idx: ost,
        ..Default::default()
    };
    let listed = PlainLayout {
        magic: wire::LOV_USER_MAGIC_SPECIFIC,
        objects: [1, 1, 0, 1].map(object).to_vec(),
        ..PlainLayout::request(STRIPE_SIZE, 4, Some(1)).overstriped()
    };
    let (fid, file) = create_with(&client, "listed", listed).await;
    let osts: Vec<u32> = layout_of(&client, fid)
        .await
        .objects
        .iter()
        .map(|o| o.l_ost_idx)
        .collect();
    assert_eq!(osts, [1, 1, 0, 1]);
    client.release(&file).await.unwrap();

    // With enough OSTs, no OST has several stripes, and the pattern does not claim it.
    let request = PlainLayout::request(STRIPE_SIZE, 2, None).overstriped();
    let (fid, file) = create_with(&client, "two", request).await;
    let layout = layout_of(&client, fid).await;
    assert!(layout.objects.len() == 2 && !layout.is_overstriped());
    client.release(&file).await.unwrap();
    client.umount().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_layout_is_stored_and_shown_but_has_no_data() {
    let cluster = Cluster::start(1).await;
    let (client, cred) = (cluster.mount().await, Cred::root());
    let other = cluster.mount().await;
    let head = LovForeignMd {
        lfm_magic: LOV_MAGIC_FOREIGN,
        lfm_type: LU_FOREIGN_TYPE_S3,
        lfm_flags: 0xda08,
        ..Default::default()
    };
    let layout = LovLayout::Foreign(head, Bytes::from_static(b"s3://bucket/key")).build();
    let root = client.root();
    // A found file holds its locks.
    let create = client.create_with(&cred, (root, b"created"), 0o644, RW, layout.clone());
    let created = {
        let (found, file) = create.await.unwrap();
        client.release(&file).await.unwrap();
        found.attr.fid
    };
    let late = {
        let found = client.mknod(&cred, root, b"late", S_IFREG | 0o644, 0).await;
        found.unwrap().attr.fid
    };
    client.setstripe(&cred, late, layout.clone()).await.unwrap();
    for fid in [created, late] {
        assert_eq!(other.getstripe(&cred, fid).await.unwrap(), layout);
        let file = other.open(&cred, fid, RW).await.unwrap();
        assert_eq!(other.read(&file, 0, 10).await, Err(Errno::ENODATA));
        let bytes = Bytes::from_static(b"x");
        assert_eq!(other.write(&file, 0, bytes).await, Err(Errno::EBADF));
        let truncate = SetAttr {
            size: Some(5),
            ..SetAttr::default()
        };
        let truncated = other.setattr(&cred, fid, &truncate, Some(&file)).await;
        assert_eq!(truncated.map(|found| found.attr.size), Err(Errno::ENODATA));
        let mode = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        other.setattr(&cred, fid, &mode, None).await.unwrap();
        other.fsync(&file, false).await.unwrap();
        other.release(&file).await.unwrap();
        let attr = other.getattr(&cred, fid).await.unwrap().attr;
        assert_eq!((attr.size, attr.mode & 0o777), (0, 0o600));
        let striped = PlainLayout::request(STRIPE_SIZE, 1, None).build();
        let again = other.setstripe(&cred, fid, striped).await;
        assert_eq!(again, Err(Errno::EEXIST));
    }
    for name in [b"created".as_slice(), b"late"] {
        other.unlink(&cred, root, name).await.unwrap();
    }
    assert_eq!(client.getattr(&cred, late).await.map(|_| ()), Err(Errno::ENOENT));
    other.umount().await;
    client.umount().await;
    cluster.stop().await;
}

/// The import owner of a client without locks.
struct NoLocks;

impl ImportOwner for NoLocks {
    fn callback<'a>(&'a self, _opc: u32, _msg: Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async { Err(Errno::EINVAL) })
    }

    fn event(&self, _e: ImportEvent) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_clients_cannot_use_overstriped_files() {
    let cluster = Cluster::start(1).await;
    let client = cluster.mount().await;
    let request = PlainLayout::request(STRIPE_SIZE, 2, None).overstriped();
    let (fid, file) = create_with(&client, "f", request).await;
    for (flags2, expected) in [(0, Err(Errno::EOPNOTSUPP)), (OBD_CONNECT2_OVERSTRIPING, Ok(fid))] {
        let import = Import::new(
            &cluster.rpc,
            ImportConfig {
                name: "lustre".into(),
                target_uuid: format!("{FSNAME}-MDT0000_UUID"),
                client_uuid: format!("00000000-0000-4000-8000-{flags2:012x}"),
                nids: vec![Nid::LO],
                kind: ImportKind::Mdc,
                connect: ObdConnectData {
                    ocd_connect_flags: OBD_CONNECT_ATTRFID
                        | OBD_CONNECT_FID
                        | OBD_CONNECT_FULL20
                        | OBD_CONNECT_IBITS
                        | OBD_CONNECT_VERSION
                        | OBD_CONNECT_FLAGS2,
                    ocd_connect_flags2: flags2,
                    ocd_ibits_known: 0x3f,
                    ..ObdConnectData::default()
                },
                max_rpcs_in_flight: 8,
                owner: Arc::new(NoLocks),
            },
        );
        import.connect().await.unwrap();
        let body = MdtBody {
            mbo_fid1: fid,
            mbo_valid: OBD_MD_FLEASIZE,
            ..MdtBody::default()
        };
        let reply = import
            .call(Request::new(MDS_GETATTR, vec![body.to_bytes()]))
            .await;
        let answer = reply
            .map_err(Errno::from)
            .map(|reply| reply.get::<MdtBody>(1).unwrap().mbo_fid1);
        assert_eq!(answer, expected);
        import.disconnect().await;
    }
    client.release(&file).await.unwrap();
    client.umount().await;
    cluster.stop().await;
}
