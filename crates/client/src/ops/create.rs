//! Creation of names: special files, symbolic links, hard links.

use super::found::FoundFile;
use super::lookup::check_name;
use super::mkdir::CREATE_REPLY_PARENT_ATTR;
use crate::attr::{MdAttr, S_IFDIR, S_IFLNK, S_IFMT};
use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::mdc::NameChange;
use crate::pack::{self, CreateData, CreateRec, Suppgids};
use crate::stats::Operation;
use bytes::Bytes;
use wire::format::bufs;
use wire::{Errno, Fid, MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR, MdtBody};

/// Largest length of a symbolic link's target, in bytes.
const SYMLINK_MAX: usize = 4095;

/// Index of the buffer with the parent directory's attributes, in the reply to a link.
const LINK_REPLY_PARENT_ATTR: usize = 2;

impl Client {
    /// Creates a regular file without opening it, a named pipe, a socket or a device node. `mode`:
    /// type and permissions; `rdev`: device number.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the type of a directory or symbolic link; else as [`Client::mkdir`].
    pub async fn mknod(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u32,
    ) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(Operation::Mknod);
        if matches!(mode & S_IFMT, S_IFDIR | S_IFLNK) {
            return Err(Errno::EINVAL);
        }
        self.create_name(cred, parent, name, mode, u64::from(rdev), CreateData::None)
            .await
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    ///
    /// `ENOENT`: an empty target; `ENAMETOOLONG`: a target over 4095 bytes; else as
    /// [`Client::mkdir`].
    pub async fn symlink(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        target: &[u8],
    ) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(Operation::Symlink);
        match target.len() {
            0 => return Err(Errno::ENOENT),
            n if n > SYMLINK_MAX => return Err(Errno::ENAMETOOLONG),
            _ => {}
        }
        self.create_name(
            cred,
            parent,
            name,
            S_IFLNK | 0o777,
            0,
            CreateData::Symlink(target),
        )
        .await
    }

    /// Creates a file of the type in `mode`, which is no directory.
    async fn create_name(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u64,
        data: CreateData<'_>,
    ) -> Result<FoundFile, Errno> {
        check_name(name)?;
        let dir = self.dir_for_new_name(cred, parent, name).await?;
        let mdc = dir.mdc;
        let rec = CreateRec {
            parent: dir.fid,
            child: mdc.new_fid().await?,
            mode,
            rdev,
            flags: 0,
            layout_version: dir.layout_version,
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, parent).await, NO_GROUP),
        };
        let elc = mdc.elc(&[dir.fid], &[]);
        let change = NameChange::begin(cred, &dir, Some(name));
        let bufs = pack::create(cred, &rec, name, data, &elc);
        let body: MdtBody = mdc
            .send_changes([change], bufs, Some(CREATE_REPLY_PARENT_ATTR), None)
            .await?
            .done()?
            .get(bufs::MDT_BODY)?;
        let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), mdc.precision());
        Ok(FoundFile::uncached(md.attr))
    }

    /// Creates a hard link.
    ///
    /// # Errors
    ///
    /// As [`Client::mkdir`]; `EMLINK` if the file has too many links, `EPERM` for a directory.
    pub async fn link(&self, cred: &Cred, fid: Fid, parent: Fid, name: &[u8]) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(Operation::Link);
        check_name(name)?;
        let dir = self.dir_for_new_name(cred, parent, name).await?;
        let (mdc, file_mdc) = (dir.mdc, self.lmv.mdc_of(fid).await?);
        let groups = Suppgids(self.suppgid(cred, fid).await, self.suppgid(cred, parent).await);
        let changed = MDS_INODELOCK_UPDATE | MDS_INODELOCK_XATTR;
        let elc = match mdc.index == file_mdc.index {
            true => mdc.elc(&[dir.fid], &[(fid, changed)]),
            false => {
                file_mdc.cancel_early(fid, changed);
                mdc.elc(&[dir.fid], &[])
            }
        };
        let bufs = pack::link(cred, fid, dir.fid, name, self.now(mdc), groups, &elc);
        let change = NameChange::begin(cred, &dir, Some(name));
        let body: MdtBody = mdc
            .send_changes([change], bufs, Some(LINK_REPLY_PARENT_ATTR), None)
            .await?
            .done()?
            .get(bufs::MDT_BODY)?;
        let found = async {
            let md = self.md(cred, fid).await?;
            self.found_by_name(cred, fid, md, (&dir, name)).await
        };
        match found.await {
            // The link succeeded, but other clients have removed all names of the file since.
            Err(Errno::ENOENT | Errno::ESTALE) if body.mbo_fid1 == fid => {
                let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), mdc.precision());
                Ok(FoundFile::uncached(md.attr))
            }
            found => found,
        }
    }
}
