//! The command line of `nacre lctl`, with the options of Lustre's lctl.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct Lctl {
    /// Use the process that serves this directory
    #[arg(long, value_name = "D", global = true)]
    pub(crate) dir: Option<PathBuf>,
    /// Use the process of this mount
    #[arg(long, value_name = "M", global = true, conflicts_with = "dir")]
    pub(crate) mount: Option<PathBuf>,
    /// Use this device, by its name or its number in `lctl dl`
    #[arg(long, value_name = "DEVICE", global = true)]
    pub(crate) device: Option<String>,
    #[command(subcommand)]
    pub(crate) command: LctlCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LctlCommand {
    /// Show the values of parameters
    #[command(name = "get_param")]
    GetParam {
        /// Show only values
        #[arg(short = 'n', long = "no-name")]
        values_only: bool,
        /// Show only names
        #[arg(short = 'N', long = "only-name")]
        names_only: bool,
        /// Include all levels below
        #[arg(short = 'R', long)]
        recursive: bool,
        /// Show the name before each line of a value
        #[arg(short = 'H', long)]
        header: bool,
        /// Print YAML
        #[arg(short, long)]
        yaml: bool,
        /// Names; * and ? match within one component
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    /// Set parameters
    #[command(name = "set_param")]
    SetParam {
        /// Set the parameters permanently on every node: the MGS keeps them in its configuration
        /// log
        #[arg(short = 'P')]
        permanent: bool,
        /// Delete a permanent parameter
        #[arg(short = 'd', requires = "permanent")]
        delete: bool,
        /// Show only values
        #[arg(short = 'n')]
        values_only: bool,
        /// NAME=VALUE
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// Show the names of parameters
    #[command(name = "list_param")]
    ListParam {
        /// Mark levels with / and settable parameters with =
        #[arg(short = 'F')]
        classify: bool,
        /// Include all levels below
        #[arg(short = 'R')]
        recursive: bool,
        /// Names; * and ? match within one component
        #[arg(default_value = "*")]
        patterns: Vec<String>,
    },
    /// Show descriptions of parameters
    #[command(name = "help_param")]
    HelpParam {
        /// Names; * and ? match within one component
        #[arg(required = true)]
        patterns: Vec<String>,
    },
    #[command(flatten)]
    Nodemap(crate::cmd::nodemap::NodemapChange),
    /// Query the NIDs of a node over LNet
    Ping {
        /// The node
        nid: wire::Nid,
        /// Seconds to wait
        #[arg(default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
        timeout: u64,
    },
    /// List the devices of a process: targets, imports and parts of mounts
    #[command(name = "dl", visible_alias = "device_list")]
    Dl {
        /// Also show the NID of each import's target
        #[arg(short, long)]
        target: bool,
        /// Print YAML
        #[arg(short, long)]
        yaml: bool,
    },
    /// End the recovery of the target `--device`: evict the clients that have not recovered
    #[command(name = "abort_recovery", visible_alias = "abort_recovery_mdt")]
    AbortRecovery,
    /// Report no later change of the target `--device` as committed, for tests of recovery
    #[command(name = "notransno")]
    Notransno,
    /// Keep later changes of the target `--device` in memory only, for tests of recovery
    #[command(name = "readonly")]
    Readonly,
    /// List the NIDs of the process
    #[command(name = "list_nids")]
    ListNids,
}
