//! POSIX access control lists, in the format of the `system.posix_acl_*` attributes.
//!
//! The MDT checks an ACL when a user sets it, and stores it in the same format (version 2; entries
//! of tag, permissions and id). The rules are those of POSIX 1003.1e as implemented by Linux. The
//! permission bits of the mode equal three entries of the ACL: the owner's, the others', and for
//! the group bits the mask. In an ACL without a mask, the group bits equal the owning group's
//! entry. The mask limits named users and all groups. An ACL with neither mask nor named entries is
//! equivalent to the mode.

use bytes::Bytes;
use wire::{
    Errno, PosixAclXattrEntry,
    acl::{ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, PosixAcl},
};

use crate::{cred::Cred, store::Inode};

/// Maximum number of entries: an ACL must fit into a client's reply buffer.
const ENTRIES_MAX: usize = 8 * 1024;

/// The attribute with the access ACL.
pub(crate) const XATTR_ACCESS: &[u8] = wire::XATTR_NAME_ACL_ACCESS.as_bytes();
/// The attribute of a directory with the default ACL of its new children.
pub(crate) const XATTR_DEFAULT: &[u8] = wire::XATTR_NAME_ACL_DEFAULT.as_bytes();

type Entry = PosixAclXattrEntry;

/// Parses and checks an ACL. `EINVAL` if it is malformed, `E2BIG` if it has too many entries.
fn parse(bytes: &[u8]) -> Result<Vec<Entry>, Errno> {
    let entries = PosixAcl::parse(bytes).map_err(|_| Errno::EINVAL)?.entries;
    if entries.len() > ENTRIES_MAX {
        return Err(Errno::E2BIG);
    }
    let order = [
        ACL_USER_OBJ,
        ACL_USER,
        ACL_GROUP_OBJ,
        ACL_GROUP,
        ACL_MASK,
        ACL_OTHER,
    ];
    let mut last_rank = None;
    for entry in &entries {
        let rank = order
            .iter()
            .position(|tag| *tag == entry.e_tag)
            .ok_or(Errno::EINVAL)?;
        let is_named = matches!(entry.e_tag, ACL_USER | ACL_GROUP);
        if entry.e_perm > 7 || last_rank.is_some_and(|last| rank < last || (rank == last && !is_named)) {
            return Err(Errno::EINVAL);
        }
        last_rank = Some(rank);
    }
    let has = |tag| entries.iter().any(|e| e.e_tag == tag);
    let is_complete = has(ACL_USER_OBJ) && has(ACL_GROUP_OBJ) && has(ACL_OTHER);
    if !is_complete || ((has(ACL_USER) || has(ACL_GROUP)) && !has(ACL_MASK)) {
        return Err(Errno::EINVAL);
    }
    Ok(entries)
}

/// Checks an ACL, like [`parse`].
pub(crate) fn check(bytes: &[u8]) -> Result<(), Errno> {
    parse(bytes).map(drop)
}

fn build(entries: Vec<Entry>) -> Bytes {
    PosixAcl { entries }.build()
}

/// The permissions of the first entry with this tag.
fn permissions_of(entries: &[Entry], tag: u16) -> Option<u32> {
    entries
        .iter()
        .find(|e| e.e_tag == tag)
        .map(|e| u32::from(e.e_perm))
}

/// The permission bits of the mode that corresponds to an ACL.
fn mode_bits(entries: &[Entry]) -> u32 {
    let group = permissions_of(entries, ACL_MASK)
        .or(permissions_of(entries, ACL_GROUP_OBJ))
        .unwrap_or(0);
    permissions_of(entries, ACL_USER_OBJ).unwrap_or(0) << 6
        | group << 3
        | permissions_of(entries, ACL_OTHER).unwrap_or(0)
}

/// Whether an ACL is equivalent to a mode: no named entries, no mask.
fn is_mode_only(entries: &[Entry]) -> bool {
    entries
        .iter()
        .all(|e| matches!(e.e_tag, ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER))
}

/// The permissions (`MAY_*`) that an ACL grants to a user other than the owner; `want` has the
/// permissions that the user requests. `None` without a valid ACL.
pub(crate) fn granted_permissions(acl: &[u8], inode: &Inode, cred: &Cred, want: u32) -> Option<u32> {
    if acl.is_empty() {
        return None;
    }
    let entries = parse(acl).ok()?;
    let mask = permissions_of(&entries, ACL_MASK).unwrap_or(7);
    if let Some(entry) = entries
        .iter()
        .find(|e| e.e_tag == ACL_USER && e.e_id == cred.fsuid)
    {
        return Some(u32::from(entry.e_perm) & mask);
    }
    let groups = entries.iter().filter(|e| match e.e_tag {
        ACL_GROUP_OBJ => cred.in_group(inode.gid),
        ACL_GROUP => cred.in_group(e.e_id),
        _ => false,
    });
    // Of several matching groups, one that grants all of `want` suffices. The entry of others
    // applies only if no group matches.
    let best = groups
        .map(|e| u32::from(e.e_perm) & mask)
        .reduce(|a, b| if a & want == want { a } else { b });
    best.or_else(|| permissions_of(&entries, ACL_OTHER))
}

/// Sets an inode's access ACL and updates the mode. An ACL equivalent to the mode is not stored. An
/// empty ACL removes the stored ACL and keeps the mode.
pub(crate) fn set_access(inode: &mut Inode, acl: &[u8]) -> Result<(), Errno> {
    if acl.is_empty() {
        inode.acl_access = Bytes::new();
        return Ok(());
    }
    let entries = parse(acl)?;
    inode.mode = inode.mode & !0o777 | mode_bits(&entries);
    inode.acl_access = if is_mode_only(&entries) {
        Bytes::new()
    } else {
        build(entries)
    };
    Ok(())
}

/// Sets a directory's default ACL; an empty ACL removes the stored one. `EACCES` if the ACL is not
/// empty and the inode is no directory.
pub(crate) fn set_default(inode: &mut Inode, acl: &[u8]) -> Result<(), Errno> {
    if !acl.is_empty() && !inode.is_dir() {
        return Err(Errno::EACCES);
    }
    inode.acl_default = if acl.is_empty() {
        Bytes::new()
    } else {
        build(parse(acl)?)
    };
    Ok(())
}

/// Updates the entries of the stored access ACL that must equal the mode, after a change of mode.
pub(crate) fn update_acl_from_mode(inode: &mut Inode) {
    let Ok(mut entries) = parse(&inode.acl_access) else {
        return;
    };
    let has_mask = permissions_of(&entries, ACL_MASK).is_some();
    for entry in &mut entries {
        let shift = match entry.e_tag {
            ACL_USER_OBJ => 6,
            ACL_MASK => 3,
            ACL_GROUP_OBJ if !has_mask => 3,
            ACL_OTHER => 0,
            _ => continue,
        };
        entry.e_perm = (inode.mode >> shift & 7) as u16;
    }
    inode.acl_access = build(entries);
}

/// Sets the mode and ACLs of a new inode: applies the parent's default ACL, or the umask if the
/// parent has no default ACL. Leaves a symlink unchanged.
pub(crate) fn inherit(child: &mut Inode, parent: &Inode, umask: u32) {
    if child.is_symlink() {
        return;
    }
    let Ok(mut entries) = parse(&parent.acl_default) else {
        child.mode &= !(umask & 0o777);
        return;
    };
    if child.is_dir() {
        child.acl_default = parent.acl_default.clone();
    }
    let has_mask = permissions_of(&entries, ACL_MASK).is_some();
    for entry in &mut entries {
        let shift = match entry.e_tag {
            ACL_USER_OBJ => 6,
            ACL_MASK => 3,
            ACL_GROUP_OBJ if !has_mask => 3,
            ACL_OTHER => 0,
            _ => continue,
        };
        entry.e_perm &= (child.mode >> shift & 7) as u16;
    }
    child.mode = child.mode & !0o777 | mode_bits(&entries);
    child.acl_access = if is_mode_only(&entries) {
        Bytes::new()
    } else {
        build(entries)
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{
        ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, Entry, build, inherit,
        set_access, update_acl_from_mode,
    };
    use crate::{
        cred::{Cred, MAY_READ, MAY_WRITE},
        store::Inode,
    };

    fn acl(entries: &[(u16, u16, u32)]) -> bytes::Bytes {
        build(
            entries
                .iter()
                .map(|&(e_tag, e_perm, e_id)| Entry { e_tag, e_perm, e_id })
                .collect(),
        )
    }

    fn acl_with_named_entries() -> bytes::Bytes {
        let none = u32::MAX;
        acl(&[
            (ACL_USER_OBJ, 6, none),
            (ACL_USER, 6, 1234),
            (ACL_GROUP_OBJ, 4, none),
            (ACL_GROUP, 6, 55),
            (ACL_MASK, 6, none),
            (ACL_OTHER, 0, none),
        ])
    }

    #[test]
    fn mask_limits_named_entries_and_equals_the_group_bits() {
        let mut file = Inode {
            mode: 0o100640,
            uid: 1,
            gid: 2,
            ..Inode::default()
        };
        set_access(&mut file, &acl_with_named_entries()).unwrap();
        assert_eq!(file.mode, 0o100660);
        let user = Cred {
            fsuid: 1234,
            fsgid: 9,
            cap: 0,
            ..Cred::root()
        };
        assert!(user.check(&file, MAY_READ | MAY_WRITE).is_ok());
        let member = Cred {
            fsuid: 8,
            fsgid: 55,
            ..user.clone()
        };
        assert!(member.check(&file, MAY_WRITE).is_ok());
        file.mode = 0o100640;
        update_acl_from_mode(&mut file);
        assert!(user.check(&file, MAY_WRITE).is_err());
        assert!(
            Cred {
                fsuid: 8,
                fsgid: 9,
                ..user
            }
            .check(&file, MAY_READ)
            .is_err()
        );
    }

    #[test]
    fn acl_equivalent_to_the_mode_is_not_stored() {
        let mut file = Inode {
            mode: 0o100600,
            ..Inode::default()
        };
        set_access(
            &mut file,
            &acl(&[(ACL_USER_OBJ, 7, 0), (ACL_GROUP_OBJ, 5, 0), (ACL_OTHER, 5, 0)]),
        )
        .unwrap();
        assert_eq!(file.mode, 0o100755);
        assert!(file.acl_access.is_empty());
    }

    #[test]
    fn malformed_acls_are_errors() {
        let mut file = Inode {
            mode: 0o100600,
            ..Inode::default()
        };
        let no_mask = acl(&[
            (ACL_USER_OBJ, 7, 0),
            (ACL_USER, 5, 7),
            (ACL_GROUP_OBJ, 5, 0),
            (ACL_OTHER, 5, 0),
        ]);
        let unordered = acl(&[(ACL_OTHER, 5, 0), (ACL_GROUP_OBJ, 5, 0), (ACL_USER_OBJ, 7, 0)]);
        for bad in [
            &no_mask[..],
            &unordered[..],
            &acl_with_named_entries()[..30],
            b"\x01",
            b"\x02\0\0\0",
        ] {
            assert!(set_access(&mut file, bad).is_err());
        }
        assert!(file.acl_access.is_empty());
    }

    #[test]
    fn default_acl_replaces_the_umask() {
        let none = u32::MAX;
        let default = acl(&[
            (ACL_USER_OBJ, 7, none),
            (ACL_GROUP_OBJ, 5, none),
            (ACL_GROUP, 7, 55),
            (ACL_MASK, 7, none),
            (ACL_OTHER, 5, none),
        ]);
        let parent = Inode {
            mode: 0o040755,
            acl_default: default.clone(),
            ..Inode::default()
        };
        let mut file = Inode {
            mode: 0o100666,
            ..Inode::default()
        };
        inherit(&mut file, &parent, 0o022);
        assert_eq!(file.mode, 0o100664);
        let expected = acl(&[
            (ACL_USER_OBJ, 6, none),
            (ACL_GROUP_OBJ, 5, none),
            (ACL_GROUP, 7, 55),
            (ACL_MASK, 6, none),
            (ACL_OTHER, 4, none),
        ]);
        assert_eq!(file.acl_access, expected);
        let mut dir = Inode {
            mode: 0o040777,
            ..Inode::default()
        };
        inherit(&mut dir, &parent, 0o077);
        assert_eq!((dir.mode, &dir.acl_default), (0o040775, &default));
    }

    #[test]
    fn umask_applies_without_a_default_acl() {
        let mut file = Inode {
            mode: 0o100666,
            ..Inode::default()
        };
        inherit(
            &mut file,
            &Inode {
                mode: 0o040755,
                ..Inode::default()
            },
            0o027,
        );
        assert_eq!(file.mode, 0o100640);
    }
}
