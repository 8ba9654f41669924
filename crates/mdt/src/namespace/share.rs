//! The shares of an operation on several MDTs: the part that each MDT applies.
//!
//! A share changes an inode of another name's MDT only relatively ([`Relink`]): other attributes of
//! the inode may change between the plan and the apply, and a crash may repeat the share later.

use bytes::Bytes;
use wire::{Errno, Fid, Time};

use super::{Attempts, ChangeResult, Plan, unlink::LinkedInode};
use crate::store::{Change, Inode, Mutation, RequestStore, Store, links};

/// A name: its directory and the name itself.
pub(crate) type Name = (Fid, Bytes);

/// A change of the names of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Relink {
    /// The inode.
    pub fid: Fid,
    /// The name that it loses.
    pub removed: Option<Name>,
    /// The name that it gets.
    pub added: Option<Name>,
    /// The time of the operation.
    pub time: Time,
}

/// The part of an operation that one MDT applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    /// Changes of names and new inodes.
    pub mutations: Vec<Mutation>,
    /// Changes of inodes.
    pub relinks: Vec<Relink>,
}

impl Share {
    /// Whether it adds names or inodes.
    pub(crate) fn grows(&self) -> bool {
        let adds = |mutation: &Mutation| {
            matches!(mutation, Mutation::EntryAdded { .. } | Mutation::InodeMade { .. })
        };
        self.mutations.iter().any(adds)
    }

    /// The directories and inodes that it changes.
    pub(crate) fn fids(&self) -> impl Iterator<Item = Fid> + '_ {
        let of_mutations = self
            .mutations
            .iter()
            .filter_map(|mutation| mutation.names_of().or(mutation.inode_of()));
        of_mutations.chain(self.relinks.iter().map(|relink| relink.fid))
    }
}

/// The arguments of an apply besides the share.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShareContext {
    /// The inode of the reply, as planned.
    pub described: (Fid, Inode),
    /// The versions of the reply.
    pub pre_versions: [u64; 4],
    /// The mutation that keeps the update record.
    pub kept: Option<Mutation>,
    /// Whether the share may use the space reserve.
    pub is_admitted: bool,
    /// Whether clients may have removed inodes open without the target's knowledge: they become
    /// orphans.
    pub keeps_orphans: bool,
}

/// Applies a share. The result describes the inode of the context; the first of its versions are
/// those of the directories before the change, in the order of the share.
///
/// # Errors
///
/// `ENOENT` if an inode is gone; `ENOSPC`; or the error of reading or changing the store.
pub(crate) async fn apply_share(
    store: RequestStore<'_>,
    share: &Share,
    context: ShareContext,
) -> Result<ChangeResult, Errno> {
    let made = share.mutations.iter().filter_map(Mutation::inode_of);
    let fids: Vec<Fid> = made
        .chain(share.relinks.iter().map(|relink| relink.fid))
        .collect();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&fids).await?;
        let mut change = Change {
            mutations: share.mutations.clone(),
            grows: share.grows() && !context.is_admitted,
            ..Change::new()
        };
        let (fid, mut inode) = context.described.clone();
        for relink in &share.relinks {
            let relinked = relink.plan(&store, &mut change, context.keeps_orphans).await?;
            if relink.fid == fid {
                inode = relinked;
            }
        }
        change.mutations.extend(context.kept.clone());
        let plan = Plan::new(change, fid, inode, context.pre_versions);
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

impl Relink {
    /// Adds the change of the inode to a change; returns the changed inode.
    async fn plan(&self, store: &Store, change: &mut Change, keeps_orphan: bool) -> Result<Inode, Errno> {
        let mut linked = LinkedInode::read(store, self.fid).await?;
        if keeps_orphan {
            linked.opens.total = linked.opens.total.max(1);
        }
        match (&self.removed, &self.added) {
            (Some((dir, name)), None) => linked.drop_link(change, (*dir, name), self.time)?,
            _ => {
                let inode = &mut linked.inode;
                self.rename(inode);
                if self.removed.is_none() && self.added.is_some() {
                    inode.nlink = inode.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
                }
                change.change_inode(self.fid, inode);
            }
        }
        Ok(linked.inode)
    }

    /// Records the change of the names in the inode.
    fn rename(&self, inode: &mut Inode) {
        inode.record_change(self.time);
        if let Some((dir, name)) = &self.removed {
            inode.links = links::remove(&inode.links, *dir, name);
        }
        if let Some((dir, name)) = &self.added {
            inode.links = links::add(&inode.links, *dir, name, self.time.sec);
        }
    }
}
