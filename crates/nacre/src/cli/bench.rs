//! The command line of `nacre bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Net;
use super::bench_demo::BenchDemo;
use super::ior::Ior;
use super::mdsrate::Mdsrate;
use super::mdtest::Mdtest;
use super::survey::MdsSurvey;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// Directory on the disk to measure; everything created in it is removed again
    #[arg(long, value_name = "D", required = true)]
    pub(crate) dir: Option<PathBuf>,
    /// Tasks (threads) of the metadata load, each in its own directory; with several values, the
    /// loads run one after the other
    #[arg(long, visible_alias = "threads", value_name = "N", value_delimiter = ',', default_value = "2", value_parser = clap::value_parser!(u32).range(1..=512))]
    pub(crate) tasks: Vec<u32>,
    /// Also run each load with all tasks in one shared directory
    #[arg(long)]
    pub(crate) shared: bool,
    /// Phases to report [default: create, stat, unlink, write, read]; phases that they depend on
    /// run as well
    #[arg(long, value_name = "PHASE", value_delimiter = ',')]
    pub(crate) only: Vec<bench::Phase>,
    /// Files that each task creates, stats and unlinks
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: u32,
    /// Size of the file to write and read, in MiB
    #[arg(long, default_value_t = 512)]
    pub(crate) megabytes: u64,
    /// Number of object storage targets
    #[arg(long, default_value_t = 2)]
    pub(crate) osts: u32,
    /// Number of repetitions
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Write every figure of every run to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print the summaries as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Benchmarks with their own load.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Repeat the published demonstrations at the given size on temporary servers; write rows and a
    /// page
    #[command(subcommand)]
    Demo(BenchDemo),
    /// Do random operations on one file through several mounts in turn, and compare it with a copy
    /// in memory after each
    Fsx(Fsx),
    /// Measure the MDT's memory for each cached inode, and its rates with all or a tenth of the
    /// inodes cached
    Inodes(InodesBench),
    /// Write and read large pieces of one file, or of a file for each of several tasks, as IOR does
    Ior(Box<Ior>),
    /// Measure LNet alone: pings and bulk of LNet selftest between many clients and one server, in
    /// turn with plain TCP
    Lnet(Box<LnetBench>),
    /// Create, stat, read and remove directories and files with several tasks, as mdtest does
    Mdtest(Box<Mdtest>),
    /// Do one operation on many files with several tasks, as mdsrate does
    Mdsrate(Box<Mdsrate>),
    /// Measure the name space of one metadata target without network or requests, as mds-survey
    /// does
    MdsSurvey(MdsSurvey),
}

/// Options of benchmarks with concurrent tasks. Under mpirun, each process has `np` tasks.
#[derive(Debug, Args)]
pub(crate) struct Load {
    /// Number of tasks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) np: u32,
    /// Use clients in this process instead of a mount: MGSNID[,MGSNID...]:/FSNAME; paths then start
    /// at the root of that file system
    #[arg(long, value_name = "SOURCE")]
    pub(crate) mgs: Option<String>,
    /// With --mgs: number of clients that the tasks share [default: one for each task]
    #[arg(long, value_name = "N", requires = "mgs", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) mounts: Option<u32>,
    /// Process id of another process whose CPU time and memory are included, such as a server; may
    /// be repeated or separated by commas
    #[arg(long = "pid", value_name = "PID", value_delimiter = ',')]
    pub(crate) pids: Vec<u32>,
    /// Under mpirun on several machines: a shared directory through which the processes find each
    /// other
    #[arg(long, value_name = "DIR")]
    pub(crate) meet: Option<PathBuf>,
    /// Also report rate and memory in N equal time windows of each operation
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
    /// The file, truncated first: one path for each mount
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,
    /// Seed of the random operations
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Number of operations
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) ops: u32,
    /// Use direct I/O
    #[arg(long)]
    pub(crate) direct: bool,
    /// Also use memory mappings of the file
    #[arg(long)]
    pub(crate) mmap: bool,
    /// Maximum file size in KiB
    #[arg(long, value_name = "KIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    pub(crate) size: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InodesBench {
    /// Directory on the disk to measure, for a temporary file system
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
    /// Number of clients, each an LNet node with its own address
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 16], value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) clients: Vec<u32>,
    /// Requests in flight of each client
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 64], value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) concurrency: Vec<u32>,
    /// Seconds of each measurement, from 0.05 to 3600
    #[arg(long, value_name = "S", default_value_t = 0.4, value_parser = parse_seconds)]
    pub(crate) seconds: f64,
    /// Number of repetitions
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Number of clients, with 64 requests in flight each, against a server in another process; 0:
    /// skip this measurement
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=200))]
    pub(crate) crowd: u32,
    /// Measure with portal_rotor off and on
    #[arg(long)]
    pub(crate) rotor: bool,
    /// First loopback address of the nodes
    #[arg(long, value_name = "ADDRESS", default_value = "127.88.0.1")]
    pub(crate) base: std::net::Ipv4Addr,
    /// TCP port of all nodes
    #[arg(long, default_value_t = 7988, value_parser = clap::value_parser!(u16).range(1..))]
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

/// Parses the duration of a measurement of LNet, in seconds.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds from 0.05 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_seconds;

    #[test]
    fn duration_of_a_measurement_is_limited() {
        assert_eq!(parse_seconds("0.05"), Ok(0.05));
        for bad in ["0.01", "3601", "-1", "nan", "x"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
