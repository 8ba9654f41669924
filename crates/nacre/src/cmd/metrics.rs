//! `nacre metrics`: prints the metrics of a running process.

use std::process::ExitCode;

use anyhow::Result;

use super::lctl::find_process;
use crate::cli::Metrics;
use crate::control::{self, Request};
use crate::output::outln;

/// Runs the command.
pub(crate) fn run(args: &Metrics) -> Result<ExitCode> {
    let process = find_process(args.dir.as_deref(), args.mount.as_deref())?;
    let answer = control::call(&process.control, &Request::Metrics, super::ANSWER_MAX)?;
    let text: String = control::decode(answer)?;
    outln!("{}", text.trim_end());
    Ok(ExitCode::SUCCESS)
}
