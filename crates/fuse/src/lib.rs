//! A mount for the kernel: FUSE over the client library.
//!
//! Thin: a request becomes a call of [`client::Client`], its answer a reply. What the caches answer is answered on the
//! thread that read the request; the rest runs on the client's runtime. The kernel may keep names and attributes for as
//! long as the client's locks cover them, and is told when that ends ([`client::KernelCache`]), by threads of its own.

mod apart;
mod by_fid;
mod convert;
mod creds;
mod error;
mod flock;
mod fs;
mod handles;
mod hover;
mod init;
mod kernel_mount;
mod mountpoint;
mod nodes;
mod notify;
mod opened;
mod readdir;
mod reply;
mod session;
mod state;
mod wait;

pub use error::FuseError;
pub use kernel_mount::{atime_flags, remount};
pub use mountpoint::{
    MountEntry, MountState, abandon, mounted_at, mounts, real_path, state as mount_state, unmount,
};
pub use session::{FuseOptions, Mounted, mount};
