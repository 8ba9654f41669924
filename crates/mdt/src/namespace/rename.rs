//! Renames, with all cases of POSIX and the flags of `renameat2`.

use wire::{Errno, Fid, RenameFlags, Time};

use super::{
    Attempts, ChangeResult, ENOENT_VERSION, NewInode, Plan, check_fid, check_may_add, check_may_delete,
    check_name, check_not_dot_lustre, directory, parent_of, searchable_dir, unlink::LinkedInode,
};
use crate::{
    cred::{Cred, MAY_WRITE},
    store::{Change, DirChange, Entry, Inode, RequestStore, S_IFCHR, Store, links},
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
/// `ENOENT` if a directory is gone; `EIO` if the directories form a cycle; `EXDEV` if only other
/// MDTs know.
pub async fn is_at_or_below(store: &Store, fid: Fid, above: Fid) -> Result<bool, Errno> {
    let (chain, is_whole) = ancestors(store, fid).await?;
    if chain.contains(&above) {
        return Ok(true);
    }
    if is_whole {
        return Ok(false);
    }
    // The last directory of the chain is on another MDT. If `above` is below a directory of the
    // chain, it cannot be above it.
    let (chain_of_above, _) = ancestors(store, above).await?;
    match chain_of_above.iter().any(|dir| chain.contains(dir)) {
        true => Ok(false),
        false => Err(Errno::EXDEV),
    }
}

/// A directory and those above it, up to the root or to the first one that another MDT has; and
/// whether the root is the last one.
pub(crate) async fn ancestors(store: &Store, fid: Fid) -> Result<(Vec<Fid>, bool), Errno> {
    let (mut chain, mut dir) = (vec![fid], store.inode(fid).await?);
    while chain.len() < DEPTH_MAX {
        let current = chain[chain.len() - 1];
        let up = parent_of(current, &dir);
        if current.is_root() || up == current {
            return Ok((chain, true));
        }
        chain.push(up);
        dir = match store.find(up).await? {
            Some(dir) => dir,
            None => return Ok((chain, false)),
        };
    }
    tracing::error!(
        "directory {fid} has more than {DEPTH_MAX} directories above it, so these form a cycle. Run 'nacre fsck' on the MDT"
    );
    Err(Errno::EIO)
}

/// The view of a rename.
pub(super) struct RenameView {
    /// The old and the new directory.
    pub(super) from: Inode,
    pub(super) into: Inode,
    /// The entry of the old name, and its inode.
    pub(super) src: Entry,
    pub(super) inode: Inode,
    /// The entry of the new name, and its inode.
    pub(super) dst: Option<(Entry, LinkedInode)>,
    /// Whether the inode of the new name is a directory with entries.
    pub(super) dst_has_entries: bool,
    /// Whether the new directory is the renamed inode or below it.
    pub(super) dst_dir_is_below_src: bool,
    /// Whether the old directory is the inode of the new name or below it.
    pub(super) src_dir_is_below_dst: bool,
    /// Whether the FID for the whiteout is in use.
    pub(super) whiteout_in_use: bool,
}

/// Renames an inode. If the new name exists, the rename replaces the inode at that name, or moves
/// it to the old name ([`RenameFlags::EXCHANGE`]). If both names lead to the same inode, nothing
/// changes. The result describes the replaced inode, or the renamed inode if the rename replaces
/// none.
///
/// # Errors
///
/// `ENOENT` if the old name does not exist, or with [`RenameFlags::EXCHANGE`] the new name;
/// `EEXIST` if the new name exists, with [`RenameFlags::NOREPLACE`]; `EINVAL` if a directory would
/// move below itself; `ENOTEMPTY`, `EISDIR`, `ENOTDIR` by the types; `EACCES`, `EPERM` without
/// permission.
pub async fn rename<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    args: RenameArgs<'_>,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let RenameArgs {
        src_dir,
        src_name,
        dst_dir,
        dst_name,
        flags,
        ..
    } = args;
    check_name(src_name)?;
    check_name(dst_name)?;
    searchable_dir(&store, cred, src_dir).await?;
    searchable_dir(&store, cred, dst_dir).await?;
    let src = store.entry(src_dir, src_name).await?.ok_or(Errno::ENOENT)?;
    let dst = store.entry(dst_dir, dst_name).await?;
    match dst {
        Some(_) if flags.has(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
        None if flags.has(RenameFlags::EXCHANGE) => return Err(Errno::ENOENT),
        _ => {}
    }
    for entry in [Some(src), dst].into_iter().flatten() {
        check_not_dot_lustre(entry.fid)?;
    }
    let whiteout = match flags.has(RenameFlags::WHITEOUT) {
        true => Some(whiteout_node(args.whiteout, args.time)?),
        false => None,
    };
    let mut fids = vec![src.fid];
    fids.extend(dst.map(|d| d.fid));
    fids.extend(whiteout.as_ref().map(|node| node.fid));
    let mut attempts = Attempts::new(store);
    let mut result = loop {
        let stamp = attempts.begin(&fids).await?;
        let inode = store.inode(src.fid).await?;
        let dst = match dst {
            Some(entry) => Some((entry, LinkedInode::read(&store, entry.fid).await?)),
            None => None,
        };
        let replaced_dir = dst.as_ref().filter(|(_, d)| d.inode.is_dir()).map(|(e, _)| e.fid);
        let is_below = async |fid, above: Option<Fid>| match above {
            Some(above) => is_at_or_below(&store, fid, above).await,
            None => Ok(false),
        };
        let exchanged_dir = replaced_dir.filter(|_| flags.has(RenameFlags::EXCHANGE));
        let view = RenameView {
            from: directory(&store, src_dir).await?,
            into: directory(&store, dst_dir).await?,
            src,
            dst_has_entries: match replaced_dir {
                Some(fid) => !store.is_empty_dir(fid).await?,
                None => false,
            },
            dst_dir_is_below_src: is_below(dst_dir, inode.is_dir().then_some(src.fid)).await?,
            src_dir_is_below_dst: is_below(src_dir, exchanged_dir).await?,
            whiteout_in_use: match &whiteout {
                Some(node) => store.find(node.fid).await?.is_some(),
                None => false,
            },
            inode,
            dst,
        };
        let plan = plan_rename(view, cred, args, whiteout.as_ref())?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            break result;
        }
    };
    if src_dir == dst_dir {
        result.pre_versions[1] = result.pre_versions[0];
    }
    Ok(result)
}

pub(super) fn plan_rename(
    view: RenameView,
    cred: &Cred,
    args: RenameArgs<'_>,
    whiteout: Option<&NewInode>,
) -> Result<Plan, Errno> {
    let (old, new) = ((args.src_dir, args.src_name), (args.dst_dir, args.dst_name));
    let (time, same_dir) = (args.time, args.src_dir == args.dst_dir);
    let exchange = args.flags.has(RenameFlags::EXCHANGE);
    let RenameView {
        from,
        into,
        src,
        mut inode,
        ..
    } = view;
    let pre_versions = [
        from.version,
        into.version,
        inode.version,
        view.dst.as_ref().map_or(ENOENT_VERSION, |(_, d)| d.inode.version),
    ];

    check_may_delete(cred, &from, &inode)?;
    match &view.dst {
        Some((_, replaced)) => check_may_delete(cred, &into, &replaced.inode)?,
        None => check_may_add(cred, &into)?,
    }
    check_may_move(cred, &inode, same_dir, view.dst_dir_is_below_src)?;
    if let Some((entry, replaced)) = &view.dst {
        if *entry == src {
            // POSIX: a rename between two names of one inode does nothing.
            return Ok(Plan::new(Change::new(), src.fid, inode, pre_versions));
        }
        match (inode.is_dir(), replaced.inode.is_dir()) {
            _ if exchange => check_may_move(cred, &replaced.inode, same_dir, view.src_dir_is_below_dst)?,
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if view.dst_has_entries => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
    }

    move_link(&mut inode, old, new, time);
    let kind = inode.kind();
    let mut from_change = DirChange::at(time).remove(old.1, kind);
    let mut into_change = DirChange::at(time).add(new.1, kind);
    let mut change = match whiteout {
        Some(_) => Change::growing(),
        None => Change::new(),
    };
    change.add_entry(new.0, new.1, Entry { fid: src.fid, kind });
    change.change_inode(src.fid, &inode);
    let mut new_src = None;
    if let Some(node) = whiteout {
        if view.whiteout_in_use {
            return Err(Errno::EEXIST);
        }
        let mut inode = node.inode(cred, &from, old.0.is_root());
        inode.links = links::add(&inode.links, old.0, old.1, time.sec);
        let (fid, kind) = (node.fid, inode.kind());
        change.make_inode(fid, &inode);
        new_src = Some(Entry { fid, kind });
    }
    let (mut result_fid, mut result_inode) = (src.fid, inode);
    if let Some((entry, mut replaced)) = view.dst {
        into_change = into_change.remove(new.1, replaced.inode.kind());
        if exchange {
            move_link(&mut replaced.inode, new, old, time);
            change.change_inode(entry.fid, &replaced.inode);
            new_src = Some(entry);
        } else {
            replaced.drop_link(&mut change, new, time)?;
            (result_fid, result_inode) = (entry.fid, replaced.inode);
        }
    }
    match new_src {
        Some(entry) => {
            change.add_entry(old.0, old.1, entry);
            from_change = from_change.add(old.1, entry.kind);
        }
        None => change.remove_entry(old.0, old.1),
    }
    if same_dir {
        change.change_dir(old.0, into_change.combine(from_change));
    } else {
        change.change_dir(old.0, from_change);
        change.change_dir(new.0, into_change);
    }
    Ok(Plan::new(change, result_fid, result_inode, pre_versions))
}

/// Checks that an inode may move: no directory moves below itself, and a directory that changes its
/// parent must be writable, because its ".." changes.
fn check_may_move(cred: &Cred, inode: &Inode, same_dir: bool, moves_below_itself: bool) -> Result<(), Errno> {
    if !inode.is_dir() {
        return Ok(());
    }
    if !same_dir {
        cred.check(inode, MAY_WRITE)?;
    }
    match moves_below_itself {
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

/// The character device 0:0 that gets the old name ([`RenameFlags::WHITEOUT`]).
fn whiteout_node(fid: Fid, time: Time) -> Result<NewInode, Errno> {
    check_fid(fid)?;
    Ok(NewInode {
        fid,
        mode: S_IFCHR,
        time,
        ..NewInode::default()
    })
}
