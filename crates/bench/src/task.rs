//! One task of a load: its place among the others, what it works on, and how a phase is timed.
//!
//! A phase begins for all at once and ends for all when the last is done; the rate of all is that of the operations of
//! all over that time. Each task's own rate, until it was done itself, is kept beside it, and how long each operation
//! took.

use crate::course::{Parts, Timeline, memory_parts};
use crate::figure::{Figure, Latencies, Sum};
use crate::subject::Subject;
use crate::team::Team;
use crate::{BenchError, cpu, memory};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations after which a task tells how far it is.
const TOLD_EVERY: u64 = 64;

/// How far a process's tasks are, for whoever shows it, and whether they are to stop.
#[derive(Default)]
pub struct Watch {
    /// Becomes true: stop in order.
    pub stop: Arc<AtomicBool>,
    /// Operations done in this phase by this process.
    pub done: AtomicU64,
    /// What is being done; empty: nothing that is measured.
    pub phase: parking_lot::Mutex<String>,
}

/// A task.
pub struct Task {
    /// Its place among the others.
    pub team: Team,
    /// What it works on.
    pub subject: Arc<dyn Subject>,
    /// How far this process is.
    pub watch: Arc<Watch>,
    /// Whether it is the one that counts its process's CPU time.
    pub first_of_process: bool,
}

/// What an operation is counted with.
pub(crate) struct Meter<'a> {
    watch: &'a Watch,
    latencies: Latencies,
    timeline: Timeline,
    begun: Instant,
    done: u64,
}

/// What one task measured in one phase.
#[derive(Serialize, Deserialize)]
struct Measured {
    done: u64,
    own_seconds: f64,
    cpu_seconds: f64,
    others_cpu_seconds: f64,
    latencies: Vec<(u64, u64)>,
    /// Operations, and memory of the own process and of others, in each part of its time.
    parts: Vec<f64>,
    memory: Option<(Vec<f64>, Vec<f64>)>,
}

impl Meter<'_> {
    /// Does one operation.
    pub(crate) fn time<T>(
        &mut self,
        operation: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        if self.watch.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let begun = Instant::now();
        let value = operation()?;
        let ended = Instant::now();
        self.latencies.add(ended - begun);
        self.timeline.add(ended - self.begun);
        self.done += 1;
        if self.done.is_multiple_of(TOLD_EVERY) {
            self.watch.done.fetch_add(TOLD_EVERY, Ordering::Relaxed);
        }
        Ok(value)
    }

    /// How many operations were done.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }
}

impl Task {
    /// The task with rank 0 speaks for all.
    pub(crate) fn is_first(&self) -> bool {
        self.team.rank() == 0
    }

    /// Runs a phase. Rank 0 gets what all measured; all get [`BenchError::Interrupted`] beside it when one was.
    pub(crate) fn phase(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&mut Meter<'_>, &dyn Subject, &mut Team) -> Result<(), BenchError>,
    ) -> Result<(Option<Figure>, Result<(), BenchError>), BenchError> {
        self.watch.done.store(0, Ordering::Relaxed);
        if self.first_of_process {
            operation.clone_into(&mut self.watch.phase.lock());
        }
        self.team.any(false)?;
        let cpu_before = cpu::used(self.subject.processes());
        let begun = Instant::now();
        let mut meter = Meter {
            watch: &self.watch,
            latencies: Latencies::new(),
            timeline: Timeline::new(),
            begun,
            done: 0,
        };
        let team = &mut self.team;
        let work = || work(&mut meter, &*self.subject, team);
        let (worked, samples) = match self.first_of_process {
            true => memory::watched(self.subject.processes(), work),
            false => (work(), Vec::new()),
        };
        let own_seconds = begun.elapsed().as_secs_f64();
        let interrupted = match worked {
            Ok(()) => false,
            Err(BenchError::Interrupted) => true,
            Err(e) => {
                // The others of this process need not go on.
                self.watch.stop.store(true, Ordering::Relaxed);
                return Err(e);
            }
        };
        let interrupted = self.team.any(interrupted)?;
        let seconds = begun.elapsed().as_secs_f64();
        let cpu = cpu::used(self.subject.processes()).since(cpu_before);
        if self.first_of_process {
            self.watch.phase.lock().clear();
        }
        let counted = |time: Duration| match self.first_of_process {
            true => time.as_secs_f64(),
            false => 0.0,
        };
        let measured = Measured {
            done: meter.done,
            own_seconds,
            cpu_seconds: counted(cpu.all()),
            others_cpu_seconds: counted(cpu.others),
            latencies: meter.latencies.counts(),
            parts: meter.timeline.parts(own_seconds),
            memory: (self.first_of_process).then(|| memory_parts(&samples, own_seconds)),
        };
        let figure = self.gather(&measured)?.map(|all| {
            let (mut latencies, mut parts) = (Latencies::new(), Parts::default());
            for one in &all {
                for (nanoseconds, count) in &one.latencies {
                    latencies.add_many(*nanoseconds, *count);
                }
                parts.add_task(&one.parts, one.own_seconds);
                if let Some((own, others)) = &one.memory {
                    parts.add_memory(own, others);
                }
            }
            Figure {
                operation,
                tasks: all.len(),
                iteration: 0,
                operations: all.iter().map(|m| m.done).sum(),
                seconds,
                cpu_seconds: all.iter().map(|m| m.cpu_seconds).sum(),
                others_cpu_seconds: all.iter().map(|m| m.others_cpu_seconds).sum(),
                task_rates: all.iter().map(|m| m.done as f64 / m.own_seconds).collect(),
                latencies: latencies.quantiles(),
                resident: parts.resident(),
                so_far: Some(Box::new(Sum::new(latencies, &parts, seconds))),
            }
        });
        let ended = match interrupted {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        };
        Ok((figure, ended))
    }

    /// What all measured, at rank 0.
    fn gather(&mut self, mine: &Measured) -> Result<Option<Vec<Measured>>, BenchError> {
        let mine = serde_json::to_vec(mine).map_err(|_| BenchError::Apart)?;
        let all = self.team.exchange(mine)?;
        if self.team.rank() != 0 {
            return Ok(None);
        }
        all.iter()
            .map(|m| serde_json::from_slice(m).map_err(|_| BenchError::Apart))
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

/// Runs all tasks of this process, a thread each, and gives what each of them gave, by rank; the error is the first that
/// says more than that the tasks came apart.
pub(crate) fn run_all<T: Send>(
    tasks: Vec<Task>,
    run: impl Fn(&mut Task) -> (T, Result<(), BenchError>) + Sync,
) -> (Vec<T>, Result<(), BenchError>) {
    let run = &run;
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = tasks
            .into_iter()
            .map(|mut task| {
                // Dropped when it ends, so that nobody waits for it.
                scope.spawn(move || run(&mut task))
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let (values, results): (Vec<T>, Vec<_>) = ended.into_iter().unzip();
    let mut errors: Vec<BenchError> = results.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|e| match e {
        BenchError::Apart => 2,
        BenchError::Interrupted => 1,
        _ => 0,
    });
    match errors.into_iter().next() {
        Some(first) => (values, Err(first)),
        None => (values, Ok(())),
    }
}
