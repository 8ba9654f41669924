//! The command line of `nacre lst`: Lustre's, and what runs a console or a node under test in the background.

use clap::{Args, Subcommand};

use super::{Net, StartArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum Lst {
    /// Be a node under test, in the background, until `nacre lst node --stop` or a signal
    Node(LstNode),
    /// Begin a session: starts its console in the background, which lives until the session ends
    #[command(name = "new_session")]
    NewSession(NewSession),
    /// End the session on all its nodes, and its console
    #[command(name = "end_session")]
    EndSession,
    /// Show the session
    #[command(name = "show_session")]
    ShowSession,
    /// Ask nodes which session they are in
    Ping(LstPing),
    /// Make a group of nodes and invite them into the session
    #[command(name = "add_group")]
    AddGroup {
        /// Its name
        name: String,
        /// Nodes, such as 192.168.1.[2-20/2]@tcp
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Let go of a group
    #[command(name = "del_group")]
    DelGroup {
        /// Its name
        name: String,
    },
    /// Invite nodes of a group again, or take nodes out of it
    #[command(name = "update_group")]
    UpdateGroup(UpdateGroup),
    /// List groups, or how the nodes of some are
    #[command(name = "list_group")]
    ListGroup(ListGroup),
    /// Show rates and bandwidth of the nodes of groups, again and again
    Stat(LstStat),
    /// Show which nodes have seen errors
    #[command(name = "show_error")]
    ShowError {
        /// Only errors of the session's tests
        #[arg(long, short)]
        session: bool,
        /// Groups, or nodes such as 192.168.1.[2-20/2]@tcp
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Make a batch
    #[command(name = "add_batch")]
    AddBatch {
        /// Its name
        name: String,
    },
    /// Start a batch
    Run {
        /// Seconds, which the nodes are told
        #[arg(long, short, default_value_t = 0)]
        timeout: u32,
        /// Its name
        #[arg(default_value = "batch")]
        name: String,
    },
    /// Stop a batch and wait until it is stopped
    Stop {
        /// Without waiting for requests in flight
        #[arg(long, short)]
        force: bool,
        /// Its name
        #[arg(default_value = "batch")]
        name: String,
    },
    /// List batches, or what is in one
    #[command(name = "list_batch")]
    ListBatch(ListBatch),
    /// Ask whether a batch runs
    Query(LstQuery),
    /// Add a test to a batch
    #[command(name = "add_test")]
    AddTest(AddTest),
}

#[derive(Debug, Args)]
pub(crate) struct LstNode {
    #[command(flatten)]
    pub(crate) net: Net,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Stay in the foreground until a signal
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Stop the node that listens there (by default, all nodes of this user)
    #[arg(long, conflicts_with = "foreground")]
    pub(crate) stop: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewSession {
    /// Seconds without a command after which the console ends the session
    #[arg(long, short, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) timeout: u64,
    /// Take nodes from other sessions, and the place of a session with the same key
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) net: Net,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Its name, `USER@HOST` unless told
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["session", "group", "batch", "nodes"]))]
pub(crate) struct LstPing {
    /// All nodes of the session
    #[arg(long, short)]
    pub(crate) session: bool,
    /// The nodes of a group
    #[arg(long, short, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// The clients of a batch
    #[arg(long, short, value_name = "NAME")]
    pub(crate) batch: Option<String>,
    /// The servers of the batch
    #[arg(long, short = 'v', requires = "batch")]
    pub(crate) server: bool,
    /// These nodes
    #[arg(long, short, value_name = "IDS")]
    pub(crate) nodes: Option<String>,
    /// Seconds to wait
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("how").required(true).args(["refresh", "clean", "remove"]))]
pub(crate) struct UpdateGroup {
    /// Invite those nodes again that are not active
    #[arg(long, short = 'f')]
    pub(crate) refresh: bool,
    /// Take out nodes that are busy, down, unknown, active, or invalid (busy, down or unknown)
    #[arg(long, short, value_name = "STATE")]
    pub(crate) clean: Option<String>,
    /// Take out these nodes
    #[arg(long, short, value_name = "IDS")]
    pub(crate) remove: Option<String>,
    /// The group
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListGroup {
    /// Active nodes, one by one
    #[arg(long, short)]
    pub(crate) active: bool,
    /// Nodes in other sessions
    #[arg(long, short)]
    pub(crate) busy: bool,
    /// Nodes that do not answer
    #[arg(long, short)]
    pub(crate) down: bool,
    /// Nodes in no session
    #[arg(long, short)]
    pub(crate) unknown: bool,
    /// All nodes, one by one
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// Groups [default: the names of all]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LstStat {
    /// Bandwidth
    #[arg(long)]
    pub(crate) bw: bool,
    /// Messages a second
    #[arg(long)]
    pub(crate) rate: bool,
    /// Received
    #[arg(long)]
    pub(crate) read: bool,
    /// Sent
    #[arg(long)]
    pub(crate) write: bool,
    /// The greatest of the nodes
    #[arg(long)]
    pub(crate) max: bool,
    /// The least of the nodes
    #[arg(long)]
    pub(crate) min: bool,
    /// The mean of the nodes
    #[arg(long)]
    pub(crate) avg: bool,
    /// Megabytes of 1,000,000 bytes
    #[arg(long)]
    pub(crate) mbs: bool,
    /// Seconds to wait for nodes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Seconds between two lines
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) delay: u64,
    /// How often [default: until it is interrupted]
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Groups, or nodes such as 192.168.1.[2-20/2]@tcp
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListBatch {
    /// Only this test, from 1
    #[arg(long, short, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) test: Option<u32>,
    /// Nodes of the servers' side
    #[arg(long, short)]
    pub(crate) server: bool,
    /// Active nodes, one by one
    #[arg(long, short)]
    pub(crate) active: bool,
    /// Other nodes, one by one
    #[arg(long, short)]
    pub(crate) invalid: bool,
    /// All nodes, one by one
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// The batch [default: the names of all]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LstQuery {
    /// Only this test, from 1
    #[arg(long, short, value_name = "ID", default_value_t = 0)]
    pub(crate) test: u32,
    /// Ask the servers
    #[arg(long, short)]
    pub(crate) server: bool,
    /// Seconds to wait
    #[arg(long, short = 'o', default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Seconds between two questions
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) delay: u64,
    /// How often
    #[arg(long = "loop", short = 'c', value_name = "N", default_value_t = 1)]
    pub(crate) loops: u64,
    /// Nodes that run something, one by one
    #[arg(long, short)]
    pub(crate) active: bool,
    /// Nodes that run nothing, one by one
    #[arg(long, short)]
    pub(crate) idle: bool,
    /// Nodes that failed, one by one
    #[arg(long, short)]
    pub(crate) error: bool,
    /// All nodes, one by one
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// The batch
    #[arg(default_value = "batch")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct AddTest {
    /// The batch
    #[arg(long, short, value_name = "NAME", default_value = "batch")]
    pub(crate) batch: String,
    /// How often each request is repeated; negative: until the batch is stopped
    #[arg(
        long = "loop",
        short,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    pub(crate) loops: i32,
    /// Requests in flight from each client to each of its servers
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub(crate) concurrency: u32,
    /// So many clients have so many servers: 1:1, 1:4, 4:2
    #[arg(long, short, value_name = "N:M", default_value = "1:1")]
    pub(crate) distribute: String,
    /// The group of clients
    #[arg(long, short, value_name = "GROUP")]
    pub(crate) from: String,
    /// The group of servers
    #[arg(long, short, value_name = "GROUP")]
    pub(crate) to: String,
    /// `ping`, or `brw [read|write] [size=4K] [check=none|simple|full] [off=N]`
    #[arg(required = true)]
    pub(crate) test: Vec<String>,
}
