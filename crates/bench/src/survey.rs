//! mds-survey: the speed of a metadata target without network, requests or locks, which is the
//! upper limit for clients. An increasing number of threads call the target's name space directly
//! ([`MddSubject`](crate::MddSubject)): they create, look up and stat files, set extended
//! attributes, and destroy the files. Options and output follow lustre-iokit's mds-survey; CPU time
//! and latency are additions.

use crate::communicator::Communicator;
use crate::subject::{NewFile, Subject};
use crate::task::{self, Task, TaskProgress};
use crate::{BenchError, Figure};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Each minimum and maximum rate is over an interval of at least this length.
const INTERVAL: Duration = Duration::from_secs(1);
/// Name and value of the extended attribute to set.
const XATTR: (&str, &[u8]) = ("user.test", &[0x5a; 64]);

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Creates the files; always first.
    Create,
    /// Looks up the names.
    Lookup,
    /// Looks up the names and reads the attributes.
    MdGetattr,
    /// Sets an extended attribute of each file.
    Setxattr,
    /// Removes the files; always last.
    Destroy,
}

impl Test {
    /// Parses a list such as `create lookup destroy`.
    ///
    /// # Errors
    ///
    /// An unknown test, or a list that does not begin with create and end with destroy.
    pub fn parse(tests: &str) -> Result<Vec<Test>, BenchError> {
        let parse_test = |name: &str| match name {
            "create" => Ok(Test::Create),
            "lookup" => Ok(Test::Lookup),
            "md_getattr" => Ok(Test::MdGetattr),
            "setxattr" => Ok(Test::Setxattr),
            "destroy" => Ok(Test::Destroy),
            other => Err(BenchError::Options(format!(
                "unknown test '{other}': use create, lookup, md_getattr, setxattr, destroy"
            ))),
        };
        let all: Vec<Test> = tests
            .split_whitespace()
            .map(parse_test)
            .collect::<Result<_, _>>()?;
        match (all.first(), all.last()) {
            (Some(Test::Create), Some(Test::Destroy)) => Ok(all),
            _ => Err(BenchError::Options(
                "the first test must be create, and the last destroy".to_owned(),
            )),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Test::Create => "create",
            Test::Lookup => "lookup",
            Test::MdGetattr => "md_getattr",
            Test::Setxattr => "setxattr",
            Test::Destroy => "destroy",
        }
    }

    fn run(self, subject: &dyn Subject, dir: &str, name: &str, stripes: u16) -> Result<(), BenchError> {
        match self {
            Test::Create if stripes == 0 => subject.mknod(dir, name),
            Test::Create => subject.create(dir, name, &NewFile::EMPTY),
            Test::Lookup => subject.lookup(dir, name),
            Test::MdGetattr => subject.stat(dir, name),
            Test::Setxattr => subject.set_xattr(dir, name, XATTR.0, XATTR.1),
            Test::Destroy => subject.unlink(dir, name),
        }
    }
}

/// mds-survey's options.
#[derive(Clone, Debug)]
pub struct Options {
    /// `thrlo`: initial number of threads, doubled each time.
    pub threads_low: usize,
    /// `thrhi`: the largest number of threads.
    pub threads_high: usize,
    /// `dir_count`: number of directories; the threads use them in turn.
    pub dir_count: usize,
    /// `file_count`: number of files of all threads together.
    pub file_count: u64,
    /// `stripe_count`: number of objects of each file.
    pub stripe_count: u16,
    /// `tests_str`: the tests to run.
    pub tests: Vec<Test>,
    /// `start_number`: number of the first file.
    pub start_number: u64,
}

/// The result of one test with one number of threads.
#[derive(Clone, Debug)]
pub struct Line {
    /// The figures of the test.
    pub figure: Figure,
    /// Minimum and maximum rate of the full seconds, operations per second; both are the mean rate
    /// if the test took less than a second.
    pub range: (f64, f64),
}

/// Runs all tests with each number of threads that is at least the number of directories.
/// `on_result` gets each result as text and figures, also an incomplete one after an interruption
/// or failure.
///
/// # Errors
///
/// Invalid options, a failed operation, or an interruption.
pub fn survey(
    options: &Options,
    subject: &Arc<dyn Subject>,
    progress: &Arc<TaskProgress>,
    mut on_result: impl FnMut(&str, &[Line]),
) -> Result<(), BenchError> {
    if options.dir_count == 0 || options.threads_low == 0 {
        return Err(BenchError::Options(
            "thrlo and dir_count must be at least 1".to_owned(),
        ));
    }
    for dir in 0..options.dir_count {
        subject.make_dir("", &dir_name(dir))?;
    }
    subject.set_stripes("", options.stripe_count)?;
    let thread_counts = std::iter::successors(Some(options.threads_low), |n| n.checked_mul(2))
        .take_while(|n| *n <= options.threads_high)
        // Like mds-survey: each directory needs a thread.
        .filter(|n| *n >= options.dir_count);
    for threads in thread_counts {
        let (lines, outcome) = run_with_threads(options, threads, subject, progress);
        on_result(&result_line(options, threads, &lines), &lines);
        outcome?;
    }
    (0..options.dir_count).try_for_each(|dir| subject.remove_dir("", &dir_name(dir)))
}

fn dir_name(dir: usize) -> String {
    match dir {
        0 => "tests".to_owned(),
        n => format!("tests{n}"),
    }
}

fn run_with_threads(
    options: &Options,
    threads: usize,
    subject: &Arc<dyn Subject>,
    progress: &Arc<TaskProgress>,
) -> (Vec<Line>, Result<(), BenchError>) {
    let files_per_thread = options.file_count / threads as u64;
    let task = |(i, comm)| Task {
        comm,
        subject: subject.clone(),
        progress: progress.clone(),
        measures_process: i == 0,
    };
    let tasks: Vec<Task> = Communicator::threads(threads)
        .into_iter()
        .enumerate()
        .map(task)
        .collect();
    let (finished, ranges) = (AtomicBool::new(false), parking_lot::Mutex::new(Vec::new()));
    let (figures, outcome) = std::thread::scope(|scope| {
        scope.spawn(|| ranges.lock().extend(sample_rates(progress, &finished)));
        let (results, outcome) = task::run_all(tasks, |task| {
            let (dir, first_file) = {
                let rank = task.comm.rank();
                let first_file = options.start_number + rank as u64 * files_per_thread;
                (dir_name(rank % options.dir_count), first_file)
            };
            let mut figures = Vec::new();
            let mut run = || {
                for test in &options.tests {
                    let (figure, outcome) = task.phase(test.name(), |meter, subject, _| {
                        meter.expect(files_per_thread);
                        (first_file..first_file + files_per_thread).try_for_each(|n| {
                            let name = n.to_string();
                            meter.time(|| test.run(subject, &dir, &name, options.stripe_count))
                        })
                    })?;
                    figures.extend(figure);
                    outcome?;
                }
                Ok(())
            };
            let outcome = run();
            (figures, outcome)
        });
        finished.store(true, Ordering::Relaxed);
        (results.into_iter().flatten().collect::<Vec<Figure>>(), outcome)
    });
    let ranges = ranges.into_inner();
    let range = |figure: &Figure| {
        let rates = ranges.iter().filter(|(phase, _)| phase == figure.operation);
        let rates: Vec<f64> = rates.map(|(_, rate)| *rate).collect();
        match rates.is_empty() {
            true => (figure.rate(), figure.rate()),
            false => (
                rates.iter().copied().fold(f64::INFINITY, f64::min),
                rates.iter().copied().fold(0.0, f64::max),
            ),
        }
    };
    let lines = figures.into_iter().map(|figure| Line {
        range: range(&figure),
        figure,
    });
    (lines.collect(), outcome)
}

/// Measures the rate of each second of each test, until `finished` is set. Omits the rest of a test
/// that is shorter than a second.
fn sample_rates(progress: &TaskProgress, finished: &AtomicBool) -> Vec<(String, f64)> {
    let mut rates = Vec::new();
    let mut before: Option<(String, u64, Instant)> = None;
    while !finished.load(Ordering::Relaxed) {
        // Sleep briefly, to notice the end soon.
        std::thread::sleep(INTERVAL / 50);
        let phase = progress.phase.lock().clone();
        let (done, now) = (progress.done.load(Ordering::Relaxed), Instant::now());
        match &before {
            Some((last_phase, count, since)) if *last_phase == phase && done >= *count => {
                let elapsed = now.duration_since(*since);
                if elapsed < INTERVAL {
                    continue;
                }
                rates.push((phase.clone(), (done - count) as f64 / elapsed.as_secs_f64()));
            }
            _ => {}
        }
        before = (!phase.is_empty()).then_some((phase, done, now));
    }
    rates
}

fn result_line(options: &Options, threads: usize, lines: &[Line]) -> String {
    let mut out = format!(
        "mdt 1 file {:7} dir {:4} thr {threads:4} ",
        options.file_count, options.dir_count
    );
    for Line { figure, range } in lines {
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "{} {:7.2} [{:7.2},{:7.2}] ",
            figure.operation,
            figure.rate(),
            range.0,
            range.1
        );
    }
    out.trim_end().to_owned()
}

/// A table with the CPU time and latencies of each test, which mds-survey's lines do not have.
pub fn details(lines: &[Line]) -> String {
    let mut out = String::from(
        "threads operation          per second     CPU us/op        p50 us        p95 us        p99 us      p99.9 us        max us\n",
    );
    for Line { figure: f, .. } in lines {
        let _ = writeln!(
            out,
            "{:7} {:<12} {:16.1} {:13.1} {:13.1} {:13.1} {:13.1} {:13.1} {:13.1}",
            f.tasks,
            f.operation,
            f.rate(),
            f.cpu_us(),
            f.latencies.p50,
            f.latencies.p95,
            f.latencies.p99,
            f.latencies.p99_9,
            f.latencies.max
        );
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Line, Options, Test, survey};
    use crate::mdtest;
    use crate::{Communicator, MddSubject, Subject, Task};
    use osd::{LocalStores, MemoryStores, Stores};
    use std::sync::Arc;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn threads_double_and_files_are_removed() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
        let (memory, local) = (MemoryStores(1 << 30), LocalStores::in_dir(dir.path()));
        for stores in [&memory as &dyn Stores, &local] {
            for stripe_count in [0, 2] {
                let subject = MddSubject::open("mdt", stores, runtime.handle().clone()).unwrap();
                let subject: Arc<dyn Subject> = Arc::new(subject);
                let options = Options {
                    threads_low: 1,
                    threads_high: 5,
                    dir_count: 2,
                    file_count: 40,
                    stripe_count,
                    tests: Test::parse("create lookup md_getattr setxattr destroy").unwrap(),
                    start_number: 2,
                };
                let mut results: Vec<(String, Vec<Line>)> = Vec::new();
                survey(&options, &subject, &Arc::default(), |text, lines| {
                    results.push((text.to_owned(), lines.to_vec()));
                })
                .unwrap();
                let threads: Vec<usize> = results.iter().map(|(_, l)| l[0].figure.tasks).collect();
                assert_eq!(threads, [2, 4]);
                for (text, lines) in &results {
                    assert!(text.starts_with("mdt 1 file      40 dir    2 thr    "), "{text}");
                    assert_eq!(lines.len(), 5);
                    assert!(lines.iter().all(|l| l.figure.operations == 40));
                }
                assert!(subject.list("").unwrap().is_empty());
            }
        }
    }

    #[test]
    fn mdtest_runs_on_an_mdd_subject() {
        let runtime = runtime();
        let store = MemoryStores(1 << 30);
        let subject = MddSubject::open("mdt", &store, runtime.handle().clone()).unwrap();
        let subject: Arc<dyn Subject> = Arc::new(subject);
        let task = |(i, comm)| Task {
            comm,
            subject: subject.clone(),
            progress: Arc::default(),
            measures_process: i == 0,
        };
        let options = mdtest::Options {
            items: 12,
            branch_factor: 2,
            depth: 1,
            ..mdtest::Options::default()
        };
        let tasks = Communicator::threads(2)
            .into_iter()
            .enumerate()
            .map(task)
            .collect();
        let (report, outcome) = mdtest::run(&options, tasks);
        outcome.unwrap();
        assert_eq!(report.unwrap().figures.len(), 10);
        assert!(subject.list("").unwrap().is_empty());
    }

    #[test]
    fn test_list_must_begin_with_create_and_end_with_destroy() {
        assert_eq!(
            Test::parse("create destroy").unwrap(),
            [Test::Create, Test::Destroy]
        );
        for bad in ["", "create", "lookup destroy", "create sleep destroy"] {
            assert!(Test::parse(bad).is_err(), "{bad}");
        }
    }
}
