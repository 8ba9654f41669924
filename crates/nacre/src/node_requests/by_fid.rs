//! The operations of `nacre lfs` on FIDs, the creation of directories with layouts, and the removal
//! of entries of lost files, with the caller's credentials.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use client::{Client, Cred};
use wire::{Errno, Fid};

fn parse_fid(text: &str) -> Result<Fid> {
    Ok(text.parse()?)
}

/// The error message for a failed operation on an object: a FID, a path, or a description.
fn error_message(e: Errno, object: impl std::fmt::Display) -> String {
    match e {
        Errno::EPERM => format!(
            "{object}: only root and the owner of the mount may use FIDs; the mount option user_fid2path allows all users"
        ),
        Errno::ENOENT => format!("{object}: there is no such file in this mount"),
        Errno::ENODATA => {
            format!("{object}: this object has never been written, so it does not record the FID of its file")
        }
        Errno::EBUSY => format!("{object}: a client has the file open"),
        Errno::EINVAL => format!("{object}: not a FID of a file"),
        e => format!("{object}: {e}"),
    }
}

/// The paths of each file, from the root of the mount.
pub(super) async fn paths(client: &Client, cred: &Cred, fids: &[String]) -> Result<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for text in fids {
        let paths = client.fid2path(cred, parse_fid(text)?).await;
        let paths = paths.map_err(|e| anyhow::Error::msg(error_message(e, text)))?;
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        all.push(paths.iter().map(text).collect());
    }
    Ok(all)
}

/// The names of each file, as `[FID of its directory]/name`.
pub(super) async fn parents(client: &Client, cred: &Cred, paths: &[PathBuf]) -> Result<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for path in paths {
        let path = Path::new("/").join(path);
        let names = async {
            let (fid, _) = client.walk(cred, path.as_os_str().as_bytes(), false).await?;
            client.names(cred, fid).await
        };
        let names = names.await;
        let names = names.map_err(|e| anyhow::Error::msg(error_message(e, path.display())))?;
        let text = |(dir, name): &(Fid, bytes::Bytes)| format!("{dir}/{}", String::from_utf8_lossy(name));
        all.push(names.iter().map(text).collect());
    }
    Ok(all)
}

/// Removes files. Returns an error message for each file that remains, `None` for each other file.
pub(super) async fn remove(client: &Client, cred: &Cred, fids: &[String]) -> Result<Vec<Option<String>>> {
    let parsed: Vec<Fid> = fids.iter().map(|text| parse_fid(text)).collect::<Result<_>>()?;
    let results = client.rmfid(cred, &parsed).await;
    let results = results.map_err(|e| anyhow::Error::msg(error_message(e, "cannot remove files by FID")))?;
    let error = |(text, result): (&String, &Result<(), Errno>)| result.err().map(|e| error_message(e, text));
    Ok(fids.iter().zip(&results).map(error).collect())
}

/// Creates a directory with a layout (`lmv_user_md`). The path is from the root of the mount.
pub(super) async fn mkdir(client: &Client, cred: &Cred, path: &Path, mode: u32, layout: Bytes) -> Result<()> {
    let here = path.display();
    let path = Path::new("/").join(path);
    let last = client.walk_to_name(cred, path.as_os_str().as_bytes()).await;
    let Some(last) = last.with_context(|| format!("{here}"))? else {
        bail!("{here}: not a name in a directory");
    };
    match client
        .mkdir_with(cred, last.parent, last.name, mode, layout)
        .await
    {
        Ok(_) => {}
        Err(Errno::ENODEV) => bail!("{here}: the file system has no such MDT (`lfs mdts` lists them)"),
        Err(Errno::EINVAL) => bail!("{here}: the file system rejects this layout of a directory"),
        Err(Errno::EOPNOTSUPP) => {
            bail!("{here}: the servers cannot make such a directory: on Nacre's servers it has one stripe")
        }
        Err(Errno::EPERM) => bail!(
            "{here}: this user may not choose the MDT of a directory (mdt.*.enable_remote_dir and enable_remote_dir_gid)"
        ),
        Err(e) => return Err(e).with_context(|| format!("cannot create the directory {here}")),
    }
    client.forget_in_kernel(last.parent, last.name);
    Ok(())
}

/// Removes directory entries of lost files.
pub(super) async fn remove_entries(client: &Client, cred: &Cred, paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let here = path.display();
        let path = Path::new("/").join(path);
        let last = client.walk_to_name(cred, path.as_os_str().as_bytes()).await;
        let Some(last) = last.with_context(|| format!("{here}"))? else {
            bail!("{here}: not a name in a directory");
        };
        match client.rm_entry(cred, last.parent, last.name).await {
            Ok(()) => {}
            Err(Errno::EEXIST) => bail!("{here}: the file of this entry exists: use rm or rmdir"),
            Err(Errno::EPERM) => bail!("{here}: only root may remove an entry without its file"),
            Err(e) => return Err(e).with_context(|| format!("{here}")),
        }
    }
    Ok(())
}
