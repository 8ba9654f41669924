//! `nacre lfs`: striping, free space and FIDs, with the options of Lustre's lfs.
//!
//! Layouts are read and set through the mount (extended attribute `lustre.lov`), so the file system
//! checks the user's permission. Space and FIDs come from the process of the mount.

mod df;
mod layout;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cli::Lfs;
use crate::control::{self, Request};
use crate::output::outln;
use crate::process::{self, MountRecord, ProcessRecord};

const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(args: Lfs) -> Result<ExitCode> {
    match args {
        Lfs::Setstripe {
            stripe_count,
            stripe_size,
            stripe_index,
            delete,
            paths,
        } => {
            let wanted =
                layout::LayoutRequest::new(stripe_count, stripe_size.as_deref(), stripe_index, delete)?;
            paths.iter().try_for_each(|path| layout::set(path, &wanted))?;
        }
        Lfs::Getstripe {
            stripe_count,
            stripe_size,
            stripe_index,
            directory,
            paths,
        } => {
            let only = layout::FieldFilter {
                stripe_count,
                stripe_size,
                stripe_index,
            };
            paths
                .iter()
                .try_for_each(|path| layout::show(path, &only, directory))?;
        }
        Lfs::Df {
            inodes,
            human,
            path,
            help: _,
        } => df::run(path.as_deref(), inodes, human)?,
        Lfs::Path2fid { parents: true, paths } => parents(&paths)?,
        Lfs::Path2fid {
            parents: false,
            paths,
        } => path2fid(&paths)?,
        Lfs::Fid2path { path, fids } => {
            let (running, mount) = process::by_path(&path)?;
            let request = Request::Fid2path {
                mountpoint: mount.mountpoint.clone(),
                fids,
            };
            for found in lists(ask(&running, &request)?).into_iter().flatten() {
                outln!(
                    "{}",
                    mount.mountpoint.join(found.trim_start_matches('/')).display()
                );
            }
        }
        Lfs::Rmfid { path, fids } => return rmfid(&path, fids),
        Lfs::RmEntry { paths } => rm_entry(&paths)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn parents(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let (running, mount) = process::by_path(path)?;
        let request = Request::Parents {
            mountpoint: mount.mountpoint.clone(),
            paths: vec![below(path, &mount)?],
        };
        for name in lists(ask(&running, &request)?).into_iter().flatten() {
            outln!("{name}");
        }
    }
    Ok(())
}

/// Removes files by FID and prints an error for each failure.
fn rmfid(path: &Path, fids: Vec<String>) -> Result<ExitCode> {
    let (running, mount) = process::by_path(path)?;
    let request = Request::Rmfid {
        mountpoint: mount.mountpoint,
        fids,
    };
    let failed: Vec<Option<String>> = serde_json::from_value(ask(&running, &request)?)?;
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    for why in &failed {
        eprintln!("nacre: {why}");
    }
    Ok(match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn rm_entry(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        // The entry's object is gone, so only its directory can be resolved.
        let name = path
            .file_name()
            .with_context(|| format!("{}: the path does not end in a name", path.display()))?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let (running, mount) = process::by_path(dir)?;
        let request = Request::RmEntry {
            mountpoint: mount.mountpoint.clone(),
            paths: vec![below(dir, &mount)?.join(name)],
        };
        ask(&running, &request)?;
    }
    Ok(())
}

fn path2fid(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let (running, mount) = process::by_path(path)?;
        let request = Request::Path2fid {
            mountpoint: mount.mountpoint.clone(),
            paths: vec![below(path, &mount)?],
        };
        for fid in strings(ask(&running, &request)?) {
            if paths.len() > 1 {
                crate::output::write(format_args!("{}: ", path.display()));
            }
            outln!("{fid}");
        }
    }
    Ok(())
}

/// The path relative to the mount's root.
fn below(path: &Path, mount: &MountRecord) -> Result<PathBuf> {
    let whole = std::fs::canonicalize(path).with_context(|| format!("{}", path.display()))?;
    Ok(whole
        .strip_prefix(&mount.mountpoint)
        .map(Path::to_path_buf)
        .unwrap_or_default())
}

fn ask(running: &ProcessRecord, request: &Request) -> Result<Value> {
    control::call(&running.control, request, ANSWER_MAX)
}

fn lists(value: Value) -> Vec<Vec<String>> {
    serde_json::from_value(value).unwrap_or_default()
}

fn strings(value: Value) -> Vec<String> {
    serde_json::from_value(value).unwrap_or_default()
}
