//! The command line of `nacre lnetctl`, with the options of Lustre's lnetctl.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::op::{NiParams, Op, Setting};
use crate::cli::{Net, StartArgs};

#[derive(Debug, Args)]
pub(crate) struct Lnetctl {
    /// Use the process that serves this directory
    #[arg(long, value_name = "D", global = true)]
    pub(crate) dir: Option<PathBuf>,
    /// Use the process of this mount
    #[arg(long, value_name = "M", global = true, conflicts_with = "dir")]
    pub(crate) mount: Option<PathBuf>,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run an LNet node without targets or mounts, such as a router
    #[command(subcommand)]
    Lnet(LnetCommand),
    /// Networks of this node and their interfaces
    #[command(subcommand)]
    Net(NetCommand),
    /// Routes to other networks
    #[command(subcommand)]
    Route(RouteCommand),
    /// Routing on this node
    #[command(subcommand)]
    Routing(RoutingCommand),
    /// Change a setting of this node
    Set {
        /// Name of the setting
        setting: Setting,
        /// New value
        value: u32,
    },
    /// Peers
    #[command(subcommand)]
    Peer(PeerCommand),
    /// Message counters
    #[command(subcommand)]
    Stats(ShowCommand),
    /// Settings of the whole node
    #[command(subcommand)]
    Global(ShowCommand),
    /// Query the NIDs of nodes
    Ping(Ping),
    /// Same as ping: this node does not store discovered peers
    Discover(Ping),
    /// Show the CPU partition of each NID
    CptOfNid {
        /// NIDs
        #[arg(required = true)]
        nids: Vec<String>,
    },
    /// Add the configuration in a YAML file, or remove it with --del
    Import {
        /// Remove the configuration
        #[arg(long)]
        del: bool,
        /// Add the configuration (the default)
        #[arg(long, conflicts_with = "del")]
        add: bool,
        /// Input file [default: standard input]
        file: Option<PathBuf>,
    },
    /// Write the configuration as YAML
    Export {
        /// Output file [default: standard output]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum LnetCommand {
    /// Start the node in the background, with the networks of --param networks=.. [default: tcp on
    /// the first interface]
    Configure(Box<Configure>),
    /// Stop the node
    Unconfigure,
}

#[derive(Debug, Args)]
pub(super) struct Configure {
    #[command(flatten)]
    pub(super) net: Net,
    #[command(flatten)]
    pub(super) start: StartArgs,
    /// No effect: the node always has all its networks
    #[arg(long)]
    pub(super) all: bool,
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
        /// Interfaces by name or address [default: the first one that is not the loopback]
        #[arg(long = "if", value_name = "IF", value_delimiter = ',')]
        interfaces: Vec<String>,
        /// NID, instead of network and interface
        #[arg(long)]
        nid: Option<String>,
        /// CPU partitions, such as `[0,1]`
        #[arg(long)]
        cpt: Option<String>,
        /// Seconds that `net show` prints as peer_timeout; no other effect
        #[arg(long)]
        peer_timeout: Option<u32>,
        /// Maximum number of messages in flight to one peer
        #[arg(long)]
        peer_credits: Option<u32>,
        /// Maximum number of router buffers that one peer uses
        #[arg(long)]
        peer_buffer_credits: Option<u32>,
        /// Maximum number of messages in flight on the interface
        #[arg(long)]
        credits: Option<u32>,
        /// Number of bulk connections in each direction to a peer
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
        /// Only this network
        #[arg(long)]
        net: Option<String>,
        #[command(flatten)]
        detail: Detail,
    },
}

/// Option for the level of detail.
#[derive(Debug, Args)]
pub(super) struct Detail {
    /// Show more details; level 2 shows all
    #[arg(short, long, value_name = "LEVEL", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(super) enum RouteCommand {
    /// Add a route
    Add {
        /// Destination network, such as tcp1
        #[arg(long)]
        net: String,
        /// NID of the router on a network of this node
        #[arg(long)]
        gateway: String,
        /// Number of hops, 1 to 255
        #[arg(long, visible_alias = "hop-count", value_parser = clap::value_parser!(u32).range(1..=255))]
        hop: Option<u32>,
        /// Priority; routes with lower values are used first
        #[arg(long, default_value_t = 0)]
        priority: u32,
    },
    /// Delete a route
    Del {
        /// Destination network
        #[arg(long)]
        net: String,
        /// NID of the router
        #[arg(long)]
        gateway: String,
    },
    /// Show routes
    Show {
        /// Only routes to this network
        #[arg(long)]
        net: Option<String>,
        /// Only routes through this router
        #[arg(long)]
        gateway: Option<String>,
        #[command(flatten)]
        detail: Detail,
    },
}

#[derive(Debug, Subcommand)]
pub(super) enum RoutingCommand {
    /// Show the state of routing and its buffers
    Show,
}

#[derive(Debug, Subcommand)]
pub(super) enum ShowCommand {
    /// Show the values
    Show,
}

#[derive(Debug, Subcommand)]
pub(super) enum PeerCommand {
    /// Show peers
    Show {
        /// Only this peer
        #[arg(long)]
        nid: Option<String>,
        #[command(flatten)]
        detail: Detail,
    },
    /// Show the NIDs of peers
    List,
    /// Check that the NID of a peer is valid; the peer itself appears with its first message
    Add {
        /// The NID of the peer
        #[arg(long = "prim_nid", value_name = "NID")]
        primary: String,
        /// Must be the same NID: a peer has one
        #[arg(long = "nid", value_name = "NID", value_delimiter = ',')]
        nids: Vec<String>,
    },
    /// Disconnect a peer and forget its state; it appears again with its next message
    Del {
        /// The NID of the peer
        #[arg(long = "prim_nid", value_name = "NID")]
        primary: String,
        /// Must be the same NID: a peer has one
        #[arg(long = "nid", value_name = "NID", value_delimiter = ',')]
        nids: Vec<String>,
        /// No effect: no peer is locked
        #[arg(long)]
        force: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Ping {
    /// NIDs
    #[arg(required = true)]
    nids: Vec<String>,
    /// Seconds to wait for each node
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
}

impl Ping {
    fn into_op(self, discover: bool) -> Op {
        Op::Ping {
            nids: self.nids,
            timeout_s: self.timeout,
            discover,
        }
    }
}

impl Command {
    /// Returns the operation for a running process. The error is the command itself, if it starts
    /// or stops a process, or reads or writes a file.
    pub(super) fn into_op(self) -> Result<Op, Box<Command>> {
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
            }) => Op::NetAdd(NiParams {
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
            Command::Set { setting, value } => Op::Set { what: setting, value },
            Command::Peer(PeerCommand::Show { nid, detail }) => Op::PeerShow {
                nid,
                detail: detail.verbose,
            },
            Command::Peer(PeerCommand::List) => Op::PeerList,
            Command::Peer(PeerCommand::Add { primary, nids }) => Op::PeerAdd { primary, nids },
            Command::Peer(PeerCommand::Del { primary, nids, .. }) => Op::PeerDel { primary, nids },
            Command::Stats(ShowCommand::Show) => Op::StatsShow,
            Command::Global(ShowCommand::Show) => Op::GlobalShow,
            Command::Ping(ping) => ping.into_op(false),
            Command::Discover(ping) => ping.into_op(true),
            Command::CptOfNid { nids } => Op::CptOfNid { nids },
            other @ (Command::Lnet(_) | Command::Import { .. } | Command::Export { .. }) => {
                return Err(Box::new(other));
            }
        })
    }
}
