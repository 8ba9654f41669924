//! Renames that this MDT coordinates.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use rpc::Export;
use wire::{Errno, Fid, RenameFlags, Time};

use super::{
    Updates,
    message::{InodeChange, InodeView, NameChange, NamesView},
    operation::Operation,
};
use crate::{
    cred::Cred,
    namespace::{self, ChangeResult, MovedNames, RenameArgs, check_not_dot_lustre},
    store::{Entry, Origin, S_IFDIR},
};

/// A rename with names and inodes on any MDTs.
pub(crate) struct Rename {
    /// The old directory and name.
    pub src: (Fid, Bytes),
    /// The new directory and name.
    pub dst: (Fid, Bytes),
    /// The time of the change.
    pub time: Time,
    /// Flags of `renameat2`; not [`RenameFlags::WHITEOUT`].
    pub flags: RenameFlags,
    /// The user.
    pub cred: Cred,
    /// The client's request.
    pub origin: Origin,
    /// The client.
    pub export: Arc<Export>,
}

/// The directories above both ends of a rename.
#[derive(Clone, Default)]
struct Chains {
    src: Vec<Fid>,
    dst: Vec<Fid>,
}

/// The locked names of a rename.
struct Locked {
    /// The directories with the entries of their names.
    src: NamesView,
    dst: NamesView,
}

/// Whether an attempt has to begin again with the rename lock.
enum Attempt {
    Done(Option<Box<ChangeResult>>),
    NeedsRenameLock,
}

impl Updates {
    /// Renames an inode.
    ///
    /// # Errors
    ///
    /// As [`namespace::rename`]; `ENOTCONN` if this MDT stops, or if the client disconnects.
    pub(crate) async fn rename(self: Arc<Self>, rename: Rename) -> Result<ChangeResult, Errno> {
        let _running = self.running.clone().read_owned().await;
        let mut is_serialized = rename.src.0 != rename.dst.0;
        loop {
            match Box::pin(self.attempt_rename(&rename, is_serialized)).await? {
                Attempt::Done(Some(result)) => return Ok(*result),
                Attempt::Done(None) => {}
                Attempt::NeedsRenameLock => is_serialized = true,
            }
        }
    }

    async fn attempt_rename(&self, rename: &Rename, is_serialized: bool) -> Result<Attempt, Errno> {
        let mut operation = Operation::new(self, &rename.export, rename.origin);
        if is_serialized {
            operation.lock_renames().await?;
        }
        let is_replay = rename.origin.replayed.is_some();
        let chains = match rename.src.0 == rename.dst.0 {
            true => Chains::default(),
            // The rename lock keeps them as they are.
            false => Chains {
                src: self.directories_above(rename.src.0, is_replay).await?,
                dst: self.directories_above(rename.dst.0, is_replay).await?,
            },
        };
        let Locked { src, dst } = self.lock_both_names(&mut operation, rename, &chains).await?;
        let (moved, replaced) = (src.first().ok_or(Errno::ENOENT)?, dst.first());
        check_entries(rename, &chains, moved, replaced)?;
        let both_are_dirs = moved.kind == S_IFDIR && replaced.is_some_and(|entry| entry.kind == S_IFDIR);
        if both_are_dirs && !is_serialized {
            return Ok(Attempt::NeedsRenameLock);
        }
        let views = self
            .lock_both_inodes(&mut operation, rename, moved, replaced)
            .await?;
        let [moved_view, replaced_view] = views;
        let names = MovedNames {
            dirs: [src.dir, dst.dir],
            src: (moved, moved_view.inode.ok_or(Errno::ENOENT)?),
            dst: match replaced {
                None => None,
                Some(entry) => Some((entry, replaced_view.inode.ok_or(Errno::ENOENT)?)),
            },
            dst_has_entries: replaced_view.has_entries,
            above_src: chains.src,
            above_dst: chains.dst,
        };
        let args = RenameArgs {
            src_dir: rename.src.0,
            src_name: &rename.src.1,
            dst_dir: rename.dst.0,
            dst_name: &rename.dst.1,
            time: rename.time,
            flags: rename.flags,
            whiteout: Fid::ZERO,
        };
        let plan = namespace::plan_remote_rename(names, &rename.cred, args)?;
        let result = operation.carry_out(plan).await?;
        Ok(Attempt::Done(result.map(Box::new)))
    }

    /// Locks both names: those of the upper directory first.
    async fn lock_both_names(
        &self,
        operation: &mut Operation<'_>,
        rename: &Rename,
        chains: &Chains,
    ) -> Result<Locked, Errno> {
        let (src, dst) = (&rename.src, &rename.dst);
        let src_place = (self.mdt_of(src.0).await?, src.0);
        if src.0 == dst.0 {
            let names = vec![src.1.clone(), dst.1.clone()];
            let both = operation.lock_names(src_place, names, NameChange::Set).await?;
            let entry = |at: usize| NamesView {
                dir: both.dir.clone(),
                entries: both.entries.get(at..=at).unwrap_or_default().to_vec(),
            };
            return Ok(Locked {
                src: entry(0),
                dst: entry(1),
            });
        }
        let dst_place = (self.mdt_of(dst.0).await?, dst.0);
        let mut lock = async |place, name: &Bytes| {
            let names = vec![name.clone()];
            operation.lock_names(place, names, NameChange::Set).await
        };
        match chains.src.contains(&dst.0) {
            true => {
                let dst = lock(dst_place, &dst.1).await?;
                let src = lock(src_place, &src.1).await?;
                Ok(Locked { src, dst })
            }
            false => {
                let src = lock(src_place, &src.1).await?;
                let dst = lock(dst_place, &dst.1).await?;
                Ok(Locked { src, dst })
            }
        }
    }

    /// Locks the moved and the replaced inode: directories first, each kind by FID. Each one on the
    /// MDT of its name, which may have granted locks on it to clients, and on its own MDT.
    async fn lock_both_inodes(
        &self,
        operation: &mut Operation<'_>,
        rename: &Rename,
        moved: Entry,
        replaced: Option<Entry>,
    ) -> Result<[InodeView; 2], Errno> {
        let mut inodes = vec![(moved, rename.src.0)];
        inodes.extend(replaced.map(|entry| (entry, rename.dst.0)));
        inodes.sort_by_key(|(entry, _)| (entry.kind != S_IFDIR, entry.fid));
        let mut views = [InodeView::default(), InodeView::default()];
        let mut locked = BTreeSet::new();
        for (entry, dir) in inodes {
            let (of_name, own) = (self.mdt_of(dir).await?, self.mdt_of(entry.fid).await?);
            for mdt in [of_name, own] {
                if !locked.insert((entry.fid, mdt)) {
                    continue;
                }
                let view = operation
                    .lock_inode((mdt, entry.fid), InodeChange::Unlink)
                    .await?;
                if view.inode.is_none() {
                    continue;
                }
                if entry.fid == moved.fid {
                    views[0] = view.clone();
                }
                if replaced.is_some_and(|replaced| replaced.fid == entry.fid) {
                    views[1] = view;
                }
            }
        }
        Ok(views)
    }
}

/// Checks what must not be locked: in the lock order, a directory above the other name comes before
/// locks that the operation already holds. Such a rename fails anyway.
fn check_entries(
    rename: &Rename,
    chains: &Chains,
    moved: Entry,
    replaced: Option<Entry>,
) -> Result<(), Errno> {
    let exchange = rename.flags.has(RenameFlags::EXCHANGE);
    match replaced {
        Some(_) if rename.flags.has(RenameFlags::NOREPLACE) => return Err(Errno::EEXIST),
        None if exchange => return Err(Errno::ENOENT),
        _ => {}
    }
    for entry in [Some(moved), replaced].into_iter().flatten() {
        check_not_dot_lustre(entry.fid)?;
    }
    if chains.dst.contains(&moved.fid) {
        return Err(Errno::EINVAL);
    }
    match replaced.is_some_and(|entry| chains.src.contains(&entry.fid)) {
        true if exchange => Err(Errno::EINVAL),
        true => Err(Errno::ENOTEMPTY),
        false => Ok(()),
    }
}
