//! IOR: several tasks write and read large pieces of one file, or of a file each. Options and the
//! table of results follow IOR of hpc/ior 4; latencies, CPU time and the slowest task are
//! additions.
//!
//! Task r has block r of each segment of a shared file, or all blocks of its own file. With a time
//! limit (`-D`), the tasks read only as many transfers as were written in the same repetition.

mod plan;
mod report;

use crate::subject::{AlignedBuffer, DataMode};
use crate::task::{self, Meter, Task};
use crate::{BenchError, ENOENT, Figure, Subject};
use bytes::Bytes;
pub use plan::Options;
use plan::fill;
pub use report::Report;
use std::time::Instant;

/// The times of the tasks in one phase.
#[derive(Debug)]
struct PhaseTimes {
    /// The longest time of a task to open its file, to transfer its data, and to close the file, in
    /// seconds.
    longest: [f64; 3],
    /// Sum of the tasks' times to transfer data, in seconds.
    transferring: f64,
}

/// The times of one task in one phase, in seconds: open, transfers, close.
type Times = [f64; 3];

/// The result of one task.
#[derive(Default)]
struct TaskResult {
    /// The figures of the phases; empty for tasks other than rank 0.
    figures: Vec<Figure>,
    /// The times of the same phases.
    times: Vec<PhaseTimes>,
    /// A file to remove after a failure or an interruption.
    leftover: Option<String>,
}

/// Runs the tasks of this process. After an interruption or failure, the report has the completed
/// phases, and the files are removed unless they are to be kept. Only the process with rank 0 gets
/// a report.
///
/// # Errors
///
/// Invalid options, a failed operation, wrong data, or an interruption.
pub fn run(options: &Options, tasks: Vec<Task>) -> (Option<Report>, Result<(), BenchError>) {
    let Some(first) = tasks.first() else {
        return (None, Ok(()));
    };
    let (is_rank_0, size) = (first.is_first(), first.comm.size());
    if let Err(e) = options.check(size as u64) {
        return (None, Err(e));
    }
    let subjects: Vec<_> = tasks.iter().map(|t| t.subject.clone()).collect();
    let (mut results, outcome) = task::run_all(tasks, |task| {
        let mut result = TaskResult::default();
        let outcome = run_task(options, task, &mut result);
        (result, outcome)
    });
    let report = results.first_mut().filter(|_| is_rank_0).map(|first| Report {
        options: options.clone(),
        tasks: size,
        figures: std::mem::take(&mut first.figures),
        times: std::mem::take(&mut first.times),
    });
    let removed = results.iter().zip(&subjects).try_for_each(|(result, subject)| {
        result
            .leftover
            .as_ref()
            .map_or(Ok(()), |name| remove(&**subject, name))
    });
    (report, outcome.and(removed))
}

fn run_task(options: &Options, task: &mut Task, result: &mut TaskResult) -> Result<(), BenchError> {
    let (rank, tasks) = (task.comm.rank() as u64, task.comm.size() as u64);
    let own_file = options.file_of(rank);
    let subject = task.subject.clone();
    subject.enter("")?;
    if let Some(stripes) = options.stripes.filter(|_| options.write && rank == 0) {
        subject.set_stripes("", stripes)?;
    }
    // The first task of a shared file removes it.
    let owns_file = options.file_per_task || rank == 0;
    for repetition in 0..options.repetitions {
        let mut counts = vec![options.transfers(); tasks as usize];
        if options.write {
            if owns_file {
                remove(&*subject, &own_file)?;
                result.leftover = (!options.keep).then(|| own_file.clone());
            }
            let count = access(
                options,
                task,
                result,
                (Kind::Write, repetition),
                rank,
                options.transfers(),
            )?;
            counts = task.comm.exchange_numbers(count)?;
        }
        let count_of = |rank: u64| counts.get(rank as usize).copied().unwrap_or(0);
        if options.check_write {
            access(
                options,
                task,
                result,
                (Kind::CheckWrite, repetition),
                rank,
                count_of(rank),
            )?;
        }
        if options.read {
            let from = if options.reorder { (rank + 1) % tasks } else { rank };
            access(
                options,
                task,
                result,
                (Kind::Read, repetition),
                from,
                count_of(from),
            )?;
        }
        task.comm.any(false)?;
        if owns_file && !options.keep && options.write {
            remove(&*subject, &own_file)?;
            result.leftover = None;
        }
    }
    Ok(())
}

/// Removes a file, unless it is missing.
fn remove(subject: &dyn Subject, name: &str) -> Result<(), BenchError> {
    match subject.unlink("", name) {
        Err(e) if e.has_errno(ENOENT) => Ok(()),
        result => result,
    }
}

/// A phase.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Write,
    /// Reads what the task has written, without a time limit.
    CheckWrite,
    Read,
}

impl Kind {
    /// All phases, in the order of a repetition.
    const ALL: [Kind; 3] = [Kind::Write, Kind::CheckWrite, Kind::Read];

    /// The name in tables.
    fn name(self) -> &'static str {
        match self {
            Kind::Write => "write",
            Kind::CheckWrite => "check write",
            Kind::Read => "read",
        }
    }
}

/// Does one phase of a task on the transfers of the task `of`, at most `count`. Returns the number
/// of transfers.
fn access(
    options: &Options,
    task: &mut Task,
    result: &mut TaskResult,
    (kind, repetition): (Kind, usize),
    of: u64,
    count: u64,
) -> Result<u64, BenchError> {
    let tasks = task.comm.size() as u64;
    let (mut times, mut done) = (Times::default(), 0);
    let (figure, outcome) = task.phase(kind.name(), |meter, subject, _| {
        meter.expect(count);
        let outcome = transfer_all(options, kind, (of, tasks), count, meter, subject, &mut times);
        done = meter.done();
        outcome
    })?;
    let bits = times.map(f64::to_bits);
    let mut all = Vec::new();
    for part in bits {
        let of_tasks = task.comm.exchange_numbers(part)?;
        all.push(of_tasks.into_iter().map(f64::from_bits).collect::<Vec<f64>>());
    }
    if let Some(mut figure) = figure {
        figure.iteration = repetition;
        figure.accumulate(&mut result.figures);
        result.figures.push(figure);
        let of_part = |part: usize| all.get(part).into_iter().flatten().copied();
        result.times.push(PhaseTimes {
            longest: [0, 1, 2].map(|part| of_part(part).fold(0.0, f64::max)),
            transferring: of_part(1).sum(),
        });
    }
    outcome.map(|()| done)
}

/// Opens the file, does the transfers and closes the file.
fn transfer_all(
    options: &Options,
    kind: Kind,
    (of, tasks): (u64, u64),
    count: u64,
    meter: &mut Meter<'_>,
    subject: &dyn Subject,
    times: &mut Times,
) -> Result<(), BenchError> {
    let name = options.file_of(of);
    let writes = kind == Kind::Write;
    let checks = match kind {
        Kind::Write => options.check_write || options.check_read,
        Kind::CheckWrite => true,
        Kind::Read => options.check_read,
    };
    let start_time = Instant::now();
    let mode = DataMode {
        write: writes,
        direct: options.direct,
    };
    let file = subject.open_data("", &name, mode)?;
    let opened = Instant::now();
    let limit = options.stonewall.filter(|_| kind != Kind::CheckWrite);
    let len = options.transfer as usize;
    let data = |offset| {
        let mut buffer = AlignedBuffer::new(len);
        fill(buffer.bytes_mut(), options.seed, of, offset);
        buffer.freeze()
    };
    let mut block = if writes { data(0) } else { Bytes::new() };
    let mut read_buffer = AlignedBuffer::new(if writes { 0 } else { len });
    for transfer in options.order(of, count) {
        if limit.is_some_and(|limit| opened.elapsed() >= limit) {
            break;
        }
        let offset = options.offset((of, tasks), transfer);
        match kind {
            Kind::Write => {
                if checks {
                    block = data(offset);
                }
                meter.time(|| file.write_at(offset, &block))?;
            }
            _ => {
                let into = read_buffer.bytes_mut();
                let read = meter.time(|| file.read_at(offset, into))?;
                let into = read_buffer.bytes_mut();
                if read < len {
                    let why = format!("it has only {read} of {len} bytes at offset {offset}");
                    return Err(wrong_data(subject, &name, &why));
                }
                if checks {
                    let expected = data(offset);
                    if let Some(at) = expected.iter().zip(into.iter()).position(|(a, b)| a != b) {
                        let why = format!("wrong data at offset {}", offset + at as u64);
                        return Err(wrong_data(subject, &name, &why));
                    }
                }
            }
        }
    }
    let transferred = Instant::now();
    if writes && options.sync {
        file.sync()?;
    }
    file.close()?;
    *times = [
        (opened - start_time).as_secs_f64(),
        (transferred - opened).as_secs_f64(),
        transferred.elapsed().as_secs_f64(),
    ];
    Ok(())
}

fn wrong_data(subject: &dyn Subject, name: &str, why: &str) -> BenchError {
    crate::subject::operation_error(subject.name(), "read", name.to_owned(), why)
}

#[cfg(test)]
mod tests;
