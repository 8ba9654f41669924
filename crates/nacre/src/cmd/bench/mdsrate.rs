//! `nacre bench mdsrate`: translates the command line into the options of [`bench::mdsrate`].

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::mdsrate::{self, Format, Mode, Options};

use super::load::{self, TaskGroup};
use crate::cli::Mdsrate;
use crate::output::outln;

/// Runs the command.
pub(super) fn run(args: &Mdsrate) -> Result<ExitCode> {
    let options = options(args)?;
    let mounts = args.mntcount.filter(|_| args.load.mgs.is_some());
    // The directory formats are relative to the working directory, or to the root of the file
    // system with --mgs.
    let mut group = TaskGroup::new(&args.load, "--dirfmt", ".", mounts)?;
    if group.prints_results && !args.load.json {
        outln!(
            "0: nacre {} starting at {}",
            env!("CARGO_PKG_VERSION"),
            load::now()
        );
    }
    let print_report = |report: mdsrate::Report| {
        load::clear_line();
        load::print_results(
            &args.load.output_options(),
            std::slice::from_ref(&report.figure),
            || report.text(args.load.windows as usize),
        )
    };
    let outcome = group.run(|tasks| mdsrate::run_with_report(&options, tasks, print_report));
    let prints_results = group.prints_results;
    group.umount();
    load::exit_code_under_mpi(prints_results, load::split_bench_error(outcome)?)
}

fn options(args: &Mdsrate) -> Result<Options> {
    let mode = match () {
        () if args.create => Mode::Create,
        () if args.mknod => Mode::Mknod,
        () if args.open => Mode::Open,
        () if args.lookup => Mode::Lookup,
        () if args.stat => Mode::Stat,
        () if args.unlink => Mode::Unlink,
        () => Mode::Setxattr,
    };
    let mounts = match (&args.mntfmt, args.mntcount) {
        (Some(format), Some(count)) => Some((Format::parse(format)?, count as usize)),
        _ => None,
    };
    Ok(Options {
        mode,
        dirs: args.dirfmt.as_deref().map(Format::parse).transpose()?,
        dir_count: args.ndirs,
        mounts,
        mdt_count: args.mdtcount,
        files: args.filefmt.clone(),
        begin: args.begin,
        file_count: args.nfiles,
        iterations: args.iters,
        time: args.time.map(Duration::from_secs),
        stripes: args.stripes,
        not_exclusive: args.noexcl,
        with_xattr: args.setxattr && mode != Mode::Setxattr,
        small_write: args.smallwrite,
        recreate: args.recreate,
        ignore: args.ignore,
        readdir_order: args.readdir_order,
        seed: match args.seed {
            Some(seed) => seed,
            None => getrandom::u64().context("cannot get a random seed")?,
        },
    })
}
