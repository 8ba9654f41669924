//! The command line: all commands and options.

mod bench;
mod bench_demo;
mod ior;
mod lctl;
mod lfs;
mod lst;
mod lustre;
mod mdsrate;
mod mdtest;
mod survey;
mod tool_names;
mod top;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser, Subcommand};

pub(crate) use self::bench::{Bench, BenchCommand, Fsx, InodesBench, LnetBench, Load};
pub(crate) use self::bench_demo::{BenchDemo, DemoPage, DemoRun};
pub(crate) use self::ior::Ior;
pub(crate) use self::lctl::{Lctl, LctlCommand};
pub(crate) use self::lfs::{
    CheckKind, ComponentArgs, Df, Getdirstripe, Getname, Getstripe, Lfs, ListTargets, Setdirstripe, Setstripe,
};
pub(crate) use self::lst::{AddTest, Lst, LstNode, LstPing, LstQuery, LstStat, NewSession, UpdateGroup};
pub(crate) use self::mdsrate::Mdsrate;
pub(crate) use self::mdtest::Mdtest;
pub(crate) use self::survey::MdsSurvey;
pub(crate) use self::tool_names::{TOOLS, mount_helper};
pub(crate) use self::top::{By, Sort, Top};
use crate::cmd::decode;
use crate::cmd::lnetctl::Lnetctl;
use crate::instance::Store;
use crate::output::errln;

/// A parallel file system in user space, speaking Lustre's network protocol.
#[derive(Debug, Parser)]
#[command(name = "nacre", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the command line. After help, or an error in the command line, ends the process.
    pub(crate) fn parse_args(args: impl Iterator<Item = OsString>) -> Cli {
        let (mut args, is_inserted) = tool_names::insert_subcommand(args);
        if let Some(names) = lustre::list_commands(&args) {
            crate::output::write(format_args!("{names}"));
            std::process::exit(0);
        }
        if let Some(refusal) = lustre::refusal(&args) {
            errln!("nacre: {refusal}");
            std::process::exit(1);
        }
        lfs::rewrite_getstripe(&mut args);
        let error = match tool_names::parse(&args, is_inserted) {
            Ok(cli) => return cli,
            Err(error) => error,
        };
        // Clap would propose a subcommand with a similar name and another effect.
        if error.kind() == ErrorKind::InvalidSubcommand
            && let Some(word) = error.get(ContextKind::InvalidSubcommand)
            && let Some(answer) = lustre::unknown_subcommand(&args, &word.to_string())
        {
            errln!("nacre: {answer}");
            std::process::exit(2);
        }
        error.exit()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a complete file system in the background and mount it
    Up(Up),
    /// Show running file systems, targets and mounts
    Status(Status),
    /// Check running processes and mounts; name each problem with a remedy
    Health(Health),
    /// Print the metrics of a running process in Prometheus' text format
    Metrics(Metrics),
    /// Show the load of the targets here, by job, user, client, target or service
    Top(Top),
    /// Unmount and stop everything that `up` or `serve` started
    Down(Down),
    /// Stop a file system or a target and delete it with all its data
    Destroy(Destroy),
    /// Format a directory as a target, as mkfs.lustre does with a device
    Mkfs(Mkfs),
    /// Run the targets in the given directories
    Serve(Serve),
    /// Mount a file system
    Mount(Mount),
    /// Unmount a file system
    Umount(Umount),
    /// Show and set striping, free space and FIDs, as Lustre's lfs does
    #[command(subcommand)]
    Lfs(Lfs),
    /// Show and set parameters and devices, as Lustre's lctl does
    Lctl(Lctl),
    /// Show and change networks, routes and peers, as Lustre's lnetctl does; run routers
    Lnetctl(Lnetctl),
    /// LNet selftest: test the network between nodes, as Lustre's lst does
    #[command(subcommand)]
    Lst(Lst),
    /// Make links with the names of Lustre's tools to this binary
    InstallLinks(InstallLinks),
    /// Print the completion script of a shell
    Completions(Completions),
    /// Write the manual pages of all commands
    ManPages(ManPages),
    /// Check a stopped file system and repair it
    Fsck(Fsck),
    /// Print a packet capture of Lustre traffic in readable form
    Decode(decode::Args),
    /// Show the insides of a stopped target
    #[command(subcommand)]
    Debug(Debug),
    /// Start a file system, copy a source tree into it, verify the copy, and report measurements
    Demo(Demo),
    /// Measure and test: IOR, mdtest, mdsrate, mds-survey, fsx, LNet; a load on disk, mount and
    /// library
    Bench(Bench),
}

/// The network address and port of a process.
#[derive(Debug, Clone, Args)]
pub(crate) struct Net {
    /// Address to listen on, as a NID such as 10.0.0.1@tcp [default: for a server, the first free
    /// one from 127.0.0.1; for a client, the one that reaches the MGS]
    #[arg(long, value_name = "NID")]
    pub(crate) listen: Option<wire::Nid>,
    /// TCP port of every node of this site [default: for a client, the port of the MGS; for a
    /// server, 988 where permitted, otherwise 7988]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
}

/// Parameters that a process reads only at its start.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct StartArgs {
    /// Number of CPU partitions, or "auto" for the rule of Lustre 2.3 [default: one for each NUMA
    /// node]
    #[arg(long, value_name = "N")]
    pub(crate) cpu_npartitions: Option<String>,
    /// CPUs or NUMA nodes of each CPU partition, such as `0[0-3] 1[4-7]` or `N 0[0] 1[1]`
    #[arg(long, value_name = "PATTERN")]
    pub(crate) cpu_pattern: Option<String>,
    /// Allow CPU partitions to share CPUs if there are too few; for tests, not for speed
    #[arg(long)]
    pub(crate) force_partitions: bool,
    /// A file with lines such as "options lnet networks=tcp(eth0)", as in Lustre's /etc/modprobe.d
    #[arg(long, value_name = "FILE")]
    pub(crate) options_file: Option<PathBuf>,
    /// A start parameter under the name of Lustre's module parameter: `mds_num_cpts=[0,1]`; may be
    /// repeated; an empty value restores the default
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) param: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Directory of the file system [default: ~/.local/share/nacre/default]
    #[arg(long, value_name = "D")]
    pub(crate) dir: Option<PathBuf>,
    /// Mount point [default: D/mnt]
    #[arg(long, value_name = "M", conflicts_with = "no_mount")]
    pub(crate) mount: Option<PathBuf>,
    /// Run the servers only
    #[arg(long)]
    pub(crate) no_mount: bool,
    /// Mount options, separated by commas: ro, relatime, strictatime, noatime, nodiratime, noexec,
    /// suid, dev, user_fid2path, lazyclose, nofail
    #[arg(
        short,
        value_name = "OPTIONS",
        value_delimiter = ',',
        conflicts_with = "no_mount"
    )]
    pub(crate) options: Vec<String>,
    /// Number of metadata targets [default: unchanged, or 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) mdts: Option<u32>,
    /// Number of object storage targets [default: unchanged, or 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) osts: Option<u32>,
    /// Kind of store [default: unchanged, or local]
    #[arg(long)]
    pub(crate) store: Option<Store>,
    /// Name of a new file system, at most 8 characters [default: nacre]
    #[arg(long)]
    pub(crate) fsname: Option<String>,
    #[command(flatten)]
    pub(crate) metrics: MetricsAddr,
    #[command(flatten)]
    pub(crate) net: Net,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Stay in the foreground until a signal or `nacre down`
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Directory of the file system or of a target [default: everything that is up]
    #[arg(long, value_name = "D")]
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0: healthy, perhaps with warnings; 1: problems; 2: something could not be checked; 3: nothing is up"
)]
pub(crate) struct Health {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Metrics {
    /// Directory of the file system or of a target [default: the only running process]
    #[arg(long, value_name = "D")]
    pub(crate) dir: Option<PathBuf>,
    /// Mount point in the process
    #[arg(long, value_name = "M", conflicts_with = "dir")]
    pub(crate) mount: Option<PathBuf>,
}

/// Where a process serves its metrics.
#[derive(Debug, Args)]
pub(crate) struct MetricsAddr {
    /// Serve /metrics and /health over HTTP at IP:PORT, or at PORT of 127.0.0.1
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Down {
    /// Directory that was given to `up` or `serve` [default: ~/.local/share/nacre/default]
    #[arg(long, value_name = "D")]
    pub(crate) dir: Option<PathBuf>,
    /// Detach the mount even while it is in use
    #[arg(long, short)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Destroy {
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    /// The directory of `nacre up`, or a target directory of `nacre mkfs`
    pub(crate) dir: PathBuf,
}

/// NIDs separated by commas or, as in Lustre's lists of failover nodes, by colons.
#[derive(Debug, Clone)]
pub(crate) struct NidsArg(pub(crate) Vec<wire::Nid>);

impl std::str::FromStr for NidsArg {
    type Err = wire::WireError;

    fn from_str(text: &str) -> Result<NidsArg, wire::WireError> {
        text.split([',', ':'])
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(NidsArg)
    }
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("kind").required(true).multiple(true).args(["mgs", "mdt", "ost"]))]
pub(crate) struct Mkfs {
    /// Create a management target
    #[arg(long)]
    pub(crate) mgs: bool,
    /// Create a metadata target
    #[arg(long)]
    pub(crate) mdt: bool,
    /// Create an object target
    #[arg(long)]
    pub(crate) ost: bool,
    /// File system of the target, at most 8 characters; required for an MDT and OST
    #[arg(long)]
    pub(crate) fsname: Option<String>,
    /// Index of the target, required for an OST; the first MDT has index 0, the default of an MDT
    #[arg(long)]
    pub(crate) index: Option<u32>,
    /// Take over the index of a target whose store was lost
    #[arg(long, conflicts_with = "mgs")]
    pub(crate) replace: bool,
    /// Accepted as in mkfs.lustre, but never overwrites a target: delete it with `nacre destroy`
    /// first
    #[arg(long)]
    pub(crate) reformat: bool,
    /// NID of the MGS, or several, separated by commas or colons; required for an MDT and OST
    #[arg(long, value_name = "NID")]
    pub(crate) mgsnode: Vec<NidsArg>,
    /// NID of a node that can run this target [default: the node that runs it]
    #[arg(long, value_name = "NID")]
    pub(crate) servicenode: Vec<NidsArg>,
    /// For an MGS: nodes besides its own host that may register targets, as NIDs and ranges such as
    /// "10.0.0.[1-9]@tcp"
    #[arg(long, value_name = "NIDS", requires = "mgs")]
    pub(crate) server_nids: Option<wire::NidList>,
    /// For a target on another host than the MGS: a copy of the file `join-token` in the MGS's
    /// directory
    #[arg(long, value_name = "FILE", conflicts_with = "mgs")]
    pub(crate) token_file: Option<PathBuf>,
    /// Print nothing
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// An empty or new directory
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct InstallLinks {
    /// An existing directory, such as /usr/local/bin; mount(8) looks for its helpers in /sbin
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// An existing directory
    pub(crate) dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Directories of targets, created with `nacre mkfs`
    #[arg(required = true)]
    pub(crate) dirs: Vec<PathBuf>,
    /// Wait while another node serves the targets, and take them over when it ends or stops
    /// answering; the targets are on a store that both nodes share
    #[arg(long)]
    pub(crate) standby: bool,
    /// With --standby: take the targets over by force when their server has not answered for this
    /// time; 0: never by force
    #[arg(long, value_name = "SECONDS", default_value_t = 10, requires = "standby")]
    pub(crate) standby_timeout: u64,
    /// Take the targets over by force if another server uses them, for example one that hangs:
    /// nothing counts that it writes from now on, and it ends
    #[arg(long, conflicts_with = "standby")]
    pub(crate) takeover: bool,
    /// Time that a target waits at its first start for the MGS and the first MDT [default: 300]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) wait: Option<u64>,
    #[command(flatten)]
    pub(crate) metrics: MetricsAddr,
    #[command(flatten)]
    pub(crate) net: Net,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Stay in the foreground until a signal or `nacre down`
    #[arg(long)]
    pub(crate) foreground: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// The file system, or a directory of it: MGSNID[,MGSNID...]:/FSNAME[/SUBDIR]
    pub(crate) source: String,
    /// Mount point
    pub(crate) mountpoint: PathBuf,
    /// Mount options, separated by commas: ro, relatime, strictatime, noatime, nodiratime, noexec,
    /// suid, dev, user_fid2path, lazyclose, nofail, listen=NID, remount
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    #[command(flatten)]
    pub(crate) net: Net,
    #[command(flatten)]
    pub(crate) start: StartArgs,
    /// Stay in the foreground until a signal or `nacre umount`
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Check the arguments, but do not mount
    #[arg(short, long)]
    pub(crate) fake: bool,
    /// Ignore unknown mount options
    #[arg(short)]
    pub(crate) sloppy: bool,
    /// No effect: Nacre writes no mtab
    #[arg(short = 'n', long = "no-mtab", hide_short_help = true)]
    no_mtab: bool,
    /// Print nothing on success, as mount(8) expects of its helpers
    #[arg(short, long, overrides_with_all = ["quiet", "verbose"])]
    pub(crate) quiet: bool,
    /// As a helper of mount(8), print a message on success
    #[arg(short, long, hide_short_help = true, overrides_with_all = ["quiet", "verbose"])]
    verbose: bool,
    /// No effect: the type that mount(8) passes on
    #[arg(short = 't', value_name = "TYPE", hide_short_help = true)]
    fstype: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// Mount point
    pub(crate) mountpoint: PathBuf,
    /// Detach the mount even while it is in use
    #[arg(long, short)]
    pub(crate) lazy: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0: no errors, or all were repaired; 1: errors remain; 130: interrupted")]
pub(crate) struct Fsck {
    /// Repair errors; lost files are moved to /lost+found
    #[arg(long)]
    pub(crate) repair: bool,
    /// Also read all data, and compare it with its checksums
    #[arg(long)]
    pub(crate) data: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The directory of `nacre up`, or all target directories of one file system
    #[arg(required = true, value_name = "DIR")]
    pub(crate) dirs: Vec<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Debug {
    /// Print the changes in the journal of a target's index, a batch at a time, oldest first
    Journal {
        /// The target's directory
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Source trees to copy [default: the working directory and /usr/include]
    pub(crate) trees: Vec<PathBuf>,
    /// Number of object storage targets
    #[arg(long, default_value_t = 2)]
    pub(crate) osts: u32,
    /// Keep the file system running afterwards
    #[arg(long)]
    pub(crate) keep: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
