//! `nacre bench fsx`: random operations on one file, verified against a copy in memory.

use std::process::ExitCode;

use anyhow::Result;
use bench::BenchError;
use serde_json::json;

use super::stop_flag;
use crate::cli::Fsx;
use crate::interrupt;
use crate::output::{errln, outln};
use crate::progress::ProgressLine;

/// Runs the command.
pub(super) fn run(args: &Fsx) -> Result<ExitCode> {
    let config = bench::fsx::Config {
        seed: args.seed,
        operations: args.ops,
        direct: args.direct,
        mapped: args.mmap,
        size_max: args.size << 10,
        ..bench::fsx::Config::default()
    };
    let stop = stop_flag()?;
    let mut progress = ProgressLine::new();
    let outcome = bench::fsx::fsx(&args.paths, config, &stop, |done| {
        progress.show("operations", done.into(), Some(args.ops.into()));
    });
    drop(progress);
    let failure = match outcome {
        Err(e @ BenchError::Interrupted) => {
            errln!("{e}");
            return Ok(interrupt::exit_code());
        }
        outcome => outcome?.map(|failure| failure.to_string()),
    };
    match &failure {
        _ if args.json => outln!(
            "{}",
            json!({ "operations": args.ops, "seed": args.seed, "failure": failure })
        ),
        None => outln!("{} operations, seed {}: no error", args.ops, args.seed),
        Some(failure) => errln!("{failure}"),
    }
    Ok(match failure {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
    })
}
