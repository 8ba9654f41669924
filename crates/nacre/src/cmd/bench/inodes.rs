//! `nacre bench inodes`: measures the memory of an inode in the MDT's cache, and the rates with all
//! or a tenth of the inodes cached.
//!
//! Each round sets `mdt.*.lu_cache_nr`. One client creates the files and disconnects; another one
//! stats each file and disconnects, so that only the inodes of their work remain in the server's
//! memory. Then the cache is emptied: the memory that the process releases is the memory of the
//! inodes. A third client removes the files.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bench::mdsrate::{self, Format, Mode, Options};
use bench::{BenchError, Figure, LibrarySubject, Task, Team, Watch};
use serde::Serialize;

use super::served::Instance;
use super::{Workplace, load, stop_flag};
use crate::cli::InodesBench;
use crate::output::say;

/// Interval for checking whether a process still releases memory, which takes about a second.
const LOOK_EVERY: Duration = Duration::from_millis(1500);
/// A change below this between two checks counts as settled.
const AT_REST_BYTES: u64 = 1 << 20;
/// Time limit for settling.
const REST_MAX: Duration = Duration::from_secs(30);
/// Inodes besides the files: directories and internal files.
const OTHERS: u64 = 1000;

/// Settings and results of one round.
#[derive(Serialize)]
struct Round {
    /// `mdt.*.lu_cache_nr`.
    lu_cache_nr: u64,
    /// Inodes in the cache after the stat phase.
    kept: u64,
    /// Resident memory of the process at that time, and after emptying the cache.
    resident_bytes: u64,
    emptied_bytes: u64,
    /// Bytes for each inode.
    bytes_each: f64,
    create_per_second: f64,
    stat_per_second: f64,
    unlink_per_second: f64,
}

/// Runs the command.
pub(super) fn run(args: &InodesBench) -> Result<ExitCode> {
    let place = Workplace::new(&args.dir)?;
    let watch = Arc::new(Watch {
        stop: stop_flag()?,
        ..Watch::default()
    });
    let instance = Instance::up(&place.dir.join("nacre"), 1)?;
    let mut rounds = Vec::new();
    let measured: Result<()> = load::shown(&watch, || {
        // The cache evicts half of its entries at once; a capacity of twice the number keeps all.
        for lu_cache_nr in [2 * (args.files + OTHERS), args.files / 10] {
            rounds.push(round(args, &instance, &watch, lu_cache_nr)?);
        }
        Ok(())
    });
    drop(instance);
    drop(place);
    match args.json {
        true => say!("{}", serde_json::to_string_pretty(&rounds)?),
        false => tell(&rounds),
    }
    load::ended(load::of_bench(measured)?)
}

fn tell(rounds: &[Round]) {
    say!("| lu_cache_nr | inodes kept | bytes each | create/s | stat/s | unlink/s |");
    say!("|---:|---:|---:|---:|---:|---:|");
    for r in rounds {
        say!(
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
        say!(
            "| ratio | | | {:.2} | {:.2} | {:.2} |",
            tenth.create_per_second / all.create_per_second,
            tenth.stat_per_second / all.stat_per_second,
            tenth.unlink_per_second / all.unlink_per_second
        );
    }
}

fn round(args: &InodesBench, instance: &Instance, watch: &Arc<Watch>, lu_cache_nr: u64) -> Result<Round> {
    let keep = |count: u64| instance.set_param("mdt.*.lu_cache_nr", &count.to_string());
    keep(lu_cache_nr)?;
    let create = one(args, instance, watch, Mode::Create)?;
    let stat = one(args, instance, watch, Mode::Stat)?;
    let resident_bytes = at_rest(instance.pid, watch)?;
    let kept = instance.param("mdt.*.lu_cache_used")?;
    let kept: u64 = kept.trim().parse().context("mdt.*.lu_cache_used")?;
    keep(0)?;
    let emptied_bytes = at_rest(instance.pid, watch)?;
    keep(lu_cache_nr)?;
    let unlink = one(args, instance, watch, Mode::Unlink)?;
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
fn one(args: &InodesBench, instance: &Instance, watch: &Arc<Watch>, mode: Mode) -> Result<Figure> {
    let options = Options {
        dirs: Some(Format::parse("files")?),
        // The files exist, and the client must send a request for each.
        ignore: mode == Mode::Stat,
        ..Options::of(mode, args.files)
    };
    let library = instance.library()?;
    let client = library.clients.first().context("no client is mounted")?;
    let subject = LibrarySubject::new("library", client.clone(), library.runtime.clone());
    let subject = Arc::new(subject.with_processes(vec![instance.pid]));
    let task = |team: Team| Task {
        first_of_process: team.rank() == 0,
        subject: subject.clone(),
        watch: watch.clone(),
        team,
    };
    let tasks = Team::threads(args.tasks as usize).into_iter().map(task).collect();
    let (report, ended) = mdsrate::run(&options, tasks);
    library.umount();
    ended?;
    Ok(report.context("no task returned a report")?.figure)
}

/// Resident memory of a process in bytes, once it releases no more.
fn at_rest(pid: u32, watch: &Watch) -> Result<u64> {
    let look = || bench::resident_bytes(pid).context("the file system's process has ended");
    let begun = Instant::now();
    let mut before = look()?;
    loop {
        std::thread::sleep(LOOK_EVERY);
        if watch.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted.into());
        }
        let now = look()?;
        if before.abs_diff(now) < AT_REST_BYTES || begun.elapsed() > REST_MAX {
            return Ok(now);
        }
        before = now;
    }
}
