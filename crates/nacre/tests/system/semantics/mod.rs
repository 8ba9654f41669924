//! POSIX semantics that Nacre promises to programs, tested through the kernel, on one mount and
//! between two. Where Nacre differs from a local disk, `docs/semantics.md` gives the reason and
//! names the test.
//!
//! The tests need root and `/dev/fuse`, and fail without them.

#![allow(clippy::unwrap_used)]

mod acl;
mod by_fid;
mod dirs;
mod exec;
mod flags;
mod handles;
mod locks;
mod names;
mod removed;
mod rename;
mod space;
mod special;
mod two_mounts;
mod users;
mod xattrs;
