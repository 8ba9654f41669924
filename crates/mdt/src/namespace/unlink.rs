//! Removes names, and inodes with their last name.

use wire::{Errno, Fid, LUSTRE_ORPHAN_FL, Time};

use super::{
    ChangeResult, ENOENT_VERSION, check_may_delete, check_name, check_not_dot_lustre, searchable_dir,
};
use crate::{
    cred::Cred,
    store::{DirChange, Entry, HeldInodes, Inode, OpenCounts, S_IFDIR, Store, Tx, keys, links},
};

/// Arguments of unlink and rmdir.
#[derive(Clone, Copy, Debug)]
pub struct UnlinkArgs<'a> {
    /// The directory.
    pub parent: Fid,
    /// The name.
    pub name: &'a [u8],
    /// Whether to remove a directory (`rmdir`); otherwise another inode (`unlink`).
    pub is_rmdir: bool,
    /// The client's time.
    pub time: Time,
}

/// Removes a name. The last name's removal destroys the inode, or makes it an orphan while it is
/// open.
///
/// # Errors
///
/// `ENOENT` if there is no such name; `EISDIR`, `ENOTDIR`, `ENOTEMPTY` by the type; `EACCES`,
/// `EPERM` without permission.
pub fn unlink(store: &Store, cred: &Cred, args: UnlinkArgs<'_>) -> Result<ChangeResult, Errno> {
    let entry = lookup_for_unlink(store, cred, args)?;
    unlink_entry(store, cred, args, entry)
}

/// Looks up a name for removal. Checks the name and the search permission, and that the inode does
/// not belong to `.lustre`.
pub(crate) fn lookup_for_unlink(store: &Store, cred: &Cred, args: UnlinkArgs<'_>) -> Result<Entry, Errno> {
    let UnlinkArgs { parent, name, .. } = args;
    check_name(name).map_err(|e| if name == b".." { Errno::ENOTEMPTY } else { e })?;
    searchable_dir(store, cred, parent)?;
    let entry = store.entry(parent, name)?.ok_or(Errno::ENOENT)?;
    check_not_dot_lustre(entry.fid)?;
    Ok(entry)
}

/// Removes a name. The caller has looked up `entry` and locked its inode.
pub(crate) fn unlink_entry(
    store: &Store,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    entry: Entry,
) -> Result<ChangeResult, Errno> {
    remove(store, cred, args, entry, |_| Ok(()))
}

/// Like [`unlink_entry`]; `EBUSY` if a client has the inode open.
pub(crate) fn unlink_unused(
    store: &Store,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    entry: Entry,
) -> Result<ChangeResult, Errno> {
    remove(store, cred, args, entry, |opens| match opens.total {
        0 => Ok(()),
        _ => Err(Errno::EBUSY),
    })
}

/// Removes a name that leads to a missing inode; `EEXIST` if the inode exists.
pub(crate) fn remove_dangling_name(
    store: &Store,
    cred: &Cred,
    args: UnlinkArgs<'_>,
) -> Result<ChangeResult, Errno> {
    let UnlinkArgs {
        parent, name, time, ..
    } = args;
    let entry = lookup_for_unlink(store, cred, args)?;
    let held = store.hold_files(&[entry.fid]);
    if store.find(entry.fid)?.is_some() {
        return Err(Errno::EEXIST);
    }
    let mut tx = store.begin();
    tx.delete_entry(parent, name);
    let (transno, dir_version) = tx.commit_in(&held, parent, DirChange::at(time).remove(name, entry.kind))?;
    Ok(ChangeResult {
        transno,
        fid: entry.fid,
        inode: Inode::default(),
        pre_versions: [dir_version, ENOENT_VERSION, 0, 0],
    })
}

/// Removes a name if `check_opens` accepts the counts of the inode's open handles.
fn remove(
    store: &Store,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    entry: Entry,
    check_opens: impl FnOnce(OpenCounts) -> Result<(), Errno>,
) -> Result<ChangeResult, Errno> {
    let UnlinkArgs {
        parent, name, time, ..
    } = args;
    let dir = searchable_dir(store, cred, parent)?;
    let held = match entry.kind {
        S_IFDIR => store.hold(&[parent, entry.fid]),
        _ => store.hold_files(&[entry.fid]),
    };
    let mut inode = store.inode(entry.fid)?;
    check_may_delete(cred, &dir, &inode)?;
    check_opens(held.open_counts(entry.fid))?;
    match (args.is_rmdir, inode.is_dir()) {
        (true, false) => return Err(Errno::ENOTDIR),
        (false, true) => return Err(Errno::EISDIR),
        (true, true) if !store.is_empty_dir(entry.fid)? => return Err(Errno::ENOTEMPTY),
        _ => {}
    }
    let version = inode.version;
    let change = DirChange::at(time).remove(name, inode.kind());

    let mut tx = store.begin();
    tx.delete_entry(parent, name);
    drop_link(&mut tx, &held, entry.fid, &mut inode, (parent, name), time)?;
    let (transno, dir_version) = tx.commit_in(&held, parent, change)?;
    Ok(ChangeResult {
        transno,
        fid: entry.fid,
        inode,
        pre_versions: [dir_version, version, 0, 0],
    })
}

/// Removes one link from an inode. The removal of the last link destroys the inode, or makes it an
/// orphan while it is open.
pub(super) fn drop_link(
    tx: &mut Tx<'_>,
    held: &HeldInodes<'_>,
    fid: Fid,
    inode: &mut Inode,
    (parent, name): (Fid, &[u8]),
    time: Time,
) -> Result<(), Errno> {
    inode.nlink = if inode.is_dir() {
        0
    } else {
        inode.nlink.saturating_sub(1)
    };
    inode.record_change(time);
    if inode.nlink == 0 && held.open_counts(fid).total == 0 {
        inode.version = tx.transno().0;
        return tx.destroy(fid, inode);
    }
    inode.links = links::remove(&inode.links, parent, name);
    if inode.nlink == 0 {
        // The flag tells the client that the inode is still open (Lustre sets it in capture h3, and
        // not for a closed inode in capture h1).
        inode.flags |= LUSTRE_ORPHAN_FL;
        if !cpt::Bug::LostOrphanRecord.is_planted() {
            tx.put_orphan(fid);
        }
    }
    tx.put_inode(fid, inode);
    Ok(())
}

/// Destroys an orphan with its record. Removes only the record if it is stale: the inode has links
/// or is missing. Does nothing while a client has the inode open.
///
/// # Errors
///
/// The error of reading or changing the store.
pub fn destroy_orphan(store: &Store, fid: Fid) -> Result<(), Errno> {
    let held = store.hold(&[fid]);
    if held.open_counts(fid).total > 0 {
        return Ok(());
    }
    let mut tx = store.begin();
    match store.find(fid)? {
        Some(inode) if inode.nlink == 0 => tx.destroy_orphan(fid, &inode)?,
        _ => tx.delete(keys::orphan(fid)),
    }
    tx.commit().map(drop)
}
