//! The command line of `nacre bench mds-survey`: the variables of Lustre's mds-survey script.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct MdsSurvey {
    /// Directory for a temporary store [default: the store is in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Initial number of threads, doubled for each further run
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) thrlo: u32,
    /// Maximum number of threads
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) thrhi: u32,
    /// Number of directories, assigned to the threads in turn [default: thrlo]
    #[arg(long = "dir_count", value_name = "N")]
    pub(crate) dir_count: Option<usize>,
    /// Total number of files
    #[arg(long = "file_count", value_name = "N", default_value_t = 100_000)]
    pub(crate) file_count: u64,
    /// Number of objects in the layout of each file; no OST stores them
    #[arg(long = "stripe_count", value_name = "N", default_value_t = 0)]
    pub(crate) stripe_count: u16,
    /// Tests in order, beginning with create and ending with destroy
    #[arg(
        long = "tests_str",
        value_name = "TESTS",
        default_value = "create lookup md_getattr setxattr destroy"
    )]
    pub(crate) tests_str: String,
    /// Number of the first file
    #[arg(long = "start_number", value_name = "N", default_value_t = 2)]
    pub(crate) start_number: u64,
    /// Write every figure to this file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print every figure as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
