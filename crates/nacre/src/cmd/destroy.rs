//! `nacre destroy`: stops a file system or a target and deletes it. Only what Nacre made is removed; what else is in the
//! directory stays, and is named. An interrupted command is finished by the next one: the description is renamed first, so that
//! nothing half deleted is started.

use std::fs;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use osd::target::{TargetDir, TargetLabel};

use super::{clean_up_after, stop};
use crate::cli::Destroy;
use crate::instance::{self, Instance};
use crate::output::say;
use crate::{daemon, own_config, replace, running, token};

/// What a process leaves in a directory that it works for.
const OF_PROCESSES: [&str; 5] = ["nacre.log", "nacre.lock", "run.json", ".run.json.new", "run.sock"];

/// What is to be destroyed.
struct Found {
    /// For the question.
    what: String,
    /// Directories of targets.
    targets: Vec<PathBuf>,
    /// Whether the directory is that of `nacre up`.
    instance: bool,
}

/// Runs the command.
pub(crate) fn run(args: Destroy) -> Result<ExitCode> {
    let dir = daemon::absolute(&args.dir)?;
    let found = look(&dir)?;
    if !args.yes {
        confirm(&found.what, &dir)?;
    }
    if let Some(process) = running::in_dir(&dir)? {
        if let Some(other) = process.dirs.iter().find(|d| **d != dir) {
            bail!(
                "process {} serves {} as well: stop it first, with nacre down --dir {}",
                process.pid,
                other.display(),
                dir.display()
            );
        }
        if process.up() {
            stop(&process, false)?;
        } else {
            clean_up_after(&process)?;
        }
    }
    let _lock = instance::lock(&dir)?;
    if found.instance {
        Instance::begin_to_destroy(&dir)?;
    }
    let mut kept = Vec::new();
    for target in &found.targets {
        TargetDir::destroy(target)?;
        remove(target, &OF_PROCESSES)?;
        for name in [token::NAME, own_config::NAME, mgs::CAPA_KEYS_FILE] {
            remove(target, &[name, &osd::files::temporary_name(name)])?;
        }
        remove(target, &[replace::NAME])?;
        if *target != dir {
            kept.extend(remove_dir(target));
        }
    }
    remove(&dir, &OF_PROCESSES)?;
    if found.instance {
        kept.extend(remove_dir(&dir.join("mnt")));
        Instance::end_to_destroy(&dir)?;
    }
    let here = remove_dir(&dir);
    // The directories in it say why better than it does.
    kept.extend(here.filter(|_| kept.is_empty()));
    say!("destroyed {}", dir.display());
    for why in kept {
        say!("{why}");
    }
    Ok(ExitCode::SUCCESS)
}

/// What is in the directory; refuses one that Nacre has not made.
fn look(dir: &Path) -> Result<Found> {
    if Instance::is_in(dir) {
        let mut targets = Vec::new();
        for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
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
        return Ok(Found {
            what,
            targets,
            instance: true,
        });
    }
    if TargetDir::is_target(dir) {
        let what = TargetLabel::read(dir).map_or_else(|_| "a target".to_owned(), |label| label.svname());
        return Ok(Found {
            what,
            targets: vec![dir.to_owned()],
            instance: false,
        });
    }
    bail!(
        "{} is neither a directory of `nacre up` nor one of `nacre mkfs`: nothing was removed",
        dir.display()
    )
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Asks on a terminal; elsewhere `--yes` is needed.
fn confirm(what: &str, dir: &Path) -> Result<()> {
    let here = dir.display();
    if !std::io::stdin().is_terminal() {
        bail!("this deletes {what} in {here} with all data: confirm with --yes");
    }
    crate::output::write(format_args!(
        "This stops {what} in {here} and deletes it with all data. Type yes to go on: "
    ));
    let _ = std::io::stdout().flush();
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    if answer.trim() != "yes" {
        bail!("nothing was removed");
    }
    Ok(())
}

/// Removes files by name, those that are there.
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

/// Removes a directory if nothing is in it; says why it stays otherwise.
fn remove_dir(dir: &Path) -> Option<String> {
    let here = dir.display();
    match fs::remove_dir(dir) {
        Ok(()) => None,
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {
            let other = fs::read_dir(dir).into_iter().flatten().flatten().next();
            let name = other.map(|e| name_of(&e.path())).unwrap_or_default();
            Some(format!(
                "{here} stays: '{name}' is in it, which Nacre did not make"
            ))
        }
        // A mount point, or a symbolic link to where the target is.
        Err(e) => Some(format!("{here} stays: {e}")),
    }
}
