//! `nacre bench ior`: translates the command line into the options of [`bench::ior`].

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use bench::ior::{self, Options};

use super::load::{self, TaskGroup};
use crate::cli::Ior;
use crate::output::outln;

/// Runs the command.
pub(super) fn run(args: &Ior) -> Result<ExitCode> {
    let (dir, file) = match args.file.rsplit_once('/') {
        None if args.load.mgs.is_some() => ("/", args.file.as_str()),
        None => (".", args.file.as_str()),
        Some(("", file)) => ("/", file),
        Some((dir, file)) => (dir, file),
    };
    if file.is_empty() || args.file.contains('@') {
        bail!("-o {}: give the path of one file", args.file);
    }
    let options = options(args, file);
    let mut group = TaskGroup::new(&args.load, "-o", dir, None)?;
    if group.prints_results && !args.load.json {
        outln!(
            "IOR of nacre {}: {}\nbegan               : {}",
            env!("CARGO_PKG_VERSION"),
            std::env::args().collect::<Vec<_>>().join(" "),
            load::now()
        );
    }
    let (report, outcome) = group.run(|tasks| ior::run(&options, tasks));
    if let Some(report) = report.filter(|report| !report.figures.is_empty()) {
        load::clear_line();
        load::print_results(&args.load.output_options(), &report.figures, || {
            report.text(args.load.windows as usize)
        })?;
    }
    let prints_results = group.prints_results;
    group.umount();
    load::exit_code_under_mpi(prints_results, outcome)
}

fn options(args: &Ior, file: &str) -> Options {
    let both = !args.write && !args.read;
    Options {
        file: file.to_owned(),
        block: args.block,
        transfer: args.transfer,
        segments: args.segments,
        file_per_task: args.file_per_task,
        write: args.write || both,
        read: args.read || both,
        check_write: args.check_write,
        check_read: args.check_read,
        reorder: args.reorder,
        random: args.random,
        seed: args.seed,
        sync: args.sync,
        direct: args.direct,
        stonewall: (args.stonewall_seconds > 0).then(|| Duration::from_secs(args.stonewall_seconds)),
        repetitions: args.repetitions,
        keep: args.keep,
        stripes: args.stripes,
    }
}
