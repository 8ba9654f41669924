//! `nacre install-links`: links with the names of Lustre's tools to this binary.
//!
//! The command checks all names first, and changes nothing if one belongs to another program. Each
//! link appears or changes in one step. After a failure the command removes the links that it made
//! and restores those that it replaced; if that fails too, the error names them.

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
#[derive(Clone, Debug, PartialEq, Eq)]
enum NameState {
    /// The name does not exist.
    Absent,
    /// A link to this binary.
    Current,
    /// A link to another binary of Nacre, such as that of an older version; its target.
    OtherNacre(PathBuf),
}

/// Runs the command.
pub(crate) fn run(args: &InstallLinks) -> Result<ExitCode> {
    let binary = std::env::current_exe().context("cannot find the nacre binary")?;
    // The kernel appends " (deleted)" to the path of a removed or replaced binary.
    if !binary.is_file() {
        bail!(
            "the binary of this command was removed or replaced: {}: run the installed nacre",
            binary.display()
        );
    }
    let dir = &args.dir;
    if !dir.is_dir() {
        bail!("{} is not a directory: create it first", dir.display());
    }
    let names = inspect_names(dir, &binary).context("no link was changed")?;
    make_links(&names, &binary)?;
    for (path, state) in &names {
        let change = match state {
            NameState::Absent => "new",
            NameState::Current => "unchanged",
            NameState::OtherNacre(_) => "replaced",
        };
        outln!("{} -> {} ({change})", path.display(), binary.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Examines the names of the tools in a directory. Fails if one belongs to another program. A link
/// belongs to Nacre if its target is called `nacre`. Links to a binary with another name, such as
/// `nacre-0.1`, belong to Nacre if there are several and all lead to the same file: no other
/// program acts as all tools.
fn inspect_names(dir: &Path, binary: &Path) -> Result<Vec<(PathBuf, NameState)>> {
    let mut names = Vec::new();
    for (name, _) in TOOLS {
        let path = dir.join(name);
        let target = match fs::read_link(&path) {
            Ok(target) => Some(target),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            // Not a link.
            Err(e) if e.kind() == ErrorKind::InvalidInput => return refuse(&path),
            Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
        };
        names.push((path, target));
    }
    let existing: Vec<PathBuf> = names
        .iter()
        .filter_map(|(_, target)| target.as_ref())
        .map(|target| resolve(&dir.join(target)))
        .collect();
    // A single link proves nothing: its program may be only this one tool.
    let all_one_file = existing.len() > 1 && existing.windows(2).all(|pair| pair[0] == pair[1]);
    let states = names.into_iter().map(|(path, target)| {
        let state = match target {
            None => NameState::Absent,
            Some(target) if target == binary => NameState::Current,
            Some(target) if all_one_file || target.ends_with("nacre") => NameState::OtherNacre(target),
            Some(_) => return refuse(&path),
        };
        Ok((path, state))
    });
    states.collect()
}

/// The file to which a path leads; the path itself if that file does not exist.
fn resolve(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

fn refuse<T>(path: &Path) -> Result<T> {
    bail!(
        "{} belongs to another program, perhaps to Lustre: remove it, or choose another directory",
        path.display()
    )
}

/// Makes and replaces links. After a failure, undoes the changes.
fn make_links(names: &[(PathBuf, NameState)], binary: &Path) -> Result<()> {
    for (i, (path, state)) in names.iter().enumerate() {
        let result = match state {
            NameState::Current => Ok(()),
            NameState::Absent => install(path, binary, RenameFlags::NOREPLACE),
            NameState::OtherNacre(_) => install(path, binary, RenameFlags::empty()),
        };
        let Err(error) = result else {
            continue;
        };
        let remaining: Vec<String> = names[..i]
            .iter()
            .filter(|(path, state)| undo(path, state).is_err())
            .map(|(path, _)| path.display().to_string())
            .collect();
        return Err(error.context(match remaining.is_empty() {
            true => "no link was changed".to_owned(),
            false => format!("only these links were changed: {}", remaining.join(", ")),
        }));
    }
    Ok(())
}

/// Removes or restores a link.
fn undo(path: &Path, state: &NameState) -> Result<()> {
    match state {
        NameState::Current => Ok(()),
        NameState::Absent => Ok(fs::remove_file(path)?),
        NameState::OtherNacre(target) => install(path, target, RenameFlags::empty()),
    }
}

/// Makes or replaces a link in one step. With `NOREPLACE`, fails if another program makes the name
/// meanwhile.
fn install(path: &Path, target: &Path, flags: RenameFlags) -> Result<()> {
    let cannot = || format!("cannot make the link {}", path.display());
    let new = path.with_extension(format!("new-{}", std::process::id()));
    symlink(target, &new).with_context(cannot)?;
    let renamed = match renameat_with(CWD, &new, CWD, path, flags) {
        Err(Errno::EXIST) => refuse(path),
        renamed => renamed.with_context(cannot),
    };
    if renamed.is_err() {
        let _ = fs::remove_file(&new);
    }
    renamed
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The targets of all links in a directory, by name.
    fn links(dir: &Path) -> Vec<(String, PathBuf)> {
        let mut links: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), fs::read_link(&path).ok()?)))
            .collect();
        links.sort();
        links
    }

    #[test]
    fn failure_removes_new_links_and_restores_replaced_ones() {
        let dir = tempfile::tempdir().unwrap();
        let old = PathBuf::from("/old/nacre");
        let path = |name| dir.path().join(name);
        symlink(&old, path("lfs")).unwrap();
        // Another program makes this name between the check and the change.
        fs::write(path("lst"), "lustre").unwrap();
        let names = [
            (path("lfs"), NameState::OtherNacre(old.clone())),
            (path("lctl"), NameState::Absent),
            (path("lst"), NameState::Absent),
        ];
        let error = crate::output::describe(&make_links(&names, Path::new("/new/nacre")).unwrap_err());
        assert!(
            error.starts_with("no link was changed: ") && error.contains("/lst belongs to another"),
            "{error}"
        );
        assert_eq!(links(dir.path()), [("lfs".to_owned(), old)]);
        assert_eq!(fs::read(path("lst")).unwrap(), b"lustre");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn links_to_a_versioned_binary_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["v1/nacre-0.1", "v2/nacre-0.2"] {
            let binary = dir.path().join(version);
            fs::create_dir_all(binary.parent().unwrap()).unwrap();
            fs::write(&binary, "").unwrap();
            let bin = dir.path().join("bin");
            fs::create_dir_all(&bin).unwrap();
            make_links(&inspect_names(&bin, &binary).unwrap(), &binary).unwrap();
            let links = links(&bin);
            assert_eq!(links.len(), TOOLS.len());
            assert!(links.iter().all(|(_, target)| *target == binary), "{links:?}");
        }
    }

    #[test]
    fn links_to_different_programs_or_a_lone_link_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name| dir.path().join(name);
        symlink("lustre/lfs", path("lfs")).unwrap();
        let binary = path("nacre");
        assert!(inspect_names(dir.path(), &binary).is_err());
        symlink("lustre/lctl", path("lctl")).unwrap();
        assert!(inspect_names(dir.path(), &binary).is_err());
    }
}
