//! The flags of `renameat2`, an extension between two Nacre peers.
//!
//! Lustre's rename has no flags. A client of Nacre requests the flags at connect in `paddingD` of
//! `obd_connect_data`, and the server grants them in `paddingD` of the reply
//! ([`LockTerms`](crate::LockTerms) uses `paddingE`). With the grant, `rn_padding_5` of a rename
//! holds the flags, and `rn_padding_1` and `rn_padding_2` hold the FID for the whiteout that
//! [`RenameFlags::WHITEOUT`] creates. Without the grant, clients leave these words zero, and
//! servers do not read them.

use crate::{Errno, Fid, MdtRecRename, ObdConnectData};

/// `paddingD` of a client that requests the flags.
pub const RENAME_FLAGS_REQUESTED: u64 = 0x4e61_6372_6552_6e3f;
/// `paddingD` of a server that grants them.
pub const RENAME_FLAGS_GRANTED: u64 = 0x4e61_6372_6552_6e21;

/// Flags of `renameat2`, with Linux's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags(u32);

impl RenameFlags {
    /// No flag: the rename replaces an existing target.
    pub const NONE: RenameFlags = RenameFlags(0);
    /// `RENAME_NOREPLACE`: the target must not exist.
    pub const NOREPLACE: RenameFlags = RenameFlags(1);
    /// `RENAME_EXCHANGE`: source and target change places.
    pub const EXCHANGE: RenameFlags = RenameFlags(2);
    /// `RENAME_WHITEOUT`: the source name becomes a character device 0/0.
    pub const WHITEOUT: RenameFlags = RenameFlags(4);

    /// The flags from the bits in a system call or a request.
    ///
    /// # Errors
    ///
    /// `EINVAL`: an unknown flag, or an exchange with another flag.
    pub fn from_bits(bits: u32) -> Result<RenameFlags, Errno> {
        let combinable = RenameFlags::NOREPLACE.0 | RenameFlags::WHITEOUT.0;
        match bits {
            b if b == RenameFlags::EXCHANGE.0 || b & !combinable == 0 => Ok(RenameFlags(b)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether no flag is set.
    pub fn is_empty(self) -> bool {
        self == RenameFlags::NONE
    }

    /// Whether this flag is set.
    pub fn has(self, flag: RenameFlags) -> bool {
        self.0 & flag.0 != 0
    }

    /// The value of `paddingD` in the reply of a server that supports the flags.
    pub fn grant(request: &ObdConnectData) -> u64 {
        match request.paddingD {
            RENAME_FLAGS_REQUESTED => RENAME_FLAGS_GRANTED,
            _ => 0,
        }
    }

    /// Whether the server grants the flags in this reply.
    pub fn agreed(reply: &ObdConnectData) -> bool {
        reply.paddingD == RENAME_FLAGS_GRANTED
    }
}

impl MdtRecRename {
    /// The same rename with flags, and the FID for the whiteout (zero: none).
    pub fn with_flags(self, flags: RenameFlags, whiteout: Fid) -> MdtRecRename {
        MdtRecRename {
            rn_padding_1: whiteout.f_seq,
            rn_padding_2: u64::from(whiteout.f_ver) << 32 | u64::from(whiteout.f_oid),
            rn_padding_5: flags.0,
            ..self
        }
    }

    /// The flags; valid only if the peers have agreed on them.
    ///
    /// # Errors
    ///
    /// As [`RenameFlags::from_bits`].
    pub fn flags(&self) -> Result<RenameFlags, Errno> {
        RenameFlags::from_bits(self.rn_padding_5)
    }

    /// The FID for the whiteout; valid only if the peers have agreed on flags.
    pub fn whiteout(&self) -> Fid {
        let low = self.rn_padding_2;
        Fid::new(self.rn_padding_1, low as u32, (low >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::{RENAME_FLAGS_REQUESTED, RenameFlags};
    use crate::{Errno, Fid, MdtRecRename, ObdConnectData, WireStruct};

    #[test]
    fn flags_are_agreed_only_if_the_server_grants_them() {
        let request = ObdConnectData {
            paddingD: RENAME_FLAGS_REQUESTED,
            ..ObdConnectData::default()
        };
        let reply = |request: &ObdConnectData| ObdConnectData {
            paddingD: RenameFlags::grant(request),
            ..ObdConnectData::default()
        };
        assert!(RenameFlags::agreed(&reply(&request)));
        assert!(!RenameFlags::agreed(&request), "a server that echoes");
        assert!(!RenameFlags::agreed(&reply(&ObdConnectData::default())));
    }

    #[test]
    fn an_exchange_excludes_other_flags() {
        for bits in [0, 1, 2, 4, 5] {
            assert_eq!(RenameFlags::from_bits(bits).map(|f| f.0), Ok(bits));
        }
        for bits in [3, 6, 7, 8, 9, u32::MAX] {
            assert_eq!(RenameFlags::from_bits(bits), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn a_record_keeps_its_flags_and_its_whiteout() {
        let fid = Fid::new(0x2_0000_0401, 7, 3);
        let rec = MdtRecRename::default().with_flags(RenameFlags::WHITEOUT, fid);
        assert_eq!((rec.flags(), rec.whiteout()), (Ok(RenameFlags::WHITEOUT), fid));
        let plain = MdtRecRename::default().with_flags(RenameFlags::NONE, Fid::ZERO);
        assert_eq!(plain.to_bytes(), MdtRecRename::default().to_bytes());
    }
}
