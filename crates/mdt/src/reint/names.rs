//! Changes of names: create, link, unlink, removal of a dangling name, rename.

use bytes::Bytes;
use rpc::ServerRequest;
use wire::format::bufs;
use wire::{
    Errno, Fid, LmvUserMdV1, MdtRecCreate, MdtRecLink, MdtRecRename, MdtRecUnlink, Precision, RenameFlags,
    WireStruct,
};

use super::{change_reply, time_of, without_nul};
use crate::{
    cred::Cred,
    locks::RenameEnd,
    namespace::{self, NameToRemove, NewInode, RenameArgs, Resolved, UnlinkArgs},
    store::{S_IFDIR, S_IFLNK, S_IFMT},
    target::{HandlerResult, Mdt, elsewhere, name_of, precision},
    updates::{NewDirectory, NewLink, Removal, RemovedName, Rename},
};

impl Mdt {
    pub(super) async fn reint_create(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let create: MdtRecCreate = req.get(bufs::REC_REINT)?;
        let name = name_of(req, bufs::CREATE_NAME);
        let mut node = NewInode {
            fid: create.cr_fid2,
            mode: create.cr_mode,
            rdev: create.cr_rdev,
            time: time_of(req, &create),
            ..NewInode::default()
        };
        if create.cr_mode & S_IFMT == S_IFLNK {
            node.symlink = without_nul(&req.bytes(bufs::CREATE_SYMLINK));
        }
        let parent = create.cr_fid1;
        if node.mode & S_IFMT == S_IFDIR && self.has_remote_parent(req, &create, cred).await? {
            return self.create_remote(req, cred, parent, name, node).await;
        }
        namespace::check_name_change(&self.store, cred, parent, &name).await?;
        node.check(cred)?;
        let unused = self.check_new_fid(req, node.fid).await?;
        let mut locks = self.request_locks(req);
        locks.lock_name_write(parent, &name).await?;
        let resolved = Resolved::read(&self.store, cred, parent, &name).await?;
        let change = namespace::create_resolved(
            self.request_store(req),
            cred,
            (parent, &name),
            resolved,
            Some(unused),
            &node,
        )
        .await?;
        locks.hold_until_acknowledged(req);
        Ok(self
            .append_dir_attrs(req, parent, change_reply(req, &change, 3, true))
            .await)
    }

    /// Whether another MDT has the parent of a new directory.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a directory with several stripes: in a file system with one MDT a directory
    /// always has one. `EPERM` if the user may not create remote directories.
    async fn has_remote_parent(
        &self,
        req: &ServerRequest,
        create: &MdtRecCreate,
        cred: &Cred,
    ) -> Result<bool, Errno> {
        if self.peers.is_empty() {
            return Ok(false);
        }
        let layout = LmvUserMdV1::from_bytes(req.buf(bufs::CREATE_EA)).ok();
        if layout.is_some_and(|layout| layout.lum_stripe_count > 1) {
            return Err(Errno::EOPNOTSUPP);
        }
        let is_remote = self.other_mdt_of(create.cr_fid1).await?.is_some();
        if is_remote {
            self.updates.check_may_place(cred, layout.is_some())?;
        }
        Ok(is_remote)
    }

    /// Creates a directory under a name of another MDT. The work goes on if the client disconnects.
    async fn create_remote(
        &self,
        req: &ServerRequest,
        cred: &Cred,
        parent: Fid,
        name: Bytes,
        node: NewInode,
    ) -> HandlerResult {
        namespace::check_name(&name)?;
        node.check(cred)?;
        self.check_new_fid(req, node.fid).await?;
        let new = NewDirectory {
            parent,
            name,
            node,
            cred: cred.clone(),
            origin: self.request_store(req).origin(),
            export: req.export.clone(),
        };
        let change = cpt::detach_on_drop(self.updates.clone().create_dir(new)).await?;
        Ok(change_reply(req, &change, 3, true))
    }

    /// Removes a name on another MDT.
    async fn unlink_remote(&self, req: &ServerRequest, cred: &Cred, args: UnlinkArgs<'_>) -> HandlerResult {
        namespace::check_name(args.name)?;
        let removed = RemovedName {
            parent: args.parent,
            name: Bytes::copy_from_slice(args.name),
            is_rmdir: args.is_rmdir,
            time: args.time,
            cred: cred.clone(),
            origin: self.request_store(req).origin(),
            export: req.export.clone(),
        };
        match cpt::detach_on_drop(self.updates.clone().remove_name(removed)).await? {
            Removal::Done(change) => Ok(change_reply(req, &change, 5, true)),
            Removal::Elsewhere(fid) => Ok(elsewhere(fid, 5, Errno::EREMOTE)),
        }
    }

    /// Whether another MDT has one of the directories or inodes of a rename.
    async fn is_remote_rename(&self, src: RenameEnd<'_>, dst: RenameEnd<'_>) -> Result<bool, Errno> {
        if self.peers.is_empty() {
            return Ok(false);
        }
        for end in [src, dst] {
            if self.other_mdt_of(end.dir).await?.is_some() {
                return Ok(true);
            }
            if let Some(entry) = self.store.entry(end.dir, end.name).await?
                && self.is_remote(entry.fid).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds a name to a file; the two are on different MDTs.
    async fn link_remote(
        &self,
        req: &ServerRequest,
        cred: &Cred,
        link: &MdtRecLink,
        name: Bytes,
    ) -> HandlerResult {
        namespace::check_name(&name)?;
        let new = NewLink {
            file: link.lk_fid1,
            parent: link.lk_fid2,
            name,
            time: time_of(req, link),
            cred: cred.clone(),
            origin: self.request_store(req).origin(),
            export: req.export.clone(),
        };
        let change = cpt::detach_on_drop(self.updates.clone().add_link(new)).await?;
        let is_nacre_client = precision(req) == Precision::Nanoseconds;
        Ok(change_reply(req, &change, 1, is_nacre_client))
    }

    pub(super) async fn reint_link(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let link: MdtRecLink = req.get(bufs::REC_REINT)?;
        let (file, dir) = (link.lk_fid1, link.lk_fid2);
        let name = name_of(req, bufs::LINK_NAME);
        if self.is_remote(file).await? || self.is_remote(dir).await? {
            return self.link_remote(req, cred, &link, name).await;
        }
        if self.store.inode(file).await?.is_dir() && !cpt::Bug::LinkDeadlock.is_planted() {
            return Err(Errno::EPERM);
        }
        // The file is no directory, and `dir` must be one: the locks of the two do not conflict.
        namespace::check_name_change(&self.store, cred, dir, &name).await?;
        let mut locks = self.request_locks(req);
        locks.lock_name_write(dir, &name).await?;
        locks.lock_for_link(file).await?;
        let change = namespace::link(
            self.request_store(req),
            cred,
            file,
            dir,
            &name,
            time_of(req, &link),
        )
        .await?;
        locks.hold_until_acknowledged(req);
        // Only Nacre clients expect the file's attributes. A Lustre client would use them for the
        // directory.
        let is_nacre_client = precision(req) == Precision::Nanoseconds;
        let reply = change_reply(req, &change, 1, is_nacre_client);
        Ok(self.append_dir_attrs(req, dir, reply).await)
    }

    pub(super) async fn reint_unlink(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let unlink: MdtRecUnlink = req.get(bufs::REC_REINT)?;
        let name = name_of(req, bufs::UNLINK_NAME);
        let parent = unlink.ul_fid1;
        let args = UnlinkArgs {
            parent,
            name: &name,
            is_rmdir: unlink.ul_mode & S_IFMT == S_IFDIR,
            time: time_of(req, &unlink),
        };
        if self.other_mdt_of(parent).await?.is_some() {
            return self.unlink_remote(req, cred, args).await;
        }
        let found = NameToRemove::find(&self.store, cred, args).await?;
        let mut locks = self.request_locks(req);
        locks.lock_name_write(parent, &name).await?;
        let found = found.refresh(&self.store, cred, args).await?;
        if self.is_remote(found.entry.fid).await? {
            return match (args.is_rmdir, found.entry.kind == S_IFDIR) {
                (false, true) => Err(Errno::EISDIR),
                (true, false) => Err(Errno::ENOTDIR),
                _ => Ok(elsewhere(found.entry.fid, 5, Errno::EREMOTE)),
            };
        }
        locks.lock_for_removal(found.entry.fid).await?;
        let change = namespace::unlink_entry(self.request_store(req), cred, args, found).await?;
        locks.hold_until_acknowledged(req);
        Ok(self
            .append_dir_attrs(req, parent, change_reply(req, &change, 5, true))
            .await)
    }

    /// Removes a name that leads to a missing inode (`lfs rm_entry`). `EPERM` if the user is no
    /// administrator.
    pub(super) async fn reint_rm_entry(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        if !cred.is_admin() {
            return Err(Errno::EPERM);
        }
        let rec: MdtRecUnlink = req.get(bufs::REC_REINT)?;
        let name = name_of(req, bufs::UNLINK_NAME);
        let args = UnlinkArgs {
            parent: rec.ul_fid1,
            name: &name,
            is_rmdir: false,
            time: time_of(req, &rec),
        };
        let found = NameToRemove::find(&self.store, cred, args).await?;
        if self.is_remote(found.entry.fid).await? {
            // Only the other MDT knows whether the inode is missing.
            return Err(Errno::EOPNOTSUPP);
        }
        let mut locks = self.request_locks(req);
        locks.lock_name_write(args.parent, &name).await?;
        let change = namespace::remove_dangling_name(self.request_store(req), cred, args).await?;
        locks.hold_until_acknowledged(req);
        Ok(self
            .append_dir_attrs(req, args.parent, change_reply(req, &change, 5, false))
            .await)
    }

    pub(super) async fn reint_rename(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let rename: MdtRecRename = req.get(bufs::REC_REINT)?;
        let (src_name, dst_name) = (
            name_of(req, bufs::RENAME_SOURCE),
            name_of(req, bufs::RENAME_TARGET),
        );
        let flags = match RenameFlags::agreed(&req.export.data()) {
            true => rename.flags()?,
            false => RenameFlags::NONE,
        };
        let args = RenameArgs {
            src_dir: rename.rn_fid1,
            src_name: &src_name,
            dst_dir: rename.rn_fid2,
            dst_name: &dst_name,
            time: time_of(req, &rename),
            flags,
            whiteout: rename.whiteout(),
        };
        let src = RenameEnd {
            dir: args.src_dir,
            name: &src_name,
        };
        let dst = RenameEnd {
            dir: args.dst_dir,
            name: &dst_name,
        };
        namespace::check_name(src.name)?;
        namespace::check_name(dst.name)?;
        if self.is_remote_rename(src, dst).await? {
            return self.rename_remote(req, cred, args).await;
        }
        namespace::check_name_change(&self.store, cred, src.dir, src.name).await?;
        namespace::check_name_change(&self.store, cred, dst.dir, dst.name).await?;
        if flags.has(RenameFlags::WHITEOUT) {
            self.check_new_fid(req, args.whiteout).await?;
        }
        let mut locks = self.request_locks(req);
        let mut serialized = false;
        let mut rename_lock = None;
        loop {
            match locks.lock_rename(&self.store, src, dst, flags, serialized).await {
                Ok(true) => break,
                Ok(false) => {
                    serialized = true;
                    rename_lock = self.updates.lock_renames(self.is_replay(req)).await?;
                    locks.lock_renames().await?;
                }
                // Another MDT knows which directories are above these.
                Err(Errno::EXDEV) => {
                    drop((locks, rename_lock));
                    return self.rename_remote(req, cred, args).await;
                }
                Err(e) => return Err(e),
            }
        }
        if self.is_remote_rename(src, dst).await? {
            drop((locks, rename_lock));
            return self.rename_remote(req, cred, args).await;
        }
        let change = namespace::rename(self.request_store(req), cred, args).await?;
        locks.hold_until_acknowledged(req);
        // Send the attributes of the replaced inode if it lost its last name.
        let lost_last_name = change.inode.nlink == 0;
        Ok(change_reply(req, &change, 5, lost_last_name))
    }

    /// Renames between MDTs. The work goes on if the client disconnects.
    async fn rename_remote(&self, req: &ServerRequest, cred: &Cred, args: RenameArgs<'_>) -> HandlerResult {
        // A whiteout is a new inode of the MDT of the old name, which another MDT cannot create.
        if args.flags.has(RenameFlags::WHITEOUT) || !self.updates.allows_renames() {
            return Err(Errno::EXDEV);
        }
        let rename = Rename {
            src: (args.src_dir, Bytes::copy_from_slice(args.src_name)),
            dst: (args.dst_dir, Bytes::copy_from_slice(args.dst_name)),
            time: args.time,
            flags: args.flags,
            cred: cred.clone(),
            origin: self.request_store(req).origin(),
            export: req.export.clone(),
        };
        let change = cpt::detach_on_drop(self.updates.clone().rename(rename)).await?;
        let lost_last_name = change.inode.nlink == 0;
        Ok(change_reply(req, &change, 5, lost_last_name))
    }
}
