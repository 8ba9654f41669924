//! Attributes, access checks and extended attributes of files, and statvfs.

use crate::ffi::Pod;
use crate::mount::Mount;
use bytes::Bytes;
use client::{Attr, BLKSIZE, SetAttr, SetTime, StatFs};
use std::ffi::c_int;
use wire::{Errno, Fid, Time};

/// Largest number of attempts of an operation on a path, including the first attempt.
const ATTEMPTS_MAX: u32 = 8;
/// A uid or gid that leaves the owner or group unchanged.
const UNCHANGED: u32 = u32::MAX;

/// Converts attributes to C's `struct stat`.
pub(crate) fn stat_of(mount: &Mount, attr: &Attr) -> libc::stat {
    let mut st = libc::stat::zeroed();
    st.st_dev = mount.number as libc::dev_t;
    st.st_ino = attr.fid.flatten();
    st.st_mode = attr.mode;
    st.st_nlink = attr.nlink.into();
    st.st_uid = attr.uid;
    st.st_gid = attr.gid;
    st.st_rdev = attr.rdev.into();
    st.st_size = attr.size as libc::off_t;
    st.st_blksize = BLKSIZE.into();
    st.st_blocks = attr.blocks as libc::blkcnt_t;
    (st.st_atime, st.st_atime_nsec) = (attr.atime.sec, attr.atime.ns.into());
    (st.st_mtime, st.st_mtime_nsec) = (attr.mtime.sec, attr.mtime.ns.into());
    (st.st_ctime, st.st_ctime_nsec) = (attr.ctime.sec, attr.ctime.ns.into());
    st
}

/// Converts file system statistics to C's `struct statvfs`.
pub(crate) fn statvfs_of(space: &StatFs) -> libc::statvfs {
    let mut st = libc::statvfs::zeroed();
    st.f_bsize = space.bsize.into();
    st.f_frsize = space.bsize.into();
    st.f_blocks = space.blocks;
    st.f_bfree = space.bfree;
    st.f_bavail = space.bavail;
    st.f_files = space.files;
    st.f_ffree = space.ffree;
    st.f_favail = space.ffree;
    st.f_namemax = space.namelen.into();
    st
}

/// Calls `act` with the FID and the type of a path's file. If `act` fails with `ENOENT` or
/// `ESTALE`, a rename may have replaced the file, although the path existed all the time. So this
/// function then resolves the path again and retries.
pub(crate) async fn with_path<T>(
    mount: &Mount,
    path: &[u8],
    follow: bool,
    act: impl AsyncFn(Fid, u32) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut attempts_left = ATTEMPTS_MAX;
    loop {
        let (fid, kind) = mount.client.walk(&mount.cred, path, follow).await?;
        attempts_left -= 1;
        match act(fid, kind).await {
            Err(Errno::ENOENT | Errno::ESTALE) if attempts_left > 0 => {}
            result => return result,
        }
    }
}

pub(crate) async fn stat(mount: &Mount, fid: Fid) -> Result<libc::stat, Errno> {
    let found = mount.client.getattr(&mount.cred, fid).await?;
    Ok(stat_of(mount, &found.attr))
}

pub(crate) async fn set(mount: &Mount, fid: Fid, change: &SetAttr) -> Result<(), Errno> {
    mount
        .client
        .setattr(&mount.cred, fid, change, None)
        .await
        .map(drop)
}

/// A change of permission, set-ID and sticky bits.
pub(crate) fn mode_change(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode & 0o7777),
        ..SetAttr::default()
    }
}

/// Changes owner and group; [`UNCHANGED`] leaves the old one. Like Linux's chown, clears set-ID
/// bits.
pub(crate) async fn chown(mount: &Mount, fid: Fid, uid: u32, gid: u32) -> Result<(), Errno> {
    let change = SetAttr {
        uid: (uid != UNCHANGED).then_some(uid),
        gid: (gid != UNCHANGED).then_some(gid),
        kill_priv: true,
        ..SetAttr::default()
    };
    set(mount, fid, &change).await
}

/// A change of access and modification time; `None`: sets both to the current time.
pub(crate) fn times_change(times: Option<[libc::timespec; 2]>) -> Result<SetAttr, Errno> {
    let (atime, mtime) = match times {
        None => (Some(SetTime::Now), Some(SetTime::Now)),
        Some([atime, mtime]) => (time_to_set(&atime)?, time_to_set(&mtime)?),
    };
    Ok(SetAttr {
        atime,
        mtime,
        ..SetAttr::default()
    })
}

/// The time to set by a `timespec` of utimensat(2); `None`: leave the old time.
fn time_to_set(spec: &libc::timespec) -> Result<Option<SetTime>, Errno> {
    match spec.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        ns @ 0..=999_999_999 => Ok(Some(SetTime::At(Time::new(spec.tv_sec, ns as u32)))),
        _ => Err(Errno::EINVAL),
    }
}

/// Checks that the mount's user has all permissions in `mode` (`R_OK`, `W_OK`, `X_OK`).
pub(crate) async fn access(mount: &Mount, path: &[u8], mode: c_int) -> Result<(), Errno> {
    let wanted = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
    if wanted & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    with_path(mount, path, true, async |fid, _| {
        mount.client.access(&mount.cred, fid, wanted).await
    })
    .await
}

pub(crate) async fn getxattr(mount: &Mount, path: &[u8], name: &[u8]) -> Result<Bytes, Errno> {
    with_path(mount, path, true, async |fid, _| {
        mount.client.getxattr(&mount.cred, fid, name).await
    })
    .await
}

pub(crate) async fn listxattr(mount: &Mount, path: &[u8]) -> Result<Bytes, Errno> {
    with_path(mount, path, true, async |fid, _| {
        mount.client.listxattr(&mount.cred, fid).await
    })
    .await
}

pub(crate) async fn setxattr(
    mount: &Mount,
    path: &[u8],
    (name, value): (&[u8], &[u8]),
    flags: c_int,
) -> Result<(), Errno> {
    let flags = u32::try_from(flags).map_err(|_| Errno::EINVAL)?;
    with_path(mount, path, true, async |fid, _| {
        mount.client.setxattr(&mount.cred, fid, name, value, flags).await
    })
    .await
}

pub(crate) async fn removexattr(mount: &Mount, path: &[u8], name: &[u8]) -> Result<(), Errno> {
    with_path(mount, path, true, async |fid, _| {
        mount.client.removexattr(&mount.cred, fid, name).await
    })
    .await
}
