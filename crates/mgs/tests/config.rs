//! An MGS and its clients, in one process and over TCP: registration of targets, admission,
//! configuration logs and their followers, keys of capabilities, nodemaps.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cpt::{BoxFuture, CptTable};
use ldlm::{Enqueue, LockClient, LockClientConfig, LockInfo, LockMode, LockOwner, Policy};
use lnet::{Lnet, LnetConfig};
use mgc::{CAPA_KEYS, FsConfig, JoinToken, Mgc, MgcError};
use mgs::Mgs;
use osd::target::TargetKind;
use rpc::{ImportKind, Request};
use testbase::rpc_node;
use testkit::node::{MGS_WAIT, Node, SERVER_NIDS_PARAM, TargetSpec};
use testkit::{RestartableMemoryStores, SettableClock};
use tokio::sync::watch;
use wire::{
    Errno, LDD_F_SV_TYPE_MDT, LDD_F_SV_TYPE_OST, LDD_F_UPDATE, LDD_F_VIRGIN, LDLM_BL_CALLBACK,
    LLOG_ORIGIN_HANDLE_CREATE, LLOG_ORIGIN_HANDLE_DESTROY, LLOG_ORIGIN_HANDLE_NEXT_BLOCK,
    LLOG_ORIGIN_HANDLE_READ_HEADER, LlogdBody, MGS_CFG_T_CONFIG, MGS_EXCEPTION, MGS_SET_INFO, MGS_TARGET_DEL,
    MGS_TARGET_REG, MgsSendParam, MgsTargetInfo, Nid, OstLvb, Text, WireStruct,
};

/// A node with its own address, or only on `0@lo`.
async fn node(addr: Option<&str>, seed: u64) -> Arc<Node> {
    let lnet = Lnet::new(
        CptTable::single_current(),
        LnetConfig {
            accept_port: 17881,
            ..LnetConfig::default()
        },
    );
    if let Some(addr) = addr {
        lnet.add_tcp(addr.parse().unwrap(), true).await.unwrap();
    }
    testkit::start_node(lnet, seed, &SettableClock::default())
}

/// An MGS in memory.
fn mgs_spec() -> TargetSpec {
    TargetSpec::in_memory(testkit::label(TargetKind::Mgs, 0), 1 << 30)
}

/// Starts an MGS on a node.
async fn serve(node: &Node, spec: TargetSpec) -> Arc<Mgs> {
    node.serve(vec![spec], MGS_WAIT).await.unwrap();
    node.mgs().unwrap()
}

fn info(kind: u32, index: u32, nid: Nid) -> MgsTargetInfo {
    let mut info = MgsTargetInfo {
        mti_flags: kind | LDD_F_VIRGIN | LDD_F_UPDATE,
        mti_stripe_index: index,
        mti_nid_count: 1,
        mti_fsname: Text::truncated("fs"),
        ..MgsTargetInfo::default()
    };
    info.mti_nids[0] = nid;
    info
}

/// Long enough for a loaded machine, and shorter than the time after which the server evicts a
/// client that does not release a lock.
const TIMEOUT: Duration = Duration::from_secs(60);

async fn wait_for_config(rx: &mut watch::Receiver<Arc<FsConfig>>, condition: impl Fn(&FsConfig) -> bool) {
    let config = tokio::time::timeout(TIMEOUT, rx.wait_for(|c| condition(c))).await;
    config.expect("the configuration arrives").unwrap();
}

async fn register_and_follow(server: Arc<Node>, client: Arc<Node>, mgs_nid: Nid) {
    let mgs = serve(&server, mgs_spec()).await;
    let mgc = Mgc::connect(
        client.rpc(),
        vec![mgs_nid],
        "0b5ff4c8-1111-4222-8333-444455556666",
    )
    .await
    .unwrap();
    let missing = mgc.read_config("fs-client").await.unwrap_err();
    assert!(matches!(missing, MgcError::NoSuchLog { .. }), "{missing}");

    let nid = client.lnet().nid();
    let mut followed = mgc.follow_in_background("fs-client");
    let mdt = mgc.register(info(LDD_F_SV_TYPE_MDT, 0, nid)).await.unwrap();
    assert_eq!(mdt.mti_svname.as_str(), "fs-MDT0000");
    wait_for_config(&mut followed, |c| c.mdts.len() == 1).await;
    for index in 0..20 {
        mgc.register(info(LDD_F_SV_TYPE_OST, index, nid)).await.unwrap();
    }
    wait_for_config(&mut followed, |c| c.osts.len() == 20).await;
    let refused = mgc.register(info(LDD_F_SV_TYPE_OST, 3, nid)).await.unwrap_err();
    assert!(
        refused.to_string().contains("fs-OST0003") || refused.to_string().contains("in use"),
        "{refused}"
    );

    let mut params = mgc.follow_in_background("params");
    mgs.set_permanent_param("osc.*.max_dirty_mb", Some("64"))
        .await
        .unwrap();
    wait_for_config(&mut params, |c| c.params.iter().any(|p| p.value == "64")).await;

    mgc.disconnect().await;
    server.stop().await.unwrap();
    client.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_read_registrations_in_one_process() {
    let node = node(None, 1).await;
    register_and_follow(node.clone(), node, Nid::LO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_read_registrations_over_tcp() {
    let (server, client) = (
        node(Some("127.0.0.71@tcp"), 1).await,
        node(Some("127.0.0.72@tcp"), 2).await,
    );
    register_and_follow(server, client, "127.0.0.71@tcp".parse().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_to_an_absent_mgs_fails_with_its_nid() {
    let client = node(Some("127.0.0.73@tcp"), 1).await;
    let nowhere = "127.0.0.74@tcp".parse().unwrap();
    let error = Mgc::connect(
        client.rpc(),
        vec![nowhere],
        "0b5ff4c8-1111-4222-8333-444455556666",
    )
    .await
    .err()
    .unwrap();
    assert!(error.to_string().contains("127.0.0.74@tcp"), "{error}");
}

/// An OST at `nid` with a failover node on another host.
fn ost_with_foreign_node(index: u32, nid: Nid) -> MgsTargetInfo {
    MgsTargetInfo {
        mti_svname: Text::truncated(&format!("fs-OST{index:04x}")),
        mti_params: Text::truncated("failover.node=192.0.2.7@tcp"),
        ..info(LDD_F_SV_TYPE_OST, index, nid)
    }
}

/// An MGS at the first address, and a client of it at the second, which has registered MDT0000.
/// Returns the client, the nodes of both, and the client's NID.
async fn mgs_and_peer(addr: [&str; 2], spec: TargetSpec) -> (Arc<Mgc>, [Arc<Node>; 2], Nid) {
    let (server, client) = (node(Some(addr[0]), 1).await, node(Some(addr[1]), 2).await);
    serve(&server, spec).await;
    let mgc = Mgc::connect(client.rpc(), vec![addr[0].parse().unwrap()], "peer")
        .await
        .unwrap();
    let client_nid = addr[1].parse().unwrap();
    mgc.register(info(LDD_F_SV_TYPE_MDT, 0, client_nid))
        .await
        .unwrap();
    (mgc, [server, client], client_nid)
}

async fn stop_all(mgc: Arc<Mgc>, nodes: [Arc<Node>; 2]) {
    mgc.disconnect().await;
    for node in nodes {
        node.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_with_nids_of_other_hosts_register_only_if_listed() {
    let (mgc, nodes, client_nid) = mgs_and_peer(["127.0.0.75@tcp", "127.0.0.76@tcp"], mgs_spec()).await;
    let params = nodes[0].registry();
    let refused = mgc
        .register(ost_with_foreign_node(0, client_nid))
        .await
        .unwrap_err();
    assert_eq!(refused.errno(), Errno::EACCES);
    let why = refused.to_string();
    for part in [
        "fs-OST0000",
        "127.0.0.76@tcp",
        "127.0.0.75@tcp",
        "mgs.MGS.server_nids",
        "join-token",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    // A node cannot register a target of another node, even if the NID is listed.
    let other = "192.0.2.7@tcp".parse().unwrap();
    let set = |list: &str| params.set("mgs.MGS.server_nids", list);
    set("192.0.2.[1-9]@tcp").unwrap();
    let of_another = mgc.register(info(LDD_F_SV_TYPE_OST, 0, other)).await;
    assert_eq!(of_another.unwrap_err().errno(), Errno::EACCES);
    mgc.register(ost_with_foreign_node(0, client_nid)).await.unwrap();
    set("NONE").unwrap();
    assert_eq!(
        params.get("mgs.MGS.server_nids"),
        [("mgs.MGS.server_nids".to_owned(), "NONE".to_owned())]
    );
    let again = mgc.register(ost_with_foreign_node(1, client_nid)).await;
    assert_eq!(again.unwrap_err().errno(), Errno::EACCES);
    assert!(set("10.0.0.1").is_err());
    stop_all(mgc, nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn targets_with_nids_of_other_hosts_register_with_the_join_token() {
    let token = JoinToken::new([1; 32]);
    let spec = TargetSpec {
        token: Some(token.clone()),
        ..mgs_spec()
    };
    let (mgc, nodes, client_nid) = mgs_and_peer(["127.0.0.77@tcp", "127.0.0.78@tcp"], spec).await;
    let ost = ost_with_foreign_node(0, client_nid);
    let wrong = JoinToken::new([2; 32]);
    let refused = mgc.register_with(ost.clone(), None, Some(&wrong)).await;
    assert_eq!(refused.unwrap_err().errno(), Errno::EACCES);
    // Proofs for another connection, another registration, or another store.
    let handle = mgc.import().server_handle();
    let bytes = ost.to_bytes();
    let store = || Bytes::from_static(b"5c3f2f4e-0000-4000-8000-00000000000a\0");
    for (proof, store) in [
        (token.prove(handle + 1, &bytes, None), Bytes::new()),
        (
            token.prove(handle, &ost_with_foreign_node(1, client_nid).to_bytes(), None),
            Bytes::new(),
        ),
        (token.prove(handle, &bytes, None), store()),
        (token.prove(handle, &bytes, Some("5c3f2f4e")), store()),
    ] {
        let bufs = vec![bytes.clone(), Bytes::new(), proof.to_vec().into(), store];
        let refused = mgc.import().call(Request::new(MGS_TARGET_REG, bufs)).await;
        assert_eq!(refused.map(drop).unwrap_err().errno(), Errno::EACCES);
    }
    mgc.register_with(ost, None, Some(&token)).await.unwrap();
    let seen = mgc.read_config("fs-client").await.unwrap();
    assert_eq!(seen.osts[0].nids, [client_nid, "192.0.2.7@tcp".parse().unwrap()]);
    stop_all(mgc, nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_of_two_stores_gets_an_index() {
    let (mgc, nodes, client_nid) = mgs_and_peer(["127.0.0.79@tcp", "127.0.0.80@tcp"], mgs_spec()).await;
    let stores = [
        "5c3f2f4e-0000-4000-8000-00000000000a",
        "5c3f2f4e-0000-4000-8000-00000000000b",
    ];
    for index in 0..10 {
        let ost = info(LDD_F_SV_TYPE_OST, index, client_nid);
        let register = |store| mgc.register_with(ost.clone(), Some(store), None);
        let (a, b) = tokio::join!(register(stores[0]), register(stores[1]));
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        let winner = if a.is_ok() { stores[0] } else { stores[1] };
        let refused = a.and(b).unwrap_err();
        assert_eq!(refused.errno(), Errno::EADDRINUSE);
        let why = format!(
            "the MGS has another store of fs-OST{index:04x} (uuid {winner}) at {client_nid}: make this"
        );
        assert!(refused.to_string().contains(&why), "{refused}");
    }
    stop_all(mgc, nodes).await;
}

/// A lock owner that ignores revocations.
struct DeafLockOwner;

impl LockOwner for DeafLockOwner {
    fn blocking<'a>(&'a self, _lock: LockInfo, _cancel_bits: u64) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn glimpse(&self, _lock: LockInfo) -> Option<OstLvb> {
        None
    }

    fn dropped(&self, _lock: LockInfo, _bits: u64) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_keeps_its_lock_does_not_delay_the_others() {
    let node = node(None, 1).await;
    serve(&node, mgs_spec()).await;
    let mgc = Mgc::connect(node.rpc(), vec![Nid::LO], "others").await.unwrap();
    mgc.register(info(LDD_F_SV_TYPE_MDT, 0, Nid::LO)).await.unwrap();
    let mut followed = mgc.follow_in_background("fs-client");
    wait_for_config(&mut followed, |c| c.mdts.len() == 1).await;
    // The import's owner replies to callbacks and does nothing else, like a hanging client.
    let (import, owner) = rpc_node::client(node.rpc(), Mgs::UUID, ImportKind::Mgc).await;
    let locks = LockClient::new(Arc::new(DeafLockOwner), LockClientConfig::default());
    locks.set_import(import.clone());
    let res = mgc::config_resource("fs-client", MGS_CFG_T_CONFIG);
    let held = locks
        .enqueue(Enqueue::new(res, LockMode::Cr, Policy::Plain))
        .await;
    let _held = held.unwrap().lock.unwrap();
    for osts in 1..4 {
        mgc.register(info(LDD_F_SV_TYPE_OST, osts as u32, Nid::LO))
            .await
            .unwrap();
        wait_for_config(&mut followed, |c| c.osts.len() == osts).await;
        let new_mount = tokio::time::timeout(TIMEOUT, mgc.follow("fs-client")).await;
        assert_eq!(new_mount.unwrap().unwrap().borrow().osts.len(), osts);
    }
    assert!(owner.callbacks.lock().contains(&LDLM_BL_CALLBACK));
    assert!(!owner.events.lock().contains(&"evicted"));
    import.disconnect().await;
    mgc.disconnect().await;
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_registered_targets_get_the_keys_of_capabilities() {
    let (mgc, nodes, _) = mgs_and_peer(["127.0.0.85@tcp", "127.0.0.86@tcp"], mgs_spec()).await;
    let params = nodes[0].registry();
    let other = node(Some("127.0.0.87@tcp"), 3).await;
    let mgs_nids = vec!["127.0.0.85@tcp".parse().unwrap()];
    let unregistered = Mgc::connect(other.rpc(), mgs_nids, "unregistered").await.unwrap();
    let refused = |done: Result<(), MgcError>| assert_eq!(done.unwrap_err().errno(), Errno::EACCES);
    refused(unregistered.read_config(CAPA_KEYS).await.map(drop));
    refused(unregistered.capa_keys().await.map(drop));
    // The MGS refuses a request with the id of the log, too.
    let mut body = LlogdBody::default();
    body.lgd_logid.lgl_oi.oi_id = 1 << 63 | 1;
    for opc in [LLOG_ORIGIN_HANDLE_READ_HEADER, LLOG_ORIGIN_HANDLE_NEXT_BLOCK] {
        let refused = unregistered
            .import()
            .call(Request::new(opc, vec![body.to_bytes()]))
            .await;
        assert_eq!(refused.map(drop).unwrap_err().errno(), Errno::EACCES);
    }
    let ring = mgc.capa_keys().await.unwrap();
    assert_eq!(ring.keys().ids().collect::<Vec<_>>(), [1]);
    assert!(params.set("mgs.MGS.capa_keys", "7").is_err());
    params.set("mgs.MGS.capa_keys", "new").unwrap();
    let followed = async {
        while ring.keys().ids().ne([2, 1]) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, followed)
        .await
        .expect("the targets learn of the new key");
    assert_eq!(params.get("mgs.MGS.capa_keys")[0].1, "2 1");
    unregistered.disconnect().await;
    other.stop().await.unwrap();
    stop_all(mgc, nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodemaps_reach_the_targets_and_persist() {
    let stores = RestartableMemoryStores::new(1 << 30).await;
    let client: Nid = "10.0.0.5@tcp".parse().unwrap();
    for round in 0..2 {
        let node = node(None, round + 1).await;
        let spec = TargetSpec {
            stores: Box::new(stores.clone()),
            ..mgs_spec()
        };
        let mgs = serve(&node, spec).await;
        let mgc = Mgc::connect(node.rpc(), vec![Nid::LO], "a target").await.unwrap();
        let nodemaps = mgc.nodemaps().await.unwrap();
        let mut changes = nodemaps.changes();
        assert_eq!(nodemaps.table().rights(client).readonly_mount, round == 1);
        if round == 0 {
            let refused = mgs.change_nodemaps(|table| {
                table.add("lab")?;
                table.add_range("lab", "nonsense")
            });
            assert!(refused.await.is_err());
            assert_eq!(nodemaps.table().maps().count(), 1, "all of a change or nothing");
            let changed = mgs.change_nodemaps(|table| {
                table.add("lab")?;
                table.add_range("lab", "10.0.0.*@tcp")?;
                table.modify("lab", "readonly_mount", "1")
            });
            changed.await.unwrap();
            let seen = async {
                while !nodemaps.table().rights(client).readonly_mount {
                    changes.changed().await.unwrap();
                }
            };
            tokio::time::timeout(TIMEOUT, seen)
                .await
                .expect("the targets learn of the change");
        } else {
            mgs.change_nodemaps(|table| table.remove("lab")).await.unwrap();
        }
        let shown = node.registry().get("nodemap.*.readonly_mount");
        let maps: Vec<&str> = shown.iter().map(|(name, _)| name.as_str()).collect();
        let lab = "nodemap.lab.readonly_mount";
        let default = "nodemap.default.readonly_mount";
        let expected: &[&str] = if round == 0 { &[default, lab] } else { &[default] };
        assert_eq!(maps, expected);
        mgc.disconnect().await;
        node.stop().await.unwrap();
    }
}

#[tokio::test]
async fn the_list_of_server_nids_persists() {
    let stores = RestartableMemoryStores::new(1 << 30).await;
    // Starts an MGS, sets the parameter if `set` has a value, and returns the parameter's value.
    let run_mgs = async |set: Option<&str>| {
        let node = node(None, 1).await;
        let mut spec = TargetSpec {
            stores: Box::new(stores.clone()),
            ..mgs_spec()
        };
        let server_nids = (SERVER_NIDS_PARAM.to_owned(), "10.0.0.1@tcp".to_owned());
        spec.label.params.push(server_nids);
        serve(&node, spec).await;
        let params = node.registry();
        if let Some(list) = set {
            params.set("mgs.MGS.server_nids", list).unwrap();
        }
        let list = params.get("mgs.MGS.server_nids");
        node.stop().await.unwrap();
        list[0].1.clone()
    };
    assert_eq!(run_mgs(None).await, "10.0.0.1@tcp");
    assert_eq!(run_mgs(Some("10.0.0.[2-3]@tcp")).await, "10.0.0.[2-3]@tcp");
    assert_eq!(run_mgs(None).await, "10.0.0.[2-3]@tcp");
    assert_eq!(run_mgs(Some("NONE")).await, "NONE");
    assert_eq!(run_mgs(None).await, "NONE");
}

#[tokio::test]
async fn no_request_changes_stored_parameters() {
    let node = node(None, 1).await;
    serve(&node, mgs_spec()).await;
    let (import, _) = rpc_node::client(node.rpc(), Mgs::UUID, ImportKind::Mgc).await;
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
    // There is no log of parameters, and opening it by name does not create it.
    let bufs = vec![LlogdBody::default().to_bytes(), wire::nul_terminated(b"params")];
    let opened = import.call(Request::new(LLOG_ORIGIN_HANDLE_CREATE, bufs)).await;
    assert_eq!(
        opened.map(|reply| reply.status).unwrap_err().errno(),
        Errno::ENOENT
    );
    import.disconnect().await;
    node.stop().await.unwrap();
}
