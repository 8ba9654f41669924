//! The command line of `nacre lst`: the commands of Lustre's lst, and `node`, which runs a node
//! under test.

use clap::{Args, Subcommand};

use super::{Net, StartArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum Lst {
    /// Run a node under test in the background until `nacre lst node --stop` or a signal
    Node(LstNode),
    /// Begin a session: starts its console in the background, where it runs until the session ends
    #[command(name = "new_session")]
    NewSession(NewSession),
    /// End the session on all its nodes and stop its console
    #[command(name = "end_session")]
    EndSession,
    /// Show the session
    #[command(name = "show_session")]
    ShowSession,
    /// Query the session of nodes
    Ping(LstPing),
    /// Create a group of nodes and add them to the session
    #[command(name = "add_group")]
    AddGroup {
        /// Name of the group
        name: String,
        /// Nodes, such as 192.168.1.[2-20/2]@tcp
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Delete a group
    #[command(name = "del_group")]
    DelGroup {
        /// Name of the group
        name: String,
    },
    /// Add the nodes of a group to the session again, or remove nodes from the group
    #[command(name = "update_group")]
    UpdateGroup(UpdateGroup),
    /// List groups, or the states of the nodes in some groups
    #[command(name = "list_group")]
    ListGroup(ListGroup),
    /// Show rates and bandwidth of the nodes of groups at intervals
    Stat(LstStat),
    /// Show the nodes that have seen errors
    #[command(name = "show_error")]
    ShowError {
        /// Only errors of the session's tests
        #[arg(long, short)]
        session: bool,
        /// Groups, or nodes such as 192.168.1.[2-20/2]@tcp
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Create a batch
    #[command(name = "add_batch")]
    AddBatch {
        /// Name of the batch
        name: String,
    },
    /// Start a batch
    Run {
        /// Time limit in seconds, sent to the nodes; 0: no limit
        #[arg(long, short, default_value_t = 0)]
        timeout: u32,
        /// Name of the batch
        #[arg(default_value = "batch")]
        name: String,
    },
    /// Stop a batch and wait until it has stopped
    Stop {
        /// Do not wait for requests in flight
        #[arg(long, short)]
        force: bool,
        /// Name of the batch
        #[arg(default_value = "batch")]
        name: String,
    },
    /// List batches, or the contents of one
    #[command(name = "list_batch")]
    ListBatch(ListBatch),
    /// Query whether a batch is running
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
    /// Stop the node at the --listen address [default: all nodes of this user]
    #[arg(long, conflicts_with = "foreground")]
    pub(crate) stop: bool,
}

#[derive(Debug, Args)]
pub(crate) struct NewSession {
    /// Seconds without a command after which the console ends the session
    #[arg(long, short, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) timeout: u64,
    /// Take over nodes of other sessions, and replace a session with the same key (LST_SESSION)
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) net: Net,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Name of the session; by default the names of the user and the host
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("selection").required(true).args(["session", "group", "batch", "nodes"]))]
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
    /// The servers of the batch instead of its clients
    #[arg(long, short = 'v', requires = "batch")]
    pub(crate) server: bool,
    /// These nodes
    #[arg(long, short, value_name = "IDS")]
    pub(crate) nodes: Option<String>,
    /// Seconds to wait for the nodes
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("change").required(true).args(["refresh", "clean", "remove"]))]
pub(crate) struct UpdateGroup {
    /// Add the nodes that are not active to the session again
    #[arg(long, short = 'f')]
    pub(crate) refresh: bool,
    /// Remove nodes in this state: busy, down, unknown, active, or invalid (busy, down or unknown)
    #[arg(long, short, value_name = "STATE")]
    pub(crate) clean: Option<String>,
    /// Remove these nodes
    #[arg(long, short, value_name = "IDS")]
    pub(crate) remove: Option<String>,
    /// The group
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListGroup {
    /// List active nodes
    #[arg(long, short)]
    pub(crate) active: bool,
    /// List nodes in other sessions
    #[arg(long, short)]
    pub(crate) busy: bool,
    /// List nodes that do not answer
    #[arg(long, short)]
    pub(crate) down: bool,
    /// List nodes in no session
    #[arg(long, short)]
    pub(crate) unknown: bool,
    /// List all nodes
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// Groups [default: list the names of all groups]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LstStat {
    /// Show bandwidth
    #[arg(long)]
    pub(crate) bw: bool,
    /// Show messages per second
    #[arg(long)]
    pub(crate) rate: bool,
    /// Show received data
    #[arg(long)]
    pub(crate) read: bool,
    /// Show sent data
    #[arg(long)]
    pub(crate) write: bool,
    /// Show the maximum over the nodes
    #[arg(long)]
    pub(crate) max: bool,
    /// Show the minimum over the nodes
    #[arg(long)]
    pub(crate) min: bool,
    /// Show the mean over the nodes
    #[arg(long)]
    pub(crate) avg: bool,
    /// Print bandwidth in MB (1,000,000 bytes) instead of MiB
    #[arg(long)]
    pub(crate) mbs: bool,
    /// Seconds to wait for the nodes
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Seconds between two lines
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) delay: u64,
    /// Number of lines [default: until interrupted]
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Groups, or nodes such as 192.168.1.[2-20/2]@tcp
    #[arg(required = true)]
    pub(crate) names: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListBatch {
    /// Only the test with this number, from 1
    #[arg(long, short, value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) test: Option<u32>,
    /// Show the nodes on the server side
    #[arg(long, short)]
    pub(crate) server: bool,
    /// List active nodes
    #[arg(long, short)]
    pub(crate) active: bool,
    /// List inactive nodes
    #[arg(long, short)]
    pub(crate) invalid: bool,
    /// List all nodes
    #[arg(long, short = 'l')]
    pub(crate) all: bool,
    /// The batch [default: list the names of all batches]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LstQuery {
    /// Only the test with this number, from 1; 0: the whole batch
    #[arg(long, short, value_name = "ID", default_value_t = 0)]
    pub(crate) test: u32,
    /// Query the servers
    #[arg(long, short)]
    pub(crate) server: bool,
    /// Seconds to wait for the nodes
    #[arg(long, short = 'o', default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub(crate) timeout: u64,
    /// Seconds between two queries
    #[arg(long, short, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) delay: u64,
    /// Number of queries
    #[arg(long = "loop", short = 'c', value_name = "N", default_value_t = 1)]
    pub(crate) loops: u64,
    /// List nodes that run tests
    #[arg(long, short)]
    pub(crate) active: bool,
    /// List nodes that run no tests
    #[arg(long, short)]
    pub(crate) idle: bool,
    /// List nodes that answered with an error or not at all
    #[arg(long, short)]
    pub(crate) error: bool,
    /// List all nodes
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
    /// Number of repetitions of each request; negative: until the batch is stopped
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
    /// Ratio of clients to servers: 1:1, 1:4, 4:2
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
