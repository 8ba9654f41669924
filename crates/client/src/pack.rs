//! Encodes requests to a metadata target as buffers, by docs/protocol.md, "Metadata (MDS)".
//!
//! Pure. An unused buffer is present and empty, because a buffer's position gives its meaning.

use crate::attr::{SetAttr, SetTime};
use crate::cred::{Cred, NO_GROUP};
use bytes::Bytes;
use wire::{
    Fid, GetinfoFid2path, HasTime, HasTimes, KEY_FID2PATH, LdlmRequest, LustreHandle, MDS_ATTR_ATIME,
    MDS_ATTR_ATIME_SET, MDS_ATTR_CTIME, MDS_ATTR_CTIME_SET, MDS_ATTR_FORCE, MDS_ATTR_GID, MDS_ATTR_KILL_SGID,
    MDS_ATTR_KILL_SUID, MDS_ATTR_MODE, MDS_ATTR_MTIME, MDS_ATTR_MTIME_SET, MDS_ATTR_SIZE, MDS_ATTR_UID,
    MdtBody, MdtIoepoch, MdtRecCreate, MdtRecLink, MdtRecRename, MdtRecSetattr, MdtRecSetxattr, MdtRecUnlink,
    OBD_MD_FLCTIME, OBD_MD_FLID, OBD_MD_FLXATTR, OBD_MD_FLXATTRRM, Precision, REINT_CREATE, REINT_LINK,
    REINT_OPEN, REINT_RENAME, REINT_SETATTR, REINT_SETXATTR, RenameFlags, Time, Times, WireStruct,
    nul_terminated,
};

/// The `ldlm_request` of an early lock cancel (ELC), with the server's handles of locks and of open
/// files. Empty without handles.
pub(crate) fn elc_buf(handles: &[u64]) -> Bytes {
    if handles.is_empty() {
        return Bytes::new();
    }
    let head = LdlmRequest {
        lock_count: handles.len() as u32,
        ..LdlmRequest::default()
    };
    let mut buf = head.to_bytes().to_vec();
    // The structure ends with space for two handles.
    buf.truncate(LdlmRequest::SIZE - 16);
    for handle in handles {
        buf.extend_from_slice(&handle.to_le_bytes());
    }
    buf.resize(buf.len().max(LdlmRequest::SIZE), 0);
    buf.into()
}

/// The body of a request about `fid1` (and `fid2`), on behalf of `cred`. Lustre's servers read a
/// FID only if `OBD_MD_FLID` is set.
pub(crate) fn body(cred: &Cred, fid1: Fid, fid2: Fid, valid: u64, suppgid: u32) -> MdtBody {
    let has_fid = if fid1 == Fid::ZERO { 0 } else { OBD_MD_FLID };
    MdtBody {
        mbo_fid1: fid1,
        mbo_fid2: fid2,
        mbo_valid: valid | has_fid,
        mbo_uid: cred.uid,
        mbo_gid: cred.gid,
        mbo_fsuid: cred.uid,
        mbo_fsgid: cred.gid,
        mbo_capability: cred.cap(),
        mbo_suppgid: suppgid,
        ..MdtBody::default()
    }
}

/// The supplementary groups of a record for its first and its second FID, or [`NO_GROUP`].
#[derive(Clone, Copy)]
pub(crate) struct Suppgids(pub(crate) u32, pub(crate) u32);

/// The parameters of a create or open.
pub(crate) struct CreateRec {
    pub(crate) parent: Fid,
    /// The FID for a new file; for an open by FID, the file's FID.
    pub(crate) child: Fid,
    /// Type and permissions.
    pub(crate) mode: u32,
    /// Device number of a special file.
    pub(crate) rdev: u64,
    /// `MDS_FMODE_*` and `MDS_OPEN_*` of an open, `MDS_MKDIR_LMV`; 0 for other creations.
    pub(crate) flags: u64,
    /// The version of the striped parent's layout; 0: the parent is not striped.
    pub(crate) layout_version: u32,
    pub(crate) time: Time,
    pub(crate) suppgids: Suppgids,
}

fn create_rec(cred: &Cred, opcode: u32, params: &CreateRec) -> Bytes {
    MdtRecCreate {
        cr_opcode: opcode,
        cr_cap: cred.cap(),
        cr_fsuid: cred.uid,
        cr_fsgid: cred.gid,
        cr_suppgid1: params.suppgids.0,
        cr_suppgid2: params.suppgids.1,
        cr_layout_ver: params.layout_version,
        cr_fid1: params.parent,
        cr_fid2: params.child,
        cr_rdev: params.rdev,
        cr_mode: params.mode,
        cr_flags_l: params.flags as u32,
        cr_flags_h: (params.flags >> 32) as u32,
        cr_umask: cred.umask,
        ..MdtRecCreate::default()
    }
    .with_time(params.time)
    .to_bytes()
}

/// The buffers of an open intent, after the `ldlm_intent`.
pub(crate) fn open_intent(cred: &Cred, params: &CreateRec, name: &[u8], eadata: Bytes) -> Vec<Bytes> {
    let empty = Bytes::new;
    vec![
        create_rec(cred, REINT_OPEN, params),
        empty(),
        empty(),
        nul_terminated(name),
        eadata,
        empty(),
        empty(),
        empty(),
        empty(),
    ]
}

/// The data of a creation besides its record.
pub(crate) enum CreateData<'a> {
    None,
    /// The target of a symbolic link.
    Symlink(&'a [u8]),
    /// The layout of a directory; empty: the default.
    Layout(Bytes),
}

/// The buffers to create a file of any type without opening it.
pub(crate) fn create(
    cred: &Cred,
    params: &CreateRec,
    name: &[u8],
    data: CreateData<'_>,
    elc: &[u64],
) -> Vec<Bytes> {
    let empty = Bytes::new;
    let data = match data {
        CreateData::None => empty(),
        CreateData::Symlink(target) => nul_terminated(target),
        CreateData::Layout(layout) => layout,
    };
    vec![
        create_rec(cred, REINT_CREATE, params),
        empty(),
        nul_terminated(name),
        data,
        elc_buf(elc),
        empty(),
        empty(),
        empty(),
        empty(),
    ]
}

/// The buffers of a hard link request.
pub(crate) fn link(
    cred: &Cred,
    source: Fid,
    parent: Fid,
    name: &[u8],
    time: Time,
    groups: Suppgids,
    elc: &[u64],
) -> Vec<Bytes> {
    let empty = Bytes::new;
    let rec = MdtRecLink {
        lk_opcode: REINT_LINK,
        lk_cap: cred.cap(),
        lk_fsuid: cred.uid,
        lk_fsgid: cred.gid,
        lk_suppgid1: groups.0,
        lk_suppgid2: groups.1,
        lk_fid1: source,
        lk_fid2: parent,
        ..MdtRecLink::default()
    }
    .with_time(time);
    vec![
        rec.to_bytes(),
        empty(),
        empty(),
        nul_terminated(name),
        elc_buf(elc),
        empty(),
    ]
}

/// The key of a `fid2path` query: the key's name padded to a multiple of 8 bytes, the query, and
/// the FID of the mount's root (`root`; may be empty).
pub(crate) fn fid2path_key(query: &GetinfoFid2path, root: &[u8]) -> Bytes {
    let mut key = nul_terminated(KEY_FID2PATH.as_bytes()).to_vec();
    key.resize(key.len().next_multiple_of(8), 0);
    key.extend_from_slice(&query.to_bytes());
    key.extend_from_slice(root);
    key.into()
}

/// The parameters of an unlink or rmdir.
pub(crate) struct UnlinkRec {
    pub(crate) parent: Fid,
    /// Zero if unknown.
    pub(crate) child: Fid,
    /// `S_IFDIR` for a rmdir, else 0.
    pub(crate) mode: u32,
    pub(crate) time: Time,
    pub(crate) suppgids: Suppgids,
}

/// The buffers to remove a name: with its file (`REINT_UNLINK`), or the name alone
/// (`REINT_RMENTRY`).
pub(crate) fn unlink(cred: &Cred, opcode: u32, params: &UnlinkRec, name: &[u8], elc: &[u64]) -> Vec<Bytes> {
    let empty = Bytes::new;
    let rec = MdtRecUnlink {
        ul_opcode: opcode,
        ul_cap: cred.cap(),
        ul_fsuid: cred.uid,
        ul_fsgid: cred.gid,
        ul_suppgid1: params.suppgids.0,
        ul_suppgid2: params.suppgids.1,
        ul_fid1: params.parent,
        ul_fid2: params.child,
        ul_mode: params.mode,
        ..MdtRecUnlink::default()
    }
    .with_time(params.time);
    vec![
        rec.to_bytes(),
        empty(),
        nul_terminated(name),
        elc_buf(elc),
        empty(),
    ]
}

/// The parameters of a rename.
pub(crate) struct RenameRec<'a> {
    /// The old directory and name.
    pub(crate) from: (Fid, &'a [u8]),
    /// The new directory and name.
    pub(crate) to: (Fid, &'a [u8]),
    /// Mode of the renamed file; 0 if unknown.
    pub(crate) mode: u32,
    pub(crate) time: Time,
    pub(crate) suppgids: Suppgids,
    pub(crate) flags: RenameFlags,
    /// The FID for the whiteout; zero: the rename leaves no whiteout.
    pub(crate) whiteout: Fid,
}

/// The buffers of a rename.
pub(crate) fn rename(cred: &Cred, params: &RenameRec<'_>, elc: &[u64]) -> Vec<Bytes> {
    let empty = Bytes::new;
    let rec = MdtRecRename {
        rn_opcode: REINT_RENAME,
        rn_cap: cred.cap(),
        rn_fsuid: cred.uid,
        rn_fsgid: cred.gid,
        rn_suppgid1: params.suppgids.0,
        rn_suppgid2: params.suppgids.1,
        rn_fid1: params.from.0,
        rn_fid2: params.to.0,
        rn_mode: params.mode,
        ..MdtRecRename::default()
    }
    .with_flags(params.flags, params.whiteout)
    .with_time(params.time);
    vec![
        rec.to_bytes(),
        empty(),
        empty(),
        nul_terminated(params.from.1),
        nul_terminated(params.to.1),
        elc_buf(elc),
        empty(),
    ]
}

/// The record of a setattr at the time `now`.
pub(crate) fn setattr_rec(cred: &Cred, fid: Fid, set: &SetAttr, now: Time, suppgid: u32) -> MdtRecSetattr {
    let mut valid = MDS_ATTR_CTIME;
    let mut rec = MdtRecSetattr {
        sa_opcode: REINT_SETATTR,
        sa_cap: cred.cap(),
        sa_fsuid: cred.uid,
        sa_fsgid: cred.gid,
        sa_suppgid: suppgid,
        sa_fid: fid,
        ..MdtRecSetattr::default()
    };
    let mut times = Times {
        ctime: now,
        ..Times::default()
    };
    if let Some(mode) = set.mode {
        valid |= MDS_ATTR_MODE;
        rec.sa_mode = mode;
    }
    if set.kill_priv {
        // `MDS_ATTR_FORCE`, because Lustre's servers otherwise let only the owner change the mode.
        valid |= MDS_ATTR_KILL_SUID | MDS_ATTR_KILL_SGID | MDS_ATTR_FORCE;
    }
    if let Some(uid) = set.uid {
        valid |= MDS_ATTR_UID;
        rec.sa_uid = uid;
    }
    if let Some(gid) = set.gid {
        valid |= MDS_ATTR_GID;
        rec.sa_gid = gid;
    }
    if let Some(size) = set.size {
        valid |= MDS_ATTR_SIZE | MDS_ATTR_MTIME;
        rec.sa_size = size;
        times.mtime = now;
    }
    let mark_if_explicit = |time: SetTime, mark: u64| if time == SetTime::Now { 0 } else { mark };
    if let Some(atime) = set.atime {
        valid |= MDS_ATTR_ATIME | mark_if_explicit(atime, MDS_ATTR_ATIME_SET);
        times.atime = atime.resolve(now);
    }
    if let Some(mtime) = set.mtime {
        valid |= MDS_ATTR_MTIME | mark_if_explicit(mtime, MDS_ATTR_MTIME_SET);
        times.mtime = mtime.resolve(now);
    }
    rec.sa_valid = valid;
    rec.set_times(times);
    rec
}

/// Adapts the times of a record to the peer. A peer with times in seconds may be a Lustre server,
/// which honours only times that are marked as explicit, so all times get the mark. A Nacre server
/// takes an unmarked time as "now" and does not let it precede the last change.
pub(crate) fn adapt_times(peer: Precision, rec: &mut MdtRecSetattr) {
    rec.set_times(rec.times().at(peer));
    if peer == Precision::Seconds {
        for (time, mark) in [
            (MDS_ATTR_ATIME, MDS_ATTR_ATIME_SET),
            (MDS_ATTR_MTIME, MDS_ATTR_MTIME_SET),
            (MDS_ATTR_CTIME, MDS_ATTR_CTIME_SET),
        ] {
            if rec.sa_valid & time != 0 {
                rec.sa_valid |= mark;
            }
        }
    }
}

/// The buffers of a setattr. `handle`: the caller's open handle, with which a truncate needs no
/// further permission; `eadata`: a directory's default layout to set, or empty.
pub(crate) fn setattr(rec: &MdtRecSetattr, handle: Option<u64>, eadata: Bytes, elc: &[u64]) -> Vec<Bytes> {
    let empty = Bytes::new;
    let open_handle = handle.map_or_else(empty, open_handle_buf);
    vec![
        rec.to_bytes(),
        empty(),
        open_handle,
        eadata,
        empty(),
        elc_buf(elc),
    ]
}

/// The buffer that carries an open handle.
fn open_handle_buf(cookie: u64) -> Bytes {
    MdtIoepoch {
        mio_open_handle: LustreHandle { cookie },
        ..MdtIoepoch::default()
    }
    .to_bytes()
}

/// The buffers of a close of an open handle. The record has the file's times and size.
pub(crate) fn close(handle: u64, rec: &MdtRecSetattr) -> Vec<Bytes> {
    vec![open_handle_buf(handle), rec.to_bytes(), Bytes::new()]
}

/// A change of one extended attribute.
pub(crate) struct XattrRec<'a> {
    pub(crate) fid: Fid,
    pub(crate) name: &'a [u8],
    /// The value to set; `None` removes the attribute.
    pub(crate) value: Option<Bytes>,
    /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
    pub(crate) flags: u32,
    pub(crate) time: Time,
    pub(crate) suppgid: u32,
}

/// The buffers to set or remove an extended attribute.
pub(crate) fn setxattr(cred: &Cred, params: XattrRec<'_>, elc: &[u64]) -> Vec<Bytes> {
    let empty = Bytes::new;
    let rec = MdtRecSetxattr {
        sx_opcode: REINT_SETXATTR,
        sx_cap: cred.cap(),
        sx_fsuid: cred.uid,
        sx_fsgid: cred.gid,
        sx_suppgid1: params.suppgid,
        sx_suppgid2: NO_GROUP,
        sx_fid: params.fid,
        sx_valid: if params.value.is_some() {
            OBD_MD_FLXATTR | OBD_MD_FLCTIME
        } else {
            OBD_MD_FLXATTRRM | OBD_MD_FLCTIME
        },
        sx_size: params.value.as_ref().map_or(0, |v| v.len() as u32),
        sx_flags: params.flags,
        ..MdtRecSetxattr::default()
    }
    .with_time(params.time);
    let value = params.value.unwrap_or_default();
    vec![
        rec.to_bytes(),
        empty(),
        nul_terminated(params.name),
        value,
        elc_buf(elc),
        empty(),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{adapt_times, elc_buf, setattr_rec};
    use crate::attr::{SetAttr, SetTime};
    use crate::cred::{Cred, NO_GROUP};
    use wire::{
        Fid, HasTimes, LdlmRequest, MDS_ATTR_ATIME, MDS_ATTR_CTIME, MDS_ATTR_CTIME_SET, MDS_ATTR_MTIME,
        MDS_ATTR_MTIME_SET, MDS_ATTR_SIZE, Precision, Time, WireStruct,
    };

    #[test]
    fn an_early_lock_cancel_lists_the_handles_and_their_count() {
        assert!(elc_buf(&[]).is_empty());
        assert_eq!(elc_buf(&[7]).len(), 104);
        let three = elc_buf(&[7, 8, 9]);
        assert_eq!(three.len(), 88 + 24);
        let head = LdlmRequest::from_bytes(&three).unwrap();
        assert_eq!((head.lock_count, head.lock_handle), (3, [7, 8]));
    }

    #[test]
    fn only_explicit_times_are_marked_as_set() {
        let set = SetAttr {
            atime: Some(SetTime::Now),
            mtime: Some(SetTime::At(Time::new(5, 6))),
            ..SetAttr::default()
        };
        let rec = setattr_rec(&Cred::root(), Fid::ROOT, &set, Time::new(100, 1), NO_GROUP);
        let times = rec.times();
        let now = Time::new(100, 1);
        assert_eq!(
            (times.atime, times.mtime, times.ctime),
            (now, Time::new(5, 6), now)
        );
        assert_eq!(
            rec.sa_valid,
            MDS_ATTR_CTIME | MDS_ATTR_ATIME | MDS_ATTR_MTIME | MDS_ATTR_MTIME_SET
        );
    }

    #[test]
    fn times_to_a_lustre_server_are_marked_as_explicit() {
        let set = SetAttr {
            mtime: Some(SetTime::Now),
            ..SetAttr::default()
        };
        let mut rec = setattr_rec(&Cred::root(), Fid::ROOT, &set, Time::new(100, 1), NO_GROUP);
        adapt_times(Precision::Nanoseconds, &mut rec);
        assert_eq!(rec.sa_valid, MDS_ATTR_CTIME | MDS_ATTR_MTIME);
        adapt_times(Precision::Seconds, &mut rec);
        let marks = MDS_ATTR_CTIME_SET | MDS_ATTR_MTIME_SET;
        assert_eq!(rec.sa_valid, MDS_ATTR_CTIME | MDS_ATTR_MTIME | marks);
    }

    #[test]
    fn a_truncate_sets_the_mtime_to_now() {
        let set = SetAttr {
            size: Some(3),
            ..SetAttr::default()
        };
        let rec = setattr_rec(&Cred::root(), Fid::ROOT, &set, Time::new(100, 1), NO_GROUP);
        assert_eq!(rec.sa_valid, MDS_ATTR_CTIME | MDS_ATTR_SIZE | MDS_ATTR_MTIME);
        assert_eq!((rec.sa_size, rec.sa_mtime), (3, 100));
    }
}
