//! Tests that nodes run among themselves, as a console has told them.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, TestConsole, network, node, node_with, settings};
use lst::Settings;
use lst::console::Command;
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
async fn a_test_is_repeated_as_often_as_it_says_and_no_more_at_once() {
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
    console.until_idle().await;
    let pings = b.lnet.counters().lcc_recv_count - before;
    assert_eq!(pings, 100);
}

#[tokio::test]
async fn bulk_of_all_sizes_is_read_and_written_and_checked() {
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
    console.until_idle().await;
    let errors = console.errors("clients").await;
    assert_eq!(errors.err, "");
    assert!(b.lnet.counters().lcc_recv_length > bytes);
    assert!(b.lnet.counters().lcc_send_length > bytes);
}

#[tokio::test]
async fn damaged_bulk_is_found_by_whoever_receives_it() {
    let nid = network();
    let damaging = Settings {
        brw_inject_errors: 1,
        ..settings()
    };
    for (test, client_damages) in [
        ("brw read check=full", false),
        ("brw read check=simple size=1M", false),
        ("brw write check=full", true),
    ] {
        let console = TestConsole::new(nid(1)).await;
        let plain = settings();
        let (of_client, of_server) = if client_damages {
            (&damaging, &plain)
        } else {
            (&plain, &damaging)
        };
        let (_a, _b) = (
            node_with(nid(2), of_client).await,
            node_with(nid(3), of_server).await,
        );
        console.group("clients", &[nid(2)]).await;
        console.group("servers", &[nid(3)]).await;
        console.add_test(test, |t| t.loops = 5).await;
        console.run().await;
        console.until_idle().await;
        let errors = console.errors("clients").await;
        assert!(
            errors.err.contains("[Session 1 brw errors, 0 ping errors]"),
            "{test}: {errors:?}"
        );
        for stack in [&console.here.lnet, &_a.lnet, &_b.lnet] {
            stack.shutdown().await;
        }
    }
}

#[tokio::test]
async fn what_nobody_looks_at_is_not_found_to_be_damaged() {
    let nid = network();
    let console = TestConsole::new(nid(1)).await;
    let damaging = Settings {
        brw_inject_errors: 1,
        ..settings()
    };
    let (_a, _b) = (node(nid(2)).await, node_with(nid(3), &damaging).await);
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    console.add_test("brw read", |t| t.loops = 3).await;
    console.run().await;
    console.until_idle().await;
    assert_eq!(console.errors("clients").await.err, "");
}

#[tokio::test]
async fn a_server_that_dies_is_counted_as_errors_and_the_batch_ends() {
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
    console.until_idle().await;
    let errors = console.errors("clients").await;
    assert!(
        errors.err.contains("[Session 0 brw errors, 4 ping errors]"),
        "{errors:?}"
    );
}

#[tokio::test]
async fn clients_spread_over_servers_as_the_distribution_says() {
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
    console.until_idle().await;
    for (before, after) in before.iter().zip(console.counts("servers").await) {
        // Each: 10 from every client, 7 from half of them, and the question itself.
        assert_eq!(
            after.received.0 - before.received.0,
            4 * 10 + 2 * 7 + 1,
            "{}",
            after.nid
        );
    }
}
