//! `nacre bench fsx`: random operations on one file, verified against a copy in memory.

use std::process::ExitCode;

use anyhow::Result;
use bench::BenchError;

use super::{EXIT_INTERRUPTED, stop_flag};
use crate::cli::Fsx;
use crate::output::{errln, outln};

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
    let outcome = bench::fsx::fsx(&args.paths, config, &stop, |done| {
        errln!("{done} of {} operations", args.ops);
    });
    match outcome {
        Err(e @ BenchError::Interrupted) => {
            errln!("{e}");
            Ok(ExitCode::from(EXIT_INTERRUPTED))
        }
        Err(e) => Err(e.into()),
        Ok(None) => {
            outln!("{} operations, seed {}: no error", args.ops, args.seed);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Some(failure)) => {
            errln!("{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}
