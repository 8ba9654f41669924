//! Creation of names: directories, special files, symbolic links, hard links.

use crate::attr::{MdAttr, S_IFDIR, S_IFLNK, S_IFMT};
use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::ops::lookup::{FoundFile, check_name};
use crate::pack::{self, CreateRec, Suppgids};
use crate::stats::Operation;
use bytes::Bytes;
use wire::format::bufs;
use wire::{Errno, Fid, MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR, MdtBody};

/// Largest length of a symbolic link's target, in bytes.
const SYMLINK_MAX: usize = 4095;

/// Index of the buffer with the parent directory's attributes, in the reply to a create.
const CREATE_REPLY_PARENT_ATTR: usize = 4;
/// Index of the buffer with the parent directory's attributes, in the reply to a link.
const LINK_REPLY_PARENT_ATTR: usize = 2;

impl Client {
    /// Creates a directory.
    ///
    /// # Errors
    ///
    /// `EEXIST`, `ENAMETOOLONG`, or an error of the MDT such as `EACCES`, `ENOSPC`.
    pub async fn mkdir(&self, cred: &Cred, parent: Fid, name: &[u8], mode: u32) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(Operation::Mkdir);
        self.create_name(cred, parent, name, S_IFDIR | mode & 0o7777, 0, b"")
            .await
    }

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
        self.create_name(cred, parent, name, mode, u64::from(rdev), b"")
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
        self.create_name(cred, parent, name, S_IFLNK | 0o777, 0, target)
            .await
    }

    /// Creates a file of the type in `mode`. `target`: a symbolic link's target; otherwise empty.
    async fn create_name(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &[u8],
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Result<FoundFile, Errno> {
        check_name(name)?;
        let mdc = self.lmv.mdc_of(parent).await?;
        let rec = CreateRec {
            parent,
            child: mdc.new_fid().await?,
            mode,
            rdev,
            flags: 0,
            time: self.now(mdc),
            suppgids: Suppgids(self.suppgid(cred, parent).await, NO_GROUP),
        };
        let elc = mdc.elc(&[parent], &[]);
        let change = mdc.begin_change(cred, parent, Some(name));
        let bufs = pack::create(cred, &rec, name, target, &elc);
        let body: MdtBody = mdc
            .send_changes([change], bufs, Some(CREATE_REPLY_PARENT_ATTR))
            .await?
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
        let mdc = self.lmv.mdc_of(parent).await?;
        let groups = Suppgids(self.suppgid(cred, fid).await, self.suppgid(cred, parent).await);
        let elc = mdc.elc(&[parent], &[(fid, MDS_INODELOCK_UPDATE | MDS_INODELOCK_XATTR)]);
        let bufs = pack::link(cred, fid, parent, name, self.now(mdc), groups, &elc);
        let change = mdc.begin_change(cred, parent, Some(name));
        let body: MdtBody = mdc
            .send_changes([change], bufs, Some(LINK_REPLY_PARENT_ATTR))
            .await?
            .get(bufs::MDT_BODY)?;
        let found = async {
            let md = self.md(cred, fid).await?;
            self.found_by_name(cred, fid, md, (parent, name)).await
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
