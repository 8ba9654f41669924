//! Replies that several requests share.

use crate::state::State;
use bytes::Bytes;
use fuser::{
    Errno, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
};

/// A reply that can be an error.
pub(crate) trait ReplyError: Send + 'static {
    /// Replies with an error.
    fn reply_error(self, errno: Errno);
}

macro_rules! reply_error {
    ($($reply:ty),*) => {
        $(impl ReplyError for $reply {
            fn reply_error(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

reply_error!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyIoctl,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

/// Replies with an extended attribute or a list of names: the bytes, or only their number if `size`
/// is 0. `ERANGE`: more than `size` bytes.
pub(crate) fn reply_xattr(value: &Bytes, size: u32, reply: ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

/// Replies with the data of an ioctl.
pub(crate) fn reply_ioctl(_: &State, data: Vec<u8>, reply: ReplyIoctl) {
    reply.ioctl(0, &data);
}
