//! What a target answers.

use bytes::Bytes;

/// A reply: everything but what the RPC layer fills in itself (ids, `last_committed`, service times).
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// `pb_status`: what the operation says, 0 or more; a negative errno; or an `ELDLM_*`.
    pub status: i32,
    /// The buffers after the `ptlrpc_body`.
    pub bufs: Vec<Bytes>,
    /// `pb_transno`: the transaction that the request became; 0 if none.
    pub transno: u64,
    /// `pb_pre_versions`: of the objects, before the operation.
    pub pre_versions: [u64; 4],
    /// `pb_limit`: how many locks the client may cache; 0: as it likes.
    pub limit: u32,
    /// `pb_slv`: the server lock volume.
    pub slv: u64,
}

impl Reply {
    /// Success, with these buffers.
    pub fn new(bufs: Vec<Bytes>) -> Reply {
        Reply { bufs, ..Reply::default() }
    }

    /// Only a status.
    pub fn status(status: i32) -> Reply {
        Reply { status, ..Reply::default() }
    }

    /// The same with a transaction number.
    pub fn with_transno(self, transno: u64) -> Reply {
        Reply { transno, ..self }
    }

    /// The same with another status.
    pub fn with_status(self, status: i32) -> Reply {
        Reply { status, ..self }
    }
}
