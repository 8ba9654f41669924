//! Operations on the name space, each one atomic transaction on the store.
//!
//! Nothing here waits or talks to anybody: a caller that shares names with others holds the locks on them (see
//! [`crate::locks`]), calls, and answers. Permission checks are done here, on the inodes that are held, and on the
//! directory as it is just then: whoever changes what it allows has taken it from those who have locks on names in it.
//! Times are the client's; a directory's never go back.

mod attr;
mod create;
mod open;
mod rename;
mod unlink;
pub mod xattr;

use wire::{Errno, Fid, Time, Transno};

pub use attr::{Closing, SetAttr, close_attrs, setattr};
pub(crate) use create::check_fid;
pub use create::{Node, create, link, set_layout};
pub use open::{OpenMode, accessed, close, is_executed, is_leased, lease, let_go, open};
pub use rename::{Rename, is_below, rename};
pub use unlink::{Unlink, destroy_orphan, unlink};
pub(crate) use unlink::{remove_dangling, to_unlink, unlink_entry, unlink_unused};

use crate::{
    cred::{Cred, MAY_EXEC, MAY_WRITE},
    store::{DIR_BLOCK, Entry, Inode, Store, links},
};

/// `LUSTRE_IMMUTABLE_FL`: nothing of the inode changes.
pub(crate) const IMMUTABLE: u32 = wire::LUSTRE_IMMUTABLE_FL;
/// `LUSTRE_APPEND_FL`: data is only appended, names only added.
pub(crate) const APPEND: u32 = wire::LUSTRE_APPEND_FL;
/// The version of an object that is not there, in `pb_pre_versions`.
const ENOENT_VERSION: u64 = 1;
/// Bytes of a name at most.
const NAME_MAX: usize = 255;

/// An operation that was done.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its transaction number.
    pub transno: Transno,
    /// The inode that the reply is about.
    pub fid: Fid,
    /// That inode, after the operation.
    pub inode: Inode,
    /// The versions of the objects before the operation (`pb_pre_versions`).
    pub pre_versions: [u64; 4],
}

/// Checks the form of a name for a new or an old entry.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// The directory of a name operation: there, a directory, not removed.
fn directory(store: &Store, fid: Fid) -> Result<Inode, Errno> {
    let dir = store.inode(fid)?;
    match () {
        _ if !dir.is_dir() => Err(Errno::ENOTDIR),
        _ if dir.nlink == 0 => Err(Errno::ENOENT),
        _ => Ok(dir),
    }
}

/// The directory of an operation that changes a name, for somebody who may know what is in it.
pub(crate) fn searched(store: &Store, cred: &Cred, fid: Fid) -> Result<Inode, Errno> {
    check_not_dot_lustre(fid)?;
    let dir = directory(store, fid)?;
    cred.check(&dir, MAY_EXEC)?;
    Ok(dir)
}

/// `.lustre` and the names in it stay as they are.
pub(crate) fn check_not_dot_lustre(fid: Fid) -> Result<(), Errno> {
    match fid.is_dot_lustre() {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

/// Checks what a request to change a name says, before any lock is taken for it.
pub(crate) fn check_change(store: &Store, cred: &Cred, dir: Fid, name: &[u8]) -> Result<(), Errno> {
    check_name(name)?;
    searched(store, cred, dir).map(drop)
}

/// Checks that entries may be added to a directory.
fn may_add(cred: &Cred, dir: &Inode) -> Result<(), Errno> {
    if dir.flags & IMMUTABLE != 0 {
        return Err(Errno::EPERM);
    }
    cred.check(dir, MAY_WRITE | MAY_EXEC)
}

/// Checks that a directory's entry that leads to `child` may be taken away.
fn may_delete(cred: &Cred, dir: &Inode, child: &Inode) -> Result<(), Errno> {
    cred.check(dir, MAY_WRITE | MAY_EXEC)?;
    cred.check_sticky(dir, child)?;
    if dir.flags & (IMMUTABLE | APPEND) != 0 || child.flags & (IMMUTABLE | APPEND) != 0 {
        return Err(Errno::EPERM);
    }
    Ok(())
}

/// What a name leads to; "." and ".." too.
pub fn lookup(store: &Store, cred: &Cred, dir: Fid, name: &[u8]) -> Result<Option<Entry>, Errno> {
    let inode = store.inode(dir)?;
    if !inode.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    cred.check(&inode, MAY_EXEC)?;
    match name {
        b"." => {
            return Ok(Some(Entry {
                fid: dir,
                kind: inode.kind(),
            }));
        }
        b".." => {
            return Ok(Some(Entry {
                fid: parent(dir, &inode),
                kind: inode.kind(),
            }));
        }
        _ if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG),
        _ => {}
    }
    store.entry(dir, name)
}

/// A directory's parent; the root is its own.
pub fn parent(fid: Fid, dir: &Inode) -> Fid {
    links::parent_of_dir(&dir.links).unwrap_or(fid)
}

/// Makes the root directory, once; it belongs to this user and group.
pub fn make_root(store: &Store, (uid, gid): (u32, u32), now: Time) -> Result<(), Errno> {
    let held = store.hold(&[Fid::ROOT]);
    if store.find(Fid::ROOT)?.is_none() {
        let mut root = Inode {
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
        let mut tx = store.begin();
        tx.put_inode(Fid::ROOT, &mut root);
        tx.commit()?;
    }
    drop(held);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
