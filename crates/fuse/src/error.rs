//! Why a file system does not appear, or does not go away: what, where, and what to do.

use std::io;
use std::path::PathBuf;

/// Why a mount or unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// Nothing to mount on.
    #[error("mount point {path} does not exist: make it first (mkdir {path})")]
    Missing {
        /// The mount point.
        path: PathBuf,
    },
    /// Not a directory.
    #[error("mount point {path} is not a directory")]
    NotDir {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount whose server died is still there.
    #[error(
        "mount point {path} is left over from a mount whose process is gone: unmount it first (nacre umount {path})"
    )]
    Stale {
        /// The mount point.
        path: PathBuf,
    },
    /// Something does not answer there.
    #[error(
        "mount point {path} does not answer: a mount there hangs; unmount it first (nacre umount {path})"
    )]
    Hung {
        /// The mount point.
        path: PathBuf,
    },
    /// A file system of ours is already there.
    #[error("mount point {path} is in use: {source_name} is mounted there")]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// What is mounted.
        source_name: String,
    },
    /// The mount point cannot be looked at.
    #[error("cannot use mount point {path}: {source}")]
    MountPoint {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No FUSE here.
    #[error(
        "this system has no usable FUSE: {source} (load the module: modprobe fuse; in a container, pass /dev/fuse through)"
    )]
    NoFuse {
        /// What opening /dev/fuse said.
        source: io::Error,
    },
    /// The kernel or fusermount3 refused.
    #[error("cannot mount on {path}: {source}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Files are open there.
    #[error("{path} is in use: close what is open there, or unmount lazily (nacre umount --lazy {path})")]
    InUse {
        /// The mount point.
        path: PathBuf,
    },
    /// Unmounting failed.
    #[error("cannot unmount {path}: {source}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing is mounted there.
    #[error("{path} is not a mount point")]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
}
