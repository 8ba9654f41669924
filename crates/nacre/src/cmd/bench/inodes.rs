//! `nacre bench inodes`: what an inode that the MDT keeps in memory takes there, and what it is worth to keep all that are in use
//! or a tenth of them.
//!
//! Each round has its own `mdt.*.lu_cache_nr`. One client creates the files and leaves, another asks for the attributes of each
//! and leaves, so that only the inodes remain of what they brought into the server's memory; then those are forgotten, and
//! what the process gives back is what they took. A third client removes the files.

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

/// How often it is looked whether a process still gives memory back, which takes about a second.
const LOOK_EVERY: Duration = Duration::from_millis(1500);
/// What changes less between two looks is at rest.
const AT_REST_BYTES: u64 = 1 << 20;
/// How long that may take.
const REST_MAX: Duration = Duration::from_secs(30);
/// Inodes beside the files: directories, and what the file system has of its own.
const OTHERS: u64 = 1000;

/// One setting, and what came of it.
#[derive(Serialize)]
struct Round {
    /// `mdt.*.lu_cache_nr`.
    lu_cache_nr: u64,
    /// Inodes in memory when all had been asked for.
    kept: u64,
    /// Bytes that the process had in memory then, and when it had forgotten them.
    resident_bytes: u64,
    emptied_bytes: u64,
    /// What that is for each inode.
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
        // The cache forgets by halves: with room for twice as many, all stay.
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

/// One operation on all files, by a client that comes for it.
fn one(args: &InodesBench, instance: &Instance, watch: &Arc<Watch>, mode: Mode) -> Result<Figure> {
    let options = Options {
        dirs: Some(Format::parse("files")?),
        // They are there, and the client is to find that out by asking for each.
        ignore: mode == Mode::Stat,
        ..Options::of(mode, args.files)
    };
    let library = instance.library()?;
    let client = library.clients.first().context("there is no client")?;
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
    Ok(report.context("no task has reported")?.figure)
}

/// Bytes that a process has in memory when it gives none back any more.
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
