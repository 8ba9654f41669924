//! `nacre bench mdtest`: translates the command line into the options of [`bench::mdtest`].

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bench::mdtest::{self, Options, ReportOptions};

use super::load::{self, TaskGroup};
use crate::cli::Mdtest;
use crate::output::outln;

/// Runs the command.
pub(super) fn run(args: &Mdtest) -> Result<ExitCode> {
    let options = options(args)?;
    let mut group = TaskGroup::new(&args.load, "-d", &args.dirs, None)?;
    if group.prints_results && !args.load.json {
        outln!("-- started at {} --\n", load::now());
        outln!(
            "mdtest of nacre {}: {}\n",
            env!("CARGO_PKG_VERSION"),
            std::env::args().collect::<Vec<_>>().join(" ")
        );
    }
    let report_options = ReportOptions {
        time: args.print_time,
        rate_and_time: args.print_rate_and_time,
        ranks: args.show_rank_statistics,
        all_ranks: args.print_all_procs,
        windows: args.load.windows as usize,
    };
    let print_report = |report: mdtest::Report| {
        load::clear_line();
        if report.figures.is_empty() {
            // The error says why.
            return Ok(());
        }
        load::print_results(&args.load.output_options(), &report.figures, || {
            format!("{}-- finished at {} --", report.text(report_options), load::now())
        })
    };
    let outcome = group.run(|tasks| mdtest::run_with_report(&options, tasks, print_report));
    let prints_results = group.prints_results;
    group.umount();
    load::exit_code_under_mpi(prints_results, load::split_bench_error(outcome)?)
}

fn options(args: &Mdtest) -> Result<Options> {
    let random_seed = match (args.random, args.random_seed) {
        (false, None) => None,
        (_, Some(seed)) => Some(seed),
        (true, None) => Some(getrandom::u64().context("cannot get a random seed for -R")?),
    };
    let task_counts = args.last.map(|last| (args.first.unwrap_or(1), last, args.step));
    Ok(Options {
        dir_count: args.dirs.split('@').filter(|d| !d.is_empty()).count(),
        items: args.items,
        items_per_dir: args.items_per_dir,
        iterations: args.iterations,
        duration: args.seconds.map(Duration::from_secs),
        branch_factor: args.branch_factor,
        depth: args.depth,
        leaf_only: args.leaf_only,
        unique_dir_per_task: args.unique_dir_per_task,
        time_unique_dir_overhead: args.time_unique_dir_overhead,
        dirs_only: args.dirs_only,
        files_only: args.files_only,
        create_only: args.create_only,
        stat_only: args.stat_only,
        read_only: args.read_only,
        rename_only: args.rename_only,
        remove_only: args.remove_only,
        write_bytes: args.write_bytes,
        read_bytes: args.read_bytes,
        sync_file: args.sync_file,
        call_sync: args.call_sync,
        verify_read: args.verify_read,
        verify_write: args.verify_write,
        make_node: args.make_node,
        collective_creates: args.collective_creates,
        shared_file: args.shared_file,
        stride: args.stride,
        random_seed,
        stonewall: (args.stonewall_seconds > 0).then(|| Duration::from_secs(args.stonewall_seconds)),
        stonewall_file: args.stonewall_file.clone(),
        pre_delay: Duration::from_secs(args.pre_delay_seconds),
        task_counts,
        stripes: args.stripes,
    })
}
