//! Changes of attributes, the record of a close, symbolic links, ACLs.

use crate::attr::{Attr, MdAttr, S_IFDIR, S_IFMT, SetAttr, SetTime};
use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::data::{CapabilityUser, DataFile, SetTimes};
use crate::layout::FileLayout;
use crate::mdc::Mdc;
use crate::ops::found::{FoundFile, SizeWait};
use crate::ops::io::check_has_data;
use crate::ops::open::OpenFile;
use crate::pack;
use crate::stats::Operation;
use bytes::Bytes;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    CAPA_OPC_META_WRITE, CAPA_OPC_OSS_TRUNC, Errno, Fid, HasTimes, MDS_ATTR_ATIME, MDS_ATTR_CTIME,
    MDS_ATTR_LBLOCKS, MDS_ATTR_LSIZE, MDS_ATTR_MTIME, MDS_GETATTR, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE,
    MdtBody, MdtRecSetattr, OBD_MD_FLCTIME, OBD_MD_FLGID, OBD_MD_FLMODE, OBD_MD_FLMTIME, OBD_MD_FLNLINK,
    OBD_MD_FLSIZE, OBD_MD_FLUID, OBD_MD_LINKNAME, REINT_SETATTR, Time, Times, WireStruct, before_nul,
};

/// The `mbo_valid` bits of a setattr reply that has all attributes.
const SETATTR_REPLY_VALID: u64 =
    OBD_MD_FLMODE | OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLNLINK | OBD_MD_FLMTIME | OBD_MD_FLCTIME;

/// Reply space for the target of a symbolic link, in bytes.
const LINK_SPACE: u32 = 4096;

/// A change of attributes for a file's objects, after the metadata target has made it.
struct DataChange<'a> {
    set: &'a SetAttr,
    /// The times of the request to the metadata target.
    times: Times,
    /// Whether the metadata target knows no later change of the file.
    is_latest: bool,
    /// Whether this client created the file, and no client had changed its attributes before.
    is_first: bool,
}

impl Client {
    /// Changes attributes. With `file`, a truncate goes through the open handle and needs no
    /// further permission.
    ///
    /// # Errors
    ///
    /// `EFBIG`: the size is too large; `EISDIR` or `EINVAL`: a size for another type than a regular
    /// file; `ETXTBSY`; or an error of a server such as `EPERM`.
    pub async fn setattr(
        &self,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        file: Option<&Arc<OpenFile>>,
    ) -> Result<FoundFile, Errno> {
        let _timer = self.stats.time(match set.size {
            Some(_) => Operation::Truncate,
            None => Operation::Setattr,
        });
        if set.size.is_some_and(|size| size > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        loop {
            if let Some(found) = self.try_setattr(cred, fid, set, file).await? {
                return Ok(found);
            }
        }
    }

    /// Changes attributes. `None`: the file got another layout meanwhile, so the change runs again.
    async fn try_setattr(
        &self,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        file: Option<&Arc<OpenFile>>,
    ) -> Result<Option<FoundFile>, Errno> {
        let is_first = self.inodes.has_first_attrs(fid);
        let request_to_mdt = set.size.map(|_| self.kernel.begin_truncate(fid));
        let data = self.data_to_set(cred, fid, set, file).await?;
        if let (Some(data), Some(size)) = (&data, set.size) {
            data.check_size(size)?;
            if let Some(missing) = data.range_without_objects(&FileLayout::range_of_size(size)) {
                self.create_objects(fid, missing).await?;
                return Ok(None);
            }
        }
        let mdc = self.lmv.mdc_of(fid).await?;
        // The owner must be a member of the new group, so the request carries that group.
        let suppgid = match set.gid.map(|gid| cred.suppgid(gid)) {
            Some(gid) if gid != NO_GROUP => gid,
            // To keep the set-group-ID bit, the caller must be a member of the file's group.
            _ if set.mode.is_some() || set.kill_priv => self.file_group(cred, fid).await,
            _ => self.suppgid(cred, fid).await,
        };
        let mut rec = pack::setattr_rec(cred, fid, set, self.now(mdc), suppgid);
        pack::adapt_times(mdc.precision(), &mut rec);
        // A truncate may drop set-ID bits.
        let changes_permissions = set.mode.is_some()
            || set.kill_priv
            || set.uid.is_some()
            || set.gid.is_some()
            || set.size.is_some();
        let perm_bit = if changes_permissions {
            MDS_INODELOCK_PERM
        } else {
            0
        };
        let send = || {
            let elc = mdc.elc(&[], &[(fid, MDS_INODELOCK_UPDATE | perm_bit)]);
            mdc.reint(pack::setattr(&rec, file.map(|f| f.handle), Bytes::new(), &elc))
        };
        let reply = self.retry_busy(fid, send).await?;
        let body: MdtBody = reply.get(bufs::MDT_BODY)?;
        if data.is_none() && set.size.is_some() && body.mbo_valid & OBD_MD_FLSIZE == 0 {
            // Another client's open allocated objects meanwhile, so the MDT no longer keeps the
            // size.
            return Ok(None);
        }
        drop(request_to_mdt);
        if let Some(data) = data {
            let user = CapabilityUser::new(cred, fid, suppgid);
            let found_ctime = (body.mbo_valid & OBD_MD_FLCTIME != 0).then(|| body.times().ctime);
            let change = DataChange {
                set,
                times: rec.times(),
                is_latest: found_ctime == Some(rec.times().ctime),
                is_first,
            };
            if !self.apply_to_data(fid, &data, &change, &user).await? {
                return Ok(None);
            }
        }
        // The reply has no layout, so it does not tell whether a directory is striped.
        let is_complete = body.mbo_fid1 == fid
            && body.mbo_valid & SETATTR_REPLY_VALID == SETATTR_REPLY_VALID
            && (body.mbo_mode & S_IFMT != S_IFDIR || !self.inodes.may_be_striped(fid));
        if !is_complete {
            return self.getattr(cred, fid).await.map(Some);
        }
        // Requests no lock: a caller often changes several attributes in turn, and the next request
        // would cancel the lock.
        let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), mdc.precision());
        let size_wait = match set.size {
            Some(_) => SizeWait::Full,
            None => self.default_size_wait(),
        };
        self.with_data(cred, fid, md, None, size_wait).await.map(Some)
    }

    /// Applies a setattr to the file's objects, after the metadata target. False: the file has
    /// another layout now, so the setattr runs again. A truncate that has succeeded never runs
    /// again: after a swap of layouts it would cut the data of the other file. If the object
    /// targets require capabilities and the client has none for this change, `user` needs the right
    /// to make the change.
    async fn apply_to_data(
        &self,
        fid: Fid,
        data: &DataFile,
        change: &DataChange<'_>,
        user: &CapabilityUser,
    ) -> Result<bool, Errno> {
        let set = change.set;
        let rights = match set.size {
            Some(_) => CAPA_OPC_OSS_TRUNC,
            None => CAPA_OPC_META_WRITE,
        };
        if let Some(size) = set.size {
            let truncate = async || {
                data.authorize(rights, user).await?;
                data.truncate(size, self.is_current(fid, data)).await
            };
            let truncated = match truncate().await {
                // From the first refusal the client learns that the target requires capabilities.
                Err(Errno::EACCES) => truncate().await,
                result => result,
            };
            let truncated = truncated.map(|done| done.then_some(()));
            if self.change_result(fid, data, truncated).await?.is_none() {
                return Ok(false);
            }
        }
        if set.atime.is_none() && set.mtime.is_none() {
            return Ok(true);
        }
        let time_if_set = |set: Option<SetTime>, time: Time| set.map(|_| time);
        let set_times = async || {
            data.authorize(rights, user).await?;
            let set = SetTimes {
                atime: time_if_set(set.atime, change.times.atime),
                mtime: time_if_set(set.mtime, change.times.mtime),
                ctime: change.times.ctime,
                is_latest: change.is_latest,
                is_first: change.is_first,
            };
            data.set_times(set, self.is_current(fid, data)).await
        };
        let result = match set_times().await {
            Err(Errno::EACCES) => set_times().await,
            result => result,
        };
        match self.is_current(fid, data).await? {
            true => result.map(|done| done || set.size.is_some()),
            false => Ok(set.size.is_some()),
        }
    }

    /// The data that a setattr changes: a truncate or new times change a regular file's objects.
    /// `None`: the setattr changes no objects. The MDT keeps the size of a file without objects.
    async fn data_to_set(
        &self,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        file: Option<&Arc<OpenFile>>,
    ) -> Result<Option<Arc<crate::DataFile>>, Errno> {
        if set.size.is_none() && set.atime.is_none() && set.mtime.is_none() {
            return Ok(None);
        }
        if let Some(file) = file {
            return match set.size {
                None if file.layout.lock().elsewhere().is_some() => Ok(None),
                _ => self.data_of(file).await.map(Some),
            };
        }
        if let Some(layout) = self.cached_layout(fid).await?
            && !layout.is_empty()
        {
            return Ok(Some(self.data(fid, layout).await));
        }
        let md = self.md(cred, fid).await?;
        if !md.attr.is_file() {
            return if set.size.is_some() {
                Err(truncate_error(&md.attr))
            } else {
                Ok(None)
            };
        }
        let layout = self.layout(fid).await?;
        if set.size.is_some() {
            check_has_data(fid, &layout)?;
        }
        if layout.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.data(fid, layout).await))
    }

    /// The record of a close. It has the size and times (LSOM) if this descriptor has written and
    /// the client knows them. It has the access time if a read updated it.
    pub(crate) fn close_rec(&self, mdc: &Mdc, file: &OpenFile) -> MdtRecSetattr {
        let now = self.now(mdc);
        let mut rec = MdtRecSetattr {
            sa_opcode: REINT_SETATTR,
            sa_fid: file.fid,
            ..MdtRecSetattr::default()
        };
        rec.set_times(Times {
            atime: now,
            mtime: now,
            ctime: now,
        });
        let data = file.data.lock().clone();
        let cached = data.cached_attr();
        let md = self.inodes.get(file.fid).and_then(|i| i.state.lock().md.clone());
        // Without cached times, the client uses the times from the open. They may be outdated, so
        // the client may report an access time too often; the target decides whether to store it.
        let known = match (&md, &cached) {
            (Some(md), Some(data)) => md.with_data(data).times(),
            (Some(md), None) => md.attr.times(),
            (None, _) => file.opened_times,
        };
        let mut times = rec.times();
        let read_at = data.atime_tracker().take_unreported(self.atime.files(), known);
        if let Some(cached) = cached.filter(|_| file.has_written()) {
            rec.sa_valid =
                MDS_ATTR_LSIZE | MDS_ATTR_LBLOCKS | MDS_ATTR_MTIME | MDS_ATTR_CTIME | MDS_ATTR_ATIME;
            (rec.sa_size, rec.sa_blocks) = (cached.size, cached.blocks);
            times = cached.times;
        }
        if let Some(atime) = read_at {
            rec.sa_valid |= MDS_ATTR_ATIME;
            times.atime = atime;
            self.inodes.raise_atime(file.fid, mdc.precision().of(atime));
        }
        rec.set_times(times);
        pack::adapt_times(mdc.precision(), &mut rec);
        rec
    }

    /// Reads a symbolic link. Its target never changes, so it is cached.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not a symbolic link; or an error of the MDT.
    pub async fn readlink(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        if let Some(target) = self.inodes.get(fid).and_then(|i| i.state.lock().symlink.clone()) {
            return Ok(target);
        }
        let mdc = self.lmv.mdc_of(fid).await?;
        let mut body = pack::body(cred, fid, Fid::ZERO, OBD_MD_LINKNAME, NO_GROUP);
        body.mbo_eadatasize = LINK_SPACE;
        let reply = mdc.call(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()]).await?;
        let reply_body: wire::MdtBody = reply.get(bufs::MDT_BODY)?;
        if reply_body.mbo_valid & OBD_MD_LINKNAME == 0 {
            return Err(Errno::EINVAL);
        }
        let target = Bytes::copy_from_slice(before_nul(reply.buf(bufs::MDT_MD)));
        if let Some(inode) = self.inodes.get(fid) {
            inode.state.lock().symlink = Some(target.clone());
        }
        Ok(target)
    }

    /// The access ACL of a file (`system.posix_acl_access`), cached with the attributes. Empty: the
    /// file has none; `None`: the MDT did not return it.
    pub(crate) async fn acl(&self, cred: &Cred, fid: Fid) -> Result<Option<Bytes>, Errno> {
        let md: MdAttr = self.md(cred, fid).await?;
        Ok(md.acl)
    }
}

/// The error of a truncate of a file that is not a regular file.
fn truncate_error(attr: &Attr) -> Errno {
    if attr.is_dir() {
        Errno::EISDIR
    } else {
        Errno::EINVAL
    }
}
