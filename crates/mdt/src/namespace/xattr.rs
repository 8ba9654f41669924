//! Extended attributes: those that clients set, and those derived from the inode's record.

use bytes::Bytes;
use wire::{Errno, Fid, LustreMdtAttrs, LustreSomAttrs, SOM_FL_LAZY, Time, WireStruct};

use super::{APPEND, Attempts, ChangeResult, IMMUTABLE, Plan};
use crate::{
    acl::{self, XATTR_ACCESS, XATTR_DEFAULT},
    cred::{Cred, MAY_READ, MAY_WRITE},
    dir_layout,
    layout::LayoutRequest,
    store::{Change, Inode, RequestStore, S_ISVTX, Store},
};

/// The attribute with the layout, under the name that a Lustre server stores.
pub const XATTR_LOV: &[u8] = wire::XATTR_NAME_LOV.as_bytes();
/// The attribute with the layout, under the name that users see.
pub const XATTR_LUSTRE_LOV: &[u8] = b"lustre.lov";
/// The attribute with a directory's default layout over MDTs.
pub const XATTR_DEFAULT_LMV: &[u8] = wire::XATTR_NAME_DEFAULT_LMV.as_bytes();
const XATTR_LINK: &[u8] = wire::XATTR_NAME_LINK.as_bytes();
const XATTR_LMA: &[u8] = wire::XATTR_NAME_LMA.as_bytes();
const XATTR_SOM: &[u8] = wire::XATTR_NAME_SOM.as_bytes();
const XATTR_CAPABILITIES: &[u8] = b"security.capability";
/// Linux flag: the attribute must not exist.
const XATTR_CREATE: u32 = 1;
/// Linux flag: the attribute must exist.
const XATTR_REPLACE: u32 = 2;
/// Maximum length of an attribute's name, bytes.
const XATTR_NAME_MAX: usize = 255;
/// Maximum size of an attribute's value, bytes; clients get it as `ocd_max_easize`.
pub const VALUE_MAX: usize = 65536;

/// Arguments of setxattr.
#[derive(Clone, Debug)]
pub struct SetxattrArgs<'a> {
    /// The inode.
    pub fid: Fid,
    /// The attribute's name.
    pub name: &'a [u8],
    /// The new value; `None` removes the attribute.
    pub value: Option<Bytes>,
    /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
    pub flags: u32,
    /// The client's time.
    pub time: Time,
}

/// The value of an extended attribute.
///
/// # Errors
///
/// `ENODATA` if the attribute does not exist or the user may not see it; `EACCES` without read
/// permission, for `user.*`; `ENOENT` if the inode is gone.
pub async fn getxattr(store: &Store, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
    let inode = store.inode(fid).await?;
    if name.starts_with(b"user.") {
        cred.check(&inode, MAY_READ)?;
    }
    match derived_value(fid, &inode, name) {
        // A user without permission may not learn that the attribute exists.
        None if name.starts_with(b"trusted.") && !cred.is_admin() => Err(Errno::ENODATA),
        Some(value) if value.is_empty() => Err(Errno::ENODATA),
        Some(value) => Ok(value),
        None if inode.has_xattrs => store.xattr(fid, name).await?.ok_or(Errno::ENODATA),
        None => Err(Errno::ENODATA),
    }
}

/// The value of an attribute that the inode's record contains; empty if the inode has none. `None`
/// for an attribute with its own record.
fn derived_value(fid: Fid, inode: &Inode, name: &[u8]) -> Option<Bytes> {
    Some(match name {
        XATTR_ACCESS => inode.acl_access.clone(),
        XATTR_DEFAULT => inode.acl_default.clone(),
        XATTR_LOV | XATTR_LUSTRE_LOV => inode.lov.clone(),
        XATTR_DEFAULT_LMV => inode.default_lmv.clone(),
        XATTR_LINK => inode.links.clone(),
        XATTR_LMA => LustreMdtAttrs {
            lma_compat: 0,
            lma_incompat: 0,
            lma_self_fid: fid,
        }
        .to_bytes(),
        XATTR_SOM => inode.som.map_or(Bytes::new(), |(lsa_size, lsa_blocks)| {
            let lsa_valid = SOM_FL_LAZY as u16;
            LustreSomAttrs {
                lsa_valid,
                lsa_reserved: [0; 3],
                lsa_size,
                lsa_blocks,
            }
            .to_bytes()
        }),
        _ => return None,
    })
}

/// The attributes that `listxattr` shows, with their values: those with their own records, and the
/// ACLs. Programs that copy a file copy these attributes, so the list omits those that belong to
/// one inode, such as its layout and links.
///
/// # Errors
///
/// `ENOENT` if the inode is gone, or the error of reading the store.
pub async fn listxattr(store: &Store, fid: Fid) -> Result<Vec<(Bytes, Bytes)>, Errno> {
    let inode = store.inode(fid).await?;
    let mut all = if inode.has_xattrs {
        store.xattrs(fid).await?
    } else {
        Vec::new()
    };
    let acls = [
        (XATTR_ACCESS, inode.acl_access),
        (XATTR_DEFAULT, inode.acl_default),
    ];
    let present = acls.into_iter().filter(|(_, acl)| !acl.is_empty());
    all.extend(present.map(|(name, acl)| (Bytes::from_static(name), acl)));
    Ok(all)
}

/// The attributes that a client may cache under a lock: those of [`listxattr`], `trusted.link` and
/// `trusted.lma`. A client concludes that an attribute does not exist if it is missing here.
///
/// # Errors
///
/// `ENOENT` if the inode is gone, or the error of reading the store.
pub async fn cacheable_xattrs(store: &Store, fid: Fid) -> Result<Vec<(Bytes, Bytes)>, Errno> {
    let mut all = listxattr(store, fid).await?;
    let inode = store.inode(fid).await?;
    for name in [XATTR_LINK, XATTR_LMA] {
        let value = derived_value(fid, &inode, name).filter(|value| !value.is_empty());
        all.extend(value.map(|value| (Bytes::from_static(name), value)));
    }
    Ok(all)
}

/// Sets or removes an extended attribute.
///
/// # Errors
///
/// `EPERM`, `EACCES` without permission; `EEXIST`, `ENODATA` by the flags; `ENODATA` if an
/// attribute to remove does not exist; `ERANGE` for an invalid name; `E2BIG` for a long value;
/// `EOPNOTSUPP` for an unknown name space; `ENOSPC`; an error of the ACL or the layout.
pub async fn setxattr<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    args: &SetxattrArgs<'_>,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let (fid, name) = (args.fid, args.name);
    if name.is_empty() || name.len() > XATTR_NAME_MAX || name.contains(&0) {
        return Err(Errno::ERANGE);
    }
    if args.value.as_ref().is_some_and(|v| v.len() > VALUE_MAX) {
        return Err(Errno::E2BIG);
    }
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let inode = store.inode(fid).await?;
        let old = match inode.has_xattrs && derived_value(fid, &inode, name).is_none() {
            true => store.xattr(fid, name).await?,
            false => None,
        };
        let plan = plan_setxattr(inode, old.is_some(), cred, args)?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

/// Plans the change. `has_old`: the attribute exists, and has its own record.
fn plan_setxattr(
    mut inode: Inode,
    has_old: bool,
    cred: &Cred,
    args: &SetxattrArgs<'_>,
) -> Result<Plan, Errno> {
    let (fid, name) = (args.fid, args.name);
    if inode.flags & (IMMUTABLE | APPEND) != 0 {
        return Err(Errno::EPERM);
    }
    let pre_versions = [inode.version, 0, 0, 0];
    let value = args.value.clone().unwrap_or_default();
    let mut change = match &args.value {
        Some(_) => Change::growing(),
        None => Change::new(),
    };
    match name {
        XATTR_ACCESS | XATTR_DEFAULT if !cred.owns(&inode) => return Err(Errno::EPERM),
        XATTR_ACCESS if inode.is_symlink() => return Err(Errno::EOPNOTSUPP),
        XATTR_ACCESS => {
            acl::set_access(&mut inode, &value)?;
            if !cred.may_keep_sgid(inode.gid) {
                inode.mode &= !crate::store::S_ISGID;
            }
        }
        XATTR_DEFAULT => acl::set_default(&mut inode, &value)?,
        XATTR_LOV | XATTR_LUSTRE_LOV => set_default_layout(cred, &mut inode, args.value.as_deref())?,
        XATTR_DEFAULT_LMV => set_default_dir_layout(cred, &mut inode, args.value.as_deref())?,
        XATTR_LINK | XATTR_LMA | XATTR_SOM => return Err(Errno::EPERM),
        _ => {
            match name {
                // Every write to a file removes its capabilities, so their removal needs only write
                // permission.
                XATTR_CAPABILITIES if args.value.is_none() && cred.check(&inode, MAY_WRITE).is_ok() => {}
                _ => check_may_set(cred, &inode, name)?,
            }
            match (has_old, &args.value) {
                (true, Some(_)) if args.flags & XATTR_CREATE != 0 => return Err(Errno::EEXIST),
                (false, Some(_)) if args.flags & XATTR_REPLACE != 0 => return Err(Errno::ENODATA),
                (false, None) => return Err(Errno::ENODATA),
                (_, Some(value)) => {
                    change.set_xattr(fid, name, value.clone());
                    inode.has_xattrs = true;
                }
                (true, None) => change.remove_xattr(fid, name),
            }
        }
    }
    inode.record_change(args.time);
    change.change_inode(fid, &inode);
    Ok(Plan::new(change, fid, inode, pre_versions))
}

/// Checks the permission to set or remove an attribute that has its own record.
fn check_may_set(cred: &Cred, inode: &Inode, name: &[u8]) -> Result<(), Errno> {
    if name.starts_with(b"user.") {
        // Write permission on a symlink or a device does not permit storing user attributes on it.
        if !inode.is_file() && !inode.is_dir() {
            return Err(Errno::EPERM);
        }
        let is_sticky_dir = inode.is_dir() && inode.mode & S_ISVTX != 0;
        if is_sticky_dir && !cred.owns(inode) {
            return Err(Errno::EPERM);
        }
        cred.check(inode, MAY_WRITE)
    } else if name.starts_with(b"trusted.") {
        if cred.is_admin() {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    } else if name == XATTR_CAPABILITIES {
        // The owner of a file must not grant capabilities to it.
        if cred.may_set_capabilities() {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    } else if name.starts_with(b"security.") {
        if cred.is_admin() || cred.owns(inode) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    } else {
        Err(Errno::EOPNOTSUPP)
    }
}

/// Sets or removes a directory's default layout.
///
/// # Errors
///
/// `EPERM` if the user is not the owner; `EEXIST` for a file with a layout, `EOPNOTSUPP` for other
/// inodes that are no directory, and for a foreign layout; an error of [`LayoutRequest::parse`].
pub fn set_default_layout(cred: &Cred, inode: &mut Inode, ea: Option<&[u8]>) -> Result<(), Errno> {
    if !inode.is_dir() {
        return Err(if inode.lov.is_empty() {
            Errno::EOPNOTSUPP
        } else {
            Errno::EEXIST
        });
    }
    if !cred.owns(inode) {
        return Err(Errno::EPERM);
    }
    let layout = ea.map(LayoutRequest::parse).transpose()?.flatten();
    inode.lov = match layout {
        Some(layout) => layout.to_default_layout()?,
        None => Bytes::new(),
    };
    Ok(())
}

/// Sets or removes a directory's default layout over MDTs.
///
/// # Errors
///
/// `EPERM` if the user is not the owner; `ENOTDIR`; an error of [`dir_layout::parse`].
fn set_default_dir_layout(cred: &Cred, inode: &mut Inode, ea: Option<&[u8]>) -> Result<(), Errno> {
    if !inode.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    if !cred.owns(inode) {
        return Err(Errno::EPERM);
    }
    let layout = ea.map(dir_layout::parse).transpose()?.flatten();
    inode.default_lmv = layout.map_or(Bytes::new(), |layout| layout.to_bytes());
    Ok(())
}
