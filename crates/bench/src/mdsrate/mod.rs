//! mdsrate: one operation, as fast as several tasks can execute it, on files in several
//! directories. Options, file names and the result line follow mdsrate of Lustre's tests.
//!
//! Task r works in directory r modulo the number of directories; the tasks of a directory take its
//! files in turn. Open, lookup, stat and setxattr first create the missing files, unless `--ignore`
//! is set; unlink does so only with `--recreate`.

mod format;

use crate::subject::{NewFile, Subject, create_dirs};
use crate::task::{self, Meter, Task};
use crate::{BenchError, ENOENT, Figure, time_series};
use bytes::Bytes;
pub use format::Format;
use std::time::{Duration, Instant};

/// Name of the extended attribute to set.
const XATTR: &str = "user.mdsrate";
/// Value of the extended attribute, and the data of `--smallwrite`.
const SMALL_DATA: [u8; 4000] = [0; 4000];

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Create by open, and close.
    Create,
    /// Create by mknod.
    Mknod,
    /// Open and close an existing file.
    Open,
    /// Look up a name.
    Lookup,
    /// Read the attributes.
    Stat,
    /// Remove.
    Unlink,
    /// Set an extended attribute.
    Setxattr,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Create => "create",
            Mode::Mknod => "mknod",
            Mode::Open => "open",
            Mode::Lookup => "lookup",
            Mode::Stat => "stat",
            Mode::Unlink => "unlink",
            Mode::Setxattr => "setxattr",
        }
    }

    /// Whether the operation creates files.
    fn creates(self) -> bool {
        matches!(self, Mode::Create | Mode::Mknod)
    }

    /// Whether the tasks choose files repeatedly, instead of using each file once.
    fn repeats(self) -> bool {
        matches!(self, Mode::Open | Mode::Lookup)
    }
}

/// mdsrate's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The operation.
    pub mode: Mode,
    /// `--dirfmt`: format of directory names; `None`: the root of the subject.
    pub dirs: Option<Format>,
    /// `--ndirs`: number of directories.
    pub dir_count: usize,
    /// `--mntfmt`, `--mntcount`: format and number of mounts; each one serves an equal number of
    /// tasks.
    pub mounts: Option<(Format, usize)>,
    /// `--mdtcount`: number of metadata targets that directories are created on in turn; `None`:
    /// the targets that the file system chooses.
    pub mdt_count: Option<u32>,
    /// `--filefmt`: format of file names, with `%d` for the task and `%%d` for the file.
    pub files: String,
    /// `--begin`: number of the first file.
    pub begin: u64,
    /// `--nfiles`: number of files in each directory.
    pub file_count: Option<u64>,
    /// `--iters`: number of opens or lookups of each task.
    pub iterations: Option<u64>,
    /// `--time`: time limit.
    pub time: Option<Duration>,
    /// `--stripes`: stripe count of new files; 0 delays the creation of objects.
    pub stripes: Option<u16>,
    /// `--noexcl`: files may exist already.
    pub not_exclusive: bool,
    /// `--setxattr` with a create operation: also set an extended attribute.
    pub with_xattr: bool,
    /// `--smallwrite`: also write 4000 bytes to each file.
    pub small_write: bool,
    /// `--recreate`: create missing files before unlinking, and the unlinked files again
    /// afterwards.
    pub recreate: bool,
    /// `--ignore`: create no missing files first; stat, setxattr and unlink skip them.
    pub ignore: bool,
    /// `--readdir_order`: open or look up in the order of the directory instead of at random.
    pub readdir_order: bool,
    /// `--seed`: seed of the random order.
    pub seed: u64,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The figures of the operation by all tasks.
    pub figure: Figure,
    dir_count: usize,
    /// Number of tasks in the first directory.
    threads_per_dir: u64,
    /// Number of files that unlink should have removed; `None` for other operations, and with
    /// `--ignore` or `--recreate`.
    expected: Option<u64>,
}

impl Report {
    /// mdsrate's result line, latencies, and a table of `windows` time windows.
    pub fn text(&self, windows: usize) -> String {
        let f = &self.figure;
        let (cmd, rate) = (f.operation, f.rate());
        let sum_of_task_rates: f64 = f.task_rates.iter().sum();
        let mut out = format!(
            "Rate: {rate:.2} eff {sum_of_task_rates:.2} aggr {:.2} avg client {cmd}s/sec (total: {} threads {} {cmd}s {} dirs {} threads/dir {:.2} secs)",
            rate / f.tasks as f64,
            f.tasks,
            f.operations,
            self.dir_count,
            self.threads_per_dir,
            f.seconds
        );
        out.push_str(&format!(
            "\nLatency: p50 {:.1} p95 {:.1} p99 {:.1} p99.9 {:.1} max {:.1} us; CPU {:.1} us for each",
            f.latencies.p50,
            f.latencies.p95,
            f.latencies.p99,
            f.latencies.p99_9,
            f.latencies.max,
            f.cpu_us()
        ));
        if let Some(expected) = self.expected.filter(|e| *e != f.operations) {
            out.push_str(&format!(
                "\nWarning: only unlinked {} files instead of {expected}",
                f.operations
            ));
        }
        out.push_str(&time_series::windows_table(std::slice::from_ref(f), windows));
        out
    }
}

impl Options {
    /// mdsrate's defaults for this operation and number of files in each directory.
    pub fn new(mode: Mode, file_count: u64) -> Options {
        Options {
            mode,
            dirs: None,
            dir_count: 1,
            mounts: None,
            mdt_count: None,
            files: "f%%d".to_owned(),
            begin: 0,
            file_count: Some(file_count),
            iterations: None,
            time: None,
            stripes: None,
            not_exclusive: false,
            with_xattr: false,
            small_write: false,
            recreate: false,
            ignore: false,
            readdir_order: false,
            seed: 0,
        }
    }

    fn check(&self, tasks: usize) -> Result<(), BenchError> {
        let invalid = |message: &str| Err(BenchError::Options(message.to_owned()));
        let Options { mode, .. } = *self;
        match () {
            () if mode.repeats() && self.file_count.is_none() => {
                invalid("--nfiles is required: the number of files to choose from")
            }
            () if mode.repeats() && self.iterations.is_none() && self.time.is_none() => {
                invalid("--iters or --time is required")
            }
            () if !mode.repeats() && self.file_count.is_none() && self.time.is_none() => {
                invalid("--nfiles or --time is required")
            }
            () if !mode.creates() && self.file_count.is_none() && !self.ignore && mode != Mode::Unlink => {
                invalid("--nfiles or --ignore is required")
            }
            () if self.dir_count == 0 || self.mdt_count == Some(0) => {
                invalid("--ndirs and --mdtcount must be at least 1")
            }
            () if mode.creates() && self.dir_count > tasks => {
                invalid("--ndirs must not exceed the number of tasks: each directory needs one")
            }
            () if self
                .mounts
                .as_ref()
                .is_some_and(|(_, n)| *n == 0 || self.dirs.is_none()) =>
            {
                invalid("--mntfmt and --mntcount require --dirfmt")
            }
            () if self.with_xattr && !mode.creates() => {
                invalid("--setxattr can be combined only with --create or --mknod")
            }
            () if self.recreate && mode != Mode::Unlink => invalid("--recreate requires --unlink"),
            () if self.iterations.is_some() && !mode.repeats() => {
                invalid("--iters requires --lookup or --open")
            }
            () if (self.small_write && mode != Mode::Create) || (self.not_exclusive && !mode.creates()) => {
                invalid("--smallwrite requires --create, and --noexcl requires --create or --mknod")
            }
            () => Ok(()),
        }
    }
}

/// The directory and the files of one task.
struct TaskFiles {
    dir: String,
    files: Format,
    /// The numbers of the task's files.
    numbers: std::iter::StepBy<std::ops::Range<usize>>,
    /// Number of tasks in the directory.
    threads: u64,
}

impl TaskFiles {
    /// The names of the task's files, in ascending order of their numbers.
    fn names(&self) -> impl DoubleEndedIterator<Item = String> + ExactSizeIterator + '_ {
        self.numbers.clone().map(|n| self.files.name(n as u64))
    }

    /// Assigns a directory and files to the task `rank` of `tasks` tasks.
    fn of(options: &Options, rank: usize, tasks: usize) -> Result<TaskFiles, BenchError> {
        let dir_number = rank % options.dir_count;
        let threads = (tasks - dir_number).div_ceil(options.dir_count).max(1) as u64;
        let dir = options
            .dirs
            .as_ref()
            .map(|f| f.name(dir_number as u64))
            .unwrap_or_default();
        let dir = match &options.mounts {
            None => dir,
            Some((format, count)) => {
                let tasks_per_mount = (tasks / (*count).min(tasks)).max(1);
                format!("{}/{dir}", format.name((rank / tasks_per_mount) as u64))
            }
        };
        // First insert the task's number, then each file's number.
        let files = Format::parse(&Format::parse(&options.files)?.name(rank as u64))?;
        if !files.is_unique() {
            return Err(BenchError::Options(format!(
                "--filefmt {}: use %%d for the number of the file (%d is the task)",
                options.files
            )));
        }
        let begin = options.begin as usize;
        let end = match options.file_count {
            Some(count) => begin.saturating_add(count as usize),
            None => usize::MAX,
        };
        let first = begin.saturating_add(rank / options.dir_count);
        Ok(TaskFiles {
            dir,
            files,
            numbers: (first..end.max(first)).step_by(threads as usize),
            threads,
        })
    }
}

/// The result of one task.
#[derive(Default)]
struct TaskResult {
    /// The report, for the task of rank 0.
    report: Option<Report>,
    /// After a create or mknod run that failed or was interrupted: the task's files, and how many
    /// of them it has created.
    leftover: Option<(TaskFiles, usize)>,
}

/// Runs the tasks of this process. Only the process with rank 0 gets a report.
///
/// # Errors
///
/// Invalid options, a failed operation, or an interruption.
pub fn run(options: &Options, tasks: Vec<Task>) -> (Option<Report>, Result<(), BenchError>) {
    let mut reported = None;
    let outcome = run_with_report(options, tasks, |report| {
        reported = Some(report);
        Ok(())
    });
    (reported, outcome)
}

/// Like [`run`], but passes the report to `on_report` before the clean-up, which may take long and
/// which a second interruption may cut short.
///
/// # Errors
///
/// As for [`run`], and the errors of `on_report`.
pub fn run_with_report<E: From<BenchError>>(
    options: &Options,
    tasks: Vec<Task>,
    on_report: impl FnOnce(Report) -> Result<(), E>,
) -> Result<(), E> {
    let Some(size) = tasks.first().map(|t| t.comm.size()) else {
        return Ok(());
    };
    options.check(size)?;
    let subjects: Vec<_> = tasks.iter().map(|t| t.subject.clone()).collect();
    let (mut results, outcome) = task::run_all(tasks, |task| {
        let mut result = TaskResult::default();
        let outcome = run_task(options, task, &mut result);
        (result, outcome)
    });
    let reported = match results.iter_mut().find_map(|r| r.report.take()) {
        Some(report) => on_report(report),
        None => Ok(()),
    };
    let results = results.iter().zip(&subjects);
    let removed = results
        .filter_map(|(result, subject)| Some((result.leftover.as_ref()?, subject)))
        .try_for_each(|((files_of_task, created), subject)| {
            let mut names = files_of_task.names().take(*created);
            names.try_for_each(|name| subject.unlink(&files_of_task.dir, &name))
        });
    reported.and(Ok(outcome.and(removed)?))
}

fn run_task(options: &Options, task: &mut Task, result: &mut TaskResult) -> Result<(), BenchError> {
    let (rank, size) = (task.comm.rank(), task.comm.size());
    let mode = options.mode;
    let files_of_task = TaskFiles::of(options, rank, size)?;
    let subject = task.subject.clone();
    if !files_of_task.dir.is_empty() {
        match options.mdt_count {
            None => create_dirs(&*subject, &files_of_task.dir)?,
            Some(count) => {
                let (parent, name) = files_of_task
                    .dir
                    .rsplit_once('/')
                    .unwrap_or(("", &files_of_task.dir));
                create_dirs(&*subject, parent)?;
                subject.make_dir_on(parent, name, (rank % options.dir_count) as u32 % count)?;
            }
        }
    }
    subject.enter(&files_of_task.dir)?;
    if let Some(stripes) = options.stripes.filter(|s| *s > 0 && mode.creates()) {
        subject.set_stripes(&files_of_task.dir, stripes)?;
    }
    if !mode.creates() && !options.ignore && (mode != Mode::Unlink || options.recreate) {
        create_missing(&*subject, &files_of_task)?;
    }
    let names = match options.readdir_order && mode.repeats() {
        true => subject
            .list(&files_of_task.dir)?
            .into_iter()
            .map(|(name, _)| name)
            .collect(),
        false => Vec::new(),
    };
    let mut operations = 0;
    let (figure, outcome) = task.phase(mode.name(), |meter, subject, _| {
        let deadline = options.time.map(|time| Instant::now() + time);
        let outcome = match mode.repeats() {
            true => repeat(options, &files_of_task, &names, rank, deadline, meter, subject),
            false => run_once_each(options, &files_of_task, deadline, meter, subject),
        };
        operations = meter.done() as usize;
        outcome
    })?;
    result.report = figure.map(|figure| Report {
        expected: match (mode, options.ignore || options.recreate) {
            (Mode::Unlink, false) => options.file_count.map(|n| n * options.dir_count.min(size) as u64),
            _ => None,
        },
        figure,
        dir_count: options.dir_count,
        threads_per_dir: files_of_task.threads,
    });
    if mode.creates() && !options.not_exclusive && outcome.is_err() {
        // The caller removes the incomplete set of files.
        result.leftover = Some((files_of_task, operations));
        return outcome;
    }
    outcome?;
    if options.recreate {
        create_missing(&*subject, &files_of_task)?;
    }
    Ok(())
}

/// Creates the missing files of a task. Create runs create files in ascending order and unlink runs
/// remove them in ascending order, so the existing files are consecutive. The order here keeps them
/// consecutive if the run is interrupted.
fn create_missing(subject: &dyn Subject, files_of_task: &TaskFiles) -> Result<(), BenchError> {
    let dir = files_of_task.dir.as_str();
    let create = |name: String| subject.create(dir, &name, &NewFile::EMPTY);
    let names = || files_of_task.names();
    let missing_at_start = count_missing_before(subject, dir, names())?;
    if missing_at_start == names().len() {
        return names().try_for_each(create);
    }
    let missing_at_end = count_missing_before(subject, dir, names().rev())?;
    names().take(missing_at_start).rev().try_for_each(create)?;
    names().skip(names().len() - missing_at_end).try_for_each(create)
}

/// Number of names before the first existing file.
fn count_missing_before(
    subject: &dyn Subject,
    dir: &str,
    names: impl Iterator<Item = String>,
) -> Result<usize, BenchError> {
    let mut count = 0;
    for name in names {
        match subject.lookup(dir, &name) {
            Err(e) if e.has_errno(ENOENT) => count += 1,
            result => return result.map(|()| count),
        }
    }
    Ok(count)
}

/// Executes the operation once on each file of the task, until `deadline`.
fn run_once_each(
    options: &Options,
    files_of_task: &TaskFiles,
    deadline: Option<Instant>,
    meter: &mut Meter<'_>,
    subject: &dyn Subject,
) -> Result<(), BenchError> {
    let new = NewFile {
        exclusive: !options.not_exclusive,
        delayed: options.stripes == Some(0),
        data: Bytes::from_static(if options.small_write { &SMALL_DATA } else { &[] }),
        ..NewFile::EMPTY
    };
    let dir = files_of_task.dir.as_str();
    if deadline.is_none() {
        meter.expect(files_of_task.names().count() as u64);
    }
    for name in files_of_task.names() {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        let result = meter.time(|| {
            match options.mode {
                Mode::Create => subject.create(dir, &name, &new)?,
                Mode::Mknod => subject.mknod(dir, &name)?,
                Mode::Stat => subject.stat(dir, &name)?,
                Mode::Unlink => subject.unlink(dir, &name)?,
                Mode::Setxattr => subject.set_xattr(dir, &name, XATTR, &SMALL_DATA)?,
                Mode::Open => subject.open(dir, &name, 0).map(drop)?,
                Mode::Lookup => subject.lookup(dir, &name)?,
            }
            match options.with_xattr {
                true => subject.set_xattr(dir, &name, XATTR, &SMALL_DATA),
                false => Ok(()),
            }
        });
        match result {
            Err(e) if e.has_errno(ENOENT) && options.ignore => {}
            // The task's files are consecutive: none follow the first missing one.
            Err(e) if e.has_errno(ENOENT) && options.mode == Mode::Unlink => break,
            result => result?,
        }
    }
    Ok(())
}

/// Opens or looks up the files in `names` in turn, from a random one on. If `names` is empty,
/// chooses the task's own files at random.
fn repeat(
    options: &Options,
    files_of_task: &TaskFiles,
    names: &[String],
    rank: usize,
    deadline: Option<Instant>,
    meter: &mut Meter<'_>,
    subject: &dyn Subject,
) -> Result<(), BenchError> {
    let mut random = fastrand::Rng::with_seed(options.seed.wrapping_add(rank as u64));
    let mut next = random.usize(0..names.len().max(1));
    for _ in 0..options.iterations.unwrap_or(u64::MAX) {
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break;
        }
        let name = match names.get(next) {
            Some(name) => {
                next = (next + 1) % names.len();
                name.clone()
            }
            // Without `--ignore`, all of the task's own files exist.
            None => {
                let chosen = random.usize(0..files_of_task.numbers.len().max(1));
                match files_of_task.numbers.clone().nth(chosen) {
                    Some(n) => files_of_task.files.name(n as u64),
                    None => break,
                }
            }
        };
        meter.time(|| match options.mode {
            Mode::Open => subject.open(&files_of_task.dir, &name, 0).map(drop),
            _ => subject.lookup(&files_of_task.dir, &name),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
