//! What a program may expect of a file of Nacre: POSIX line by line, through the kernel, on one mount or between two. Where
//! the answer is not a local disk's, `docs/semantics.md` says why, and names the test here that holds it.
//!
//! They need root and `/dev/fuse`, and fail where those are missing.

#![allow(clippy::unwrap_used)]

mod acl;
mod by_fid;
mod dirs;
mod exec;
mod handles;
mod locks;
mod names;
mod place;
mod removed;
mod rename;
mod space;
mod special;
mod users;
mod xattrs;
