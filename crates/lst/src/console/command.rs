//! What a console is asked, and what it says: both travel between the command line and the console's process.

use serde::{Deserialize, Serialize};
use wire::{LnetCountersCommon, SfwCounters};

/// A command of `lst`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Ends the session.
    EndSession,
    /// Tells of the session.
    ShowSession,
    /// Asks nodes which session they have.
    Ping {
        /// Which nodes.
        whom: Whom,
        /// Seconds to wait.
        timeout_s: u64,
    },
    /// Makes a group of nodes, and invites them into the session.
    AddGroup {
        /// Its name.
        name: String,
        /// Lists of nodes.
        ids: Vec<String>,
    },
    /// Lets go of a group.
    DelGroup {
        /// Its name.
        name: String,
    },
    /// Changes a group.
    UpdateGroup {
        /// Its name.
        name: String,
        /// How.
        how: Update,
    },
    /// Lists groups, or the nodes of some.
    ListGroup {
        /// Which; none: the names of all.
        names: Vec<String>,
        /// The nodes that are in one of these states, one by one; otherwise only how many there are.
        states: Option<Vec<NodeState>>,
    },
    /// Tells which nodes have seen errors.
    ShowError {
        /// Groups, or lists of nodes.
        names: Vec<String>,
        /// Only errors of the session's tests.
        session_only: bool,
    },
    /// Makes a batch.
    AddBatch {
        /// Its name.
        name: String,
    },
    /// Starts a batch.
    Run {
        /// Its name.
        name: String,
        /// Seconds, which nodes are told.
        timeout_s: u32,
    },
    /// Stops a batch and waits until it is stopped.
    Stop {
        /// Its name.
        name: String,
        /// Without waiting for requests in flight.
        force: bool,
    },
    /// Lists batches, or tells of one.
    ListBatch {
        /// Which; none: the names of all.
        name: Option<String>,
        /// Only this test, from 1.
        test: Option<u32>,
        /// The server's side in place of the client's.
        server: bool,
        /// Nodes one by one, those that are active and those that are not.
        nodes: Option<Listed>,
    },
    /// Asks whether a batch, or a test of it, runs.
    Query {
        /// The batch.
        name: String,
        /// Only this test, from 1; 0: all.
        test: u32,
        /// The server's side in place of the client's.
        server: bool,
        /// Seconds to wait.
        timeout_s: u64,
        /// Node by node, and which of them.
        verbose: Option<Shown>,
    },
    /// Adds a test to a batch.
    AddTest(TestWanted),
}

/// Nodes that are pinged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whom {
    /// All of the session.
    Session,
    /// A group's.
    Group(String),
    /// A batch's clients, or its servers.
    Batch(String, bool),
    /// Those of a list.
    Nodes(String),
}

/// How a group is changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// Invite those again that are not active.
    Refresh,
    /// Let go of those in these states.
    Clean(Vec<NodeState>),
    /// Let go of those of a list.
    Remove(String),
}

/// What a console knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// In the session.
    Active,
    /// In another's.
    Busy,
    /// Does not answer.
    Down,
    /// In none, or not heard of yet.
    Unknown,
}

impl NodeState {
    /// As `lst` says it.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Active => "Active",
            NodeState::Busy => "Busy",
            NodeState::Down => "Down",
            NodeState::Unknown => "Unknown",
        }
    }

    /// The states that a word means.
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

/// Which nodes of a batch are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Active ones.
    pub active: bool,
    /// Others.
    pub invalid: bool,
}

/// Which nodes a query shows: all, or only those that...
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Shown {
    /// ... run something,
    pub active: bool,
    /// ... run nothing,
    pub idle: bool,
    /// ... failed.
    pub error: bool,
}

/// A test to be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestWanted {
    /// To which batch.
    pub batch: String,
    /// How often each request is repeated; negative: until it is stopped.
    pub loops: i32,
    /// Requests in flight from each client to each of its servers.
    pub concurrency: u32,
    /// So many clients...
    pub dist: u32,
    /// ... have so many servers.
    pub span: u32,
    /// The clients' group.
    pub from: String,
    /// The servers' group.
    pub to: String,
    /// What is sent.
    pub kind: TestKind,
}

/// What a test sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestKind {
    /// A request and its reply.
    Ping,
    /// Bulk.
    Brw {
        /// From the client to the server.
        write: bool,
        /// `LST_BRW_CHECK_*`
        check: u32,
        /// Bytes.
        size: u32,
        /// Where in a page the client's buffer begins.
        offset: u32,
    },
}

/// What a command has to say.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Said {
    /// On standard output.
    pub out: String,
    /// On standard error.
    pub err: String,
    /// Whether it did what it was asked.
    pub ok: bool,
}

/// What a node has counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCounts {
    /// The node.
    pub nid: String,
    /// Milliseconds since its session began.
    pub running_ms: u32,
    /// Messages sent, and their bytes.
    pub sent: (u32, u64),
    /// Messages received, and their bytes.
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

/// What the nodes of a group have counted; those that did not answer are only a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// The group, or the list.
    pub name: String,
    /// Nodes that answered.
    pub nodes: Vec<NodeCounts>,
    /// How many others there are.
    pub failed: usize,
}
