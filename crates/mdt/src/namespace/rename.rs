//! Renaming, with all cases of POSIX.

use wire::{Errno, Fid, Time};

use super::{
    ChangeResult, ENOENT_VERSION, check_may_add, check_may_delete, check_name, check_not_dot_lustre,
    directory, parent, searchable_dir, unlink::drop_link,
};
use crate::{
    cred::{Cred, MAY_WRITE},
    store::{DirChange, Entry, S_IFDIR, Store, links},
};

/// Maximum depth of directories: a longer chain is a cycle in a damaged store.
const DEPTH_MAX: usize = 1 << 16;

/// Arguments of a rename.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'a> {
    /// The old directory.
    pub src_dir: Fid,
    /// The old name.
    pub src_name: &'a [u8],
    /// The new directory.
    pub dst_dir: Fid,
    /// The new name.
    pub dst_name: &'a [u8],
    /// The client's time.
    pub time: Time,
}

/// Whether `fid` is `above` or a descendant of it.
///
///
/// # Errors
///
/// `ENOENT` if a directory is gone; `EIO` if the directories form a cycle.
pub fn is_below(store: &Store, fid: Fid, above: Fid) -> Result<bool, Errno> {
    let mut at = fid;
    for _ in 0..DEPTH_MAX {
        if at == above {
            return Ok(true);
        }
        if at.is_root() {
            return Ok(false);
        }
        let up = parent(at, &store.inode(at)?);
        if up == at {
            return Ok(false);
        }
        at = up;
    }
    tracing::error!("{fid} has more than {DEPTH_MAX} directories above it");
    Err(Errno::EIO)
}

/// Renames, and replaces an existing target. The result describes the replaced inode, or the
/// renamed one.
///
///
/// # Errors
///
/// `ENOENT` if the source is gone; `EINVAL` if a directory would move below itself; `ENOTEMPTY`,
/// `EISDIR`, `ENOTDIR` by the types; `EACCES`, `EPERM` without permission.
pub fn rename(store: &Store, cred: &Cred, args: Rename<'_>) -> Result<ChangeResult, Errno> {
    let Rename {
        src_dir,
        src_name,
        dst_dir,
        dst_name,
        time,
    } = args;
    check_name(src_name)?;
    check_name(dst_name)?;
    searchable_dir(store, cred, src_dir)?;
    searchable_dir(store, cred, dst_dir)?;
    let src = store.entry(src_dir, src_name)?.ok_or(Errno::ENOENT)?;
    let dst = store.entry(dst_dir, dst_name)?;
    for entry in [Some(src), dst].into_iter().flatten() {
        check_not_dot_lustre(entry.fid)?;
    }
    let mut fids = vec![src.fid];
    fids.extend(dst.map(|d| d.fid));
    let same_dir = src_dir == dst_dir;
    let moves_dirs = !same_dir || src.kind == S_IFDIR || dst.is_some_and(|d| d.kind == S_IFDIR);
    let held = match moves_dirs {
        true => store.hold(&[&fids[..], &[src_dir, dst_dir]].concat()),
        false => store.hold_files(&fids),
    };
    if store.entry(src_dir, src_name)? != Some(src) || store.entry(dst_dir, dst_name)? != dst {
        return Err(Errno::ENOENT);
    }
    let mut from = directory(store, src_dir)?;
    let into = directory(store, dst_dir)?;
    let mut inode = store.inode(src.fid)?;
    let mut replaced = dst.map(|d| store.inode(d.fid)).transpose()?;
    let mut pre_versions = [
        from.version,
        into.version,
        inode.version,
        replaced.as_ref().map_or(ENOENT_VERSION, |r| r.version),
    ];

    check_may_delete(cred, &from, &inode)?;
    match &replaced {
        Some(victim) => check_may_delete(cred, &into, victim)?,
        None => check_may_add(cred, &into)?,
    }
    if inode.is_dir() {
        if !same_dir {
            // Its ".." changes.
            cred.check(&inode, MAY_WRITE)?;
        }
        if is_below(store, dst_dir, src.fid)? {
            return Err(Errno::EINVAL);
        }
    }
    if let Some(victim) = &replaced {
        if dst == Some(src) {
            // Two names of one inode: POSIX requires that nothing happens.
            let transno = store.begin().commit()?;
            return Ok(ChangeResult {
                transno,
                fid: src.fid,
                inode,
                pre_versions,
            });
        }
        match (inode.is_dir(), victim.is_dir()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !store.is_empty_dir(dst.map_or(src.fid, |d| d.fid))? => {
                return Err(Errno::ENOTEMPTY);
            }
            _ => {}
        }
    }

    inode.changed(time);
    inode.links = links::remove(&inode.links, src_dir, src_name);
    inode.links = links::add(&inode.links, dst_dir, dst_name, time.sec);
    let kind = inode.kind();
    let mut into_change = DirChange::at(time).add(dst_name, kind);
    if let Some(victim) = &replaced {
        into_change = into_change.remove(dst_name, victim.kind());
    }
    if same_dir {
        into_change = into_change.remove(src_name, kind);
    }

    let mut tx = store.begin();
    tx.delete_entry(src_dir, src_name);
    tx.put_entry(
        dst_dir,
        dst_name,
        Entry {
            fid: src.fid,
            kind: inode.kind(),
        },
    );
    tx.put_inode(src.fid, &mut inode);
    let mut about = (src.fid, inode);
    if let (Some(entry), Some(mut victim)) = (dst, replaced.take()) {
        drop_link(&mut tx, &held, entry.fid, &mut victim, (dst_dir, dst_name), time)?;
        about = (entry.fid, victim);
    }
    if !same_dir {
        let from_change = DirChange::at(time).remove(src_name, kind);
        from_change.apply(&mut from, tx.transno());
        tx.put_inode(src_dir, &mut from);
    }
    let (transno, dir_version) = tx.commit_in(&held, dst_dir, into_change)?;
    if same_dir {
        pre_versions[0] = dir_version;
    }
    pre_versions[1] = dir_version;
    Ok(ChangeResult {
        transno,
        fid: about.0,
        inode: about.1,
        pre_versions,
    })
}
