//! Plans of operations on names and inodes of different MDTs.
//!
//! Views of the other MDTs take the place of reads. A plan has the changes of the names, the new
//! inode, and the relative changes of the existing inodes ([`Relink`]).

use bytes::Bytes;
use wire::{Errno, Fid, RenameFlags, Time};

use super::{
    NewInode, Plan, Relink, RenameArgs, UnlinkArgs, check_name, check_not_dot_lustre, check_searchable,
    create::{CreateView, LinkView, plan_create, plan_link},
    rename::{RenameView, plan_rename},
    unlink::{LinkedInode, UnlinkView, plan_unlink},
};
use crate::{
    cred::Cred,
    store::{Entry, Inode, Mutation},
};

/// A planned operation on several MDTs.
pub(crate) struct RemotePlan {
    /// The changes of names, and of the new inode.
    pub mutations: Vec<Mutation>,
    /// The changes of existing inodes.
    pub relinks: Vec<Relink>,
    /// The inode that the reply describes.
    pub fid: Fid,
    /// The same inode, after the change.
    pub inode: Inode,
    /// The versions of the inodes before the change (`pb_pre_versions`).
    pub pre_versions: [u64; 4],
}

impl RemotePlan {
    /// Takes the changes of names from a plan; `relinks` replace its changes of inodes.
    fn of_names(plan: Plan, relinks: Vec<Relink>) -> RemotePlan {
        let mut mutations = plan.change.unwrap_or_default().mutations;
        mutations.retain(|mutation| mutation.names_of().is_some());
        RemotePlan {
            mutations,
            relinks,
            fid: plan.fid,
            inode: plan.inode,
            pre_versions: plan.pre_versions,
        }
    }
}

fn name((dir, name): (Fid, &[u8])) -> Option<(Fid, Bytes)> {
    Some((dir, Bytes::copy_from_slice(name)))
}

/// Checks the directory of a remote name.
///
/// # Errors
///
/// As [`super::create()`].
pub(crate) fn check_remote_dir(cred: &Cred, dir: &Inode) -> Result<(), Errno> {
    check_searchable(cred, dir)
}

/// Plans a create with the name on another MDT. `dir` is the parent, and `name_in_use` says whether
/// the name exists.
///
/// # Errors
///
/// As [`super::create()`].
pub(crate) fn plan_remote_create(
    dir: &Inode,
    name_in_use: bool,
    cred: &Cred,
    (parent, name): (Fid, &[u8]),
    node: &NewInode,
) -> Result<RemotePlan, Errno> {
    check_name(name)?;
    check_not_dot_lustre(parent)?;
    check_searchable(cred, dir)?;
    let view = CreateView {
        dir,
        name_in_use,
        fid_in_use: false,
    };
    // Files get the root's default layout from the root, which this MDT does not have.
    let node = NewInode {
        lov: match parent.is_root() {
            true => dir.lov.clone(),
            false => Bytes::new(),
        },
        ..node.clone()
    };
    let mut plan = plan_create(&view, cred, parent, name, &node)?;
    plan.pre_versions[0] = dir.version;
    Ok(RemotePlan {
        mutations: plan.change.unwrap_or_default().mutations,
        relinks: Vec::new(),
        fid: plan.fid,
        inode: plan.inode,
        pre_versions: plan.pre_versions,
    })
}

/// Plans the removal of a name of the inode `fid`, which may be on another MDT than the name. `dir`
/// is the parent. `has_entries`: the inode is a directory with entries.
///
/// # Errors
///
/// As [`super::unlink()`].
pub(crate) fn plan_remote_unlink(
    dir: &Inode,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    (fid, inode, has_entries): (Fid, Inode, bool),
) -> Result<RemotePlan, Errno> {
    check_not_dot_lustre(args.parent)?;
    let view = UnlinkView {
        dir,
        has_entries,
        target: LinkedInode::remote(fid, inode),
    };
    let mut plan = plan_unlink(view, cred, args, |_| Ok(()))?;
    plan.pre_versions[0] = dir.version;
    let relink = Relink {
        fid,
        removed: name((args.parent, args.name)),
        added: None,
        time: args.time,
    };
    Ok(RemotePlan::of_names(plan, vec![relink]))
}

/// Plans a new name of a file, which may be on another MDT than the name. `dir` is the parent, and
/// `name_in_use` says whether the name exists.
///
/// # Errors
///
/// As [`super::link()`].
pub(crate) fn plan_remote_link(
    dir: Inode,
    name_in_use: bool,
    cred: &Cred,
    (parent, new): (Fid, &[u8]),
    (fid, inode): (Fid, Inode),
    time: Time,
) -> Result<RemotePlan, Errno> {
    check_name(new)?;
    check_not_dot_lustre(parent)?;
    check_searchable(cred, &dir)?;
    let version = dir.version;
    let view = LinkView {
        dir,
        inode,
        name_in_use,
    };
    let mut plan = plan_link(view, cred, fid, parent, new, time)?;
    plan.pre_versions[0] = version;
    let relink = Relink {
        fid,
        removed: None,
        added: name((parent, new)),
        time,
    };
    Ok(RemotePlan::of_names(plan, vec![relink]))
}

/// The names and inodes of a rename, as their MDTs see them.
pub(crate) struct MovedNames {
    /// The old and the new directory.
    pub dirs: [Inode; 2],
    /// The entry of the old name, and its inode.
    pub src: (Entry, Inode),
    /// The entry of the new name, and its inode.
    pub dst: Option<(Entry, Inode)>,
    /// Whether the inode of the new name is a directory with entries.
    pub dst_has_entries: bool,
    /// The old directory and those above it.
    pub above_src: Vec<Fid>,
    /// The new directory and those above it.
    pub above_dst: Vec<Fid>,
}

/// Plans a rename between any MDTs; not for [`RenameFlags::WHITEOUT`].
///
/// # Errors
///
/// As [`super::rename()`].
pub(crate) fn plan_remote_rename(
    names: MovedNames,
    cred: &Cred,
    args: RenameArgs<'_>,
) -> Result<RemotePlan, Errno> {
    let MovedNames {
        dirs: [from, into],
        src: (src, inode),
        dst,
        ..
    } = names;
    for (fid, dir) in [(args.src_dir, &from), (args.dst_dir, &into)] {
        check_not_dot_lustre(fid)?;
        check_searchable(cred, dir)?;
    }
    let versions = [from.version, into.version];
    let dst_fid = dst.as_ref().map(|(entry, _)| entry.fid);
    let exchange = args.flags.has(RenameFlags::EXCHANGE);
    let view = RenameView {
        from,
        into,
        src,
        dst_has_entries: names.dst_has_entries,
        dst_dir_is_below_src: inode.is_dir() && names.above_dst.contains(&src.fid),
        src_dir_is_below_dst: exchange && dst_fid.is_some_and(|fid| names.above_src.contains(&fid)),
        whiteout_in_use: false,
        inode,
        dst: dst.map(|(entry, inode)| (entry, LinkedInode::remote(entry.fid, inode))),
    };
    let mut plan = plan_rename(view, cred, args, None)?;
    plan.pre_versions[..2].copy_from_slice(&versions);
    if plan
        .change
        .as_ref()
        .is_none_or(|change| change.mutations.is_empty())
    {
        return Ok(RemotePlan::of_names(plan, Vec::new()));
    }
    let (old, new) = ((args.src_dir, args.src_name), (args.dst_dir, args.dst_name));
    let relink = |fid, removed, added| Relink {
        fid,
        removed,
        added,
        time: args.time,
    };
    let mut relinks = vec![relink(src.fid, name(old), name(new))];
    relinks.extend(dst_fid.map(|fid| {
        let added = if exchange { name(old) } else { None };
        relink(fid, name(new), added)
    }));
    Ok(RemotePlan::of_names(plan, relinks))
}
