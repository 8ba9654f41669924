//! An OST over the real RPC layer, as its MDT and its clients see it.

#![allow(clippy::unwrap_used)]

mod fiemap;
mod fixture;
mod recovery;
mod rights;

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use fixture::{BrwOptions, Client, MIB, Node, obdo};
use ldlm::{Enqueue, LockMode, Policy};
use osd::{LocalStores, MemoryStores};
use rpc::RpcError;
use wire::{
    Errno, Fid, LDLM_FL_HAS_INTENT, OBD_BRW_FROM_GRANT, OBD_BRW_SRVLOCK, OBD_BRW_SYNC, OBD_MD_FLBLOCKS,
    OBD_MD_FLGRANT, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_DESTROY, OST_FALLOCATE, OST_GET_INFO, OST_GETATTR,
    OST_PUNCH, OST_SEEK, OST_SETATTR, OST_STATFS, OST_SYNC, ObdStatfs, Obdo, OstBody, OstId, OstLvb,
    WireStruct, checksum::ChecksumType, nul_terminated,
};

const ELDLM_LOCK_ABORTED: i32 = 301;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
const PUNCH_HOLE: u32 = 3;
const FALLOC_FL_UNSHARE_RANGE: u32 = 0x40;

fn pattern(len: usize, salt: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i / 7) as u8 ^ (i as u8).wrapping_mul(31) ^ salt)
        .collect()
}

/// A node with a target in memory, an MDT, a client, and an object.
async fn with_object() -> (Node, Arc<ost::Ost>, Arc<Client>, Arc<Client>, Fid) {
    let node = Node::new();
    let ost = node.ost(&MemoryStores(1 << 30)).await;
    let osp = node.osp().await;
    let seq = osp.wait_for_sequence().await;
    assert_eq!(osp.create(seq, 32, false).await.unwrap(), 32);
    let client = node.client("client-a").await;
    (node, ost, osp, client, Fid::new(seq, 1, 0))
}

#[tokio::test(start_paused = true)]
async fn sequences_come_from_mdt0_once_it_is_ready() {
    let node = Node::new();
    node.mdt0.ready.store(false, Ordering::Relaxed);
    let _ost = node.ost(&MemoryStores(1 << 30)).await;
    let osp = node.osp().await;
    assert!(matches!(
        osp.sequence().await,
        Err(RpcError::Status(Errno::EINPROGRESS))
    ));
    node.mdt0.ready.store(true, Ordering::Relaxed);
    let first = osp.wait_for_sequence().await;
    assert_eq!(osp.sequence().await.unwrap(), first + 1);
}

#[tokio::test]
async fn objects_are_precreated_and_orphans_destroyed() {
    let (_node, _ost, osp, client, fid) = with_object().await;
    let seq = fid.f_seq;
    let last_fid = async || {
        let bufs = vec![nul_terminated(b"last_fid"), Fid::new(seq, 1, 0).to_bytes()];
        osp.call(OST_GET_INFO, bufs)
            .await
            .unwrap()
            .get::<Fid>(1)
            .unwrap()
            .f_oid
    };
    assert_eq!(last_fid().await, 32);
    assert_eq!(osp.create(seq, 64, false).await.unwrap(), 64);
    client.write(Fid::new(seq, 50, 0), 0, b"an orphan").await;
    // The MDT uses objects up to 40: those above are destroyed, but their ids are not reused.
    assert_eq!(osp.create(seq, 40, true).await.unwrap(), 64);
    assert_eq!(client.read(Fid::new(seq, 50, 0), 0, 100).await, b"");
    client.write_fails_with_enoent(Fid::new(seq, 50, 0)).await;
    assert_eq!(osp.create(seq, 10, false).await.unwrap(), 65);
    assert_eq!(last_fid().await, 64);
    // A sequence that was never allocated, and an object that was never created.
    assert!(matches!(
        osp.create(seq + 1, 5, false).await,
        Err(RpcError::Status(Errno::EINVAL))
    ));
    client.write_fails_with_enoent(Fid::new(seq, 65, 0)).await;
}

#[tokio::test]
async fn written_data_is_read_over_several_descriptors() {
    let (_node, ost, _osp, client, fid) = with_object().await;
    let data = pattern(4 * MIB - 12345, 1);
    let transno = client.write(fid, 100, &data).await;
    assert!(transno > 0);
    assert_eq!(
        client.read(fid, 100, 4 * MIB as u32 - 8192).await,
        data[..4 * MIB - 12345]
    );
    assert_eq!(
        client.read(fid, 3 * MIB as u64, MIB as u32).await,
        data[3 * MIB - 100..]
    );
    assert_eq!(
        client.read(fid, 0, 104).await,
        [&[0; 100][..], &data[..4]].concat()
    );
    assert_eq!(client.read(fid, 64 << 20, 4096).await, b"");
    let oa = client.call_body(OST_GETATTR, obdo(fid)).await.unwrap();
    assert_eq!(
        (oa.o_size, oa.o_mtime, oa.o_uid),
        (100 + data.len() as u64, 1234, 1000)
    );
    assert_eq!(oa.o_data_version, transno);
    assert_eq!(ost.svname(), "testfs-OST0001");
}

#[tokio::test]
async fn one_request_carries_several_ranges() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let parts = [
        (4096u64, Bytes::from(pattern(5000, 1))),
        (20480, Bytes::from(pattern(2 * MIB, 2))),
    ];
    let options = BrwOptions {
        flags: OBD_BRW_FROM_GRANT,
        checksum: Some(ChecksumType::Crc32c),
        ..BrwOptions::default()
    };
    let reply = client.write_with(fid, &parts, options).await;
    assert_eq!(reply.status, 0);
    assert_eq!(reply.buf(2), [0; 8]);
    assert_eq!(client.read(fid, 4096, 5000).await, parts[0].1);
    assert_eq!(client.read(fid, 20480, 2 * MIB as u32).await, parts[1].1);
}

#[tokio::test]
async fn all_checksum_types_work_for_reads_and_writes() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    for (i, ty) in ChecksumType::ALL.into_iter().enumerate() {
        for short_io in [false, true] {
            let data = Bytes::from(pattern(9000, i as u8));
            let options = BrwOptions {
                short_io,
                checksum: Some(ty),
                flags: OBD_BRW_FROM_GRANT,
                ..BrwOptions::default()
            };
            let reply = client.write_with(fid, &[(500, data.clone())], options).await;
            let oa = reply.get::<OstBody>(1).unwrap().oa;
            assert_eq!(ChecksumType::from_flags(oa.o_flags), Some(ty));
            let sum = ty.of(Some(500..9500), [&data]);
            assert_eq!(oa.o_cksum(), sum);
            let (reply, read) = client.read_with(fid, 500, 12000, options).await;
            assert_eq!(read, data);
            assert_eq!(reply.get::<OstBody>(1).unwrap().oa.o_cksum(), sum);
        }
    }
}

#[tokio::test]
async fn write_with_a_wrong_checksum_changes_nothing_and_returns_the_right_sum() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    client.write(fid, 0, b"good data").await;
    let data = Bytes::from_static(b"bad  data");
    let options = BrwOptions {
        checksum: Some(ChecksumType::Crc32c),
        wrong_sum: true,
        ..BrwOptions::default()
    };
    let reply = client.write_with(fid, &[(0, data.clone())], options).await;
    assert_eq!((reply.status, reply.body.pb_transno), (0, 0));
    assert_eq!(
        reply.get::<OstBody>(1).unwrap().oa.o_cksum(),
        ChecksumType::Crc32c.of(Some(0..9), [&data])
    );
    assert_eq!(client.read(fid, 0, 100).await, b"good data");
}

#[tokio::test]
async fn short_io_needs_no_bulk() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let options = BrwOptions {
        short_io: true,
        flags: OBD_BRW_FROM_GRANT,
        ..BrwOptions::default()
    };
    let reply = client
        .write_with(fid, &[(0, Bytes::from_static(b"hello\n"))], options)
        .await;
    assert_eq!(reply.status, 0);
    let (reply, data) = client.read_with(fid, 0, 4096, options).await;
    assert_eq!((reply.status, &data[..]), (6, &b"hello\n"[..]));
}

#[tokio::test]
async fn malformed_requests_fail() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let options = BrwOptions {
        short_io: true,
        ..BrwOptions::default()
    };
    let err = async |parts: &[(u64, Bytes)]| {
        let reply = client.write_with(fid, parts, options).await;
        Errno::from_status(reply.status).unwrap()
    };
    let x = Bytes::from_static(b"x");
    assert_eq!(err(&[(0, Bytes::new())]).await, Errno::EINVAL);
    assert_eq!(err(&[(5, x.clone()), (5, x.clone())]).await, Errno::EINVAL);
    assert_eq!(err(&[(1 << 60, x.clone())]).await, Errno::EFBIG);
    let long = client
        .write_with(
            fid,
            &[(0, Bytes::from(vec![0; 4 * MIB + 1]))],
            BrwOptions::default(),
        )
        .await;
    assert_eq!(Errno::from_status(long.status), Some(Errno::EPROTO));
    let short = client.call(OST_GETATTR, vec![Bytes::from_static(b"short")]).await;
    assert!(matches!(short, Err(RpcError::Status(Errno::EPROTO))));
    assert!(matches!(
        client.call(wire::OST_LADVISE, vec![]).await,
        Err(RpcError::Status(Errno::EOPNOTSUPP))
    ));
}

#[tokio::test]
async fn grants_follow_the_clients_reports() {
    let (node, _ost, _osp, client, fid) = with_object().await;
    let start = u64::from(client.import().connect_data().ocd_grant);
    assert!((8 << 20..16 << 20).contains(&start), "{start}");
    let options = BrwOptions {
        report: Some((1 << 20, 1 << 20, 200 << 20)),
        flags: OBD_BRW_FROM_GRANT,
        ..BrwOptions::default()
    };
    let data = Bytes::from(pattern(MIB, 3));
    let reply = client.write_with(fid, &[(0, data.clone())], options).await;
    let oa = reply.get::<OstBody>(1).unwrap().oa;
    assert!(oa.o_valid & OBD_MD_FLGRANT != 0 && oa.o_grant > 0);
    // A client that wants no more grant gets none.
    let options = BrwOptions {
        report: Some((0, 1 << 20, 0)),
        ..options
    };
    let oa = client
        .write_with(fid, &[(0, data)], options)
        .await
        .get::<OstBody>(1)
        .unwrap()
        .oa;
    assert_eq!(oa.o_grant, 0);
    assert_eq!(node.osp().await.import().connect_data().ocd_grant, 0);
}

#[tokio::test]
async fn punch_truncates_extends_and_frees_a_hole() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    client.write(fid, 0, b"0123456789").await;
    let punch = async |size: u64, end: u64| {
        let oa = Obdo {
            o_size: size,
            o_blocks: end,
            ..obdo(fid)
        };
        let oa = Obdo {
            o_valid: oa.o_valid | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
            ..oa
        };
        client.call_body(OST_PUNCH, oa).await
    };
    punch(4, OBD_OBJECT_EOF).await.unwrap();
    punch(6, OBD_OBJECT_EOF).await.unwrap();
    assert_eq!(client.read(fid, 0, 100).await, b"0123\0\0");
    punch(1, 3).await.unwrap();
    assert_eq!(client.read(fid, 0, 100).await, b"0\0\x003\0\0");
    assert!(punch(9, 3).await.is_err());
    assert!(matches!(
        client.call_body(OST_PUNCH, obdo(fid)).await,
        Err(RpcError::Status(Errno::EPROTO))
    ));
}

#[tokio::test]
async fn fallocate_allocates_and_punches_and_seek_finds_holes() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let allocate = async |start: u64, end: u64, mode: u32| {
        let mut oa = Obdo {
            o_size: start,
            o_blocks: end,
            ..obdo(fid)
        };
        oa.o_valid |= OBD_MD_FLSIZE | OBD_MD_FLBLOCKS;
        oa.set_o_falloc_mode(mode);
        client.call_body(OST_FALLOCATE, oa).await
    };
    assert_eq!(allocate(0, 1 << 20, 0).await.unwrap().o_size, 1 << 20);
    client.write(fid, 0, &pattern(256 << 10, 1)).await;
    allocate(64 << 10, 128 << 10, PUNCH_HOLE).await.unwrap();
    assert_eq!(client.read(fid, 64 << 10, 4).await, [0; 4]);
    let seek = async |offset: u64, what: u32| {
        client
            .call_body(
                OST_SEEK,
                Obdo {
                    o_size: offset,
                    o_mode: what,
                    ..obdo(fid)
                },
            )
            .await
            .unwrap()
            .o_size as i64
    };
    assert_eq!(seek(0, SEEK_HOLE).await, 64 << 10);
    assert_eq!(seek(64 << 10, SEEK_DATA).await, 128 << 10);
    assert_eq!(seek(2 << 20, SEEK_DATA).await, i64::from(Errno::ENXIO.status()));
    assert!(matches!(
        allocate(0, 10, FALLOC_FL_UNSHARE_RANGE).await,
        Err(RpcError::Status(Errno::EOPNOTSUPP))
    ));
}

#[tokio::test]
async fn destroy_revokes_locks_and_later_changes_fail() {
    let (_node, _ost, osp, client, fid) = with_object().await;
    let oa = Obdo {
        o_valid: obdo(fid).o_valid | wire::OBD_MD_FLGID,
        o_gid: 77,
        ..obdo(fid)
    };
    assert_eq!(osp.call_body(OST_SETATTR, oa).await.unwrap().o_gid, 77);
    let locks = client.locks.get().unwrap();
    let lock = locks
        .enqueue(Enqueue::new(
            fid.res_id(),
            LockMode::Pw,
            Policy::extent(0, u64::MAX),
        ))
        .await
        .unwrap();
    client.write(fid, 0, b"soon gone").await;
    drop(lock);
    assert_eq!(locks.lock_count(), 1);
    osp.call_body(OST_DESTROY, obdo(fid)).await.unwrap();
    assert_eq!(locks.lock_count(), 0);
    assert_eq!(client.read(fid, 0, 100).await, b"");
    osp.call_body(OST_DESTROY, obdo(fid)).await.unwrap();
    // A write of a client that does not know of the destroy cannot create the object again.
    client.write_fails_with_enoent(fid).await;
    assert_eq!(client.read(fid, 0, 100).await, b"");
    let changed = osp.call_body(OST_SETATTR, oa).await;
    assert!(matches!(changed, Err(RpcError::Status(Errno::ENOENT))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_destroyed_during_a_write_stays_destroyed() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::new();
    let ost = node.ost(&LocalStores::in_dir(dir.path())).await;
    let osp = node.osp().await;
    let seq = osp.wait_for_sequence().await;
    osp.create(seq, 600, false).await.unwrap();
    let client = node.client("client-a").await;
    for oid in 1..=600 {
        let fid = Fid::new(seq, oid, 0);
        let (writer, mdt) = (client.clone(), osp.clone());
        let writing = tokio::spawn(async move {
            let parts = [(0, Bytes::from_static(b"late"))];
            let options = BrwOptions {
                flags: OBD_BRW_FROM_GRANT,
                ..BrwOptions::default()
            };
            writer.write_with(fid, &parts, options).await.status
        });
        let destroying = tokio::spawn(async move { mdt.call_body(OST_DESTROY, obdo(fid)).await.map(drop) });
        let status = writing.await.unwrap();
        assert!([0, Errno::ENOENT.status()].contains(&status), "{status}");
        destroying.await.unwrap().unwrap();
        assert_eq!(client.read(fid, 0, 100).await, b"", "{oid}");
    }
    ost.stop().await.unwrap();
    node.rpc.shutdown().await;
}

/// A plain file replaces the directory of the objects: every lookup of an object's file fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_object_needs_no_lookup_before_its_first_write() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStores::in_dir(dir.path());
    let seq = {
        let node = Node::new();
        let ost = node.ost(&store).await;
        let osp = node.osp().await;
        let seq = osp.wait_for_sequence().await;
        osp.create(seq, 32, false).await.unwrap();
        std::fs::write(dir.path().join("objects").join(format!("{seq:x}")), b"").unwrap();
        let (client, fid) = (node.client("client-a").await, Fid::new(seq, 1, 0));
        assert_eq!(client.call_body(OST_GETATTR, obdo(fid)).await.unwrap().o_size, 0);
        osp.call_body(OST_DESTROY, obdo(fid)).await.unwrap();
        ost.stop().await.unwrap();
        node.rpc.shutdown().await;
        seq
    };
    let fid = |oid| Fid::new(seq, oid, 0);
    let node = Node::new();
    let ost = node.ost(&store).await;
    let osp = node.osp().await;
    assert!(
        osp.call_body(OST_DESTROY, obdo(fid(2))).await.is_err(),
        "an object of a former run"
    );
    // The MDT reconnects and reports its last object; objects created from then on are new.
    assert_eq!(osp.create(seq, 48, true).await.unwrap(), 48);
    assert_eq!(osp.create(seq, 64, false).await.unwrap(), 64);
    for oid in [2, 33, 48] {
        assert!(osp.call_body(OST_DESTROY, obdo(fid(oid))).await.is_err(), "{oid}");
    }
    osp.call_body(OST_DESTROY, obdo(fid(49))).await.unwrap();
    ost.stop().await.unwrap();
    node.rpc.shutdown().await;
}

#[tokio::test]
async fn glimpse_returns_the_size_that_the_writer_reports() {
    let (node, _ost, _osp, a, fid) = with_object().await;
    let b = node.client("client-b").await;
    let whole = Policy::extent(0, u64::MAX);
    let glimpse = async |c: &Client| {
        let enqueue = Enqueue::new(fid.res_id(), LockMode::Pr, whole);
        let reply = c
            .locks
            .get()
            .unwrap()
            .enqueue(Enqueue {
                flags: LDLM_FL_HAS_INTENT,
                ..enqueue
            })
            .await
            .unwrap();
        let lvb = OstLvb::from_bytes(&reply.lvb).unwrap();
        (reply.status, lvb.lvb_size)
    };
    a.write(fid, 0, b"12345").await;
    let (status, size) = glimpse(&b).await;
    assert_eq!((status, size), (0, 5));
    b.locks.get().unwrap().cancel_all().await;
    let held = a
        .locks
        .get()
        .unwrap()
        .enqueue(Enqueue::new(fid.res_id(), LockMode::Pw, whole))
        .await
        .unwrap();
    *a.known_size.lock() = Some(1000);
    let (status, size) = glimpse(&b).await;
    assert_eq!((status, size), (ELDLM_LOCK_ABORTED, 1000));
    drop(held);
}

#[tokio::test]
async fn lock_on_a_never_created_object_fails() {
    let (_node, _ost, _osp, a, created) = with_object().await;
    let never_created = [
        Fid::new(created.f_seq, 0x1_0000, 0),
        Fid::new(created.f_seq + 0x1000, created.f_oid, 0),
    ];
    for fid in never_created {
        for flags in [0, LDLM_FL_HAS_INTENT] {
            let enqueue = Enqueue::new(fid.res_id(), LockMode::Pr, Policy::extent(0, u64::MAX));
            let enqueue = a.locks.get().unwrap().enqueue(Enqueue { flags, ..enqueue });
            let refused = enqueue.await.map(drop).unwrap_err();
            assert_eq!(Errno::from(refused), Errno::ENOENT, "{fid}");
        }
    }
}

#[tokio::test]
async fn server_takes_the_lock_for_srvlock_requests() {
    let (node, _ost, _osp, a, fid) = with_object().await;
    let b = node.client("client-b").await;
    let locks = a.locks.get().unwrap();
    drop(
        locks
            .enqueue(Enqueue::new(
                fid.res_id(),
                LockMode::Pw,
                Policy::extent(0, u64::MAX),
            ))
            .await
            .unwrap(),
    );
    // Client a writes its cached data back before b's read.
    let writer = a.clone();
    *a.on_blocking.lock() = Some(Box::new(move |_| {
        let writer = writer.clone();
        Box::pin(async move {
            writer.write(fid, 0, b"dirty").await;
        })
    }));
    let options = BrwOptions {
        flags: OBD_BRW_SRVLOCK,
        ..BrwOptions::default()
    };
    let (_, data) = b.read_with(fid, 0, 100, options).await;
    assert_eq!(data, b"dirty");
    *a.on_blocking.lock() = None;
}

#[tokio::test]
async fn sync_of_the_target_waits_for_the_commit() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    let transno = client.write(fid, 0, b"x").await;
    assert!(client.import().last_committed().0 < transno);
    client.call_body(OST_SYNC, Obdo::default()).await.unwrap();
    assert!(client.import().last_committed().0 >= transno);
    let s = client
        .call(OST_STATFS, vec![])
        .await
        .unwrap()
        .get::<ObdStatfs>(1)
        .unwrap();
    assert!(s.os_bavail > 0 && s.os_bsize == 4096 && s.os_namelen == 255);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn synced_data_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = LocalStores::in_dir(dir.path());
    let data = pattern(3 * MIB, 9);
    let (fid, transno, instance) = {
        let node = Node::new();
        let ost = node.ost(&store).await;
        let osp = node.osp().await;
        let seq = osp.wait_for_sequence().await;
        osp.create(seq, 32, false).await.unwrap();
        let client = node.client("client-a").await;
        let fid = Fid::new(seq, 7, 0);
        let transno = client.write(fid, 4096, &data).await;
        client.call_body(OST_SYNC, obdo(fid)).await.unwrap();
        let options = BrwOptions {
            flags: OBD_BRW_FROM_GRANT | OBD_BRW_SYNC,
            ..BrwOptions::default()
        };
        let small = Fid::new(seq, 8, 0);
        assert_eq!(
            client
                .write_with(small, &[(0, Bytes::from_static(b"small"))], options)
                .await
                .status,
            0
        );
        ost.stop().await.unwrap();
        node.rpc.shutdown().await;
        (fid, transno, ost.instance())
    };
    let node = Node::new();
    let ost = node.ost(&store).await;
    assert!(ost.instance() > instance);
    let client = node.client("client-a").await;
    assert_eq!(client.read(fid, 4096, 3 * MIB as u32).await, data);
    assert_eq!(client.read(Fid::new(fid.f_seq, 8, 0), 0, 9).await, b"small");
    assert!(client.write(fid, 0, b"x").await > transno);
    // A crash may have lost the record of an object: requests wait for the MDT's report.
    let beyond = Fid::new(fid.f_seq, 40, 0);
    let getattr = {
        let client = client.clone();
        tokio::spawn(async move { client.call_body(OST_GETATTR, obdo(beyond)).await })
    };
    let osp = node.osp().await;
    // Sequences and the last object survive the restart: nothing is allocated twice.
    assert_eq!(osp.sequence().await.unwrap(), fid.f_seq + 1);
    assert_eq!(osp.create(fid.f_seq, 32, false).await.unwrap(), 32);
    assert!(!getattr.is_finished());
    assert_eq!(osp.create(fid.f_seq, 40, true).await.unwrap(), 40);
    getattr.await.unwrap().unwrap();
    let never_created = client
        .call_body(OST_GETATTR, obdo(Fid::new(fid.f_seq, 41, 0)))
        .await;
    assert!(matches!(never_created, Err(RpcError::Status(Errno::ENOENT))));
    // The MDT reports nothing about IDIF objects: there are none.
    let old = Obdo {
        o_oi: OstId { oi_id: 1, oi_seq: 0 },
        ..obdo(fid)
    };
    let never_created = client.call_body(OST_GETATTR, old).await;
    assert!(matches!(never_created, Err(RpcError::Status(Errno::ENOENT))));
    ost.stop().await.unwrap();
    node.rpc.shutdown().await;
}
