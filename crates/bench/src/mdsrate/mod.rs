//! mdsrate: one operation, as fast as several tasks can, on files that are spread over some directories. Options, names and
//! the line that tells the result are those of the mdsrate of Lustre's tests.
//!
//! Task r works in directory r modulo their number; the tasks of a directory take its files in turn. What only looks at
//! files makes those first that are not there.

mod format;

use crate::subject::{NewFile, Subject, make_all};
use crate::task::{self, Meter, Task};
use crate::{BenchError, EEXIST, ENOENT, Figure, course};
use bytes::Bytes;
pub use format::Format;
use std::time::{Duration, Instant};

/// The extended attribute that is set, and the bytes of its value and of a small write.
const XATTR: &str = "user.mdsrate";
const SMALL: [u8; 4000] = [0; 4000];

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Open and create, close.
    Create,
    /// Create without opening.
    Mknod,
    /// Open and close what is there.
    Open,
    /// Find the name.
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

    fn makes(self) -> bool {
        matches!(self, Mode::Create | Mode::Mknod)
    }

    /// Files are chosen again and again, not each once.
    fn repeats(self) -> bool {
        matches!(self, Mode::Open | Mode::Lookup)
    }
}

/// mdsrate's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which operation.
    pub mode: Mode,
    /// `--dirfmt`: the directory of a number; `None`: the root of the subject.
    pub dirs: Option<Format>,
    /// `--ndirs`.
    pub dir_count: usize,
    /// `--mntfmt`, `--mntcount`: the directories are below these, each for as many tasks.
    pub mounts: Option<(Format, usize)>,
    /// `--mdtcount`: the directories are made on so many targets in turn.
    pub mdt_count: u32,
    /// `--filefmt`: in it, `%d` is the task and `%%d` the file.
    pub files: String,
    /// `--begin`: the first file's number.
    pub begin: u64,
    /// `--nfiles`: files in each directory.
    pub file_count: Option<u64>,
    /// `--iters`: how often each task opens or looks up.
    pub iterations: Option<u64>,
    /// `--time`: for how long at most.
    pub time: Option<Duration>,
    /// `--stripes`: of new files; with 0 they get their objects later.
    pub stripes: Option<u16>,
    /// `--noexcl`: files may be there already.
    pub not_exclusive: bool,
    /// `--setxattr` with a creation: each file also gets an extended attribute.
    pub with_xattr: bool,
    /// `--smallwrite`: each file also gets some data.
    pub small_write: bool,
    /// `--recreate`: what was unlinked is made again.
    pub recreate: bool,
    /// `--ignore`: what is not there is passed over, and nothing is made first.
    pub ignore: bool,
    /// `--readdir_order`: in the order of the directory, not at random.
    pub readdir_order: bool,
    /// `--seed`: chooses the random order.
    pub seed: u64,
}

/// What came out.
#[derive(Debug)]
pub struct Report {
    /// The operation, by all tasks.
    pub figure: Figure,
    dir_count: usize,
    threads_per_dir: u64,
    /// How many there should have been.
    expected: Option<u64>,
}

impl Report {
    /// mdsrate's line, and how it went: in so many windows, if any.
    pub fn text(&self, windows: usize) -> String {
        let f = &self.figure;
        let (cmd, rate) = (f.operation, f.rate());
        let together: f64 = f.task_rates.iter().sum();
        let mut out = format!(
            "Rate: {rate:.2} eff {together:.2} aggr {:.2} avg client {cmd}s/sec (total: {} threads {} {cmd}s {} dirs {} threads/dir {:.2} secs)",
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
        out.push_str(&course::text(std::slice::from_ref(f), windows));
        out
    }
}

impl Options {
    /// This operation on so many files in each directory, which are made as mdsrate does it if it is told no more.
    pub fn of(mode: Mode, file_count: u64) -> Options {
        Options {
            mode,
            dirs: None,
            dir_count: 1,
            mounts: None,
            mdt_count: 1,
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
        let wrong = |why: &str| Err(BenchError::Options(why.to_owned()));
        let Options { mode, .. } = *self;
        match () {
            () if mode.repeats() && self.file_count.is_none() => {
                wrong("--nfiles says how many files there are to choose from")
            }
            () if mode.repeats() && self.iterations.is_none() && self.time.is_none() => {
                wrong("--iters or --time says how long")
            }
            () if !mode.repeats() && self.file_count.is_none() && self.time.is_none() => {
                wrong("--nfiles or --time says how many")
            }
            () if !mode.makes() && self.file_count.is_none() && !self.ignore && mode != Mode::Unlink => {
                wrong("--nfiles says how many files there are to be (or --ignore)")
            }
            () if self.dir_count == 0 || self.mdt_count == 0 => {
                wrong("--ndirs and --mdtcount are 1 at least")
            }
            () if mode.makes() && self.dir_count > tasks => {
                wrong("--ndirs must not be more than there are tasks: each directory needs one")
            }
            () if self
                .mounts
                .as_ref()
                .is_some_and(|(_, n)| *n == 0 || self.dirs.is_none()) =>
            {
                wrong("--mntfmt and --mntcount need --dirfmt")
            }
            () if self.with_xattr && !mode.makes() => {
                wrong("--setxattr goes with --create or --mknod, or alone")
            }
            () if self.recreate && mode != Mode::Unlink => wrong("--recreate goes with --unlink"),
            () if self.iterations.is_some() && !mode.repeats() => {
                wrong("--iters goes with --lookup and --open")
            }
            () if (self.small_write && mode != Mode::Create) || (self.not_exclusive && !mode.makes()) => {
                wrong("--smallwrite and --noexcl go with --create")
            }
            () => Ok(()),
        }
    }
}

/// Where one task works.
struct Place {
    dir: String,
    files: Format,
    /// The numbers of its files.
    numbers: std::iter::StepBy<std::ops::Range<usize>>,
    /// Tasks in its directory.
    threads: u64,
}

impl Place {
    /// The names of its files.
    fn names(&self) -> impl DoubleEndedIterator<Item = String> + '_ {
        self.numbers.clone().map(|n| self.files.of(n as u64))
    }

    fn of(options: &Options, rank: usize, tasks: usize) -> Result<Place, BenchError> {
        let dir_number = rank % options.dir_count;
        let threads = (tasks - dir_number).div_ceil(options.dir_count).max(1) as u64;
        let dir = options
            .dirs
            .as_ref()
            .map(|f| f.of(dir_number as u64))
            .unwrap_or_default();
        let dir = match &options.mounts {
            None => dir,
            Some((format, count)) => {
                let each = (tasks / (*count).min(tasks)).max(1);
                format!("{}/{dir}", format.of((rank / each) as u64))
            }
        };
        // First the task's number is put in, then each file's.
        let files = Format::parse(&Format::parse(&options.files)?.of(rank as u64))?;
        if !files.tells_apart() {
            return Err(BenchError::Options(format!(
                "--filefmt {}: write %%d where a file's number goes (%d is the task's)",
                options.files
            )));
        }
        let begin = options.begin as usize;
        let end = match options.file_count {
            Some(count) => begin.saturating_add(count as usize),
            None => usize::MAX,
        };
        let first = begin.saturating_add(rank / options.dir_count);
        Ok(Place {
            dir,
            files,
            numbers: (first..end.max(first)).step_by(threads as usize),
            threads,
        })
    }
}

/// What one task brings home: a report only rank 0, and where it made how many files that nobody wants.
#[derive(Default)]
struct Brought {
    report: Option<Report>,
    unwanted: Option<(Place, usize)>,
}

/// Runs the tasks of this process. The report is that of rank 0.
pub fn run(options: &Options, tasks: Vec<Task>) -> (Option<Report>, Result<(), BenchError>) {
    let mut reported = None;
    let ended = run_and_tell(options, tasks, |report| {
        reported = Some(report);
        Ok(())
    });
    (reported, ended)
}

/// The same, but the report is told before anything is removed, which may take long: who is in a hurry to end this process
/// has it then.
pub fn run_and_tell<E: From<BenchError>>(
    options: &Options,
    tasks: Vec<Task>,
    tell: impl FnOnce(Report) -> Result<(), E>,
) -> Result<(), E> {
    let Some(size) = tasks.first().map(|t| t.team.size()) else {
        return Ok(());
    };
    options.check(size)?;
    let subjects: Vec<_> = tasks.iter().map(|t| t.subject.clone()).collect();
    let (mut brought, ended) = task::run_all(tasks, |task| {
        let mut brought = Brought::default();
        let ended = one(options, task, &mut brought);
        (brought, ended)
    });
    let told = match brought.iter_mut().find_map(|b| b.report.take()) {
        Some(report) => tell(report),
        None => Ok(()),
    };
    let unwanted = brought.iter().zip(&subjects);
    let removed = unwanted
        .filter_map(|(brought, subject)| Some((brought.unwanted.as_ref()?, subject)))
        .try_for_each(|((place, made), subject)| {
            let mut names = place.names().take(*made);
            names.try_for_each(|name| subject.unlink(&place.dir, &name))
        });
    told.and(Ok(ended.and(removed)?))
}

fn one(options: &Options, task: &mut Task, brought: &mut Brought) -> Result<(), BenchError> {
    let (rank, size) = (task.team.rank(), task.team.size());
    let mode = options.mode;
    let place = Place::of(options, rank, size)?;
    let subject = task.subject.clone();
    if !place.dir.is_empty() {
        match options.mdt_count {
            1 => make_all(&*subject, &place.dir)?,
            count => {
                let (parent, name) = place.dir.rsplit_once('/').unwrap_or(("", &place.dir));
                make_all(&*subject, parent)?;
                subject.make_dir_on(parent, name, (rank % options.dir_count) as u32 % count)?;
            }
        }
    }
    subject.enter(&place.dir)?;
    if let Some(stripes) = options.stripes.filter(|s| *s > 0 && mode.makes()) {
        subject.set_stripes(&place.dir, stripes)?;
    }
    if !mode.makes() && !options.ignore && (mode != Mode::Unlink || options.recreate) {
        make_first(&*subject, &place)?;
    }
    let names = match options.readdir_order && mode.repeats() {
        true => subject
            .list(&place.dir)?
            .into_iter()
            .map(|(name, _)| name)
            .collect(),
        false => Vec::new(),
    };
    let mut made = 0;
    let (figure, ended) = task.phase(mode.name(), |meter, subject, _| {
        let until = options.time.map(|time| Instant::now() + time);
        let ended = match mode.repeats() {
            true => again_and_again(options, &place, &names, rank, until, meter, subject),
            false => each_once(options, &place, until, meter, subject),
        };
        made = meter.done() as usize;
        ended
    })?;
    brought.report = figure.map(|figure| Report {
        expected: match (mode, options.ignore || options.recreate) {
            (Mode::Unlink, false) => options.file_count.map(|n| n * options.dir_count.min(size) as u64),
            _ => None,
        },
        figure,
        dir_count: options.dir_count,
        threads_per_dir: place.threads,
    });
    if mode.makes() && !options.not_exclusive && ended.is_err() {
        // Nobody asked for half of them.
        brought.unwanted = Some((place, made));
        return ended;
    }
    ended?;
    if options.recreate {
        make_first(&*subject, &place)?;
    }
    Ok(())
}

/// Makes the files of a place from the last one on, as far as they are not there.
fn make_first(subject: &dyn Subject, place: &Place) -> Result<(), BenchError> {
    for name in place.names().rev() {
        match subject.create(&place.dir, &name, &NewFile::EMPTY) {
            // The rest has been made in this order before.
            Err(e) if e.is(EEXIST) => return Ok(()),
            made => made?,
        }
    }
    Ok(())
}

fn each_once(
    options: &Options,
    place: &Place,
    until: Option<Instant>,
    meter: &mut Meter<'_>,
    subject: &dyn Subject,
) -> Result<(), BenchError> {
    let new = NewFile {
        exclusive: !options.not_exclusive,
        delayed: options.stripes == Some(0),
        data: Bytes::from_static(if options.small_write { &SMALL } else { &[] }),
        ..NewFile::EMPTY
    };
    let dir = place.dir.as_str();
    for name in place.names() {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let done = meter.time(|| {
            match options.mode {
                Mode::Create => subject.create(dir, &name, &new)?,
                Mode::Mknod => subject.mknod(dir, &name)?,
                Mode::Stat => subject.stat(dir, &name)?,
                Mode::Unlink => subject.unlink(dir, &name)?,
                Mode::Setxattr => subject.set_xattr(dir, &name, XATTR, &SMALL)?,
                Mode::Open => subject.open(dir, &name, 0).map(drop)?,
                Mode::Lookup => subject.lookup(dir, &name)?,
            }
            match options.with_xattr {
                true => subject.set_xattr(dir, &name, XATTR, &SMALL),
                false => Ok(()),
            }
        });
        match done {
            Err(e) if e.is(ENOENT) && options.ignore => {}
            // There are no more.
            Err(e) if e.is(ENOENT) && options.mode == Mode::Unlink => break,
            done => done?,
        }
    }
    Ok(())
}

fn again_and_again(
    options: &Options,
    place: &Place,
    names: &[String],
    rank: usize,
    until: Option<Instant>,
    meter: &mut Meter<'_>,
    subject: &dyn Subject,
) -> Result<(), BenchError> {
    let mut random = fastrand::Rng::with_seed(options.seed.wrapping_add(rank as u64));
    let mut next = random.usize(0..names.len().max(1));
    for _ in 0..options.iterations.unwrap_or(u64::MAX) {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        let name = match names.get(next) {
            Some(name) => {
                next = (next + 1) % names.len();
                name.clone()
            }
            // One of this task's own, all of which are there.
            None => {
                let chosen = random.usize(0..place.numbers.len().max(1));
                match place.numbers.clone().nth(chosen) {
                    Some(n) => place.files.of(n as u64),
                    None => break,
                }
            }
        };
        meter.time(|| match options.mode {
            Mode::Open => subject.open(&place.dir, &name, 0).map(drop),
            _ => subject.lookup(&place.dir, &name),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
