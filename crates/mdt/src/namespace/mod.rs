//! Operations on the name space, each one atomic transaction on the store.
//!
//! An operation has three steps. It reads what it depends on (its *view*). It plans the change: the
//! `plan_*` functions are pure, and check permissions and types. Then it applies the plan. If
//! another operation has changed an inode of the view in the meantime, the operation starts again
//! ([`run`]).
//!
//! No operation here waits for a client or for the disk: a caller that serves several clients takes
//! the locks first (see [`crate::locks`]), calls the operation, and replies. The client sends the
//! times of a change. A change of names never decreases the times of its directory.

mod attr;
mod create;
mod open;
mod rename;
mod swap;
mod unlink;
pub mod xattr;

use wire::{Errno, Fid, Time, Transno};

pub use attr::{CloseAttrs, SetattrArgs, apply_close_attrs, setattr};
pub use create::{NewInode, create, create_volatile, link, set_layout};
pub(crate) use create::{check_fid, create_resolved};
pub(crate) use open::drop_handle;
pub use open::{
    OpenMode, close, has_executors, has_lease, open, open_with_lease, record_access, release_handle,
};
pub use rename::{RenameArgs, is_at_or_below, rename};
pub use swap::{check_swap, swap_layouts};
pub(crate) use unlink::{NameToRemove, remove_dangling_name, unlink_entry, unlink_unused};
pub use unlink::{UnlinkArgs, destroy_orphan, unlink};

use crate::{
    cred::{Cred, MAY_EXEC, MAY_WRITE},
    store::{
        Applied, ApplyError, Change, DIR_BLOCK, Entry, Inode, OpenCounts, RequestStore, Stamp, Store, links,
    },
};

/// `LUSTRE_IMMUTABLE_FL`: the inode cannot change.
pub(crate) const IMMUTABLE: u32 = wire::LUSTRE_IMMUTABLE_FL;
/// `LUSTRE_APPEND_FL`: data can only be appended, names only added.
pub(crate) const APPEND: u32 = wire::LUSTRE_APPEND_FL;
/// The version that `pb_pre_versions` has for a missing inode.
const ENOENT_VERSION: u64 = 1;
/// Maximum length of a name, bytes.
const NAME_MAX: usize = 255;

/// The result of a change.
#[derive(Clone, Debug)]
pub struct ChangeResult {
    /// The transaction number of the change.
    pub transno: Transno,
    /// The FID of the inode that the reply describes.
    pub fid: Fid,
    /// The same inode, after the change.
    pub inode: Inode,
    /// The versions of the inodes before the change (`pb_pre_versions`); 0 for unused positions.
    pub pre_versions: [u64; 4],
}

/// A planned operation.
struct Plan {
    /// The change of the store; `None` if only the counts of open handles change.
    change: Option<Change>,
    /// The new counts of the inode's open handles; `None`: they do not change.
    opens: Option<OpenCounts>,
    /// The FID of the inode that the reply describes.
    fid: Fid,
    /// The same inode, after the change.
    inode: Inode,
    /// The versions of the inodes before the change. The first positions belong to the directories
    /// in which the plan changes names; [`Plan::apply`] sets them.
    pre_versions: [u64; 4],
}

impl Plan {
    /// A plan that leaves the counts of open handles as they are.
    fn new(change: Change, fid: Fid, inode: Inode, pre_versions: [u64; 4]) -> Plan {
        Plan {
            change: Some(change),
            opens: None,
            fid,
            inode,
            pre_versions,
        }
    }

    /// Applies the plan. `None` if a stamped inode has changed since the stamp.
    ///
    /// # Errors
    ///
    /// As [`Store::apply_if_current`].
    fn apply(self, store: RequestStore<'_>, stamp: &Stamp) -> Result<Option<ChangeResult>, Errno> {
        let Plan {
            mut change,
            opens,
            fid,
            mut inode,
            mut pre_versions,
        } = self;
        if let Some(change) = &mut change {
            (change.origin, change.pre_versions) = (store.origin(), pre_versions);
        }
        let changes_inode = change.as_ref().is_some_and(|change| change.puts_inode(fid));
        let dirs = change.as_ref().map_or(0, Change::dirs_changed);
        let applied = store.apply_if_current(stamp, change, opens.map(|opens| (fid, opens)));
        let Applied {
            transno,
            dir_versions,
        } = match applied {
            Ok(applied) => applied,
            Err(ApplyError::Stale) => return Ok(None),
            Err(ApplyError::Failed(errno)) => return Err(errno),
        };
        if changes_inode {
            inode.version = transno.0;
        }
        pre_versions[..dirs].copy_from_slice(&dir_versions[..dirs]);
        Ok(Some(ChangeResult {
            transno,
            fid,
            inode,
            pre_versions,
        }))
    }
}

/// Calls `plan`, which reads the view and plans the change, and applies the plan. Repeats both if
/// another operation has changed one of the inodes `fids` in the meantime. Each repetition means
/// that another operation has completed, so the operations as a whole make progress.
fn run(
    store: RequestStore<'_>,
    fids: &[Fid],
    mut plan: impl FnMut() -> Result<Plan, Errno>,
) -> Result<ChangeResult, Errno> {
    loop {
        let stamp = store.stamp(fids);
        if let Some(result) = plan()?.apply(store, &stamp)? {
            return Ok(result);
        }
    }
}

/// As [`run`], for an operation that may find nothing to change (`None`).
fn run_if_needed(
    store: RequestStore<'_>,
    fids: &[Fid],
    mut plan: impl FnMut() -> Result<Option<Plan>, Errno>,
) -> Result<Option<ChangeResult>, Errno> {
    loop {
        let stamp = store.stamp(fids);
        let Some(plan) = plan()? else {
            return Ok(None);
        };
        if let Some(result) = plan.apply(store, &stamp)? {
            return Ok(Some(result));
        }
    }
}

/// Checks that a name is valid for an entry.
///
/// # Errors
///
/// `EINVAL` for an empty name, ".", "..", or a name with a slash or NUL; `ENAMETOOLONG` for a name
/// of more than 255 bytes.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Reads a directory. `ENOTDIR` for another inode, `ENOENT` if the directory was removed.
fn directory(store: &Store, fid: Fid) -> Result<Inode, Errno> {
    let dir = store.inode(fid)?;
    check_dir(&dir)?;
    Ok(dir)
}

/// `ENOTDIR` if the inode is no directory, `ENOENT` if it was removed.
fn check_dir(dir: &Inode) -> Result<(), Errno> {
    match () {
        _ if !dir.is_dir() => Err(Errno::ENOTDIR),
        _ if dir.nlink == 0 => Err(Errno::ENOENT),
        _ => Ok(()),
    }
}

/// Reads a directory in which the caller wants to change names. `EACCES` if the user may not search
/// it, `EPERM` for `.lustre`.
pub(crate) fn searchable_dir(store: &Store, cred: &Cred, fid: Fid) -> Result<Inode, Errno> {
    check_not_dot_lustre(fid)?;
    let dir = store.inode(fid)?;
    check_searchable(cred, &dir)?;
    Ok(dir)
}

/// Checks a directory in which the caller wants to change names. `EACCES` if the user may not
/// search it, or an error of [`check_dir`].
fn check_searchable(cred: &Cred, dir: &Inode) -> Result<(), Errno> {
    check_dir(dir)?;
    cred.check(dir, MAY_EXEC)
}

/// `EPERM` for `.lustre` and the directories in it: their entries never change.
pub(crate) fn check_not_dot_lustre(fid: Fid) -> Result<(), Errno> {
    match fid.is_dot_lustre() {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// Checks the directory and the name of a change, before the caller takes locks.
pub(crate) fn check_name_change(store: &Store, cred: &Cred, dir: Fid, name: &[u8]) -> Result<(), Errno> {
    check_name(name)?;
    searchable_dir(store, cred, dir).map(drop)
}

/// Checks the permission to add entries to a directory.
fn check_may_add(cred: &Cred, dir: &Inode) -> Result<(), Errno> {
    if dir.flags & IMMUTABLE != 0 {
        return Err(Errno::EPERM);
    }
    cred.check(dir, MAY_WRITE | MAY_EXEC)
}

/// Checks the permission to remove the entry of `child` from a directory.
fn check_may_delete(cred: &Cred, dir: &Inode, child: &Inode) -> Result<(), Errno> {
    cred.check(dir, MAY_WRITE | MAY_EXEC)?;
    cred.check_sticky(dir, child)?;
    if dir.flags & (IMMUTABLE | APPEND) != 0 || child.flags & (IMMUTABLE | APPEND) != 0 {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// Looks up a name, including "." and ".."; `None` if there is no entry.
///
/// # Errors
///
/// `ENOENT` if the directory is gone; `ENOTDIR` if it is no directory; `EACCES` without search
/// permission; `ENAMETOOLONG`.
pub fn lookup(store: &Store, cred: &Cred, dir: Fid, name: &[u8]) -> Result<Option<Entry>, Errno> {
    Resolved::read(store, cred, dir, name).map(|resolved| resolved.entry)
}

/// The result of the lookup of a name.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// The directory.
    pub dir: Inode,
    /// The entry; `None` if there is none.
    pub entry: Option<Entry>,
}

impl Resolved {
    /// Looks up a name.
    ///
    /// # Errors
    ///
    /// As [`lookup`].
    pub(crate) fn read(store: &Store, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Resolved, Errno> {
        let dir = store.inode(fid)?;
        Resolved::read_in(store, cred, fid, dir, name)
    }

    /// Looks up the name again in its directory `fid`, after the request has locked the name. Reads
    /// the entry only if the directory has changed since the first lookup.
    ///
    /// # Errors
    ///
    /// As [`lookup`].
    pub(crate) fn refresh(
        self,
        store: &Store,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> Result<Resolved, Errno> {
        let dir = store.inode(fid)?;
        match dir.version == self.dir.version {
            true => Ok(self),
            false => Resolved::read_in(store, cred, fid, dir, name),
        }
    }

    fn read_in(store: &Store, cred: &Cred, fid: Fid, dir: Inode, name: &[u8]) -> Result<Resolved, Errno> {
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        cred.check(&dir, MAY_EXEC)?;
        let kind = dir.kind();
        let entry = match name {
            b"." => Some(Entry { fid, kind }),
            b".." => Some(Entry {
                fid: parent_of(fid, &dir),
                kind,
            }),
            _ if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
            _ => store.entry(fid, name)?,
        };
        Ok(Resolved { dir, entry })
    }
}

/// A directory's parent; the root is its own parent.
pub fn parent_of(fid: Fid, dir: &Inode) -> Fid {
    links::parent_of_dir(&dir.links).unwrap_or(fid)
}

/// Creates the root directory with this owner and group, unless it exists.
///
/// # Errors
///
/// The error of reading or changing the store.
pub fn make_root(store: &Store, (uid, gid): (u32, u32), now: Time) -> Result<(), Errno> {
    if store.find(Fid::ROOT)?.is_none() {
        let root = Inode {
            mode: 0o040755,
            uid,
            gid,
            nlink: 2,
            size: DIR_BLOCK,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Inode::default()
        };
        let mut change = Change::new();
        change.make_inode(Fid::ROOT, &root);
        store.apply(change)?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
