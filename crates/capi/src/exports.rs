//! The functions of `include/nacre.h`, which documents them. Each converts its parameters and calls
//! a function of another module, usually with the mount.

use crate::attrs::{statvfs_of, times_change};
use crate::dirs::{DirEntry, to_c_entry};
use crate::ffi::{Count, Fs, In, Out, Sink, Source, Text, c_functions};
use crate::mount::{self, Mount, run_on};
use crate::stripes::{self, Stripe};
use bytes::Bytes;
use libc::{c_char, c_int, dev_t, gid_t, mode_t, off_t, ssize_t, timespec, uid_t};
use posix::attrs::{self, with_path};
use posix::files::{self, CALL_BYTES_MAX, to_offset};
use posix::{MountError, names};
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use wire::Errno;

/// The result of `nacre_version`.
const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => c"",
};

thread_local! {
    /// The message of this thread's last mount; empty if the mount succeeded.
    static MOUNT_ERROR: RefCell<CString> = RefCell::default();
}

/// Copies bytes to C's buffer; returns their number. If the buffer's size is 0, only returns the
/// number. `ERANGE`: the buffer is too small.
fn copy_out(bytes: &[u8], mut to: Sink, size: &Count) -> Result<ssize_t, Errno> {
    let buffer = to.buffer(size)?;
    if !buffer.is_empty() {
        let buffer = buffer.get_mut(..bytes.len()).ok_or(Errno::ERANGE)?;
        buffer.write_copy_of_slice(bytes);
    }
    Ok(bytes.len() as ssize_t)
}

/// Opens a file or directory and adds it to the open files; returns its number.
async fn open(mount: &Mount, path: &[u8], flags: c_int, mode: u32, layout: Bytes) -> Result<c_int, Errno> {
    let open = files::open(mount, path, flags, mode, layout).await?;
    match mount.open_files.insert(open) {
        Ok(number) => Ok(number),
        Err((open, e)) => {
            open.close(mount).await?;
            Err(e)
        }
    }
}

/// Closes a file or directory by its number.
async fn close(mount: &Mount, number: c_int) -> Result<(), Errno> {
    mount.open_files.remove(number)?.close(mount).await
}

/// The part of an input buffer that one call handles.
fn limit<T>(bytes: &[T]) -> &[T] {
    bytes.get(..CALL_BYTES_MAX).unwrap_or(bytes)
}

/// The part of an output buffer that one call handles.
fn clamp_to_call_max_mut<T>(buffer: &mut [T]) -> &mut [T] {
    let len = buffer.len().min(CALL_BYTES_MAX);
    &mut buffer[..len]
}

/// The return value of a successful call without a result.
fn zero(_: ()) -> c_int {
    0
}

// Mounts.

c_functions! {
    fn nacre_version() -> *const c_char {
        Ok(VERSION.as_ptr())
    }

    fn nacre_mount_error() -> *const c_char {
        Ok(MOUNT_ERROR.with_borrow(|text| text.as_ptr()))
    }

    fn nacre_mount(source: Text, options: Text) -> Fs {
        let mounted = match source.optional() {
            Some(source) => mount::mount(source, options.optional().unwrap_or_default()),
            None => Err(MountError::new(Errno::EFAULT, "the source is NULL")),
        };
        let message = mounted.as_ref().err().map(|e| e.message.clone());
        MOUNT_ERROR.set(CString::new(message.unwrap_or_default()).unwrap_or_default());
        mounted.map_err(|e| e.errno)
    }

    fn nacre_umount(fs: Fs) -> c_int {
        mount::umount(&fs).map(zero)
    }

    fn nacre_umask(fs: Fs, mask: mode_t) -> c_int {
        run_on(&fs, async |m| Ok(m.set_umask(mask) as c_int))
    }
}

// Files.

c_functions! {
    fn nacre_open(fs: Fs, path: Text, flags: c_int, mode: mode_t) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| open(m, path, flags, mode, Bytes::new()).await)
    }

    fn nacre_creat(fs: Fs, path: Text, mode: mode_t) -> c_int {
        let (path, flags) = (path.bytes()?, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC);
        run_on(&fs, async |m| open(m, path, flags, mode, Bytes::new()).await)
    }

    fn nacre_open_striped(fs: Fs, path: Text, flags: c_int, mode: mode_t, stripe: In<Stripe>) -> c_int {
        let (path, layout) = (path.bytes()?, stripe.get()?.layout()?);
        run_on(&fs, async |m| open(m, path, flags, mode, layout).await)
    }

    fn nacre_close(fs: Fs, fd: c_int) -> c_int {
        run_on(&fs, async |m| close(m, fd).await).map(zero)
    }

    fn nacre_pread(fs: Fs, fd: c_int, buf: Sink, count: Count, at: off_t) -> ssize_t {
        let (mut buf, from) = (buf, to_offset(at)?);
        let buffer = clamp_to_call_max_mut(buf.buffer(&count)?);
        run_on(&fs, async |m| m.open_files.get(fd)?.file()?.read_at(m, buffer, from).await).map(|n| n as ssize_t)
    }

    fn nacre_pwrite(fs: Fs, fd: c_int, buf: Source, count: Count, at: off_t) -> ssize_t {
        let (bytes, to) = (limit(buf.bytes(&count)?), to_offset(at)?);
        let written = run_on(&fs, async |m| m.open_files.get(fd)?.file()?.write_at(m, bytes, to).await)?;
        Ok(written.1 as ssize_t)
    }

    fn nacre_read(fs: Fs, fd: c_int, buf: Sink, count: Count) -> ssize_t {
        let mut buf = buf;
        let buffer: &mut [MaybeUninit<u8>] = clamp_to_call_max_mut(buf.buffer(&count)?);
        run_on(&fs, async |m| m.open_files.get(fd)?.file()?.read(m, buffer).await).map(|n| n as ssize_t)
    }

    fn nacre_write(fs: Fs, fd: c_int, buf: Source, count: Count) -> ssize_t {
        let bytes = limit(buf.bytes(&count)?);
        run_on(&fs, async |m| m.open_files.get(fd)?.file()?.write(m, bytes).await).map(|n| n as ssize_t)
    }

    fn nacre_lseek(fs: Fs, fd: c_int, by: off_t, whence: c_int) -> off_t {
        run_on(&fs, async |m| m.open_files.get(fd)?.file()?.seek(m, by, whence).await)
    }

    fn nacre_fsync(fs: Fs, fd: c_int) -> c_int {
        run_on(&fs, async |m| m.open_files.get(fd)?.sync(m, false).await).map(zero)
    }

    fn nacre_fdatasync(fs: Fs, fd: c_int) -> c_int {
        run_on(&fs, async |m| m.open_files.get(fd)?.sync(m, true).await).map(zero)
    }

    fn nacre_ftruncate(fs: Fs, fd: c_int, size: off_t) -> c_int {
        let size = to_offset(size)?;
        run_on(&fs, async |m| m.open_files.get(fd)?.file()?.truncate(m, size).await).map(zero)
    }

    fn nacre_truncate(fs: Fs, path: Text, size: off_t) -> c_int {
        let (path, size) = (path.bytes()?, to_offset(size)?);
        run_on(&fs, async |m| with_path(m, path, true, |fid, _| files::truncate(m, fid, size, None)).await).map(zero)
    }
}

// Names.

c_functions! {
    fn nacre_mkdir(fs: Fs, path: Text, mode: mode_t) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| names::mkdir(m, path, mode).await).map(zero)
    }

    fn nacre_rmdir(fs: Fs, path: Text) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| names::rmdir(m, path).await).map(zero)
    }

    fn nacre_unlink(fs: Fs, path: Text) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| names::unlink(m, path).await).map(zero)
    }

    fn nacre_rename(fs: Fs, from: Text, to: Text) -> c_int {
        let (from, to) = (from.bytes()?, to.bytes()?);
        run_on(&fs, async |m| names::rename(m, from, to).await).map(zero)
    }

    fn nacre_link(fs: Fs, from: Text, to: Text) -> c_int {
        let (from, to) = (from.bytes()?, to.bytes()?);
        run_on(&fs, async |m| names::link(m, from, to).await).map(zero)
    }

    fn nacre_symlink(fs: Fs, target: Text, path: Text) -> c_int {
        let (target, path) = (target.bytes()?, path.bytes()?);
        run_on(&fs, async |m| names::symlink(m, target, path).await).map(zero)
    }

    fn nacre_readlink(fs: Fs, path: Text, buf: Sink, size: Count) -> ssize_t {
        let (path, mut buf) = (path.bytes()?, buf);
        let buffer = buf.buffer(&size)?;
        if buffer.is_empty() {
            return Err(Errno::EINVAL);
        }
        let target = run_on(&fs, async |m| names::readlink(m, path).await)?;
        let len = target.len().min(buffer.len());
        buffer[..len].write_copy_of_slice(&target[..len]);
        Ok(len as ssize_t)
    }

    fn nacre_mknod(fs: Fs, path: Text, mode: mode_t, dev: dev_t) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| names::mknod(m, path, mode, dev).await).map(zero)
    }
}

// Directories.

c_functions! {
    fn nacre_opendir(fs: Fs, path: Text) -> c_int {
        let (path, flags) = (path.bytes()?, libc::O_RDONLY | libc::O_DIRECTORY);
        run_on(&fs, async |m| open(m, path, flags, 0, Bytes::new()).await)
    }

    fn nacre_readdir(fs: Fs, fd: c_int, entry: Out<DirEntry>) -> c_int {
        entry.check()?;
        match run_on(&fs, async |m| m.open_files.get(fd)?.dir()?.next(m).await)? {
            Some(next) => entry.set(to_c_entry(&next)?).map(|()| 1),
            None => Ok(0),
        }
    }

    fn nacre_rewinddir(fs: Fs, fd: c_int) -> c_int {
        run_on(&fs, async |m| {
            m.open_files.get(fd)?.dir()?.rewind().await;
            Ok(0)
        })
    }

    fn nacre_closedir(fs: Fs, fd: c_int) -> c_int {
        run_on(&fs, async |m| {
            m.open_files.get(fd)?.dir()?;
            close(m, fd).await
        }).map(zero)
    }
}

// Attributes.

c_functions! {
    fn nacre_stat(fs: Fs, path: Text, st: Out<libc::stat>) -> c_int {
        let path = path.bytes()?;
        st.check()?;
        st.set(run_on(&fs, async |m| with_path(m, path, true, |fid, _| m.stat(fid)).await)?).map(zero)
    }

    fn nacre_lstat(fs: Fs, path: Text, st: Out<libc::stat>) -> c_int {
        let path = path.bytes()?;
        st.check()?;
        st.set(run_on(&fs, async |m| with_path(m, path, false, |fid, _| m.stat(fid)).await)?).map(zero)
    }

    fn nacre_fstat(fs: Fs, fd: c_int, st: Out<libc::stat>) -> c_int {
        st.check()?;
        st.set(run_on(&fs, async |m| m.stat(m.open_files.get(fd)?.fid()).await)?).map(zero)
    }

    fn nacre_access(fs: Fs, path: Text, mode: c_int) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| attrs::access(m, path, mode).await).map(zero)
    }

    fn nacre_chmod(fs: Fs, path: Text, mode: mode_t) -> c_int {
        let (path, set) = (path.bytes()?, attrs::mode_change(mode));
        run_on(&fs, async |m| with_path(m, path, true, |fid, _| attrs::set(m, fid, &set)).await).map(zero)
    }

    fn nacre_fchmod(fs: Fs, fd: c_int, mode: mode_t) -> c_int {
        let set = attrs::mode_change(mode);
        run_on(&fs, async |m| attrs::set(m, m.open_files.get(fd)?.fid(), &set).await).map(zero)
    }

    fn nacre_chown(fs: Fs, path: Text, uid: uid_t, gid: gid_t) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| with_path(m, path, true, |fid, _| attrs::chown(m, fid, uid, gid)).await).map(zero)
    }

    fn nacre_lchown(fs: Fs, path: Text, uid: uid_t, gid: gid_t) -> c_int {
        let path = path.bytes()?;
        run_on(&fs, async |m| with_path(m, path, false, |fid, _| attrs::chown(m, fid, uid, gid)).await).map(zero)
    }

    fn nacre_fchown(fs: Fs, fd: c_int, uid: uid_t, gid: gid_t) -> c_int {
        run_on(&fs, async |m| attrs::chown(m, m.open_files.get(fd)?.fid(), uid, gid).await).map(zero)
    }

    fn nacre_utimens(fs: Fs, path: Text, times: In<[timespec; 2]>) -> c_int {
        let (path, set) = (path.bytes()?, times_change(times.optional())?);
        run_on(&fs, async |m| with_path(m, path, true, |fid, _| attrs::set(m, fid, &set)).await).map(zero)
    }

    fn nacre_lutimens(fs: Fs, path: Text, times: In<[timespec; 2]>) -> c_int {
        let (path, set) = (path.bytes()?, times_change(times.optional())?);
        run_on(&fs, async |m| with_path(m, path, false, |fid, _| attrs::set(m, fid, &set)).await).map(zero)
    }

    fn nacre_futimens(fs: Fs, fd: c_int, times: In<[timespec; 2]>) -> c_int {
        let set = times_change(times.optional())?;
        run_on(&fs, async |m| attrs::set(m, m.open_files.get(fd)?.fid(), &set).await).map(zero)
    }

    fn nacre_statvfs(fs: Fs, st: Out<libc::statvfs>) -> c_int {
        st.check()?;
        let space = run_on(&fs, async |m| m.client.statfs().await)?;
        st.set(statvfs_of(&space)).map(zero)
    }
}

// Extended attributes.

c_functions! {
    fn nacre_getxattr(fs: Fs, path: Text, name: Text, value: Sink, size: Count) -> ssize_t {
        let (path, name) = (path.bytes()?, name.bytes()?);
        copy_out(&run_on(&fs, async |m| attrs::getxattr(m, path, name).await)?, value, &size)
    }

    fn nacre_setxattr(fs: Fs, path: Text, name: Text, value: Source, size: Count, flags: c_int) -> c_int {
        let (path, set) = (path.bytes()?, (name.bytes()?, value.bytes(&size)?));
        run_on(&fs, async |m| attrs::setxattr(m, path, set, flags).await).map(zero)
    }

    fn nacre_listxattr(fs: Fs, path: Text, list: Sink, size: Count) -> ssize_t {
        let path = path.bytes()?;
        copy_out(&run_on(&fs, async |m| attrs::listxattr(m, path).await)?, list, &size)
    }

    fn nacre_removexattr(fs: Fs, path: Text, name: Text) -> c_int {
        let (path, name) = (path.bytes()?, name.bytes()?);
        run_on(&fs, async |m| attrs::removexattr(m, path, name).await).map(zero)
    }
}

// Stripes.

c_functions! {
    fn nacre_setstripe(fs: Fs, path: Text, stripe: In<Stripe>) -> c_int {
        let (path, stripe) = (path.bytes()?, stripe.get()?);
        run_on(&fs, async |m| stripes::set(m, path, &stripe).await).map(zero)
    }

    fn nacre_getstripe(fs: Fs, path: Text, stripe: Out<Stripe>) -> c_int {
        let path = path.bytes()?;
        stripe.check()?;
        stripe.set(run_on(&fs, async |m| stripes::get(m, path).await)?).map(zero)
    }
}
