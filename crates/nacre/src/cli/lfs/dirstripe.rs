//! The command line of `nacre lfs mkdir`, `setdirstripe` and `getdirstripe`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Default, Args)]
pub(crate) struct Setdirstripe {
    /// Number of MDTs over which the directory is striped [default: 1, not striped]
    #[arg(
        short = 'c',
        long,
        short_alias = 'T',
        value_name = "COUNT",
        allow_negative_numbers = true
    )]
    pub(crate) mdt_count: Option<i32>,
    /// As -c, and an MDT may have several stripes; -1 to -5: so many stripes on each MDT
    #[arg(
        short = 'C',
        long,
        value_name = "COUNT",
        allow_negative_numbers = true,
        conflicts_with = "mdt_count"
    )]
    pub(crate) mdt_overcount: Option<i32>,
    /// Index of the directory's MDT, or indices of its stripes' MDTs as 0,2-3; -1: by free space
    #[arg(
        short = 'i',
        long,
        alias = "index",
        value_name = "INDEX,..",
        allow_hyphen_values = true
    )]
    pub(crate) mdt_index: Option<String>,
    /// Hash function that distributes the names: all_char, fnv_1a_64, crush or crush2
    #[arg(
        short = 'H',
        long,
        short_alias = 't',
        alias = "hash-type",
        value_name = "HASH"
    )]
    pub(crate) mdt_hash: Option<String>,
    /// Permissions of the directory, an octal number [default: 777 without the umask]
    #[arg(short = 'o', long, value_name = "MODE")]
    pub(crate) mode: Option<String>,
    /// Set the default layout of an existing directory, which new subdirectories get
    #[arg(short = 'D', long)]
    pub(crate) default: bool,
    /// Delete the default layout of a directory
    #[arg(short = 'd', long, conflicts_with_all = ["mdt_count", "mdt_overcount", "mdt_index", "mdt_hash", "max_inherit", "max_inherit_rr", "mode"])]
    pub(crate) delete: bool,
    /// Levels of subdirectories that inherit the default layout; -1: all, 0: none
    #[arg(short = 'X', long, value_name = "LEVELS", allow_negative_numbers = true)]
    pub(crate) max_inherit: Option<i32>,
    /// Levels of subdirectories that take MDTs in turn while space is balanced; -1: all, 0: none
    #[arg(
        long,
        value_name = "LEVELS",
        allow_negative_numbers = true,
        requires = "default"
    )]
    pub(crate) max_inherit_rr: Option<i32>,
    /// Directories
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Getdirstripe {
    /// Only the number of stripes
    #[arg(short = 'c', long, short_alias = 'T')]
    pub(crate) mdt_count: bool,
    /// Only the index of the MDT
    #[arg(short = 'i', long, short_alias = 'm', alias = "index")]
    pub(crate) mdt_index: bool,
    /// Only the hash function
    #[arg(short = 'H', long, short_alias = 't', alias = "hash-type")]
    pub(crate) mdt_hash: bool,
    /// Only the FID
    #[arg(short = 'F', long)]
    pub(crate) fid: bool,
    /// Only the number of levels that inherit the default layout
    #[arg(short = 'X', long)]
    pub(crate) max_inherit: bool,
    /// Only the number of levels that take MDTs in turn
    #[arg(long)]
    pub(crate) max_inherit_rr: bool,
    /// Show the default layout for new subdirectories
    #[arg(short = 'D', long)]
    pub(crate) default: bool,
    /// Show only a default layout of the directory's own, not that of the file system
    #[arg(short = 'R', long)]
    pub(crate) raw: bool,
    /// Also show all directories below
    #[arg(short = 'r', long)]
    pub(crate) recursive: bool,
    /// Show the indices of MDTs in hexadecimal
    #[arg(long)]
    pub(crate) hex_idx: bool,
    /// Also show the FID and the magic of the layout
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// Print YAML
    #[arg(short = 'y', long)]
    pub(crate) yaml: bool,
    /// Directories
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
}
