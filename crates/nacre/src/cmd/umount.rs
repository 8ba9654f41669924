//! `nacre umount`: unmounts, or detaches the mount of a dead process.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::EXIT_MAX;
use crate::cli::Umount;
use crate::control::{self, Request};
use crate::output::outln;
use crate::process_node::STOP_MAX;
use crate::{daemon, mounts, process};

/// Runs the command.
pub(crate) fn run(args: Umount) -> Result<ExitCode> {
    // If the path cannot be resolved (for example, the directory is missing), use the path
    // unchanged: the error follows below.
    let path = fuse::real_path(&args.mountpoint).unwrap_or(args.mountpoint);
    daemon::leave_working_directory();
    match process::with_mount(&path) {
        Some(process) if process.is_up() => {
            let request = Request::Umount {
                mountpoint: path.clone(),
                lazy: args.lazy,
            };
            let process_exits = match control::call(&process.control, &request, STOP_MAX) {
                Ok(answer) => answer["ends"].as_bool() == Some(true),
                Err(e)
                    if e.is::<control::Refused>()
                        || fuse::mounted_at(&path).is_some_and(|m| m.is_nacre()) =>
                {
                    return Err(e);
                }
                // The process exited before its answer left.
                Err(_) => true,
            };
            if process_exits && !process.wait_for_exit(EXIT_MAX) {
                bail!(
                    "{} is unmounted, but process {} does not exit; its log is {}",
                    path.display(),
                    process.pid,
                    process.log.display()
                );
            }
        }
        Some(_) => {
            if mounts::force_detach(&path)? {
                outln!("the process of this mount had died; cleaned up");
            }
        }
        None if mounts::detach_if_dead(&path)? => outln!("the process of this mount had died; cleaned up"),
        None => match fuse::mounted_at(&path) {
            None => bail!("{} is not a mount point", path.display()),
            // A mount of a process without a record. A process of `nacre mount` exits with its last
            // mount.
            Some(m) if m.is_nacre() => {
                fuse::unmount(&path, args.lazy).map_err(|e| mounts::busy_error(e, &path))?;
            }
            Some(_) => bail!("{} is not a mount of nacre", path.display()),
        },
    }
    outln!("unmounted {}", path.display());
    Ok(ExitCode::SUCCESS)
}
