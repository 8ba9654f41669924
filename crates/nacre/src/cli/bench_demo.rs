//! The command line of `nacre bench demo`.

use std::path::PathBuf;

use bench::CAP_MIN;
use bench::demo::{ClientThreads, ExperimentKind, SIZES};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::bench::parse_seconds;
use crate::instance::Store;

/// The published demonstrations that `nacre bench demo` repeats.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchDemo {
    /// Partitioned servers: LNet selftest, metadata by client threads, and the division of
    /// partitions
    Smp(DemoRun),
    /// Parallel directory operations on and off: mknod, create, unlink in a shared directory and in
    /// one for each thread
    Pdo(DemoRun),
    /// A name space over several metadata targets: mknod, create, stat and unlink on 1 to 4
    /// metadata servers with limited CPU time
    Dne(DemoRun),
    /// Write the page of an earlier run again, from its CSV file
    Page(DemoPage),
}

#[derive(Debug, Args)]
pub(crate) struct DemoRun {
    /// Size of the run: a few seconds (tiny), minutes (small), an hour or two (medium), or the
    /// full published range (report)
    #[arg(long, value_name = "SIZE", default_value = "small", value_parser = PossibleValuesParser::new(SIZES))]
    pub(crate) size: String,
    /// Directory for the servers' data, on the disk to measure; everything is removed again
    /// [default: the temporary directory]
    #[arg(long, value_name = "D")]
    pub(crate) dir: Option<PathBuf>,
    /// Kind of store
    #[arg(long, default_value = "local")]
    pub(crate) store: Store,
    /// Number of OSTs of each file system, which limits the stripe count
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) osts: u32,
    /// Only these experiments: lnet-clients, lnet-in-flight, mdtest, mounts, cpt; pdo; dne-1, dne-2
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',', value_parser = parse_experiment)]
    pub(crate) only: Vec<ExperimentKind>,
    /// Number of repetitions [default: from the size]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: Option<u32>,
    /// Seconds of each measurement of LNet [default: from the size]
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,
    /// Total number of files of all client threads [default: from the size]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    pub(crate) files: Option<u32>,
    /// Numbers of client nodes and threads of each, such as 1x4,4x16 [default: from the size]
    #[arg(long, value_name = "CxT", value_delimiter = ',')]
    pub(crate) crowds: Vec<ClientThreads>,
    /// Stripe counts of the files [default: from the size]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) stripes: Vec<u16>,
    /// Include configurations with more partitions than CPUs; their results are marked, since the
    /// partitions share CPUs
    #[arg(long)]
    pub(crate) force_partitions: bool,
    /// CPUs that each metadata server of dne may use
    #[arg(long, value_name = "N", default_value_t = 0.15, value_parser = parse_cpus)]
    pub(crate) mds_cpus: f64,
    /// Output file for every row of every run [default: demo-smp.csv for smp, with a number if that
    /// file exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Output file for the page [default: demo-smp.html for smp, with a number if that file exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
    /// Print the rows as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DemoPage {
    /// CSV file with the rows of an earlier run
    #[arg(value_name = "CSV")]
    pub(crate) csv: PathBuf,
    /// Output file for the page [default: the name of the CSV file with .html]
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
}

fn parse_experiment(name: &str) -> Result<ExperimentKind, String> {
    ExperimentKind::named(name).ok_or_else(|| {
        "expected lnet-clients, lnet-in-flight, mdtest, mounts, cpt, pdo, dne-1 or dne-2".to_owned()
    })
}

fn parse_cpus(text: &str) -> Result<f64, String> {
    let cpus = text
        .parse()
        .ok()
        .filter(|cpus: &f64| (CAP_MIN..=1024.0).contains(cpus));
    cpus.ok_or_else(|| format!("expected a number of CPUs of at least {CAP_MIN}"))
}

#[cfg(test)]
mod tests {
    use super::parse_cpus;

    #[test]
    fn cpus_of_a_server_are_not_below_the_kernels_limit() {
        assert_eq!(parse_cpus("0.1"), Ok(0.1));
        for bad in ["0.09", "0", "-1", "nan", "x", "2000"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }
}
