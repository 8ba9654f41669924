//! `nacre lfs`: striping, files by their attributes, servers, free space and FIDs, with the options
//! of Lustre's lfs.
//!
//! The command reads and sets layouts through the mount (extended attributes), so the file system
//! checks the user's permission. It asks the process of the mount for space, FIDs, paths and names,
//! and has this process remove files by FID and entries of lost files.

mod amount;
mod df;
mod find;
mod foreign;
mod getdirstripe;
mod getstripe;
mod layout;
mod setdirstripe;
mod targets;

pub(crate) use df::Target;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::Lfs;
use crate::control::{self, Request};
use crate::node_requests::InodeIds;
use crate::output::{errln, outln};
use crate::process::{self, MountRecord, ProcessRecord};

/// Time limit for an answer of the process.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Runs the command.
pub(crate) fn run(args: Lfs) -> Result<ExitCode> {
    match args {
        Lfs::Setstripe(args) => {
            let request = layout::LayoutRequest::new(&args)?;
            args.paths
                .iter()
                .try_for_each(|path| layout::set(path, &request))?;
        }
        Lfs::Getstripe(args) => return getstripe::run(&args),
        Lfs::Mkdir(args) | Lfs::Setdirstripe(args) => setdirstripe::run(&args)?,
        Lfs::Getdirstripe(args) => return getdirstripe::run(&args),
        Lfs::Find { args } => return find::run(&args),
        Lfs::Osts(args) => targets::list(&args, "osc")?,
        Lfs::Mdts(args) => targets::list(&args, "mdc")?,
        Lfs::Check { kind, list } => return targets::check(kind, &list),
        Lfs::Getname(args) => targets::names(&args)?,
        Lfs::Df(args) => df::run(&args)?,
        Lfs::Path2fid { parents: true, paths } => print_parents(&paths)?,
        Lfs::Path2fid {
            parents: false,
            paths,
        } => print_fids(&paths)?,
        Lfs::Fid2path { path, fids } => {
            let (record, mount) = process::by_path(&path)?;
            let request = Request::Fid2path {
                mountpoint: mount.mountpoint.clone(),
                fids,
            };
            let lists: Vec<Vec<String>> = ask(&record, &request)?;
            for path in lists.into_iter().flatten() {
                outln!(
                    "{}",
                    mount.mountpoint.join(path.trim_start_matches('/')).display()
                );
            }
        }
        Lfs::Rmfid { path, fids } => return rmfid(&path, fids),
        Lfs::RmEntry { paths } => rm_entry(&paths)?,
        Lfs::UnlinkForeign { paths } => foreign::unlink(&paths)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the names of each file, as the FID of its directory and the name.
fn print_parents(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let (record, mount) = process::by_path(path)?;
        let request = Request::Parents {
            mountpoint: mount.mountpoint.clone(),
            paths: vec![relative_to_mount(path, &mount)?],
        };
        let lists: Vec<Vec<String>> = ask(&record, &request)?;
        for name in lists.into_iter().flatten() {
            outln!("{name}");
        }
    }
    Ok(())
}

/// Removes files by FID and prints an error for each file that remains.
fn rmfid(path: &Path, fids: Vec<String>) -> Result<ExitCode> {
    let (record, mount) = process::by_path(path)?;
    let request = Request::Rmfid {
        mountpoint: mount.mountpoint,
        fids,
    };
    let errors: Vec<Option<String>> = ask(&record, &request)?;
    let errors: Vec<String> = errors.into_iter().flatten().collect();
    for error in &errors {
        errln!("nacre: {error}");
    }
    Ok(match errors.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn rm_entry(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        // The file of the entry is lost, so only the directory can be resolved.
        let name = path
            .file_name()
            .with_context(|| format!("{}: the path does not end in a name", path.display()))?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let (record, mount) = process::by_path(dir)?;
        let request = Request::RmEntry {
            mountpoint: mount.mountpoint.clone(),
            paths: vec![relative_to_mount(dir, &mount)?.join(name)],
        };
        ask::<Value>(&record, &request)?;
    }
    Ok(())
}

fn print_fids(paths: &[PathBuf]) -> Result<()> {
    for path in paths {
        let fid = fid_of(path)?;
        match paths.len() {
            1 => outln!("{fid}"),
            _ => outln!("{}: {fid}", path.display()),
        }
    }
    Ok(())
}

fn fid_of(path: &Path) -> Result<String> {
    ask_about(path, |mountpoint, paths| Request::Path2fid { mountpoint, paths })
}

/// The FID, project and MDT of a file; follows symbolic links.
fn ids_of(path: &Path) -> Result<InodeIds> {
    ask_about(path, |mountpoint, paths| Request::Inodes { mountpoint, paths })
}

/// Asks the process of the mount about one path.
fn ask_about<T: DeserializeOwned>(
    path: &Path,
    request: impl FnOnce(PathBuf, Vec<PathBuf>) -> Request,
) -> Result<T> {
    let (record, mount) = process::by_path(path)?;
    let paths = vec![relative_to_mount(path, &mount)?];
    let mut answers: Vec<T> = ask(&record, &request(mount.mountpoint.clone(), paths))?;
    answers
        .pop()
        .with_context(|| format!("{}: the process of the mount sent no answer", path.display()))
}

/// The mount at or above a path, or without a path all mounts.
fn mounts_at(path: Option<&Path>) -> Result<Vec<(ProcessRecord, MountRecord)>> {
    if let Some(path) = path {
        return Ok(vec![process::by_path(path)?]);
    }
    let mounts: Vec<_> = process::all()
        .into_iter()
        .flat_map(|r| r.mounts.clone().into_iter().map(move |m| (r.clone(), m)))
        .collect();
    if mounts.is_empty() {
        bail!("no file system is mounted (see `nacre status`)");
    }
    Ok(mounts)
}

/// The path relative to the mount's root; follows symbolic links.
fn relative_to_mount(path: &Path, mount: &MountRecord) -> Result<PathBuf> {
    let resolved = std::fs::canonicalize(path).with_context(|| format!("{}", path.display()))?;
    Ok(resolved
        .strip_prefix(&mount.mountpoint)
        .map(Path::to_path_buf)
        .unwrap_or_default())
}

/// Sends a request to a process and decodes the answer.
fn ask<T: DeserializeOwned>(record: &ProcessRecord, request: &Request) -> Result<T> {
    control::decode(control::call(&record.control, request, ANSWER_MAX)?)
}
