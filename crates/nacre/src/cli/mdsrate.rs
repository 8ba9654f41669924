//! The command line of `nacre bench mdsrate`: mdsrate's words.

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
    /// Open and close files that are there
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
    /// Set an extended attribute; with --create or --mknod, of each file as it is made
    #[arg(long)]
    pub(crate) setxattr: bool,
    /// Directories of the tasks, in which %d is the directory's number [default: the working directory]
    #[arg(long, visible_alias = "dir", value_name = "FORMAT")]
    pub(crate) dirfmt: Option<String>,
    /// Number of directories
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) ndirs: usize,
    /// Mount points, in which %d is the mount's number; the directories are below them
    #[arg(long, value_name = "FORMAT", requires = "mntcount")]
    pub(crate) mntfmt: Option<String>,
    /// Number of mounts, each for as many tasks; with --mgs, of clients
    #[arg(long, value_name = "N")]
    pub(crate) mntcount: Option<u32>,
    /// Metadata targets that the directories are spread over
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) mdtcount: u32,
    /// Names of files, in which %d is the task's number and %%d the file's
    #[arg(long, value_name = "FORMAT", default_value = "f%%d")]
    pub(crate) filefmt: String,
    /// Number of the first file
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) begin: u64,
    /// Files in each directory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) nfiles: Option<u64>,
    /// How often each task opens or looks up
    #[arg(long, value_name = "N")]
    pub(crate) iters: Option<u64>,
    /// Seconds after which it ends
    #[arg(long, value_name = "SECONDS")]
    pub(crate) time: Option<u64>,
    /// Stripes of new files; with 0 they get their objects when they are first written [default: as the directory says]
    #[arg(long, short = 'c', value_name = "N")]
    pub(crate) stripes: Option<u16>,
    /// Files that are created may be there already
    #[arg(long)]
    pub(crate) noexcl: bool,
    /// Write 4000 bytes into each file that is created
    #[arg(long)]
    pub(crate) smallwrite: bool,
    /// Make what was unlinked again, afterwards
    #[arg(long)]
    pub(crate) recreate: bool,
    /// Pass over files that are not there, and do not make them first
    #[arg(long)]
    pub(crate) ignore: bool,
    /// Open or look up in random order (that is so anyway)
    #[arg(long = "random_order", conflicts_with = "readdir_order")]
    pub(crate) random_order: bool,
    /// Open or look up in the order of the directory
    #[arg(long = "readdir_order")]
    pub(crate) readdir_order: bool,
    /// Chooses the random order
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) load: Load,
}
