//! Open files: open, create, read, write, seek, truncate, sync, close.

use crate::attrs::with_path;
use crate::dirs::Dir;
use crate::mount::Mount;
use crate::table::OpenEntry;
use bytes::Bytes;
use client::{OpenFile, OpenFlags, Seek, SetAttr};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{Errno, Fid};

/// The largest piece that one call of the client reads or writes, in bytes: the size of one RPC.
const PIECE_BYTES_MAX: usize = 4 << 20;
/// Largest number of bytes that one call from C reads or writes, as in Linux.
const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// An open file.
pub(crate) struct File {
    pub(crate) open: Arc<OpenFile>,
    /// The file position, for `nacre_read` and `nacre_write`.
    position: Mutex<u64>,
}

/// Converts an offset or size from C; `EINVAL`: it is negative.
pub(crate) fn to_offset(at: libc::off_t) -> Result<u64, Errno> {
    u64::try_from(at).map_err(|_| Errno::EINVAL)
}

/// Opens a file or a directory. `layout` applies to a file that this call creates.
pub(crate) async fn open(
    mount: &Mount,
    path: &[u8],
    flags: c_int,
    mode: u32,
    layout: Bytes,
) -> Result<c_int, Errno> {
    let open_flags = OpenFlags::from_posix(flags);
    let wants_dir = flags & libc::O_DIRECTORY != 0;
    if !open_flags.read && !open_flags.write {
        return Err(Errno::EINVAL);
    }
    let open = if flags & libc::O_CREAT != 0 {
        if wants_dir {
            return Err(Errno::EINVAL);
        }
        file_entry(create(mount, path, flags, mode, layout).await?)
    } else {
        let follow = flags & libc::O_NOFOLLOW == 0;
        let open_found = async |fid, kind| match kind {
            libc::S_IFDIR if open_flags.write => Err(Errno::EISDIR),
            libc::S_IFDIR => Dir::open(mount, fid).await.map(OpenEntry::Dir),
            _ if wants_dir => Err(Errno::ENOTDIR),
            libc::S_IFREG => mount
                .client
                .open(&mount.cred, fid, open_flags)
                .await
                .map(file_entry),
            libc::S_IFLNK => Err(Errno::ELOOP),
            // Only the kernel can open pipes and devices.
            _ => Err(Errno::ENXIO),
        };
        with_path(mount, path, follow, open_found).await?
    };
    match mount.open_files.insert(open) {
        Ok(number) => Ok(number),
        Err((open, e)) => {
            open.close(mount).await?;
            Err(e)
        }
    }
}

/// The table entry of an open file, at position 0.
fn file_entry(open: Arc<OpenFile>) -> OpenEntry {
    OpenEntry::File(File {
        open,
        position: Mutex::default(),
    })
}

/// Opens or creates a file. First sends a create of the path's last name. The client answers
/// `EOPNOTSUPP` for an existing symbolic link or special file. For a symbolic link, this function
/// then creates or opens the link's target; for a special file it fails with `ENXIO`.
async fn create(
    mount: &Mount,
    path: &[u8],
    flags: c_int,
    mode: u32,
    layout: Bytes,
) -> Result<Arc<OpenFile>, Errno> {
    let (client, create_cred) = (&mount.client, mount.create_cred());
    let open_flags = OpenFlags::from_posix(flags);
    let last = client.walk_to_name(&create_cred, path).await?;
    let last = last.filter(|last| !last.must_be_dir).ok_or(Errno::EISDIR)?;
    let parent_and_name = (last.parent, last.name);
    match client
        .create_with(&create_cred, parent_and_name, mode, open_flags, layout.clone())
        .await
    {
        Ok((_, file)) => return Ok(file),
        Err(Errno::EOPNOTSUPP) => {}
        Err(e) => return Err(e),
    }
    let found = client.lookup(&create_cred, last.parent, last.name).await?;
    if !found.attr.is_symlink() {
        return Err(Errno::ENXIO);
    }
    if flags & libc::O_NOFOLLOW != 0 {
        return Err(Errno::ELOOP);
    }
    let (parent, name) = client
        .walk_to_file(&create_cred, path)
        .await?
        .ok_or(Errno::EISDIR)?;
    let created = client
        .create_with(&create_cred, (parent, &name), mode, open_flags, layout)
        .await;
    created.map(|(_, file)| file)
}

/// Closes a file or directory by its number.
pub(crate) async fn close(mount: &Mount, number: c_int) -> Result<(), Errno> {
    mount.open_files.remove(number)?.close(mount).await
}

impl File {
    /// Sends written data to the servers, then closes the file. Returns the error of the close; if
    /// the close succeeds, the error of the data.
    pub(crate) async fn close(&self, mount: &Mount) -> Result<(), Errno> {
        let written = mount.client.write_back(&self.open).await;
        mount.client.release(&self.open).await.and(written)
    }

    /// Reads at an offset into `buffer`; returns the number of bytes. It is less than the size of
    /// `buffer` if the file ends there or the next piece cannot be read.
    pub(crate) async fn read_at(
        &self,
        mount: &Mount,
        buffer: &mut [MaybeUninit<u8>],
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut bytes_read = 0;
        for piece in buffer.chunks_mut(PIECE_BYTES_MAX) {
            let read = mount
                .client
                .read(&self.open, offset + bytes_read as u64, piece.len());
            let data = match read.await {
                Ok(data) => data,
                Err(e) if bytes_read == 0 => return Err(e),
                Err(_) => break,
            };
            let (mut rest, read_before) = (piece, bytes_read);
            for bytes in data {
                let unfilled = std::mem::take(&mut rest);
                let (filled, left) = unfilled.split_at_mut_checked(bytes.len()).ok_or(Errno::EIO)?;
                filled.write_copy_of_slice(&bytes);
                (rest, bytes_read) = (left, bytes_read + bytes.len());
            }
            if !rest.is_empty() || bytes_read == read_before {
                break;
            }
        }
        Ok(bytes_read)
    }

    /// Writes at an offset, or at the end with O_APPEND. Returns the offset after the written
    /// bytes, and their number: less than requested if the rest cannot be written.
    pub(crate) async fn write_at(
        &self,
        mount: &Mount,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(u64, usize), Errno> {
        if self.open.flags.write && !self.open.has_written() {
            mount.client.kill_priv(&mount.cred, &self.open).await?;
        }
        let (mut end, mut bytes_written) = (offset, 0);
        for piece in bytes.chunks(PIECE_BYTES_MAX) {
            let copy = Bytes::copy_from_slice(piece);
            match mount.client.write_with_offset(&self.open, end, copy).await {
                Ok((start, written)) => {
                    (end, bytes_written) = (start + written as u64, bytes_written + written);
                    if written < piece.len() {
                        break;
                    }
                }
                Err(e) if bytes_written == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok((end, bytes_written))
    }

    /// Reads at the file position and advances it.
    pub(crate) async fn read(&self, mount: &Mount, buffer: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
        let mut position = self.position.lock().await;
        let read = self.read_at(mount, buffer, *position).await?;
        *position += read as u64;
        Ok(read)
    }

    /// Writes at the file position, or at the end with O_APPEND. The position is then after the
    /// written bytes.
    pub(crate) async fn write(&self, mount: &Mount, bytes: &[u8]) -> Result<usize, Errno> {
        let mut position = self.position.lock().await;
        let (end, written) = self.write_at(mount, bytes, *position).await?;
        if written > 0 {
            *position = end;
        }
        Ok(written)
    }

    /// Sets the file position and returns it.
    pub(crate) async fn seek(&self, mount: &Mount, by: i64, whence: c_int) -> Result<i64, Errno> {
        let mut position = self.position.lock().await;
        let from = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => self.size(mount).await?,
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let op = match whence {
                    libc::SEEK_DATA => Seek::Data,
                    _ => Seek::Hole,
                };
                let start = u64::try_from(by).map_err(|_| Errno::ENXIO)?;
                *position = mount.client.seek(&self.open, op, start).await?;
                return Ok(*position as i64);
            }
            _ => return Err(Errno::EINVAL),
        };
        let to = i64::try_from(from).ok().and_then(|from| from.checked_add(by));
        let to = to.ok_or(Errno::EOVERFLOW)?;
        *position = to_offset(to)?;
        Ok(to)
    }

    async fn size(&self, mount: &Mount) -> Result<u64, Errno> {
        let found = mount.client.getattr(&mount.cred, self.open.fid).await?;
        Ok(found.attr.size)
    }

    /// Truncates the file, or extends it with zeros.
    pub(crate) async fn truncate(&self, mount: &Mount, size: u64) -> Result<(), Errno> {
        if !self.open.flags.write {
            return Err(Errno::EINVAL);
        }
        truncate(mount, self.open.fid, size, Some(&self.open)).await
    }
}

/// Truncates a file by FID, or extends it with zeros; through `open` if the file is open.
pub(crate) async fn truncate(
    mount: &Mount,
    fid: Fid,
    size: u64,
    open: Option<&Arc<OpenFile>>,
) -> Result<(), Errno> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    mount.client.setattr(&mount.cred, fid, &set, open).await.map(drop)
}

/// Waits until a file or directory is on the servers' disks.
pub(crate) async fn sync(mount: &Mount, open: &OpenEntry, data_only: bool) -> Result<(), Errno> {
    match open {
        OpenEntry::File(file) => mount.client.fsync(&file.open, data_only).await,
        OpenEntry::Dir(dir) => mount.client.fsyncdir(dir.handle.fid).await,
    }
}

/// The part of an input buffer that one call from C handles.
pub(crate) fn limit<T>(bytes: &[T]) -> &[T] {
    bytes.get(..CALL_BYTES_MAX).unwrap_or(bytes)
}

/// The part of an output buffer that one call from C handles.
pub(crate) fn limit_mut<T>(buffer: &mut [T]) -> &mut [T] {
    let len = buffer.len().min(CALL_BYTES_MAX);
    &mut buffer[..len]
}
