//! The console's commands and their output, as sent between the command line and the console's
//! process.

use serde::{Deserialize, Serialize};
use wire::{LnetCountersCommon, SfwCounters};

/// A command of `lst`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Ends the session.
    EndSession,
    /// Shows the session.
    ShowSession,
    /// Queries the sessions of nodes.
    Ping {
        /// The nodes to query.
        target: PingTarget,
        /// Seconds to wait for replies; at least 3.
        timeout_s: u64,
    },
    /// Creates a group of nodes and adds the nodes to the session.
    AddGroup {
        /// The name of the group.
        name: String,
        /// Lists of nodes.
        ids: Vec<String>,
    },
    /// Deletes a group.
    DelGroup {
        /// The name of the group.
        name: String,
    },
    /// Changes a group.
    UpdateGroup {
        /// The name of the group.
        name: String,
        /// The change.
        update: GroupUpdate,
    },
    /// Lists groups, or the nodes of some.
    ListGroup {
        /// The groups to list; empty: list the names of all groups.
        names: Vec<String>,
        /// List the nodes in one of these states; `None`: only count the nodes in each state.
        states: Option<Vec<NodeState>>,
    },
    /// Lists the error counters of nodes with errors.
    ShowError {
        /// Groups, or lists of nodes.
        names: Vec<String>,
        /// Only errors of the session's tests.
        session_only: bool,
    },
    /// Creates a batch.
    AddBatch {
        /// The name of the batch.
        name: String,
    },
    /// Starts a batch on its clients.
    Run {
        /// The name of the batch.
        name: String,
        /// Timeout in seconds, passed on to the nodes.
        timeout_s: u32,
    },
    /// Stops a batch, and waits until it has stopped.
    Stop {
        /// The name of the batch.
        name: String,
        /// Abort requests in flight instead of waiting for them.
        force: bool,
    },
    /// Lists batches, or shows one.
    ListBatch {
        /// The batch to show; `None`: list the names of all batches.
        name: Option<String>,
        /// Show only the test with this number; the first test is 1.
        test: Option<u32>,
        /// The servers instead of the clients.
        server: bool,
        /// List the nodes that match the filter; `None`: only count the nodes in each state.
        nodes: Option<NodeFilter>,
    },
    /// Queries whether a batch, or one test of it, is running.
    Query {
        /// The batch.
        name: String,
        /// Query only the test with this number; the first test is 1. 0: all tests.
        test: u32,
        /// The servers instead of the clients.
        server: bool,
        /// Seconds to wait for replies; at least 3.
        timeout_s: u64,
        /// List each node that matches the filter.
        verbose: Option<QueryFilter>,
    },
    /// Adds a test to a batch.
    AddTest(TestRequest),
}

/// The nodes to ping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PingTarget {
    /// All nodes of the session.
    Session,
    /// The nodes of a group.
    Group(String),
    /// The servers (true) or clients (false) of a batch.
    Batch(String, bool),
    /// The nodes of a list.
    Nodes(String),
}

/// A change of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupUpdate {
    /// Invite the nodes that are not active to the session again.
    Refresh,
    /// Remove the nodes in these states.
    Clean(Vec<NodeState>),
    /// Remove the nodes of a list.
    Remove(String),
}

/// The state of a node as the console knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// In this console's session.
    Active,
    /// In another session.
    Busy,
    /// Did not reply with a session.
    Down,
    /// In no session, or not contacted so far.
    Unknown,
}

impl NodeState {
    /// The name that `lst` prints.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Active => "Active",
            NodeState::Busy => "Busy",
            NodeState::Down => "Down",
            NodeState::Unknown => "Unknown",
        }
    }

    /// The states named by a word; `invalid` means all except active.
    pub fn parse(word: &str) -> Option<Vec<NodeState>> {
        Some(match word.to_lowercase().as_str() {
            "active" => vec![NodeState::Active],
            "busy" => vec![NodeState::Busy],
            "down" => vec![NodeState::Down],
            "unknown" => vec![NodeState::Unknown],
            "invalid" => vec![NodeState::Busy, NodeState::Down, NodeState::Unknown],
            _ => return None,
        })
    }
}

/// Selects the nodes of a batch to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFilter {
    /// List active nodes.
    pub active: bool,
    /// List all other nodes.
    pub invalid: bool,
}

/// Selects the nodes that a query lists. Each set field restricts the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QueryFilter {
    /// Only nodes that run a test.
    pub active: bool,
    /// Only nodes that run no test.
    pub idle: bool,
    /// Only nodes that replied with an error or not at all.
    pub error: bool,
}

/// A test to add to a batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestRequest {
    /// The batch.
    pub batch: String,
    /// Number of requests that each test unit sends; negative: until stopped. For each server, a
    /// client runs `concurrency` units, each with one request in flight.
    pub loops: i32,
    /// Requests in flight from each client to each of its servers.
    pub concurrency: u32,
    /// Number of consecutive clients that share the same `span` servers.
    pub dist: u32,
    /// Number of servers that each client sends to.
    pub span: u32,
    /// The group of clients.
    pub from: String,
    /// The group of servers.
    pub to: String,
    /// The operation.
    pub kind: TestKind,
}

/// The operation of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestKind {
    /// A request without bulk data and its reply.
    Ping,
    /// A bulk transfer.
    Brw {
        /// The client sends the data to the server; otherwise the server sends the data.
        write: bool,
        /// The receiver's check of the data, one of `LST_BRW_CHECK_*`.
        check: u32,
        /// Size of a transfer, in bytes.
        size: u32,
        /// Offset of the client's buffer in its first page, in bytes.
        offset: u32,
    },
}

/// The output of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CommandOutput {
    /// Text for standard output.
    pub out: String,
    /// Text for standard error.
    pub err: String,
    /// Whether the command succeeded.
    pub ok: bool,
}

/// The counters of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    /// The node.
    pub nid: String,
    /// Milliseconds since the session began on the node.
    pub running_ms: u32,
    /// Number of LNet messages sent since the node's start, and their bytes.
    pub sent: (u32, u64),
    /// Number of LNet messages received since the node's start, and their bytes.
    pub received: (u32, u64),
}

impl NodeCounts {
    pub(crate) fn new(nid: String, fw: &SfwCounters, lnet: &LnetCountersCommon) -> NodeCounts {
        NodeCounts {
            nid,
            running_ms: fw.running_ms,
            sent: (lnet.lcc_send_count, lnet.lcc_send_length),
            received: (lnet.lcc_recv_count, lnet.lcc_recv_length),
        }
    }
}

/// The counters of the nodes of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// The group, or the list.
    pub name: String,
    /// The nodes that replied.
    pub nodes: Vec<NodeCounts>,
    /// Number of nodes that did not reply with counters.
    pub failed: usize,
}
