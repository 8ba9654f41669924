//! `nacre demo`: brings a file system up, copies a source tree in, compares it, shows what it measured.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::cli::Demo;

/// Runs the command.
pub(crate) fn run(args: Demo) -> Result<ExitCode> {
    bail!("not here yet: {args:?}")
}
