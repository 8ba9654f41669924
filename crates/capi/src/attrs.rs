//! Attributes and file system statistics in C's structures.

use crate::ffi::Pod;
use client::{Attr, BLKSIZE, SetAttr, SetTime, StatFs};
use wire::{Errno, Time};

/// Converts attributes to C's `struct stat`.
pub(crate) fn stat_of(mount_number: usize, attr: &Attr) -> libc::stat {
    let mut st = libc::stat::zeroed();
    st.st_dev = mount_number as libc::dev_t;
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

/// Converts a `timespec` of utimensat(2); `None` for `UTIME_OMIT`, which keeps the old time.
/// `EINVAL`: the nanoseconds are invalid.
fn time_to_set(spec: &libc::timespec) -> Result<Option<SetTime>, Errno> {
    match spec.tv_nsec {
        libc::UTIME_OMIT => Ok(None),
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        ns @ 0..=999_999_999 => Ok(Some(SetTime::At(Time::new(spec.tv_sec, ns as u32)))),
        _ => Err(Errno::EINVAL),
    }
}
