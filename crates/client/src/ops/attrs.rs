//! Attributes changed, symbolic links read.

use crate::attr::{Attr, MdAttr, SetAttr, SetTime};
use crate::client::Client;
use crate::cred::{Cred, NO_GROUP};
use crate::data::{DataFile, User};
use crate::mdc::Mdc;
use crate::ops::lookup::{Found, Sizes};
use crate::ops::open::OpenFile;
use crate::pack;
use bytes::Bytes;
use std::sync::Arc;
use wire::format::bufs;
use wire::{
    CAPA_OPC_META_WRITE, CAPA_OPC_OSS_TRUNC, Errno, Fid, MDS_ATTR_ATIME, MDS_ATTR_CTIME, MDS_ATTR_LBLOCKS,
    MDS_ATTR_LSIZE, MDS_ATTR_MTIME, MDS_GETATTR, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE, MdtBody,
    MdtRecSetattr, OBD_MD_FLCTIME, OBD_MD_FLGID, OBD_MD_FLMODE, OBD_MD_FLMTIME, OBD_MD_FLNLINK,
    OBD_MD_FLSIZE, OBD_MD_FLUID, OBD_MD_LINKNAME, REINT_SETATTR, Time, Timed, Times, WireStruct, before_nul,
};

/// What the reply to a setattr tells when it tells the attributes.
const SETATTR_REPLY: u64 =
    OBD_MD_FLMODE | OBD_MD_FLUID | OBD_MD_FLGID | OBD_MD_FLNLINK | OBD_MD_FLMTIME | OBD_MD_FLCTIME;

impl Client {
    /// Changes attributes. A change of the size goes through `file` when there is one, so that it needs no permission that
    /// the open did not.
    pub async fn setattr(
        &self,
        cred: &Cred,
        fid: Fid,
        set: &SetAttr,
        file: Option<&Arc<OpenFile>>,
    ) -> Result<Found, Errno> {
        if set.size.is_some_and(|size| size > i64::MAX as u64) {
            return Err(Errno::EFBIG);
        }
        let data = self.data_to_set(cred, fid, set, file).await?;
        if let (Some(data), Some(size)) = (&data, set.size) {
            data.may_end_at(size)?;
        }
        let mdc = self.lmv.of(fid).await?;
        // To give a file to another group, its owner must be a member of that one.
        let suppgid = match set.gid.map(|gid| cred.suppgid(gid)) {
            Some(gid) if gid != NO_GROUP => gid,
            // And to keep a file set-group-ID, a member of its group.
            _ if set.mode.is_some() || set.kill_priv => self.own_group(cred, fid).await,
            _ => self.suppgid(cred, fid).await,
        };
        let mut rec = pack::setattr_rec(cred, fid, set, self.now(mdc), suppgid);
        pack::times_for(mdc.precision(), &mut rec);
        // A truncation may take set-ID bits.
        let perm = set.mode.is_some()
            || set.kill_priv
            || set.uid.is_some()
            || set.gid.is_some()
            || set.size.is_some();
        let more = if perm { MDS_INODELOCK_PERM } else { 0 };
        let ask = || {
            let elc = mdc.elc(&[], &[(fid, MDS_INODELOCK_UPDATE | more)]);
            mdc.reint(pack::setattr(&rec, file.map(|f| f.handle), Bytes::new(), &elc))
        };
        let reply = self.while_busy(fid, ask).await?;
        let body: MdtBody = reply.get(bufs::MDT_BODY)?;
        if data.is_none() && set.size.is_some() && body.mbo_valid & OBD_MD_FLSIZE == 0 {
            // Another client's open gave the file objects meanwhile, and the MDT no longer keeps its size.
            return Box::pin(self.setattr(cred, fid, set, file)).await;
        }
        if let Some(data) = data {
            let user = User::new(cred, fid, suppgid);
            data_is_set(&data, set, &rec, &user).await?;
        }
        if body.mbo_fid1 != fid || body.mbo_valid & SETATTR_REPLY != SETATTR_REPLY {
            return self.getattr(cred, fid).await;
        }
        // Without a lock: who changes one attribute often changes the next, and would only have to give it back.
        let md = MdAttr::from_reply(&body, &Bytes::new(), &Bytes::new(), mdc.precision());
        let sizes = match set.size {
            Some(_) => Sizes::Awaited,
            None => self.sizes_for_kernel(),
        };
        self.with_data(cred, fid, md, None, sizes).await
    }

    /// The data that a setattr concerns too: of a truncation or of new times of a regular file. The MDT keeps
    /// the size of a file that has no objects.
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
            return Ok(Some(self.data_of(file).await?));
        }
        if let Some(layout) = self.kept_layout(fid).await?
            && !layout.is_empty()
        {
            return Ok(Some(self.data(fid, layout).await));
        }
        let md = self.md(cred, fid).await?;
        if !md.attr.is_file() {
            return if set.size.is_some() {
                Err(not_a_file(&md.attr))
            } else {
                Ok(None)
            };
        }
        let layout = self.layout(fid).await?;
        if layout.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.data(fid, layout).await))
    }

    /// The record of a close: size and times for who asks lazily, when this client has written and knows them.
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
        let cached = data.cached_size();
        let md = self.inodes.get(file.fid).and_then(|i| i.state.lock().md.clone());
        // What is known of the times; without them a read counts, and the target knows better.
        let known = match (&md, &cached) {
            (Some(md), Some(data)) => md.with_data(data).times(),
            (Some(md), None) => md.attr.times(),
            (None, _) => file.opened_times,
        };
        let mut times = rec.times();
        let read_at = data.access().take(self.atime.files(), known);
        if let Some(cached) = cached.filter(|_| file.has_written()) {
            rec.sa_valid =
                MDS_ATTR_LSIZE | MDS_ATTR_LBLOCKS | MDS_ATTR_MTIME | MDS_ATTR_CTIME | MDS_ATTR_ATIME;
            (rec.sa_size, rec.sa_blocks) = (cached.size, cached.blocks);
            times = cached.times;
        }
        if let Some(atime) = read_at {
            rec.sa_valid |= MDS_ATTR_ATIME;
            times.atime = atime;
            self.inodes.accessed(file.fid, mdc.precision().of(atime));
        }
        rec.set_times(times);
        pack::times_for(mdc.precision(), &mut rec);
        rec
    }

    /// Reads a symbolic link. Its target never changes while the FID lives, so it is kept once read.
    pub async fn readlink(&self, cred: &Cred, fid: Fid) -> Result<Bytes, Errno> {
        if let Some(target) = self.inodes.get(fid).and_then(|i| i.state.lock().symlink.clone()) {
            return Ok(target);
        }
        let mdc = self.lmv.of(fid).await?;
        let mut body = pack::body(cred, fid, Fid::ZERO, OBD_MD_LINKNAME, NO_GROUP);
        body.mbo_eadatasize = 4096;
        let reply = mdc.ask(MDS_GETATTR, vec![body.to_bytes(), Bytes::new()]).await?;
        let got: wire::MdtBody = reply.get(bufs::MDT_BODY)?;
        if got.mbo_valid & OBD_MD_LINKNAME == 0 {
            return Err(Errno::EINVAL);
        }
        let target = Bytes::copy_from_slice(before_nul(reply.buf(bufs::MDT_MD)));
        if let Some(inode) = self.inodes.get(fid) {
            inode.state.lock().symlink = Some(target.clone());
        }
        Ok(target)
    }

    /// The access ACL of a file (`system.posix_acl_access`), empty when it has none; kept with its attributes.
    pub(crate) async fn acl(&self, cred: &Cred, fid: Fid) -> Result<Option<Bytes>, Errno> {
        let md: MdAttr = self.md(cred, fid).await?;
        Ok(md.acl)
    }
}

/// Does to a file's objects what the metadata target has done to the file. Without an open file the right to it is the user's.
async fn data_is_set(data: &DataFile, set: &SetAttr, rec: &MdtRecSetattr, user: &User) -> Result<(), Errno> {
    let rights = match set.size {
        Some(_) => CAPA_OPC_OSS_TRUNC,
        None => CAPA_OPC_META_WRITE,
    };
    let change = async || {
        data.authorize(rights, user).await?;
        if let Some(size) = set.size {
            data.truncate(size).await?;
        }
        let given = |set: Option<SetTime>, time: Time| set.map(|_| time);
        let t = rec.times();
        if set.atime.is_some() || set.mtime.is_some() {
            data.set_times(given(set.atime, t.atime), given(set.mtime, t.mtime), t.ctime)
                .await?;
        }
        Ok(())
    };
    match change().await {
        // The first time a target says so that it requires capabilities.
        Err(Errno::EACCES) => change().await,
        done => done,
    }
}

fn not_a_file(attr: &Attr) -> Errno {
    if attr.is_dir() {
        Errno::EISDIR
    } else {
        Errno::EINVAL
    }
}
