//! Threads with no open file except the FUSE device.
//!
//! The kernel closes the files of a killed process only when its last thread has ended, and a
//! thread that waits for a kernel lock cannot end. A thread that writes an invalidation of a name
//! waits for the directory's lock. Another program may hold that lock while it waits for a reply of
//! this process. If the blocked thread shared the process's files, the FUSE connection would stay
//! open, the other program would wait forever, and the mount and all sockets would outlive the
//! process.
//!
//! Such threads therefore leave the shared file table (`close_range(2)`) and write to their own
//! clone of the device (`FUSE_DEV_IOC_CLONE`, Linux 4.5). When the process dies, the kernel fails
//! the pending requests and releases the lock.

#![allow(
    unsafe_code,
    reason = "closes files by number, in a file table that only this thread has; clones the FUSE device"
)]

use rustix::ioctl::{Setter, ioctl, opcode};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `FUSE_DEV_IOC_CLONE`: attaches an open /dev/fuse to the connection of another file descriptor.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
/// The last number of a range that has no upper limit.
const FD_MAX: u32 = u32::MAX;

/// Gives the calling thread, and the threads that it starts, its own file table with only a clone
/// of this device. Other threads keep theirs. Such threads must not use files of other threads:
/// sockets, logs, the wake-ups of a runtime.
///
/// Where the kernel cannot do so (before Linux 5.9) or a filter forbids it, the thread keeps
/// sharing all files.
///
/// # Errors
///
/// The device cannot be opened or cloned, or the other files cannot be closed.
pub(crate) fn unshare_fds_keep_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let has_own_table = close_range(FD_MAX, FD_MAX, libc::CLOSE_RANGE_UNSHARE).is_ok();
    let own = clone_device(device)?;
    if has_own_table {
        let number = own.as_raw_fd() as u32;
        close_range(number + 1, FD_MAX, 0)?;
        if let Some(below) = number.checked_sub(1) {
            close_range(0, below, 0)?;
        }
    }
    Ok(own)
}

/// Opens a second device for the same FUSE connection.
fn clone_device(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd() as u32;
    // SAFETY: the kernel reads a `u32` from the pointer and writes nothing
    // (`fuse_dev_ioctl_clone`).
    unsafe { ioctl(own.as_fd(), Setter::<CLONE, u32>::new(number)) }?;
    Ok(own.into())
}

/// Closes a range of file descriptors. Without `CLOSE_RANGE_UNSHARE`, the file table must not be
/// shared.
fn close_range(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: no memory is passed. This thread and the threads that it starts do not use the closed
    // descriptors again, and other threads have another table: the contract of
    // `unshare_fds_keep_device`.
    match unsafe { libc::close_range(first, last, flags as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
