//! Extended attributes. Most are cached under an XATTR lock; the access ACL is cached with the
//! attributes.
//!
//! | name | value |
//! |---|---|
//! | `user.*`, `security.*`, `trusted.*`, `system.posix_acl_default` | fetched all at once, cached under the lock |
//! | `system.posix_acl_access` | part of the attributes |
//! | `lustre.lov`, `trusted.lov`, read-only also `system.lustre.lov` | a file's layout; a directory's default |
//! | `lustre.lmv`, `lustre.dmv` | a directory's layout and default layout (`dir_layouts`) |
//! | `lustre.fid` | the file's FID, as text |
//! | `lustre.path.[FID]` | on any file: a path, from the mount's root, of the file with this FID |

use crate::attr::SetAttr;
use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::inode::Xattrs;
use crate::mdc::IntentRequest;
use crate::ops::open::OpenFlags;
use crate::pack::{self, XattrRec};
use crate::stats::Operation;
use bytes::Bytes;
use ldlm::LockMode;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    Errno, Fid, IT_GETXATTR, MDS_GETXATTR, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE, MDS_INODELOCK_XATTR,
    MdtBody, OBD_MD_FLXATTR, OBD_MD_FLXATTRLS, WireStruct, nul_terminated,
};

/// Largest size of a value, in bytes.
const VALUE_MAX: usize = 64 << 10;
/// Largest reply space for all extended attributes of a file, or for their names, in bytes.
const XATTRS_REPLY_MAX: u32 = 256 << 10;
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
/// The beginning of names that end with a FID; the value is a path of the file with this FID.
const PATH_PREFIX: &[u8] = b"lustre.path.";
/// Another name of the layout, readable while a file's size is unavailable. The kernel requests the
/// file's attributes, with the size, to check the permission before it reads `lustre.lov`. For this
/// name the client checks the permission instead.
const LAYOUT_ALIAS: &[u8] = b"system.lustre.lov";

impl Client {
    /// Reads an extended attribute.
    ///
    /// # Errors
    ///
    /// `ENODATA`: the file has none of this name; `EACCES`; for `lustre.path.`, `EINVAL` (a
    /// malformed FID) and the errors of [`Client::fid2path`]; or an error of the MDT.
    pub async fn getxattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let _timer = self.stats.time(Operation::Getxattr);
        match name {
            b"lustre.fid" => return Ok(Bytes::from(fid.to_string())),
            b"lustre.lov" | b"trusted.lov" => return self.getstripe(cred, fid).await,
            b"lustre.lmv" => return self.dir_layout(cred, fid).await,
            b"lustre.dmv" => return self.default_dir_layout(cred, fid).await,
            LAYOUT_ALIAS => {
                let md = self.md(cred, fid).await?;
                crate::perm::check(cred, &md, crate::perm::READ)?;
                return self.getstripe(cred, fid).await;
            }
            ACL_ACCESS => {
                if let Some(acl) = self.acl(cred, fid).await? {
                    return if acl.is_empty() {
                        Err(Errno::ENODATA)
                    } else {
                        Ok(acl)
                    };
                }
                return self.fetch_xattr(cred, fid, name).await;
            }
            _ => {}
        }
        if let Some(text) = name.strip_prefix(PATH_PREFIX) {
            let fid_in_name = std::str::from_utf8(text)
                .ok()
                .and_then(|t| t.parse::<Fid>().ok())
                .ok_or(Errno::EINVAL)?;
            let paths = self.fid2path(cred, fid_in_name).await?;
            return paths.into_iter().next().map(Bytes::from).ok_or(Errno::ENOENT);
        }
        if name.starts_with(b"lustre.") {
            return Err(Errno::ENODATA);
        }
        match self.xattrs(cred, fid).await? {
            Some(all) => all.get(name).cloned().ok_or(Errno::ENODATA),
            None => self.fetch_xattr(cred, fid, name).await,
        }
    }

    /// Lists the names of a file's extended attributes, each followed by a NUL. Only the
    /// superuser sees `trusted.*`; the layout is not listed.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn listxattr(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        let _timer = self.stats.time(Operation::Listxattr);
        let mdc = self.lmv.mdc_of(fid).await?;
        let mut body = pack::body(cred, fid, Fid::ZERO, OBD_MD_FLXATTRLS, NO_GROUP);
        body.mbo_eadatasize = XATTRS_REPLY_MAX;
        let bufs = vec![
            body.to_bytes(),
            Bytes::new(),
            Bytes::new(),
            Bytes::new(),
            Bytes::new(),
        ];
        let reply = mdc.call_large(MDS_GETXATTR, bufs, XATTRS_REPLY_MAX).await?;
        let len = reply.get::<MdtBody>(bufs::MDT_BODY)?.mbo_eadatasize as usize;
        let raw = reply.buf(bufs::GETXATTR_VALUE);
        let mut out = Vec::new();
        for name in raw[..len.min(raw.len())].split_inclusive(|b| *b == 0) {
            let hidden = name.starts_with(b"trusted.") && cred.uid != 0;
            if name.len() > 1 && !hidden && name != b"trusted.lov\0" && name != b"lustre.lov\0" {
                out.extend_from_slice(name);
            }
        }
        Ok(out.into())
    }

    /// Sets an extended attribute. `flags`: `XATTR_CREATE` (1), `XATTR_REPLACE` (2) or 0.
    ///
    /// # Errors
    ///
    /// `E2BIG`: a value over 64 KiB; `EOPNOTSUPP`: a name of `lustre.*` that cannot be set;
    /// `EEXIST`: the attribute exists, with `XATTR_CREATE`, or a new layout for a file that has
    /// objects; `ENODATA`: no such attribute, with `XATTR_REPLACE`; or an error of the MDT.
    pub async fn setxattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Setxattr);
        if value.len() > VALUE_MAX {
            return Err(Errno::E2BIG);
        }
        match name {
            b"lustre.lov" | b"trusted.lov" => self.setstripe(cred, fid, Bytes::copy_from_slice(value)).await,
            b"lustre.dmv" => self.set_default_dir_layout(cred, fid, Some(value)).await,
            _ if name.starts_with(b"lustre.") => Err(Errno::EOPNOTSUPP),
            _ => {
                self.change_xattr(cred, fid, name, Some(Bytes::copy_from_slice(value)), flags)
                    .await
            }
        }
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: a name of `lustre.*` other than `lustre.dmv`; `ENODATA`: no such attribute; or
    /// an error of the MDT.
    pub async fn removexattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<(), Errno> {
        let _timer = self.stats.time(Operation::Removexattr);
        if name == b"lustre.dmv" {
            return self.set_default_dir_layout(cred, fid, None).await;
        }
        if name.starts_with(b"lustre.") {
            return Err(Errno::EOPNOTSUPP);
        }
        self.change_xattr(cred, fid, name, None, 0).await
    }

    async fn change_xattr(
        &self,
        cred: &Cred,
        fid: Fid,
        name: &[u8],
        value: Option<Bytes>,
        flags: u32,
    ) -> Result<(), Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let is_acl = matches!(name, ACL_ACCESS | ACL_DEFAULT);
        let perm_bit = if is_acl { MDS_INODELOCK_PERM } else { 0 };
        let rec = XattrRec {
            fid,
            name,
            value,
            flags,
            time: self.now(mdc),
            suppgid: self.suppgid(cred, fid).await,
        };
        let elc = mdc.elc(
            &[],
            &[(fid, MDS_INODELOCK_XATTR | MDS_INODELOCK_UPDATE | perm_bit)],
        );
        mdc.reint(pack::setxattr(cred, rec, &elc)).await.map(drop)
    }

    /// All extended attributes of a file, cached or requested with an XATTR lock. `None`: the
    /// server has no such locks or cannot return all attributes at once. The caller then requests
    /// each one separately.
    async fn xattrs(&self, cred: &Cred, fid: Fid) -> Result<Option<Arc<Xattrs>>, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let cached = || {
            let _held = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_XATTR)?;
            self.inodes.get(fid)?.state.lock().xattrs.clone()
        };
        if let Some(all) = cached() {
            return Ok(Some(all));
        }
        if mdc.import.connect_data().ocd_ibits_known & MDS_INODELOCK_XATTR == 0 {
            return Ok(None);
        }
        let mut body = pack::body(cred, fid, Fid::ZERO, OBD_MD_FLXATTR | OBD_MD_FLXATTRLS, NO_GROUP);
        // A Lustre server rejects a larger size than it granted at connect.
        let max = mdc
            .import
            .connect_data()
            .ocd_max_easize
            .clamp(4096, XATTRS_REPLY_MAX)
            & !3;
        body.mbo_eadatasize = max;
        let bufs = vec![body.to_bytes(), Bytes::new(), Bytes::new()];
        let xattr_intent = IntentRequest::new(fid, LockMode::Pr, MDS_INODELOCK_XATTR, IT_GETXATTR, bufs);
        let reply = mdc
            .intent(IntentRequest {
                reply_len: max,
                ..xattr_intent
            })
            .await?;
        match reply.status {
            Err(Errno::ERANGE | Errno::E2BIG | Errno::EOPNOTSUPP) => return Ok(None),
            other => other?,
        }
        let count = reply.body.mbo_max_mdsize as usize;
        let all = Arc::new(parse_xattrs(
            reply.reply.buf(bufs::INTENT_REPLY_XATTRS),
            &reply.reply.bytes(bufs::INTENT_REPLY_XATTR_VALUES),
            reply.reply.buf(bufs::INTENT_REPLY_XATTR_LENS),
            count,
        )?);
        if reply.lock.is_some() {
            self.inodes.entry(fid).state.lock().xattrs = Some(all.clone());
        }
        Ok(Some(all))
    }

    /// Requests one extended attribute of a file; caches nothing.
    pub(super) async fn fetch_xattr(&self, cred: &Cred, fid: Fid, name: &[u8]) -> Result<Bytes, Errno> {
        let mdc = self.lmv.mdc_of(fid).await?;
        let mut body = pack::body(cred, fid, Fid::ZERO, OBD_MD_FLXATTR, NO_GROUP);
        body.mbo_eadatasize = VALUE_MAX as u32;
        let bufs = vec![
            body.to_bytes(),
            Bytes::new(),
            nul_terminated(name),
            Bytes::new(),
            Bytes::new(),
        ];
        let reply = mdc.call_large(MDS_GETXATTR, bufs, VALUE_MAX as u32).await?;
        let len = reply.get::<MdtBody>(bufs::MDT_BODY)?.mbo_eadatasize as usize;
        let value = reply.bytes(bufs::GETXATTR_VALUE);
        Ok(value.slice(..len.min(value.len())))
    }

    /// The layout EA of a file, or a directory's default layout.
    ///
    /// # Errors
    ///
    /// `ENODATA`: no layout; or an error of the MDT.
    pub async fn getstripe(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        let md = self.md(cred, fid).await?;
        if md.attr.is_file() {
            let layout = self.layout(fid).await?;
            return if layout.raw.is_empty() {
                Err(Errno::ENODATA)
            } else {
                Ok(layout.raw.clone())
            };
        }
        if !md.attr.is_dir() {
            return Err(Errno::ENODATA);
        }
        self.fetch_xattr(cred, fid, b"trusted.lov").await
    }

    /// Sets the layout of a file without objects, or a directory's default layout (`lov_user_md`).
    ///
    /// # Errors
    ///
    /// `EEXIST`: the file has objects; `EINVAL`: not a file or directory; or an error of the MDT.
    pub async fn setstripe(&self, cred: &Cred, fid: Fid, lum: Bytes) -> Result<(), Errno> {
        let md = self.md(cred, fid).await?;
        if md.attr.is_file() {
            if !self.layout(fid).await?.is_empty() {
                return Err(Errno::EEXIST);
            }
            let write_only = OpenFlags {
                read: false,
                ..OpenFlags::READ_WRITE
            };
            let file = self.open_with(cred, fid, write_only, lum).await?;
            return self.release(&file).await;
        }
        if !md.attr.is_dir() {
            return Err(Errno::EINVAL);
        }
        let mdc = self.lmv.mdc_of(fid).await?;
        let suppgid = self.suppgid(cred, fid).await;
        let rec = pack::setattr_rec(cred, fid, &SetAttr::default(), self.now(mdc), suppgid);
        let elc = mdc.elc(&[], &[(fid, MDS_INODELOCK_UPDATE | MDS_INODELOCK_XATTR)]);
        mdc.reint(pack::setattr(&rec, None, lum, &elc)).await.map(drop)
    }
}

/// Splits a reply: NUL-terminated names, concatenated values, and the length of each value. Returns
/// at most `count` attributes.
fn parse_xattrs(names: &[u8], values: &Bytes, lens: &[u8], count: usize) -> Result<Xattrs, Errno> {
    let mut all = Xattrs::default();
    let mut start = 0usize;
    let names = names.split(|b| *b == 0).filter(|n| !n.is_empty());
    for (name, len) in names.zip(lens.as_chunks::<4>().0).take(count) {
        let end = start
            .checked_add(u32::from_le_bytes(*len) as usize)
            .ok_or(Errno::EPROTO)?;
        if end > values.len() {
            return Err(Errno::EPROTO);
        }
        all.insert(name.to_vec(), values.slice(start..end));
        start = end;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::parse_xattrs;
    use bytes::Bytes;
    use wire::Errno;

    #[test]
    fn names_values_and_lengths_are_combined() {
        let lens: Vec<u8> = [3u32, 0, 2].iter().flat_map(|l| l.to_le_bytes()).collect();
        let all = parse_xattrs(
            b"user.a\0user.b\0user.c\0",
            &Bytes::from_static(b"abcde"),
            &lens,
            3,
        )
        .unwrap();
        assert_eq!(&all[&b"user.a"[..]][..], b"abc");
        assert_eq!(&all[&b"user.b"[..]][..], b"");
        assert_eq!(&all[&b"user.c"[..]][..], b"de");
    }

    #[test]
    fn a_length_beyond_the_values_is_an_error() {
        let lens = 9u32.to_le_bytes();
        assert_eq!(
            parse_xattrs(b"user.a\0", &Bytes::from_static(b"abc"), &lens, 1),
            Err(Errno::EPROTO)
        );
    }
}
