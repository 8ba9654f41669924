//! The command line of `nacre bench mds-survey`: the variables of the script of that name.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct MdsSurvey {
    /// Directory in which a store is made, and removed again [default: the store is in memory]
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Threads to begin with; twice as many each time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) thrlo: u32,
    /// Threads at most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) thrhi: u32,
    /// Directories, which the threads share evenly [default: thrlo]
    #[arg(long = "dir_count", value_name = "N")]
    pub(crate) dir_count: Option<usize>,
    /// Files of all threads together
    #[arg(long = "file_count", value_name = "N", default_value_t = 100_000)]
    pub(crate) file_count: u64,
    /// Objects of each file, which no OST has
    #[arg(long = "stripe_count", value_name = "N", default_value_t = 0)]
    pub(crate) stripe_count: u16,
    /// Tests, in order: create first, destroy last
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
