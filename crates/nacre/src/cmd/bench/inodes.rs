//! `nacre bench inodes`: measures the memory of an inode in the MDT's cache, and the rates with all
//! or a tenth of the inodes cached.
//!
//! Each round sets `mdt.*.lu_cache_nr`. One client creates the files and disconnects; another one
//! stats each file and disconnects. After that, only the cached inodes still take memory for these
//! clients. Then the benchmark empties the cache: the memory that the process releases is the
//! memory of the inodes. A third client removes the files.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::mdsrate::{self, Format, Mode, Options};
use bench::{BenchError, Communicator, Figure, LibrarySubject, Task, TaskProgress};
use serde::Serialize;

use super::bench_instance::BenchInstance;
use super::{ScratchDir, load, stop_flag};
use crate::cli::InodesBench;
use crate::output::outln;

/// Interval between two readings of a process's memory, longer than the second within which
/// jemalloc returns freed memory.
const POLL_INTERVAL: Duration = Duration::from_millis(1500);
/// Memory counts as settled if it changes by less than this between two readings.
const SETTLED_BYTES: u64 = 1 << 20;
/// Time limit for memory to settle.
const SETTLE_MAX: Duration = Duration::from_secs(30);
/// Allowance for inodes besides the files: directories and internal files.
const OTHER_INODES: u64 = 1000;

/// Setting and results of one round.
#[derive(Serialize)]
struct Round {
    /// Value of `mdt.*.lu_cache_nr`, the maximum number of cached inodes.
    lu_cache_nr: u64,
    /// Inodes in the cache after the stat phase.
    kept: u64,
    /// Resident memory of the process after the stat phase.
    resident_bytes: u64,
    /// Resident memory of the process after the cache was emptied.
    emptied_bytes: u64,
    /// Released memory for each inode that was in the cache.
    bytes_each: f64,
    create_per_second: f64,
    stat_per_second: f64,
    unlink_per_second: f64,
}

/// Runs the command.
pub(super) fn run(args: &InodesBench) -> Result<ExitCode> {
    let scratch = ScratchDir::new(&args.dir)?;
    let progress = Arc::new(TaskProgress {
        stop: stop_flag()?,
        ..TaskProgress::default()
    });
    let instance = BenchInstance::up(&scratch.dir.join("nacre"), 1)?;
    let mut rounds = Vec::new();
    let result: Result<()> = load::with_progress(&progress, || {
        // A full cache drops the older half of its inodes at once. With twice the needed capacity,
        // it never drops an inode of this benchmark.
        for lu_cache_nr in [2 * (args.files + OTHER_INODES), args.files / 10] {
            rounds.push(measure_round(args, &instance, &progress, lu_cache_nr)?);
        }
        Ok(())
    });
    drop(instance);
    drop(scratch);
    match args.json {
        true => outln!("{}", serde_json::to_string_pretty(&rounds)?),
        false => print_table(&rounds),
    }
    load::exit_code(load::split_bench_error(result)?)
}

fn print_table(rounds: &[Round]) {
    outln!("| lu_cache_nr | inodes kept | bytes each | create/s | stat/s | unlink/s |");
    outln!("|---:|---:|---:|---:|---:|---:|");
    for r in rounds {
        outln!(
            "| {} | {} | {:.0} | {:.0} | {:.0} | {:.0} |",
            r.lu_cache_nr,
            r.kept,
            r.bytes_each,
            r.create_per_second,
            r.stat_per_second,
            r.unlink_per_second
        );
    }
    if let [all, tenth] = rounds {
        outln!(
            "| ratio | | | {:.2} | {:.2} | {:.2} |",
            tenth.create_per_second / all.create_per_second,
            tenth.stat_per_second / all.stat_per_second,
            tenth.unlink_per_second / all.unlink_per_second
        );
    }
}

fn measure_round(
    args: &InodesBench,
    instance: &BenchInstance,
    progress: &Arc<TaskProgress>,
    lu_cache_nr: u64,
) -> Result<Round> {
    let params = instance.params();
    let set_capacity = |count: u64| params.set("mdt.*.lu_cache_nr", &count.to_string());
    set_capacity(lu_cache_nr)?;
    let create = run_phase(args, instance, progress, Mode::Create)?;
    let stat = run_phase(args, instance, progress, Mode::Stat)?;
    let resident_bytes = settled_resident_bytes(instance.pid, progress)?;
    let kept = params.values("mdt.*.lu_cache_used")?;
    let kept: u64 = kept[0]
        .trim()
        .parse()
        .context("mdt.*.lu_cache_used is not a number")?;
    set_capacity(0)?;
    let emptied_bytes = settled_resident_bytes(instance.pid, progress)?;
    set_capacity(lu_cache_nr)?;
    let unlink = run_phase(args, instance, progress, Mode::Unlink)?;
    Ok(Round {
        lu_cache_nr,
        kept,
        resident_bytes,
        emptied_bytes,
        bytes_each: resident_bytes.saturating_sub(emptied_bytes) as f64 / kept.max(1) as f64,
        create_per_second: create.rate(),
        stat_per_second: stat.rate(),
        unlink_per_second: unlink.rate(),
    })
}

/// Runs one operation on all files with a new client.
fn run_phase(
    args: &InodesBench,
    instance: &BenchInstance,
    progress: &Arc<TaskProgress>,
    mode: Mode,
) -> Result<Figure> {
    let options = Options {
        dirs: Some(Format::parse("files")?),
        // All files exist, so the client need not create missing ones first.
        ignore: mode == Mode::Stat,
        ..Options::new(mode, args.files)
    };
    let library = instance.library()?;
    let client = library.clients.first().context("no client is mounted")?;
    let subject = LibrarySubject::new("library", client.clone(), library.runtime.clone());
    let subject = Arc::new(subject.with_processes(vec![instance.pid]));
    let task = |comm: Communicator| Task {
        measures_process: comm.rank() == 0,
        subject: subject.clone(),
        progress: progress.clone(),
        comm,
    };
    let tasks = Communicator::threads(args.tasks as usize)
        .into_iter()
        .map(task)
        .collect();
    let (report, outcome) = mdsrate::run(&options, tasks);
    library.umount();
    outcome?;
    Ok(report.context("no task returned a report")?.figure)
}

/// Resident memory of a process in bytes, once it has settled or after [`SETTLE_MAX`].
fn settled_resident_bytes(pid: u32, progress: &TaskProgress) -> Result<u64> {
    let resident_bytes = || bench::resident_bytes(pid).context("the file system's process has ended");
    let start_time = Instant::now();
    let mut before = resident_bytes()?;
    loop {
        std::thread::sleep(POLL_INTERVAL);
        if progress.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted.into());
        }
        let now = resident_bytes()?;
        if before.abs_diff(now) < SETTLED_BYTES || start_time.elapsed() > SETTLE_MAX {
            return Ok(now);
        }
        before = now;
    }
}
