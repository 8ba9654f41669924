//! Operations on the name space, each one atomic transaction on the store.
//!
//! An operation has three steps. It reads what it depends on (its *view*), and may wait for the
//! index. It plans the change: the `plan_*` functions are pure, and check permissions and types.
//! Then it applies the plan, without a wait. If another operation has changed an inode of the view
//! in the meantime, the operation starts again ([`Attempts`]).
//!
//! No operation here waits for a client or for a commit: a caller that serves several clients takes
//! the locks first (see [`crate::locks`]), calls the operation, and replies. The client sends the
//! times of a change. A change of names never decreases the times of its directory.

mod attr;
mod create;
mod data;
mod open;
mod remote;
mod rename;
mod share;
mod swap;
mod unlink;
pub mod xattr;

use wire::{Errno, Fid, Time, Transno};

pub use attr::{CloseAttrs, SetattrArgs, apply_close_attrs, setattr};
pub use create::{NewInode, create, create_volatile, link, replace_layout, set_layout};
pub(crate) use create::{check_fid, create_resolved};
pub use data::{DataChange, change_data};
pub(crate) use open::drop_handle;
pub use open::{
    OpenMode, close, has_executors, has_lease, open, open_with_lease, record_access, release_handle,
};
pub(crate) use remote::{
    MovedNames, RemotePlan, check_remote_dir, plan_remote_create, plan_remote_link, plan_remote_rename,
    plan_remote_unlink,
};
pub(crate) use rename::ancestors;
pub use rename::{RenameArgs, is_at_or_below, rename};
pub(crate) use share::{Relink, Share, ShareContext, apply_share};
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

    /// Applies the plan; the stamp is from before the view was read.
    ///
    /// # Errors
    ///
    /// As [`Store::apply_if_current`].
    fn apply(self, store: RequestStore<'_>, stamp: &Stamp) -> Result<ChangeResult, ApplyError> {
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
        let Applied {
            transno,
            dir_versions,
        } = store.apply_if_current(stamp, change, opens.map(|opens| (fid, opens)))?;
        if changes_inode {
            inode.version = transno.0;
        }
        pre_versions[..dirs].copy_from_slice(&dir_versions[..dirs]);
        Ok(ChangeResult {
            transno,
            fid,
            inode,
            pre_versions,
        })
    }
}

/// The attempts to execute an operation. Each one takes a stamp of the inodes, reads the view,
/// plans the change and applies the plan. The attempt fails if another operation has changed one of
/// the inodes in the meantime. Each repetition means that another operation has completed, or that
/// the cache lacked a directory, so the operations as a whole make progress.
struct Attempts<'a> {
    store: RequestStore<'a>,
    /// The directories that the cache lacked in earlier attempts.
    unread: Vec<Fid>,
}

impl<'a> Attempts<'a> {
    fn new(store: RequestStore<'a>) -> Attempts<'a> {
        Attempts {
            store,
            unread: Vec::new(),
        }
    }

    /// Begins an attempt: stamps the inodes `fids`, before the caller reads the view.
    async fn begin(&self, fids: &[Fid]) -> Result<Stamp, Errno> {
        let mut stamp = self.store.stamp(fids);
        self.read_dirs(&mut stamp).await?;
        Ok(stamp)
    }

    /// Adds the directories that the cache lacked to a stamp.
    async fn read_dirs(&self, stamp: &mut Stamp) -> Result<(), Errno> {
        self.store.read_dirs(stamp, &self.unread).await
    }

    /// Applies the plan. `None`: the caller attempts the operation again.
    fn apply(&mut self, plan: Plan, stamp: &Stamp) -> Result<Option<ChangeResult>, Errno> {
        match plan.apply(self.store, stamp) {
            Ok(result) => Ok(Some(result)),
            Err(ApplyError::Failed(errno)) => Err(errno),
            Err(ApplyError::Stale) => Ok(None),
            Err(ApplyError::Unread(dir)) => {
                if !self.unread.contains(&dir) {
                    self.unread.push(dir);
                }
                Ok(None)
            }
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
async fn directory(store: &Store, fid: Fid) -> Result<Inode, Errno> {
    let dir = store.inode(fid).await?;
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
pub(crate) async fn searchable_dir(store: &Store, cred: &Cred, fid: Fid) -> Result<Inode, Errno> {
    check_not_dot_lustre(fid)?;
    let dir = store.inode(fid).await?;
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
pub(crate) async fn check_name_change(
    store: &Store,
    cred: &Cred,
    dir: Fid,
    name: &[u8],
) -> Result<(), Errno> {
    check_name(name)?;
    searchable_dir(store, cred, dir).await?;
    Ok(())
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
pub async fn lookup(store: &Store, cred: &Cred, dir: Fid, name: &[u8]) -> Result<Option<Entry>, Errno> {
    let resolved = Resolved::read(store, cred, dir, name).await?;
    Ok(resolved.entry)
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
    pub(crate) async fn read(store: &Store, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Resolved, Errno> {
        let dir = store.inode(fid).await?;
        Resolved::read_in(store, cred, fid, dir, name).await
    }

    /// Looks up the name again in its directory `fid`, after the request has locked the name. Reads
    /// the entry only if the directory has changed since the first lookup.
    ///
    /// # Errors
    ///
    /// As [`lookup`].
    pub(crate) async fn refresh(
        self,
        store: &Store,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
    ) -> Result<Resolved, Errno> {
        let dir = store.inode(fid).await?;
        match dir.version == self.dir.version {
            true => Ok(self),
            false => Resolved::read_in(store, cred, fid, dir, name).await,
        }
    }

    async fn read_in(
        store: &Store,
        cred: &Cred,
        fid: Fid,
        dir: Inode,
        name: &[u8],
    ) -> Result<Resolved, Errno> {
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
            _ => store.entry(fid, name).await?,
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
pub async fn make_root(store: &Store, (uid, gid): (u32, u32), now: Time) -> Result<(), Errno> {
    if store.find(Fid::ROOT).await?.is_none() {
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
        store.apply(change).await?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
