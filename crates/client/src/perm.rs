//! POSIX permission checks by mode and access ACL, for operations that need no request; and the
//! supplementary group that a request carries.

use crate::attr::MdAttr;
use crate::cred::{Cred, Groups, NO_GROUP};
use wire::Errno;
use wire::acl::{ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, PosixAcl};

/// The permission bit to read a file or list a directory.
pub(crate) const READ: u32 = 4;
/// The permission bit to execute a file or search a directory.
pub(crate) const EXECUTE: u32 = 1;

/// Checks that the caller has the permissions `wanted`: a sum of [`READ`], 2 to write and
/// [`EXECUTE`].
pub(crate) fn check(cred: &Cred, md: &MdAttr, wanted: u32) -> Result<(), Errno> {
    let attr = &md.attr;
    if cred.uid == 0 && (wanted & EXECUTE == 0 || attr.is_dir() || attr.mode & 0o111 != 0) {
        return Ok(());
    }
    let is_member = |gid: u32| gid == cred.gid || cred.suppgid(gid) == gid;
    let acl = md
        .acl
        .as_ref()
        .filter(|a| !a.is_empty())
        .and_then(|a| PosixAcl::parse(a).ok());
    let granted = match acl {
        Some(acl) => permissions_by_acl(&acl, cred.uid, attr.uid, attr.gid, is_member, wanted),
        None if cred.uid == attr.uid => attr.mode >> 6 & 7,
        None if is_member(attr.gid) => attr.mode >> 3 & 7,
        None => attr.mode & 7,
    };
    if granted & wanted == wanted {
        Ok(())
    } else {
        Err(Errno::EACCES)
    }
}

/// The supplementary group that a request about a file carries; the request has space for one. If
/// no ACL names groups, it is the file's group. Otherwise it is the caller's supplementary group
/// with the highest permission bits in the ACL. [`NO_GROUP`]: no such group is a supplementary
/// group of the caller, or the caller is the superuser.
pub(crate) fn suppgid(cred: &Cred, md: &MdAttr) -> u32 {
    let has_named_groups = |acl: &PosixAcl| acl.entries.iter().any(|e| e.e_tag == ACL_GROUP);
    let Some(acl) = md
        .acl
        .as_ref()
        .and_then(|a| PosixAcl::parse(a).ok())
        .filter(has_named_groups)
    else {
        return cred.suppgid(md.attr.gid);
    };
    let resolved = Cred {
        groups: Groups::Known(cred.groups.all()),
        ..cred.clone()
    };
    acl.entries
        .iter()
        .filter_map(|e| match e.e_tag {
            ACL_GROUP_OBJ => Some((e.e_perm, resolved.suppgid(md.attr.gid))),
            ACL_GROUP => Some((e.e_perm, resolved.suppgid(e.e_id))),
            _ => None,
        })
        .filter(|(_, gid)| *gid != NO_GROUP)
        .max_by_key(|(perm, _)| *perm)
        .map_or(NO_GROUP, |(_, gid)| gid)
}

/// The permission bits that an ACL grants to user `uid`. If several entries are for groups of the
/// user, the first that grants `wanted` applies, or else the first.
fn permissions_by_acl(
    acl: &PosixAcl,
    uid: u32,
    owner: u32,
    group: u32,
    is_member: impl Fn(u32) -> bool,
    wanted: u32,
) -> u32 {
    let entry_perm = |tag: u16| {
        acl.entries
            .iter()
            .find(|e| e.e_tag == tag)
            .map(|e| u32::from(e.e_perm))
    };
    let mask = entry_perm(ACL_MASK).unwrap_or(7);
    if uid == owner {
        return entry_perm(ACL_USER_OBJ).unwrap_or(0);
    }
    if let Some(e) = acl.entries.iter().find(|e| e.e_tag == ACL_USER && e.e_id == uid) {
        return u32::from(e.e_perm) & mask;
    }
    let groups: Vec<u32> = acl
        .entries
        .iter()
        .filter(|e| match e.e_tag {
            ACL_GROUP_OBJ => is_member(group),
            ACL_GROUP => is_member(e.e_id),
            _ => false,
        })
        .map(|e| u32::from(e.e_perm) & mask)
        .collect();
    match groups.iter().find(|p| **p & wanted == wanted).or(groups.first()) {
        Some(perm) => *perm,
        None => entry_perm(ACL_OTHER).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::{READ, check, suppgid};
    use crate::attr::{Attr, MdAttr, S_IFDIR, Striping};
    use crate::cred::{Cred, Groups, NO_GROUP};
    use wire::Errno;
    use wire::PosixAclXattrEntry;
    use wire::acl::{ACL_GROUP, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER, ACL_USER, ACL_USER_OBJ, PosixAcl};

    fn dir(mode: u32, acl: &[(u16, u16, u32)]) -> MdAttr {
        let entries: Vec<_> = acl
            .iter()
            .map(|&(e_tag, e_perm, e_id)| PosixAclXattrEntry { e_tag, e_perm, e_id })
            .collect();
        let attr = Attr {
            mode: S_IFDIR | mode,
            uid: 1,
            gid: 10,
            ..Attr::default()
        };
        let acl = (!entries.is_empty()).then(|| PosixAcl { entries }.build());
        MdAttr {
            attr,
            layout: None,
            acl,
            striping: Striping::None,
            default_dir_layout: None,
        }
    }

    #[test]
    fn only_the_mode_bits_of_the_callers_class_count() {
        assert_eq!(check(&Cred::user(1, 1), &dir(0o400, &[]), READ), Ok(()));
        assert_eq!(check(&Cred::user(2, 10), &dir(0o040, &[]), READ), Ok(()));
        assert_eq!(check(&Cred::user(2, 2), &dir(0o004, &[]), READ), Ok(()));
        assert_eq!(
            check(&Cred::user(1, 10), &dir(0o077, &[]), READ),
            Err(Errno::EACCES)
        );
        assert_eq!(check(&Cred::root(), &dir(0, &[]), READ), Ok(()));
    }

    #[test]
    fn a_named_user_is_limited_by_the_mask() {
        let all = [
            (ACL_USER_OBJ, 7, 0),
            (ACL_USER, 5, 2),
            (ACL_GROUP_OBJ, 0, 0),
            (ACL_MASK, 5, 0),
            (ACL_OTHER, 0, 0),
        ];
        assert_eq!(check(&Cred::user(2, 2), &dir(0o750, &all), READ), Ok(()));
        let masked = [
            (ACL_USER_OBJ, 7, 0),
            (ACL_USER, 5, 2),
            (ACL_GROUP_OBJ, 0, 0),
            (ACL_MASK, 1, 0),
            (ACL_OTHER, 7, 0),
        ];
        assert_eq!(
            check(&Cred::user(2, 2), &dir(0o717, &masked), READ),
            Err(Errno::EACCES)
        );
        assert_eq!(check(&Cred::user(3, 3), &dir(0o717, &masked), READ), Ok(()));
    }

    #[test]
    fn the_callers_group_with_the_most_permissions_is_sent() {
        let all = [
            (ACL_USER_OBJ, 7, 0),
            (ACL_GROUP_OBJ, 0, 0),
            (ACL_GROUP, 4, 20),
            (ACL_GROUP, 6, 30),
            (ACL_MASK, 7, 0),
            (ACL_OTHER, 0, 0),
        ];
        let member = |groups: &[u32]| Cred {
            groups: Groups::Known(groups.into()),
            ..Cred::user(2, 2)
        };
        let md = dir(0o770, &all);
        assert_eq!(suppgid(&member(&[10, 20]), &md), 20);
        assert_eq!(suppgid(&member(&[10, 20, 30]), &md), 30);
        assert_eq!(suppgid(&member(&[10]), &md), 10);
        assert_eq!(suppgid(&member(&[40]), &md), NO_GROUP);
        assert_eq!(suppgid(&member(&[10, 20]), &dir(0o770, &[])), 10);
    }
}
