//! Counts and durations of the operations of each kind: the parameter `md_stats`. The MDT does not
//! count a request that it answers with an error. It counts a failed intent and a failed lookup of
//! a batch, because their replies carry the operation's result.

use std::time::Duration;

use params::{Operations, USECS, as_usecs};
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    IT_GETATTR, IT_GETXATTR, IT_LAYOUT, IT_LOOKUP, IT_OPEN, LDLM_ENQUEUE, MDS_CLOSE, MDS_GETATTR,
    MDS_GETATTR_NAME, MDS_GETXATTR, MDS_READPAGE, MDS_REINT, MDS_STATFS, MDS_SYNC, MdtRecReint, REINT_CREATE,
    REINT_LINK, REINT_RENAME, REINT_SETATTR, REINT_SETXATTR, REINT_UNLINK,
};

use crate::store::{S_IFDIR, S_IFMT};

/// Lustre's names of operations, in the order of its `md_stats`.
pub(crate) const OPERATIONS: Operations = &[
    ("open", USECS),
    ("close", USECS),
    ("mknod", USECS),
    ("link", USECS),
    ("unlink", USECS),
    ("mkdir", USECS),
    ("rmdir", USECS),
    ("rename", USECS),
    ("getattr", USECS),
    ("setattr", USECS),
    ("getxattr", USECS),
    ("setxattr", USECS),
    ("statfs", USECS),
    ("sync", USECS),
    ("readpage", USECS),
    ("layout", USECS),
];

/// A counted operation: an index of [`OPERATIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op(usize);

impl Op {
    /// The operation that each lookup of a batch counts as.
    pub(crate) const GETATTR: Op = Op(8);

    fn from_name(name: &str) -> Option<Op> {
        OPERATIONS.iter().position(|(n, _)| *n == name).map(Op)
    }

    /// A sample of the operation, for [`OPERATIONS`].
    pub(crate) fn sample(self, duration: Duration) -> (usize, u64) {
        (self.0, as_usecs(duration))
    }

    /// The operation that a request counts as, if any.
    pub(crate) fn of(req: &ServerRequest) -> Option<Op> {
        let name = match req.opc {
            LDLM_ENQUEUE => match req
                .buf(bufs::INTENT)
                .first_chunk::<8>()
                .map(|b| u64::from_le_bytes(*b))?
            {
                intent if intent & IT_OPEN != 0 => "open",
                IT_GETATTR | IT_LOOKUP => "getattr",
                IT_GETXATTR => "getxattr",
                IT_LAYOUT => "layout",
                _ => return None,
            },
            MDS_REINT => {
                let rec: MdtRecReint = req.msg.get(bufs::REC_REINT).ok()?;
                let is_dir = rec.rr_mode & S_IFMT == S_IFDIR;
                // The record of a create has its mode where the other records have `rr_bias`.
                let makes_dir = rec.rr_bias & S_IFMT == S_IFDIR;
                match rec.rr_opcode {
                    REINT_SETATTR => "setattr",
                    REINT_CREATE if makes_dir => "mkdir",
                    REINT_CREATE => "mknod",
                    REINT_LINK => "link",
                    REINT_UNLINK if is_dir => "rmdir",
                    REINT_UNLINK => "unlink",
                    REINT_RENAME => "rename",
                    REINT_SETXATTR => "setxattr",
                    _ => return None,
                }
            }
            MDS_CLOSE => "close",
            MDS_GETATTR | MDS_GETATTR_NAME => "getattr",
            MDS_GETXATTR => "getxattr",
            MDS_READPAGE => "readpage",
            MDS_STATFS => "statfs",
            MDS_SYNC => "sync",
            _ => return None,
        };
        Op::from_name(name)
    }
}

/// Counts an operation of a request, and its duration.
pub(crate) fn record(req: &ServerRequest, op: Op, duration: Duration) {
    req.record(&[op.sample(duration)]);
}

#[cfg(test)]
mod tests {
    use super::{OPERATIONS, Op};

    #[test]
    fn lookups_of_a_batch_count_as_getattr() {
        assert_eq!(Op::from_name("getattr"), Some(Op::GETATTR));
        assert_eq!(OPERATIONS[Op::GETATTR.0].0, "getattr");
        assert_eq!(Op::from_name("lookup"), None);
    }
}
