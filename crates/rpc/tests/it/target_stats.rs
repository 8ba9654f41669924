//! Statistics of a target: in total, by job and by the NID of the clients.
#![allow(clippy::unwrap_used)]

use params::{Registry, Value};
use rpc::job::JobId;
use rpc::{Import, ImportConfig, ImportKind, Reply, Request};
use std::sync::Arc;
use testbase::by_hand::{MDT, TestTarget};
use testbase::rpc_node::{RecordingOwner, client, import_config, node};

/// A target that counts each request as a getattr of 5 microseconds.
fn counting_target() -> Arc<TestTarget> {
    TestTarget::new(MDT, |req| {
        req.record(&[(1, 5)]);
        Box::pin(async { Ok(Reply::default()) })
    })
}

async fn getattr(import: &Arc<Import>, job: Option<&str>) {
    let call = async { import.call(Request::new(wire::MDS_GETATTR, Vec::new())).await };
    match job {
        Some(job) => rpc::job::run_for(JobId::truncated(job), call).await.unwrap(),
        None => call.await.unwrap(),
    };
}

/// The number of samples of each operation that the parameter `name` shows.
fn counts(params: &Registry, name: &str) -> Vec<u64> {
    match params.values(name).pop() {
        Some((_, Value::Stats(stats))) => stats.rows.iter().map(|row| row.sums.count).collect(),
        other => panic!("{name}: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn requests_count_for_the_target_the_nid_and_the_job() {
    let (rpc, params) = (node(1), Registry::default());
    let exports = rpc.add_target(counting_target());
    let (early, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    let _group = exports.register_stats(&params, "mdt.fs-MDT0000", "md_stats");
    let late = Import::new(
        &rpc,
        ImportConfig {
            client_uuid: "00000000-0000-4000-8000-000000000002".to_owned(),
            ..import_config(MDT, ImportKind::Mdc, Arc::<RecordingOwner>::default())
        },
    );
    late.connect().await.unwrap();
    getattr(&early, Some("dd.0")).await;
    getattr(&late, Some("dd.0")).await;
    getattr(&late, Some("cp.500")).await;
    getattr(&late, None).await;
    assert_eq!(counts(&params, "mdt.*.md_stats"), [0, 4]);
    assert_eq!(counts(&params, "mdt.*.exports.0@lo.stats"), [0, 4]);
    let jobs = params.get("mdt.*.job_stats").pop().unwrap().1;
    let lines: Vec<&str> = jobs
        .lines()
        .filter(|l| l.contains("job_id") || l.contains("getattr"))
        .collect();
    assert_eq!(lines.len(), 4, "{jobs}");
    assert!(
        lines[0].ends_with(" cp.500") && lines[1].contains("samples:           1,"),
        "{jobs}"
    );
    assert!(
        lines[2].ends_with(" dd.0") && lines[3].contains("samples:           2,"),
        "{jobs}"
    );
    let uuids = params.get("mdt.*.exports.0@lo.uuid").pop().unwrap().1;
    assert_eq!(uuids.lines().count(), 2, "{uuids}");
    assert_eq!(
        params.get("mdt.*.num_exports"),
        [("mdt.fs-MDT0000.num_exports".to_owned(), "2".to_owned())]
    );

    early.disconnect().await;
    late.disconnect().await;
    assert!(params.get("mdt.*.exports.*.stats").is_empty());
    assert_eq!(counts(&params, "mdt.*.md_stats"), [0, 4]);
}

#[tokio::test(start_paused = true)]
async fn a_write_clears_statistics_and_removes_jobs() {
    let (rpc, params) = (node(1), Registry::default());
    let exports = rpc.add_target(counting_target());
    let _group = exports.register_stats(&params, "mdt.fs-MDT0000", "md_stats");
    let (import, _) = client(&rpc, MDT, ImportKind::Mdc).await;
    for job in ["a", "b", "c"] {
        getattr(&import, Some(job)).await;
    }
    let jobs = || {
        params
            .get("mdt.*.job_stats")
            .pop()
            .unwrap()
            .1
            .matches("job_id")
            .count()
    };
    params.set("mdt.*.job_stats", "b\n").unwrap();
    assert_eq!(jobs(), 2);
    params.set("mdt.*.job_stats", "clear").unwrap();
    assert_eq!(jobs(), 0);
    params.set("mdt.*.md_stats", "0").unwrap();
    assert_eq!(counts(&params, "mdt.*.md_stats"), [0, 0]);
    assert_eq!(counts(&params, "mdt.*.exports.0@lo.stats"), [0, 3]);
    params.set("mdt.*.exports.*.stats", "0").unwrap();
    assert_eq!(counts(&params, "mdt.*.exports.0@lo.stats"), [0, 0]);
    getattr(&import, None).await;
    params.set("mdt.*.exports.clear", "0").unwrap();
    assert_eq!(counts(&params, "mdt.*.exports.0@lo.stats"), [0, 0]);
    import.disconnect().await;
}
