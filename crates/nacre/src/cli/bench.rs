//! The command line of `nacre bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Net;
use super::bench_demo::BenchDemo;
use super::mdsrate::Mdsrate;
use super::mdtest::Mdtest;
use super::survey::MdsSurvey;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) exercise: Option<Exercise>,
    /// Where to measure: a directory of the disk that is meant; everything made there is removed again
    #[arg(long, value_name = "D", required = true)]
    pub(crate) dir: Option<PathBuf>,
    /// Tasks (threads) of the metadata load, each in a directory of its own; one load after the other
    #[arg(long, visible_alias = "threads", value_name = "N", value_delimiter = ',', default_value = "2", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) tasks: Vec<u32>,
    /// The same loads also in one directory that all tasks share
    #[arg(long)]
    pub(crate) shared: bool,
    /// What is measured [default: create, stat, unlink, write, read]; what it stands on is done all the same
    #[arg(long, value_name = "PHASE", value_delimiter = ',')]
    pub(crate) only: Vec<bench::Phase>,
    /// Files that each task creates, stats and unlinks
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: u32,
    /// Megabytes of the file that is written and read
    #[arg(long, default_value_t = 512)]
    pub(crate) megabytes: u64,
    /// Number of object storage targets
    #[arg(long, default_value_t = 2)]
    pub(crate) osts: u32,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Write every figure of every run to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print the summaries as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tools with a load of their own.
#[derive(Debug, Subcommand)]
pub(crate) enum Exercise {
    /// Repeat the published demonstrations at the size given, on servers of their own, and write rows and a page
    #[command(subcommand)]
    Demo(BenchDemo),
    /// Do random operations on one file, through several mounts in turn, and compare it with memory after each
    Fsx(Fsx),
    /// Measure the memory of each inode that the MDT keeps, and rates when it keeps all or a tenth of them
    Inodes(InodesBench),
    /// Measure LNet alone: pings and bulk of LNet selftest between many clients and one server, beside bare TCP
    Lnet(Box<LnetBench>),
    /// Create, stat, read and remove directories and files by several tasks, as mdtest does
    Mdtest(Box<Mdtest>),
    /// Do one operation on many files by several tasks, as mdsrate does
    Mdsrate(Box<Mdsrate>),
    /// Measure what one metadata target's own stack can do, without network and requests, as mds-survey does
    MdsSurvey(MdsSurvey),
}

/// Tasks that do the same at once. Under mpirun, each process has so many of them.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) np: u32,
    /// Not through a mount, but by clients in this process: MGSNID[,MGSNID...]:/FSNAME; paths are then from its root
    #[arg(long, value_name = "SOURCE")]
    pub(crate) mgs: Option<String>,
    /// With --mgs: how many clients the tasks share [default: one for each task]
    #[arg(long, value_name = "N", requires = "mgs", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) mounts: Option<u32>,
    /// A process whose CPU time and memory count too, such as the server's; again or with commas for more
    #[arg(long = "pid", value_name = "PID", value_delimiter = ',')]
    pub(crate) pids: Vec<u32>,
    /// Under mpirun on several machines: a directory that all see, where the processes find each other
    #[arg(long, value_name = "DIR")]
    pub(crate) meet: Option<PathBuf>,
    /// Tell rate and memory of N equal windows of the time of each operation, too
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) windows: u32,
    /// Write every figure to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print every figure as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) net: Net,
}

#[derive(Debug, Args)]
pub(crate) struct Fsx {
    /// The file, emptied first: a path for each mount that shows it
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Chooses the operations
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// How many operations
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) ops: u32,
    /// With direct I/O
    #[arg(long)]
    pub(crate) direct: bool,
    /// Also through mappings of the file
    #[arg(long)]
    pub(crate) mmap: bool,
    /// How large the file may get, in KiB
    #[arg(long, value_name = "KIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    pub(crate) size: u64,
}

#[derive(Debug, Args)]
pub(crate) struct InodesBench {
    /// Where the file system is made: a directory of the disk that is meant; all is removed again
    #[arg(long, value_name = "D")]
    pub(crate) dir: PathBuf,
    /// Files, all in one directory
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    pub(crate) files: u64,
    /// Tasks (threads) of the client
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) tasks: u32,
    /// Print the figures as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LnetBench {
    /// How many clients, each a node at an address of its own
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) clients: Vec<u32>,
    /// Requests in flight of each client
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) concurrency: Vec<u32>,
    /// Seconds of each measurement
    #[arg(long, value_name = "S", default_value_t = 0.4)]
    pub(crate) seconds: f64,
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Clients with 64 requests in flight each against a server in a process of its own; 0: not
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=200))]
    pub(crate) crowd: u32,
    /// Measure with portal_rotor off and on
    #[arg(long)]
    pub(crate) rotor: bool,
    /// First of the loopback addresses of the nodes
    #[arg(long, value_name = "ADDRESS", default_value = "127.88.0.1")]
    pub(crate) base: std::net::Ipv4Addr,
    /// TCP port of all nodes
    #[arg(long, default_value_t = 7988)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) start: super::StartArgs,
    /// Write every figure of every run to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print the summaries as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
