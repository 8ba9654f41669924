//! The command line of `nacre lnetctl`, as lnetctl's.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::op::{AddNi, Op, Setting};
use crate::cli::{Net, StartArgs};

#[derive(Debug, Args)]
pub(crate) struct Lnetctl {
    /// The process that has this directory
    #[arg(long, value_name = "D", global = true)]
    pub(crate) dir: Option<PathBuf>,
    /// The process that has this mount
    #[arg(long, value_name = "M", global = true, conflicts_with = "dir")]
    pub(crate) mount: Option<PathBuf>,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run a process that is only a node of the network, such as a router
    #[command(subcommand)]
    Lnet(LnetCommand),
    /// Networks of this node, and their interfaces
    #[command(subcommand)]
    Net(NetCommand),
    /// Ways to other networks
    #[command(subcommand)]
    Route(RouteCommand),
    /// What this node is as a router
    #[command(subcommand)]
    Routing(RoutingCommand),
    /// Change what this node is as a router
    Set {
        /// What to set
        what: Setting,
        /// Its value
        value: u32,
    },
    /// Peers
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Counts
    #[command(subcommand)]
    Stats(ShowOnly),
    /// Settings of the whole node
    #[command(subcommand)]
    Global(ShowOnly),
    /// Ask nodes for their NIDs
    Ping(Ping),
    /// The same: this node keeps nothing of what it hears
    Discover(Ping),
    /// The CPU partitions that NIDs belong to
    CptOfNid {
        /// NIDs
        #[arg(required = true)]
        nids: Vec<String>,
    },
    /// Add, or with --del remove, what a file in YAML says
    Import {
        /// Remove it
        #[arg(long)]
        del: bool,
        /// Add it (the default)
        #[arg(long, conflicts_with = "del")]
        add: bool,
        /// The file [default: standard input]
        file: Option<PathBuf>,
    },
    /// Write what there is as YAML
    Export {
        /// The file [default: standard output]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum LnetCommand {
    /// Start it, in the background; what it is on is said with --param networks=..
    Configure(Box<Configure>),
    /// Stop it
    Unconfigure,
}

#[derive(Debug, Args)]
pub(super) struct Configure {
    #[command(flatten)]
    pub(super) net: Net,
    #[command(flatten)]
    pub(super) start: StartArgs,
    /// Stay in the foreground until a signal or `unconfigure`
    #[arg(long)]
    pub(super) foreground: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum NetCommand {
    /// Add a network, or an interface to one
    Add {
        /// The network, such as tcp1
        #[arg(long)]
        net: Option<String>,
        /// Interfaces by name or address [default: the first that is not the loopback]
        #[arg(long = "if", value_name = "IF", value_delimiter = ',')]
        interfaces: Vec<String>,
        /// The NID, in place of network and interface
        #[arg(long)]
        nid: Option<String>,
        /// CPU partitions, such as `[0,1]`
        #[arg(long)]
        cpt: Option<String>,
        /// Seconds of silence after which a peer is shown as down
        #[arg(long)]
        peer_timeout: Option<u32>,
        /// Messages under way to one peer
        #[arg(long)]
        peer_credits: Option<u32>,
        /// Router buffers of one peer
        #[arg(long)]
        peer_buffer_credits: Option<u32>,
        /// Messages under way
        #[arg(long)]
        credits: Option<u32>,
        /// Connections for bulk each way to a peer
        #[arg(long)]
        conns_per_peer: Option<u32>,
    },
    /// Remove a network, or an interface
    Del {
        /// The network
        #[arg(long)]
        net: Option<String>,
        /// The NID
        #[arg(long)]
        nid: Option<String>,
        /// Only these interfaces
        #[arg(long = "if", value_name = "IF", value_delimiter = ',')]
        interfaces: Vec<String>,
    },
    /// Show networks
    Show {
        /// Only this one
        #[arg(long)]
        net: Option<String>,
        #[command(flatten)]
        detail: Detail,
    },
}

/// How much is shown.
#[derive(Debug, Args)]
pub(super) struct Detail {
    /// More of each; 2 is everything
    #[arg(short, long, value_name = "LEVEL", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(super) enum RouteCommand {
    /// Add a route
    Add {
        /// Where it leads, such as tcp1
        #[arg(long)]
        net: String,
        /// The router's NID, on a network of this node
        #[arg(long)]
        gateway: String,
        /// How many networks away, 1 to 255
        #[arg(long, visible_alias = "hop-count", value_parser = clap::value_parser!(u32).range(1..=255))]
        hop: Option<u32>,
        /// Routes of the least number are used first
        #[arg(long, default_value_t = 0)]
        priority: u32,
    },
    /// Delete a route
    Del {
        /// Where it leads
        #[arg(long)]
        net: String,
        /// The router's NID
        #[arg(long)]
        gateway: String,
    },
    /// Show routes
    Show {
        /// Only to this network
        #[arg(long)]
        net: Option<String>,
        /// Only by this router
        #[arg(long)]
        gateway: Option<String>,
        #[command(flatten)]
        detail: Detail,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum RoutingCommand {
    /// Show it
    Show,
}

#[derive(Debug, Subcommand)]
pub(super) enum ShowOnly {
    /// Show them
    Show,
}

#[derive(Debug, Subcommand)]
pub(super) enum PeerCommand {
    /// Show peers
    Show {
        /// Only this one
        #[arg(long)]
        nid: Option<String>,
        #[command(flatten)]
        detail: Detail,
    },
    /// Show the NIDs of peers
    List,
}

#[derive(Debug, Args)]
pub(super) struct Ping {
    /// NIDs
    #[arg(required = true)]
    nids: Vec<String>,
    /// Seconds to wait for each
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

impl Ping {
    fn op(self, discover: bool) -> Op {
        Op::Ping {
            nids: self.nids,
            timeout_s: self.timeout,
            discover,
        }
    }
}

impl Command {
    /// What it asks of a running process; itself again if it is more than one question.
    pub(super) fn op(self) -> Result<Op, Box<Command>> {
        Ok(match self {
            Command::Net(NetCommand::Add {
                net,
                interfaces,
                nid,
                cpt,
                peer_timeout,
                peer_credits,
                peer_buffer_credits,
                credits,
                conns_per_peer,
            }) => Op::NetAdd(AddNi {
                net,
                interfaces,
                nid,
                cpt,
                peer_timeout,
                peer_credits,
                peer_buffer_credits,
                credits,
                conns_per_peer,
            }),
            Command::Net(NetCommand::Del { net, nid, interfaces }) => Op::NetDel { net, nid, interfaces },
            Command::Net(NetCommand::Show { net, detail }) => Op::NetShow {
                net,
                detail: detail.verbose,
            },
            Command::Route(RouteCommand::Add {
                net,
                gateway,
                hop,
                priority,
            }) => Op::RouteAdd {
                net,
                gateway,
                hop,
                priority,
            },
            Command::Route(RouteCommand::Del { net, gateway }) => Op::RouteDel { net, gateway },
            Command::Route(RouteCommand::Show { net, gateway, detail }) => Op::RouteShow {
                net,
                gateway,
                detail: detail.verbose,
            },
            Command::Routing(RoutingCommand::Show) => Op::RoutingShow,
            Command::Set { what, value } => Op::Set { what, value },
            Command::Peer(PeerCommand::Show { nid, detail }) => Op::PeerShow {
                nid,
                detail: detail.verbose,
            },
            Command::Peer(PeerCommand::List) => Op::PeerList,
            Command::Stats(ShowOnly::Show) => Op::StatsShow,
            Command::Global(ShowOnly::Show) => Op::GlobalShow,
            Command::Ping(ping) => ping.op(false),
            Command::Discover(ping) => ping.op(true),
            Command::CptOfNid { nids } => Op::CptOfNid { nids },
            other @ (Command::Lnet(_) | Command::Import { .. } | Command::Export { .. }) => {
                return Err(Box::new(other));
            }
        })
    }
}
