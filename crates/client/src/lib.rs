//! The client of a mounted file system as an async library: name space, layouts, locks, page cache
//! and I/O.
//!
//! [`Client::mount`] connects and returns a [`Client`]. Its operations take FIDs or open files and
//! the caller's [`Cred`], and fail with a [`wire::Errno`], so a front end (FUSE, a tool, a language
//! binding) stays thin. Cached names, attributes and data are valid while a lock covers them. A
//! front end implements [`KernelCache`] if the kernel caches them too.

mod atime;
mod attr;
mod client;
mod cred;
pub mod data;
mod deferred_closes;
mod dircache;
mod error;
mod fidgen;
mod follow;
mod inode;
mod jobs;
mod kernel;
pub mod layout;
mod lmv;
mod mdc;
mod mdc_builder;
mod mount;
mod ops;
mod owner;
mod pack;
mod perm;
mod process;
mod source;
mod stats;
mod umount;
mod watch;

pub use atime::Atime;
pub use attr::{Attr, BLKSIZE, DataAttr, SetAttr, SetTime};
pub use client::{Client, Clock, MountOptions};
pub use cred::{Cred, Groups};
pub use data::{Appended, DataFile, Fallocate, Lov, Seek};
pub use error::ClientError;
pub use jobs::{Caller, JobIds};
pub use kernel::{Kernel, KernelCache};
pub use layout::FileLayout;
pub use ops::{
    DirHandle, DirItem, FlockRange, FlockType, FoundFile, InodeFlags, LastName, OpenFile, OpenFlags, StatFs,
};
pub use process::{ProcessStatus, is_exiting, is_linking};
pub use source::{Source, parse_source};
pub use umount::{SAVE_MAX, Unsaved};
