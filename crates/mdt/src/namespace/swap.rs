//! Swaps the layouts of two files: each file gets the other's data, without a copy (`lfs migrate`).

use wire::{Errno, Fid};

use super::{APPEND, Attempts, ChangeResult, IMMUTABLE, Plan};
use crate::{
    cred::{Cred, MAY_READ, MAY_WRITE},
    layout,
    store::{Change, Inode, RequestStore},
};

/// Checks whether a user may swap the layouts of two files.
///
/// # Errors
///
/// `EINVAL` if one is no regular file; `EACCES`, `EPERM` without permission, or if the files have
/// different owners.
pub fn check_swap(cred: &Cred, first: &Inode, second: &Inode) -> Result<(), Errno> {
    for inode in [first, second] {
        if !inode.is_file() {
            return Err(Errno::EINVAL);
        }
        // Each file gets the other's data, so the user needs permission to read and write both.
        cred.check(inode, MAY_READ | MAY_WRITE)?;
        if inode.flags & (IMMUTABLE | APPEND) != 0 {
            return Err(Errno::EPERM);
        }
    }
    // A file's owner is charged for the space of its objects. A swap must not charge another user.
    match (first.uid, first.gid) == (second.uid, second.gid) {
        true => Ok(()),
        false => Err(Errno::EPERM),
    }
}

/// Swaps the layouts of two files in one transaction; the files keep their times. The caller has
/// revoked the clients' locks on both layouts, and the OSTs have detached the objects from their
/// old files.
///
/// # Errors
///
/// An error of [`check_swap`]; `ETXTBSY` if a client executes one of the files; `EOPNOTSUPP` if
/// only one has a layout; `ENOENT` if one is gone; `EPROTO` if a layout is malformed.
pub async fn swap_layouts<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    (a, b): (Fid, Fid),
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[a, b]).await?;
        let (first, second) = (store.inode(a).await?, store.inode(b).await?);
        let is_executed = [a, b].iter().any(|file| store.open_counts(*file).executors > 0);
        let plan = plan_swap((a, first), (b, second), is_executed, cred)?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

fn plan_swap(
    (a, mut first): (Fid, Inode),
    (b, mut second): (Fid, Inode),
    is_executed: bool,
    cred: &Cred,
) -> Result<Plan, Errno> {
    check_swap(cred, &first, &second)?;
    if is_executed {
        return Err(Errno::ETXTBSY);
    }
    let pre_versions = [first.version, second.version, 0, 0];
    let mut change = Change::new();
    if !first.lov.is_empty() || !second.lov.is_empty() {
        (first.lov, second.lov) = layout::swap((a, &first.lov), (b, &second.lov))?;
        std::mem::swap(&mut first.som, &mut second.som);
        for (file, inode) in [(a, &first), (b, &second)] {
            change.change_inode(file, inode);
            // The OSTs need not know the new file of the objects if it has no names: its last close
            // destroys them.
            if inode.nlink > 0 {
                change.queue_set_parent(file, inode)?;
            }
        }
    }
    Ok(Plan::new(change, a, first, pre_versions))
}
