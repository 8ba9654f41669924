//! Removal and renaming of names.

use crate::attr::S_IFDIR;
use crate::client::Client;
use crate::cred::Cred;
use crate::inode::Child;
use crate::layout::FileLayout;
use crate::mdc::Mdc;
use crate::ops::lookup::check_name;
use crate::pack::{self, RenameRec, Suppgids, UnlinkRec};
use crate::stats::Operation;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, Fid, LUSTRE_ORPHAN_FL, MDS_INODELOCK_FULL, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE,
    MDS_INODELOCK_XATTR, MdtBody, OBD_MD_FLNLINK, Precision, REINT_RMENTRY, REINT_UNLINK, RenameFlags,
};

/// Lock bits that a client cancels on an inode that loses or changes a name. XATTR, because the
/// extended attribute `trusted.link` has the names too.
const REMOVAL_BITS: u64 = MDS_INODELOCK_LOOKUP | MDS_INODELOCK_UPDATE | MDS_INODELOCK_XATTR;

/// Index of the buffer with the directory's attributes, in the reply to the removal of a name.
const UNLINK_REPLY_PARENT_ATTR: usize = 6;

impl Client {
    /// Removes a name of a file.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `EISDIR`, or an error of the MDT such as `EACCES`.
    pub async fn unlink(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Unlink);
        self.remove(cred, parent, name, 0).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, or an error of the MDT such as `EACCES`.
    pub async fn rmdir(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Rmdir);
        self.remove(cred, parent, name, S_IFDIR).await
    }

    /// The file of a name, if the name is cached under the file's LOOKUP lock; else the zero FID.
    fn cached_child(&self, mdc: &Mdc, parent: Fid, name: &[u8]) -> Fid {
        match self.inodes.child(parent, name) {
            Some(Child::File(fid)) if mdc.find(fid, ldlm::LockMode::Cr, MDS_INODELOCK_LOOKUP).is_some() => {
                fid
            }
            _ => Fid::ZERO,
        }
    }

    async fn remove(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<(), Errno> {
        check_name(name)?;
        let mdc = self.lmv.mdc_of(parent).await?;
        let child = self.cached_child(mdc, parent, name);
        let layout = self.inodes.layout(child);
        let groups = Suppgids(self.suppgid(cred, parent).await, crate::cred::NO_GROUP);
        self.inodes.forget_name(parent, name, child);
        let elc = mdc.elc(&[parent], &[(child, REMOVAL_BITS)]);
        let rec = UnlinkRec {
            parent,
            child,
            mode,
            time: self.now(mdc),
            suppgids: groups,
        };
        let change = mdc.begin_change(cred, parent, None);
        let bufs = pack::unlink(cred, REINT_UNLINK, &rec, name, &elc);
        let reply = mdc
            .send_changes([change], bufs, Some(UNLINK_REPLY_PARENT_ATTR))
            .await;
        if reply.is_err() {
            self.invalidate_kernel_name(parent, name);
        }
        let reply = reply?;
        self.discard_if_destroyed(mdc, child, layout, &reply.get::<MdtBody>(bufs::MDT_BODY)?);
        Ok(())
    }

    /// Removes a name that leads to no file, because the file no longer exists.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the file exists; `ENOENT`: no such name; `EPERM`: the caller is not the superuser;
    /// or another error of the MDT.
    pub async fn rm_entry(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        let mdc = self.lmv.mdc_of(parent).await?;
        let rec = UnlinkRec {
            parent,
            child: Fid::ZERO,
            mode: 0,
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, parent).await, crate::cred::NO_GROUP),
        };
        let elc = mdc.elc(&[parent], &[]);
        let change = mdc.begin_change(cred, parent, None);
        let bufs = pack::unlink(cred, REINT_RMENTRY, &rec, name, &elc);
        mdc.send_changes([change], bufs, Some(UNLINK_REPLY_PARENT_ATTR))
            .await?;
        self.invalidate_kernel_name(parent, name);
        Ok(())
    }

    /// Drops the cached data of a file if the attributes in the reply show that the request
    /// destroyed the file.
    fn discard_if_destroyed(&self, mdc: &Mdc, fid: Fid, layout: Option<Arc<FileLayout>>, body: &MdtBody) {
        if let Some(layout) = layout
            && body.mbo_fid1 == fid
            && is_destroyed(mdc.precision(), body)
        {
            self.lov.discard(fid, &layout);
        }
    }

    /// Renames a file or directory. Replaces an existing file or empty directory of the new name.
    ///
    /// # Errors
    ///
    /// `ENOENT`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EINVAL` (into a subdirectory of itself), or
    /// another error of the MDT.
    pub async fn rename(&self, cred: &Cred, from: (Fid, &[u8]), to: (Fid, &[u8])) -> Result<(), Errno> {
        self.rename_with(cred, from, to, RenameFlags::NONE).await
    }

    /// Renames with flags of `renameat2`.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the target exists, with `NOREPLACE`; `EINVAL`: flags, and the MDT has not agreed
    /// to accept them (a Lustre server, or a mount on Lustre's lock terms); else as
    /// [`Client::rename`].
    pub async fn rename_with(
        &self,
        cred: &Cred,
        from: (Fid, &[u8]),
        to: (Fid, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Rename);
        check_name(from.1)?;
        check_name(to.1)?;
        let mdc: &Arc<Mdc> = self.lmv.mdc_of(to.0).await?;
        if !flags.is_empty() && !mdc.accepts_rename_flags() {
            return Err(Errno::EINVAL);
        }
        let exchange = flags.has(RenameFlags::EXCHANGE);
        let whiteout = match flags.has(RenameFlags::WHITEOUT) {
            true => mdc.new_fid().await?,
            false => Fid::ZERO,
        };
        let (source, target) = (
            self.cached_child(mdc, from.0, from.1),
            self.cached_child(mdc, to.0, to.1),
        );
        let layout = self.inodes.layout(target);
        let groups = Suppgids(self.suppgid(cred, from.0).await, self.suppgid(cred, to.0).await);
        // A Lustre server detects by the mode that the rename moves a directory: it serializes such
        // renames.
        let mode = match self.inodes.permission_attr(source) {
            Some(md) => md.attr.mode,
            None if mdc.precision() == Precision::Seconds => {
                self.lookup(cred, from.0, from.1).await?.attr.mode
            }
            None => 0,
        };
        self.inodes.forget_name(from.0, from.1, source);
        self.inodes.forget_name(to.0, to.1, target);
        let target_bits = if exchange {
            REMOVAL_BITS
        } else {
            MDS_INODELOCK_FULL
        };
        let files = [(source, REMOVAL_BITS), (target, target_bits)];
        let elc = mdc.elc(&[from.0, to.0], &files);
        let rec = RenameRec {
            from,
            to,
            mode,
            time: self.now(mdc),
            suppgids: groups,
            flags,
            whiteout,
        };
        // After an exchange, or with a whiteout, a file has the old name.
        let kept_name = (exchange || !whiteout.is_zero()).then_some(from.1);
        let changes = [
            mdc.begin_change(cred, from.0, kept_name),
            mdc.begin_change(cred, to.0, Some(to.1)),
        ];
        let reply = mdc
            .send_changes(changes, pack::rename(cred, &rec, &elc), None)
            .await;
        if reply.is_err() {
            self.invalidate_kernel_name(from.0, from.1);
            self.invalidate_kernel_name(to.0, to.1);
        }
        let reply = reply?;
        self.discard_if_destroyed(mdc, target, layout, &reply.get::<MdtBody>(bufs::MDT_BODY)?);
        self.lock_kernel_name(cred, to, source).await;
        if exchange {
            self.lock_kernel_name(cred, from, target).await;
        }
        Ok(())
    }

    /// Gets a lock that covers a name after a rename, because the kernel moves its cached entry to
    /// the new name. Invalidates the name in the kernel if no lock covers it or the name leads to a
    /// file other than `child`.
    async fn lock_kernel_name(&self, cred: &Cred, (parent, name): (Fid, &[u8]), child: Fid) {
        if self.kernel.get().is_none() {
            return;
        }
        match self.lookup(cred, parent, name).await {
            Ok(found) if found.attr.fid == child && found.name_cached => {}
            _ => self.invalidate_kernel_name(parent, name),
        }
    }

    /// Invalidates a name in the kernel, without waiting: the kernel may hold the directory for the
    /// request in progress.
    fn invalidate_kernel_name(&self, parent: Fid, name: &[u8]) {
        if self.kernel.get().is_none() {
            return;
        }
        let (kernel, name) = (self.kernel.clone(), name.to_vec());
        cpt::spawn(async move {
            if let Some(cache) = kernel.get() {
                cache.inval_entry(parent, &name, Fid::ZERO).await;
            }
        });
    }
}

/// Whether a file has lost its last name and no client has it open. Its dirty data then need not be
/// written. False for a Lustre server, which does not report open handles; its OSTs report the
/// deletion later by a callback.
fn is_destroyed(peer: Precision, body: &MdtBody) -> bool {
    let has_no_name = body.mbo_valid & OBD_MD_FLNLINK != 0 && body.mbo_nlink == 0;
    // An orphan is still open at some client, perhaps this one.
    peer == Precision::Nanoseconds && has_no_name && body.mbo_flags & LUSTRE_ORPHAN_FL == 0
}

#[cfg(test)]
mod tests {
    use super::is_destroyed;
    use wire::{LUSTRE_ORPHAN_FL, MdtBody, OBD_MD_FLNLINK, Precision};

    #[test]
    fn a_file_counts_as_destroyed_only_without_names_and_without_opens() {
        let unlinked = MdtBody {
            mbo_valid: OBD_MD_FLNLINK,
            ..MdtBody::default()
        };
        let open = MdtBody {
            mbo_flags: LUSTRE_ORPHAN_FL,
            ..unlinked
        };
        let linked = MdtBody {
            mbo_nlink: 1,
            ..unlinked
        };
        assert!(is_destroyed(Precision::Nanoseconds, &unlinked));
        for body in [&open, &linked, &MdtBody::default()] {
            assert!(!is_destroyed(Precision::Nanoseconds, body));
        }
        assert!(
            !is_destroyed(Precision::Seconds, &unlinked),
            "Lustre does not report opens"
        );
    }
}
