//! Services on partitions: where requests are handled, how many concurrently, and the statistics.
//! Partitions are forced, so that the tests work on any machine.
#![allow(clippy::unwrap_used)]

use cpt::CptTable;
use params::Registry;
use rpc::{ImportKind, Reply, Request, RpcConfig, ServicesTuning, Tuning};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use testbase::by_hand::TestTarget;
use testbase::over_tcp::{forced_partitions, import, nid_maker, node, node_bound, node_on};
use testbase::rpc_node::EchoTarget;
use tokio::runtime::Runtime;
use wire::MDS_STATFS;

const MDT: &str = "testfs-MDT0000_UUID";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// A configuration with these partitions and threads of the MDS's service.
fn mds_config(params: &Registry, cpts: &[usize], threads: usize) -> RpcConfig {
    let mds = Tuning {
        cpts: cpts.to_vec(),
        threads,
        ..Tuning::default()
    };
    RpcConfig {
        params: params.clone(),
        services: ServicesTuning {
            mds,
            ..ServicesTuning::default()
        },
        ..RpcConfig::default()
    }
}

fn show(params: &Registry, name: &str) -> String {
    let name = format!("mds.MDS.mdt.{name}");
    params.get(&name).remove(0).1
}

/// Sends five requests from each of eight clients. Returns how many of them each partition handled.
/// The network runs on the partitions `lnet_cpts`, the service on `service_cpts`.
fn requests_by_partition(
    partitions: usize,
    lnet_cpts: &[usize],
    service_cpts: &[usize],
) -> BTreeMap<usize, usize> {
    let params = &Registry::default();
    let table = forced_partitions(partitions);
    let (handled_on, nid) = (Arc::<Mutex<Vec<usize>>>::default(), nid_maker());
    runtime().block_on(async {
        let server = node_bound(
            table.clone(),
            nid(1),
            Some(lnet_cpts.to_vec()),
            mds_config(params, service_cpts, 0),
        )
        .await;
        let (seen, cpt_table): (_, Arc<CptTable>) = (handled_on.clone(), table.clone());
        server.add_target(TestTarget::new(MDT, move |_| {
            seen.lock().unwrap().push(cpt_table.current().0);
            Box::pin(async { Ok(Reply::default()) })
        }));
        for n in 0..8 {
            let client = node(nid(10 + n), n.into()).await;
            let (import, _) = import(&client, nid(1), MDT, ImportKind::Mdc).await;
            for _ in 0..5 {
                import.call(Request::new(MDS_STATFS, Vec::new())).await.unwrap();
            }
            import.disconnect().await;
            client.lnet().shutdown().await;
        }
        let parts = server.stats();
        let mdt: Vec<usize> = parts.iter().filter(|s| s.name == "mdt").map(|s| s.cpt).collect();
        assert_eq!(mdt, service_cpts, "the partitions that the service runs on");
        server.lnet().shutdown().await;
    });
    table.shutdown();
    let mut counts = BTreeMap::new();
    handled_on
        .lock()
        .unwrap()
        .iter()
        .for_each(|cpt| *counts.entry(*cpt).or_default() += 1);
    counts
}

#[test]
fn all_partitions_of_a_service_handle_requests() {
    let all = |n: usize| (0..n).collect::<Vec<_>>();
    for (partitions, lnet, cpts) in [
        (4, all(4), all(4)),
        (4, vec![0], vec![1, 2, 3]),
        (4, vec![0, 1], vec![2, 3]),
        (6, vec![0, 1], vec![2, 3, 4, 5]),
        (12, all(12), vec![3]),
    ] {
        let counts = requests_by_partition(partitions, &lnet, &cpts);
        assert_eq!(counts.values().sum::<usize>(), 40);
        assert_eq!(
            counts.keys().copied().collect::<Vec<_>>(),
            cpts,
            "of {partitions}, {lnet:?}: {counts:?}"
        );
    }
}

#[test]
fn a_missing_partition_is_an_error() {
    runtime().block_on(async {
        let lnet = lnet::Lnet::new(CptTable::single_current(), lnet::LnetConfig::default());
        let config = mds_config(&Registry::default(), &[1], 0);
        let rpc = rpc::Ptlrpc::start(lnet, CptTable::single_current(), config);
        let error = rpc.serve(rpc::services::MDS).unwrap_err().to_string();
        assert_eq!(
            error,
            "mds_num_cpts names CPU partition 1, but there are only 1: from 0 to 0"
        );
    });
}

#[test]
fn a_service_has_statistics_and_takes_another_thread_limit() {
    let (table, params, nid) = (forced_partitions(4), Registry::default(), nid_maker());
    runtime().block_on(async {
        let server = node_on(table.clone(), nid(1), mds_config(&params, &[0, 2], 12)).await;
        server.add_target(EchoTarget::new(MDT));
        let client = node(nid(2), 2).await;
        let (import, _) = import(&client, nid(1), MDT, ImportKind::Mdc).await;
        for _ in 0..7 {
            import.call(Request::new(MDS_STATFS, Vec::new())).await.unwrap();
        }
        import.disconnect().await;
        let stats = show(&params, "stats");
        for line in [
            "mds_statfs                          7 samples [usecs] ",
            "mds_connect                         1 samples [usecs] ",
            "req_waittime                        9 samples [usecs] ",
            "req_qdepth                          9 samples [reqs] 0 0 0 0\n",
            "req_active                          9 samples [reqs] 1 1 9 9\n",
            "req_timeout                         9 samples [secs] 5 5 45 225\n",
        ] {
            assert!(stats.contains(line), "{line}: {stats}");
        }
        let cpt_stats = show(&params, "cpt_stats");
        assert!(
            cpt_stats.contains("CPT 0: threads 6 ") && cpt_stats.contains("CPT 2: threads 6 "),
            "{cpt_stats}"
        );
        let set = |name: &str, value: &str| params.set(&format!("mds.MDS.mdt.{name}"), value).map(drop);
        set("stats", "0").unwrap();
        assert!(!show(&params, "stats").contains("mds_statfs"));

        assert_eq!(
            [show(&params, "threads_min"), show(&params, "threads_max")],
            ["12", "12"]
        );
        set("threads_max", "16").unwrap();
        assert!(show(&params, "cpt_stats").contains("CPT 2: threads 8 "));
        assert!(
            set("threads_max", "4")
                .unwrap_err()
                .to_string()
                .contains("from 12 to 96")
        );
        assert!(set("threads_min", "4").is_err());
        for name in [
            "ldlm.services.ldlm_cbd.threads_max",
            "ost.OSS.ost_io.stats",
            "mds.MDS.mdt_readpage.nrs_policies",
        ] {
            assert_eq!(params.get(name).len(), 1, "{name}");
        }
        client.lnet().shutdown().await;
        server.shutdown().await;
        assert!(
            params.get("mds.MDS.mdt.stats").is_empty(),
            "a service that has ended has no parameters"
        );
        server.lnet().shutdown().await;
    });
    table.shutdown();
}
