//! Loads on one subject: metadata operations by several tasks, and one stream of data.

use crate::cpu;
use crate::subject::{NewFile, Subject};
use crate::{BenchError, Row};
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of one read or write call of the stream.
const BLOCK: usize = 1 << 20;

/// What is measured of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Files are created.
    Create,
    /// Their attributes are asked for.
    Stat,
    /// They are unlinked.
    Unlink,
    /// A file is written from start to end.
    Write,
    /// It is read.
    Read,
}

impl Phase {
    /// All of them, in order.
    pub const ALL: [Phase; 5] = [
        Phase::Create,
        Phase::Stat,
        Phase::Unlink,
        Phase::Write,
        Phase::Read,
    ];

    /// Its name, with the unit of its rate.
    fn in_unit(self) -> &'static str {
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
        let named = |p: &Phase| p.in_unit().split(['/', ' ']).next() == Some(name);
        let found = Phase::ALL.into_iter().find(named);
        found.ok_or_else(|| "expected create, stat, unlink, write or read".to_owned())
    }
}

/// A load on a subject.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// Tasks that create, stat and unlink so many empty files each, in one directory or in one for each.
    Files { tasks: usize, shared: bool, each: usize },
    /// A file of so many bytes that is written, synced, forgotten and read.
    Stream(u64),
}

/// Where a load's rows go, and when it is to stop.
pub(crate) struct Desk<'a> {
    /// What is measured. What it stands on is done all the same.
    pub(crate) only: &'a [Phase],
    pub(crate) rows: &'a mut Vec<Row>,
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
    /// Whether anything of it is to be measured.
    pub(crate) fn has(&self, only: &[Phase]) -> bool {
        let stream = |p: &Phase| matches!(p, Phase::Write | Phase::Read);
        only.iter().any(|p| stream(p) == matches!(self, Load::Stream(_)))
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

    /// Runs it.
    pub(crate) fn run(self, subject: &Arc<dyn Subject>, desk: &mut Desk<'_>) -> Result<(), BenchError> {
        match self {
            Load::Files { tasks, shared, each } => self.files(subject, desk, (tasks, shared, each)),
            Load::Stream(bytes) => self.stream(subject, desk, bytes),
        }
    }

    /// Does a phase of so many operations, or megabytes, and makes its row if it is one that is measured.
    fn phase(
        self,
        subject: &Arc<dyn Subject>,
        desk: &mut Desk<'_>,
        phase: Phase,
        amount: f64,
        work: impl FnOnce() -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let cpu_before = cpu::used(subject.processes());
        let start = Instant::now();
        work()?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = cpu::used(subject.processes()).since(cpu_before).all();
        if desk.only.contains(&phase) {
            desk.rows.push(Row {
                subject: subject.name().to_owned(),
                phase: phase.in_unit(),
                tasks: self.tasks(),
                directories: self.directories(),
                rate: amount / seconds,
                cpu_us: cpu.as_secs_f64() * 1e6 / amount,
            });
        }
        Ok(())
    }

    fn files(
        self,
        subject: &Arc<dyn Subject>,
        desk: &mut Desk<'_>,
        (tasks, shared, each): (usize, bool, usize),
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
            // Only this one can be left out: files are there before they are gone.
            if phase == Phase::Stat && !desk.only.contains(&phase) {
                continue;
            }
            let stop = desk.stop;
            self.phase(subject, desk, phase, (tasks * each) as f64, || {
                at_once(tasks, stop, |task, stopped| {
                    let dir = dir_name(task % dirs);
                    (0..each).try_for_each(|i| {
                        stopped()?;
                        operation(&**subject, &dir, &format!("f{task}.{i}"))
                    })
                })
            })?;
        }
        (0..dirs).try_for_each(|task| subject.remove_dir("", &dir_name(task)))
    }

    fn stream(self, subject: &Arc<dyn Subject>, desk: &mut Desk<'_>, bytes: u64) -> Result<(), BenchError> {
        let dir = "stream";
        subject.make_dir("", dir)?;
        let block = Bytes::from((0..BLOCK).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>());
        let blocks = bytes / BLOCK as u64;
        let megabytes = (blocks * BLOCK as u64) as f64 / 1e6;
        self.phase(subject, desk, Phase::Write, megabytes, || {
            subject.write(dir, "f", &block, blocks)
        })?;
        subject.forget(dir, "f")?;
        self.phase(subject, desk, Phase::Read, megabytes, || {
            subject.read(dir, "f", BLOCK).map(drop)
        })?;
        subject.unlink(dir, "f")?;
        subject.remove_dir("", dir)
    }
}

type Operation = fn(&dyn Subject, &str, &str) -> Result<(), BenchError>;

/// Runs tasks, a thread each, which ask now and then whether they are to stop.
fn at_once(
    tasks: usize,
    stop: &AtomicBool,
    work: impl Fn(usize, &dyn Fn() -> Result<(), BenchError>) -> Result<(), BenchError> + Sync,
) -> Result<(), BenchError> {
    let (work, stopped) = (&work, || match stop.load(Ordering::Relaxed) {
        true => Err(BenchError::Interrupted),
        false => Ok(()),
    });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..tasks)
            .map(|task| scope.spawn(move || work(task, &stopped)))
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or(Err(BenchError::Interrupted)))
    })
}

fn dir_name(task: usize) -> String {
    format!("t{task}")
}
