//! Lock modes and their compatibility.
//!
//! The compatibility masks are the protocol's `LCK_COMPAT_*`; [`LockMode::covers`] is derived from
//! them, so that there is only one table.

use wire::LdlmLockDesc;

/// A lock mode. The discriminants are the wire's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum LockMode {
    /// Exclusive.
    Ex = 0x1,
    /// Protected write.
    Pw = 0x2,
    /// Protected read.
    Pr = 0x4,
    /// Concurrent write.
    Cw = 0x8,
    /// Concurrent read.
    Cr = 0x10,
    /// Null: excludes nothing; a flock of this mode unlocks.
    Nl = 0x20,
    /// Group: compatible with NL and with group locks of the same group id.
    Group = 0x40,
    /// Commit on sharing, used by servers only.
    Cos = 0x80,
    /// Transaction, used by servers only.
    Txn = 0x100,
}

/// All modes, in the order of their bits.
const MODES: [LockMode; 9] = [
    LockMode::Ex,
    LockMode::Pw,
    LockMode::Pr,
    LockMode::Cw,
    LockMode::Cr,
    LockMode::Nl,
    LockMode::Group,
    LockMode::Cos,
    LockMode::Txn,
];

impl LockMode {
    /// Number of modes.
    pub const COUNT: usize = MODES.len();

    /// The wire's number of the mode.
    pub const fn wire(self) -> u32 {
        self as u32
    }

    /// The mode of a wire number; `None` if it is invalid.
    pub fn from_wire(mode: u32) -> Option<LockMode> {
        MODES.into_iter().find(|m| m.wire() == mode)
    }

    /// The requested mode of a lock description.
    pub fn requested(desc: &LdlmLockDesc) -> Option<LockMode> {
        LockMode::from_wire(desc.l_req_mode)
    }

    /// The position of the mode's bit: 0 for `Ex` up to 8 for `Txn`.
    pub const fn index(self) -> usize {
        self.wire().trailing_zeros() as usize
    }

    /// The compatible modes, as a mask of wire bits.
    pub const fn compat_mask(self) -> u32 {
        match self {
            LockMode::Ex => wire::LCK_COMPAT_EX,
            LockMode::Pw => wire::LCK_COMPAT_PW,
            LockMode::Pr => wire::LCK_COMPAT_PR,
            LockMode::Cw => wire::LCK_COMPAT_CW,
            LockMode::Cr => wire::LCK_COMPAT_CR,
            LockMode::Nl => wire::LCK_COMPAT_NL,
            LockMode::Group => wire::LCK_COMPAT_GROUP,
            LockMode::Cos => wire::LCK_COMPAT_COS,
            LockMode::Txn => wire::LCK_COMPAT_TXN,
        }
    }

    /// Whether locks of the two modes can be held concurrently.
    pub const fn compatible(self, other: LockMode) -> bool {
        self.compat_mask() & other.wire() != 0
    }

    /// Whether a lock of this mode permits all that `want` permits: it excludes every mode that
    /// `want` excludes. `Group` and `Cos` cover, and are covered by, only themselves.
    pub fn covers(self, want: LockMode) -> bool {
        let special = |m| matches!(m, LockMode::Group | LockMode::Cos);
        if special(self) || special(want) {
            return self == want;
        }
        self.compat_mask() & !want.compat_mask() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{LockMode, MODES};

    #[test]
    fn compatibility_is_symmetric() {
        for a in MODES {
            for b in MODES {
                assert_eq!(a.compatible(b), b.compatible(a), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn modes_have_the_compatibility_of_lustre() {
        assert!(LockMode::Pr.compatible(LockMode::Pr));
        assert!(LockMode::Pr.compatible(LockMode::Cr));
        assert!(LockMode::Pw.compatible(LockMode::Cr));
        assert!(LockMode::Cw.compatible(LockMode::Cw));
        assert!(!LockMode::Pw.compatible(LockMode::Pr));
        assert!(!LockMode::Pw.compatible(LockMode::Pw));
        assert!(!LockMode::Cw.compatible(LockMode::Pr));
        assert!(!LockMode::Ex.compatible(LockMode::Cr));
        assert!(LockMode::Ex.compatible(LockMode::Nl));
    }

    #[test]
    fn a_mode_covers_only_weaker_modes() {
        assert!(LockMode::Pw.covers(LockMode::Pr));
        assert!(LockMode::Pw.covers(LockMode::Cw));
        assert!(LockMode::Ex.covers(LockMode::Pw));
        assert!(LockMode::Pr.covers(LockMode::Cr));
        assert!(!LockMode::Pr.covers(LockMode::Pw));
        assert!(!LockMode::Cr.covers(LockMode::Pr));
        assert!(!LockMode::Cw.covers(LockMode::Pr));
        assert!(!LockMode::Ex.covers(LockMode::Group));
    }

    #[test]
    fn wire_numbers_of_modes_round_trip_and_invalid_ones_are_refused() {
        for m in MODES {
            assert_eq!(LockMode::from_wire(m.wire()), Some(m));
        }
        assert_eq!(LockMode::from_wire(0), None);
        assert_eq!(LockMode::from_wire(3), None);
    }
}
