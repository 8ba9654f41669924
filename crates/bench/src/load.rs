//! The loads of a comparison: metadata operations by several tasks, and a stream of data.

use crate::cpu;
use crate::subject::{DataMode, NewFile, Subject};
use crate::{BenchError, Row};
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of each read or write of the stream.
const BLOCK: usize = 1 << 20;

/// A phase of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Create files.
    Create,
    /// Stat files.
    Stat,
    /// Unlink files.
    Unlink,
    /// Write a file sequentially.
    Write,
    /// Read a file sequentially.
    Read,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Phase; 5] = [
        Phase::Create,
        Phase::Stat,
        Phase::Unlink,
        Phase::Write,
        Phase::Read,
    ];

    /// The name with the unit of the rate.
    fn label(self) -> &'static str {
        match self {
            Phase::Create => "create/s",
            Phase::Stat => "stat/s",
            Phase::Unlink => "unlink/s",
            Phase::Write => "write MB/s",
            Phase::Read => "read MB/s",
        }
    }
}

impl FromStr for Phase {
    type Err = String;

    fn from_str(name: &str) -> Result<Phase, String> {
        let has_name = |p: &Phase| p.label().split(['/', ' ']).next() == Some(name);
        let found = Phase::ALL.into_iter().find(has_name);
        found.ok_or_else(|| "expected create, stat, unlink, write or read".to_owned())
    }
}

/// A load.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Each task creates, stats and unlinks `files_per_task` empty files, in one directory shared
    /// by all tasks or in one for each task.
    Files {
        tasks: usize,
        shared: bool,
        files_per_task: usize,
    },
    /// One task writes and syncs a file of this many bytes, drops it from caches, reads and removes
    /// it.
    Stream(u64),
}

/// The context of a load: phases to measure, output, stop flag.
pub(crate) struct LoadContext<'a> {
    /// The phases to measure. Phases that they depend on run too.
    pub(crate) only: &'a [Phase],
    /// Gets a row for each measured phase.
    pub(crate) rows: &'a mut Vec<Row>,
    /// Set to interrupt a load.
    pub(crate) stop: &'a AtomicBool,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Files { tasks, .. } => write!(f, "{tasks} task(s), {} directories", self.directories()),
            Load::Stream(_) => write!(f, "stream"),
        }
    }
}

impl Load {
    /// Whether the load has any of these phases.
    pub(crate) fn has_any_phase(&self, only: &[Phase]) -> bool {
        let is_of_stream = |p: &Phase| matches!(p, Phase::Write | Phase::Read);
        only.iter()
            .any(|p| is_of_stream(p) == matches!(self, Load::Stream(_)))
    }

    fn tasks(&self) -> usize {
        match *self {
            Load::Files { tasks, .. } => tasks,
            Load::Stream(_) => 1,
        }
    }

    fn directories(&self) -> &'static str {
        match self {
            Load::Files { shared: true, .. } => "shared",
            Load::Files { .. } => "private",
            Load::Stream(_) => "",
        }
    }

    /// Runs the load.
    pub(crate) fn run(
        self,
        subject: &Arc<dyn Subject>,
        context: &mut LoadContext<'_>,
    ) -> Result<(), BenchError> {
        match self {
            Load::Files {
                tasks,
                shared,
                files_per_task,
            } => self.run_files(subject, context, (tasks, shared, files_per_task)),
            Load::Stream(bytes) => self.run_stream(subject, context, bytes),
        }
    }

    /// Runs a phase of `amount` operations or megabytes (of 1,000,000 bytes), and adds its row if
    /// the phase is to be measured.
    fn run_phase(
        self,
        subject: &Arc<dyn Subject>,
        context: &mut LoadContext<'_>,
        phase: Phase,
        amount: f64,
        work: impl FnOnce() -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let cpu_before = cpu::cpu_time(subject.processes());
        let start = Instant::now();
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = cpu::cpu_time(subject.processes()).since(cpu_before).total();
        if context.only.contains(&phase) {
            context.rows.push(Row {
                subject: subject.name().to_owned(),
                phase: phase.label(),
                tasks: self.tasks(),
                directories: self.directories(),
                rate: amount / seconds,
                cpu_us: cpu.as_secs_f64() * 1e6 / amount,
            });
        }
        Ok(())
    }

    fn run_files(
        self,
        subject: &Arc<dyn Subject>,
        context: &mut LoadContext<'_>,
        (tasks, shared, files_per_task): (usize, bool, usize),
    ) -> Result<(), BenchError> {
        let dirs = if shared { 1 } else { tasks };
        for task in 0..dirs {
            subject.make_dir("", &dir_name(task))?;
        }
        let phases: [(Phase, Operation); 3] = [
            (Phase::Create, |s, d, f| s.create(d, f, &NewFile::EMPTY)),
            (Phase::Stat, |s, d, f| s.stat(d, f)),
            (Phase::Unlink, |s, d, f| s.unlink(d, f)),
        ];
        for (phase, operation) in phases {
            // Only stat can be skipped: stat and unlink need the created files, and unlink removes
            // them.
            if phase == Phase::Stat && !context.only.contains(&phase) {
                continue;
            }
            let stop = context.stop;
            self.run_phase(subject, context, phase, (tasks * files_per_task) as f64, || {
                run_tasks(tasks, stop, |task, check_stop| {
                    let dir = dir_name(task % dirs);
                    (0..files_per_task).try_for_each(|i| {
                        check_stop()?;
                        operation(&**subject, &dir, &format!("f{task}.{i}"))
                    })
                })
            })?;
        }
        (0..dirs).try_for_each(|task| subject.remove_dir("", &dir_name(task)))
    }

    fn run_stream(
        self,
        subject: &Arc<dyn Subject>,
        context: &mut LoadContext<'_>,
        bytes: u64,
    ) -> Result<(), BenchError> {
        let dir = "stream";
        subject.make_dir("", dir)?;
        let block: Bytes = (0..BLOCK).map(|i| (i * 31 % 251) as u8).collect();
        let blocks = bytes / BLOCK as u64;
        let megabytes = (blocks * BLOCK as u64) as f64 / 1e6;
        let stop = context.stop;
        self.run_phase(subject, context, Phase::Write, megabytes, || {
            let file = subject.open_data(dir, "f", DataMode::WRITE)?;
            for i in 0..blocks {
                check(stop)?;
                file.write_at(i * BLOCK as u64, &block)?;
            }
            file.sync()?;
            file.close()
        })?;
        subject.drop_cache(dir, "f")?;
        self.run_phase(subject, context, Phase::Read, megabytes, || {
            let file = subject.open_data(dir, "f", DataMode::READ)?;
            let mut buffer = vec![0; BLOCK];
            for i in 0..blocks {
                check(stop)?;
                file.read_at(i * BLOCK as u64, &mut buffer)?;
            }
            file.close()
        })?;
        subject.unlink(dir, "f")?;
        subject.remove_dir("", dir)
    }
}

/// A function that fails with [`BenchError::Interrupted`] after an interruption.
type CheckStop<'a> = &'a dyn Fn() -> Result<(), BenchError>;

type Operation = fn(&dyn Subject, &str, &str) -> Result<(), BenchError>;

/// Runs tasks, each in a thread. `work` gets the task's number and a function that fails after an
/// interruption.
fn run_tasks(
    tasks: usize,
    stop: &AtomicBool,
    work: impl Fn(usize, CheckStop) -> Result<(), BenchError> + Sync,
) -> Result<(), BenchError> {
    let (work, check_stop) = (&work, || check(stop));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..tasks)
            .map(|task| scope.spawn(move || work(task, &check_stop)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or(Err(BenchError::Interrupted)))
    })
}

/// Fails if `stop` is set.
fn check(stop: &AtomicBool) -> Result<(), BenchError> {
    match stop.load(Ordering::Relaxed) {
        true => Err(BenchError::Interrupted),
        false => Ok(()),
    }
}

fn dir_name(task: usize) -> String {
    format!("t{task}")
}
