//! Tests that run between nodes.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, TestConsole, network, node, node_with, settings};
use lst::Settings;
use lst_console::Command;
use std::time::Duration;

#[tokio::test]
async fn pings_run_until_they_are_stopped() {
    let nid = network();
    let (console, _a, _b) = (
        TestConsole::new(nid(1)).await,
        node(nid(2)).await,
        node(nid(3)).await,
    );
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    console.add_test("ping", |t| t.concurrency = 8).await;
    let before = console.counts("clients").await;
    console.run().await;
    tokio::time::timeout(LIMIT, async {
        while console.counts("clients").await[0].sent.0 < before[0].sent.0 + 1000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    console.stop().await;
    let errors = console.errors("clients").await;
    assert_eq!(
        (errors.out.as_str(), errors.err.as_str()),
        ("clients:\nTotal 0 error nodes in clients\n", "")
    );
    assert_eq!(console.ok(Command::EndSession).await, "session is ended\n");
}

#[tokio::test]
async fn client_sends_loops_times_concurrency_requests() {
    let nid = network();
    let (console, _a, b) = (
        TestConsole::new(nid(1)).await,
        node(nid(2)).await,
        node(nid(3)).await,
    );
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    console
        .add_test("ping", |t| (t.concurrency, t.loops) = (5, 20))
        .await;
    let before = b.lnet.counters().lcc_recv_count;
    console.run().await;
    console.wait_until_idle().await;
    let pings = b.lnet.counters().lcc_recv_count - before;
    assert_eq!(pings, 100);
}

#[tokio::test]
async fn bulk_of_all_sizes_is_transferred_and_checked() {
    let nid = network();
    let (console, _a, b) = (
        TestConsole::new(nid(1)).await,
        node(nid(2)).await,
        node(nid(3)).await,
    );
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    let mut bytes = 0;
    for kind in ["read", "write"] {
        for (size, n) in [("4K", 4096), ("5000", 5000), ("64K", 65_536), ("1M", 1 << 20)] {
            for check in ["none", "simple", "full"] {
                let test = format!("brw {kind} size={size} check={check} off=16");
                console
                    .add_test(&test, |t| (t.concurrency, t.loops) = (2, 3))
                    .await;
                bytes += if kind == "write" { 6 * n } else { 0 };
            }
        }
    }
    console.run().await;
    console.wait_until_idle().await;
    let errors = console.errors("clients").await;
    assert_eq!(errors.err, "");
    assert!(b.lnet.counters().lcc_recv_length > bytes);
    assert!(b.lnet.counters().lcc_send_length > bytes);
}

#[tokio::test]
async fn receiver_detects_corrupted_bulk() {
    let nid = network();
    let corrupting = Settings {
        brw_inject_errors: 1,
        ..settings()
    };
    for (test, client_corrupts) in [
        ("brw read check=full", false),
        ("brw read check=simple size=1M", false),
        ("brw write check=full", true),
    ] {
        let console = TestConsole::new(nid(1)).await;
        let plain = settings();
        let (client_settings, server_settings) = if client_corrupts {
            (&corrupting, &plain)
        } else {
            (&plain, &corrupting)
        };
        let (_a, _b) = (
            node_with(nid(2), client_settings).await,
            node_with(nid(3), server_settings).await,
        );
        console.group("clients", &[nid(2)]).await;
        console.group("servers", &[nid(3)]).await;
        console.add_test(test, |t| t.loops = 5).await;
        console.run().await;
        console.wait_until_idle().await;
        let errors = console.errors("clients").await;
        assert!(
            errors.err.contains("[Session 1 brw errors, 0 ping errors]"),
            "{test}: {errors:?}"
        );
        for stack in [&console.own_node.lnet, &_a.lnet, &_b.lnet] {
            stack.shutdown().await;
        }
    }
}

#[tokio::test]
async fn unchecked_bulk_reports_no_errors() {
    let nid = network();
    let console = TestConsole::new(nid(1)).await;
    let corrupting = Settings {
        brw_inject_errors: 1,
        ..settings()
    };
    let (_a, _b) = (node(nid(2)).await, node_with(nid(3), &corrupting).await);
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    console.add_test("brw read", |t| t.loops = 3).await;
    console.run().await;
    console.wait_until_idle().await;
    assert_eq!(console.errors("clients").await.err, "");
}

#[tokio::test]
async fn dead_server_counts_as_errors_and_ends_the_batch() {
    let nid = network();
    let console = TestConsole::new(nid(1)).await;
    let quick = Settings {
        rpc_timeout: Duration::from_secs(1),
        ..settings()
    };
    let (_a, b) = (node_with(nid(2), &quick).await, node(nid(3)).await);
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    console.add_test("ping", |t| t.concurrency = 4).await;
    console.run().await;
    let before = console.counts("clients").await[0].sent.0;
    tokio::time::timeout(LIMIT, async {
        while console.counts("clients").await[0].sent.0 < before + 100 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    b.lnet.shutdown().await;
    console.wait_until_idle().await;
    let errors = console.errors("clients").await;
    assert!(
        errors.err.contains("[Session 0 brw errors, 4 ping errors]"),
        "{errors:?}"
    );
}

#[tokio::test]
async fn clients_are_distributed_over_servers() {
    let nid = network();
    let console = TestConsole::new(nid(1)).await;
    let mut nodes = Vec::new();
    for i in 2..=7 {
        nodes.push(node(nid(i)).await);
    }
    console.group("clients", &[nid(2), nid(3), nid(4), nid(5)]).await;
    console.group("servers", &[nid(6), nid(7)]).await;
    console
        .add_test("ping", |t| (t.loops, t.dist, t.span) = (10, 1, 2))
        .await;
    console.add_test("ping", |t| t.loops = 7).await;
    let before = console.counts("servers").await;
    console.run().await;
    console.wait_until_idle().await;
    for (before, after) in before.iter().zip(console.counts("servers").await) {
        // Each server gets 10 requests from every client, 7 from half of the clients, and the
        // request for its counters.
        assert_eq!(
            after.received.0 - before.received.0,
            4 * 10 + 2 * 7 + 1,
            "{}",
            after.nid
        );
    }
}
