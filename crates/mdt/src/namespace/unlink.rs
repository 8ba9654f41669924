//! Removes names, and destroys an inode when its last name is removed.

use wire::{Errno, Fid, LUSTRE_ORPHAN_FL, Time};

use super::{
    Attempts, ChangeResult, ENOENT_VERSION, Plan, Resolved, check_may_delete, check_name,
    check_not_dot_lustre, check_searchable,
};
use crate::{
    cred::Cred,
    store::{Change, DirChange, Entry, Inode, OpenCounts, OwnRecords, RequestStore, Store, links},
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

/// Removes a name. If the name is the inode's last one, destroys the inode, or makes it an orphan
/// if a client has it open.
///
/// # Errors
///
/// `ENOENT` if there is no such name; `EISDIR`, `ENOTDIR`, `ENOTEMPTY` by the type; `EACCES`,
/// `EPERM` without permission.
pub async fn unlink<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    args: UnlinkArgs<'_>,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let found = NameToRemove::find(&store, cred, args).await?;
    unlink_entry(store, cred, args, found).await
}

/// The result of the lookup of a name to remove.
pub(crate) struct NameToRemove {
    /// The entry.
    pub entry: Entry,
    /// The directory.
    dir: Inode,
}

impl NameToRemove {
    /// Looks up a name for removal. Checks the name and the search permission, and that the inode
    /// does not belong to `.lustre`.
    ///
    /// # Errors
    ///
    /// As [`unlink`].
    pub(crate) async fn find(
        store: &Store,
        cred: &Cred,
        args: UnlinkArgs<'_>,
    ) -> Result<NameToRemove, Errno> {
        let UnlinkArgs { parent, name, .. } = args;
        check_name(name).map_err(|e| if name == b".." { Errno::ENOTEMPTY } else { e })?;
        check_not_dot_lustre(parent)?;
        NameToRemove::check(cred, Resolved::read(store, cred, parent, name).await?)
    }

    /// Looks up the name again after the caller has locked it.
    ///
    /// # Errors
    ///
    /// As [`unlink`].
    pub(crate) async fn refresh(
        self,
        store: &Store,
        cred: &Cred,
        args: UnlinkArgs<'_>,
    ) -> Result<NameToRemove, Errno> {
        let found = Resolved {
            dir: self.dir,
            entry: Some(self.entry),
        };
        NameToRemove::check(cred, found.refresh(store, cred, args.parent, args.name).await?)
    }

    fn check(cred: &Cred, Resolved { dir, entry }: Resolved) -> Result<NameToRemove, Errno> {
        check_searchable(cred, &dir)?;
        let entry = entry.ok_or(Errno::ENOENT)?;
        check_not_dot_lustre(entry.fid)?;
        Ok(NameToRemove { entry, dir })
    }
}

/// Removes a name. The caller has looked it up, and locked the name and its inode.
pub(crate) async fn unlink_entry(
    store: RequestStore<'_>,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    found: NameToRemove,
) -> Result<ChangeResult, Errno> {
    remove(store, cred, args, found, |_| Ok(())).await
}

/// Like [`unlink_entry`]; `EBUSY` if a client has the inode open.
pub(crate) async fn unlink_unused(
    store: RequestStore<'_>,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    found: NameToRemove,
) -> Result<ChangeResult, Errno> {
    remove(store, cred, args, found, |opens| match opens.total {
        0 => Ok(()),
        _ => Err(Errno::EBUSY),
    })
    .await
}

/// Removes a name that leads to a missing inode; `EEXIST` if the inode exists.
pub(crate) async fn remove_dangling_name(
    store: RequestStore<'_>,
    cred: &Cred,
    args: UnlinkArgs<'_>,
) -> Result<ChangeResult, Errno> {
    let UnlinkArgs {
        parent, name, time, ..
    } = args;
    let NameToRemove { entry, .. } = NameToRemove::find(&store, cred, args).await?;
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[entry.fid]).await?;
        if store.find(entry.fid).await?.is_some() {
            return Err(Errno::EEXIST);
        }
        let mut change = Change::new();
        change.change_dir(parent, DirChange::at(time).remove(name, entry.kind));
        change.remove_entry(parent, name);
        let pre_versions = [0, ENOENT_VERSION, 0, 0];
        let plan = Plan::new(change, entry.fid, Inode::default(), pre_versions);
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

/// The view of an unlink or rmdir.
pub(super) struct UnlinkView<'a> {
    /// The parent.
    pub(super) dir: &'a Inode,
    /// The inode that loses a link.
    pub(super) target: LinkedInode,
    /// Whether the inode is a directory with entries.
    pub(super) has_entries: bool,
}

/// Removes a name if `check_opens` accepts the counts of the inode's open handles.
async fn remove(
    store: RequestStore<'_>,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    NameToRemove { entry, dir }: NameToRemove,
    check_opens: impl Fn(OpenCounts) -> Result<(), Errno>,
) -> Result<ChangeResult, Errno> {
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[entry.fid]).await?;
        let target = LinkedInode::read(&store, entry.fid).await?;
        let view = UnlinkView {
            dir: &dir,
            has_entries: target.inode.is_dir() && !store.is_empty_dir(entry.fid).await?,
            target,
        };
        let plan = plan_unlink(view, cred, args, &check_opens)?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

pub(super) fn plan_unlink(
    view: UnlinkView<'_>,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    check_opens: impl Fn(OpenCounts) -> Result<(), Errno>,
) -> Result<Plan, Errno> {
    let UnlinkArgs {
        parent, name, time, ..
    } = args;
    let mut target = view.target;
    check_may_delete(cred, view.dir, &target.inode)?;
    check_opens(target.opens)?;
    match (args.is_rmdir, target.inode.is_dir()) {
        (true, false) => return Err(Errno::ENOTDIR),
        (false, true) => return Err(Errno::EISDIR),
        (true, true) if view.has_entries => return Err(Errno::ENOTEMPTY),
        _ => {}
    }
    let pre_versions = [0, target.inode.version, 0, 0];
    let mut change = Change::new();
    change.change_dir(parent, DirChange::at(time).remove(name, target.inode.kind()));
    change.remove_entry(parent, name);
    target.drop_link(&mut change, (parent, name), time)?;
    Ok(Plan::new(change, target.fid, target.inode, pre_versions))
}

/// An inode that may lose a link, with the data that decide whether the operation then destroys it.
pub(super) struct LinkedInode {
    pub(super) fid: Fid,
    pub(super) inode: Inode,
    pub(super) opens: OpenCounts,
    /// Its other records.
    own: OwnRecords,
}

impl LinkedInode {
    /// An inode of another MDT. A client may have it open.
    pub(super) fn remote(fid: Fid, inode: Inode) -> LinkedInode {
        let opens = OpenCounts {
            total: 1,
            ..OpenCounts::default()
        };
        LinkedInode {
            fid,
            inode,
            opens,
            own: OwnRecords::default(),
        }
    }

    /// Reads the inode.
    pub(super) async fn read(store: &Store, fid: Fid) -> Result<LinkedInode, Errno> {
        let inode = store.inode(fid).await?;
        let own = store.own_records(fid, &inode).await?;
        Ok(LinkedInode {
            fid,
            opens: store.open_counts(fid),
            own,
            inode,
        })
    }

    /// Removes one link from the inode. The removal of the last link destroys the inode, or makes
    /// it an orphan if a client has it open.
    pub(super) fn drop_link(
        &mut self,
        change: &mut Change,
        (parent, name): (Fid, &[u8]),
        time: Time,
    ) -> Result<(), Errno> {
        let (fid, inode) = (self.fid, &mut self.inode);
        inode.nlink = if inode.is_dir() {
            0
        } else {
            inode.nlink.saturating_sub(1)
        };
        inode.record_change(time);
        if inode.nlink == 0 && self.opens.total == 0 {
            return change.destroy_inode(fid, inode, std::mem::take(&mut self.own));
        }
        inode.links = links::remove(&inode.links, parent, name);
        if inode.nlink == 0 {
            // The flag tells the client that the inode is still open (Lustre sets it in capture h3,
            // and not for a closed inode in capture h1).
            inode.flags |= LUSTRE_ORPHAN_FL;
            if !cpt::Bug::LostOrphanRecord.is_planted() {
                change.add_orphan(fid);
            }
        }
        change.change_inode(fid, inode);
        Ok(())
    }
}

/// Destroys an orphan and its orphan record. If the inode has links or is missing, the record is
/// stale, and the function removes only the record. Does nothing while a client has the inode open.
///
/// # Errors
///
/// The error of reading or changing the store.
pub async fn destroy_orphan<'a>(store: impl Into<RequestStore<'a>>, fid: Fid) -> Result<(), Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        if store.open_counts(fid).total > 0 {
            return Ok(());
        }
        let mut change = Change::new();
        change.remove_orphan(fid);
        if let Some(inode) = store.find(fid).await?
            && inode.nlink == 0
        {
            change.destroy_inode(fid, &inode, store.own_records(fid, &inode).await?)?;
        }
        let plan = Plan::new(change, fid, Inode::default(), [0; 4]);
        if attempts.apply(plan, &stamp)?.is_some() {
            return Ok(());
        }
    }
}
