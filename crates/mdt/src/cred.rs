//! Who asks: the identity that a request carries, and what it may do to an inode.
//!
//! A request's identity is what the client packed (`fsuid`, `fsgid`, capabilities, up to two supplementary groups that
//! matter for the objects at hand), as far as [`crate::squash`] believes it; there is no identity upcall. The rules are
//! POSIX's: owner, then access ACL, then group, then others; capabilities override as in Linux.

use wire::Errno;

use crate::{acl, store::Inode};

/// `CAP_CHOWN`: change any owner.
const CAP_CHOWN: u32 = 1 << 0;
/// `CAP_DAC_OVERRIDE`: read, write and search anything; execute what somebody may execute.
const CAP_DAC_OVERRIDE: u32 = 1 << 1;
/// `CAP_DAC_READ_SEARCH`: read anything, search any directory.
const CAP_DAC_READ_SEARCH: u32 = 1 << 2;
/// `CAP_FOWNER`: act as owner.
const CAP_FOWNER: u32 = 1 << 3;
/// `CAP_FSETID`: keep or set a set-group-ID bit of a foreign group.
const CAP_FSETID: u32 = 1 << 4;
/// `CAP_LINUX_IMMUTABLE`: set and clear the immutable and append-only flags.
const CAP_LINUX_IMMUTABLE: u32 = 1 << 9;
/// `CAP_SYS_ADMIN`: `trusted.*` attributes.
const CAP_SYS_ADMIN: u32 = 1 << 21;
/// `CAP_MKNOD`: make devices.
const CAP_MKNOD: u32 = 1 << 27;
/// `CAP_SETFCAP`: give programs capabilities.
const CAP_SETFCAP: u32 = 1 << 31;

/// The capabilities that this target looks at, by their names.
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

/// Execute, or search a directory.
pub const MAY_EXEC: u32 = 1;
/// Write, or change a directory's entries.
pub const MAY_WRITE: u32 = 2;
/// Read.
pub const MAY_READ: u32 = 4;

/// The identity of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// User of file system accesses.
    pub fsuid: u32,
    /// Group of file system accesses.
    pub fsgid: u32,
    /// Supplementary groups that the client names (`u32::MAX`: none).
    pub suppgids: [u32; 2],
    /// Linux capabilities 0 to 31.
    pub cap: u32,
    /// File creation mask.
    pub umask: u32,
}

impl Cred {
    /// The superuser: the target's own operations, and tests.
    pub fn root() -> Cred {
        Cred {
            suppgids: [u32::MAX; 2],
            cap: u32::MAX,
            ..Cred::default()
        }
    }

    /// Whether the identity is in this group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || (gid != u32::MAX && self.suppgids.contains(&gid))
    }

    fn has(&self, cap: u32) -> bool {
        self.cap & cap != 0
    }

    /// Whether the identity acts as the inode's owner.
    pub fn owns(&self, inode: &Inode) -> bool {
        self.fsuid == inode.uid || self.has(CAP_FOWNER)
    }

    /// Whether it may give files away.
    pub fn may_chown(&self) -> bool {
        self.has(CAP_CHOWN)
    }

    /// Whether a set-group-ID bit may stay on an inode of this group.
    pub fn may_keep_sgid(&self, gid: u32) -> bool {
        self.in_group(gid) || self.has(CAP_FSETID)
    }

    /// Whether a file that it writes to may stay set-user-ID or set-group-ID.
    pub fn may_write_set_id(&self) -> bool {
        self.has(CAP_FSETID)
    }

    /// Whether the immutable and append-only flags may be changed.
    pub fn may_set_immutable(&self) -> bool {
        self.has(CAP_LINUX_IMMUTABLE)
    }

    /// Whether it administers the file system.
    pub fn is_admin(&self) -> bool {
        self.has(CAP_SYS_ADMIN)
    }

    /// Whether it may make block and character devices.
    pub fn may_make_devices(&self) -> bool {
        self.has(CAP_MKNOD)
    }

    /// Whether it may give programs capabilities.
    pub fn may_set_capabilities(&self) -> bool {
        self.has(CAP_SETFCAP | CAP_SYS_ADMIN)
    }

    /// Checks the access `want` (`MAY_*`) to an inode.
    pub fn check(&self, inode: &Inode, want: u32) -> Result<(), Errno> {
        let granted = if self.fsuid == inode.uid {
            inode.mode >> 6 & 7
        } else if let Some(perm) = acl::granted(&inode.acl_access, inode, self, want) {
            perm
        } else if self.in_group(inode.gid) {
            inode.mode >> 3 & 7
        } else {
            inode.mode & 7
        };
        if granted & want == want || self.overrides(inode, want) {
            return Ok(());
        }
        Err(Errno::EACCES)
    }

    fn overrides(&self, inode: &Inode, want: u32) -> bool {
        let executable = inode.is_dir() || inode.mode & 0o111 != 0;
        if self.has(CAP_DAC_OVERRIDE) && (want & MAY_EXEC == 0 || executable) {
            return true;
        }
        let reading = want == MAY_READ || (inode.is_dir() && want & MAY_WRITE == 0);
        self.has(CAP_DAC_READ_SEARCH) && reading
    }

    /// Checks that an entry of `dir` that names `child` may be removed or replaced: the sticky bit's rule.
    pub fn check_sticky(&self, dir: &Inode, child: &Inode) -> Result<(), Errno> {
        let sticky = dir.mode & 0o1000 != 0;
        if !sticky || self.fsuid == child.uid || self.fsuid == dir.uid || self.has(CAP_FOWNER) {
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
    fn the_owners_class_is_the_only_one_that_counts_for_the_owner() {
        let f = file(0o077, 10, 10);
        assert!(user(10, 10).check(&f, MAY_READ).is_err());
        assert!(user(11, 10).check(&f, MAY_READ | MAY_WRITE).is_ok());
        assert!(user(11, 11).check(&f, MAY_EXEC).is_ok());
    }

    #[test]
    fn a_supplementary_group_counts() {
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
    fn root_executes_only_what_somebody_may_execute() {
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
    fn a_sticky_directory_lets_only_owners_remove() {
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
