//! mds-survey: what one metadata target can do by itself. More and more threads create, look up, stat, change and destroy
//! files in some directories of its stack ([`StackSubject`](crate::StackSubject)), without network, requests and locks: the
//! upper limit of what clients can see. Options and lines are those of lustre-iokit's mds-survey; what an operation
//! costs in CPU time is told beside them, to be set beside what a client's costs.

use crate::subject::{NewFile, Subject};
use crate::task::{self, Task, Watch};
use crate::team::Team;
use crate::{BenchError, Figure};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the rate is looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// What is set as an extended attribute.
const XATTR: (&str, &[u8]) = ("user.test", &[0x5a; 64]);

/// One test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Makes the files; always the first.
    Create,
    /// Finds their names.
    Lookup,
    /// Finds their names and reads their attributes.
    MdGetattr,
    /// Sets an extended attribute of each.
    Setxattr,
    /// Removes them; always the last.
    Destroy,
}

impl Test {
    /// The tests of a line such as `create lookup destroy`.
    pub fn parse(tests: &str) -> Result<Vec<Test>, BenchError> {
        let named = |name: &str| match name {
            "create" => Ok(Test::Create),
            "lookup" => Ok(Test::Lookup),
            "md_getattr" => Ok(Test::MdGetattr),
            "setxattr" => Ok(Test::Setxattr),
            "destroy" => Ok(Test::Destroy),
            other => Err(BenchError::Options(format!(
                "test '{other}' is not known: create, lookup, md_getattr, setxattr, destroy"
            ))),
        };
        let all: Vec<Test> = tests.split_whitespace().map(named).collect::<Result<_, _>>()?;
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

/// What is to be surveyed.
#[derive(Clone, Debug)]
pub struct Options {
    /// `thrlo`: threads to begin with; twice as many each time.
    pub threads_low: usize,
    /// `thrhi`: threads at most.
    pub threads_high: usize,
    /// `dir_count`: directories, which the threads share evenly.
    pub dir_count: usize,
    /// `file_count`: files of all threads together.
    pub file_count: u64,
    /// `stripe_count`: objects of each file.
    pub stripe_count: u16,
    /// `tests_str`.
    pub tests: Vec<Test>,
    /// `start_number`: the first file's.
    pub start_number: u64,
}

/// One test by so many threads.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it came to.
    pub figure: Figure,
    /// The least and greatest rate of a second.
    pub range: (f64, f64),
}

/// Surveys; each line is told when it is whole. What is interrupted is told as far as it came.
pub fn survey(
    options: &Options,
    subject: &Arc<dyn Subject>,
    watch: &Arc<Watch>,
    mut tell: impl FnMut(&str, &[Line]),
) -> Result<(), BenchError> {
    if options.dir_count == 0 || options.threads_low == 0 {
        return Err(BenchError::Options(
            "thrlo and dir_count must be 1 at least".to_owned(),
        ));
    }
    for dir in 0..options.dir_count {
        subject.make_dir("", &dir_name(dir))?;
    }
    subject.set_stripes("", options.stripe_count)?;
    let counts = std::iter::successors(Some(options.threads_low), |n| n.checked_mul(2))
        .take_while(|n| *n <= options.threads_high)
        // As there: each directory has a thread at least.
        .filter(|n| *n >= options.dir_count);
    for threads in counts {
        let (lines, ended) = with_threads(options, threads, subject, watch);
        tell(&text(options, threads, &lines), &lines);
        ended?;
    }
    (0..options.dir_count).try_for_each(|dir| subject.remove_dir("", &dir_name(dir)))
}

fn dir_name(dir: usize) -> String {
    match dir {
        0 => "tests".to_owned(),
        n => format!("tests{n}"),
    }
}

fn with_threads(
    options: &Options,
    threads: usize,
    subject: &Arc<dyn Subject>,
    watch: &Arc<Watch>,
) -> (Vec<Line>, Result<(), BenchError>) {
    let per_thread = options.file_count / threads as u64;
    let task = |(i, team)| Task {
        team,
        subject: subject.clone(),
        watch: watch.clone(),
        first_of_process: i == 0,
    };
    let tasks: Vec<Task> = Team::threads(threads).into_iter().enumerate().map(task).collect();
    let (over, ranges) = (AtomicBool::new(false), parking_lot::Mutex::new(Vec::new()));
    let (figures, ended) = std::thread::scope(|scope| {
        scope.spawn(|| ranges.lock().extend(watch_rates(watch, &over)));
        let (brought, ended) = task::run_all(tasks, |task| {
            let (dir, from) = {
                let rank = task.team.rank();
                let from = options.start_number + rank as u64 * per_thread;
                (dir_name(rank % options.dir_count), from)
            };
            let mut figures = Vec::new();
            let mut run = || {
                for test in &options.tests {
                    let (figure, ended) = task.phase(test.name(), |meter, subject, _| {
                        (from..from + per_thread).try_for_each(|n| {
                            let name = n.to_string();
                            meter.time(|| test.run(subject, &dir, &name, options.stripe_count))
                        })
                    })?;
                    figures.extend(figure);
                    ended?;
                }
                Ok(())
            };
            let ended = run();
            (figures, ended)
        });
        over.store(true, Ordering::Relaxed);
        (brought.into_iter().flatten().collect::<Vec<Figure>>(), ended)
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
    (lines.collect(), ended)
}

/// The rate of each whole second of each test.
fn watch_rates(watch: &Watch, over: &AtomicBool) -> Vec<(String, f64)> {
    let mut rates = Vec::new();
    let mut before: Option<(String, u64, Instant)> = None;
    while !over.load(Ordering::Relaxed) {
        // Short, so that the end is not waited for.
        std::thread::sleep(INTERVAL / 50);
        let phase = watch.phase.lock().clone();
        let (done, now) = (watch.done.load(Ordering::Relaxed), Instant::now());
        match &before {
            Some((of, count, since)) if *of == phase && done >= *count => {
                let took = now.duration_since(*since);
                if took < INTERVAL {
                    continue;
                }
                rates.push((phase.clone(), (done - count) as f64 / took.as_secs_f64()));
            }
            _ => {}
        }
        before = (!phase.is_empty()).then_some((phase, done, now));
    }
    rates
}

fn text(options: &Options, threads: usize, lines: &[Line]) -> String {
    let mut out = format!(
        "mdt 1 file {:7} dir {:4} thr {threads:4} ",
        options.file_count, options.dir_count
    );
    for Line { figure, range } in lines {
        // Writing to a string does not fail.
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

/// What the lines do not have room for: CPU time and latency of each operation.
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
    use crate::{StackSubject, Subject, Task, Team};
    use osd::StoreKind;
    use std::sync::Arc;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn threads_double_and_what_they_make_is_gone_in_the_end() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), runtime());
        for store in [
            StoreKind::Memory(1 << 30),
            StoreKind::Local(dir.path().to_owned()),
        ] {
            for stripe_count in [0, 2] {
                let subject = StackSubject::open("mdt", &store, runtime.handle().clone()).unwrap();
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
                let mut seen: Vec<(String, Vec<Line>)> = Vec::new();
                survey(&options, &subject, &Arc::default(), |text, lines| {
                    seen.push((text.to_owned(), lines.to_vec()));
                })
                .unwrap();
                let threads: Vec<usize> = seen.iter().map(|(_, l)| l[0].figure.tasks).collect();
                assert_eq!(threads, [2, 4]);
                for (text, lines) in &seen {
                    assert!(text.starts_with("mdt 1 file      40 dir    2 thr    "), "{text}");
                    assert_eq!(lines.len(), 5);
                    assert!(lines.iter().all(|l| l.figure.operations == 40));
                }
                assert!(subject.list("").unwrap().is_empty());
            }
        }
    }

    #[test]
    fn the_stack_does_what_a_file_system_does() {
        let runtime = runtime();
        let store = StoreKind::Memory(1 << 30);
        let subject = StackSubject::open("mdt", &store, runtime.handle().clone()).unwrap();
        let subject: Arc<dyn Subject> = Arc::new(subject);
        let task = |(i, team)| Task {
            team,
            subject: subject.clone(),
            watch: Arc::default(),
            first_of_process: i == 0,
        };
        let options = mdtest::Options {
            items: 12,
            branch_factor: 2,
            depth: 1,
            ..mdtest::Options::default()
        };
        let tasks = Team::threads(2).into_iter().enumerate().map(task).collect();
        let (report, ended) = mdtest::run(&options, tasks);
        ended.unwrap();
        assert_eq!(report.unwrap().figures.len(), 10);
        assert!(subject.list("").unwrap().is_empty());
    }

    #[test]
    fn tests_begin_with_create_and_end_with_destroy() {
        assert_eq!(
            Test::parse("create destroy").unwrap(),
            [Test::Create, Test::Destroy]
        );
        for bad in ["", "create", "lookup destroy", "create sleep destroy"] {
            assert!(Test::parse(bad).is_err(), "{bad}");
        }
    }
}
