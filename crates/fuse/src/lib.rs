//! The FUSE mount, on top of the client library.
//!
//! A FUSE request becomes calls of [`client::Client`]. The thread that read the request also
//! replies if the request does not have to wait; otherwise the request continues on the mount's
//! runtime. The kernel may cache names and attributes while the client's locks cover them
//! ([`client::KernelCache`]). Separate threads send the invalidations that can block.

mod busy_poll;
mod convert;
mod creds;
mod error;
mod flock;
mod fs;
mod handles;
mod init;
mod inode_flags;
mod kernel_mount;
mod lookup;
mod mountpoint;
mod nodes;
mod notify;
mod pending_open;
mod readdir;
mod reply;
mod requester;
mod session;
mod state;
mod unshare_fds;

pub use error::FuseError;
pub use kernel_mount::{atime_flags, remount};
pub use mountpoint::{MountEntry, MountState, abort, mount_state, mounted_at, mounts, real_path, unmount};
pub use session::{FuseMount, FuseOptions, mount};
