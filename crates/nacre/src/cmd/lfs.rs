//! `nacre lfs`: striping, free space and FIDs.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::Lfs;

/// Runs the command.
pub(crate) fn run(args: Lfs) -> Result<ExitCode> {
    bail!("not here yet: {args:?}")
}
