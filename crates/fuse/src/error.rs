//! Errors of mounting and unmounting. Each message names the mount point, the reason, and a remedy.

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
    /// A mount of a dead process is still there.
    #[error(
        "mount point {path} is left over from a mount of a process that has ended: unmount it first (nacre umount {path})"
    )]
    Stale {
        /// The mount point.
        path: PathBuf,
    },
    /// A mount there does not respond.
    #[error(
        "mount point {path} does not answer: a mount there hangs; unmount it first (nacre umount {path})"
    )]
    Hung {
        /// The mount point.
        path: PathBuf,
    },
    /// A Nacre file system is already mounted there.
    #[error("mount point {path} is in use: {source_name} is mounted there")]
    AlreadyMounted {
        /// The mount point.
        path: PathBuf,
        /// The source of that mount.
        source_name: String,
    },
    /// The mount point cannot be examined.
    #[error("cannot use mount point {path}: {source}")]
    MountPoint {
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
    /// The kernel or fusermount3 refused the mount.
    #[error("cannot mount on {path}: {source}")]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The mount is in use: a file in it is open, or is a program's working directory.
    #[error("{path} is in use: close its open files, or unmount lazily (nacre umount --lazy {path})")]
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
    /// The path is no mount point.
    #[error("{path} is not a mount point")]
    NotMounted {
        /// The path.
        path: PathBuf,
    },
}
