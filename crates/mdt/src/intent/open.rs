//! The open intent: opens a file, and creates it if requested.
//!
//! The disposition bits state the executed steps (lookup, create, open): from them, the client
//! knows which step the status describes.

use bytes::Bytes;
use ldlm::{GrantedLock, LockMode};
use rpc::{Access, ServerRequest};
use wire::format::bufs;
use wire::{
    DISP_IT_EXECD, DISP_LOOKUP_EXECD, DISP_LOOKUP_NEG, DISP_LOOKUP_POS, DISP_OPEN_CREATE, DISP_OPEN_LEASE,
    DISP_OPEN_LOCK, DISP_OPEN_OPEN, Errno, Fid, HasTime, LDLM_FL_INTENT_ONLY, LdlmRequest, LockTerms,
    LustreHandle, MDS_FMODE_EXEC, MDS_OPEN_BY_FID, MDS_OPEN_CREAT, MDS_OPEN_DELAY_CREATE, MDS_OPEN_DIRECTORY,
    MDS_OPEN_EXCL, MDS_OPEN_HAS_EA, MDS_OPEN_LOCK, MDS_OPEN_VOLATILE, MdtBody, MdtRecCreate, OBD_MD_FLACL,
    OBD_MD_FLEASIZE, OBD_MD_FLMODEASIZE, Time, Transno, WireStruct,
};

use super::{IntentResult, getattr::layout_bit};
use crate::{
    body::{self, Attrs},
    cred::Cred,
    handles::OpenFile,
    layout::{self, LayoutRequest},
    locks::{self, RequestLocks},
    namespace::{self, ChangeResult, NewInode, OpenMode, Resolved},
    store::{Inode, S_IFREG, UnusedFid},
    target::{Mdt, lock_terms, name_of, part_of, precision},
};

/// The parameters of an open.
pub(super) struct OpenRequest {
    pub(super) rec: MdtRecCreate,
    /// The client's time.
    time: Time,
    pub(super) flags: OpenMode,
    /// The identity, mapped by nodemap and root_squash.
    pub(super) cred: Cred,
    /// The name; empty for an open by FID.
    pub(super) name: Bytes,
    /// The layout that the user requests.
    layout: Option<LayoutRequest>,
    /// The layout in a replay: that of the file when it was first opened.
    pub(super) known_layout: Option<Bytes>,
    /// The client's handle of the lock.
    pub(super) cookie: u64,
    /// Whether the client gets no lock (`LDLM_FL_INTENT_ONLY`).
    takes_no_lock: bool,
}

impl OpenRequest {
    pub(super) fn parse(mdt: &Mdt, req: &ServerRequest) -> Result<OpenRequest, Errno> {
        let dlm: LdlmRequest = req.get(bufs::DLM_REQ)?;
        let rec: MdtRecCreate = req.get(bufs::OPEN_REC)?;
        let flags = OpenMode(u64::from(rec.cr_flags_l) | u64::from(rec.cr_flags_h) << 32);
        let claimed = Cred {
            fsuid: rec.cr_fsuid,
            fsgid: rec.cr_fsgid,
            suppgids: [rec.cr_suppgid1, rec.cr_suppgid2],
            cap: rec.cr_cap,
            umask: rec.cr_umask,
            is_replay: false,
        };
        let known_layout = match mdt.is_replay(req) {
            true => layout::replayed(req.buf(bufs::OPEN_EA))?,
            false => None,
        };
        let layout = if flags.has(MDS_OPEN_HAS_EA) && known_layout.is_none() {
            Some(LayoutRequest::parse(req.buf(bufs::OPEN_EA))?.unwrap_or_default())
        } else {
            None
        };
        Ok(OpenRequest {
            time: precision(req).of(rec.time()),
            rec,
            flags,
            cred: mdt.effective_cred(req, claimed),
            name: name_of(req, bufs::OPEN_NAME),
            layout,
            known_layout,
            cookie: dlm.lock_handle[0],
            takes_no_lock: u64::from(dlm.lock_flags) & LDLM_FL_INTENT_ONLY != 0,
        })
    }

    /// Whether the request names an existing file by its FID.
    pub(super) fn opens_by_fid(&self) -> bool {
        self.flags.has(MDS_OPEN_BY_FID) || self.name.is_empty()
    }

    /// Whether the new file gets no name; its last close destroys it.
    pub(super) fn is_volatile(&self) -> bool {
        self.flags.has(MDS_OPEN_VOLATILE)
    }

    /// The new file, with this layout.
    pub(super) fn new_file(&self, lov: Bytes) -> NewInode {
        NewInode {
            fid: self.rec.cr_fid2,
            mode: self.rec.cr_mode & 0o7777 | S_IFREG,
            time: self.time,
            lov,
            ..NewInode::default()
        }
    }

    /// Whether the other flags allow a lease: the request must open an existing file by FID, and
    /// request a lock.
    fn allows_lease(&self) -> bool {
        let required = MDS_OPEN_BY_FID | MDS_OPEN_LOCK;
        self.flags.0 & required == required && !self.flags.has(MDS_OPEN_CREAT)
    }
}

/// The file to open.
struct OpenTarget<'a> {
    fid: Fid,
    /// The change that created the file, and the creator's lock; `None` for an existing file.
    created: Option<(ChangeResult, GrantedLock)>,
    /// The locks on the name; for an open for write without `MDS_OPEN_LOCK`, also a lock that
    /// prevents leases of other clients.
    held: RequestLocks<'a>,
}

impl Mdt {
    pub(super) async fn intent_open(&self, req: &ServerRequest) -> Result<IntentResult, Errno> {
        let mut out = IntentResult {
            disposition: DISP_IT_EXECD,
            bufs: vec![MdtBody::default().to_bytes()],
            ..IntentResult::default()
        };
        let result = match OpenRequest::parse(self, req) {
            Ok(request) if self.is_replay(req) => self.replay_open(req, &request, &mut out).await,
            Ok(request) => self.open(req, &request, &mut out).await,
            Err(e) => Err(e),
        };
        out.errno = result.err();
        Ok(out)
    }

    async fn open(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        out: &mut IntentResult,
    ) -> Result<(), Errno> {
        if request.flags.is_lease() && !request.allows_lease() {
            return Err(Errno::EPROTO);
        }
        if request.flags.changes() || request.layout.is_some() {
            self.check_writable(req)?;
        }
        self.throttle().await;
        let Some(mut found) = self.find_or_create(req, request, out).await? else {
            return Ok(());
        };
        if found.created.is_none() {
            let access = match request.flags.writes() {
                true => Access::Write,
                false => Access::Read,
            };
            req.export.claim(part_of(found.fid), access).await?;
        }
        let (inode, lock) = match &found.created {
            Some((change, lock)) => {
                (out.transno, out.pre_versions) = (change.transno, change.pre_versions);
                (change.inode.clone(), *lock)
            }
            None => self.prepare_to_open(req, request, &mut found, out).await?,
        };
        let created = found.created.as_ref().map(|(change, _)| change.transno);
        let handle = match self
            .open_handle(req, request, (found.fid, &inode), created, out)
            .await
        {
            Ok(handle) => handle,
            Err(e) => {
                self.locks.server().cancel(&req.export, &[lock.handle]);
                if found.created.is_some() && request.is_volatile() {
                    namespace::destroy_orphan(self.request_store(req).without_reply(), found.fid).await?;
                }
                return Err(e);
            }
        };
        if request.flags.has(MDS_OPEN_LOCK) && lock.bits & locks::OPEN != 0 {
            out.disposition |= DISP_OPEN_LOCK;
        }
        if request.flags.is_lease() {
            out.disposition |= DISP_OPEN_LEASE;
        }
        out.lock = lock;
        let fid = found.fid;
        if found.created.is_some() {
            found.held.hold_until_acknowledged(req);
        }
        self.put_opened(req, (fid, request.flags), handle, out).await
    }

    /// Puts the attributes and the handle of the opened file into the result, and the data that the
    /// granted lock covers.
    pub(super) async fn put_opened(
        &self,
        req: &ServerRequest,
        (fid, mode): (Fid, OpenMode),
        handle: u64,
        out: &mut IntentResult,
    ) -> Result<(), Errno> {
        let inode = self.store.inode(fid).await?;
        let mut valid = OBD_MD_FLEASIZE | OBD_MD_FLACL;
        if inode.is_file() {
            valid |= OBD_MD_FLMODEASIZE;
        }
        let Attrs {
            mut body, md, acl, ..
        } = body::attrs(fid, &inode, self.attr_request(req, valid));
        body.mbo_open_handle = LustreHandle { cookie: handle };
        out.bufs = vec![body.to_bytes(), md, acl];
        self.put_data(req, fid, mode, &mut body, out).await;
        if let Some(first) = out.bufs.first_mut() {
            *first = body.to_bytes();
        }
        Ok(())
    }

    /// Prepares an existing file for the open, and grants the client's lock.
    async fn prepare_to_open(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        found: &mut OpenTarget<'_>,
        out: &IntentResult,
    ) -> Result<(Inode, GrantedLock), Errno> {
        let fid = found.fid;
        let mut inode = self.store.inode(fid).await?;
        if request.flags.is_lease() {
            self.check_lease(fid, &inode)?;
        }
        if inode.is_file() {
            inode = self.ensure_layout(req, request, fid, inode, out).await?;
        }
        if request.flags.writes() {
            // An open for write revokes the creator's bit of unwritten files, even from the client
            // that opens: from now on, a second handle writes to the file.
            self.request_locks(req).lock_inode(fid, locks::UNWRITTEN).await?;
            if !request.flags.has(MDS_OPEN_LOCK) {
                // With MDS_OPEN_LOCK, the grant of the client's open lock revokes leases.
                found.held.revoke_lease(fid).await?;
            }
        }
        // Grant the lock before adding the handle: the grant makes other clients close unused
        // cached handles, which would conflict with this open.
        let lock = self.grant_open_lock(req, request, fid, &inode, 0).await?;
        Ok((inode, lock))
    }

    /// Checks that the file can be leased. The caller has not requested the lease's lock yet, which
    /// would revoke another lease.
    fn check_lease(&self, fid: Fid, inode: &Inode) -> Result<(), Errno> {
        match inode.is_file() {
            false => Err(Errno::EINVAL),
            true if namespace::has_lease(&self.store, fid) => Err(Errno::EBUSY),
            true => Ok(()),
        }
    }

    /// Looks up the file, and creates it if requested. `None` if the name does not exist and the
    /// open does not create, or if another MDT has the file.
    async fn find_or_create<'a>(
        &'a self,
        req: &'a ServerRequest,
        request: &OpenRequest,
        out: &mut IntentResult,
    ) -> Result<Option<OpenTarget<'a>>, Errno> {
        let (parent, name) = (request.rec.cr_fid1, &request.name);
        if request.opens_by_fid() {
            let fid = if request.rec.cr_fid2 == Fid::ZERO {
                parent
            } else {
                request.rec.cr_fid2
            };
            self.store.inode(fid).await?;
            out.disposition |= DISP_LOOKUP_EXECD | DISP_LOOKUP_POS;
            return Ok(Some(OpenTarget {
                fid,
                created: None,
                held: self.request_locks(req),
            }));
        }
        let creates = request.flags.has(MDS_OPEN_CREAT);
        out.disposition |= DISP_LOOKUP_EXECD;
        let (store, cred) = (&self.store, &request.cred);
        // This lookup without a lock guesses which lock the open needs.
        let mut resolved = Resolved::read(store, cred, parent, name).await?;
        let (held, unused) = loop {
            if request.is_volatile() {
                resolved.entry = None;
                let unused = self.check_new_file(req, request).await?;
                break (self.request_locks(req), creates.then_some(unused));
            }
            let mut held = self.request_locks(req);
            let must_create = creates && resolved.entry.is_none();
            let unused = match must_create {
                true => {
                    if !request.flags.has(MDS_OPEN_DELAY_CREATE) {
                        // The file needs objects, for which nothing may wait under a lock.
                        req.export.wait_until_recovered().await?;
                    }
                    let unused = self.check_new_file(req, request).await?;
                    held.lock_name_write(parent, name).await?;
                    Some(unused)
                }
                false => {
                    held.lock_name_read(parent, name).await?;
                    None
                }
            };
            resolved = resolved.refresh(store, cred, parent, name).await?;
            if must_create || !creates || resolved.entry.is_some() {
                break (held, unused);
            }
        };
        if let Some(entry) = resolved.entry {
            out.disposition |= DISP_LOOKUP_POS;
            if creates && request.flags.has(MDS_OPEN_EXCL) {
                return Err(Errno::EEXIST);
            }
            if self.is_remote(entry.fid).await? {
                // The client opens the inode at the MDT that has it.
                out.bufs = vec![body::elsewhere(entry.fid).to_bytes()];
                return Ok(None);
            }
            return Ok(Some(OpenTarget {
                fid: entry.fid,
                created: None,
                held,
            }));
        }
        out.disposition |= DISP_LOOKUP_NEG;
        let Some(unused) = unused else {
            return Ok(None);
        };
        self.check_writable(req)?;
        let disposition = out.disposition | DISP_OPEN_CREATE;
        let created = self
            .create_file(req, request, resolved, unused, disposition)
            .await?;
        out.disposition = disposition;
        Ok(Some(OpenTarget {
            fid: request.rec.cr_fid2,
            created: Some(created),
            held,
        }))
    }

    /// Checks the new file's name and FID, before the request takes a lock.
    pub(super) async fn check_new_file(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
    ) -> Result<UnusedFid, Errno> {
        namespace::check_name(&request.name)?;
        namespace::check_not_dot_lustre(request.rec.cr_fid1)?;
        namespace::check_fid(request.rec.cr_fid2)?;
        self.check_new_fid(req, request.rec.cr_fid2).await
    }

    /// Creates a file. Grants the creator's lock before the file is visible: another client that
    /// opens the file for write by its FID must revoke the creator's bit of unwritten files.
    async fn create_file(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        resolved: Resolved,
        unused: UnusedFid,
        disposition: u64,
    ) -> Result<(ChangeResult, GrantedLock), Errno> {
        let rec = &request.rec;
        // Check permission first: an unprivileged user must not use up objects.
        request
            .cred
            .check(&resolved.dir, crate::cred::MAY_WRITE | crate::cred::MAY_EXEC)?;
        let lov = if request.flags.has(MDS_OPEN_DELAY_CREATE) {
            Bytes::new()
        } else {
            let layout = request.layout.clone().unwrap_or_default();
            self.new_layout(rec.cr_fid2, 0, layout, &resolved.dir).await?
        };
        let node = request.new_file(lov);
        let creator_bit = match lock_terms(req) {
            LockTerms::Nacre => locks::UNWRITTEN,
            _ => 0,
        };
        let file = Inode {
            mode: node.mode,
            lov: node.lov.clone(),
            ..Inode::default()
        };
        let lock = self
            .grant_open_lock(req, request, node.fid, &file, creator_bit)
            .await?;
        match self
            .make_file(req, request, &node, resolved, unused, disposition)
            .await
        {
            Ok(change) => Ok((change, lock)),
            Err(e) => {
                self.locks.server().cancel(&req.export, &[lock.handle]);
                Err(e)
            }
        }
    }

    /// Creates the file of an open.
    pub(super) async fn make_file(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        node: &NewInode,
        resolved: Resolved,
        unused: UnusedFid,
        disposition: u64,
    ) -> Result<ChangeResult, Errno> {
        let store = self.request_store(req).with_data(disposition);
        let (cred, parent) = (&request.cred, request.rec.cr_fid1);
        if request.is_volatile() {
            return namespace::create_volatile(store, cred, parent, node).await;
        }
        let name = (parent, &request.name[..]);
        namespace::create_resolved(store, cred, name, resolved, Some(unused), node).await
    }

    /// Sets the layout of a file that has none, if the open is for write (without
    /// `MDS_OPEN_DELAY_CREATE`) or specifies a layout. `EEXIST` if the open specifies a layout, but
    /// the file has one.
    async fn ensure_layout(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        fid: Fid,
        inode: Inode,
        out: &IntentResult,
    ) -> Result<Inode, Errno> {
        if !inode.lov.is_empty() {
            return if request.layout.is_some() {
                Err(Errno::EEXIST)
            } else {
                Ok(inode)
            };
        }
        let needs_layout =
            request.layout.is_some() || (request.flags.writes() && !request.flags.has(MDS_OPEN_DELAY_CREATE));
        if !needs_layout {
            return Ok(inode);
        }
        request.cred.check(&inode, crate::cred::MAY_WRITE)?;
        let store = self.request_store(req).with_data(out.disposition);
        self.set_layout(req, store, fid, request.layout.clone().unwrap_or_default())
            .await
    }

    /// Opens a file or directory, and returns the cookie of its new handle; 0 for other types,
    /// which clients open locally. `created` is the transaction of a request that created or opened
    /// the file; with `None`, the open gets its own.
    pub(super) async fn open_handle(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        (fid, inode): (Fid, &Inode),
        created: Option<Transno>,
        out: &mut IntentResult,
    ) -> Result<u64, Errno> {
        if !inode.is_file() && !inode.is_dir() {
            // The client follows symbolic links.
            let needs_dir = request.flags.has(MDS_OPEN_DIRECTORY) && !inode.is_symlink();
            return if needs_dir { Err(Errno::ENOTDIR) } else { Ok(0) };
        }
        self.check_can_use(req, inode)?;
        let mode = request.flags;
        let store = self.request_store(req);
        let handles = self.handles(&req.export);
        let (_, transno) = if mode.is_lease() && created.is_none() {
            let own = handles.get(request.rec.cr_open_handle_old.cookie);
            let own = own.filter(|own| own.fid == fid).map(|own| own.mode);
            namespace::open_with_lease(store, &request.cred, fid, mode, own).await?
        } else {
            namespace::open(store, &request.cred, fid, mode, created).await?
        };
        let file = OpenFile { fid, mode };
        let added = match self.is_replay(req) {
            true => handles.add_again(&self.cookies, request.rec.cr_open_handle_old.cookie, file),
            false => handles.add(&self.cookies, file),
        };
        // If the export has ended by now, its cleanup has run without this handle: close it here.
        let handle = match added {
            Ok(handle) if !req.export.is_gone() => handle,
            other => {
                if let Ok(handle) = other {
                    handles.remove(handle);
                }
                namespace::close(store.without_reply(), fid, mode, None).await?;
                return Err(other.err().unwrap_or(Errno::ENOTCONN));
            }
        };
        out.disposition |= DISP_OPEN_OPEN;
        out.transno = transno;
        Ok(handle)
    }

    /// Grants the lock of an open; none for a special file, and none for a directory without
    /// `MDS_OPEN_LOCK`. `creator_bit` is an additional bit for the file's creator, or 0.
    async fn grant_open_lock(
        &self,
        req: &ServerRequest,
        request: &OpenRequest,
        fid: Fid,
        inode: &Inode,
        creator_bit: u64,
    ) -> Result<GrantedLock, Errno> {
        // As in Lustre, `lfs setstripe` gets no lock: it only sets the layout of an existing file.
        let only_sets_layout = request.opens_by_fid() && request.layout.is_some();
        if request.takes_no_lock || only_sets_layout {
            return Ok(Default::default());
        }
        let layout = layout_bit(req, inode);
        let (mode, bits, try_bits) = if request.flags.is_lease() {
            (LockMode::Pw, locks::OPEN, 0)
        } else if request.flags.has(MDS_OPEN_LOCK) && (inode.is_file() || inode.is_dir()) {
            let mode = match request.flags {
                flags if flags.writes() => LockMode::Cw,
                flags if flags.has(MDS_FMODE_EXEC) => LockMode::Pr,
                _ => LockMode::Cr,
            };
            (mode, locks::LOOKUP | locks::OPEN, layout)
        } else if inode.is_file() {
            let bits = locks::LOOKUP | locks::UPDATE | locks::PERM | layout | creator_bit;
            return self.grant_file_lock(req, request, (fid, inode), bits).await;
        } else {
            return Ok(Default::default());
        };
        self.locks
            .server()
            .grant_to(&req.export, request.cookie, fid.res_id(), mode, bits, try_bits)
            .await
    }
}
