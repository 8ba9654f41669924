//! Threads that have nothing open but the FUSE device.
//!
//! A process that is killed closes what it had open only when its last thread has ended, and a thread that waits in the
//! kernel for a lock cannot end. One that tells the kernel to forget a name waits for the directory's lock, which somebody
//! may hold whose request this process had not answered yet: with everything open in both, that request would never be
//! given up, and mount, sockets and files would stay with a dead process. So threads that may wait like that leave the
//! table of open files that the others share (`close_range(2)`), and write to a device of their own
//! (`FUSE_DEV_IOC_CLONE`, Linux 4.5): what the others had read is answered with an error when they die, and the lock is let go.

#![allow(
    unsafe_code,
    reason = "open files are closed by number, in a table that only this thread sees; the device is asked for a clone"
)]

use rustix::ioctl::{Setter, ioctl, opcode};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `FUSE_DEV_IOC_CLONE`: a device joins the connection of another one, whose number it is given.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
/// The highest number that a range can end with.
const LAST: u32 = u32::MAX;

/// From now on the calling thread, and those that it starts, have a clone of this device open and nothing else; the other
/// threads see no change. Such threads must not touch what others opened: sockets, logs, a runtime's wake-ups.
///
/// Where the table cannot be left (before Linux 5.9, or forbidden), they share all that is open, as threads do.
pub(crate) fn with_a_clone_alone(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let apart = close(LAST, LAST, libc::CLOSE_RANGE_UNSHARE).is_ok();
    let own = clone(device)?;
    if apart {
        let number = own.as_raw_fd() as u32;
        close(number + 1, LAST, 0)?;
        if let Some(below) = number.checked_sub(1) {
            close(0, below, 0)?;
        }
    }
    Ok(own)
}

/// A device of its own for the connection that another one has.
fn clone(device: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = File::options().read(true).write(true).open("/dev/fuse")?;
    let number = device.as_raw_fd() as u32;
    // SAFETY: the kernel reads a `u32` there, and writes nothing (`fuse_dev_ioctl_clone`).
    unsafe { ioctl(own.as_fd(), Setter::<CLONE, u32>::new(number)) }?;
    Ok(own.into())
}

/// Closes a range of what is open. Without `CLOSE_RANGE_UNSHARE`: only in a table that nobody else has.
fn close(first: u32, last: u32, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: no memory is passed. What the numbers stood for is not used by this thread again, nor by those that it
    // starts, and others have a table of their own: `with_a_clone_alone` says so to its caller.
    match unsafe { libc::close_range(first, last, flags as libc::c_int) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
