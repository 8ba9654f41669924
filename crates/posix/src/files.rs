//! Open files: open, create, read, write, seek, truncate, sync, close.

use crate::attrs::with_path;
use crate::dirs::Dir;
use crate::mount::Mount;
use bytes::Bytes;
use client::{OpenFile, OpenFlags, Seek, SetAttr};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{Errno, Fid};

/// The largest piece that one call of the client reads or writes, in bytes: the size of one RPC.
const PIECE_BYTES_MAX: usize = 4 << 20;
/// Largest number of bytes that one call of a program reads or writes, as in Linux. The bindings
/// apply the limit.
pub const CALL_BYTES_MAX: usize = 0x7fff_f000;

/// An open file.
pub struct File {
    /// The client's open file.
    pub open: Arc<OpenFile>,
    /// The file position, for [`File::read`] and [`File::write`].
    position: Mutex<u64>,
}

/// An open file or directory.
pub enum Open {
    /// A regular file.
    File(File),
    /// A directory.
    Dir(Dir),
}

impl Open {
    /// The FID of the file or directory.
    pub fn fid(&self) -> Fid {
        match self {
            Open::File(file) => file.open.fid,
            Open::Dir(dir) => dir.handle.fid,
        }
    }

    /// The file.
    ///
    /// # Errors
    ///
    /// `EISDIR`: this is a directory.
    pub fn file(&self) -> Result<&File, Errno> {
        match self {
            Open::File(file) => Ok(file),
            Open::Dir(_) => Err(Errno::EISDIR),
        }
    }

    /// The directory.
    ///
    /// # Errors
    ///
    /// `ENOTDIR`: this is a file.
    pub fn dir(&self) -> Result<&Dir, Errno> {
        match self {
            Open::File(_) => Err(Errno::ENOTDIR),
            Open::Dir(dir) => Ok(dir),
        }
    }

    /// Closes the file or directory. Returns when the servers have the written data.
    ///
    /// # Errors
    ///
    /// `EIO`: data was lost; or an error of a server.
    pub async fn close(&self, mount: &Mount) -> Result<(), Errno> {
        match self {
            Open::File(file) => file.close(mount).await,
            Open::Dir(_) => Ok(()),
        }
    }

    /// Waits until the file or directory is on the servers' disks.
    ///
    /// # Errors
    ///
    /// `EIO`: data was lost; or an error of a server.
    pub async fn sync(&self, mount: &Mount, data_only: bool) -> Result<(), Errno> {
        match self {
            Open::File(file) => mount.client.fsync(&file.open, data_only).await,
            Open::Dir(dir) => mount.client.fsyncdir(dir.handle.fid).await,
        }
    }
}

/// Converts an offset or size of a caller.
///
/// # Errors
///
/// `EINVAL`: it is negative.
pub fn to_offset(at: libc::off_t) -> Result<u64, Errno> {
    u64::try_from(at).map_err(|_| Errno::EINVAL)
}

/// Opens a file or a directory with the flags of open(2). `layout` applies to a file that this call
/// creates.
///
/// # Errors
///
/// `EINVAL`, `EISDIR`, `ENOTDIR`, `ELOOP`; `ENXIO`: only the kernel can open pipes and devices; or
/// another error of the path or of a server.
pub async fn open(mount: &Mount, path: &[u8], flags: c_int, mode: u32, layout: Bytes) -> Result<Open, Errno> {
    let open_flags = OpenFlags::from_posix(flags);
    let wants_dir = flags & libc::O_DIRECTORY != 0;
    if !open_flags.read && !open_flags.write {
        return Err(Errno::EINVAL);
    }
    if flags & libc::O_CREAT != 0 {
        if wants_dir {
            return Err(Errno::EINVAL);
        }
        let created = create(mount, path, flags, mode, layout).await;
        return created.map(open_at_start);
    }
    let follow = flags & libc::O_NOFOLLOW == 0;
    let open_found = |fid, kind| async move {
        match kind {
            libc::S_IFDIR if open_flags.write => Err(Errno::EISDIR),
            libc::S_IFDIR => Dir::open(mount, fid).await.map(Open::Dir),
            _ if wants_dir => Err(Errno::ENOTDIR),
            libc::S_IFREG => mount
                .client
                .open(&mount.cred, fid, open_flags)
                .await
                .map(open_at_start),
            libc::S_IFLNK => Err(Errno::ELOOP),
            // Only the kernel can open pipes and devices.
            _ => Err(Errno::ENXIO),
        }
    };
    with_path(mount, path, follow, open_found).await
}

/// An open file at position 0.
fn open_at_start(open: Arc<OpenFile>) -> Open {
    Open::File(File {
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
        .walk_to_final_name(&create_cred, path)
        .await?
        .ok_or(Errno::EISDIR)?;
    let created = client
        .create_with(&create_cred, (parent, &name), mode, open_flags, layout)
        .await;
    created.map(|(_, file)| file)
}

impl File {
    /// Sends written data to the servers, then closes the file. Returns the error of the close; if
    /// the close succeeds, the error of the write-back.
    async fn close(&self, mount: &Mount) -> Result<(), Errno> {
        let written = mount.client.write_back(&self.open).await;
        mount.client.release(&self.open).await.and(written)
    }

    /// Reads at an offset into `buffer`; returns the number of bytes. It is less than the size of
    /// `buffer` if the file ends there or the next piece cannot be read.
    ///
    /// # Errors
    ///
    /// `EBADF`: not open for reading; `EIO`; or an error of a server.
    pub async fn read_at(
        &self,
        mount: &Mount,
        buffer: &mut [MaybeUninit<u8>],
        offset: u64,
    ) -> Result<usize, Errno> {
        let mut bytes_read = 0;
        for piece in buffer.chunks_mut(PIECE_BYTES_MAX) {
            let at = offset + bytes_read as u64;
            let data = match mount.client.read(&self.open, at, piece.len()).await {
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

    /// As [`File::read_at`], but returns the bytes as the cache has them, without a copy.
    ///
    /// # Errors
    ///
    /// As [`File::read_at`].
    pub async fn read_bytes_at(&self, mount: &Mount, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let (mut pieces, mut bytes_read) = (Vec::new(), 0);
        while bytes_read < len {
            let wanted = PIECE_BYTES_MAX.min(len - bytes_read);
            let at = offset + bytes_read as u64;
            let data = match mount.client.read(&self.open, at, wanted).await {
                Ok(data) => data,
                Err(e) if bytes_read == 0 => return Err(e),
                Err(_) => break,
            };
            let found: usize = data.iter().map(Bytes::len).sum();
            pieces.extend(data);
            bytes_read += found;
            if found < wanted {
                break;
            }
        }
        Ok(pieces)
    }

    /// As [`File::read_bytes_at`], at the file position, which it advances.
    ///
    /// # Errors
    ///
    /// As [`File::read_at`].
    pub async fn read_bytes(&self, mount: &Mount, len: usize) -> Result<Vec<Bytes>, Errno> {
        let mut position = self.position.lock().await;
        let pieces = self.read_bytes_at(mount, *position, len).await?;
        *position += pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        Ok(pieces)
    }

    /// Writes at an offset, or at the end with O_APPEND. Returns the offset after the written
    /// bytes, and their number: less than requested if the rest cannot be written.
    ///
    /// # Errors
    ///
    /// `EBADF`: not open for writing; `ENOSPC`, `EIO`; or an error of a server.
    pub async fn write_at(&self, mount: &Mount, bytes: &[u8], offset: u64) -> Result<(u64, usize), Errno> {
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
    ///
    /// # Errors
    ///
    /// As [`File::read_at`].
    pub async fn read(&self, mount: &Mount, buffer: &mut [MaybeUninit<u8>]) -> Result<usize, Errno> {
        let mut position = self.position.lock().await;
        let read = self.read_at(mount, buffer, *position).await?;
        *position += read as u64;
        Ok(read)
    }

    /// Writes at the file position, or at the end with O_APPEND. The position is then after the
    /// written bytes.
    ///
    /// # Errors
    ///
    /// As [`File::write_at`].
    pub async fn write(&self, mount: &Mount, bytes: &[u8]) -> Result<usize, Errno> {
        let mut position = self.position.lock().await;
        let (end, written) = self.write_at(mount, bytes, *position).await?;
        if written > 0 {
            *position = end;
        }
        Ok(written)
    }

    /// Sets the file position and returns it. `whence` is `SEEK_SET`, `SEEK_CUR`, `SEEK_END`,
    /// `SEEK_DATA` or `SEEK_HOLE`.
    ///
    /// # Errors
    ///
    /// `EINVAL`, `ENXIO`, `EOVERFLOW`; or an error of a server.
    pub async fn seek(&self, mount: &Mount, by: i64, whence: c_int) -> Result<i64, Errno> {
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
    ///
    /// # Errors
    ///
    /// `EINVAL`: not open for writing; or an error of a server.
    pub async fn truncate(&self, mount: &Mount, size: u64) -> Result<(), Errno> {
        if !self.open.flags.write {
            return Err(Errno::EINVAL);
        }
        truncate(mount, self.open.fid, size, Some(&self.open)).await
    }
}

/// Truncates a file by FID, or extends it with zeros; through `open` if the file is open.
///
/// # Errors
///
/// `EACCES`, `EISDIR`; or an error of a server.
pub async fn truncate(mount: &Mount, fid: Fid, size: u64, open: Option<&Arc<OpenFile>>) -> Result<(), Errno> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    mount.client.setattr(&mount.cred, fid, &set, open).await.map(drop)
}
