//! Opening and closing: permissions, conflicts between writers and executors, leases, and the last
//! close of an inode without links.

use wire::{
    Errno, Fid, MDS_FMODE_EXEC, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_OPEN_APPEND, MDS_OPEN_DIRECTORY,
    MDS_OPEN_LEASE, MDS_OPEN_OWNEROVERRIDE, MDS_OPEN_TRUNC, Time, Transno,
};

use super::{APPEND, Attempts, ChangeResult, CloseAttrs, IMMUTABLE, Plan, apply_close_attrs};
use crate::{
    cred::{Cred, MAY_EXEC, MAY_READ, MAY_WRITE},
    store::{ApplyError, Change, Inode, OpenCounts, RequestStore, Store},
};

/// The mode of an open: `MDS_FMODE_*` and `MDS_OPEN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode(pub u64);

impl OpenMode {
    /// Whether any of these flags is set.
    pub fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    /// Whether data can be written through the handle.
    pub fn writes(self) -> bool {
        self.has(MDS_FMODE_WRITE)
    }

    /// Whether the open requests a lease.
    pub(crate) fn is_lease(self) -> bool {
        self.has(MDS_OPEN_LEASE)
    }

    /// Whether the open changes the file or requests write access.
    pub(crate) fn changes(self) -> bool {
        self.has(MDS_FMODE_WRITE | MDS_OPEN_TRUNC | MDS_OPEN_APPEND)
    }

    /// The permissions (`MAY_*`) that the open needs.
    fn permissions(self) -> u32 {
        let mut want = 0;
        if self.has(MDS_FMODE_READ) {
            want |= MAY_READ;
        }
        if self.changes() {
            want |= MAY_WRITE;
        }
        if self.has(MDS_FMODE_EXEC) {
            want = MAY_EXEC;
        }
        want
    }

    /// Checks type, flags and permissions of the inode; `is_new`: this open created it.
    fn check(self, cred: &Cred, inode: &Inode, is_new: bool) -> Result<(), Errno> {
        if cred.is_replay {
            return Ok(());
        }
        if inode.is_dir() {
            if self.writes() || self.has(MDS_OPEN_TRUNC) {
                return Err(Errno::EISDIR);
            }
        } else if self.has(MDS_OPEN_DIRECTORY) {
            return Err(Errno::ENOTDIR);
        }
        if inode.is_symlink() {
            return Err(Errno::ELOOP);
        }
        if inode.flags & IMMUTABLE != 0 && self.writes() && !is_new {
            return Err(Errno::EPERM);
        }
        if inode.flags & APPEND != 0
            && (self.has(MDS_OPEN_TRUNC) || (self.writes() && !self.has(MDS_OPEN_APPEND)))
        {
            return Err(Errno::EPERM);
        }
        // The creator of a file gets the requested access, whatever the mode. So does an owner with
        // MDS_OPEN_OWNEROVERRIDE, which an NFS server on a client sends.
        let is_overriding_owner = self.has(MDS_OPEN_OWNEROVERRIDE) && cred.fsuid == inode.uid;
        if is_new || is_overriding_owner {
            return Ok(());
        }
        cred.check(inode, self.permissions())
    }
}

impl OpenCounts {
    /// The counts without one handle of this mode.
    fn without_handle(self, mode: OpenMode) -> OpenCounts {
        OpenCounts {
            total: self.total.saturating_sub(1),
            writers: self.writers.saturating_sub(mode.writes().into()),
            executors: self.executors.saturating_sub(mode.has(MDS_FMODE_EXEC).into()),
            leases: self.leases.saturating_sub(mode.is_lease().into()),
        }
    }

    /// The counts with one more handle of this mode.
    fn with_handle(self, mode: OpenMode) -> OpenCounts {
        OpenCounts {
            total: self.total + 1,
            writers: self.writers + u32::from(mode.writes()),
            executors: self.executors + u32::from(mode.has(MDS_FMODE_EXEC)),
            leases: self.leases + u32::from(mode.is_lease()),
        }
    }
}

/// Opens an inode: checks permissions, and adds a handle to the counts. `created` is the
/// transaction in which the same request created the file. If it is `None`, the open gets its own
/// transaction without changes, so that the client can replay the open by its transno. A client can
/// open an inode without links by its FID while another handle exists.
///
/// # Errors
///
/// `ETXTBSY` if a writer and an executor conflict; `EACCES`, `EPERM`, `EISDIR`, `ENOTDIR`, `ELOOP`
/// by mode and type; `ENOENT` if the inode is gone, or has neither links nor handles.
pub async fn open<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    fid: Fid,
    mode: OpenMode,
    created: Option<Transno>,
) -> Result<(Inode, Transno), Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let inode = store.inode(fid).await?;
        let plan = plan_open(inode, store.open_counts(fid), cred, fid, mode, created.is_some())?;
        if let Some(opened) = attempts.apply(plan, &stamp)? {
            return Ok((opened.inode, created.unwrap_or(opened.transno)));
        }
    }
}

/// Opens with a lease: the target revokes the lease before another client opens the file for write
/// or changes its size. `own` is the mode of a handle that the same client already has, if any.
///
/// # Errors
///
/// `EBUSY` if any client holds a lease on the file or another handle is open for write, or an error
/// of [`open`].
pub async fn open_with_lease<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    fid: Fid,
    mode: OpenMode,
    own: Option<OpenMode>,
) -> Result<(Inode, Transno), Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let inode = store.inode(fid).await?;
        let opens = store.open_counts(fid);
        let others = own.map_or(opens, |own| opens.without_handle(own));
        let conflicts = opens.leases > 0 || others.writers > 0;
        if conflicts && !cred.is_replay {
            return Err(Errno::EBUSY);
        }
        let plan = plan_open(inode, opens, cred, fid, mode, false)?;
        if let Some(opened) = attempts.apply(plan, &stamp)? {
            return Ok((opened.inode, opened.transno));
        }
    }
}

/// Plans an open. `is_new`: the same request created the file, in a transaction of its own.
fn plan_open(
    inode: Inode,
    opens: OpenCounts,
    cred: &Cred,
    fid: Fid,
    mode: OpenMode,
    is_new: bool,
) -> Result<Plan, Errno> {
    let is_replay = cred.is_replay;
    if inode.nlink == 0 && opens.total == 0 && !is_new && !is_replay {
        return Err(Errno::ENOENT);
    }
    mode.check(cred, &inode, is_new)?;
    if inode.is_file() && !is_replay {
        let changes = mode.writes() || mode.has(MDS_OPEN_TRUNC);
        let conflicts = (changes && opens.executors > 0) || (mode.has(MDS_FMODE_EXEC) && opens.writers > 0);
        if conflicts {
            return Err(Errno::ETXTBSY);
        }
    }
    Ok(Plan {
        change: (!is_new).then(Change::new),
        opens: Some(opens.with_handle(mode)),
        fid,
        inode,
        pre_versions: [0; 4],
    })
}

/// Whether a client has the file open for execution.
pub fn has_executors(store: &Store, fid: Fid) -> bool {
    store.open_counts(fid).executors > 0
}

/// Whether a client has a lease on the file, or has not yet closed the handle of a revoked lease.
pub fn has_lease(store: &Store, fid: Fid) -> bool {
    store.open_counts(fid).leases > 0
}

/// Updates a directory's access time after a client read it at `time`, unless a later access or
/// change is recorded.
///
/// # Errors
///
/// The error of reading or changing the store.
pub async fn record_access<'a>(
    store: impl Into<RequestStore<'a>>,
    fid: Fid,
    time: Time,
) -> Result<(), Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let mut inode = store.inode(fid).await?;
        if time <= inode.atime || time < inode.ctime {
            return Ok(());
        }
        inode.atime = time;
        let mut change = Change::new();
        change.change_inode(fid, &inode);
        let plan = Plan::new(change, fid, inode, [0; 4]);
        if attempts.apply(plan, &stamp)?.is_some() {
            return Ok(());
        }
    }
}

/// Removes one handle, and applies the attributes sent with the close. The last close of an inode
/// without links destroys it.
///
/// # Errors
///
/// `ENOENT` if the inode is gone, or the error of changing the store.
pub async fn close<'a>(
    store: impl Into<RequestStore<'a>>,
    fid: Fid,
    mode: OpenMode,
    attrs: Option<CloseAttrs<'_>>,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let closed = close_handle(store, fid, mode, attrs).await;
    if closed.is_err() {
        drop_handle(store, fid, mode)?;
    }
    closed
}

async fn close_handle(
    store: RequestStore<'_>,
    fid: Fid,
    mode: OpenMode,
    attrs: Option<CloseAttrs<'_>>,
) -> Result<ChangeResult, Errno> {
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let mut inode = store.inode(fid).await?;
        let opens = store.open_counts(fid).without_handle(mode);
        let pre_versions = [inode.version, 0, 0, 0];
        let mut change = Change::new();
        let is_changed = attrs.is_some_and(|a| apply_close_attrs(&mut inode, a, mode.writes()));
        if inode.nlink == 0 && opens.total == 0 {
            destroy_closed(&store, &mut change, fid, &inode).await?;
        } else if is_changed {
            change.change_inode(fid, &inode);
        }
        let plan = Plan {
            change: Some(change),
            opens: Some(opens),
            fid,
            inode,
            pre_versions,
        };
        if let Some(closed) = attempts.apply(plan, &stamp)? {
            return Ok(closed);
        }
    }
}

/// Removes one handle from the counts, without a change of the store. An inode without links stays,
/// as an orphan.
///
/// # Errors
///
/// The error of reading the store.
pub(crate) fn drop_handle(store: RequestStore<'_>, fid: Fid, mode: OpenMode) -> Result<(), Errno> {
    loop {
        let stamp = store.stamp(&[fid]);
        let opens = store.open_counts(fid).without_handle(mode);
        match store.apply_if_current(&stamp, None, Some((fid, opens))) {
            Ok(_) => return Ok(()),
            Err(ApplyError::Failed(errno)) => return Err(errno),
            Err(ApplyError::Stale | ApplyError::Unread(_)) => {}
        }
    }
}

/// Destroys an inode without links after its last close.
async fn destroy_closed(store: &Store, change: &mut Change, fid: Fid, inode: &Inode) -> Result<(), Errno> {
    change.remove_orphan(fid);
    change.destroy_inode(fid, inode, store.own_records(fid, inode).await?)
}

/// Removes one handle. Unlike [`close`], needs a transaction only if it destroys the inode, that
/// is, if it removes the last handle of an inode without links.
///
/// # Errors
///
/// The error of reading or changing the store.
pub async fn release_handle<'a>(
    store: impl Into<RequestStore<'a>>,
    fid: Fid,
    mode: OpenMode,
) -> Result<(), Errno> {
    let store = store.into();
    let released = release(store, fid, mode).await;
    if released.is_err() {
        drop_handle(store, fid, mode)?;
    }
    released
}

async fn release(store: RequestStore<'_>, fid: Fid, mode: OpenMode) -> Result<(), Errno> {
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let opens = store.open_counts(fid).without_handle(mode);
        let mut inode = Inode::default();
        let mut change = None;
        if opens.total == 0 {
            inode = store.inode(fid).await?;
            if inode.nlink == 0 {
                destroy_closed(&store, change.insert(Change::new()), fid, &inode).await?;
            }
        }
        let plan = Plan {
            change,
            opens: Some(opens),
            fid,
            inode,
            pre_versions: [0; 4],
        };
        if attempts.apply(plan, &stamp)?.is_some() {
            return Ok(());
        }
    }
}
