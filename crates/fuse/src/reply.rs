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

/// How the kernel is to treat an open file: without pages of its own. The client's cache is the one that locks keep right.
/// With the kernel's, taking a lock back would wait for the kernel to drop pages, which waits for the write that has them
/// locked, which waits for a lock. (What is mapped still has pages.)
pub(crate) fn fopen_flags(flags: &OpenFlags) -> FopenFlags {
    if flags.append {
        // Appends go where the servers say that the end is: one after another.
        FopenFlags::FOPEN_DIRECT_IO
    } else {
        FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    }
}
