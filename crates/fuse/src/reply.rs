//! Answers that several requests share.

use bytes::Bytes;
use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

/// A request's answer that can be an error.
pub(crate) trait Refuse: Send + 'static {
    /// Answers with an error.
    fn refuse(self, why: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, why: Errno) {
                self.error(why);
            }
        })*
    };
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// An extended attribute, or a list of their names: the bytes, or how many they are when the caller has no room yet.
pub(crate) fn xattr(value: &Bytes, size: u32, reply: ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
