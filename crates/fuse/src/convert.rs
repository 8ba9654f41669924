//! Between the client's words and the kernel's: attributes, types, times, errors, flags.

use client::{Attr, BLKSIZE, OpenFlags, SetTime};
use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wire::Fid;

/// A file's type, by its mode.
pub(crate) fn kind(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn time(secs: i64) -> SystemTime {
    let d = Duration::from_secs(secs.unsigned_abs());
    let t = if secs < 0 {
        UNIX_EPOCH.checked_sub(d)
    } else {
        UNIX_EPOCH.checked_add(d)
    };
    t.unwrap_or(UNIX_EPOCH)
}

/// Attributes, under an inode number.
pub(crate) fn file_attr(ino: u64, a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: a.size,
        blocks: a.blocks,
        atime: time(a.atime),
        mtime: time(a.mtime),
        ctime: time(a.ctime),
        crtime: time(a.btime),
        kind: kind(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// What tells two files apart that have one inode number after each other.
pub(crate) fn generation(fid: Fid) -> Generation {
    Generation(u64::from(fid.f_ver))
}

/// An error, as the kernel takes it: numbers that no program may see become `EIO`.
pub(crate) fn errno(e: wire::Errno) -> Errno {
    if e.0 > 0 && e.0 < 512 {
        Errno::from_i32(e.0)
    } else {
        Errno::EIO
    }
}

/// A time to set, in seconds.
pub(crate) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(match t.duration_since(UNIX_EPOCH) {
            Ok(d) => i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            // Seconds before 1970, rounded down as the kernel counts them.
            Err(e) => {
                let d = e.duration();
                let secs = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
                -secs - i64::from(d.subsec_nanos() > 0)
            }
        }),
    }
}

/// How the kernel says that a file is opened to be executed.
const FMODE_EXEC: i32 = 0x20;

/// Flags of an open.
pub(crate) fn open_flags(flags: i32) -> OpenFlags {
    let access = flags & libc::O_ACCMODE;
    OpenFlags {
        read: access == libc::O_RDONLY || access == libc::O_RDWR,
        write: access == libc::O_WRONLY || access == libc::O_RDWR,
        append: flags & libc::O_APPEND != 0,
        direct: flags & libc::O_DIRECT != 0,
        truncate: flags & libc::O_TRUNC != 0,
        sync: flags & libc::O_DSYNC != 0,
        exec: flags & FMODE_EXEC != 0,
        excl: flags & libc::O_EXCL != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{errno, kind, open_flags, set_time, time};
    use client::SetTime;
    use fuser::{FileType, TimeOrNow};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn times_before_1970_survive() {
        for secs in [-1, -86400, 0, 1, 2_000_000_000] {
            assert_eq!(set_time(TimeOrNow::SpecificTime(time(secs))), SetTime::At(secs));
        }
        let half = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(set_time(TimeOrNow::SpecificTime(half)), SetTime::At(-1));
    }

    #[test]
    fn access_modes_are_told_apart() {
        assert!(open_flags(libc::O_RDONLY).read && !open_flags(libc::O_RDONLY).write);
        assert!(!open_flags(libc::O_WRONLY).read && open_flags(libc::O_WRONLY).write);
        let both = open_flags(libc::O_RDWR | libc::O_APPEND | libc::O_SYNC);
        assert!(both.read && both.write && both.append && both.sync && !both.direct);
    }

    #[test]
    fn numbers_that_are_not_for_programs_become_eio() {
        assert_eq!(errno(wire::Errno::ENOENT).code(), libc::ENOENT);
        assert_eq!(errno(wire::Errno::ERESTARTSYS).code(), libc::EIO);
        assert_eq!(errno(wire::Errno(0)).code(), libc::EIO);
    }

    #[test]
    fn types_follow_the_mode() {
        assert_eq!(kind(0o040_755), FileType::Directory);
        assert_eq!(kind(0o120_777), FileType::Symlink);
        assert_eq!(kind(0o644), FileType::RegularFile);
    }
}
