//! The layouts of directories as extended attributes, which `lfs` reads and sets.
//!
//! | name | value |
//! |---|---|
//! | `lustre.lmv` | read-only: MDT, hash and stripes (`lmv_user_md`, magic `LMV_MAGIC_V1`) |
//! | `lustre.dmv` | the default for new subdirectories (`lmv_user_md`, magic `LMV_USER_MAGIC`) |

use crate::attr::{MdAttr, SetAttr, Striping};
use crate::client::Client;
use crate::cred::Cred;
use crate::pack;
use bytes::Bytes;
use wire::{
    Errno, Fid, LMV_INHERIT_NONE, LMV_MAGIC_V1, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LmvUserMdV1,
    LmvUserMdsData, MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR, WireStruct,
};

impl Client {
    /// The layout of a directory. A directory without stripes has the stripe count 0 and its own
    /// MDT.
    ///
    /// # Errors
    ///
    /// `ENODATA`: not a directory; `EBADF`: the layout is of an unknown kind; or an error of an
    /// MDT.
    pub async fn dir_layout(&self, cred: &Cred, dir: Fid) -> Result<Bytes, Errno> {
        let md = self.dir_md(cred, dir).await?;
        let mut head = LmvUserMdV1 {
            lum_magic: LMV_MAGIC_V1,
            lum_stripe_offset: self.mdt_of(dir).await?,
            ..LmvUserMdV1::default()
        };
        let layout = match &md.striping {
            Striping::None => return Ok(head.to_bytes()),
            Striping::Striped(layout) => layout,
            Striping::Unusable => return Err(Errno::EBADF),
        };
        head.lum_stripe_count = layout.stripes.len() as i32;
        head.lum_stripe_offset = layout.head.lmv_master_mdt_index;
        head.lum_hash_type = layout.head.lmv_hash_type;
        let mut value = head.to_bytes().to_vec();
        for stripe in &layout.stripes {
            let lum_mds = match stripe.is_zero() {
                true => LMV_OFFSET_DEFAULT,
                false => self.mdt_of(*stripe).await?,
            };
            let stripe = LmvUserMdsData {
                lum_fid: *stripe,
                lum_mds,
                ..LmvUserMdsData::default()
            };
            value.extend_from_slice(&stripe.to_bytes());
        }
        Ok(value.into())
    }

    /// A directory's own default layout for new subdirectories.
    ///
    /// # Errors
    ///
    /// `ENODATA`: not a directory, or it has none; or an error of the MDT.
    pub async fn default_dir_layout(&self, cred: &Cred, dir: Fid) -> Result<Bytes, Errno> {
        let md = self.dir_md(cred, dir).await?;
        let layout = md.default_dir_layout.ok_or(Errno::ENODATA)?;
        Ok(layout.to_bytes())
    }

    /// Sets a directory's default layout (`lmv_user_md`). `None` deletes it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: a malformed layout; `ENOTDIR`; `ENODATA`: there is none to delete; or an error of
    /// the MDT such as `EPERM`.
    pub async fn set_default_dir_layout(
        &self,
        cred: &Cred,
        dir: Fid,
        layout: Option<&[u8]>,
    ) -> Result<(), Errno> {
        let md = self.md(cred, dir).await?;
        if !md.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let request = match layout {
            None if md.default_dir_layout.is_none() => return Err(Errno::ENODATA),
            // These values mean the deletion.
            None => LmvUserMdV1 {
                lum_magic: LMV_USER_MAGIC,
                lum_stripe_count: 0,
                lum_stripe_offset: LMV_OFFSET_DEFAULT,
                lum_max_inherit: LMV_INHERIT_NONE as u8,
                ..LmvUserMdV1::default()
            },
            Some(bytes) if bytes.len() == LmvUserMdV1::SIZE => {
                let request = LmvUserMdV1::from_bytes(bytes).map_err(|_| Errno::EINVAL)?;
                match request.lum_magic == LMV_USER_MAGIC {
                    true => request,
                    false => return Err(Errno::EINVAL),
                }
            }
            Some(_) => return Err(Errno::EINVAL),
        };
        let mdc = self.lmv.mdc_of(dir).await?;
        let suppgid = self.suppgid(cred, dir).await;
        let rec = pack::setattr_rec(cred, dir, &SetAttr::default(), self.now(mdc), suppgid);
        let elc = mdc.elc(&[], &[(dir, MDS_INODELOCK_UPDATE | MDS_INODELOCK_XATTR)]);
        mdc.reint(pack::setattr(&rec, None, request.to_bytes(), &elc))
            .await?;
        // The next mkdir uses the attributes last seen, so the client gets the new ones now.
        let _ = self.md(cred, dir).await;
        Ok(())
    }

    /// The attributes of a directory; `ENODATA` for another file.
    async fn dir_md(&self, cred: &Cred, dir: Fid) -> Result<MdAttr, Errno> {
        let md = self.md(cred, dir).await?;
        match md.attr.is_dir() {
            true => Ok(md),
            false => Err(Errno::ENODATA),
        }
    }
}
