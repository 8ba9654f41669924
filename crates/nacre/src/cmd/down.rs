//! `nacre down`: unmounts and stops the process that serves a directory; cleans up after a dead
//! process.

use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{clean_up_after, dir_or_default, stop};
use crate::cli::Down;
use crate::output::outln;
use crate::{daemon, process};

/// Runs the command.
pub(crate) fn run(args: Down) -> Result<ExitCode> {
    let dir = dir_or_default(args.dir.as_deref())?;
    daemon::leave_working_directory();
    let Some(record) = process::in_dir(&dir)? else {
        bail!(
            "no nacre process runs in {} (`nacre status` lists all processes)",
            dir.display()
        );
    };
    if !record.is_up() {
        outln!("nacre (process {}) had died; cleaned up after it", record.pid);
        for line in clean_up_after(&record)? {
            outln!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    stop(&record, args.lazy)?;
    outln!("down: {}", dir.display());
    Ok(ExitCode::SUCCESS)
}
