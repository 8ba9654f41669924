//! Renaming of names.

use super::lookup::check_name;
use super::name_dir::NameDir;
use super::remove::{REMOVAL_BITS, TARGETS_MAX};
use crate::client::Client;
use crate::cred::Cred;
use crate::mdc::{NameChange, Reint};
use crate::pack::{self, RenameRec, Suppgids};
use crate::stats::Operation;
use wire::format::bufs;
use wire::{Errno, Fid, MDS_INODELOCK_ELC, MdtBody, Precision, RenameFlags};

impl Client {
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
        let to_dir = self.dir_for_new_name(cred, to.0, to.1).await?;
        let mut from_dirs = self.dirs_of_name(cred, from.0, from.1).await?;
        let mut next = from_dirs.next().await?;
        let mut result = Err(Errno::ENOENT);
        while let Some(from_dir) = next {
            result = self
                .rename_in(cred, (&from_dir, from.1), (&to_dir, to.1), flags)
                .await;
            next = match &result {
                Err(Errno::ENOENT) => from_dirs.next().await?,
                _ => None,
            };
        }
        if result.is_err() {
            self.invalidate_kernel_name(from.0, from.1);
            self.invalidate_kernel_name(to.0, to.1);
        }
        let (source, target) = result?;
        self.lock_kernel_name(cred, to, source).await;
        if flags.has(RenameFlags::EXCHANGE) {
            self.lock_kernel_name(cred, from, target).await;
        }
        Ok(())
    }

    /// Renames between these directories or stripes. Returns the moved and the replaced file, each
    /// zero if not cached. The target that has the replaced file executes the request, because that
    /// file may lose its last name; else the target of the new directory does.
    async fn rename_in(
        &self,
        cred: &Cred,
        from: (&NameDir<'_>, &[u8]),
        to: (&NameDir<'_>, &[u8]),
        flags: RenameFlags,
    ) -> Result<(Fid, Fid), Errno> {
        let (source, target) = (self.cached_child(from.0, from.1), self.cached_child(to.0, to.1));
        let mut mdc = match target.is_zero() {
            true => to.0.mdc,
            false => self.lmv.mdc_of(target).await?,
        };
        if !flags.is_empty() && !mdc.accepts_rename_flags() {
            return Err(Errno::EINVAL);
        }
        let exchange = flags.has(RenameFlags::EXCHANGE);
        let whiteout = match flags.has(RenameFlags::WHITEOUT) {
            true => from.0.mdc.new_fid().await?,
            false => Fid::ZERO,
        };
        let layout = self.inodes.layout(target);
        let groups = Suppgids(
            self.suppgid(cred, from.0.shown).await,
            self.suppgid(cred, to.0.shown).await,
        );
        // A Lustre server detects by the mode that the rename moves a directory: it serializes such
        // renames.
        let mode = match self.inodes.permission_attr(source) {
            Some(md) => md.attr.mode,
            None if mdc.precision() == Precision::Seconds => {
                self.lookup(cred, from.0.shown, from.1).await?.attr.mode
            }
            None => 0,
        };
        self.inodes.forget_name(from.0.fid, from.1, source);
        self.inodes.forget_name(to.0.fid, to.1, target);
        let target_bits = match exchange {
            true => REMOVAL_BITS,
            false => self.bits_to_remove(target, MDS_INODELOCK_ELC),
        };
        // After an exchange, or with a whiteout, a file has the old name.
        let kept_name = (exchange || !whiteout.is_zero()).then_some(from.1);
        for _ in 0..TARGETS_MAX {
            let files = [(source, from.0, REMOVAL_BITS), (target, to.0, target_bits)];
            let elc = self.removal_elc(mdc, &[from.0, to.0], &files).await;
            let rec = RenameRec {
                from: (from.0.fid, from.1),
                to: (to.0.fid, to.1),
                mode,
                time: self.now(mdc),
                suppgids: groups,
                flags,
                whiteout,
            };
            let changes = [
                NameChange::begin(cred, from.0, kept_name),
                NameChange::begin(cred, to.0, Some(to.1)),
            ];
            let request = pack::rename(cred, &rec, &elc);
            match mdc.send_changes(changes, request, None, None).await? {
                Reint::Done(reply) => {
                    self.discard_if_destroyed(mdc, target, layout, &reply.get::<MdtBody>(bufs::MDT_BODY)?);
                    return Ok((source, target));
                }
                Reint::Elsewhere(fid) => mdc = self.lmv.mdc_of(fid).await?,
            }
        }
        Err(Errno::EREMOTE)
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
}
