//! Attributes, access checks and extended attributes of files.

use crate::mount::Mount;
use bytes::Bytes;
use client::{Attr, SetAttr};
use std::ffi::c_int;
use wire::{Errno, Fid};

/// Largest number of attempts of an operation on a path, including the first attempt.
const ATTEMPTS_MAX: u32 = 8;
/// A uid or gid that leaves the owner or group unchanged.
pub const UNCHANGED: u32 = u32::MAX;

/// Calls `act` with the FID and the type of a path's file. If `act` fails with `ENOENT` or
/// `ESTALE`, a rename may have replaced the file, although the path existed all the time. So this
/// function then resolves the path again and retries.
///
/// # Errors
///
/// Those of [`client::Client::walk`] and of `act`.
pub async fn with_path<T, F: Future<Output = Result<T, Errno>>>(
    mount: &Mount,
    path: &[u8],
    follow: bool,
    act: impl Fn(Fid, u32) -> F,
) -> Result<T, Errno> {
    let mut attempts_left = ATTEMPTS_MAX;
    loop {
        let (fid, kind) = mount.client.walk(&mount.cred, path, follow).await?;
        attempts_left -= 1;
        match act(fid, kind).await {
            Err(Errno::ENOENT | Errno::ESTALE) if attempts_left > 0 => {}
            result => return result,
        }
    }
}

/// The attributes of a file.
///
/// # Errors
///
/// An error of a server.
pub async fn stat(mount: &Mount, fid: Fid) -> Result<Attr, Errno> {
    Ok(mount.client.getattr(&mount.cred, fid).await?.attr)
}

/// Changes attributes of a file.
///
/// # Errors
///
/// `EPERM`; or an error of a server.
pub async fn set(mount: &Mount, fid: Fid, change: &SetAttr) -> Result<(), Errno> {
    mount
        .client
        .setattr(&mount.cred, fid, change, None)
        .await
        .map(drop)
}

/// A change of permission, set-ID and sticky bits.
pub fn mode_change(mode: u32) -> SetAttr {
    SetAttr {
        mode: Some(mode & 0o7777),
        ..SetAttr::default()
    }
}

/// Changes owner and group; [`UNCHANGED`] leaves the old one. Like Linux's chown, clears set-ID
/// bits.
///
/// # Errors
///
/// `EPERM`; or an error of a server.
pub async fn chown(mount: &Mount, fid: Fid, uid: u32, gid: u32) -> Result<(), Errno> {
    let change = SetAttr {
        uid: (uid != UNCHANGED).then_some(uid),
        gid: (gid != UNCHANGED).then_some(gid),
        kill_priv: true,
        ..SetAttr::default()
    };
    set(mount, fid, &change).await
}

/// Checks that the mount's user has all permissions in `mode` (`R_OK`, `W_OK`, `X_OK`).
///
/// # Errors
///
/// `EACCES`; `EINVAL`: unknown permissions; or an error of a server.
pub async fn access(mount: &Mount, path: &[u8], mode: c_int) -> Result<(), Errno> {
    let wanted = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
    if wanted & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    with_path(mount, path, true, |fid, _| {
        mount.client.access(&mount.cred, fid, wanted)
    })
    .await
}

/// The value of an extended attribute.
///
/// # Errors
///
/// `ENODATA`: the file has no such attribute; or an error of a server.
pub async fn getxattr(mount: &Mount, path: &[u8], name: &[u8]) -> Result<Bytes, Errno> {
    with_path(mount, path, true, |fid, _| {
        mount.client.getxattr(&mount.cred, fid, name)
    })
    .await
}

/// The names of the extended attributes, each with a NUL at its end.
///
/// # Errors
///
/// An error of a server.
pub async fn listxattr(mount: &Mount, path: &[u8]) -> Result<Bytes, Errno> {
    with_path(mount, path, true, |fid, _| {
        mount.client.listxattr(&mount.cred, fid)
    })
    .await
}

/// Sets an extended attribute. `flags`: 0, `XATTR_CREATE` or `XATTR_REPLACE`.
///
/// # Errors
///
/// `EEXIST`, `ENODATA`, `EINVAL`: wrong flags; or an error of a server.
pub async fn setxattr(
    mount: &Mount,
    path: &[u8],
    (name, value): (&[u8], &[u8]),
    flags: c_int,
) -> Result<(), Errno> {
    let flags = u32::try_from(flags).map_err(|_| Errno::EINVAL)?;
    with_path(mount, path, true, |fid, _| {
        mount.client.setxattr(&mount.cred, fid, name, value, flags)
    })
    .await
}

/// Removes an extended attribute.
///
/// # Errors
///
/// `ENODATA`: the file has no such attribute; or an error of a server.
pub async fn removexattr(mount: &Mount, path: &[u8], name: &[u8]) -> Result<(), Errno> {
    with_path(mount, path, true, |fid, _| {
        mount.client.removexattr(&mount.cred, fid, name)
    })
    .await
}
