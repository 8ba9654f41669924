//! `nacre install-links`: links with the names of Lustre's tools to this binary.
//!
//! The command checks all names first, and changes nothing if one belongs to another program. Each
//! link appears or changes in one step. After a failure the command removes the links that it made.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::cli::{InstallLinks, TOOLS};
use crate::output::outln;

/// The state of a name in the directory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The link to this binary.
    Ours,
    /// A link to another binary of Nacre, such as that of an older version.
    OtherNacre,
}

/// Runs the command.
pub(crate) fn run(args: &InstallLinks) -> Result<ExitCode> {
    let binary = std::env::current_exe().context("cannot find the nacre binary")?;
    let dir = &args.dir;
    if !dir.is_dir() {
        bail!("{} is not a directory: create it first", dir.display());
    }
    let paths = TOOLS.iter().map(|(name, _)| dir.join(name));
    let names: Vec<(PathBuf, Found)> = paths
        .map(|path| look_up(&path, &binary).map(|found| (path, found)))
        .collect::<Result<_>>()?;
    let mut new: Vec<&Path> = Vec::new();
    for (path, found) in names.iter().filter(|(_, found)| *found != Found::Ours) {
        if let Err(e) = install(path, &binary, *found) {
            for path in new {
                let _ = fs::remove_file(path);
            }
            return Err(e);
        }
        if *found == Found::Nothing {
            new.push(path);
        }
    }
    for (path, found) in &names {
        let what = match found {
            Found::Nothing => "new",
            Found::Ours => "unchanged",
            Found::OtherNacre => "replaced",
        };
        outln!("{} -> {} ({what})", path.display(), binary.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Examines the file with a link's name. Fails if it is not a link to a binary of Nacre.
fn look_up(path: &Path, binary: &Path) -> Result<Found> {
    match fs::read_link(path) {
        Ok(target) if target == binary => Ok(Found::Ours),
        Ok(target) if target.file_name() == Some("nacre".as_ref()) => Ok(Found::OtherNacre),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        Ok(_) => refuse(path),
        // Not a link.
        Err(e) if e.kind() == ErrorKind::InvalidInput => refuse(path),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn refuse(path: &Path) -> Result<Found> {
    bail!(
        "{} belongs to another program, perhaps to Lustre: remove it, or choose another directory; no link was made",
        path.display()
    )
}

/// Makes or replaces a link in one step. Fails if another program makes the name meanwhile.
fn install(path: &Path, binary: &Path, found: Found) -> Result<()> {
    let cannot = || format!("cannot make the link {}", path.display());
    let new = path.with_extension(format!("new-{}", std::process::id()));
    symlink(binary, &new).with_context(cannot)?;
    let flags = match found {
        Found::Nothing => RenameFlags::NOREPLACE,
        _ => RenameFlags::empty(),
    };
    let renamed = match renameat_with(CWD, &new, CWD, path, flags) {
        Err(Errno::EXIST) => refuse(path).map(drop),
        renamed => renamed.with_context(cannot),
    };
    if renamed.is_err() {
        let _ = fs::remove_file(&new);
    }
    renamed
}
