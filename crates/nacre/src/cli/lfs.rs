//! The command line of `nacre lfs`, with the options of Lustre's lfs.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Lfs {
    /// Create a file with a layout, or set the default layout of a directory
    Setstripe {
        /// Number of OSTs to stripe over; -1 for all
        #[arg(short = 'c', long, allow_negative_numbers = true)]
        stripe_count: Option<i32>,
        /// Bytes on one OST before the next; the suffixes K, M and G are accepted
        #[arg(short = 'S', long)]
        stripe_size: Option<String>,
        /// First OST; -1 for any
        #[arg(short = 'i', long, allow_negative_numbers = true)]
        stripe_index: Option<i32>,
        /// Delete the default layout of a directory
        #[arg(short = 'd', long)]
        delete: bool,
        /// Files to create, or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show the striping of files
    Getstripe {
        /// Only the stripe count
        #[arg(short = 'c', long)]
        stripe_count: bool,
        /// Only the stripe size
        #[arg(short = 'S', long)]
        stripe_size: bool,
        /// Only the index of the first OST
        #[arg(short = 'i', long)]
        stripe_index: bool,
        /// Show directories themselves, not their contents
        #[arg(short = 'd', long)]
        directory: bool,
        /// Files or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show the free space of every target
    #[command(disable_help_flag = true)]
    Df {
        /// Show inodes instead of bytes
        #[arg(short = 'i', long)]
        inodes: bool,
        /// Show sizes with units
        #[arg(short = 'h', long)]
        human: bool,
        /// A mount point or a path below it [default: every mount]
        path: Option<PathBuf>,
        /// Print help
        #[arg(long, action = clap::ArgAction::Help)]
        help: Option<bool>,
    },
    /// Show the FIDs of files
    Path2fid {
        /// Show the names of each file, as the FID of its directory and the name
        #[arg(long)]
        parents: bool,
        /// Files or directories
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show the paths of files by their FIDs or the FIDs of their objects on OSTs
    Fid2path {
        /// A mount point or a path below it
        path: PathBuf,
        /// FIDs such as `[0x200000401:0x1:0x0]`
        #[arg(required = true)]
        fids: Vec<String>,
    },
    /// Remove files and empty directories by their FIDs, with all their names
    Rmfid {
        /// A mount point or a path below it
        path: PathBuf,
        /// FIDs such as `[0x200000401:0x1:0x0]`
        #[arg(required = true)]
        fids: Vec<String>,
    },
    /// Remove directory entries of lost files
    #[command(name = "rm_entry", alias = "rmentry")]
    RmEntry {
        /// Paths of the entries
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}
