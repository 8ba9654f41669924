//! Removal of names.

use super::lookup::check_name;
use super::name_dir::NameDir;
use crate::attr::S_IFDIR;
use crate::client::Client;
use crate::cred::Cred;
use crate::inode::Child;
use crate::layout::FileLayout;
use crate::mdc::{Elc, Mdc, NameChange, Reint};
use crate::pack::{self, Suppgids, UnlinkRec};
use crate::stats::Operation;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, Fid, LUSTRE_ORPHAN_FL, MDS_INODELOCK_DOM, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_UPDATE,
    MDS_INODELOCK_XATTR, MdtBody, OBD_MD_FLNLINK, Precision, REINT_RMENTRY, REINT_UNLINK,
};

/// Lock bits that a client cancels on an inode that loses or changes a name. XATTR, because the
/// extended attribute `trusted.link` has the names too.
pub(super) const REMOVAL_BITS: u64 = MDS_INODELOCK_LOOKUP | MDS_INODELOCK_UPDATE | MDS_INODELOCK_XATTR;

/// Index of the buffer with the directory's attributes, in the reply to the removal of a name.
const UNLINK_REPLY_PARENT_ATTR: usize = 6;
/// Largest number of targets that one removal or rename is sent to.
pub(super) const TARGETS_MAX: usize = 4;

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
    pub(super) fn cached_child(&self, dir: &NameDir<'_>, name: &[u8]) -> Fid {
        match self.inodes.child(dir.fid, name) {
            Some(Child::File(fid))
                if dir
                    .mdc
                    .find(fid, ldlm::LockMode::Cr, MDS_INODELOCK_LOOKUP)
                    .is_some() =>
            {
                fid
            }
            _ => Fid::ZERO,
        }
    }

    async fn remove(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<(), Errno> {
        check_name(name)?;
        let mut dirs = self.dirs_of_name(cred, parent, name).await?;
        let mut next = dirs.next().await?;
        while let Some(dir) = next {
            let result = self.remove_in(cred, &dir, name, mode).await;
            next = match &result {
                Err(Errno::ENOENT) => dirs.next().await?,
                _ => None,
            };
            if next.is_none() {
                if result.is_err() {
                    self.invalidate_kernel_name(parent, name);
                }
                return result;
            }
        }
        Err(Errno::ENOENT)
    }

    /// Removes a name from this directory or stripe. The target that has the file executes the
    /// request, because the file may lose its last name.
    async fn remove_in(&self, cred: &Cred, dir: &NameDir<'_>, name: &[u8], mode: u32) -> Result<(), Errno> {
        let child = self.cached_child(dir, name);
        let layout = self.inodes.layout(child);
        let groups = Suppgids(self.suppgid(cred, dir.shown).await, crate::cred::NO_GROUP);
        self.inodes.forget_name(dir.fid, name, child);
        let mut mdc = match child.is_zero() {
            true => dir.mdc,
            false => self.lmv.mdc_of(child).await?,
        };
        let mut known_child = child;
        for _ in 0..TARGETS_MAX {
            let files = [(known_child, dir, self.bits_to_remove(known_child, REMOVAL_BITS))];
            let elc = self.removal_elc(mdc, &[dir], &files).await;
            let rec = UnlinkRec {
                parent: dir.fid,
                child: known_child,
                mode,
                time: self.now(mdc),
                suppgids: groups,
            };
            let change = NameChange::begin(cred, dir, None);
            let bufs = pack::unlink(cred, REINT_UNLINK, &rec, name, &elc);
            let attr_index = Some(UNLINK_REPLY_PARENT_ATTR);
            match mdc.send_changes([change], bufs, attr_index, None).await? {
                Reint::Done(reply) => {
                    self.discard_if_destroyed(mdc, child, layout, &reply.get::<MdtBody>(bufs::MDT_BODY)?);
                    return Ok(());
                }
                Reint::Elsewhere(fid) => {
                    known_child = fid;
                    mdc = self.lmv.mdc_of(fid).await?;
                }
            }
        }
        Err(Errno::EREMOTE)
    }

    /// The lock bits to cancel on a file that loses a name: also the DOM bit if the data goes with
    /// the name. Otherwise the kernel may have pages of the data, and needs the lock.
    pub(super) fn bits_to_remove(&self, fid: Fid, bits: u64) -> u64 {
        let attr = self.inodes.last_known_attr(fid);
        let is_last_name = attr.is_some_and(|md| md.attr.nlink == 1);
        match is_last_name && self.lov.find_file(fid).is_none() {
            true => bits | MDS_INODELOCK_DOM,
            false => bits,
        }
    }

    /// Collects the client's own locks that the removal or move of names by this target revokes.
    /// Locks from this target go with the request; those from other targets are cancelled early.
    /// `files`: each with the directory of its name, and the lock bits.
    pub(super) async fn removal_elc(
        &self,
        mdc: &Arc<Mdc>,
        dirs: &[&NameDir<'_>],
        files: &[(Fid, &NameDir<'_>, u64)],
    ) -> Elc {
        let same = |other: &Arc<Mdc>| other.index == mdc.index;
        let dirs: Vec<Fid> = dirs
            .iter()
            .filter(|dir| same(dir.mdc))
            .map(|dir| dir.fid)
            .collect();
        let mut own = Vec::with_capacity(files.len());
        for (fid, dir, bits) in files.iter().filter(|(fid, ..)| !fid.is_zero()) {
            own.push((*fid, *bits));
            if !same(dir.mdc) {
                dir.mdc.cancel_early(*fid, MDS_INODELOCK_LOOKUP);
            }
            if let Ok(file_mdc) = self.lmv.mdc_of(*fid).await
                && !same(file_mdc)
            {
                file_mdc.cancel_early(*fid, *bits);
            }
        }
        mdc.elc(&dirs, &own)
    }

    /// Removes a name that leads to no file, because the file no longer exists.
    ///
    /// # Errors
    ///
    /// `EEXIST`: the file exists; `ENOENT`: no such name; `EPERM`: the caller is not the superuser;
    /// or another error of the MDT.
    pub async fn rm_entry(&self, cred: &Cred, parent: Fid, name: &[u8]) -> Result<(), Errno> {
        check_name(name)?;
        let mut dirs = self.dirs_of_name(cred, parent, name).await?;
        let mut result = Err(Errno::ENOENT);
        while result == Err(Errno::ENOENT)
            && let Some(dir) = dirs.next().await?
        {
            result = self.rm_entry_in(cred, &dir, name).await;
        }
        result?;
        self.invalidate_kernel_name(parent, name);
        Ok(())
    }

    async fn rm_entry_in(&self, cred: &Cred, dir: &NameDir<'_>, name: &[u8]) -> Result<(), Errno> {
        let mdc = dir.mdc;
        let rec = UnlinkRec {
            parent: dir.fid,
            child: Fid::ZERO,
            mode: 0,
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, dir.shown).await, crate::cred::NO_GROUP),
        };
        let elc = mdc.elc(&[dir.fid], &[]);
        let change = NameChange::begin(cred, dir, None);
        let bufs = pack::unlink(cred, REINT_RMENTRY, &rec, name, &elc);
        mdc.send_changes([change], bufs, Some(UNLINK_REPLY_PARENT_ATTR), None)
            .await?
            .done()
            .map(drop)
    }

    /// Drops the cached data of a file if the attributes in the reply show that the request
    /// destroyed the file.
    pub(super) fn discard_if_destroyed(
        &self,
        mdc: &Mdc,
        fid: Fid,
        layout: Option<Arc<FileLayout>>,
        body: &MdtBody,
    ) {
        if let Some(layout) = layout
            && body.mbo_fid1 == fid
            && is_destroyed(mdc.precision(), body)
        {
            self.lov.discard(fid, &layout);
        }
    }

    /// Makes the kernel look up a name again: the caller has changed the name without the kernel.
    pub fn forget_in_kernel(&self, parent: Fid, name: &[u8]) {
        self.invalidate_kernel_name(parent, name);
    }

    /// Invalidates a name in the kernel, without waiting: the kernel may hold the directory for the
    /// request in progress.
    pub(super) fn invalidate_kernel_name(&self, parent: Fid, name: &[u8]) {
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
