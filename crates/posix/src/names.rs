//! Operations on names: mkdir, rmdir, unlink, mknod, symlink, link, rename, readlink.

use crate::mount::Mount;
use client::LastName;
use wire::{Errno, Fid};

/// The last name of a path. `root_error`: the error if the path ends with `.`, `..` or at the
/// root.
async fn last_name<'p>(mount: &Mount, path: &'p [u8], root_error: Errno) -> Result<LastName<'p>, Errno> {
    let last = mount.client.walk_to_name(&mount.cred, path).await?;
    last.ok_or(root_error)
}

/// The parent directory and the last name of a path, for a file that is not a directory.
/// `slash_error`: the error for a trailing slash, as in `link("a", "b/")`.
async fn file_name<'p>(
    mount: &Mount,
    path: &'p [u8],
    root_error: Errno,
    slash_error: Errno,
) -> Result<(Fid, &'p [u8]), Errno> {
    let last = last_name(mount, path, root_error).await?;
    if last.must_be_dir {
        return Err(slash_error);
    }
    Ok((last.parent, last.name))
}

/// Makes a directory.
///
/// # Errors
///
/// `EEXIST`, `ENOENT`; or another error of the path or of a server.
pub async fn mkdir(mount: &Mount, path: &[u8], mode: u32) -> Result<(), Errno> {
    let last = last_name(mount, path, Errno::EEXIST).await?;
    let created = mount
        .client
        .mkdir(&mount.create_cred(), last.parent, last.name, mode)
        .await;
    created.map(drop)
}

/// Removes an empty directory.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`; or another error of the path or of a server.
pub async fn rmdir(mount: &Mount, path: &[u8]) -> Result<(), Errno> {
    let last = last_name(mount, path, Errno::EBUSY).await?;
    mount.client.rmdir(&mount.cred, last.parent, last.name).await
}

/// Removes the name of a file.
///
/// # Errors
///
/// `ENOENT`, `EISDIR`; or another error of the path or of a server.
pub async fn unlink(mount: &Mount, path: &[u8]) -> Result<(), Errno> {
    let (parent, name) = file_name(mount, path, Errno::EISDIR, Errno::ENOTDIR).await?;
    mount.client.unlink(&mount.cred, parent, name).await
}

/// Makes a regular file, pipe, socket or device.
///
/// # Errors
///
/// `EEXIST`, `EPERM`; or another error of the path or of a server.
pub async fn mknod(mount: &Mount, path: &[u8], mode: u32, dev: u64) -> Result<(), Errno> {
    let rdev = u32::try_from(dev).map_err(|_| Errno::EINVAL)?;
    // A mode without type means a regular file, as in Linux.
    let mode = match mode & libc::S_IFMT {
        0 => mode | libc::S_IFREG,
        _ => mode,
    };
    let (parent, name) = file_name(mount, path, Errno::EEXIST, Errno::ENOENT).await?;
    let created = mount
        .client
        .mknod(&mount.create_cred(), parent, name, mode, rdev)
        .await;
    created.map(drop)
}

/// Makes a symbolic link.
///
/// # Errors
///
/// `EEXIST`; or another error of the path or of a server.
pub async fn symlink(mount: &Mount, target: &[u8], path: &[u8]) -> Result<(), Errno> {
    let (parent, name) = file_name(mount, path, Errno::EEXIST, Errno::ENOENT).await?;
    let created = mount
        .client
        .symlink(&mount.create_cred(), parent, name, target)
        .await;
    created.map(drop)
}

/// Adds a hard link. If `from` is a symbolic link, links to the symbolic link itself.
///
/// # Errors
///
/// `EEXIST`, `ENOENT`; or another error of the path or of a server.
pub async fn link(mount: &Mount, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let (fid, _) = mount.client.walk(&mount.cred, from, false).await?;
    let (parent, name) = file_name(mount, to, Errno::EEXIST, Errno::ENOENT).await?;
    mount.client.link(&mount.cred, fid, parent, name).await.map(drop)
}

/// Renames a file or directory; follows no symbolic link at the end of a path.
///
/// # Errors
///
/// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`; or another error of the path or of a server.
pub async fn rename(mount: &Mount, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let source = last_name(mount, from, Errno::EBUSY).await?;
    let target = last_name(mount, to, Errno::EBUSY).await?;
    // With a trailing slash in either path, `from` must be a directory.
    if (source.must_be_dir || target.must_be_dir)
        && mount.client.walk(&mount.cred, from, false).await?.1 != libc::S_IFDIR
    {
        return Err(Errno::ENOTDIR);
    }
    let (from, to) = ((source.parent, source.name), (target.parent, target.name));
    mount.client.rename(&mount.cred, from, to).await
}

/// The target of a symbolic link.
///
/// # Errors
///
/// `EINVAL`: not a symbolic link; or another error of the path or of a server.
pub async fn readlink(mount: &Mount, path: &[u8]) -> Result<bytes::Bytes, Errno> {
    let (fid, kind) = mount.client.walk(&mount.cred, path, false).await?;
    if kind != libc::S_IFLNK {
        return Err(Errno::EINVAL);
    }
    mount.client.readlink(&mount.cred, fid).await
}
