//! TBF rules throttle the requests that match them, and no others.
#![allow(clippy::unwrap_used)]

use cpt::CptTable;
use params::Registry;
use rpc::{Import, ImportKind, Request, RpcConfig};
use std::sync::Arc;
use std::time::Duration;
use testbase::over_tcp::{import, nid_maker, node, node_on};
use testbase::rpc_node::{EchoTarget, RecordingOwner, import_config, node_with};
use tokio::time::{Instant, sleep};
use wire::MDS_STATFS;

const MDT: &str = "testfs-MDT0000_UUID";

fn config(params: &Registry) -> RpcConfig {
    RpcConfig {
        params: params.clone(),
        tbf_depth: 1,
        ..RpcConfig::default()
    }
}

fn set(params: &Registry, name: &str, value: &str) {
    params.set(&format!("mds.MDS.mdt.{name}"), value).unwrap();
}

fn show(params: &Registry, name: &str) -> String {
    params.get(&format!("mds.MDS.mdt.{name}")).remove(0).1
}

/// Sends `n` requests of a user at once. The tasks return the time of each reply.
fn send(import: &Arc<Import>, uid: u32, n: u32) -> Vec<tokio::task::JoinHandle<Instant>> {
    let spawn_call = |_| {
        let (import, request) = (
            import.clone(),
            Request {
                uid: Some(uid),
                ..Request::new(MDS_STATFS, Vec::new())
            },
        );
        tokio::spawn(async move {
            import.call(request).await.unwrap();
            Instant::now()
        })
    };
    (0..n).map(spawn_call).collect()
}

/// Waits for the replies; returns the times between them.
async fn reply_intervals(calls: Vec<tokio::task::JoinHandle<Instant>>) -> Vec<Duration> {
    let mut times = Vec::new();
    for call in calls {
        times.push(call.await.unwrap());
    }
    times.sort();
    times.windows(2).map(|w| w[1] - w[0]).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nid_rule_throttles_only_its_node() {
    let (params, nid_of) = (Registry::default(), nid_maker());
    let server = node_on(CptTable::single_current(), nid_of(1), config(&params)).await;
    server.add_target(EchoTarget::new(MDT));
    let (slow, free) = (node(nid_of(2), 2).await, node(nid_of(3), 3).await);
    let (slow_import, _) = import(&slow, nid_of(1), MDT, ImportKind::Mdc).await;
    let (free_import, _) = import(&free, nid_of(1), MDT, ImportKind::Mdc).await;
    set(&params, "nrs_policies", "tbf nid");
    set(
        &params,
        "nrs_tbf_rule",
        &format!("start slow nid={{{}}} rate=20", nid_of(2)),
    );
    let started_at = Instant::now();
    let slow_calls = send(&slow_import, 0, 6);
    for call in send(&free_import, 0, 50) {
        call.await.unwrap();
    }
    for call in slow_calls {
        call.await.unwrap();
    }
    assert!(
        started_at.elapsed() >= Duration::from_millis(250),
        "five of the six requests waited for a token"
    );
    let classes = show(&params, "nrs_tbf_classes");
    let line = |nid| {
        classes
            .lines()
            .find(|l| l.contains(&format!("nid={{{nid}}}")))
            .unwrap()
            .to_owned()
    };
    // Five requests are throttled if all six arrive within the time of one token.
    let throttled = |n| line(nid_of(2)).contains(&format!("rule slow requests 6 throttled {n} "));
    assert!((1..=5).any(throttled), "{classes}");
    assert!(line(nid_of(3)).contains("rule default requests 50 "), "{classes}");
    assert!(show(&params, "nrs_tbf_rule").contains("} 20, ref 1\ndefault * 10000, ref 1\n"));
    assert!(show(&params, "nrs_policies").contains("- name: tbf nid\n    state: started"));
    for node in [slow, free, server] {
        node.lnet().shutdown().await;
    }
}

/// A node with an MDT that replies at once and throttles by user, and an import of the MDT.
async fn node_with_tbf_uid(params: &Registry) -> (Arc<rpc::Ptlrpc>, Arc<Import>) {
    let rpc = node_with(config(params));
    rpc.add_target(EchoTarget::new(MDT));
    let import = Import::new(
        &rpc,
        import_config(MDT, ImportKind::Mdc, Arc::<RecordingOwner>::default()),
    );
    import.connect().await.unwrap();
    set(params, "nrs_policies", "tbf uid");
    (rpc, import)
}

#[tokio::test(start_paused = true)]
async fn uid_rules_apply_per_user_and_never_to_pings() {
    let params = Registry::default();
    let (_rpc, import) = node_with_tbf_uid(&params).await;
    set(&params, "nrs_tbf_rule", "start slow uid={7} rate=1");
    set(&params, "nrs_tbf_rule", "start quick uid={8} rate=10");
    let slow = send(&import, 7, 3);
    sleep(Duration::from_millis(10)).await;
    // The tokens of these requests come before the token that the waiter expects.
    let started_at = Instant::now();
    let quick = reply_intervals(send(&import, 8, 4)).await;
    assert!(
        started_at.elapsed() < Duration::from_millis(350),
        "{:?}",
        started_at.elapsed()
    );
    assert!(quick.iter().all(|d| *d >= Duration::from_millis(99)), "{quick:?}");
    let started_at = Instant::now();
    import
        .call(Request {
            uid: Some(7),
            ..Request::new(wire::OBD_PING, Vec::new())
        })
        .await
        .unwrap();
    assert!(started_at.elapsed() < Duration::from_millis(50));
    let slow = reply_intervals(slow).await;
    assert!(slow.iter().all(|d| *d >= Duration::from_millis(999)), "{slow:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_are_released_when_their_rule_or_policy_changes() {
    let params = Registry::default();
    let (_rpc, import) = node_with_tbf_uid(&params).await;
    set(&params, "nrs_tbf_rule", "start slow uid={7} rate=1");
    let throttled_calls = send(&import, 7, 6);
    sleep(Duration::from_millis(100)).await;
    assert!(
        show(&params, "nrs_policies").contains("queued: 5 "),
        "{}",
        show(&params, "nrs_policies")
    );
    let started_at = Instant::now();
    set(&params, "nrs_tbf_rule", "stop slow");
    reply_intervals(throttled_calls).await;
    assert!(started_at.elapsed() < Duration::from_millis(100));
    set(&params, "nrs_tbf_rule", "change default rate=1");
    let throttled_calls = send(&import, 7, 6);
    sleep(Duration::from_millis(100)).await;
    let started_at = Instant::now();
    set(&params, "nrs_policies", "fifo");
    reply_intervals(throttled_calls).await;
    assert!(started_at.elapsed() < Duration::from_millis(100));
    let error = params
        .set("mds.MDS.mdt.nrs_tbf_rule", "start a uid={1}")
        .unwrap_err()
        .to_string();
    assert!(error.contains("the policy is fifo"), "{error}");
}
