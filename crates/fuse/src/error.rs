//! Errors of mounting and unmounting. A message names the remedy if there is one.

use std::io;
use std::path::PathBuf;

/// The reason that mounting or unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum FuseError {
    /// The mount point does not exist.
    #[error("mount point {path} does not exist: make it first (mkdir {path})")]
    Missing {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount point is not a directory.
    #[error("mount point {path} is not a directory")]
    NotDir {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount of a dead process is still on the mount point.
    #[error(
        "the mount on {path} is left over from a process that has ended: unmount it first (nacre umount {path})"
    )]
    Stale {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount on the mount point does not respond.
    #[error("the mount on {path} hangs: unmount it first (nacre umount {path})")]
    Hung {
        /// The mount point.
        path: PathBuf,
    },
    /// A Nacre file system is already mounted on the mount point.
    #[error(
        "{source_name} is already mounted on {path}: use another mount point, or unmount it first (nacre umount {path})"
    )]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// The source of that mount.
        source_name: String,
    },
    /// The mount point cannot be examined.
    #[error("cannot examine mount point {path}: {source}")]
    Probe {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The system has no usable FUSE.
    #[error(
        "this system has no usable FUSE: {source} (load the module: modprobe fuse; in a container, pass /dev/fuse through)"
    )]
    NoFuse {
        /// The error of opening /dev/fuse.
        source: io::Error,
    },
    /// The kernel or fusermount3 refused the mount, or a thread of the mount cannot be started, or
    /// the mounting thread panicked.
    #[error("cannot mount on {path}: {source}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The mount is in use: a program has a file open there, or its working directory there.
    #[error(
        "{path} is in use: close its open files and leave its directories, or unmount lazily (nacre umount --lazy {path})"
    )]
    InUse {
        /// The mount point.
        path: PathBuf,
    },
    /// Unmounting failed.
    #[error("cannot unmount {path}: {source}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Nothing is mounted on the path.
    #[error("{path} is not a mount point")]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
}
