//! `nacre destroy`: stops a file system or a target and deletes it. Removes only files that Nacre
//! created. A directory with another file stays, and the command names one such file.
//!
//! The command first renames the description (`instance.json`, or the label of a target), so a half
//! destroyed file system or target cannot start. After an interruption, the same command completes
//! the work.

use std::fs;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use osd::target::{TargetDir, TargetLabel};

use super::{clean_up_after, stop};
use crate::cli::Destroy;
use crate::instance::{self, Instance};
use crate::output::{outln, shell_word};
use crate::{daemon, process, replace, saved_config, token};

/// Files of a process in a directory that it serves.
const PROCESS_FILES: [&str; 5] = ["nacre.log", "nacre.lock", "run.json", ".run.json.new", "run.sock"];

/// A file system or target to destroy.
struct DestroyPlan {
    /// The file system or target in words, for the confirmation prompt.
    what: String,
    /// Directories of the targets.
    targets: Vec<PathBuf>,
    /// Whether the directory is that of `nacre up`.
    instance: bool,
}

/// Runs the command.
pub(crate) fn run(args: Destroy) -> Result<ExitCode> {
    let dir = daemon::absolute(&args.dir)?;
    let plan = inspect(&dir)?;
    if !args.yes {
        confirm(&plan.what, &dir)?;
    }
    if let Some(process) = process::in_dir(&dir)? {
        if let Some(other) = process.dirs.iter().find(|d| **d != dir) {
            bail!(
                "process {} also serves {}: stop it first with nacre down --dir {}",
                process.pid,
                other.display(),
                shell_word(&dir)
            );
        }
        if process.up() {
            stop(&process, false)?;
        } else {
            clean_up_after(&process)?;
        }
    }
    let _lock = instance::lock(&dir)?;
    if plan.instance {
        Instance::mark_destroyed(&dir)?;
    }
    let mut kept_dirs = Vec::new();
    for target in &plan.targets {
        TargetDir::destroy(target)?;
        remove(target, &PROCESS_FILES)?;
        for name in [token::NAME, saved_config::NAME, mgs::CAPA_KEYS_FILE] {
            remove(target, &[name, &osd::files::temporary_name(name)])?;
        }
        remove(target, &[replace::NAME])?;
        if *target != dir {
            kept_dirs.extend(remove_dir(target));
        }
    }
    remove(&dir, &PROCESS_FILES)?;
    if plan.instance {
        kept_dirs.extend(remove_dir(&dir.join("mnt")));
        Instance::remove_destroyed_mark(&dir)?;
    }
    let kept_dir = remove_dir(&dir);
    // If a directory in `dir` remains, its message already has the reason.
    kept_dirs.extend(kept_dir.filter(|_| kept_dirs.is_empty()));
    outln!("destroyed {}", dir.display());
    for message in kept_dirs {
        outln!("{message}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the targets in the directory. Fails for a directory that Nacre did not create.
fn inspect(dir: &Path) -> Result<DestroyPlan> {
    if Instance::exists_in(dir) {
        let mut targets = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let path = entry?.path();
            if TargetDir::is_target(&path) {
                targets.push(path);
            }
        }
        targets.sort();
        let names: Vec<String> = targets.iter().map(|t| name_of(t)).collect();
        let what = match names.is_empty() {
            true => "the file system".to_owned(),
            false => format!("the file system with {}", names.join(" ")),
        };
        return Ok(DestroyPlan {
            what,
            targets,
            instance: true,
        });
    }
    if TargetDir::is_target(dir) {
        let what = TargetLabel::read(dir).map_or_else(|_| "a target".to_owned(), |label| label.svname());
        return Ok(DestroyPlan {
            what,
            targets: vec![dir.to_owned()],
            instance: false,
        });
    }
    bail!(
        "{} was created neither by `nacre up` nor by `nacre mkfs`: nothing was removed",
        dir.display()
    )
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Asks for confirmation on a terminal. Fails without a terminal, or if the answer is not yes.
fn confirm(what: &str, dir: &Path) -> Result<()> {
    let here = dir.display();
    if !std::io::stdin().is_terminal() {
        bail!("this deletes {what} in {here} with all data: confirm with --yes");
    }
    crate::output::write(format_args!(
        "This stops {what} in {here} and deletes it with all data. Type yes to continue: "
    ));
    let _ = std::io::stdout().flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        bail!("not confirmed: nothing was removed");
    }
    Ok(())
}

/// Removes the named files that exist.
fn remove(dir: &Path, names: &[&str]) -> Result<()> {
    for name in names {
        let path = dir.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("cannot remove {}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes an empty directory. Returns a message with the reason if the directory remains.
fn remove_dir(dir: &Path) -> Option<String> {
    let here = dir.display();
    match fs::remove_dir(dir) {
        Ok(()) => None,
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
            let other = fs::read_dir(dir).into_iter().flatten().flatten().next();
            let name = other.map(|e| name_of(&e.path())).unwrap_or_default();
            Some(format!(
                "{here} was kept: it contains '{name}', which Nacre did not create"
            ))
        }
        // For example, the directory is a mount point or a symbolic link.
        Err(e) => Some(format!("{here} was kept: {e}")),
    }
}
