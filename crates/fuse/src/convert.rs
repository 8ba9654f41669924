//! Converts attributes, file types, times, errors and open flags between the client library and
//! `fuser`.

use client::{Attr, BLKSIZE, OpenFlags, SetTime};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::UNIX_EPOCH;
use wire::Time;

/// The file type in a mode; a regular file if the mode has none.
pub(crate) fn file_type(mode: u32) -> FileType {
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

/// Attributes for the kernel, with this inode number.
pub(crate) fn file_attr(ino: u64, a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: a.size,
        blocks: a.blocks,
        atime: a.atime.into(),
        mtime: a.mtime.into(),
        ctime: a.ctime.into(),
        crtime: a.btime.into(),
        kind: file_type(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: BLKSIZE,
        flags: 0,
    }
}

/// An errno for the kernel; numbers that programs must not see become `EIO`.
pub(crate) fn errno(e: wire::Errno) -> Errno {
    Errno::from_i32(e.for_programs().0)
}

/// The client's form of a time to set. In a time before 1970 the kernel's seconds are negative, and
/// its nanoseconds count forward from them. When fuser parses a request, it counts them backward,
/// so this function counts them forward again.
pub(crate) fn set_time(t: TimeOrNow) -> SetTime {
    match t {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(t) => SetTime::At(match t.duration_since(UNIX_EPOCH) {
            Ok(_) => t.into(),
            Err(e) => {
                let before_1970 = e.duration();
                let secs = 0i64.saturating_sub_unsigned(before_1970.as_secs());
                Time::new(secs, before_1970.subsec_nanos())
            }
        }),
    }
}

/// The kernel's open flag for execution.
const FMODE_EXEC: i32 = 0x20;

/// The client's form of open(2) flags.
pub(crate) fn open_flags(flags: i32) -> OpenFlags {
    OpenFlags {
        exec: flags & FMODE_EXEC != 0,
        ..OpenFlags::from_posix(flags)
    }
}

/// Turns ENOENT into ESTALE for an inode that the kernel has looked up before. The kernel then
/// looks the program's path up again. For a file handle, ESTALE is the error that programs expect.
pub(crate) fn enoent_to_estale(e: wire::Errno) -> wire::Errno {
    match e {
        wire::Errno::ENOENT => wire::Errno::ESTALE,
        e => e,
    }
}

#[cfg(test)]
mod tests {
    use super::{file_type, set_time};
    use client::SetTime;
    use fuser::{FileType, TimeOrNow};
    use std::time::{Duration, UNIX_EPOCH};
    use wire::Time;

    #[test]
    fn set_time_is_exact_before_and_after_1970() {
        for secs in [-1, -86400, 0, 1, 2_000_000_000] {
            let t = Time::secs(secs);
            assert_eq!(set_time(TimeOrNow::SpecificTime(t.into())), SetTime::At(t));
        }
        // fuser's form of half a second before 1970; the kernel sends -1 s and 500,000,000 ns.
        let parsed = UNIX_EPOCH - Duration::new(1, 500_000_000);
        let half_before_1970 = Time::new(-1, 500_000_000);
        assert_eq!(
            set_time(TimeOrNow::SpecificTime(parsed)),
            SetTime::At(half_before_1970)
        );
    }

    #[test]
    fn mode_determines_the_file_type() {
        assert_eq!(file_type(0o040_755), FileType::Directory);
        assert_eq!(file_type(0o120_777), FileType::Symlink);
        assert_eq!(file_type(0o644), FileType::RegularFile);
    }
}
