//! Who may ask for what: peers that say they are servers, and clients that ask for what only MDTs do.

use osd::StoreKind;
use rpc::{ConnectRequest, Role, RpcError, Target};
use wire::{
    Errno, OBD_CONNECT_LIGHTWEIGHT, OBD_CONNECT_MDS, OBD_MD_FLGID, OBD_MD_FLPROJID, OBD_MD_FLUID,
    OST_DESTROY, OST_SETATTR, ObdConnectData, Obdo,
};

use crate::fixture::Node;
use crate::{about, with_object};

#[tokio::test]
async fn only_at_the_nid_of_an_mdt_is_a_peer_a_server() {
    let node = Node::new();
    let ost = node.ost(&StoreKind::Memory(1 << 30)).await;
    node.mdt0_is_at("10.0.0.1@tcp".parse().unwrap());
    let admit = |at: &str, flags| {
        let data = ObdConnectData {
            ocd_connect_flags: flags,
            ..ObdConnectData::default()
        };
        ost.admit(&ConnectRequest {
            client_uuid: "testfs-MDT0000-mdtlov_UUID".into(),
            peer: at.parse().unwrap(),
            data,
        })
    };
    for claim in [OBD_CONNECT_MDS, OBD_CONNECT_LIGHTWEIGHT] {
        assert_eq!(admit("10.0.0.1@tcp", claim), Ok(Role::Server));
        assert_eq!(admit("10.0.0.2@tcp", claim), Err(Errno::EAGAIN));
    }
    assert_eq!(admit("10.0.0.1@tcp", 0), Ok(Role::Client));
    assert_eq!(admit("10.0.0.2@tcp", 0), Ok(Role::Client));
    // The MDT has moved: its old NID is nobody's.
    node.mdt0_is_at("10.0.0.2@tcp".parse().unwrap());
    assert_eq!(admit("10.0.0.1@tcp", OBD_CONNECT_MDS), Err(Errno::EAGAIN));
    assert_eq!(admit("10.0.0.2@tcp", OBD_CONNECT_MDS), Ok(Role::Server));
}

#[tokio::test]
async fn a_client_makes_and_destroys_no_objects_and_gives_none_away() {
    let (_node, _ost, osp, client, fid) = with_object().await;
    client.write(fid, 0, b"data").await;
    let refused = |done: Result<(), RpcError>| assert!(matches!(done, Err(RpcError::Status(Errno::EPERM))));
    refused(client.create(fid.f_seq, 64, false).await.map(drop));
    refused(client.create(fid.f_seq, 0, true).await.map(drop));
    refused(client.ask(OST_DESTROY, about(fid)).await.map(drop));
    refused(client.sequence().await.map(drop));
    for owner in [OBD_MD_FLUID, OBD_MD_FLGID, OBD_MD_FLPROJID] {
        let oa = Obdo {
            o_valid: about(fid).o_valid | owner,
            o_uid: 4711,
            ..about(fid)
        };
        refused(client.ask(OST_SETATTR, oa).await.map(drop));
        osp.ask(OST_SETATTR, oa).await.unwrap();
    }
    assert_eq!(client.read(fid, 0, 100).await, b"data");
    assert_eq!(osp.create(fid.f_seq, 33, false).await.unwrap(), 33);
}
