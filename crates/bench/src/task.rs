//! A task of a load, and the measurement of a phase.
//!
//! A phase begins for all tasks together and ends with the last task; the total rate is the number
//! of all operations over that time. Each task's own rate, over its own duration, and the latency
//! of each operation are recorded too.

use crate::communicator::Communicator;
use crate::figure::{Figure, Latencies, OperationTotals};
use crate::subject::Subject;
use crate::time_series::{PhaseParts, Timeline, memory_parts};
use crate::{BenchError, cpu, memory};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Operations of a task between two updates of [`TaskProgress::done`].
const PROGRESS_INTERVAL: u64 = 64;

/// Progress of a process's tasks, and their stop flag.
#[derive(Default)]
pub struct TaskProgress {
    /// Set to stop the tasks.
    pub stop: Arc<AtomicBool>,
    /// Completed operations of this process's tasks in the current phase; each task adds them in
    /// steps of 64.
    pub done: AtomicU64,
    /// Operations of this process's tasks in the current phase; 0: unknown, as in a phase that
    /// lasts for a given time.
    pub total: AtomicU64,
    /// The current phase; empty outside of measured phases.
    pub phase: parking_lot::Mutex<String>,
}

/// A task.
pub struct Task {
    /// Connects the task with the others.
    pub comm: Communicator,
    /// The file system under test.
    pub subject: Arc<dyn Subject>,
    /// Progress of this process.
    pub progress: Arc<TaskProgress>,
    /// Whether this task measures the CPU time and memory of its process and of
    /// [`Subject::processes`].
    pub measures_process: bool,
}

/// Counts and times the operations of one task in one phase.
pub(crate) struct Meter<'a> {
    progress: &'a TaskProgress,
    latencies: Latencies,
    timeline: Timeline,
    /// The start of the phase.
    start_time: Instant,
    /// Number of completed operations.
    done: u64,
}

/// The measurements of one task in one phase.
#[derive(Serialize, Deserialize)]
struct TaskMeasurement {
    /// Number of operations.
    done: u64,
    /// Seconds from the start of the phase to the end of the task's last operation.
    own_seconds: f64,
    /// CPU time of the task's process and of the subject's processes; 0 if the task is not the
    /// first of its process.
    cpu_seconds: f64,
    /// The part of `cpu_seconds` that the subject's processes used.
    server_cpu_seconds: f64,
    /// Latencies in nanoseconds, each with its number of operations.
    latencies: Vec<(u64, u64)>,
    /// Operations in each part of the task's duration.
    parts: Vec<f64>,
    /// Resident bytes at the end of each part: of the task's process, and of the subject's
    /// processes. `None` if the task is not the first of its process.
    memory: Option<(Vec<f64>, Vec<f64>)>,
}

impl Meter<'_> {
    /// Executes an operation; counts and times it if it succeeds. Fails without executing it after
    /// [`TaskProgress::stop`].
    pub(crate) fn time<T>(
        &mut self,
        operation: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        if self.progress.stop.load(Ordering::Relaxed) {
            return Err(BenchError::Interrupted);
        }
        let start_time = Instant::now();
        let value = operation()?;
        let end_time = Instant::now();
        self.latencies.add(end_time - start_time);
        self.timeline.add(end_time - self.start_time);
        self.done += 1;
        if self.done.is_multiple_of(PROGRESS_INTERVAL) {
            self.progress.done.fetch_add(PROGRESS_INTERVAL, Ordering::Relaxed);
        }
        Ok(value)
    }

    /// Announces the number of operations that this task is going to execute.
    pub(crate) fn expect(&self, operations: u64) {
        self.progress.total.fetch_add(operations, Ordering::Relaxed);
    }

    /// Number of completed operations.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }
}

impl Task {
    /// Whether this task has rank 0, which reports for all.
    pub(crate) fn is_first(&self) -> bool {
        self.comm.rank() == 0
    }

    /// Runs a phase. Rank 0 gets the figure of all tasks. If any task was interrupted, the inner
    /// result of all tasks is [`BenchError::Interrupted`]. After any other failure the outer result
    /// is an error, and there is no figure.
    pub(crate) fn phase(
        &mut self,
        operation: &'static str,
        work: impl FnOnce(&mut Meter<'_>, &dyn Subject, &mut Communicator) -> Result<(), BenchError>,
    ) -> Result<(Option<Figure>, Result<(), BenchError>), BenchError> {
        self.progress.done.store(0, Ordering::Relaxed);
        self.progress.total.store(0, Ordering::Relaxed);
        if self.measures_process {
            operation.clone_into(&mut self.progress.phase.lock());
        }
        self.comm.any(false)?;
        let cpu_before = cpu::cpu_time(self.subject.processes());
        let start_time = Instant::now();
        let mut meter = Meter {
            progress: &self.progress,
            latencies: Latencies::new(),
            timeline: Timeline::new(),
            start_time,
            done: 0,
        };
        let comm = &mut self.comm;
        let work = || work(&mut meter, &*self.subject, comm);
        let (work_result, samples) = match self.measures_process {
            true => memory::sample_while(self.subject.processes(), work),
            false => (work(), Vec::new()),
        };
        let own_seconds = start_time.elapsed().as_secs_f64();
        let interrupted = match work_result {
            Ok(()) => false,
            Err(BenchError::Interrupted) => true,
            Err(e) => {
                // Stop the other tasks of this process.
                self.progress.stop.store(true, Ordering::Relaxed);
                return Err(e);
            }
        };
        let interrupted = self.comm.any(interrupted)?;
        let seconds = start_time.elapsed().as_secs_f64();
        let cpu = cpu::cpu_time(self.subject.processes()).since(cpu_before);
        if self.measures_process {
            self.progress.phase.lock().clear();
        }
        let once_per_process = |time: Duration| match self.measures_process {
            true => time.as_secs_f64(),
            false => 0.0,
        };
        let measured = TaskMeasurement {
            done: meter.done,
            own_seconds,
            cpu_seconds: once_per_process(cpu.total()),
            server_cpu_seconds: once_per_process(cpu.others),
            latencies: meter.latencies.counts(),
            parts: meter.timeline.parts(own_seconds),
            memory: (self.measures_process).then(|| memory_parts(&samples, own_seconds)),
        };
        let figure = self.gather(&measured)?.map(|all| {
            let (mut latencies, mut parts) = (Latencies::new(), PhaseParts::default());
            for measurement in &all {
                for (nanoseconds, count) in &measurement.latencies {
                    latencies.add_many(*nanoseconds, *count);
                }
                parts.add_task(&measurement.parts, measurement.own_seconds);
                if let Some((own, others)) = &measurement.memory {
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
                server_cpu_seconds: all.iter().map(|m| m.server_cpu_seconds).sum(),
                task_rates: all.iter().map(|m| m.done as f64 / m.own_seconds).collect(),
                latencies: latencies.quantiles(),
                resident: parts.resident(),
                totals: Some(Box::new(OperationTotals::new(latencies, &parts, seconds))),
            }
        });
        let outcome = match interrupted {
            true => Err(BenchError::Interrupted),
            false => Ok(()),
        };
        Ok((figure, outcome))
    }

    /// Collects the measurements of all tasks at rank 0.
    fn gather(&mut self, own: &TaskMeasurement) -> Result<Option<Vec<TaskMeasurement>>, BenchError> {
        let own = serde_json::to_vec(own).map_err(|_| BenchError::PeerEnded)?;
        let all = self.comm.exchange(own)?;
        if self.comm.rank() != 0 {
            return Ok(None);
        }
        all.iter()
            .map(|m| serde_json::from_slice(m).map_err(|_| BenchError::PeerEnded))
            .collect::<Result<_, _>>()
            .map(Some)
    }
}

/// Runs all tasks of this process, each in a thread. Returns their values by rank, and the most
/// informative error: failures before interruptions before [`BenchError::PeerEnded`].
pub(crate) fn run_all<T: Send>(
    tasks: Vec<Task>,
    run: impl Fn(&mut Task) -> (T, Result<(), BenchError>) + Sync,
) -> (Vec<T>, Result<(), BenchError>) {
    let run = &run;
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = tasks
            .into_iter()
            .map(|mut task| {
                // The thread drops the task at its end, so that the other tasks do not wait for it.
                scope.spawn(move || run(&mut task))
            })
            .collect();
        threads.into_iter().filter_map(|t| t.join().ok()).collect()
    });
    let (values, results): (Vec<T>, Vec<_>) = outcomes.into_iter().unzip();
    let mut errors: Vec<BenchError> = results.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|e| match e {
        BenchError::PeerEnded => 2,
        BenchError::Interrupted => 1,
        _ => 0,
    });
    match errors.into_iter().next() {
        Some(first) => (values, Err(first)),
        None => (values, Ok(())),
    }
}

/// Tasks on a directory of the local disk, for tests.
#[cfg(test)]
pub(crate) fn disk_tasks(root: &std::path::Path, count: usize, progress: &Arc<TaskProgress>) -> Vec<Task> {
    let subject = Arc::new(crate::PathSubject {
        name: "disk".to_owned(),
        root: root.to_owned(),
        processes: Vec::new(),
        drop_caches: None,
    });
    let task = |(i, comm)| Task {
        comm,
        subject: subject.clone(),
        progress: progress.clone(),
        measures_process: i == 0,
    };
    let comms = Communicator::threads(count).into_iter();
    comms.enumerate().map(task).collect()
}
