//! Inode flags and project IDs, as `chattr` and `lsattr` handle them.

use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::pack;
use bytes::Bytes;
use wire::format::bufs;
use wire::{
    Errno, Fid, HasTimes, LUSTRE_APPEND_FL, LUSTRE_DIRSYNC_FL, LUSTRE_IMMUTABLE_FL, LUSTRE_NOATIME_FL,
    LUSTRE_NODUMP_FL, LUSTRE_PROJINHERIT_FL, LUSTRE_SYNC_FL, MDS_ATTR_ATTR_FLAG, MDS_ATTR_CTIME,
    MDS_ATTR_PROJID, MDS_GETATTR, MDS_INODELOCK_UPDATE, MdtBody, MdtRecSetattr, OBD_MD_FLFLAGS,
    OBD_MD_FLPROJID, REINT_SETATTR, Times, WireStruct,
};

/// The flags that programs see and set.
const VISIBLE_FLAGS: u32 = LUSTRE_SYNC_FL
    | LUSTRE_IMMUTABLE_FL
    | LUSTRE_APPEND_FL
    | LUSTRE_NODUMP_FL
    | LUSTRE_NOATIME_FL
    | LUSTRE_DIRSYNC_FL
    | LUSTRE_PROJINHERIT_FL;

/// The flags of an inode (`LUSTRE_*_FL`, which have the values of Linux's `FS_*_FL`) and its
/// project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeFlags {
    /// Bits of `LUSTRE_*_FL`.
    pub flags: u32,
    /// Project ID.
    pub projid: u32,
}

impl Client {
    /// The flags and the project of an inode.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn inode_flags(&self, cred: &Cred, fid: Fid) -> Result<InodeFlags, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let body = pack::body(cred, fid, Fid::ZERO, OBD_MD_FLFLAGS | OBD_MD_FLPROJID, NO_GROUP);
        let reply = mdc.call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()]).await?;
        let reply_body: MdtBody = reply.get(bufs::MDT_BODY)?;
        Ok(InodeFlags {
            flags: reply_body.mbo_flags & VISIBLE_FLAGS,
            projid: reply_body.mbo_projid,
        })
    }

    /// Sets the flags of an inode, and its project if `projid` is given. Nacre's MDT enforces
    /// `LUSTRE_IMMUTABLE_FL` and `LUSTRE_APPEND_FL`. The other flags are stored without effect.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: a flag that programs cannot set; `EPERM`: the caller is not the owner, or may
    /// not make the inode immutable or append-only; else an error of the MDT.
    pub async fn set_inode_flags(
        &self,
        cred: &Cred,
        fid: Fid,
        flags: u32,
        projid: Option<u32>,
    ) -> Result<(), Errno> {
        if flags & !VISIBLE_FLAGS != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mdc = self.lmv.mdc_of(fid).await?;
        let mut rec = MdtRecSetattr {
            sa_opcode: REINT_SETATTR,
            sa_cap: cred.cap(),
            sa_fsuid: cred.uid,
            sa_fsgid: cred.gid,
            sa_suppgid: NO_GROUP,
            sa_fid: fid,
            sa_valid: MDS_ATTR_ATTR_FLAG | MDS_ATTR_CTIME,
            sa_attr_flags: flags,
            ..MdtRecSetattr::default()
        };
        if let Some(projid) = projid {
            rec.sa_valid |= MDS_ATTR_PROJID;
            rec.sa_projid = projid;
        }
        rec.set_times(Times {
            ctime: self.now(mdc),
            ..Times::default()
        });
        pack::adapt_times(mdc.precision(), &mut rec);
        let send = || {
            let elc = mdc.elc(&[], &[(fid, MDS_INODELOCK_UPDATE)]);
            mdc.reint(pack::setattr(&rec, None, Bytes::new(), &elc))
        };
        self.retry_busy(fid, send).await.map(drop)
    }
}
