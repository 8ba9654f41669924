//! Common parts of the benchmarks with concurrent tasks: creating the tasks (threads of this
//! process or of several processes started by `mpirun`, each with a directory or client), showing
//! progress on standard error, and printing results.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bench::{
    BenchError, Communicator, Figure, JobProcess, LibrarySubject, PathSubject, Subject, Task, TaskProgress,
};
use client::{Source, parse_source};

use super::library::Library;
use super::stop_flag;
use crate::cli::Load;
use crate::clock::Date;
use crate::interrupt;
use crate::output::{self, errln, outln};
use crate::progress::{CLEAR_LINE, ProgressLine};

/// Interval of updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

impl Load {
    /// The output options of this load.
    pub(super) fn output_options(&self) -> OutputOptions<'_> {
        OutputOptions {
            csv: self.csv.as_deref(),
            json: self.json,
            windows: self.windows as usize,
        }
    }
}

/// Options for printing results.
pub(super) struct OutputOptions<'a> {
    /// Also write CSV to this file.
    pub(super) csv: Option<&'a Path>,
    /// Print JSON instead of text.
    pub(super) json: bool,
    /// Number of time windows to report for each operation.
    pub(super) windows: usize,
}

/// The tasks of this process.
pub(super) struct TaskGroup {
    /// The tasks until [`TaskGroup::run`] takes them.
    tasks: Vec<Task>,
    progress: Arc<TaskProgress>,
    /// The clients, with `--mgs`.
    library: Option<Library>,
    /// Whether this process prints the results.
    pub(super) prints_results: bool,
}

impl TaskGroup {
    /// Creates the tasks. `dirs` are the value of the option `dir_option`, separated by @; with
    /// `--mgs` they are paths from the root of the file system. `mounts` overrides the number of
    /// clients from `--mounts`; the default is the number of tasks of this process.
    pub(super) fn new(load: &Load, dir_option: &str, dirs: &str, mounts: Option<u32>) -> Result<TaskGroup> {
        let job_process = JobProcess::from_env();
        let prints_results = job_process.as_ref().is_none_or(|p| p.rank == 0);
        let tasks = load.np as usize;
        let comms = match &job_process {
            None => Communicator::threads(tasks),
            Some(job_process) => {
                let dir = match &load.meet {
                    Some(dir) => dir.clone(),
                    None if job_process.local => std::env::temp_dir(),
                    None => bail!(
                        "the processes run on several machines: give them a shared directory with --meet DIR"
                    ),
                };
                job_process.join(tasks, &dir, getrandom::u64()?)?
            }
        };
        // Only one process measures the processes of --pid; otherwise the figures would include
        // them several times.
        let processes = if prints_results {
            load.pids.clone()
        } else {
            Vec::new()
        };
        let dir_names: Vec<&str> = dirs.split('@').filter(|d| !d.is_empty()).collect();
        if dir_names.is_empty() {
            bail!("{dir_option} needs a directory");
        }
        let (library, subjects): (_, Vec<Arc<dyn Subject>>) = match &load.mgs {
            Some(source) => {
                let Source { mgs, fsname, subdir } = parse_source(source)?;
                if !subdir.is_empty() {
                    bail!(
                        "--mgs needs the root of a file system: select directories in it with {dir_option}"
                    );
                }
                let mounts = mounts.or(load.mounts).map_or(tasks, |m| m as usize);
                let library = Library::mount(&mgs, &fsname, &load.net, mounts)?;
                let subjects = library.clients.iter().enumerate().map(|(i, client)| {
                    let subject = LibrarySubject::new("library", client.clone(), library.runtime.clone());
                    let dir = dir_names.get(i % dir_names.len()).copied().unwrap_or_default();
                    let subject = subject.with_processes(processes.clone()).with_root(dir);
                    Arc::new(subject) as Arc<dyn Subject>
                });
                let subjects = subjects.collect();
                (Some(library), subjects)
            }
            None => {
                let subject = |dir: &&str| {
                    let root = crate::daemon::make_absolute(&PathBuf::from(dir))?;
                    anyhow::Ok(Arc::new(PathSubject {
                        name: root.display().to_string(),
                        root,
                        processes: processes.clone(),
                        drop_caches: None,
                    }) as Arc<dyn Subject>)
                };
                (None, dir_names.iter().map(subject).collect::<Result<_>>()?)
            }
        };
        let progress = Arc::new(TaskProgress {
            stop: stop_flag()?,
            ..TaskProgress::default()
        });
        let tasks = comms
            .into_iter()
            .enumerate()
            .filter_map(|(i, comm)| {
                Some(Task {
                    subject: subjects.get(comm.rank() % subjects.len())?.clone(),
                    measures_process: i == 0,
                    progress: progress.clone(),
                    comm,
                })
            })
            .collect();
        Ok(TaskGroup {
            tasks,
            progress,
            library,
            prints_results,
        })
    }

    /// Runs the tasks.
    pub(super) fn run<T>(&mut self, work: impl FnOnce(Vec<Task>) -> T) -> T {
        let tasks = std::mem::take(&mut self.tasks);
        match self.prints_results {
            true => with_progress(&self.progress, || work(tasks)),
            false => work(tasks),
        }
    }

    /// Unmounts the clients.
    pub(super) fn umount(self) {
        if let Some(library) = self.library {
            library.umount();
        }
    }
}

/// Runs `work` and shows its progress meanwhile.
pub(super) fn with_progress<T>(progress: &TaskProgress, work: impl FnOnce() -> T) -> T {
    let finished = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| show_progress(progress, &finished));
        let value = work();
        finished.store(true, Ordering::Relaxed);
        value
    })
}

/// Shows progress until `finished` is set.
fn show_progress(progress: &TaskProgress, finished: &AtomicBool) {
    let mut line = ProgressLine::new();
    while !finished.load(Ordering::Relaxed) {
        std::thread::sleep(PROGRESS_INTERVAL);
        let phase = progress.phase.lock().clone();
        if phase.is_empty() {
            continue;
        }
        let done = progress.done.load(Ordering::Relaxed);
        let total = Some(progress.total.load(Ordering::Relaxed)).filter(|total| *total > 0);
        let text = match total {
            Some(_) => phase,
            None => format!("operations: {phase}"),
        };
        line.update(&text, done, total);
    }
}

/// Clears the progress line on a terminal.
pub(super) fn clear_line() {
    if std::io::stderr().is_terminal() {
        output::write_err(format_args!("{CLEAR_LINE}"));
    }
}

/// Separates an error of the measurement (inner) from other errors (outer).
pub(super) fn split_bench_error(outcome: Result<()>) -> Result<Result<(), BenchError>> {
    match outcome {
        Ok(()) => Ok(Ok(())),
        Err(e) => Ok(Err(e.downcast()?)),
    }
}

/// Prints results as CSV to a file, as JSON, or as text.
pub(super) fn print_results(
    options: &OutputOptions<'_>,
    figures: &[Figure],
    text: impl FnOnce() -> String,
) -> Result<()> {
    if let Some(path) = options.csv {
        fs::write(path, bench::csv(figures, options.windows))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    match options.json {
        true => outln!("{}", bench::json(figures, options.windows)?),
        false => outln!("{}", text()),
    }
    Ok(())
}

/// The exit status of a benchmark. Prints a message after an interruption.
pub(super) fn exit_code(outcome: Result<(), BenchError>) -> Result<ExitCode> {
    match outcome {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e @ BenchError::Interrupted) => {
            errln!("{e}: partial results were reported, created files were removed");
            Ok(interrupt::exit_code())
        }
        Err(e) => Err(e.into()),
    }
}

/// The exit status of a benchmark that `mpirun` may run as several processes. After an
/// interruption, only the process that prints the results fails: if another one failed, `mpirun`
/// would kill the printing process before it has printed its results and removed its files.
pub(super) fn exit_code_under_mpi(prints_results: bool, outcome: Result<(), BenchError>) -> Result<ExitCode> {
    match outcome {
        Err(BenchError::Interrupted) if !prints_results => Ok(ExitCode::SUCCESS),
        outcome => exit_code(outcome),
    }
}

/// The current time in UTC, in the format of mdtest.
pub(super) fn now() -> String {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Date::from_unix(since_1970.as_secs() as i64).mdtest()
}
