//! Counts and durations of the operations of each kind: the parameter `md_stats`. A failed request
//! does not count, except for intents and lookups of a batch: their replies have a result even if
//! the operation failed.

use std::time::Duration;

use params::Tally;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    IT_GETATTR, IT_GETXATTR, IT_LAYOUT, IT_LOOKUP, IT_OPEN, LDLM_ENQUEUE, MDS_CLOSE, MDS_GETATTR,
    MDS_GETATTR_NAME, MDS_GETXATTR, MDS_READPAGE, MDS_REINT, MDS_STATFS, MDS_SYNC, MdtRecReint, REINT_CREATE,
    REINT_LINK, REINT_RENAME, REINT_SETATTR, REINT_SETXATTR, REINT_UNLINK,
};

use crate::store::{S_IFDIR, S_IFMT};

/// Lustre's names of operations, in the order of its `md_stats`.
const NAMES: [&str; 16] = [
    "open", "close", "mknod", "link", "unlink", "mkdir", "rmdir", "rename", "getattr", "setattr", "getxattr",
    "setxattr", "statfs", "sync", "readpage", "layout",
];

/// A counted operation: an index into `NAMES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op(usize);

impl Op {
    /// The operation that each lookup of a batch counts as.
    pub(crate) const GETATTR: Op = Op(8);

    fn from_name(name: &str) -> Option<Op> {
        NAMES.iter().position(|n| *n == name).map(Op)
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
                // A create's record has its mode four bytes earlier than the others: in `rr_bias`.
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

/// The counters of one target, in the order of `NAMES`.
#[derive(Default)]
pub(crate) struct MdStats([Tally; NAMES.len()]);

impl MdStats {
    /// Counts an operation and its duration.
    pub(crate) fn add(&self, op: Op, duration: Duration) {
        self.0[op.0].add_time(duration);
    }

    /// Resets all counters.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(Tally::clear);
    }

    /// One line per operation that occurred, in Lustre's format.
    pub(crate) fn show(&self) -> String {
        let mut out = String::new();
        for (name, tally) in NAMES.iter().zip(&self.0) {
            tally.sums().write_line(&mut out, name, "usecs");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{MdStats, Op};
    use std::time::Duration;

    #[test]
    fn only_operations_that_occurred_are_shown() {
        let stats = MdStats::default();
        assert_eq!(stats.show(), "");
        assert_eq!(Op::from_name("getattr"), Some(Op::GETATTR));
        stats.add(Op::from_name("rename").unwrap(), Duration::from_micros(3));
        stats.add(Op::from_name("rename").unwrap(), Duration::from_micros(5));
        assert_eq!(
            stats.show(),
            "rename                              2 samples [usecs] 3 5 8 34\n"
        );
        stats.clear();
        assert_eq!(stats.show(), "");
    }
}
