//! Runs random sequences of operations on one to four mounts and on a model in memory. After each
//! step, compares the result, and the affected paths as seen from a mount that the step selects.
//! Another test compares the model with a local disk.
//!
//! `NACRE_MODEL_SEQUENCES` sets the number of sequences, `NACRE_MODEL_SEED` the first seed; each
//! seed gives one sequence. `cargo xtask model` runs ten times as many, optimised.

#![allow(clippy::unwrap_used)]

mod execute;
#[allow(dead_code, reason = "this test binary uses a part of it")]
#[path = "../system/file_system.rs"]
mod file_system;
#[path = "../fixture/mod.rs"]
mod fixture;
mod model;
mod outcome;
mod real;
mod step;
mod trial;

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use file_system::{FileSystem, Shape, text};
use fixture::{nacre_ok, option};
use model::FsBehaviour;
use step::{Step, sequence};
use trial::MountedDir;

/// Number of threads that run sequences.
const THREADS: u64 = 8;
/// Number of mounts of the file system.
const MOUNTS: usize = 4;
/// Number of attempts to reproduce a failure.
const REPRODUCTION_ATTEMPTS: usize = 5;
/// Time limit for shrinking a sequence.
const SHRINKING_MAX: Duration = Duration::from_secs(120);

/// Sequences that failed once, in printed form.
const REGRESSIONS: &str = include_str!("regressions.txt");

fn sysctl(name: &str) -> u32 {
    let value = std::fs::read_to_string(format!("/proc/sys/fs/{name}")).unwrap_or_default();
    value.trim().parse().unwrap_or(0)
}

impl MountedDir {
    /// Opens the same directory through several paths. Clears this process's umask and the
    /// supplementary groups of this thread, because the model has neither.
    fn new(paths: &[&Path], is_nacre: bool) -> MountedDir {
        rustix::process::umask(rustix::fs::Mode::empty());
        rustix::thread::set_thread_groups(&[]).unwrap();
        MountedDir {
            mounts: paths
                .iter()
                .map(|path| File::open(path).unwrap().into())
                .collect(),
            behaviour: FsBehaviour {
                owner_per_mount: is_nacre,
                lock_kinds_conflict: is_nacre,
                protected_regular: sysctl("protected_regular"),
                protected_hardlinks: sysctl("protected_hardlinks"),
            },
        }
    }

    /// Runs the sequences of `count` seeds from `first_seed` on, several at a time. Panics with the
    /// first failing sequence, after shrinking it.
    fn run_all(&self, first_seed: u64, count: u64) {
        let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let first_failure: Mutex<Option<(u64, String)>> = Mutex::new(None);
        let start_time = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    rustix::thread::set_thread_groups(&[]).unwrap();
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= count || failed.load(Ordering::Relaxed) {
                            return;
                        }
                        let seed = first_seed + i;
                        let result =
                            self.run_in_new_dir(&format!("s{seed}"), &sequence(seed), self.mount_count(seed));
                        if let Err(failure) = result {
                            failed.store(true, Ordering::Relaxed);
                            first_failure.lock().unwrap().get_or_insert((seed, failure));
                        }
                    }
                });
            }
        });
        let seconds = start_time.elapsed().as_secs_f64();
        let completed = next.load(Ordering::Relaxed).min(count);
        println!(
            "{completed} sequences in {seconds:.1} s: {:.0}/s",
            completed as f64 / seconds
        );
        if let Some((seed, failure)) = first_failure.into_inner().unwrap() {
            let mounts = self.mount_count(seed);
            panic!(
                "seed {seed}, {mounts} mounts: {failure}\n{}",
                self.shrink_failure(sequence(seed), mounts)
            );
        }
    }

    fn mount_count(&self, seed: u64) -> usize {
        1 + seed as usize % self.mounts.len()
    }

    /// The shortest failing subsequence found, in the format of `regressions.txt`.
    fn shrink_failure(&self, steps: Vec<Step>, mounts: usize) -> String {
        let (start_time, mut trials, mut last_failure) = (Instant::now(), 0, String::new());
        let mut fails = |steps: &[Step]| {
            trials += 1;
            match self.run_in_new_dir(&format!("t{trials}"), steps, mounts) {
                Err(failure) if start_time.elapsed() < SHRINKING_MAX => {
                    last_failure = failure;
                    true
                }
                _ => false,
            }
        };
        if !(0..REPRODUCTION_ATTEMPTS).any(|_| fails(&steps)) {
            return "the failure could not be reproduced".to_owned();
        }
        let fewest = bench::shrink::shrink(steps, usize::MAX, fails);
        let lines: Vec<String> = fewest.iter().map(|s| serde_json::to_string(s).unwrap()).collect();
        format!("{last_failure}\n\n{mounts}\n{}\n", lines.join("\n"))
    }
}

/// The sequences of `regressions.txt`: for each, a line with the number of mounts, a line for each
/// step, and an empty line.
fn regressions() -> Vec<(usize, Vec<Step>)> {
    let without_comments = REGRESSIONS.lines().filter(|line| !line.starts_with('#'));
    let text: Vec<&str> = without_comments.collect();
    text.split(|line| line.is_empty())
        .filter_map(|lines| lines.split_first())
        .map(|(mounts, steps)| {
            let step = |line: &&str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            (mounts.parse().unwrap(), steps.iter().map(step).collect())
        })
        .collect()
}

#[test]
fn local_disk_agrees_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let dir_on_mounts = MountedDir::new(&[dir.path(); MOUNTS], false);
    dir_on_mounts.run_all(option("NACRE_MODEL_SEED", 1), 2000);
    for (i, (mounts, steps)) in regressions().into_iter().enumerate() {
        dir_on_mounts
            .run_in_new_dir(&format!("r{i}"), &steps, mounts)
            .unwrap();
    }
}

#[test]
fn one_to_four_mounts_agree_with_the_model() {
    let mut fs = FileSystem::new(Shape::FourProcesses);
    let more = ["m2", "m3", "m4"].into_iter().zip(5..);
    let mut mounts = vec![fs.mount_point()];
    mounts.extend(more.map(|(name, host)| fs.add_mount(name, host)));
    std::fs::create_dir(mounts[0].join("base")).unwrap();
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-c",
        "-1",
        "-S",
        "64K",
        text(&mounts[0].join("base")),
    ]);
    let bases: Vec<_> = mounts.iter().map(|m| m.join("base")).collect();
    let bases: Vec<&Path> = bases.iter().map(|b| &**b).collect();
    let dir_on_mounts = MountedDir::new(&bases, true);
    for (i, (mounts, steps)) in regressions().into_iter().enumerate() {
        let result = dir_on_mounts.run_in_new_dir(&format!("r{i}"), &steps, mounts);
        result.unwrap_or_else(|failure| panic!("sequence {i} of regressions.txt: {failure}"));
    }
    dir_on_mounts.run_all(
        option("NACRE_MODEL_SEED", 1),
        option("NACRE_MODEL_SEQUENCES", 1000),
    );
    drop(dir_on_mounts);
    mounts[1..]
        .iter()
        .for_each(|at| drop(nacre_ok(&["umount", text(at)])));
    fs.stop();
}
