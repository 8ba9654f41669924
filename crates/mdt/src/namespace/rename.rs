//! Renames, with all cases of POSIX and the flags of `renameat2`.

use wire::{Errno, Fid, RenameFlags, Time};

use super::{
    ChangeResult, ENOENT_VERSION, NewInode, check_fid, check_may_add, check_may_delete, check_name,
    check_not_dot_lustre, directory, parent_of, searchable_dir, unlink::drop_link,
};
use crate::{
    cred::{Cred, MAY_WRITE},
    store::{DirChange, Entry, Inode, S_IFCHR, S_IFDIR, Store, Tx, links},
};

/// Maximum depth of a directory. A longer chain of parents is a cycle in a damaged store.
const DEPTH_MAX: usize = 1 << 16;

/// Arguments of a rename.
#[derive(Clone, Copy, Debug)]
pub struct RenameArgs<'a> {
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
    /// Flags of `renameat2`.
    pub flags: RenameFlags,
    /// The FID for the whiteout, with [`RenameFlags::WHITEOUT`].
    pub whiteout: Fid,
}

/// Whether the directory `fid` is `above` itself, or a descendant of `above`.
///
/// # Errors
///
/// `ENOENT` if a directory is gone; `EIO` if the directories form a cycle.
pub fn is_at_or_below(store: &Store, fid: Fid, above: Fid) -> Result<bool, Errno> {
    let mut current = fid;
    for _ in 0..DEPTH_MAX {
        if current == above {
            return Ok(true);
        }
        if current.is_root() {
            return Ok(false);
        }
        let up = parent_of(current, &store.inode(current)?);
        if up == current {
            return Ok(false);
        }
        current = up;
    }
    tracing::error!(
        "directory {fid} has more than {DEPTH_MAX} directories above it, so these form a cycle. Run 'nacre fsck' on the MDT"
    );
    Err(Errno::EIO)
}

/// Renames an inode. Replaces an existing inode at the new name, or moves it to the old name
/// ([`RenameFlags::EXCHANGE`]). Nothing changes if both names lead to one inode. The result
/// describes the replaced inode; without one, the renamed inode.
///
/// # Errors
///
/// `ENOENT` if a name is gone; `EEXIST` if the target exists, with [`RenameFlags::NOREPLACE`];
/// `EINVAL` if a directory would move below itself; `ENOTEMPTY`, `EISDIR`, `ENOTDIR` by the types;
/// `EACCES`, `EPERM` without permission.
pub fn rename(store: &Store, cred: &Cred, args: RenameArgs<'_>) -> Result<ChangeResult, Errno> {
    let RenameArgs {
        src_dir,
        src_name,
        dst_dir,
        dst_name,
        time,
        flags,
        whiteout,
    } = args;
    check_name(src_name)?;
    check_name(dst_name)?;
    searchable_dir(store, cred, src_dir)?;
    searchable_dir(store, cred, dst_dir)?;
    let exchange = flags.has(RenameFlags::EXCHANGE);
    let src = store.entry(src_dir, src_name)?.ok_or(Errno::ENOENT)?;
    let dst = store.entry(dst_dir, dst_name)?;
    match dst {
        Some(_) if flags.has(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
        None if exchange => return Err(Errno::ENOENT),
        _ => {}
    }
    for entry in [Some(src), dst].into_iter().flatten() {
        check_not_dot_lustre(entry.fid)?;
    }
    let whiteout = match flags.has(RenameFlags::WHITEOUT) {
        true => Some(Whiteout::new(whiteout, time)?),
        false => None,
    };
    let mut fids = vec![src.fid];
    fids.extend(dst.map(|d| d.fid));
    fids.extend(whiteout.as_ref().map(|w| w.0.fid));
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
    check_may_move(store, cred, (src.fid, &inode), (src_dir, dst_dir))?;
    if let (Some(entry), Some(victim)) = (dst, &replaced) {
        if entry == src {
            // POSIX: a rename between two names of one inode does nothing.
            let transno = store.begin().commit()?;
            return Ok(ChangeResult {
                transno,
                fid: src.fid,
                inode,
                pre_versions,
            });
        }
        match (inode.is_dir(), victim.is_dir()) {
            _ if exchange => check_may_move(store, cred, (entry.fid, victim), (dst_dir, src_dir))?,
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !store.is_empty_dir(entry.fid)? => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
    }

    move_link(&mut inode, (src_dir, src_name), (dst_dir, dst_name), time);
    let kind = inode.kind();
    let mut from_change = DirChange::at(time).remove(src_name, kind);
    let mut into_change = DirChange::at(time).add(dst_name, kind);
    if let Some(victim) = &replaced {
        into_change = into_change.remove(dst_name, victim.kind());
    }

    let mut tx = match whiteout {
        Some(_) => store.begin_growth()?,
        None => store.begin(),
    };
    tx.put_entry(dst_dir, dst_name, Entry { fid: src.fid, kind });
    tx.put_inode(src.fid, &mut inode);
    let mut new_src = None;
    if let Some(whiteout) = whiteout {
        new_src = Some(whiteout.put(store, &mut tx, cred, (src_dir, &from), src_name)?);
    }
    let (mut result_fid, mut result_inode) = (src.fid, inode);
    if let (Some(entry), Some(mut victim)) = (dst, replaced.take()) {
        if exchange {
            move_link(&mut victim, (dst_dir, dst_name), (src_dir, src_name), time);
            tx.put_inode(entry.fid, &mut victim);
            new_src = Some(entry);
        } else {
            drop_link(&mut tx, &held, entry.fid, &mut victim, (dst_dir, dst_name), time)?;
            (result_fid, result_inode) = (entry.fid, victim);
        }
    }
    match new_src {
        Some(entry) => {
            tx.put_entry(src_dir, src_name, entry);
            from_change = from_change.add(src_name, entry.kind);
        }
        None => tx.delete_entry(src_dir, src_name),
    }
    if same_dir {
        into_change = into_change.combine(from_change);
    } else {
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
        fid: result_fid,
        inode: result_inode,
        pre_versions,
    })
}

/// Checks that an inode may move from one directory into another: no directory moves below itself,
/// and a directory that changes its parent must be writable, because its ".." changes.
fn check_may_move(
    store: &Store,
    cred: &Cred,
    (fid, inode): (Fid, &Inode),
    (from, into): (Fid, Fid),
) -> Result<(), Errno> {
    if !inode.is_dir() {
        return Ok(());
    }
    if from != into {
        cred.check(inode, MAY_WRITE)?;
    }
    match is_at_or_below(store, into, fid)? {
        true => Err(Errno::EINVAL),
        false => Ok(()),
    }
}

/// Replaces one name of an inode by another.
fn move_link(inode: &mut Inode, from: (Fid, &[u8]), into: (Fid, &[u8]), time: Time) {
    inode.record_change(time);
    inode.links = links::remove(&inode.links, from.0, from.1);
    inode.links = links::add(&inode.links, into.0, into.1, time.sec);
}

/// The character device 0:0 that the old name leads to afterwards ([`RenameFlags::WHITEOUT`]).
struct Whiteout(NewInode);

impl Whiteout {
    fn new(fid: Fid, time: Time) -> Result<Whiteout, Errno> {
        check_fid(fid)?;
        Ok(Whiteout(NewInode {
            fid,
            mode: S_IFCHR,
            time,
            ..NewInode::default()
        }))
    }

    /// Puts the whiteout's inode into the transaction; the caller puts the returned entry.
    fn put(
        self,
        store: &Store,
        tx: &mut Tx<'_>,
        cred: &Cred,
        (dir, parent): (Fid, &Inode),
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let Whiteout(node) = self;
        if store.find(node.fid)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let mut inode = node.inode(cred, parent, dir.is_root());
        inode.links = links::add(&inode.links, dir, name, node.time.sec);
        tx.put_new_inode(node.fid, &mut inode);
        Ok(Entry {
            fid: node.fid,
            kind: inode.kind(),
        })
    }
}
