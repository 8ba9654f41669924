//! Setattr and setxattr; also close, because a close request has attributes.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use rpc::{Reply, ServerRequest};
use wire::format::bufs;
use wire::{
    Errno, HasTimes, LMV_OFFSET_DEFAULT, LMV_USER_MAGIC, LMV_USER_MAGIC_SPECIFIC, LockTerms,
    MDS_ATTR_FROM_OPEN, MDS_ATTR_GID, MDS_ATTR_KILL_SGID, MDS_ATTR_KILL_SUID, MDS_ATTR_MODE, MDS_ATTR_SIZE,
    MDS_ATTR_UID, MDS_CLOSE_INTENT, MDS_OPEN_TRUNC, MDS_TRUNC_KEEP_LEASE, MdtBody, MdtIoepoch, MdtRecSetattr,
    MdtRecSetxattr, OBD_CONNECT_RDONLY, OBD_MD_CLOSE_INTENT_EXECED, OBD_MD_FLXATTR, OBD_MD_FLXATTRRM,
    Transno, WireStruct, XATTR_NAME_DEFAULT_LMV, XATTR_NAME_FID, XATTR_NAME_HSM, XATTR_NAME_LINK,
    XATTR_NAME_LMA, XATTR_NAME_LMV, XATTR_NAME_SOM, XATTR_NAME_VERSION,
};

use super::{change_reply, time_of, with_transaction};
use crate::{
    acl::{XATTR_ACCESS, XATTR_DEFAULT},
    cred::{Cred, MAY_WRITE},
    dir_layout,
    handles::{OpenFile, is_file_handle},
    layout::LayoutRequest,
    locks::{OPEN, PERM, UNWRITTEN, UPDATE, XATTR},
    namespace::{
        self, CloseAttrs, SetattrArgs,
        xattr::{SetxattrArgs, XATTR_DEFAULT_LMV, XATTR_LOV, XATTR_LUSTRE_LOV},
    },
    target::{HandlerResult, Mdt, lock_terms, name_of, precision, reply},
};

/// The record with its times at the negotiated precision.
fn at_precision(req: &ServerRequest, mut rec: MdtRecSetattr) -> MdtRecSetattr {
    rec.set_times(rec.times().at(precision(req)));
    rec
}

/// Magic numbers of a request for a directory striped over several MDTs.
const STRIPED_DIRECTORY: [u32; 2] = [LMV_USER_MAGIC, LMV_USER_MAGIC_SPECIFIC];

/// The attribute in which Lustre's LFSCK records the state of a name.
const XATTR_NAME_LFSCK_NAMESPACE: &str = "trusted.lfsck_ns";

/// Lustre's lfs adds, removes and changes components of a file by attributes with this prefix.
const COMPONENT_CHANGE: &[u8] = b"trusted.lov.";
const COMPONENT_CHANGE_BY_USER: &[u8] = b"lustre.lov.";

/// Whether only the target itself may set this attribute.
fn is_internal_xattr(name: &[u8]) -> bool {
    [
        XATTR_NAME_DEFAULT_LMV,
        XATTR_NAME_FID,
        XATTR_NAME_HSM,
        XATTR_NAME_LFSCK_NAMESPACE,
        XATTR_NAME_LINK,
        XATTR_NAME_LMA,
        XATTR_NAME_LMV,
        XATTR_NAME_SOM,
        XATTR_NAME_VERSION,
    ]
    .iter()
    .any(|internal| internal.as_bytes() == name)
}

/// The reply to a setxattr of an internal attribute. If the user is an administrator, the MDT
/// ignores the value and reports success, as Lustre does: programs that copy a file copy all
/// visible attributes. `EPERM` for other users, `EOPNOTSUPP` for striping a directory over MDTs.
fn ignore_internal_xattr(cred: &Cred, name: &[u8], value: Option<&[u8]>) -> HandlerResult {
    let magic = value
        .and_then(|v| v.first_chunk())
        .map(|m| u32::from_le_bytes(*m));
    if !cred.is_admin() {
        return Err(Errno::EPERM);
    }
    if name == XATTR_NAME_LMV.as_bytes() && magic.is_some_and(|m| STRIPED_DIRECTORY.contains(&m)) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(reply(1, [MdtBody::default().to_bytes()]))
}

impl Mdt {
    pub(super) async fn reint_setattr(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let set = at_precision(req, req.get(bufs::REC_REINT)?);
        let ea = req.bytes(bufs::SETATTR_EA);
        if !ea.is_empty() {
            return self.set_default_layout(req, &set, cred, ea).await;
        }
        let open_for_write = self.is_open_for_write(req, &set);
        let mut bits = UPDATE;
        let clears_set_id = set.sa_valid & MDS_ATTR_SIZE != 0 && !cred.may_write_set_id();
        let permissions =
            MDS_ATTR_MODE | MDS_ATTR_UID | MDS_ATTR_GID | MDS_ATTR_KILL_SUID | MDS_ATTR_KILL_SGID;
        if set.sa_valid & permissions != 0 || clears_set_id {
            bits |= PERM;
        }
        if set.sa_valid & MDS_ATTR_SIZE != 0 {
            bits |= UNWRITTEN;
            if namespace::has_executors(&self.store, set.sa_fid) {
                // The clients may cache handles for execution that no process uses: revoke them.
                bits |= OPEN;
            }
        }
        self.store.inode(set.sa_fid).await?;
        let mut locks = self.request_locks(req);
        locks.lock_inode(set.sa_fid, bits).await?;
        let keeps_lease = set.sa_bias & MDS_TRUNC_KEEP_LEASE != 0;
        if set.sa_valid & MDS_ATTR_SIZE != 0 && bits & OPEN == 0 && !keeps_lease {
            locks.revoke_lease(set.sa_fid).await?;
        }
        let change = namespace::setattr(
            self.request_store(req),
            cred,
            SetattrArgs {
                rec: &set,
                open_for_write,
            },
        )
        .await?;
        locks.hold_until_acknowledged(req);
        Ok(change_reply(req, &change, 5, true))
    }

    /// Whether the client has the file open for write or truncation: by the handle in the request
    /// or, if the change is part of an open, by any handle.
    fn is_open_for_write(&self, req: &ServerRequest, set: &MdtRecSetattr) -> bool {
        // A client that does not have the file open sends no buffer.
        let cookie = match req.buf(bufs::SETATTR_EPOCH) {
            [] => 0,
            _ => req
                .get::<MdtIoepoch>(bufs::SETATTR_EPOCH)
                .map_or(0, |e| e.mio_open_handle.cookie),
        };
        let handles = self.handles(&req.export);
        let allows = |f: &OpenFile| f.fid == set.sa_fid && (f.mode.writes() || f.mode.has(MDS_OPEN_TRUNC));
        let by_cookie = handles.get(cookie).is_some_and(|f| allows(&f));
        by_cookie || (set.sa_valid & MDS_ATTR_FROM_OPEN != 0 && handles.any(allows))
    }

    /// Checks that the MDT which a default layout over MDTs names is in the file system. `EINVAL`
    /// if it is not, or if the layout is malformed.
    fn check_mdt_of(&self, ea: &[u8]) -> Result<(), Errno> {
        let Some(layout) = dir_layout::parse(ea)? else {
            return Ok(());
        };
        match layout.lum_stripe_offset {
            LMV_OFFSET_DEFAULT => Ok(()),
            index if index == self.peers.own_index() => Ok(()),
            index => self.peers.get(index).map(drop).map_err(|_| Errno::EINVAL),
        }
    }

    /// Sets a directory's default layout, for files or over MDTs; the request is a setattr with the
    /// layout in `ea`.
    async fn set_default_layout(
        &self,
        req: &ServerRequest,
        set: &MdtRecSetattr,
        cred: &Cred,
        ea: Bytes,
    ) -> HandlerResult {
        let fid = set.sa_fid;
        let name = match dir_layout::is_default_layout(&ea) {
            true => {
                self.check_mdt_of(&ea)?;
                XATTR_DEFAULT_LMV
            }
            false => XATTR_LOV,
        };
        self.store.inode(fid).await?;
        let mut locks = self.request_locks(req);
        locks.lock_inode(fid, UPDATE | XATTR).await?;
        let args = SetxattrArgs {
            fid,
            name,
            value: Some(ea),
            flags: 0,
            time: set.times().ctime,
        };
        let change = namespace::xattr::setxattr(self.request_store(req), cred, &args).await?;
        locks.hold_until_acknowledged(req);
        Ok(change_reply(req, &change, 5, true))
    }

    pub(super) async fn reint_setxattr(&self, req: &ServerRequest, cred: &Cred) -> HandlerResult {
        let set: MdtRecSetxattr = req.get(bufs::REC_REINT)?;
        let (fid, name) = (set.sx_fid, name_of(req, bufs::SETXATTR_NAME));
        let value = match set.sx_valid {
            valid if valid & OBD_MD_FLXATTRRM != 0 => None,
            valid if valid & OBD_MD_FLXATTR != 0 => Some(req.bytes(bufs::SETXATTR_VALUE)),
            _ => return Err(Errno::EINVAL),
        };
        let is_layout = *name == *XATTR_LOV || *name == *XATTR_LUSTRE_LOV;
        let inode = self.store.inode(fid).await?;
        if is_layout && inode.is_file() {
            return self.set_file_layout(req, &set, cred, value).await;
        }
        if [COMPONENT_CHANGE, COMPONENT_CHANGE_BY_USER]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            return Err(Errno::EOPNOTSUPP);
        }
        if is_internal_xattr(&name) {
            return ignore_internal_xattr(cred, &name, value.as_deref());
        }
        let bits = match &name[..] {
            XATTR_ACCESS => UPDATE | XATTR | PERM,
            XATTR_DEFAULT => UPDATE | XATTR | PERM,
            _ => UPDATE | XATTR,
        };
        let mut locks = self.request_locks(req);
        locks.lock_inode(fid, bits).await?;
        let args = SetxattrArgs {
            fid,
            name: &name,
            value,
            flags: set.sx_flags,
            time: time_of(req, &set),
        };
        let change = namespace::xattr::setxattr(self.request_store(req), cred, &args).await?;
        locks.hold_until_acknowledged(req);
        Ok(change_reply(req, &change, 1, false))
    }

    /// Sets the layout of a file that has none. `EEXIST` if the file has one, `ENODATA` if the
    /// request specifies none.
    async fn set_file_layout(
        &self,
        req: &ServerRequest,
        set: &MdtRecSetxattr,
        cred: &Cred,
        value: Option<Bytes>,
    ) -> HandlerResult {
        let inode = self.store.inode(set.sx_fid).await?;
        let layout = value.map(|ea| LayoutRequest::parse(&ea)).transpose()?.flatten();
        cred.check(&inode, MAY_WRITE)?;
        match layout {
            _ if !inode.lov.is_empty() => Err(Errno::EEXIST),
            None => Err(Errno::ENODATA),
            Some(layout) => {
                let store = self.request_store(req);
                let inode = self.set_layout(req, store, set.sx_fid, layout).await?;
                // The client does not know the objects, so it could not create the layout again
                // after a crash.
                self.store.index().sync().await?;
                let body = MdtBody::default().to_bytes();
                Ok(reply(1, [body]).with_transno(Transno(inode.version)))
            }
        }
    }

    /// Releases the handles that a client sends with a request: cancels its locks. With
    /// [`LockTerms::Nacre`], also closes open files for which the client has no attributes to send.
    pub(crate) async fn release_handles(&self, req: &ServerRequest, handles: &[u64]) {
        self.locks.server().cancel(&req.export, handles);
        if lock_terms(req) != LockTerms::Nacre {
            return;
        }
        for handle in handles.iter().filter(|h| is_file_handle(**h)) {
            let Some(OpenFile { fid, mode }) = self.handles(&req.export).remove(*handle) else {
                continue;
            };
            let store = self.request_store(req).without_reply();
            if let Err(e) = namespace::release_handle(store, fid, mode).await {
                tracing::warn!(%fid, "cannot destroy a removed file after its last close; the next start destroys it: {e}");
            }
        }
    }

    /// Executes `MDS_CLOSE`. A replay succeeds even if the handle is unknown: the client has closed
    /// the file before the restart, and does not open it again.
    pub(crate) async fn close(&self, req: &ServerRequest) -> HandlerResult {
        let epoch: MdtIoepoch = req.get(bufs::CLOSE_EPOCH)?;
        let rec = at_precision(req, req.get(bufs::CLOSE_REC)?);
        self.throttle().await;
        let handles = self.handles(&req.export);
        let handle = epoch.mio_open_handle.cookie;
        let has_intent = rec.sa_bias & MDS_CLOSE_INTENT != 0;
        let replayed = self.replayed_transno(req);
        // The MDT commits an intent before it closes the file, so a replay finds it executed.
        let intent = match has_intent && replayed.is_none() {
            false => None,
            true => {
                let closing = handles.get(handle).ok_or(Errno::ESTALE)?;
                Some(self.execute_close_intent(req, &rec, closing).await)
            }
        };
        let file = match (handles.remove(handle), replayed) {
            (Some(file), _) => file,
            (None, None) => return Err(Errno::ESTALE),
            (None, Some(transno)) => return Ok(close_reply(0).with_transno(transno)),
        };
        let read_only = self.rights(&req.export).readonly_mount || req.export.has(OBD_CONNECT_RDONLY);
        // After a swap of layouts, the client's size is the other file's.
        let may_have_swapped = match replayed {
            None => intent == Some(Ok(())),
            Some(_) => has_intent,
        };
        let applies_attrs = file.fid == rec.sa_fid && !read_only && !may_have_swapped;
        let attrs = applies_attrs.then_some(CloseAttrs {
            rec: &rec,
            atime_diff: self.atime_diff.load(Ordering::Relaxed) as i64,
        });
        let (valid, status) = match intent {
            Some(Ok(())) => (OBD_MD_CLOSE_INTENT_EXECED, 0),
            Some(Err(e)) => (0, e.status()),
            None => (0, 0),
        };
        let store = self.request_store(req).with_data(valid).with_status(status);
        let closed = namespace::close(store, file.fid, file.mode, attrs).await?;
        Ok(with_transaction(close_reply(valid), &closed).with_status(status))
    }

    /// Rebuilds the reply to a close that an earlier start executed; `valid` is the `mbo_valid` of
    /// that reply. The client may have opened the file again by a replay.
    pub(crate) async fn rebuild_close(&self, req: &ServerRequest, valid: u64) -> HandlerResult {
        let epoch: MdtIoepoch = req.get(bufs::CLOSE_EPOCH)?;
        let handle = epoch.mio_open_handle.cookie;
        if let Some(OpenFile { fid, mode }) = self.handles(&req.export).remove(handle) {
            namespace::release_handle(self.request_store(req).without_reply(), fid, mode).await?;
        }
        Ok(close_reply(valid))
    }
}

/// The reply to a close, with this `mbo_valid`.
fn close_reply(mbo_valid: u64) -> Reply {
    let body = MdtBody {
        mbo_valid,
        ..MdtBody::default()
    };
    reply(5, [body.to_bytes()])
}
