//! Requests that a target refuses: false claims to be a server, requests that only MDTs may send or
//! that the nodemap forbids, and impossible changes.

pub(crate) mod capabilities;
mod fid2path;

use bytes::Bytes;
use ldlm::{Enqueue, LockMode, Policy};
use osd::MemoryStores;
use rpc::{ConnectRequest, ImportState, Role, RpcError, Target};
use wire::{
    Errno, Fid, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, OBD_MD_FLBLOCKS, OBD_MD_FLFID, OBD_MD_FLGID,
    OBD_MD_FLGROUP, OBD_MD_FLID, OBD_MD_FLPROJID, OBD_MD_FLSIZE, OBD_MD_FLUID, OBD_OBJECT_EOF, OST_DESTROY,
    OST_FALLOCATE, OST_PUNCH, OST_SETATTR, OST_STATFS, ObdConnectData, Obdo,
};

use crate::fixture::{BrwOptions, Node};
use crate::{obdo, with_object};

#[tokio::test]
async fn peer_is_a_server_only_at_an_mdts_nid() {
    let node = Node::new();
    let ost = node.ost(&MemoryStores(1 << 30)).await;
    node.move_mdt0("10.0.0.1@tcp".parse().unwrap());
    let admit = |nid: &str, flags| {
        let data = ObdConnectData {
            ocd_connect_flags: flags,
            ..ObdConnectData::default()
        };
        ost.admit(&ConnectRequest {
            client_uuid: "testfs-MDT0000-mdtlov_UUID".into(),
            peer: nid.parse().unwrap(),
            reconnects: false,
            recovers: false,
            data,
        })
    };
    for claim in [OBD_CONNECT_MDS, OBD_CONNECT_LIGHTWEIGHT] {
        assert_eq!(admit("10.0.0.1@tcp", claim), Ok(Role::Server));
        assert_eq!(admit("10.0.0.2@tcp", claim), Err(Errno::EAGAIN));
    }
    assert_eq!(admit("10.0.0.1@tcp", 0), Ok(Role::Client));
    assert_eq!(admit("10.0.0.2@tcp", 0), Ok(Role::Client));
    // The MDT has moved: a peer at the MDT's old NID is no longer accepted as a server.
    node.move_mdt0("10.0.0.2@tcp".parse().unwrap());
    assert_eq!(admit("10.0.0.1@tcp", OBD_CONNECT_MDS), Err(Errno::EAGAIN));
    assert_eq!(admit("10.0.0.2@tcp", OBD_CONNECT_MDS), Ok(Role::Server));
}

#[tokio::test]
async fn client_cannot_create_destroy_or_chown_objects() {
    let (_node, _ost, osp, client, fid) = with_object().await;
    client.write(fid, 0, b"data").await;
    let refused =
        |result: Result<(), RpcError>| assert!(matches!(result, Err(RpcError::Status(Errno::EPERM))));
    refused(client.create(fid.f_seq, 64, false).await.map(drop));
    refused(client.create(fid.f_seq, 0, true).await.map(drop));
    refused(client.call_body(OST_DESTROY, obdo(fid)).await.map(drop));
    refused(client.sequence().await.map(drop));
    for owner in [OBD_MD_FLUID, OBD_MD_FLGID, OBD_MD_FLPROJID] {
        let oa = Obdo {
            o_valid: obdo(fid).o_valid | owner,
            o_uid: 4711,
            ..obdo(fid)
        };
        refused(client.call_body(OST_SETATTR, oa).await.map(drop));
        osp.call_body(OST_SETATTR, oa).await.unwrap();
    }
    assert_eq!(client.read(fid, 0, 100).await, b"data");
    assert_eq!(osp.create(fid.f_seq, 33, false).await.unwrap(), 33);
}

#[tokio::test]
async fn client_with_readonly_mount_cannot_change_objects() {
    let (node, _ost, osp, client, fid) = with_object().await;
    client.write(fid, 0, b"data").await;
    node.set_nodemap_property("readonly_mount", "1");
    let refused =
        |result: Result<(), RpcError>| assert!(matches!(result, Err(RpcError::Status(Errno::EROFS))));
    let parts = [(0, Bytes::from_static(b"x"))];
    let written = client.write_with(fid, &parts, BrwOptions::default()).await;
    assert_eq!(Errno::from_status(written.status), Some(Errno::EROFS));
    let range = Obdo {
        o_valid: obdo(fid).o_valid | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
        o_size: 0,
        o_blocks: OBD_OBJECT_EOF,
        ..obdo(fid)
    };
    for opc in [OST_PUNCH, OST_FALLOCATE, OST_SETATTR] {
        refused(client.call_body(opc, range).await.map(drop));
    }
    let locks = client.locks.get().unwrap();
    let lock = |mode| locks.enqueue(Enqueue::new(fid.res_id(), mode, Policy::extent(0, u64::MAX)));
    for mode in [LockMode::Pw, LockMode::Ex, LockMode::Group] {
        refused(lock(mode).await.map(drop));
    }
    lock(LockMode::Pr).await.unwrap();
    assert_eq!(client.read(fid, 0, 100).await, b"data");
    // The nodemap does not apply to the MDT.
    osp.call_body(OST_SETATTR, obdo(fid)).await.unwrap();
    node.set_nodemap_property("readonly_mount", "0");
    client.write(fid, 0, b"more").await;
}

#[tokio::test]
async fn client_with_deny_mount_is_evicted() {
    let (node, _ost, osp, client, fid) = with_object().await;
    node.set_nodemap_property("deny_mount", "1");
    // The client learns of the eviction from a request, reconnects, and is refused.
    let refused = async {
        while client.import().state() != ImportState::Closed {
            let _ = client.call(OST_STATFS, Vec::new()).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), refused)
        .await
        .unwrap();
    assert_eq!(osp.create(fid.f_seq, 40, false).await.unwrap(), 40);
}

#[tokio::test]
async fn change_with_another_parent_fid_fails() {
    let (_node, _ost, osp, client, fid) = with_object().await;
    let with_parent = |f_oid| Obdo {
        o_valid: OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLFID | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
        o_parent_seq: 0x2_0000_0401,
        o_parent_oid: f_oid,
        o_blocks: OBD_OBJECT_EOF,
        ..obdo(fid)
    };
    client.call_body(OST_SETATTR, with_parent(1)).await.unwrap();
    for opc in [OST_SETATTR, OST_PUNCH] {
        client.call_body(opc, with_parent(1)).await.unwrap();
        let refused = client.call_body(opc, with_parent(2)).await;
        assert!(
            matches!(refused, Err(RpcError::Status(Errno::EPERM))),
            "{refused:?}"
        );
    }
    client.write(fid, 0, b"no parent is named").await;
    let other = BrwOptions {
        parent: Some(Fid::new(0x2_0000_0401, 2, 0)),
        ..BrwOptions::default()
    };
    let data = [(0, Bytes::from_static(b"another file"))];
    let refused = client.write_with(fid, &data, other).await;
    assert_eq!(refused.status, Errno::EPERM.status());
    assert_eq!(client.read(fid, 0, 18).await, b"no parent is named");
    // The MDT may assign an object to another file.
    osp.call_body(OST_SETATTR, with_parent(2)).await.unwrap();
    client.call_body(OST_SETATTR, with_parent(2)).await.unwrap();
}

#[tokio::test]
async fn truncate_beyond_maxbytes_fails() {
    let (_node, _ost, _osp, client, fid) = with_object().await;
    for (start, end) in [
        (1 << 63, OBD_OBJECT_EOF),
        (u64::MAX, OBD_OBJECT_EOF),
        (0, 1 << 63),
        (16 << 40, OBD_OBJECT_EOF),
    ] {
        let oa = Obdo {
            o_valid: OBD_MD_FLID | OBD_MD_FLGROUP | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS,
            o_size: start,
            o_blocks: end,
            ..obdo(fid)
        };
        let refused = client.call_body(OST_PUNCH, oa).await;
        assert!(
            matches!(refused, Err(RpcError::Status(Errno::EFBIG))),
            "{refused:?}"
        );
    }
}
