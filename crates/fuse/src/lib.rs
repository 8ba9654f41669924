//! The FUSE mount, on top of the client library.
//!
//! Each FUSE request becomes a call of [`client::Client`]. The thread that read a request also
//! replies if the caches have the answer; otherwise the request runs on the client's runtime. The
//! kernel caches names and attributes as long as the client's locks cover them; separate threads
//! send its invalidations ([`client::KernelCache`]).

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
