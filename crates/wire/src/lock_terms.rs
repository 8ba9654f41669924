//! On what terms a client holds its locks of a metadata target: Lustre's, or those that two of Nacre's peers agree on.
//!
//! Lustre takes a client's lock away also for what that client does itself. Two peers that both know this module agree at
//! connect, by `paddingE` of `obd_connect_data` (as [`Precision`](crate::Precision) by `paddingF`), on two things more:
//!
//! - *Own changes.* A client keeps its UPDATE lock of a directory while it makes, removes or renames names there. It knows
//!   by itself that attributes and entries have changed, and that what it made is there.
//! - *Unwritten files.* Who makes a file with objects by opening it to write is granted the DOM bit along with the rest. As
//!   long as he holds it nobody else has opened the file to write or changed its size: what he has not written is not
//!   there, and he need not ask the object servers.
//!
//! The DOM bit is Lustre's for data that lies on the metadata target; no layout here has such, and to Lustre's clients it is
//! never granted. See `docs/decisions/004-own-locks.md`.

use crate::ObdConnectData;

/// `paddingE` of a client that can do with these terms.
pub const LOCK_TERMS_ASKED: u64 = 0x4e61_6372_654c_6b3f;
/// `paddingE` of a server that has agreed.
pub const LOCK_TERMS_GRANTED: u64 = 0x4e61_6372_654c_6b21;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockTerms {
    /// Lustre's.
    Lustre,
    /// Nacre's.
    Nacre,
}

impl LockTerms {
    /// What a client that wants these terms puts into `paddingE`.
    pub fn ask(self) -> u64 {
        match self {
            LockTerms::Lustre => 0,
            LockTerms::Nacre => LOCK_TERMS_ASKED,
        }
    }

    /// What a server that can do with Nacre's terms puts into `paddingE` of its answer.
    pub fn grant(asked: &ObdConnectData) -> u64 {
        match asked.paddingE {
            LOCK_TERMS_ASKED => LOCK_TERMS_GRANTED,
            _ => 0,
        }
    }

    /// What was agreed, by the server's answer.
    pub fn agreed(answer: &ObdConnectData) -> LockTerms {
        match answer.paddingE {
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
    fn terms_are_agreed_on_only_where_both_know_them() {
        let asks = |terms: LockTerms| ObdConnectData {
            paddingE: terms.ask(),
            ..ObdConnectData::default()
        };
        let answer = |asked: &ObdConnectData| ObdConnectData {
            paddingE: LockTerms::grant(asked),
            ..ObdConnectData::default()
        };
        for terms in [LockTerms::Lustre, LockTerms::Nacre] {
            assert_eq!(LockTerms::agreed(&answer(&asks(terms))), terms);
        }
        let echo = asks(LockTerms::Nacre);
        assert_eq!(
            LockTerms::agreed(&echo),
            LockTerms::Lustre,
            "a server that echoes"
        );
        assert_eq!(LockTerms::agreed(&ObdConnectData::default()), LockTerms::Lustre);
    }
}
