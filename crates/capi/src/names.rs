//! Names made, moved and removed.

use crate::mount::Mount;
use client::LastName;
use wire::{Errno, Fid};

/// The last name of a path; without one, what the operation has to say of a directory itself.
async fn last<'p>(mount: &Mount, path: &'p [u8], of_itself: Errno) -> Result<LastName<'p>, Errno> {
    let last = mount.client.walk_to_name(&mount.cred, path).await?;
    last.ok_or(of_itself)
}

/// The name of what is not a directory, and where. `e.g. link("a", "b/")`: there is no such directory.
async fn not_dir<'p>(
    mount: &Mount,
    path: &'p [u8],
    of_itself: Errno,
    with_slash: Errno,
) -> Result<(Fid, &'p [u8]), Errno> {
    let last = last(mount, path, of_itself).await?;
    if last.dir {
        return Err(with_slash);
    }
    Ok((last.parent, last.name))
}

pub(crate) async fn mkdir(mount: &Mount, path: &[u8], mode: u32) -> Result<(), Errno> {
    let at = last(mount, path, Errno::EEXIST).await?;
    let made = mount.client.mkdir(&mount.maker(), at.parent, at.name, mode).await;
    made.map(drop)
}

pub(crate) async fn rmdir(mount: &Mount, path: &[u8]) -> Result<(), Errno> {
    let at = last(mount, path, Errno::EBUSY).await?;
    mount.client.rmdir(&mount.cred, at.parent, at.name).await
}

pub(crate) async fn unlink(mount: &Mount, path: &[u8]) -> Result<(), Errno> {
    let (parent, name) = not_dir(mount, path, Errno::EISDIR, Errno::ENOTDIR).await?;
    mount.client.unlink(&mount.cred, parent, name).await
}

pub(crate) async fn mknod(mount: &Mount, path: &[u8], mode: u32, dev: u64) -> Result<(), Errno> {
    let rdev = u32::try_from(dev).map_err(|_| Errno::EINVAL)?;
    // Without a type it is a file, as in Linux.
    let mode = match mode & libc::S_IFMT {
        0 => mode | libc::S_IFREG,
        _ => mode,
    };
    let (parent, name) = not_dir(mount, path, Errno::EEXIST, Errno::ENOENT).await?;
    let made = mount.client.mknod(&mount.maker(), parent, name, mode, rdev).await;
    made.map(drop)
}

pub(crate) async fn symlink(mount: &Mount, target: &[u8], path: &[u8]) -> Result<(), Errno> {
    let (parent, name) = not_dir(mount, path, Errno::EEXIST, Errno::ENOENT).await?;
    let made = mount.client.symlink(&mount.maker(), parent, name, target).await;
    made.map(drop)
}

/// Gives a file another name; a symbolic link too, rather than what it leads to.
pub(crate) async fn link(mount: &Mount, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let (fid, _) = mount.client.walk(&mount.cred, from, false).await?;
    let (parent, name) = not_dir(mount, to, Errno::EEXIST, Errno::ENOENT).await?;
    mount.client.link(&mount.cred, fid, parent, name).await.map(drop)
}

pub(crate) async fn rename(mount: &Mount, from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let source = last(mount, from, Errno::EBUSY).await?;
    let target = last(mount, to, Errno::EBUSY).await?;
    // With a slash behind it, it must be a directory that moves.
    if (source.dir || target.dir) && mount.client.walk(&mount.cred, from, false).await?.1 != libc::S_IFDIR {
        return Err(Errno::ENOTDIR);
    }
    let (from, to) = ((source.parent, source.name), (target.parent, target.name));
    mount.client.rename(&mount.cred, from, to).await
}

/// What a symbolic link holds.
pub(crate) async fn readlink(mount: &Mount, path: &[u8]) -> Result<bytes::Bytes, Errno> {
    let (fid, kind) = mount.client.walk(&mount.cred, path, false).await?;
    if kind != libc::S_IFLNK {
        return Err(Errno::EINVAL);
    }
    mount.client.readlink(&mount.cred, fid).await
}
