//! `nacre destroy`: stops a file system or a target and deletes it. Removes only files that Nacre
//! created. A directory with another file stays, and the command names one such file.
//!
//! The command first renames the description (`instance.json`, or the label of a target), so a
//! half-destroyed file system or target cannot start. After an interruption, the same command
//! completes the work.

use std::fs;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use node::{REPLACE_MARK, SAVED_CONFIG_FILE};
use osd::target::{TargetDir, TargetLabel};

use super::serve::ADDRESS_FILE;
use super::{clean_up_after, stop};
use crate::cli::Destroy;
use crate::instance::{self, Instance};
use crate::output::{outln, shell_word};
use crate::{daemon, process, token};

/// Files of a process in a directory that it serves.
const PROCESS_FILES: [&str; 5] = ["nacre.log", "nacre.lock", "run.json", ".run.json.new", "run.sock"];

/// A file system or target to destroy.
struct DestroyPlan {
    /// Description of the file system or target, for the confirmation prompt.
    description: String,
    /// Directories of the targets.
    targets: Vec<PathBuf>,
    /// Whether `nacre up` created the directory.
    is_instance: bool,
}

/// Runs the command.
pub(crate) fn run(args: Destroy) -> Result<ExitCode> {
    let dir = daemon::make_absolute(&args.dir)?;
    let plan = make_plan(&dir)?;
    if !args.yes {
        confirm(&plan.description, &dir)?;
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
        if process.is_up() {
            stop(&process, false)?;
        } else {
            clean_up_after(&process)?;
        }
    }
    let _lock = instance::lock(&dir)?;
    if plan.is_instance {
        Instance::mark_destroyed(&dir)?;
    }
    let mut kept_messages = Vec::new();
    for target in &plan.targets {
        TargetDir::destroy(target)?;
        remove_files(target, &PROCESS_FILES)?;
        for name in [token::NAME, ADDRESS_FILE, SAVED_CONFIG_FILE, mgs::CAPA_KEYS_FILE] {
            remove_files(target, &[name, &osd::files::temporary_name(name)])?;
        }
        remove_files(target, &[REPLACE_MARK])?;
        if *target != dir {
            kept_messages.extend(remove_dir(target));
        }
    }
    remove_files(&dir, &PROCESS_FILES)?;
    if plan.is_instance {
        kept_messages.extend(remove_dir(&dir.join("mnt")));
        Instance::remove_destroyed_mark(&dir)?;
    }
    let kept_message = remove_dir(&dir);
    // If a directory in `dir` remains, its message already has the reason.
    kept_messages.extend(kept_message.filter(|_| kept_messages.is_empty()));
    outln!("destroyed {}", dir.display());
    for message in kept_messages {
        outln!("{message}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Finds the targets to destroy. Fails for a directory that Nacre did not create.
fn make_plan(dir: &Path) -> Result<DestroyPlan> {
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
        let description = match names.is_empty() {
            true => "the file system".to_owned(),
            false => format!("the file system with {}", names.join(" ")),
        };
        return Ok(DestroyPlan {
            description,
            targets,
            is_instance: true,
        });
    }
    if TargetDir::is_target(dir) {
        let description =
            TargetLabel::read(dir).map_or_else(|_| "a target".to_owned(), |label| label.svname());
        return Ok(DestroyPlan {
            description,
            targets: vec![dir.to_owned()],
            is_instance: false,
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
fn confirm(description: &str, dir: &Path) -> Result<()> {
    let here = dir.display();
    if !std::io::stdin().is_terminal() {
        bail!("this deletes {description} in {here} with all data: confirm with --yes");
    }
    crate::output::write(format_args!(
        "This stops {description} in {here} and deletes it with all data. Type yes to continue: "
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
fn remove_files(dir: &Path, names: &[&str]) -> Result<()> {
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
