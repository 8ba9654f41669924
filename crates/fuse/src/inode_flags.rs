//! The ioctls of `chattr` and `lsattr`. The kernel sends them for regular files and directories,
//! together with their arguments. All other ioctls fail with `ENOTTY`.

use client::{Client, Cred};
use rustix::ioctl::{Opcode, opcode};
use std::ffi::c_long;
use wire::{
    Errno, Fid, LUSTRE_APPEND_FL, LUSTRE_IMMUTABLE_FL, LUSTRE_NOATIME_FL, LUSTRE_NODUMP_FL,
    LUSTRE_PROJINHERIT_FL, LUSTRE_SYNC_FL,
};

/// `struct fsxattr`: `fsx_xflags`, `fsx_extsize`, `fsx_nextents`, `fsx_projid`, and three words
/// that are unused here.
type Fsxattr = [u32; 7];

const GET_FLAGS: Opcode = opcode::read::<c_long>(b'f', 1);
const SET_FLAGS: Opcode = opcode::write::<c_long>(b'f', 2);
const GET_XATTR: Opcode = opcode::read::<Fsxattr>(b'X', 31);
const SET_XATTR: Opcode = opcode::write::<Fsxattr>(b'X', 32);

/// Inode flags, each with its `FS_XFLAG_*`.
const XFLAGS: [(u32, u32); 6] = [
    (LUSTRE_IMMUTABLE_FL, 0x8),
    (LUSTRE_APPEND_FL, 0x10),
    (LUSTRE_SYNC_FL, 0x20),
    (LUSTRE_NOATIME_FL, 0x40),
    (LUSTRE_NODUMP_FL, 0x80),
    (LUSTRE_PROJINHERIT_FL, 0x200),
];

/// An ioctl of `chattr` or `lsattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlagsIoctl {
    /// `FS_IOC_GETFLAGS`.
    GetFlags,
    /// `FS_IOC_SETFLAGS`, with the inode flags to set; it clears all others.
    SetFlags(u32),
    /// `FS_IOC_FSGETXATTR`.
    GetXattr,
    /// `FS_IOC_FSSETXATTR`; `xflags` are `FS_XFLAG_*`, `projid` is the project ID.
    SetXattr { xflags: u32, projid: u32 },
}

impl FlagsIoctl {
    /// Parses a command and its argument.
    ///
    /// # Errors
    ///
    /// `ENOTTY`: another command; `EINVAL`: the argument is too short.
    pub(crate) fn parse(command: u32, argument: &[u8]) -> Result<FlagsIoctl, fuser::Errno> {
        let word = |index: usize| {
            let bytes = argument.get(4 * index..).and_then(|rest| rest.first_chunk());
            bytes.map(|b| u32::from_ne_bytes(*b)).ok_or(fuser::Errno::EINVAL)
        };
        Ok(match Opcode::from(command) {
            GET_FLAGS => FlagsIoctl::GetFlags,
            SET_FLAGS => FlagsIoctl::SetFlags(word(0)?),
            GET_XATTR => FlagsIoctl::GetXattr,
            SET_XATTR => FlagsIoctl::SetXattr {
                xflags: word(0)?,
                projid: word(3)?,
            },
            _ => return Err(fuser::Errno::ENOTTY),
        })
    }

    /// Executes the ioctl; returns the data of the reply.
    pub(crate) async fn run(self, client: &Client, cred: &Cred, fid: Fid) -> Result<Vec<u8>, Errno> {
        let current = match self {
            FlagsIoctl::SetFlags(flags) => {
                client.set_inode_flags(cred, fid, flags, None).await?;
                return Ok(Vec::new());
            }
            _ => client.inode_flags(cred, fid).await?,
        };
        match self {
            FlagsIoctl::SetXattr { xflags, projid } => {
                let flags = with_xflags(current.flags, xflags)?;
                let projid = (projid != current.projid).then_some(projid);
                client.set_inode_flags(cred, fid, flags, projid).await?;
                Ok(Vec::new())
            }
            FlagsIoctl::GetXattr => {
                let words: Fsxattr = [xflags(current.flags), 0, 0, current.projid, 0, 0, 0];
                Ok(words.iter().flat_map(|w| w.to_ne_bytes()).collect())
            }
            _ => Ok(current.flags.to_ne_bytes().to_vec()),
        }
    }
}

/// The `FS_XFLAG_*` of these inode flags.
fn xflags(flags: u32) -> u32 {
    let set = XFLAGS.iter().filter(|(flag, _)| flags & flag != 0);
    set.fold(0, |all, (_, xflag)| all | xflag)
}

/// The inode flags after `xflags` are set and the other `FS_XFLAG_*` cleared. `EOPNOTSUPP`: an
/// unknown `FS_XFLAG_*`.
fn with_xflags(flags: u32, xflags: u32) -> Result<u32, Errno> {
    let known = XFLAGS.iter().fold(0, |all, (_, xflag)| all | xflag);
    if xflags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(XFLAGS
        .iter()
        .fold(flags, |flags, (flag, xflag)| match xflags & xflag {
            0 => flags & !flag,
            _ => flags | flag,
        }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{FlagsIoctl, with_xflags, xflags};
    use wire::{Errno, LUSTRE_APPEND_FL, LUSTRE_DIRSYNC_FL, LUSTRE_IMMUTABLE_FL};

    #[test]
    fn commands_have_linuxs_numbers() {
        let parse = FlagsIoctl::parse;
        assert_eq!(parse(0x8008_6601, &[]).unwrap(), FlagsIoctl::GetFlags);
        let flags = 0x10u32.to_ne_bytes();
        assert_eq!(parse(0x4008_6602, &flags).unwrap(), FlagsIoctl::SetFlags(0x10));
        assert_eq!(parse(0x801c_581f, &[]).unwrap(), FlagsIoctl::GetXattr);
        let mut fsxattr = [0; 28];
        (fsxattr[0], fsxattr[12]) = (8, 7);
        let set = FlagsIoctl::SetXattr { xflags: 8, projid: 7 };
        assert_eq!(parse(0x401c_5820, &fsxattr).unwrap(), set);
        assert!(parse(0x401c_5820, &fsxattr[..12]).is_err());
        assert!(parse(0x5401, &[]).is_err());
    }

    #[test]
    fn setting_xflags_keeps_flags_without_an_xflag() {
        let flags = LUSTRE_DIRSYNC_FL | LUSTRE_APPEND_FL;
        assert_eq!(xflags(flags), 0x10);
        assert_eq!(
            with_xflags(flags, 0x8),
            Ok(LUSTRE_DIRSYNC_FL | LUSTRE_IMMUTABLE_FL)
        );
        assert_eq!(with_xflags(flags, 0x8000), Err(Errno::EOPNOTSUPP));
    }
}
