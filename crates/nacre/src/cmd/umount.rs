//! `nacre umount`: undo `nacre mount`, or detach a mount whose process died.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::stop;
use crate::cli::Umount;
use crate::output::say;
use crate::{daemon, mounts, running};

/// Runs the command.
pub(crate) fn run(args: Umount) -> Result<ExitCode> {
    let path = daemon::absolute(&args.mountpoint)?;
    let owner = running::all()
        .into_iter()
        .rfind(|r| r.mounts.iter().any(|m| m.mountpoint == path));
    let (owner, detached) = match owner {
        Some(r) if r.up() => (Some(r), false),
        Some(_) => (None, mounts::detach_of_dead(&path)?),
        None => (None, mounts::detach_stale(&path)?),
    };
    match owner {
        Some(r) if r.role == "mount" => stop(&r, args.lazy)?,
        Some(r) => {
            let dir = r
                .dirs
                .first()
                .map(|d| d.display().to_string())
                .unwrap_or_default();
            bail!(
                "{} belongs to a whole file system: use `nacre down --dir {dir}`",
                path.display()
            );
        }
        None if detached => say!("its process had died; cleaned up"),
        None if fuse::mounted_at(&path).is_none() => bail!("{} is not a mount point", path.display()),
        None => bail!("{} is not a mount of a running nacre", path.display()),
    }
    say!("unmounted {}", path.display());
    Ok(ExitCode::SUCCESS)
}
