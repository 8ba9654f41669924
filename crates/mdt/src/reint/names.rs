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
    locks::{RenameEnd, UPDATE, XATTR},
    namespace::{self, NameToRemove, NewInode, RenameArgs, Resolved, UnlinkArgs},
    store::{S_IFDIR, S_IFLNK, S_IFMT},
    target::{HandlerResult, Mdt, elsewhere, name_of, precision},
    updates::{NewDirectory, Removal, RemovedDirectory},
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
        if node.mode & S_IFMT == S_IFDIR
            && let Some(parent_mdt) = self.mdt_of_new_name(req, &create, cred).await?
        {
            return self
                .create_remote(req, cred, (parent, parent_mdt), name, node)
                .await;
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

    /// The other MDT that has the parent of a new directory; `None` if this one has it.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a directory with several stripes: in a file system with one MDT a directory
    /// always has one. `EPERM` if the user may not create remote directories.
    async fn mdt_of_new_name(
        &self,
        req: &ServerRequest,
        create: &MdtRecCreate,
        cred: &Cred,
    ) -> Result<Option<u32>, Errno> {
        if self.peers.is_empty() {
            return Ok(None);
        }
        let layout = LmvUserMdV1::from_bytes(req.buf(bufs::CREATE_EA)).ok();
        if layout.is_some_and(|layout| layout.lum_stripe_count > 1) {
            return Err(Errno::EOPNOTSUPP);
        }
        let other = self.other_mdt_of(create.cr_fid1).await?;
        if other.is_some() {
            self.updates.check_may_place(cred, layout.is_some())?;
        }
        Ok(other)
    }

    /// Creates a directory under a name of another MDT. The work goes on if the client disconnects.
    async fn create_remote(
        &self,
        req: &ServerRequest,
        cred: &Cred,
        (parent, parent_mdt): (Fid, u32),
        name: Bytes,
        node: NewInode,
    ) -> HandlerResult {
        namespace::check_name(&name)?;
        node.check(cred)?;
        self.check_new_fid(req, node.fid).await?;
        let new = NewDirectory {
            parent,
            parent_mdt,
            name,
            node,
            cred: cred.clone(),
            origin: self.request_store(req).origin(),
        };
        let change = cpt::detach_on_drop(self.updates.clone().create_dir(new)).await?;
        Ok(change_reply(req, &change, 3, true))
    }

    /// Removes a directory with its name on another MDT.
    async fn unlink_remote(
        &self,
        req: &ServerRequest,
        cred: &Cred,
        args: UnlinkArgs<'_>,
        parent_mdt: u32,
    ) -> HandlerResult {
        namespace::check_name(args.name)?;
        let removed = RemovedDirectory {
            parent: args.parent,
            parent_mdt,
            name: Bytes::copy_from_slice(args.name),
            is_rmdir: args.is_rmdir,
            time: args.time,
            cred: cred.clone(),
            origin: self.request_store(req).origin(),
            export: req.export.clone(),
        };
        match cpt::detach_on_drop(self.updates.clone().remove_dir(removed)).await? {
            Removal::Done(change) => Ok(change_reply(req, &change, 5, true)),
            Removal::Elsewhere(fid) => Ok(elsewhere(fid, 5, Errno::EREMOTE)),
        }
    }

    /// `EXDEV` if another MDT has one of the directories or inodes of a rename.
    async fn check_rename_on_one_mdt(&self, src: RenameEnd<'_>, dst: RenameEnd<'_>) -> Result<(), Errno> {
        if self.peers.is_empty() {
            return Ok(());
        }
        for end in [src, dst] {
            if self.other_mdt_of(end.dir).await?.is_some() {
                return Err(Errno::EXDEV);
            }
            if let Some(entry) = self.store.entry(end.dir, end.name).await?
                && self.is_remote(entry.fid).await?
            {
                return Err(Errno::EXDEV);
            }
        }
        Ok(())
    }

    pub(super) async fn reint_link(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let link: MdtRecLink = req.get(bufs::REC_REINT)?;
        let (file, dir) = (link.lk_fid1, link.lk_fid2);
        let name = name_of(req, bufs::LINK_NAME);
        for fid in [file, dir] {
            if self.is_remote(fid).await? {
                return Err(Errno::EXDEV);
            }
        }
        if self.store.inode(file).await?.is_dir() && !cpt::Bug::LinkDeadlock.is_planted() {
            return Err(Errno::EPERM);
        }
        // The file is no directory, and `dir` must be one: the locks of the two do not conflict.
        namespace::check_name_change(&self.store, cred, dir, &name).await?;
        let mut locks = self.request_locks(req);
        locks.lock_name_write(dir, &name).await?;
        locks.lock_inode(file, UPDATE | XATTR).await?;
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
        if let Some(parent_mdt) = self.other_mdt_of(parent).await? {
            return self.unlink_remote(req, cred, args, parent_mdt).await;
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
        self.check_rename_on_one_mdt(src, dst).await?;
        namespace::check_name_change(&self.store, cred, src.dir, src.name).await?;
        namespace::check_name_change(&self.store, cred, dst.dir, dst.name).await?;
        if flags.has(RenameFlags::WHITEOUT) {
            self.check_new_fid(req, args.whiteout).await?;
        }
        let mut locks = self.request_locks(req);
        locks.lock_rename(&self.store, src, dst, flags).await?;
        self.check_rename_on_one_mdt(src, dst).await?;
        let change = namespace::rename(self.request_store(req), cred, args).await?;
        locks.hold_until_acknowledged(req);
        // Send the attributes of the replaced inode if it lost its last name.
        let lost_last_name = change.inode.nlink == 0;
        Ok(change_reply(req, &change, 5, lost_last_name))
    }
}
