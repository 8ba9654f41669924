//! Tests of mdsrate on a local directory.

#![allow(clippy::unwrap_used)]

use super::{Format, Mode, Options, Report, run};
use crate::task::disk_tasks;
use crate::{BenchError, Task, TaskProgress};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn options(mode: Mode) -> Options {
    Options {
        dirs: Some(Format::parse("sub/dir%d").unwrap()),
        dir_count: 2,
        begin: 10,
        seed: 3,
        ..Options::new(mode, 7)
    }
}

fn tasks(dir: &Path, progress: &Arc<TaskProgress>) -> Vec<Task> {
    disk_tasks(dir, 5, progress)
}

fn mdsrate(dir: &Path, options: &Options) -> Result<Report, BenchError> {
    let (report, outcome) = run(options, tasks(dir, &Arc::default()));
    outcome.map(|()| report.unwrap())
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn tasks_of_a_directory_share_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let expected: BTreeSet<String> = (10..17).map(|n| format!("f{n}")).collect();
    for (mode, files_exist) in [
        (Mode::Create, true),
        (Mode::Stat, true),
        (Mode::Unlink, false),
        (Mode::Mknod, true),
        (Mode::Setxattr, true),
        (Mode::Unlink, false),
        (Mode::Stat, true),
    ] {
        let report = mdsrate(dir.path(), &options(mode)).unwrap();
        assert_eq!(report.figure.operations, 14, "{mode:?}");
        for sub in ["sub/dir0", "sub/dir1"] {
            let found = names(&dir.path().join(sub));
            assert_eq!(
                found,
                if files_exist {
                    expected.clone()
                } else {
                    BTreeSet::new()
                },
                "{mode:?}"
            );
        }
    }
}

#[test]
fn missing_files_before_and_behind_the_existing_ones_are_created() {
    let dir = tempfile::tempdir().unwrap();
    mdsrate(dir.path(), &options(Mode::Create)).unwrap();
    // The first files of one directory, and the last files of the other.
    for missing in ["dir0/f10", "dir0/f11", "dir0/f12", "dir1/f15", "dir1/f16"] {
        std::fs::remove_file(dir.path().join("sub").join(missing)).unwrap();
    }
    let report = mdsrate(dir.path(), &options(Mode::Stat)).unwrap();
    assert_eq!(report.figure.operations, 14);
}

#[test]
fn result_line_has_mdsrates_format() {
    let dir = tempfile::tempdir().unwrap();
    mdsrate(dir.path(), &options(Mode::Create)).unwrap();
    std::fs::remove_file(dir.path().join("sub/dir0/f12")).unwrap();
    let text = mdsrate(dir.path(), &options(Mode::Unlink)).unwrap().text(0);
    let line = text.lines().next().unwrap();
    assert!(line.starts_with("Rate: "), "{line}");
    assert!(
        line.contains(" avg client unlinks/sec (total: 5 threads "),
        "{line}"
    );
    assert!(line.contains(" unlinks 2 dirs 3 threads/dir "), "{line}");
    assert!(text.contains("Warning: only unlinked "), "{text}");
}

#[test]
fn lookups_and_opens_repeat_and_recreate_restores_files() {
    let dir = tempfile::tempdir().unwrap();
    for (mode, readdir_order) in [(Mode::Lookup, false), (Mode::Open, true)] {
        let options = Options {
            iterations: Some(20),
            readdir_order,
            ..options(mode)
        };
        assert_eq!(mdsrate(dir.path(), &options).unwrap().figure.operations, 100);
    }
    let recreate = Options {
        recreate: true,
        ..options(Mode::Unlink)
    };
    assert_eq!(mdsrate(dir.path(), &recreate).unwrap().figure.operations, 14);
    assert_eq!(names(&dir.path().join("sub/dir1")).len(), 7);
}

#[test]
fn invalid_options_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let error_of = |options: Options| mdsrate(dir.path(), &options).unwrap_err().to_string();
    let one_name = Options {
        files: "f%d".to_owned(),
        ..options(Mode::Create)
    };
    assert!(error_of(one_name).contains("%%d"));
    assert!(error_of(options(Mode::Lookup)).contains("--iters or --time"));
    let too_many_dirs = Options {
        dir_count: 6,
        ..options(Mode::Mknod)
    };
    assert!(error_of(too_many_dirs).contains("--ndirs"));
    let without_file_count = Options {
        time: Some(Duration::from_secs(60)),
        file_count: None,
        ..options(Mode::Stat)
    };
    assert!(error_of(without_file_count).contains("--nfiles"));
    mdsrate(dir.path(), &options(Mode::Create)).unwrap();
    assert!(error_of(options(Mode::Create)).contains("exists"));
}

#[test]
fn interrupted_create_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let progress = Arc::new(TaskProgress::default());
    let options = Options {
        file_count: None,
        time: Some(Duration::from_secs(600)),
        ..options(Mode::Mknod)
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&options, tasks(dir.path(), &progress)));
        let start_time = Instant::now();
        while progress.done.load(Ordering::Relaxed) < 128 {
            assert!(start_time.elapsed() < Duration::from_secs(60), "nothing is done");
            std::thread::sleep(Duration::from_millis(1));
        }
        progress.stop.store(true, Ordering::Relaxed);
        let (report, outcome) = running.join().unwrap();
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
        assert!(report.unwrap().figure.operations >= 128);
    });
    assert!(names(&dir.path().join("sub/dir0")).is_empty());
    assert!(names(&dir.path().join("sub/dir1")).is_empty());
}
