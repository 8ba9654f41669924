//! The terms on which a metadata target grants and revokes a client's locks: Lustre's, or an
//! extension between two Nacre peers.
//!
//! Lustre revokes a client's lock even for the client's own changes. Two Nacre peers agree at
//! connect, by `paddingE` of `obd_connect_data` ([`Precision`](crate::Precision) uses `paddingF`),
//! on two extensions:
//!
//! - Own changes: a client keeps its UPDATE lock of a directory while it creates, removes or
//!   renames entries there. The client updates its cached attributes and entries itself.
//! - Unwritten files: a client that creates a file with objects and opens it for writing is also
//!   granted the bit [`INODELOCK_UNWRITTEN`] of its inode. While the client holds the bit, no other
//!   client has opened the file for writing or changed its size. So all data is the client's own,
//!   and the client need not query the OSTs for the size.
//!
//! See `docs/decisions/004-own-locks.md`.

use crate::ObdConnectData;

/// `paddingE` of a client that requests Nacre's terms.
pub const LOCK_TERMS_REQUESTED: u64 = 0x4e61_6372_654c_323f;
/// `paddingE` of a server that grants them.
pub const LOCK_TERMS_GRANTED: u64 = 0x4e61_6372_654c_3221;
/// The inode bit of unwritten files. Lustre's bits are far below it.
pub const INODELOCK_UNWRITTEN: u64 = 1 << 31;

/// The terms of a client's locks; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockTerms {
    /// The target revokes a client's locks also for the client's own changes, and never grants the
    /// bit of unwritten files.
    Lustre,
    /// Both extensions are in force.
    Nacre,
}

impl LockTerms {
    /// The value of `paddingE` in a client's request for these terms.
    pub fn request(self) -> u64 {
        match self {
            LockTerms::Lustre => 0,
            LockTerms::Nacre => LOCK_TERMS_REQUESTED,
        }
    }

    /// The value of `paddingE` in the reply of a server that supports Nacre's terms.
    pub fn grant(request: &ObdConnectData) -> u64 {
        match request.paddingE {
            LOCK_TERMS_REQUESTED => LOCK_TERMS_GRANTED,
            _ => 0,
        }
    }

    /// The agreed terms according to the server's reply.
    pub fn agreed(reply: &ObdConnectData) -> LockTerms {
        match reply.paddingE {
            LOCK_TERMS_GRANTED => LockTerms::Nacre,
            _ => LockTerms::Lustre,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LockTerms;
    use crate::ObdConnectData;

    #[test]
    fn terms_are_agreed_only_if_both_peers_support_them() {
        let request = |terms: LockTerms| ObdConnectData {
            paddingE: terms.request(),
            ..ObdConnectData::default()
        };
        let reply = |request: &ObdConnectData| ObdConnectData {
            paddingE: LockTerms::grant(request),
            ..ObdConnectData::default()
        };
        for terms in [LockTerms::Lustre, LockTerms::Nacre] {
            assert_eq!(LockTerms::agreed(&reply(&request(terms))), terms);
        }
        let echo = request(LockTerms::Nacre);
        assert_eq!(
            LockTerms::agreed(&echo),
            LockTerms::Lustre,
            "a server that echoes the request"
        );
        assert_eq!(LockTerms::agreed(&ObdConnectData::default()), LockTerms::Lustre);
    }
}
