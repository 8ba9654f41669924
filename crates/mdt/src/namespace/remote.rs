//! Plans of operations on a name and an inode of different MDTs.
//!
//! The other MDT's view of the name takes the place of reads. The plan has two shares: the
//! mutations of the name and its directory, and those of the inode.

use bytes::Bytes;
use wire::{Errno, Fid};

use super::{
    Attempts, ChangeResult, NewInode, Plan, UnlinkArgs, check_name, check_not_dot_lustre, check_searchable,
    create::{CreateView, plan_create},
    unlink::{LinkedInode, UnlinkView, plan_unlink},
};
use crate::{
    cred::Cred,
    store::{Change, Inode, Mutation, RequestStore, Store},
};

/// A planned operation on two MDTs.
pub(crate) struct RemotePlan {
    /// The share of the MDT that has the name.
    pub name_share: Vec<Mutation>,
    /// The share of the MDT that has the inode. It fits also if this MDT has restarted meanwhile.
    pub inode_share: Vec<Mutation>,
    /// The inode after the change.
    pub inode: Inode,
    /// The versions of the inodes before the change (`pb_pre_versions`).
    pub pre_versions: [u64; 4],
}

impl RemotePlan {
    /// Divides a plan that changes names in `parent`; `parent_version` is the version of `parent`.
    fn divide(plan: Plan, parent: Fid, parent_version: u64) -> RemotePlan {
        let mutations = plan.change.unwrap_or_default().mutations;
        let is_of_name = |mutation: &Mutation| mutation.names_of() == Some(parent);
        let (name_share, inode_share) = mutations.into_iter().partition(is_of_name);
        let mut pre_versions = plan.pre_versions;
        pre_versions[0] = parent_version;
        RemotePlan {
            name_share,
            inode_share,
            inode: plan.inode,
            pre_versions,
        }
    }
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
    let plan = plan_create(&view, cred, parent, name, &node)?;
    Ok(RemotePlan::divide(plan, parent, dir.version))
}

/// Plans the removal of a name of the inode `fid`, if the name is on another MDT. `dir` is the
/// parent. The inode's share keeps the inode as an orphan, because clients that recover may have it
/// open.
///
/// # Errors
///
/// As [`super::unlink()`].
pub(crate) async fn plan_remote_unlink(
    store: &Store,
    dir: &Inode,
    cred: &Cred,
    args: UnlinkArgs<'_>,
    fid: Fid,
) -> Result<RemotePlan, Errno> {
    check_not_dot_lustre(args.parent)?;
    let mut target = LinkedInode::read(store, fid).await?;
    target.opens.total = target.opens.total.max(1);
    let version = target.inode.version;
    let view = UnlinkView {
        dir,
        has_entries: target.inode.is_dir() && !store.is_empty_dir(fid).await?,
        target,
    };
    let plan = plan_unlink(view, cred, args, |_| Ok(()))?;
    let mut plan = RemotePlan::divide(plan, args.parent, dir.version);
    plan.inode.version = version;
    Ok(plan)
}

/// Applies the inode's share of a removal: destroys the inode, or makes it an orphan if a client
/// has it open. `kept` is the mutation that keeps the update record.
///
/// # Errors
///
/// The error of reading or changing the store.
pub(crate) async fn drop_remote_name(
    store: RequestStore<'_>,
    args: UnlinkArgs<'_>,
    fid: Fid,
    pre_versions: [u64; 4],
    kept: Mutation,
) -> Result<ChangeResult, Errno> {
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let mut target = LinkedInode::read(&store, fid).await?;
        let mut change = Change::new();
        target.drop_link(&mut change, (args.parent, args.name), args.time)?;
        change.mutations.push(kept.clone());
        let plan = Plan::new(change, fid, target.inode, pre_versions);
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}
