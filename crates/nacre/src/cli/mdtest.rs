//! The command line of `nacre bench mdtest`, with mdtest's options.

use std::path::PathBuf;

use clap::Args;

use super::bench::Load;

#[derive(Debug, Args)]
pub(crate) struct Mdtest {
    /// Test directory, created if necessary; several, separated by @, are assigned to the tasks in
    /// turn
    #[arg(short = 'd', value_name = "DIR[@DIR..]", default_value = "./out")]
    pub(crate) dirs: String,
    /// Items that each task creates, stats, reads and removes
    #[arg(short = 'n', value_name = "N", default_value_t = 0)]
    pub(crate) items: u64,
    /// Items of each task in each directory of the tree
    #[arg(short = 'I', value_name = "N", default_value_t = 0)]
    pub(crate) items_per_dir: u64,
    /// Number of iterations
    #[arg(short = 'i', value_name = "N", default_value_t = 1)]
    pub(crate) iterations: usize,
    /// Repeat for this time instead of -i iterations
    #[arg(long, value_name = "SECONDS", conflicts_with = "iterations", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// Branching factor of the tree of directories
    #[arg(short = 'b', value_name = "N", default_value_t = 1)]
    pub(crate) branch_factor: u64,
    /// Depth of the tree of directories
    #[arg(short = 'z', value_name = "N", default_value_t = 0)]
    pub(crate) depth: u32,
    /// Create items only in the leaf directories of the tree
    #[arg(short = 'L')]
    pub(crate) leaf_only: bool,
    /// Use a separate tree for each task
    #[arg(short = 'u')]
    pub(crate) unique_dir_per_task: bool,
    /// Include the time to resolve the paths of the trees
    #[arg(short = 't')]
    pub(crate) time_unique_dir_overhead: bool,
    /// Only directories, no files
    #[arg(short = 'D')]
    pub(crate) dirs_only: bool,
    /// Only files, no directories
    #[arg(short = 'F')]
    pub(crate) files_only: bool,
    /// Only create
    #[arg(short = 'C')]
    pub(crate) create_only: bool,
    /// Only stat
    #[arg(short = 'T')]
    pub(crate) stat_only: bool,
    /// Only read
    #[arg(short = 'E')]
    pub(crate) read_only: bool,
    /// Only rename (directories)
    #[arg(short = 'U')]
    pub(crate) rename_only: bool,
    /// Only remove the items of earlier runs
    #[arg(short = 'r')]
    pub(crate) remove_only: bool,
    /// Bytes to write into each file
    #[arg(short = 'w', value_name = "BYTES", default_value_t = 0)]
    pub(crate) write_bytes: usize,
    /// Bytes to read from each file
    #[arg(short = 'e', value_name = "BYTES", default_value_t = 0)]
    pub(crate) read_bytes: usize,
    /// Sync each file after writing
    #[arg(short = 'y')]
    pub(crate) sync_file: bool,
    /// Call sync at the end of each phase; the phase's time includes it
    #[arg(short = 'Y')]
    pub(crate) call_sync: bool,
    /// Verify every byte that is read
    #[arg(short = 'X', long)]
    pub(crate) verify_read: bool,
    /// Read each file again after writing
    #[arg(long)]
    pub(crate) verify_write: bool,
    /// Create files with mknod
    #[arg(short = 'k')]
    pub(crate) make_node: bool,
    /// Task 0 creates and removes for all
    #[arg(short = 'c')]
    pub(crate) collective_creates: bool,
    /// All tasks use the same files
    #[arg(short = 'S')]
    pub(crate) shared_file: bool,
    /// After each phase, let each task go on with the items of the task this many ranks further, to
    /// bypass the client's cache
    #[arg(short = 'N', value_name = "STRIDE", default_value_t = 0)]
    pub(crate) stride: usize,
    /// Stat and read in random order
    #[arg(short = 'R')]
    pub(crate) random: bool,
    /// Seed of the random order
    #[arg(long, value_name = "SEED")]
    pub(crate) random_seed: Option<u64>,
    /// Create files for this time; then the slower tasks go on until they have as many files as the
    /// fastest task
    #[arg(short = 'W', value_name = "SECONDS", default_value_t = 0)]
    pub(crate) stonewall_seconds: u64,
    /// Save the number of files that -W created in this file, for a later run without a create
    /// phase
    #[arg(short = 'x', value_name = "FILE")]
    pub(crate) stonewall_file: Option<PathBuf>,
    /// Pause before each test
    #[arg(short = 'p', value_name = "SECONDS", default_value_t = 0)]
    pub(crate) pre_delay_seconds: u64,
    /// First number of tasks to run with
    #[arg(short = 'f', value_name = "TASKS", requires = "last")]
    pub(crate) first: Option<usize>,
    /// Last number of tasks to run with
    #[arg(short = 'l', value_name = "TASKS")]
    pub(crate) last: Option<usize>,
    /// Step between numbers of tasks
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    pub(crate) step: usize,
    /// Print times instead of rates
    #[arg(short = 'Z')]
    pub(crate) print_time: bool,
    /// Print rates and times
    #[arg(short = 'P')]
    pub(crate) print_rate_and_time: bool,
    /// Print the result of each task
    #[arg(long)]
    pub(crate) print_all_procs: bool,
    /// Also print the maximum, minimum and mean over tasks
    #[arg(long = "showRankStatistics")]
    pub(crate) show_rank_statistics: bool,
    /// Stripe count of new files [default: from the directory]
    #[arg(long, value_name = "N")]
    pub(crate) stripes: Option<u16>,
    #[command(flatten)]
    pub(crate) load: Load,
}
