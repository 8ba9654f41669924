//! Changing attributes: chmod, chown, utimes, truncate, inode flags, and the attributes sent with a
//! close.

use wire::{
    Errno, HasTimes, MDS_ATTR_ATIME, MDS_ATTR_ATTR_FLAG, MDS_ATTR_CTIME, MDS_ATTR_GID, MDS_ATTR_KILL_SGID,
    MDS_ATTR_KILL_SUID, MDS_ATTR_LBLOCKS, MDS_ATTR_LSIZE, MDS_ATTR_MODE, MDS_ATTR_MTIME, MDS_ATTR_MTIME_SET,
    MDS_ATTR_PROJID, MDS_ATTR_SIZE, MDS_ATTR_UID, MDS_DATA_MODIFIED, MdtRecSetattr,
};

use super::{APPEND, Attempts, ChangeResult, IMMUTABLE, Plan};
use crate::{
    acl,
    cred::{Cred, MAY_WRITE},
    store::{Change, Inode, OpenCounts, RequestStore, S_IFMT, S_ISGID, S_ISUID, Work},
};

/// Inode flags that only a privileged user may change.
const PRIVILEGED_FLAGS: u32 = IMMUTABLE | APPEND;
/// Inode flags that are stored.
const STORED_FLAGS: u32 = IMMUTABLE
    | APPEND
    | wire::LUSTRE_NOATIME_FL
    | wire::LUSTRE_NODUMP_FL
    | wire::LUSTRE_SYNC_FL
    | wire::LUSTRE_DIRSYNC_FL
    | wire::LUSTRE_PROJINHERIT_FL;

/// Attributes for which [`check_setattr`] has special rules. Only the owner, or a user with write
/// permission, may change another attribute.
const SPECIALLY_CHECKED_ATTRS: u64 =
    MDS_ATTR_MODE | MDS_ATTR_ATTR_FLAG | MDS_ATTR_PROJID | MDS_ATTR_UID | MDS_ATTR_GID;

/// Maximum file size in bytes: programs use signed sizes.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Bits of `sa_valid` that accompany every change.
const IMPLICIT: u64 = MDS_ATTR_CTIME | wire::MDS_ATTR_CTIME_SET | wire::MDS_ATTR_FORCE;

/// Bits of `sa_valid` that clear the set-user-ID and set-group-ID bits.
const KILL_SET_ID: u64 = MDS_ATTR_KILL_SUID | MDS_ATTR_KILL_SGID;

/// Arguments of setattr.
#[derive(Clone, Copy, Debug)]
pub struct SetattrArgs<'a> {
    /// The request's record: the attributes to change (`sa_valid`, `MDS_ATTR_*`) and their values.
    pub rec: &'a MdtRecSetattr,
    /// Whether the client has the file open for write or truncate. Truncating through such a handle
    /// needs no permission: the open checked it.
    pub open_for_write: bool,
}

/// Changes attributes.
///
/// # Errors
///
/// `EPERM`, `EACCES` without permission; `ETXTBSY` for truncating a running executable; `EFBIG`,
/// `EISDIR`, `EINVAL` for an impossible size; `ENOENT` if the inode is gone.
pub async fn setattr<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    args: SetattrArgs<'_>,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let fid = args.rec.sa_fid;
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[fid]).await?;
        let inode = store.inode(fid).await?;
        let plan = plan_setattr(inode, store.open_counts(fid), cred, args)?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

fn plan_setattr(old: Inode, opens: OpenCounts, cred: &Cred, args: SetattrArgs<'_>) -> Result<Plan, Errno> {
    let rec = args.rec;
    let fid = rec.sa_fid;
    check_setattr(cred, &old, args)?;
    if rec.sa_valid & MDS_ATTR_SIZE != 0 && opens.executors > 0 {
        return Err(Errno::ETXTBSY);
    }
    let mut inode = old.clone();
    // Any user may send a setattr that changes no attribute, such as a `chown` with neither owner
    // nor group. It updates the change time only if the user owns the inode or may write to it.
    let unauthorized =
        rec.sa_valid & !IMPLICIT == 0 && !cred.owns(&old) && cred.check(&old, MAY_WRITE).is_err();
    if !unauthorized {
        apply(cred, &mut inode, rec);
    }

    let mut change = Change::new();
    if inode.is_file() && inode.ownership() != old.ownership() {
        change.queue_work(&inode.lov, Work::Chown(inode.ownership()))?;
    }
    change.change_inode(fid, &inode);
    Ok(Plan::new(change, fid, inode, [old.version, 0, 0, 0]))
}

/// Checks the permission to change the attributes, and the new size.
fn check_setattr(cred: &Cred, inode: &Inode, args: SetattrArgs<'_>) -> Result<(), Errno> {
    let rec = args.rec;
    let valid = rec.sa_valid;
    let changes = |bits: u64| valid & bits != 0;
    let changes_privileged_flags =
        changes(MDS_ATTR_ATTR_FLAG) && (rec.sa_attr_flags ^ inode.flags) & PRIVILEGED_FLAGS != 0;
    if changes_privileged_flags && !cred.may_set_immutable() {
        return Err(Errno::EPERM);
    }
    let only_flags = valid & !(MDS_ATTR_ATTR_FLAG | IMPLICIT) == 0;
    // As on Linux, a user may set the times of an append-only inode to the current time only.
    let only_times = valid & !(MDS_ATTR_ATIME | MDS_ATTR_MTIME | IMPLICIT) == 0;
    let touches_append_only = only_times && inode.flags & IMMUTABLE == 0;
    if inode.flags & PRIVILEGED_FLAGS != 0 && !only_flags && !touches_append_only {
        return Err(Errno::EPERM);
    }
    if changes(MDS_ATTR_ATTR_FLAG | MDS_ATTR_PROJID) && !cred.owns(inode) {
        return Err(Errno::EPERM);
    }
    if changes(MDS_ATTR_MODE) && !cred.owns(inode) && !only_drops_set_id(inode, rec) {
        return Err(Errno::EPERM);
    }
    // A client clears the set-ID bits before a write by a user without permission to keep them, so
    // clearing needs write permission.
    let drops_set_id = changes(MDS_ATTR_MODE | KILL_SET_ID) && !cred.owns(inode);
    if drops_set_id && !args.open_for_write {
        cred.check(inode, MAY_WRITE)?;
    }
    if changes(MDS_ATTR_UID | MDS_ATTR_GID) && !cred.may_chown() {
        let foreign_uid = changes(MDS_ATTR_UID) && rec.sa_uid != inode.uid;
        let foreign_gid = changes(MDS_ATTR_GID) && rec.sa_gid != inode.gid && !cred.in_group(rec.sa_gid);
        if cred.fsuid != inode.uid || foreign_uid || foreign_gid {
            return Err(Errno::EPERM);
        }
    }
    if changes(MDS_ATTR_SIZE) {
        if inode.is_dir() {
            return Err(Errno::EISDIR);
        }
        if !inode.is_file() {
            return Err(Errno::EINVAL);
        }
        if rec.sa_size > SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if !args.open_for_write {
            cred.check(inode, MAY_WRITE)?;
        }
    } else if changes(!(SPECIALLY_CHECKED_ATTRS | KILL_SET_ID | IMPLICIT))
        && !changes(SPECIALLY_CHECKED_ATTRS)
        && !cred.owns(inode)
    {
        // The client marks every time as explicitly set, so the MDT cannot tell the current time
        // from another value. The MDT requires write permission; the client checks that only the
        // owner sets another value.
        cred.check(inode, MAY_WRITE)?;
    }
    Ok(())
}

/// Whether the record only clears set-ID bits of the mode. Linux sends such a change with
/// `MDS_ATTR_FORCE` before a write, possibly for a user that is not the owner. A `chmod` does not
/// have this flag.
fn only_drops_set_id(inode: &Inode, rec: &MdtRecSetattr) -> bool {
    let (old, new) = (inode.mode & 0o7777, rec.sa_mode & 0o7777);
    let set_id = S_ISUID | S_ISGID;
    let drops = old & !set_id == new & !set_id && new & !old == 0;
    inode.is_file() && rec.sa_valid & wire::MDS_ATTR_FORCE != 0 && drops
}

/// Applies the record to the inode, after [`check_setattr`].
fn apply(cred: &Cred, inode: &mut Inode, rec: &MdtRecSetattr) {
    let valid = rec.sa_valid;
    let changes = |bits: u64| valid & bits != 0;
    // Like Linux's `setattr_should_drop_sgid`: without group execute permission, a change by a
    // member of the group keeps the bit.
    let drops_sgid = inode.mode & 0o010 != 0 || !cred.may_keep_sgid(inode.gid);
    if changes(MDS_ATTR_MODE) {
        inode.mode = inode.mode & S_IFMT | rec.sa_mode & 0o7777;
    }
    let mut owner_changed = false;
    if changes(MDS_ATTR_UID) {
        owner_changed |= inode.uid != rec.sa_uid;
        inode.uid = rec.sa_uid;
    }
    if changes(MDS_ATTR_GID) {
        owner_changed |= inode.gid != rec.sa_gid;
        inode.gid = rec.sa_gid;
    }
    if changes(MDS_ATTR_MODE) && !cred.may_keep_sgid(inode.gid) {
        inode.mode &= !S_ISGID;
    }
    let truncation_kills = changes(MDS_ATTR_SIZE) && !cred.may_write_set_id();
    let chown_kills = owner_changed && !changes(MDS_ATTR_MODE);
    let kills = |bit: u64| !inode.is_dir() && (truncation_kills || chown_kills || changes(bit));
    let (kills_suid, kills_sgid) = (kills(MDS_ATTR_KILL_SUID), kills(MDS_ATTR_KILL_SGID));
    if kills_suid {
        inode.mode &= !S_ISUID;
    }
    if kills_sgid && drops_sgid {
        inode.mode &= !S_ISGID;
    }
    if changes(MDS_ATTR_MODE | KILL_SET_ID) {
        acl::update_acl_from_mode(inode);
    }
    if changes(MDS_ATTR_PROJID) {
        inode.projid = rec.sa_projid;
    }
    if changes(MDS_ATTR_ATTR_FLAG) {
        inode.flags = inode.flags & !STORED_FLAGS | rec.sa_attr_flags & STORED_FLAGS;
    }
    if changes(MDS_ATTR_SIZE) {
        if inode.lov.is_empty() {
            inode.size = rec.sa_size;
        }
        let blocks = inode
            .som
            .map_or(0, |(size, blocks)| if rec.sa_size < size { 0 } else { blocks });
        inode.som = Some((rec.sa_size, blocks));
    }
    let times = rec.times();
    if changes(MDS_ATTR_ATIME) {
        inode.atime = times.atime;
    }
    if changes(MDS_ATTR_MTIME_SET) {
        inode.mtime = times.mtime;
    } else if changes(MDS_ATTR_MTIME) {
        // The client set the time to the current time of its clock. The MDT does not store a time
        // earlier than the last change.
        inode.mtime = times.mtime.max(inode.ctime);
    }
    if changes(MDS_ATTR_CTIME) {
        inode.record_change(times.ctime);
    }
}

/// The attributes that a client sends with a close.
#[derive(Clone, Copy, Debug)]
pub struct CloseAttrs<'a> {
    /// The request's record.
    pub rec: &'a MdtRecSetattr,
    /// Minimum age of the recorded access time, seconds, before a close updates it. The first
    /// access after a change always updates it.
    pub atime_diff: i64,
}

/// Applies the attributes of a close: newer times, and the lazy size. `is_writer`: the file was
/// open for write. Returns whether anything changed.
pub fn apply_close_attrs(inode: &mut Inode, close: CloseAttrs<'_>, is_writer: bool) -> bool {
    let rec = close.rec;
    let old = (inode.times(), inode.som);
    let times = rec.times();
    let has = |bits: u64| rec.sa_valid & bits == bits;
    let modified = rec.sa_bias & MDS_DATA_MODIFIED != 0;
    // Ignore an access before the last change: a user may have set the access time since. With
    // whole seconds, an access in the same second as the change counts as earlier.
    let is_after_change = times.atime.refined(inode.ctime) > inode.ctime;
    let is_first_access = inode.atime <= inode.mtime || inode.atime <= inode.ctime;
    let is_due = is_first_access || times.atime >= inode.atime.later(close.atime_diff);
    if has(MDS_ATTR_ATIME) && is_after_change && is_due {
        inode.atime = times.atime.max(inode.atime);
    }
    let is_newer = modified || times.ctime > inode.ctime;
    if is_writer && has(MDS_ATTR_MTIME | MDS_ATTR_CTIME) && is_newer {
        inode.set_times(inode.times().after_change(times));
    }
    if inode.is_file() && has(MDS_ATTR_LSIZE | MDS_ATTR_LBLOCKS) && rec.sa_size <= SIZE_MAX {
        let grows = inode
            .som
            .is_none_or(|(size, blocks)| (rec.sa_size, rec.sa_blocks) > (size, blocks));
        if modified || grows {
            inode.som = Some((rec.sa_size, rec.sa_blocks));
        }
    }
    old != (inode.times(), inode.som)
}
