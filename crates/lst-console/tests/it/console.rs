//! The console's commands for sessions, groups and batches, and their output.
#![allow(clippy::unwrap_used)]

use crate::common::{LIMIT, TestConsole, network, node, node_with, session_config, settings, test_request};
use lst::Settings;
use lst_console::{Command, Console, GroupUpdate, NodeFilter, NodeState, PingTarget, SessionConfig};
use std::time::Duration;
use wire::Errno;

fn list_groups(names: &[&str]) -> Command {
    Command::ListGroup {
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        states: None,
    }
}

fn add_group(name: &str, ids: &str) -> Command {
    Command::AddGroup {
        name: name.to_owned(),
        ids: vec![ids.to_owned()],
    }
}

fn delete_group(name: &str) -> Command {
    Command::DelGroup {
        name: name.to_owned(),
    }
}

#[tokio::test]
async fn groups_are_created_listed_changed_and_deleted() {
    let nid = network();
    let (console, _a, _b) = (
        TestConsole::new(nid(1)).await,
        node(nid(2)).await,
        node(nid(3)).await,
    );
    let ids = nid(2).to_string().replace(".2@", ".[2-3]@");
    assert_eq!(
        console.ok(add_group("both", &ids)).await,
        format!("{ids} are added to session\n")
    );
    console.group("one", &[nid(2)]).await;
    assert_eq!(
        console.ok(list_groups(&[])).await,
        "1) both\n2) one\nTotal 2 groups\n"
    );
    let title = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\n";
    assert_eq!(
        console.ok(list_groups(&["both", "one"])).await,
        format!("{title}\t2\t0\t0\t0\t2\tboth\n\t1\t0\t0\t0\t1\tone\n")
    );
    let list_active = Command::ListGroup {
        names: vec!["both".to_owned()],
        states: Some(vec![NodeState::Active]),
    };
    let (node_2, node_3) = (nid(2), nid(3));
    assert_eq!(
        console.ok(list_active).await,
        format!(
            "Group [ both ]\n\t12345-{node_2}: Active\n\t12345-{node_3}: Active\nTotal 2 nodes [ both ]\n"
        )
    );
    let remove = Command::UpdateGroup {
        name: "both".to_owned(),
        update: GroupUpdate::Remove(nid(2).to_string()),
    };
    console.ok(remove).await;
    assert_eq!(
        console.ok(list_groups(&["both"])).await,
        format!("{title}\t1\t0\t0\t0\t1\tboth\n")
    );
    assert_eq!(console.ok(delete_group("one")).await, "Group is deleted\n");
    let ping = Command::Ping {
        target: PingTarget::Nodes(nid(2).to_string()),
        timeout_s: 5,
    };
    assert_eq!(
        console.ok(ping).await,
        format!("\t12345-{node_2}: Unknown [session: <NULL> id: <any>]\n"),
        "its session has ended"
    );
    assert!(console.fails(delete_group("one")).await.contains("no group one"));
    assert!(
        console
            .fails(add_group("both", &ids))
            .await
            .contains("already exists")
    );
    let shown = console.ok(Command::ShowSession).await;
    let console_nid = nid(1);
    assert!(
        shown.starts_with("test ID: ")
            && shown.ends_with(&format!("@{console_nid}, KEY: 7 FEATURES: 1 NODES: 1\n")),
        "{shown}"
    );
}

#[tokio::test]
async fn node_of_another_session_is_busy_unless_taken_by_force() {
    let nid = network();
    let (first, _a) = (TestConsole::new(nid(1)).await, node(nid(2)).await);
    first.group("g", &[nid(2)]).await;
    let second = TestConsole::new(nid(3)).await;
    let node_2 = nid(2);
    let output = second.execute(add_group("g", &node_2.to_string())).await;
    assert!(
        !output.ok
            && output.err.contains(&format!(
                "operation create session failed on 12345-{node_2}: EBUSY"
            )),
        "{output:?}"
    );
    assert_eq!(output.out, "Group is deleted\n");
    let ping = Command::Ping {
        target: PingTarget::Nodes(node_2.to_string()),
        timeout_s: 5,
    };
    let console_nid = nid(1);
    assert_eq!(
        second.ok(ping).await,
        format!("\t12345-{node_2}: Busy [session: test id: {console_nid}]\n")
    );
    let force = SessionConfig {
        force: true,
        name: "mine".to_owned(),
        ..session_config()
    };
    let third = TestConsole::with_config(nid(4), force).await;
    third.group("g", &[node_2]).await;
    first
        .ok(Command::Ping {
            target: PingTarget::Session,
            timeout_s: 5,
        })
        .await;
    let title = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\n";
    assert_eq!(
        first.ok(list_groups(&["g"])).await,
        format!("{title}\t0\t1\t0\t0\t1\tg\n")
    );
}

#[tokio::test]
async fn unreachable_node_is_down() {
    let nid = network();
    let (console, _a) = (TestConsole::new(nid(1)).await, node(nid(2)).await);
    let node_3 = nid(3);
    let ids = Command::AddGroup {
        name: "g".to_owned(),
        ids: vec![nid(2).to_string(), node_3.to_string()],
    };
    let output = console.execute(ids).await;
    assert!(
        !output.ok
            && output
                .err
                .contains(&format!("create session RPC failed on 12345-{node_3}")),
        "{output:?}"
    );
    let title = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\n";
    assert_eq!(
        console.ok(list_groups(&["g"])).await,
        format!("{title}\t1\t0\t1\t0\t2\tg\n")
    );
    let error = console
        .fails(Command::AddTest(test_request("ping", |t| {
            (t.from, t.to) = ("g".into(), "g".into())
        })))
        .await;
    assert!(
        error.contains(&format!("12345-{node_3} is not in the session")),
        "{error}"
    );
    let clean = Command::UpdateGroup {
        name: "g".to_owned(),
        update: GroupUpdate::Clean(vec![NodeState::Down]),
    };
    console.ok(clean).await;
    assert_eq!(
        console.ok(list_groups(&["g"])).await,
        format!("{title}\t1\t0\t0\t0\t1\tg\n")
    );
    let _c = node(node_3).await;
    console.group("late", &[node_3]).await;
}

#[tokio::test]
async fn batches_are_listed_with_their_tests_and_nodes() {
    let nid = network();
    let (console, _a, _b) = (
        TestConsole::new(nid(1)).await,
        node(nid(2)).await,
        node(nid(3)).await,
    );
    console.group("clients", &[nid(2)]).await;
    console.group("servers", &[nid(3)]).await;
    console
        .ok(Command::AddBatch {
            name: "bulk".to_owned(),
        })
        .await;
    assert!(
        console
            .fails(Command::AddBatch {
                name: "bulk".to_owned()
            })
            .await
            .contains("already exists")
    );
    let list_batch = |name: Option<&str>, nodes| Command::ListBatch {
        name: name.map(str::to_owned),
        test: None,
        server: true,
        nodes,
    };
    assert_eq!(
        console.ok(list_batch(None, None)).await,
        "1) batch\n2) bulk\nTotal 2 batches\n"
    );
    console
        .add_test("brw write", |t| (t.concurrency, t.batch) = (4, "bulk".to_owned()))
        .await;
    let side = "\tACTIVE\tBUSY\tDOWN\tUNKNOWN\tTOTAL\nclient\t1\t0\t0\t0\t1\nserver\t1\t0\t0\t0\t1\n";
    let expected =
        format!("Batch: bulk Tests: 1 State: 176\n{side}\tTest 1(brw) (loop: -1, concurrency: 4)\n{side}");
    assert_eq!(console.ok(list_batch(Some("bulk"), None)).await, expected);
    let nodes = Some(NodeFilter {
        active: true,
        invalid: true,
    });
    let node_3 = nid(3);
    assert_eq!(
        console.ok(list_batch(Some("bulk"), nodes)).await,
        format!("\t12345-{node_3}: Active\nTotal 1 nodes\n")
    );
    for group in ["clients", "servers"] {
        assert!(
            console
                .fails(delete_group(group))
                .await
                .contains("used by a test")
        );
    }
    assert!(
        console
            .fails(Command::AddTest(test_request("ping", |t| t.span = 2)))
            .await
            .contains("has 1 nodes")
    );
    assert!(
        console
            .fails(Command::AddTest(test_request("ping", |t| t.concurrency = 1025)))
            .await
            .contains("from 1 to 1024")
    );
    let run = Command::Run {
        name: "bulk".to_owned(),
        timeout_s: 0,
    };
    assert_eq!(console.ok(run).await, "bulk is running now\n");
    let query = Command::Query {
        name: "bulk".to_owned(),
        test: 1,
        server: false,
        timeout_s: 5,
        verbose: None,
    };
    assert_eq!(console.ok(query).await, "bulk [1] is running\n");
    let more = test_request("ping", |t| t.batch = "bulk".to_owned());
    assert!(
        console
            .fails(Command::AddTest(more))
            .await
            .contains("stop it first")
    );
    let stop = Command::Stop {
        name: "bulk".to_owned(),
        force: true,
    };
    assert_eq!(console.ok(stop).await, "Batch is stopped\n");
}

#[tokio::test]
async fn unused_console_ends_its_session_on_its_node() {
    let nid = network();
    let a = node(nid(2)).await;
    let short_timeout = SessionConfig {
        timeout: Duration::from_secs(1),
        ..session_config()
    };
    let console = TestConsole::with_config(nid(1), short_timeout).await;
    console.group("g", &[nid(2)]).await;
    tokio::time::timeout(LIMIT, console.console.ended())
        .await
        .unwrap();
    let other = TestConsole::new(nid(3)).await;
    other.group("g", &[nid(2)]).await;
    drop(a);
}

#[tokio::test]
async fn nodes_leave_only_the_session_of_a_dead_console() {
    let nid = network();
    let settings_with_timeout = |secs| Settings {
        session_timeout: Duration::from_secs(secs),
        ..settings()
    };
    // The console on node 4 pings its node every 6 s. A shorter interval would make load on this
    // machine look like a dead console.
    let live_timeout = Duration::from_secs(12);
    let _a = node_with(nid(2), &settings_with_timeout(2)).await;
    let _b = node_with(nid(3), &settings_with_timeout(live_timeout.as_secs())).await;
    let (dead, live) = (TestConsole::new(nid(1)).await, TestConsole::new(nid(4)).await);
    let start_time = tokio::time::Instant::now();
    dead.group("g", &[nid(2)]).await;
    live.group("g", &[nid(3)]).await;
    dead.own_node.lnet.shutdown().await;
    let other = TestConsole::new(nid(5)).await;
    let ping = |last: u8| Command::Ping {
        target: PingTarget::Nodes(nid(last).to_string()),
        timeout_s: 5,
    };
    // A ping restarts the session timeout of the node, so wait longer than 2 s between pings.
    tokio::time::timeout(LIMIT, async {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            if other.ok(ping(2)).await.contains("Unknown") {
                break;
            }
        }
    })
    .await
    .unwrap();
    tokio::time::sleep_until(start_time + live_timeout + Duration::from_secs(4)).await;
    assert!(
        other.ok(ping(3)).await.contains("Busy"),
        "its console pings the node in time"
    );
}

#[tokio::test]
async fn invalid_session_parameters_are_errors() {
    let nid = network();
    let test_node = node(nid(1)).await;
    let long_name = SessionConfig {
        name: "x".repeat(32),
        ..session_config()
    };
    assert_eq!(
        Console::start(test_node.node.clone(), long_name).unwrap_err(),
        Errno::E2BIG
    );
    let unknown_features = SessionConfig {
        feats: 2,
        ..session_config()
    };
    assert_eq!(
        Console::start(test_node.node.clone(), unknown_features).unwrap_err(),
        Errno::EINVAL
    );
}
