//! The operations on a mounted file system, one module for each kind.

mod attrs;
mod by_fid;
mod create;
mod dir;
mod flock;
mod fs;
mod inode_flags;
mod io;
mod layouts;
mod lookup;
mod lookup_batch;
mod open;
mod open_dirs;
mod path;
mod remove;
mod xattr;

pub use dir::{DirHandle, DirItem};
pub(crate) use flock::Flocks;
pub use flock::{FlockRange, FlockType};
pub use fs::StatFs;
pub use inode_flags::InodeFlags;
pub use lookup::FoundFile;
pub use open::{OpenFile, OpenFlags};
pub(crate) use open_dirs::OpenDirs;
pub use path::LastName;
