//! Operations that this MDT coordinates on one name: creates, removals and links. For a rename see
//! [`super::rename`].

use std::sync::Arc;

use bytes::Bytes;
use osd::SpacePurpose;
use rpc::Export;
use wire::{Errno, Fid, Time};

use super::{
    Updates,
    message::{InodeChange, NameChange},
    operation::Operation,
};
use crate::{
    cred::Cred,
    namespace::{self, ChangeResult, NewInode, UnlinkArgs},
    store::Origin,
};

/// A directory to create under a name of another MDT.
pub(crate) struct NewDirectory {
    /// The directory of the name.
    pub parent: Fid,
    /// The name.
    pub name: Bytes,
    /// The new directory; its FID is not in use.
    pub node: NewInode,
    /// The user.
    pub cred: Cred,
    /// The client's request.
    pub origin: Origin,
    /// The client.
    pub export: Arc<Export>,
}

/// A name on another MDT to remove, with an inode of this one.
pub(crate) struct RemovedName {
    /// The directory of the name.
    pub parent: Fid,
    /// The name.
    pub name: Bytes,
    /// Whether the client removes a directory.
    pub is_rmdir: bool,
    /// The time of the change.
    pub time: Time,
    /// The user.
    pub cred: Cred,
    /// The client's request.
    pub origin: Origin,
    /// The client.
    pub export: Arc<Export>,
}

/// A new name of a file; the two are on different MDTs.
pub(crate) struct NewLink {
    /// The file.
    pub file: Fid,
    /// The directory of the name.
    pub parent: Fid,
    /// The name.
    pub name: Bytes,
    /// The time of the change.
    pub time: Time,
    /// The user.
    pub cred: Cred,
    /// The client's request.
    pub origin: Origin,
    /// The client.
    pub export: Arc<Export>,
}

/// The result of a removal.
pub(crate) enum Removal {
    /// The name is removed.
    Done(Box<ChangeResult>),
    /// The name leads to this inode, and another MDT than this one has it.
    Elsewhere(Fid),
}

impl Updates {
    /// Checks the space for an operation that adds to this MDT. A replayed one was admitted when it
    /// was first executed.
    fn check_space(&self, origin: Origin) -> Result<(), Errno> {
        match origin.replayed {
            Some(_) => Ok(()),
            None => Ok(self.store.index().space().check(SpacePurpose::Growth)?),
        }
    }

    /// Creates a directory under a name of another MDT.
    ///
    /// # Errors
    ///
    /// As [`namespace::create`]; `ENOTCONN` if this MDT stops.
    pub(crate) async fn create_dir(self: Arc<Self>, new: NewDirectory) -> Result<ChangeResult, Errno> {
        let _running = self.running.clone().read_owned().await;
        self.check_space(new.origin)?;
        let parent_mdt = self.mdt_of(new.parent).await?;
        loop {
            let mut operation = Operation::new(&self, &new.export, new.origin);
            let view = operation
                .lock_name((parent_mdt, new.parent), &new.name, NameChange::Set)
                .await?;
            let in_use = view.first().is_some();
            let name = (new.parent, &new.name[..]);
            let plan = namespace::plan_remote_create(&view.dir, in_use, &new.cred, name, &new.node)?;
            if let Some(result) = operation.carry_out(plan).await? {
                return Ok(result);
            }
        }
    }

    /// Removes a name on another MDT, and with the last name the inode.
    ///
    /// # Errors
    ///
    /// As [`namespace::unlink`]; `ENOTCONN` if this MDT stops, or if the client disconnects.
    pub(crate) async fn remove_name(self: Arc<Self>, removed: RemovedName) -> Result<Removal, Errno> {
        let _running = self.running.clone().read_owned().await;
        let parent_mdt = self.mdt_of(removed.parent).await?;
        let args = UnlinkArgs {
            parent: removed.parent,
            name: &removed.name,
            is_rmdir: removed.is_rmdir,
            time: removed.time,
        };
        loop {
            let mut operation = Operation::new(&self, &removed.export, removed.origin);
            let view = operation
                .lock_name((parent_mdt, removed.parent), &removed.name, NameChange::Remove)
                .await?;
            namespace::check_remote_dir(&removed.cred, &view.dir)?;
            let fid = view.first().ok_or(Errno::ENOENT)?.fid;
            if self.store.find(fid).await?.is_none() {
                return Ok(Removal::Elsewhere(fid));
            }
            let target = operation
                .lock_inode((self.index, fid), InodeChange::Unlink)
                .await?;
            let inode = target.inode.ok_or(Errno::ENOENT)?;
            let target = (fid, inode, target.has_entries);
            let plan = namespace::plan_remote_unlink(&view.dir, &removed.cred, args, target)?;
            if let Some(result) = operation.carry_out(plan).await? {
                return Ok(Removal::Done(Box::new(result)));
            }
        }
    }

    /// Adds a name to a file of another MDT.
    ///
    /// # Errors
    ///
    /// As [`namespace::link`]; `ENOTCONN` if this MDT stops, or if the client disconnects.
    pub(crate) async fn add_link(self: Arc<Self>, new: NewLink) -> Result<ChangeResult, Errno> {
        let _running = self.running.clone().read_owned().await;
        self.check_space(new.origin)?;
        let (parent_mdt, file_mdt) = (self.mdt_of(new.parent).await?, self.mdt_of(new.file).await?);
        loop {
            let mut operation = Operation::new(&self, &new.export, new.origin);
            let view = operation
                .lock_name((parent_mdt, new.parent), &new.name, NameChange::Set)
                .await?;
            let in_use = view.first().is_some();
            let file = operation
                .lock_inode((file_mdt, new.file), InodeChange::Link)
                .await?;
            let file = (new.file, file.inode.ok_or(Errno::ENOENT)?);
            let name = (new.parent, &new.name[..]);
            let plan = namespace::plan_remote_link(view.dir, in_use, &new.cred, name, file, new.time)?;
            if let Some(result) = operation.carry_out(plan).await? {
                return Ok(result);
            }
        }
    }
}
