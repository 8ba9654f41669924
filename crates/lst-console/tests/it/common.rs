//! Nodes under test and a console, over loopback addresses.
#![allow(clippy::unwrap_used, unreachable_pub)]

use cpt::CptTable;
use lnet::{Lnet, LnetConfig};
use lst::{Node, Settings};
use lst_console::{Command, CommandOutput, Console, NodeCounts, SessionConfig, TestRequest, parse_test};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;
use wire::Nid;

/// Time limit of a step of a test.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The NIDs of one test by their last byte. The addresses are unique, so that the acceptor's port
/// is always free.
pub fn network() -> impl Fn(u8) -> Nid {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let test_number = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    move |last| Nid::tcp(Ipv4Addr::new(127, (pid % 250) as u8 + 1, test_number, last), 0)
}

/// A node with its own LNet stack.
pub struct TestNode {
    pub lnet: Arc<Lnet>,
    pub node: Arc<Node>,
}

pub fn settings() -> Settings {
    Settings {
        rpc_timeout: Duration::from_secs(5),
        ..Settings::default()
    }
}

pub async fn node(nid: Nid) -> TestNode {
    node_with(nid, &settings()).await
}

pub async fn node_with(nid: Nid, settings: &Settings) -> TestNode {
    let config = LnetConfig {
        accept_port: 7988,
        ..LnetConfig::default()
    };
    let lnet = Lnet::new(CptTable::single_current(), config);
    lnet.add_tcp(nid, true).await.unwrap();
    let node = Arc::new(Node::start(&lnet, settings));
    TestNode { lnet, node }
}

pub fn session_config() -> SessionConfig {
    SessionConfig {
        name: "test".to_owned(),
        key: 7,
        timeout: Duration::from_secs(300),
        force: false,
        feats: 1,
    }
}

/// A console with its own node.
pub struct TestConsole {
    pub own_node: TestNode,
    pub console: Console,
}

impl TestConsole {
    pub async fn new(nid: Nid) -> TestConsole {
        TestConsole::with_config(nid, session_config()).await
    }

    pub async fn with_config(nid: Nid, session_config: SessionConfig) -> TestConsole {
        let own_node = node(nid).await;
        let console = Console::start(own_node.node.clone(), session_config).unwrap();
        TestConsole { own_node, console }
    }

    pub async fn execute(&self, command: Command) -> CommandOutput {
        tokio::time::timeout(LIMIT, self.console.execute(command))
            .await
            .unwrap()
    }

    /// Standard output of a command that must succeed.
    pub async fn ok(&self, command: Command) -> String {
        let output = self.execute(command.clone()).await;
        assert!(output.ok, "{command:?}: {output:?}");
        output.out
    }

    /// Standard error of a command that must fail.
    pub async fn fails(&self, command: Command) -> String {
        let output = self.execute(command.clone()).await;
        assert!(!output.ok, "{command:?}: {output:?}");
        output.err
    }

    pub async fn group(&self, name: &str, nids: &[Nid]) {
        let ids = nids.iter().map(ToString::to_string).collect();
        let name = name.to_owned();
        self.ok(Command::AddGroup { name, ids }).await;
    }

    pub async fn add_test(&self, test: &str, change: impl FnOnce(&mut TestRequest)) {
        let out = self.ok(Command::AddTest(test_request(test, change))).await;
        assert_eq!(out, "Test was added successfully\n");
    }

    pub async fn run(&self) {
        let name = "batch".to_owned();
        self.ok(Command::Run { name, timeout_s: 0 }).await;
    }

    pub async fn stop(&self) {
        let name = "batch".to_owned();
        self.ok(Command::Stop { name, force: false }).await;
    }

    /// Waits until the tests of the batch have finished.
    pub async fn wait_until_idle(&self) {
        let query = || Command::Query {
            name: "batch".to_owned(),
            test: 0,
            server: false,
            timeout_s: 5,
            verbose: None,
        };
        tokio::time::timeout(LIMIT, async {
            while self.ok(query()).await != "batch [0] is stopped\n" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap();
    }

    pub async fn counts(&self, name: &str) -> Vec<NodeCounts> {
        let counts = self.console.counts(&[name.to_owned()], LIMIT).await.unwrap();
        assert_eq!(counts[0].failed, 0);
        counts.into_iter().next().unwrap().nodes
    }

    /// The error counters of the nodes of a group.
    pub async fn errors(&self, name: &str) -> CommandOutput {
        let names = vec![name.to_owned()];
        self.execute(Command::ShowError {
            names,
            session_only: true,
        })
        .await
    }
}

pub fn test_request(test: &str, change: impl FnOnce(&mut TestRequest)) -> TestRequest {
    let words: Vec<String> = test.split_whitespace().map(str::to_owned).collect();
    let mut request = TestRequest {
        batch: "batch".to_owned(),
        loops: -1,
        concurrency: 1,
        dist: 1,
        span: 1,
        from: "clients".to_owned(),
        to: "servers".to_owned(),
        kind: parse_test(&words).unwrap(),
    };
    change(&mut request);
    request
}
