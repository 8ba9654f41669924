//! An MGS and its clients, in one process and over TCP: registration, reading and watching configurations.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use mgc::{FsConfig, Mgc, MgcError};
use mgs::Mgs;
use osd::StoreKind;
use rpc::{ImportKind, Ptlrpc, Request, RpcConfig, testing};
use tokio::sync::watch;
use wire::{
    Errno, LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LDD_F_UPDATE, LDD_F_VIRGIN, LLOG_ORIGIN_HANDLE_CREATE,
    LLOG_ORIGIN_HANDLE_DESTROY, LlogdBody, MGS_EXCEPTION, MGS_SET_INFO, MGS_TARGET_DEL, MgsSendParam,
    MgsTargetInfo, Nid, Text, WireStruct,
};

/// A node at an address of its own, or only on `0@lo`.
async fn node(addr: Option<&str>, seed: u64) -> Arc<Ptlrpc> {
    let cpts = CptTable::single_current();
    let lnet = Lnet::new(
        cpts.clone(),
        LnetConfig {
            accept_port: 17881,
            ..LnetConfig::default()
        },
    );
    if let Some(addr) = addr {
        lnet.add_tcp(addr.parse().unwrap(), true).await.unwrap();
    }
    Ptlrpc::start(
        lnet,
        cpts,
        RpcConfig {
            seed,
            ..RpcConfig::default()
        },
    )
}

fn info(kind: u32, index: u32, at: Nid) -> MgsTargetInfo {
    let mut info = MgsTargetInfo {
        mti_flags: kind | LDD_F_VIRGIN | LDD_F_UPDATE,
        mti_stripe_index: index,
        mti_nid_count: 1,
        mti_fsname: Text::truncated("fs"),
        ..MgsTargetInfo::default()
    };
    info.mti_nids[0] = at;
    info
}

async fn until(rx: &mut watch::Receiver<Arc<FsConfig>>, what: impl Fn(&FsConfig) -> bool) {
    let seen = tokio::time::timeout(Duration::from_secs(20), rx.wait_for(|c| what(c))).await;
    seen.expect("the configuration arrives").unwrap();
}

async fn a_file_system_comes_to_be(server: Arc<Ptlrpc>, client: Arc<Ptlrpc>, mgs_at: Nid) {
    let mgs = Mgs::start(&server, &StoreKind::Memory(1 << 30), 1).await.unwrap();
    let mgc = Mgc::connect(&client, vec![mgs_at], "0b5ff4c8-1111-4222-8333-444455556666")
        .await
        .unwrap();
    let missing = mgc.read_config("fs-client").await.unwrap_err();
    assert!(matches!(missing, MgcError::NoSuchLog { .. }), "{missing}");

    let mut seen = mgc.watch("fs-client");
    let mdt = mgc.register(info(LDD_F_SV_TYPE_MDT, 0, mgs_at)).await.unwrap();
    assert_eq!(mdt.mti_svname.as_str(), "fs-MDT0000");
    until(&mut seen, |c| c.mdts.len() == 1).await;
    for index in 0..20 {
        mgc.register(info(LDD_F_SV_TYPE_OST, index, mgs_at))
            .await
            .unwrap();
    }
    until(&mut seen, |c| c.osts.len() == 20).await;
    let again = mgc
        .register(info(LDD_F_SV_TYPE_OST, 3, mgs_at))
        .await
        .unwrap_err();
    assert!(
        again.to_string().contains("fs-OST0003") || again.to_string().contains("in use"),
        "{again}"
    );

    let mut params = mgc.watch("params");
    mgs.keep_param("osc.*.max_dirty_mb", Some("64")).await.unwrap();
    until(&mut params, |c| c.params.iter().any(|p| p.value == "64")).await;

    mgc.disconnect().await;
    mgs.stop().await.unwrap();
    client.shutdown().await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_register_and_readers_see_it_in_one_process() {
    let node = node(None, 1).await;
    a_file_system_comes_to_be(node.clone(), node, Nid::LO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_register_and_readers_see_it_over_tcp() {
    let (server, client) = (
        node(Some("127.0.0.71@tcp"), 1).await,
        node(Some("127.0.0.72@tcp"), 2).await,
    );
    a_file_system_comes_to_be(server, client, "127.0.0.71@tcp".parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mgs_that_is_not_there_is_an_error_that_says_where() {
    let client = node(Some("127.0.0.73@tcp"), 1).await;
    let nowhere = "127.0.0.74@tcp".parse().unwrap();
    let error = Mgc::connect(&client, vec![nowhere], "0b5ff4c8-1111-4222-8333-444455556666")
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("127.0.0.74@tcp"), "{error}");
}

#[tokio::test]
async fn no_request_changes_what_is_kept() {
    let node = testing::node(1);
    let mgs = Mgs::start(&node, &StoreKind::Memory(1 << 30), 1).await.unwrap();
    let (import, _) = testing::client(&node, Mgs::UUID, ImportKind::Mgc).await;
    let param = MgsSendParam {
        mgs_param: Text::truncated("mdt.*.root_squash=0:0"),
    };
    for opc in [
        MGS_SET_INFO,
        MGS_EXCEPTION,
        MGS_TARGET_DEL,
        LLOG_ORIGIN_HANDLE_DESTROY,
    ] {
        let refused = import.call(Request::new(opc, vec![param.to_bytes()])).await;
        let why = refused.map(|reply| reply.status).unwrap_err();
        assert_eq!(why.errno(), Errno::EOPNOTSUPP, "{opc}: {why}");
    }
    // There is no log of parameters, and asking for one by name does not make it.
    let asked = vec![LlogdBody::default().to_bytes(), wire::nul_terminated(b"params")];
    let opened = import.call(Request::new(LLOG_ORIGIN_HANDLE_CREATE, asked)).await;
    assert_eq!(
        opened.map(|reply| reply.status).unwrap_err().errno(),
        Errno::ENOENT
    );
    import.disconnect().await;
    mgs.stop().await.unwrap();
    node.shutdown().await;
}
