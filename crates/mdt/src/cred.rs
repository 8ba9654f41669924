//! The identity of a request, and its permissions on an inode.
//!
//! The client sends the identity (`fsuid`, `fsgid`, capabilities, up to two relevant supplementary
//! groups), and [`crate::squash`] may replace it; there is no identity upcall. As in POSIX, the
//! owner's bits apply to the owner. For another user, the access ACL applies if there is one;
//! without it, the group's bits apply to members of the group, and the others' bits to the rest.
//! Capabilities override the permissions as in Linux.

use wire::Errno;

use crate::{
    acl,
    store::{Inode, S_ISVTX},
};

/// `CAP_CHOWN`: change the owner of any file.
const CAP_CHOWN: u32 = 1 << 0;
/// `CAP_DAC_OVERRIDE`: read, write and search anything; execute a file with any execute bit.
const CAP_DAC_OVERRIDE: u32 = 1 << 1;
/// `CAP_DAC_READ_SEARCH`: read anything, search any directory.
const CAP_DAC_READ_SEARCH: u32 = 1 << 2;
/// `CAP_FOWNER`: act as owner.
const CAP_FOWNER: u32 = 1 << 3;
/// `CAP_FSETID`: keep set-ID bits when writing; keep or set the set-group-ID bit for a group that
/// the user is not in.
const CAP_FSETID: u32 = 1 << 4;
/// `CAP_LINUX_IMMUTABLE`: set and clear the immutable and append-only flags.
const CAP_LINUX_IMMUTABLE: u32 = 1 << 9;
/// `CAP_SYS_ADMIN`: administer the file system, for example set `trusted.*` attributes.
const CAP_SYS_ADMIN: u32 = 1 << 21;
/// `CAP_MKNOD`: create devices.
const CAP_MKNOD: u32 = 1 << 27;
/// `CAP_SETFCAP`: set file capabilities.
const CAP_SETFCAP: u32 = 1 << 31;

/// The capabilities that this target checks, with their names.
pub(crate) const CAPABILITIES: [(&str, u32); 9] = [
    ("cap_chown", CAP_CHOWN),
    ("cap_dac_override", CAP_DAC_OVERRIDE),
    ("cap_dac_read_search", CAP_DAC_READ_SEARCH),
    ("cap_fowner", CAP_FOWNER),
    ("cap_fsetid", CAP_FSETID),
    ("cap_linux_immutable", CAP_LINUX_IMMUTABLE),
    ("cap_sys_admin", CAP_SYS_ADMIN),
    ("cap_mknod", CAP_MKNOD),
    ("cap_setfcap", CAP_SETFCAP),
];

/// Execute a file, or search a directory.
pub const MAY_EXEC: u32 = 1;
/// Write a file, or change a directory's entries.
pub const MAY_WRITE: u32 = 2;
/// Read a file, or list a directory.
pub const MAY_READ: u32 = 4;

/// The identity of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// User id for file access.
    pub fsuid: u32,
    /// Group id for file access.
    pub fsgid: u32,
    /// Supplementary groups sent by the client (`u32::MAX`: none).
    pub suppgids: [u32; 2],
    /// Linux capabilities 0 to 31, one bit each.
    pub cap: u32,
    /// File creation mask.
    pub umask: u32,
    /// Whether the client replays the request: it passed all checks of permission when it was first
    /// executed, and modes may have changed since.
    pub is_replay: bool,
}

impl Cred {
    /// The superuser, for the target's own operations and tests.
    pub fn root() -> Cred {
        Cred {
            suppgids: [u32::MAX; 2],
            cap: u32::MAX,
            ..Cred::default()
        }
    }

    /// Whether the user is a member of the group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || (gid != u32::MAX && self.suppgids.contains(&gid))
    }

    /// Whether the user has any of these capabilities.
    fn has(&self, caps: u32) -> bool {
        self.cap & caps != 0
    }

    /// Whether one of these capabilities, or the first execution of a replayed request, permits the
    /// operation.
    fn may(&self, caps: u32) -> bool {
        self.is_replay || self.has(caps)
    }

    /// Whether the user owns the inode or may act as its owner.
    pub fn owns(&self, inode: &Inode) -> bool {
        self.fsuid == inode.uid || self.may(CAP_FOWNER)
    }

    /// Whether the user may change the owner of files.
    pub fn may_chown(&self) -> bool {
        self.may(CAP_CHOWN)
    }

    /// Whether the user may keep or set the set-group-ID bit on an inode of this group.
    pub fn may_keep_sgid(&self, gid: u32) -> bool {
        self.in_group(gid) || self.has(CAP_FSETID)
    }

    /// Whether a file keeps its set-user-ID and set-group-ID bits when the user changes its data.
    pub fn may_write_set_id(&self) -> bool {
        self.has(CAP_FSETID)
    }

    /// Whether the user may change the immutable and append-only flags.
    pub fn may_set_immutable(&self) -> bool {
        self.may(CAP_LINUX_IMMUTABLE)
    }

    /// Whether the user may administer the file system.
    pub fn is_admin(&self) -> bool {
        self.may(CAP_SYS_ADMIN)
    }

    /// Whether the user may create block and character devices.
    pub fn may_make_devices(&self) -> bool {
        self.may(CAP_MKNOD)
    }

    /// Whether the user may set file capabilities.
    pub fn may_set_capabilities(&self) -> bool {
        self.may(CAP_SETFCAP | CAP_SYS_ADMIN)
    }

    /// Checks the access `want` (`MAY_*`) to an inode.
    ///
    /// # Errors
    ///
    /// `EACCES` if the access is denied.
    pub fn check(&self, inode: &Inode, want: u32) -> Result<(), Errno> {
        let granted = if self.fsuid == inode.uid {
            inode.mode >> 6 & 7
        } else if let Some(perm) = acl::granted_permissions(&inode.acl_access, inode, self, want) {
            perm
        } else if self.in_group(inode.gid) {
            inode.mode >> 3 & 7
        } else {
            inode.mode & 7
        };
        if granted & want == want || self.is_replay || self.overrides(inode, want) {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    /// Whether capabilities grant the access.
    fn overrides(&self, inode: &Inode, want: u32) -> bool {
        let is_executable = inode.is_dir() || inode.mode & 0o111 != 0;
        if self.has(CAP_DAC_OVERRIDE) && (want & MAY_EXEC == 0 || is_executable) {
            return true;
        }
        let only_reads = want == MAY_READ || (inode.is_dir() && want & MAY_WRITE == 0);
        self.has(CAP_DAC_READ_SEARCH) && only_reads
    }

    /// Checks the sticky bit's rule for removing or replacing the entry of `child` in `dir`.
    ///
    /// # Errors
    ///
    /// `EPERM` if `dir` is sticky, and the user owns neither of the two and lacks `CAP_FOWNER`.
    pub fn check_sticky(&self, dir: &Inode, child: &Inode) -> Result<(), Errno> {
        let is_sticky = dir.mode & S_ISVTX != 0;
        if !is_sticky || self.fsuid == child.uid || self.fsuid == dir.uid || self.may(CAP_FOWNER) {
            return Ok(());
        }
        Err(Errno::EPERM)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cred, MAY_EXEC, MAY_READ, MAY_WRITE};
    use crate::store::Inode;

    fn file(mode: u32, uid: u32, gid: u32) -> Inode {
        Inode {
            mode: 0o100000 | mode,
            uid,
            gid,
            ..Inode::default()
        }
    }

    fn user(uid: u32, gid: u32) -> Cred {
        Cred {
            fsuid: uid,
            fsgid: gid,
            cap: 0,
            ..Cred::root()
        }
    }

    #[test]
    fn only_the_owner_bits_apply_to_the_owner() {
        let f = file(0o077, 10, 10);
        assert!(user(10, 10).check(&f, MAY_READ).is_err());
        assert!(user(11, 10).check(&f, MAY_READ | MAY_WRITE).is_ok());
        assert!(user(11, 11).check(&f, MAY_EXEC).is_ok());
    }

    #[test]
    fn supplementary_group_grants_access() {
        let f = file(0o640, 10, 20);
        assert!(user(11, 11).check(&f, MAY_READ).is_err());
        assert!(
            Cred {
                suppgids: [u32::MAX, 20],
                ..user(11, 11)
            }
            .check(&f, MAY_READ)
            .is_ok()
        );
    }

    #[test]
    fn root_executes_only_files_with_an_execute_bit() {
        assert!(
            Cred::root()
                .check(&file(0o000, 10, 10), MAY_READ | MAY_WRITE)
                .is_ok()
        );
        assert!(Cred::root().check(&file(0o666, 10, 10), MAY_EXEC).is_err());
        assert!(Cred::root().check(&file(0o611, 10, 10), MAY_EXEC).is_ok());
        let dir = Inode {
            mode: 0o040000,
            ..Inode::default()
        };
        assert!(Cred::root().check(&dir, MAY_EXEC).is_ok());
    }

    #[test]
    fn only_owners_and_root_remove_names_from_a_sticky_directory() {
        let dir = Inode {
            mode: 0o041777,
            uid: 1,
            ..Inode::default()
        };
        let f = file(0o666, 2, 2);
        assert!(user(1, 9).check_sticky(&dir, &f).is_ok());
        assert!(user(2, 9).check_sticky(&dir, &f).is_ok());
        assert!(user(3, 2).check_sticky(&dir, &f).is_err());
        assert!(Cred::root().check_sticky(&dir, &f).is_ok());
    }
}
