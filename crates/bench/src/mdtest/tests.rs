//! Tests of mdtest on a local directory.

#![allow(clippy::unwrap_used)]

use super::{Options, Report, ReportOptions, run};
use crate::task::disk_tasks;
use crate::{BenchError, PathSubject, Task, TaskProgress};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn tasks(dir: &Path, count: usize, progress: &Arc<TaskProgress>) -> Vec<Task> {
    disk_tasks(&dir.join("out"), count, progress)
}

/// Runs mdtest with three tasks.
fn mdtest(dir: &Path, options: &Options) -> Result<Report, BenchError> {
    let (report, outcome) = run(options, tasks(dir, 3, &Arc::default()));
    outcome.map(|()| report.unwrap())
}

fn count(report: &Report, operation: &str) -> Vec<u64> {
    let figures = report.figures.iter().filter(|f| f.operation == operation);
    figures.map(|f| f.operations).collect()
}

/// All files and directories below a directory.
fn entries_below(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            all.extend(entries_below(&entry.path()).iter().map(|n| format!("{name}/{n}")));
        }
        all.push(name);
    }
    all.sort();
    all
}

#[test]
fn all_phases_run_and_clean_up() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        items: 14,
        iterations: 2,
        branch_factor: 2,
        depth: 2,
        write_bytes: 100,
        read_bytes: 100,
        verify_read: true,
        verify_write: true,
        stride: 1,
        random_seed: Some(1),
        ..Options::default()
    };
    for unique_dir_per_task in [false, true] {
        let options = Options {
            unique_dir_per_task,
            ..options.clone()
        };
        let report = mdtest(dir.path(), &options).unwrap();
        for operation in [
            "Directory creation",
            "Directory stat",
            "Directory removal",
            "File creation",
            "File stat",
            "File read",
            "File removal",
        ] {
            assert_eq!(count(&report, operation), [42, 42], "{operation}");
        }
        // A ring of two directories takes three renames, in each of seven directories.
        assert_eq!(count(&report, "Directory rename"), [63, 63]);
        let trees = if unique_dir_per_task { 21 } else { 7 };
        assert_eq!(count(&report, "Tree creation"), [trees, trees]);
        assert_eq!(report.wrong_reads, 0);
        assert!(entries_below(dir.path()).is_empty());
        let text = report.text(ReportOptions::default());
        assert!(text.contains("3 tasks, 42 files/directories"), "{text}");
        assert!(
            text.contains("SUMMARY rate (in ops/sec): (of 2 iterations)"),
            "{text}"
        );
        let row = text.lines().find(|l| l.starts_with("   File creation ")).unwrap();
        assert_eq!(row.split_whitespace().count(), 6, "{row}");
    }
}

#[test]
fn single_phases_run_in_separate_runs() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        items: 6,
        files_only: true,
        leaf_only: true,
        branch_factor: 3,
        depth: 1,
        unique_dir_per_task: true,
        ..Options::default()
    };
    let only = |change: fn(&mut Options)| {
        let mut options = options.clone();
        change(&mut options);
        mdtest(dir.path(), &options).unwrap()
    };
    only(|o| (o.create_only, o.make_node) = (true, true));
    let remaining = entries_below(dir.path());
    assert_eq!(
        remaining.iter().filter(|n| n.contains("/file.mdtest.")).count(),
        18
    );
    let path = "out/test-dir.0-0/mdtest_tree.2.0/mdtest_tree.2.3/file.mdtest.2.7";
    assert!(remaining.iter().any(|n| n == path), "{remaining:?}");
    assert_eq!(count(&only(|o| o.stat_only = true), "File stat"), [18]);
    assert_eq!(count(&only(|o| o.read_only = true), "File read"), [18]);
    assert_eq!(count(&only(|o| o.remove_only = true), "File removal"), [18]);
    assert!(!entries_below(dir.path()).iter().any(|n| n.contains("test-dir")));
}

#[test]
fn rank_0_creates_collectively_and_tasks_share_files() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        items: 5,
        collective_creates: true,
        ..Options::default()
    };
    let report = mdtest(dir.path(), &options).unwrap();
    assert_eq!(count(&report, "File creation"), [15]);
    assert_eq!(count(&report, "File stat"), [15]);
    let options = Options {
        items: 6,
        items_per_dir: 3,
        shared_file: true,
        task_counts: Some((1, 3, 2)),
        ..Options::default()
    };
    let report = mdtest(dir.path(), &options).unwrap();
    assert_eq!(count(&report, "File creation"), [6, 12]);
    assert_eq!(count(&report, "File removal"), [6, 6]);
    assert!(count(&report, "Directory creation").is_empty());
    assert!(entries_below(dir.path()).is_empty());
}

#[test]
fn stonewall_gives_all_tasks_as_many_files_as_the_fastest() {
    let dir = tempfile::tempdir().unwrap();
    let status = dir.path().join("status");
    let options = Options {
        items: 1 << 40,
        files_only: true,
        create_only: true,
        stonewall: Some(Duration::from_millis(50)),
        stonewall_file: Some(status.clone()),
        ..Options::default()
    };
    let report = mdtest(dir.path(), &options).unwrap();
    let most: u64 = std::fs::read_to_string(&status).unwrap().trim().parse().unwrap();
    assert_eq!(count(&report, "File creation"), [most * 3]);
    assert!(
        report
            .text(ReportOptions::default())
            .contains("File create (stonewall)")
    );
    let options = Options {
        create_only: false,
        remove_only: true,
        stonewall: None,
        ..options
    };
    let report = mdtest(dir.path(), &options).unwrap();
    assert_eq!(count(&report, "File removal"), [most * 3]);
}

#[test]
fn interrupted_create_reports_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let progress = Arc::new(TaskProgress::default());
    let options = Options {
        items: 1 << 40,
        files_only: true,
        create_only: true,
        ..Options::default()
    };
    std::thread::scope(|scope| {
        let tasks = tasks(dir.path(), 3, &progress);
        let running = scope.spawn(|| run(&options, tasks));
        let start_time = Instant::now();
        while progress.done.load(Ordering::Relaxed) < 128 {
            assert!(start_time.elapsed() < Duration::from_secs(60), "nothing is done");
            std::thread::sleep(Duration::from_millis(1));
        }
        progress.stop.store(true, Ordering::Relaxed);
        let (report, outcome) = running.join().unwrap();
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
        let report = report.unwrap();
        assert!(count(&report, "File creation")[0] >= 128);
        assert!(report.text(ReportOptions::default()).contains("SUMMARY"));
    });
    assert!(entries_below(dir.path()).is_empty());
}

#[test]
fn failure_names_the_object_and_ends_all_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        items: 3,
        files_only: true,
        stat_only: true,
        ..Options::default()
    };
    let error = mdtest(dir.path(), &options).unwrap_err().to_string();
    assert!(error.contains("mdtest_tree.0 failed"), "{error}");
}

#[test]
fn each_directory_has_the_trees_of_its_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let progress = Arc::default();
    let options = Options {
        items: 4,
        dir_count: 2,
        files_only: true,
        unique_dir_per_task: true,
        ..Options::default()
    };
    let tasks_in_two_dirs = || {
        let mut tasks = tasks(dir.path(), 3, &progress);
        tasks[1].subject = Arc::new(PathSubject {
            name: "other".to_owned(),
            root: dir.path().join("other"),
            processes: Vec::new(),
            drop_caches: None,
        });
        tasks
    };
    let only = |change: fn(&mut Options)| {
        let mut options = options.clone();
        change(&mut options);
        run(&options, tasks_in_two_dirs()).1.unwrap();
        entries_below(dir.path())
    };
    let created = only(|o| o.create_only = true);
    assert!(
        created
            .iter()
            .any(|n| n == "other/test-dir.0-0/mdtest_tree.1.0/file.mdtest.1.3"),
        "{created:?}"
    );
    assert_eq!(created.iter().filter(|n| n.contains("/file.mdtest.")).count(), 12);
    only(|o| o.remove_only = true);
    std::fs::remove_dir(dir.path().join("out")).unwrap();
    std::fs::remove_dir(dir.path().join("other")).unwrap();
    assert!(only(|_| {}).is_empty());
}

#[test]
fn changed_content_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let options = |create_only, read_only| Options {
        items: 3,
        files_only: true,
        write_bytes: 50,
        read_bytes: 50,
        verify_read: read_only,
        create_only,
        read_only,
        ..Options::default()
    };
    mdtest(dir.path(), &options(true, false)).unwrap();
    let file = "out/test-dir.0-0/mdtest_tree.0/file.mdtest.1.2";
    let mut data = std::fs::read(dir.path().join(file)).unwrap();
    data[40] ^= 1;
    std::fs::write(dir.path().join(file), data).unwrap();
    assert_eq!(mdtest(dir.path(), &options(false, true)).unwrap().wrong_reads, 1);
}
