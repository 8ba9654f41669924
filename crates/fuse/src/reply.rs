//! Answers that several requests share.

use crate::convert::errno;
use bytes::Bytes;
use client::OpenFlags;
use fuser::{Errno, FopenFlags, ReplyEmpty, ReplyXattr};

/// That it is done, or why not.
pub(crate) fn empty(result: Result<(), wire::Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(e)),
    }
}

/// An extended attribute, or a list of their names: the bytes, or how many they are when the caller has no room yet.
pub(crate) fn xattr(result: Result<Bytes, wire::Errno>, size: u32, reply: ReplyXattr) {
    match result {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(errno(e)),
    }
}

/// How the kernel is to treat an open file. Pages that it has of it stay good: they were read under a lock, and it is told
/// when that lock goes (FUSE_EXPLICIT_INVAL_DATA: it need not guess from times).
///
/// Who only reads, reads the kernel's pages. Who may write goes past them: writing through the kernel's pages would lock
/// them while the write waits for its lock, and giving back a lock waits for the kernel to let go of such pages. (What is
/// mapped has pages in any case.) Appends go where the servers say that the end is, so one after another.
pub(crate) fn fopen_flags(flags: &OpenFlags) -> FopenFlags {
    let kept = FopenFlags::FOPEN_KEEP_CACHE;
    if flags.append {
        kept | FopenFlags::FOPEN_DIRECT_IO
    } else if flags.write || flags.direct {
        kept | FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    } else {
        kept
    }
}
