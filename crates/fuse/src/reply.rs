//! Answers that several requests share.

use crate::convert::errno;
use bytes::Bytes;
use fuser::{Errno, ReplyEmpty, ReplyXattr};

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
