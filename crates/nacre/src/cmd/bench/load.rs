//! What the tools with tasks share: the tasks, threads of this process or of several that `mpirun` started, each on a
//! directory or on a client of its own; what they are doing, on standard error; and how it is told what came out.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use bench::{BenchError, Figure, LibrarySubject, PathSubject, Subject, Task, Team, Watch, World};
use client::{Source, parse_source};

use super::library::Library;
use super::{INTERRUPTED, stop_flag};
use crate::cli::Load;
use crate::node::random;
use crate::output::say;

/// How often a terminal is told how far it is.
const SHOWN_EVERY: Duration = Duration::from_millis(500);
/// How often a log is.
const LOGGED_EVERY: u32 = 20;

impl Load {
    /// How it is to be told what came out.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        Wanted {
            csv: self.csv.as_deref(),
            json: self.json,
            windows: self.windows as usize,
        }
    }
}

/// How it is told what came out.
pub(super) struct Wanted<'a> {
    /// As CSV in this file, too.
    pub(super) csv: Option<&'a Path>,
    /// As JSON, not in words.
    pub(super) json: bool,
    /// With so many windows of each operation.
    pub(super) windows: usize,
}

/// The tasks of this process.
pub(super) struct Crew {
    tasks: Vec<Task>,
    watch: Arc<Watch>,
    library: Option<Library>,
    /// Whether this process tells what came out.
    pub(super) speaks: bool,
}

impl Crew {
    /// Makes them. `dirs` are separated by @; those of a file system that is not mounted are paths from its root.
    /// `mounts`: how many clients, when not as many as tasks.
    pub(super) fn assemble(load: &Load, dirs: &str, mounts: Option<u32>) -> Result<Crew> {
        let world = World::of_env();
        let speaks = world.as_ref().is_none_or(|w| w.rank == 0);
        let tasks = load.np as usize;
        let teams = match &world {
            None => Team::threads(tasks),
            Some(world) => {
                let dir = match &load.meet {
                    Some(dir) => dir.clone(),
                    None if world.local => std::env::temp_dir(),
                    None => bail!(
                        "the processes are on several machines: say with --meet DIR where they all can read and write a file"
                    ),
                };
                world.join(tasks, &dir, random()?)?
            }
        };
        // What is counted by each process would be counted several times.
        let processes = if speaks { load.pids.clone() } else { Vec::new() };
        let names: Vec<&str> = dirs.split('@').filter(|d| !d.is_empty()).collect();
        if names.is_empty() {
            bail!("-d names no directory");
        }
        let (library, subjects): (_, Vec<Arc<dyn Subject>>) = match &load.mgs {
            Some(source) => {
                let Source { mgs, fsname, subdir } = parse_source(source)?;
                if !subdir.is_empty() {
                    bail!("--mgs names a whole file system: name directories in it with -d");
                }
                let mounts = mounts.or(load.mounts).map_or(tasks, |m| m as usize);
                let library = Library::mount(&mgs, &fsname, &load.net, mounts)?;
                let subjects = library.clients.iter().enumerate().map(|(i, client)| {
                    let subject = LibrarySubject::new("library", client.clone(), library.runtime.clone());
                    let dir = names.get(i % names.len()).copied().unwrap_or_default();
                    let subject = subject.with_processes(processes.clone()).below(dir);
                    Arc::new(subject) as Arc<dyn Subject>
                });
                let subjects = subjects.collect();
                (Some(library), subjects)
            }
            None => {
                let subject = |dir: &&str| {
                    let root = crate::daemon::absolute(&PathBuf::from(dir))?;
                    anyhow::Ok(Arc::new(PathSubject {
                        name: root.display().to_string(),
                        root,
                        processes: processes.clone(),
                    }) as Arc<dyn Subject>)
                };
                (None, names.iter().map(subject).collect::<Result<_>>()?)
            }
        };
        let watch = Arc::new(Watch {
            stop: stop_flag()?,
            ..Watch::default()
        });
        let tasks = teams
            .into_iter()
            .enumerate()
            .filter_map(|(i, team)| {
                Some(Task {
                    subject: subjects.get(team.rank() % subjects.len())?.clone(),
                    first_of_process: i == 0,
                    watch: watch.clone(),
                    team,
                })
            })
            .collect();
        Ok(Crew {
            tasks,
            watch,
            library,
            speaks,
        })
    }

    /// Lets them work.
    pub(super) fn run<T>(&mut self, work: impl FnOnce(Vec<Task>) -> T) -> T {
        let tasks = std::mem::take(&mut self.tasks);
        match self.speaks {
            true => shown(&self.watch, || work(tasks)),
            false => work(tasks),
        }
    }

    /// Unmounts.
    pub(super) fn dismiss(self) {
        if let Some(library) = self.library {
            library.umount();
        }
    }
}

/// Does something, and shows how far it is meanwhile.
pub(super) fn shown<T>(watch: &Watch, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| show(watch, &over));
        let value = work();
        over.store(true, Ordering::Relaxed);
        value
    })
}

/// Says how far it is, until it is over.
fn show(watch: &Watch, over: &AtomicBool) {
    let terminal = std::io::stderr().is_terminal();
    let mut ticks = 0;
    while !over.load(Ordering::Relaxed) {
        std::thread::sleep(SHOWN_EVERY);
        ticks += 1;
        let phase = watch.phase.lock().clone();
        let done = watch.done.load(Ordering::Relaxed);
        match terminal {
            _ if phase.is_empty() => {}
            true => eprint!("\r{phase}: {done} operations \x1b[K"),
            false if ticks % LOGGED_EVERY == 0 => eprintln!("{phase}: {done} operations"),
            false => {}
        }
    }
    clear_line();
}

/// Clears what a terminal was shown.
pub(super) fn clear_line() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

/// What became of a measurement; anything else that went wrong is an error of ours.
pub(super) fn of_bench(outcome: Result<()>) -> Result<Result<(), BenchError>> {
    match outcome {
        Ok(()) => Ok(Ok(())),
        Err(e) => Ok(Err(e.downcast()?)),
    }
}

/// Tells what came out: as CSV in a file, as JSON, or in words.
pub(super) fn tell(wanted: &Wanted<'_>, figures: &[Figure], text: impl FnOnce() -> String) -> Result<()> {
    if let Some(path) = wanted.csv {
        fs::write(path, bench::csv(figures, wanted.windows))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    match wanted.json {
        true => say!("{}", bench::json(figures, wanted.windows)?),
        false => say!("{}", text()),
    }
    Ok(())
}

/// The exit status.
pub(super) fn ended(ended: Result<(), BenchError>) -> Result<ExitCode> {
    match ended {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e @ BenchError::Interrupted) => {
            eprintln!("{e}: what was measured so far is reported, what was made is removed");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(e) => Err(e.into()),
    }
}

/// The exit status of one of several processes that are interrupted together. The one that speaks tells it: if others failed,
/// `mpirun` would kill that one before it has reported and cleaned up.
pub(super) fn ended_together(speaks: bool, outcome: Result<(), BenchError>) -> Result<ExitCode> {
    match outcome {
        Err(BenchError::Interrupted) if !speaks => Ok(ExitCode::SUCCESS),
        outcome => ended(outcome),
    }
}

/// The time of day, UTC.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs())
}

/// `MM/DD/YYYY HH:MM:SS`, as mdtest writes it.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last of its year.
    let day = days + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!(
        "{month:02}/{day:02}/{year} {hour:02}:{minute:02}:{:02}",
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "01/01/1970 00:00:00");
        assert_eq!(date(951_782_399), "02/28/2000 23:59:59");
        assert_eq!(date(951_782_400), "02/29/2000 00:00:00");
        assert_eq!(date(1_795_338_000), "11/22/2026 09:00:00");
    }
}
