//! The operations on a mounted file system, one module for each kind.

mod attrs;
mod by_fid;
mod create;
mod dir;
mod dir_layouts;
mod flock;
mod found;
mod fs;
mod inode_flags;
mod io;
mod layouts;
mod lookup;
mod lookup_batch;
mod mkdir;
mod name_dir;
mod open;
mod open_dirs;
mod path;
mod remove;
mod rename;
mod stripe_sum;
mod striped_listing;
mod xattr;

pub use dir::{DirHandle, DirItem};
pub(crate) use flock::Flocks;
pub use flock::{FlockRange, FlockType};
pub use found::FoundFile;
pub use fs::StatFs;
pub use inode_flags::InodeFlags;
pub(crate) use name_dir::NameDir;
pub use open::{OpenFile, OpenFlags};
pub(crate) use open_dirs::OpenDirs;
pub use path::LastName;
