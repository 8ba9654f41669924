//! Random operations on one file: tries whether it is what it must be.

use std::process::ExitCode;

use anyhow::Result;
use bench::BenchError;

use super::{INTERRUPTED, stop_flag};
use crate::cli::Fsx;
use crate::output::say;

/// Random operations on one file through all the mounts that its paths lead to.
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
    let ended = bench::fsx::fsx(&args.paths, config, &stop, |done| {
        eprintln!("{done} of {} operations", args.ops);
    });
    match ended {
        Err(e @ BenchError::Interrupted) => {
            eprintln!("{e}");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(e) => Err(e.into()),
        Ok(None) => {
            say!("{} operations, seed {}: all as it must be", args.ops, args.seed);
            Ok(ExitCode::SUCCESS)
        }
        Ok(Some(failure)) => {
            eprintln!("{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}
