//! Requests of clients with a nodemap that requires capabilities.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use ldlm::{Enqueue, LockMode, Policy};
use mgc::{CapaKeyring, CapaScope};
use rpc::{Bulk, Request, RpcError};
use wire::{
    CAPA_OPC_META_READ, CAPA_OPC_META_WRITE, CAPA_OPC_OSS_READ, CAPA_OPC_OSS_TRUNC, CAPA_OPC_OSS_WRITE,
    Errno, Fid, LDLM_FL_BLOCK_NOWAIT, LDLM_FL_HAS_INTENT, LustreCapa, NiobufRemote, OBD_MD_FLBLOCKS,
    OBD_MD_FLMTIME, OBD_MD_FLSIZE, OBD_OBJECT_EOF, OST_FALLOCATE, OST_GETATTR, OST_PUNCH, OST_READ, OST_SEEK,
    OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE, ObdIoobj, Obdo, OstBody, WireStruct,
};

use crate::fixture::{Client, Node, TARGET};
use crate::{obdo, with_object};

const CLIENT: &str = "client-a";
pub(crate) const ALL: u64 =
    CAPA_OPC_META_READ | CAPA_OPC_META_WRITE | CAPA_OPC_OSS_READ | CAPA_OPC_OSS_TRUNC | CAPA_OPC_OSS_WRITE;

pub(crate) fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32
}

/// A capability without a signature, valid for 1000 s.
pub(crate) fn unsigned_capa(fid: Fid, rights: u64) -> LustreCapa {
    LustreCapa {
        lc_fid: fid,
        lc_opc: rights,
        lc_timeout: 1000,
        lc_expiry: now() + 1000,
        ..LustreCapa::default()
    }
}

/// The capability, signed as an MDT signs it for this client.
pub(crate) fn signed_capa(node: &Node, client: &str, capa: LustreCapa) -> Bytes {
    let scope = CapaScope {
        target: TARGET,
        client,
    };
    node.capa_keys.sign(scope, capa).unwrap().to_bytes()
}

/// Sends a request about an object with a capability. For [`LOCK_TO_READ`], [`LOCK_TO_WRITE`] and
/// [`GLIMPSE`] enqueues a lock.
async fn send(client: &Client, opc: u32, fid: Fid, capability: &Bytes) -> Result<(), Errno> {
    if [LOCK_TO_READ, LOCK_TO_WRITE, GLIMPSE].contains(&opc) {
        return lock(client, opc, fid, capability).await;
    }
    let oa = Obdo {
        o_valid: obdo(fid).o_valid | OBD_MD_FLSIZE | OBD_MD_FLBLOCKS | OBD_MD_FLMTIME,
        o_size: 0,
        o_blocks: if opc == OST_FALLOCATE {
            4096
        } else {
            OBD_OBJECT_EOF
        },
        o_mode: if opc == OST_SEEK { 4 } else { 0 },
        ..obdo(fid)
    };
    let mut bufs = vec![OstBody { oa }.to_bytes()];
    let mut bulk = None;
    if [OST_READ, OST_WRITE].contains(&opc) {
        let object = ObdIoobj {
            ioo_oid: fid.into(),
            ioo_max_brw: 0,
            ioo_bufcnt: 1,
        };
        let range = NiobufRemote {
            rnb_offset: 0,
            rnb_len: 4,
            rnb_flags: 0,
        };
        bufs.extend([object.to_bytes(), range.to_bytes()]);
        bulk = Some(match opc {
            OST_READ => Bulk::Sink(vec![4]),
            _ => Bulk::Source(vec![Bytes::from_static(b"data").into()]),
        });
    }
    bufs.push(capability.clone());
    let request = Request {
        bulk,
        reply_len: 4096,
        ..Request::new(opc, bufs)
    };
    let result = client.import().call(request).await;
    result.map(drop).map_err(|e: RpcError| e.errno())
}

/// Numbers of the lock requests, beside the opcodes of the other requests.
const LOCK_TO_READ: u32 = u32::MAX;
const LOCK_TO_WRITE: u32 = u32::MAX - 1;
const GLIMPSE: u32 = u32::MAX - 2;

async fn lock(client: &Client, opc: u32, fid: Fid, capability: &Bytes) -> Result<(), Errno> {
    let mode = if opc == LOCK_TO_WRITE {
        LockMode::Pw
    } else {
        LockMode::Pr
    };
    let enqueue = Enqueue {
        flags: if opc == GLIMPSE { LDLM_FL_HAS_INTENT } else { 0 },
        capability: capability.clone(),
        ..Enqueue::new(fid.res_id(), mode, Policy::extent(0, OBD_OBJECT_EOF))
    };
    let result = client.locks.get().unwrap().enqueue(enqueue).await;
    result.map(drop).map_err(|e| e.errno())
}

/// All requests about an object, and a right that suffices for each.
const REQUESTS: [(u32, u64); 11] = [
    (OST_WRITE, CAPA_OPC_OSS_WRITE),
    (OST_READ, CAPA_OPC_OSS_READ),
    (OST_SEEK, CAPA_OPC_OSS_READ),
    (OST_GETATTR, CAPA_OPC_META_READ),
    (OST_SYNC, CAPA_OPC_META_READ),
    (OST_SETATTR, CAPA_OPC_META_WRITE),
    (OST_FALLOCATE, CAPA_OPC_OSS_WRITE),
    (OST_PUNCH, CAPA_OPC_OSS_TRUNC),
    (GLIMPSE, CAPA_OPC_META_READ),
    (LOCK_TO_READ, CAPA_OPC_META_READ),
    (LOCK_TO_WRITE, CAPA_OPC_OSS_WRITE),
];

#[tokio::test]
async fn requests_without_a_valid_capability_fail() {
    let (node, _ost, osp, client, fid) = with_object().await;
    client.write(fid, 0, b"data").await;
    node.set_nodemap_property("capabilities", "1");
    let good = unsigned_capa(fid, ALL);
    let other = Fid::new(fid.f_seq, 2, 0);
    let bad = [
        Bytes::new(),
        good.to_bytes(),
        signed_capa(&node, CLIENT, good).slice(..119),
        signed_capa(&node, CLIENT, unsigned_capa(other, ALL)),
        signed_capa(&node, "client-b", good),
        signed_capa(
            &node,
            CLIENT,
            LustreCapa {
                lc_expiry: now() - 1,
                ..good
            },
        ),
    ];
    for (opc, right) in REQUESTS {
        for (i, capability) in bad.iter().enumerate() {
            assert_eq!(
                send(&client, opc, fid, capability).await,
                Err(Errno::EACCES),
                "{opc} {i}"
            );
        }
        // All rights except those that suffice.
        let writes = CAPA_OPC_OSS_WRITE | CAPA_OPC_OSS_TRUNC | CAPA_OPC_META_WRITE;
        let enough = if opc == LOCK_TO_WRITE { writes } else { right };
        let too_little = signed_capa(&node, CLIENT, unsigned_capa(fid, ALL & !enough));
        assert_eq!(
            send(&client, opc, fid, &too_little).await,
            Err(Errno::EACCES),
            "{opc}"
        );
    }
    // Requests about no object, and requests of the MDT, need no capability.
    client.call(OST_STATFS, Vec::new()).await.unwrap();
    client.call_body(OST_SYNC, Obdo::default()).await.unwrap();
    osp.call_body(OST_SETATTR, obdo(fid)).await.unwrap();
    node.set_nodemap_property("capabilities", "0");
    assert_eq!(client.read(fid, 0, 100).await, b"data");
}

#[tokio::test]
async fn capability_grants_its_rights_to_its_client() {
    let (node, _ost, _osp, client, fid) = with_object().await;
    node.set_nodemap_property("capabilities", "1");
    for (opc, right) in REQUESTS {
        let enough = signed_capa(&node, CLIENT, unsigned_capa(fid, right));
        assert_eq!(send(&client, opc, fid, &enough).await, Ok(()), "{opc}");
    }
    // The former key stays valid until the next rotation.
    let capability = signed_capa(&node, CLIENT, unsigned_capa(fid, ALL));
    let rotate = |byte| node.capa_keys.set(node.capa_keys.keys().rotated([byte; 32]));
    rotate(2);
    assert_eq!(send(&client, OST_READ, fid, &capability).await, Ok(()));
    rotate(3);
    assert_eq!(
        send(&client, OST_READ, fid, &capability).await,
        Err(Errno::EACCES)
    );
    // Another target's capability.
    let scope = CapaScope {
        target: "testfs-OST0002_UUID",
        client: CLIENT,
    };
    let foreign = node
        .capa_keys
        .sign(scope, unsigned_capa(fid, ALL))
        .unwrap()
        .to_bytes();
    assert_eq!(send(&client, OST_READ, fid, &foreign).await, Err(Errno::EACCES));
}

#[tokio::test]
async fn client_waits_until_the_target_has_the_newest_key() {
    let (node, _ost, _osp, client, fid) = with_object().await;
    node.set_nodemap_property("capabilities", "1");
    let (old, new) = (node.capa_keys.keys(), node.capa_keys.keys().rotated([2; 32]));
    // An MDT that has just started has no former key to sign with.
    let newest = CapaKeyring::new(new.to_text().split(' ').next().unwrap().parse().unwrap());
    let scope = CapaScope {
        target: TARGET,
        client: CLIENT,
    };
    let capability = newest.sign(scope, unsigned_capa(fid, ALL)).unwrap().to_bytes();
    let request = send(&client, OST_GETATTR, fid, &capability);
    tokio::pin!(request);
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut request).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(node.capa_keys.keys(), old);
    node.capa_keys.set(new);
    assert_eq!(request.await, Ok(()));
}

#[tokio::test]
async fn locks_listed_in_a_failed_enqueue_are_cancelled() {
    let (node, _ost, _osp, client, fid) = with_object().await;
    let locks = client.locks.get().unwrap();
    let all = Policy::extent(0, OBD_OBJECT_EOF);
    let held = locks
        .enqueue(Enqueue::new(fid.res_id(), LockMode::Pr, all))
        .await
        .unwrap();
    node.set_nodemap_property("capabilities", "1");
    let other = Fid::new(fid.f_seq, 2, 0);
    let refused = Enqueue {
        elc: vec![held.rep.lock_handle.cookie],
        ..Enqueue::new(other.res_id(), LockMode::Pr, all)
    };
    let refused = locks.enqueue(refused).await.map(drop).unwrap_err();
    assert_eq!(refused.errno(), Errno::EACCES);
    node.set_nodemap_property("capabilities", "0");
    // This fails if the first lock still exists.
    let second = node.client("client-b").await;
    let write = Enqueue {
        flags: LDLM_FL_BLOCK_NOWAIT,
        ..Enqueue::new(fid.res_id(), LockMode::Pw, all)
    };
    second.locks.get().unwrap().enqueue(write).await.unwrap();
}
