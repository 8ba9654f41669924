//! The command line of `nacre lfs`, with the options of Lustre's lfs.

mod dirstripe;
mod setstripe;

pub(crate) use self::dirstripe::{Getdirstripe, Setdirstripe};
pub(crate) use self::setstripe::{ComponentArgs, Setstripe};

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum Lfs {
    /// Create a file with a layout, or set the default layout of a directory
    Setstripe(Setstripe),
    /// Show the striping of files
    Getstripe(Box<Getstripe>),
    /// Create directories on chosen MDTs, or striped over several
    Mkdir(Setdirstripe),
    /// Create directories on chosen MDTs, or set the default layout of directories
    Setdirstripe(Setdirstripe),
    /// Show the layouts of directories
    Getdirstripe(Getdirstripe),
    /// Find files by their attributes and layouts
    #[command(after_help = FIND_TESTS, override_usage = "nacre lfs find PATH.. [TEST..]")]
    Find {
        /// Files and directories, then tests
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// List the OSTs of a mount
    Osts(ListTargets),
    /// List the MDTs of a mount
    Mdts(ListTargets),
    /// Show the connections of a mount to its servers
    Check {
        /// Kind of servers
        kind: CheckKind,
        #[command(flatten)]
        list: ListTargets,
    },
    /// Show the name and instance of each mount
    Getname(Getname),
    /// Show the free space of every target
    #[command(disable_help_flag = true)]
    Df(Df),
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
    /// Remove files with foreign layouts
    #[command(name = "unlink_foreign")]
    UnlinkForeign {
        /// Paths of the files
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Remove directory entries of lost files
    #[command(name = "rm_entry", alias = "rmentry")]
    RmEntry {
        /// Paths of the entries
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
}

const FIND_TESTS: &str = "\
Tests; `!` before a test negates it, + or - before N means more or less than N:
  -name PATTERN, -type b|c|d|f|l|p|s, -size [+-]N[ckMGTPE], -blocks [+-]N[ckMGTPE],
  -atime, -ctime, -mtime [+-]N[smhdwy], -newer FILE, -user NAME|UID, -group NAME|GID,
  -links [+-]N, -perm [/-]MODE, -maxdepth N, -mindepth N,
  -stripe-count [+-]N, -stripe-size [+-]N[kMG], -stripe-index N,.., -ost INDEX|NAME,..,
  -pool NAME, -projid N, -foreign, -foreign=TYPE
Names of users and groups are those in /etc/passwd and /etc/group only.
Output (times in UTC): -print (default), -print0, -ls, -printf FORMAT with \\n \\t \\0 \\\\ %% and
  %p path, %s size, %b 512-byte blocks, %k KiB, %y type, %m mode, %n links, %U user id, %G group id,
  %a %c %t times of access, change, modification; %A@ %C@ %T@ the same in seconds since 1970,
  %LF FID, %LP project, %Lc stripe count, %LS stripe size, %Li first OST, %Lo all OSTs, %Lp pool";

/// Rewrites the arguments of `lfs getstripe` that clap does not parse: values that follow `-I` and
/// `-E` without a space, and `!` before `--mirror-id` and `--mirror-index`.
pub(super) fn rewrite_getstripe(args: &mut Vec<OsString>) {
    let is_called = |(at, word): (usize, &str)| args.get(at).is_some_and(|arg| arg == word);
    if ![(1, "lfs"), (2, "getstripe")].into_iter().all(is_called) {
        return;
    }
    let mut rewritten: Vec<OsString> = args.drain(..3).collect();
    let mut is_option = true;
    let mut rest = args.drain(..).peekable();
    while let Some(arg) = rest.next() {
        is_option &= arg != "--";
        let text = if is_option {
            arg.to_str().unwrap_or_default()
        } else {
            ""
        };
        let negated = rest.peek().and_then(|next| next.to_str()).and_then(|next| {
            let (name, value) = next.split_once('=')?;
            let is_mirror = ["--mirror-id", "--mirror-index"].contains(&name);
            (text == "!" && is_mirror).then(|| format!("{name}=!{value}"))
        });
        let attached = [("-I", "--component-id"), ("-E", "--component-end")]
            .into_iter()
            .find_map(|(short, long)| match text.strip_prefix(short)? {
                "" => None,
                value => Some(format!("{long}={}", value.trim_start_matches('='))),
            });
        match (negated, attached) {
            (Some(negated), _) => {
                rest.next();
                rewritten.push(negated.into());
            }
            (None, Some(attached)) => rewritten.push(attached.into()),
            (None, None) => rewritten.push(arg),
        }
    }
    drop(rest);
    *args = rewritten;
}

#[derive(Debug, Args)]
pub(crate) struct Getstripe {
    /// Only the stripe count
    #[arg(short = 'c', long)]
    pub(crate) stripe_count: bool,
    /// Only the stripe size
    #[arg(short = 'S', long)]
    pub(crate) stripe_size: bool,
    /// Only the index of the first OST
    #[arg(short = 'i', long)]
    pub(crate) stripe_index: bool,
    /// Only the pattern
    #[arg(short = 'L', long)]
    pub(crate) layout: bool,
    /// Only the generation of the layout
    #[arg(short, long)]
    pub(crate) generation: bool,
    /// Only the OST pool
    #[arg(short, long)]
    pub(crate) pool: bool,
    /// Only the FID
    #[arg(short = 'F', long)]
    pub(crate) fid: bool,
    /// Only the number of mirrors
    #[arg(short = 'N', long)]
    pub(crate) mirror_count: bool,
    /// Only the index of the MDT
    #[arg(short, long, visible_alias = "mdt")]
    pub(crate) mdt_index: bool,
    /// Only the number of components
    #[arg(long, alias = "comp-count")]
    pub(crate) component_count: bool,
    /// Only the ids of components; with an id (-I2), only the component with this id
    #[arg(short = 'I', long, alias = "comp-id", value_name = "ID", num_args = 0..=1, require_equals = true)]
    pub(crate) component_id: Option<Option<String>>,
    /// Only the flags of components; with flags, only components with these; ^ before a flag means
    /// without it
    #[arg(long, alias = "comp-flags", value_name = "FLAG,..", num_args = 0..=1, require_equals = true)]
    pub(crate) component_flags: Option<Option<String>>,
    /// Only the first byte of components; with a position, only components that start there,
    /// after (+) or before (-) it
    #[arg(long, alias = "comp-start", value_name = "[+-]N[kMGTPE]", num_args = 0..=1, require_equals = true)]
    pub(crate) component_start: Option<Option<String>>,
    /// Only the end of components; with a position (-E64M), only components that end there, after
    /// (+) or before (-) it
    #[arg(short = 'E', long, alias = "comp-end", value_name = "[+-]N[kMGTPE]", num_args = 0..=1, require_equals = true)]
    pub(crate) component_end: Option<Option<String>>,
    /// Only the extension size of components; 0 without one
    #[arg(short = 'z', long, visible_alias = "ext-size")]
    pub(crate) extension_size: bool,
    /// Only components of this mirror, of those after (+) or before (-) it, or with ! of all
    /// others; the first mirror has index 1
    #[arg(
        long,
        value_name = "[!][+-]N",
        allow_hyphen_values = true,
        conflicts_with = "mirror_id"
    )]
    pub(crate) mirror_index: Option<String>,
    /// Only components of the mirror with this id, with greater (+) or smaller (-) ids, or with !
    /// of all others
    #[arg(long, value_name = "[!][+-]ID", allow_hyphen_values = true)]
    pub(crate) mirror_id: Option<String>,
    /// Only files with an object on this OST, by index or name
    #[arg(short = 'O', long, value_name = "OST", visible_alias = "obd")]
    pub(crate) ost: Option<String>,
    /// Also show the magic and FID of the layout
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Only the objects
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print YAML
    #[arg(short, long)]
    pub(crate) yaml: bool,
    /// Show unset values of a directory's default layout as stored, not the file system's defaults
    #[arg(short = 'R', long)]
    pub(crate) raw: bool,
    /// Show indices of OSTs in hexadecimal
    #[arg(long)]
    pub(crate) hex_idx: bool,
    /// Show directories themselves, not their contents
    #[arg(short = 'd', long)]
    pub(crate) directory: bool,
    /// Same as --directory; shows the default layout that a directory gives to new files
    #[arg(short = 'D', long)]
    pub(crate) default: bool,
    /// Also show all directories below
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// Do not follow a path that is a symbolic link
    #[arg(long)]
    pub(crate) no_follow: bool,
    /// Files or directories
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
}

/// Arguments of a list of a mount's servers.
#[derive(Debug, Args)]
pub(crate) struct ListTargets {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// A mount point or a path below it [default: every mount]
    pub(crate) path: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Df {
    /// Show inodes instead of bytes
    #[arg(short = 'i', long)]
    pub(crate) inodes: bool,
    /// Show numbers with units of powers of 1024
    #[arg(short = 'h', long = "human-readable", alias = "human", overrides_with = "si")]
    pub(crate) human: bool,
    /// Show numbers with units of powers of 1000
    #[arg(short = 'H', long, overrides_with = "human")]
    pub(crate) si: bool,
    /// Show only MDTs, or only the MDT with this index (-m0)
    #[arg(short, long, value_name = "INDEX")]
    pub(crate) mdt: Option<Option<String>>,
    /// Show only OSTs, or only the OST with this index (-o1)
    #[arg(short, long, value_name = "INDEX")]
    pub(crate) ost: Option<Option<String>>,
    /// Show only the summary
    #[arg(short = 's', long)]
    pub(crate) only_summary: bool,
    /// Show no column names
    #[arg(short = 'N', long)]
    pub(crate) no_header: bool,
    /// Print JSON, with space in KiB; null for a target that does not answer
    #[arg(long, conflicts_with_all = ["inodes", "human", "si", "only_summary", "no_header"])]
    pub(crate) json: bool,
    /// No effect: targets without an answer never block the command
    #[arg(short, long)]
    lazy: bool,
    /// No effect: all targets are always shown
    #[arg(short, long)]
    verbose: bool,
    /// A mount point or a path below it [default: every mount]
    pub(crate) path: Option<PathBuf>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Debug, Args)]
pub(crate) struct Getname {
    /// Only the name of the file system
    #[arg(short = 'n', long)]
    pub(crate) fsname: bool,
    /// Only the instance
    #[arg(short, long, conflicts_with_all = ["fsname", "uuid"])]
    pub(crate) instance: bool,
    /// Only the UUID of the mount
    #[arg(short, long, conflicts_with = "fsname")]
    pub(crate) uuid: bool,
    /// Mount points or paths below them [default: every mount]
    pub(crate) paths: Vec<PathBuf>,
}

/// The servers of `lfs check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckKind {
    Mgts,
    Mdts,
    Osts,
    #[value(alias = "servers")]
    All,
}

#[cfg(test)]
mod tests {
    use super::rewrite_getstripe;
    use std::ffi::OsString;

    #[test]
    fn values_of_getstripe_may_follow_without_a_space() {
        let rewritten = |line: &str| {
            let mut args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            rewrite_getstripe(&mut args);
            let args: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).collect();
            args.join(" ")
        };
        for (line, expected) in [
            ("n lfs getstripe -I f", "n lfs getstripe -I f"),
            ("n lfs getstripe -I2 f", "n lfs getstripe --component-id=2 f"),
            ("n lfs getstripe -E+1M f", "n lfs getstripe --component-end=+1M f"),
            (
                "n lfs getstripe ! --mirror-id=-2 f",
                "n lfs getstripe --mirror-id=!-2 f",
            ),
            ("n lfs getstripe -c ! f", "n lfs getstripe -c ! f"),
            ("n lfs getstripe -- -I2", "n lfs getstripe -- -I2"),
            ("n lfs find ! -E2", "n lfs find ! -E2"),
            ("n lfs", "n lfs"),
        ] {
            assert_eq!(rewritten(line), expected);
        }
    }
}
