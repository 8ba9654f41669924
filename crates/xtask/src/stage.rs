//! Runs an external command as a named stage.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A named stage of a command.
pub(crate) struct Stage(&'static str);

impl Stage {
    /// Begins a stage: prints its name.
    pub(crate) fn new(name: &'static str) -> Stage {
        println!("=== {name}");
        Stage(name)
    }

    /// Runs the command; a failure is an error with the name of the stage.
    pub(crate) fn run(&self, command: impl std::borrow::BorrowMut<Command>) -> Result<(), String> {
        let start = Instant::now();
        let mut command = command;
        let command = command.borrow_mut();
        let status = command.status().map_err(|e| {
            format!(
                "!!! {}: cannot run {}: {e}",
                self.0,
                command.get_program().display()
            )
        })?;
        if !status.success() {
            return Err(format!("!!! {} failed ({status}): {command:?}", self.0));
        }
        println!("=== {} done in {:.0} s", self.0, start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Whether the command succeeds.
    pub(crate) fn passes(&self, mut command: Command) -> bool {
        command.status().is_ok_and(|s| s.success())
    }
}

/// The cargo that runs this program, in the workspace's root.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// The root directory of the workspace.
pub(crate) fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// Cargo's directory of built files.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}
