//! `nacre bench mdsrate`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::mdsrate::{self, Format, Mode, Options};

use super::load::{self, Crew};
use crate::cli::Mdsrate;
use crate::node::random;
use crate::output::say;

/// Runs the command.
pub(super) fn run(args: &Mdsrate) -> Result<ExitCode> {
    let options = options(args)?;
    let mounts = args.mntcount.filter(|_| args.load.mgs.is_some());
    // Formats are relative to the working directory, or to the root of the file system with --mgs.
    let mut crew = Crew::assemble(&args.load, ".", mounts)?;
    if crew.speaks && !args.load.json {
        say!(
            "0: nacre {} starting at {}",
            env!("CARGO_PKG_VERSION"),
            load::now()
        );
    }
    let tell = |report: mdsrate::Report| {
        load::clear_line();
        load::tell(&args.load.wanted(), std::slice::from_ref(&report.figure), || {
            report.text(args.load.windows as usize)
        })
    };
    let ended = crew.run(|tasks| mdsrate::run_and_tell(&options, tasks, tell));
    let speaks = crew.speaks;
    crew.dismiss();
    load::ended_together(speaks, load::of_bench(ended)?)
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
            None => random().context("a seed")?,
        },
    })
}
