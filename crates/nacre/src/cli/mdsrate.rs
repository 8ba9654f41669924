//! The command line of `nacre bench mdsrate`, with mdsrate's options.

use clap::{ArgGroup, Args};

use super::bench::Load;

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("mode").required(true).args(["create", "mknod", "open", "lookup", "stat", "unlink", "setxattr"]).multiple(true))]
pub(crate) struct Mdsrate {
    /// Create files by opening them
    #[arg(long, group = "one")]
    pub(crate) create: bool,
    /// Create files without opening them
    #[arg(long, group = "one")]
    pub(crate) mknod: bool,
    /// Open and close existing files
    #[arg(long, group = "one")]
    pub(crate) open: bool,
    /// Look names up
    #[arg(long, group = "one")]
    pub(crate) lookup: bool,
    /// Read attributes
    #[arg(long, group = "one")]
    pub(crate) stat: bool,
    /// Remove files
    #[arg(long, group = "one")]
    pub(crate) unlink: bool,
    /// Set an extended attribute; with --create or --mknod, on each new file
    #[arg(long)]
    pub(crate) setxattr: bool,
    /// Directories of the tasks, with %d for the directory's number [default: the working
    /// directory]
    #[arg(long, visible_alias = "dir", value_name = "FORMAT")]
    pub(crate) dirfmt: Option<String>,
    /// Number of directories
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ndirs: usize,
    /// Mount points that contain the directories, with %d for the mount's number
    #[arg(long, value_name = "FORMAT", requires = "mntcount")]
    pub(crate) mntfmt: Option<String>,
    /// Number of mounts; the tasks are divided evenly among them; with --mgs, number of clients
    #[arg(long, value_name = "N")]
    pub(crate) mntcount: Option<u32>,
    /// Number of MDTs on which the directories are created in turn [default: as mkdir chooses]
    #[arg(long, value_name = "N")]
    pub(crate) mdtcount: Option<u32>,
    /// Names of files, with %d for the task's number and %%d for the file's
    #[arg(long, value_name = "FORMAT", default_value = "f%%d")]
    pub(crate) filefmt: String,
    /// Number of the first file
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) begin: u64,
    /// Files in each directory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) nfiles: Option<u64>,
    /// Number of opens or lookups of each task
    #[arg(long, value_name = "N")]
    pub(crate) iters: Option<u64>,
    /// Time limit in seconds
    #[arg(long, value_name = "SECONDS")]
    pub(crate) time: Option<u64>,
    /// Stripe count of new files; 0: objects are created at the first write [default: from the
    /// directory]
    #[arg(long, short = 'c', value_name = "N")]
    pub(crate) stripes: Option<u16>,
    /// Allow --create and --mknod to find existing files
    #[arg(long)]
    pub(crate) noexcl: bool,
    /// Write 4000 bytes into each created file
    #[arg(long)]
    pub(crate) smallwrite: bool,
    /// Create missing files before unlinking, and all files again after unlinking them
    #[arg(long)]
    pub(crate) recreate: bool,
    /// Skip missing files instead of creating them first
    #[arg(long)]
    pub(crate) ignore: bool,
    /// Open or look up in random order (the default)
    #[arg(long = "random_order", conflicts_with = "readdir_order")]
    pub(crate) random_order: bool,
    /// Open or look up in the order of readdir
    #[arg(long = "readdir_order")]
    pub(crate) readdir_order: bool,
    /// Seed of the random order
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) load: Load,
}
