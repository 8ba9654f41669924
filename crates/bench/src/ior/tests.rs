//! Tests of IOR on a local directory.

#![allow(clippy::unwrap_used)]

use super::{Options, Report, run};
use crate::task::disk_tasks;
use crate::{BenchError, TaskProgress};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TASKS: usize = 3;

/// Runs IOR with three tasks.
fn ior(
    dir: &Path,
    options: &Options,
    progress: &Arc<TaskProgress>,
) -> (Option<Report>, Result<(), BenchError>) {
    run(options, disk_tasks(dir, TASKS, progress))
}

fn small() -> Options {
    Options {
        file: "f".to_owned(),
        block: 64 << 10,
        transfer: 16 << 10,
        segments: 2,
        ..Options::default()
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_kind_of_run_moves_all_bytes_and_removes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    for case in 0..16 {
        let options = Options {
            file_per_task: case & 1 != 0,
            random: case & 2 != 0,
            reorder: case & 4 != 0,
            sync: case & 8 != 0,
            check_write: true,
            check_read: true,
            repetitions: 2,
            ..small()
        };
        let (report, outcome) = ior(dir.path(), &options, &Arc::default());
        outcome.unwrap();
        let report = report.unwrap();
        for operation in ["write", "check write", "read"] {
            let figures = report.figures.iter().filter(|f| f.operation == operation);
            let transfers: Vec<u64> = figures.map(|f| f.operations).collect();
            assert_eq!(transfers, [24, 24], "{operation} of {options:?}");
        }
        let text = report.text(0);
        assert!(text.contains("aggregate filesize  : 384 KiB"), "{text}");
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
fn kept_files_have_the_size_and_are_read_by_another_run() {
    let dir = tempfile::tempdir().unwrap();
    let write = Options {
        read: false,
        keep: true,
        check_write: true,
        file_per_task: true,
        ..small()
    };
    ior(dir.path(), &write, &Arc::default()).1.unwrap();
    assert_eq!(names(dir.path()), ["f.00000000", "f.00000001", "f.00000002"]);
    assert_eq!(
        std::fs::metadata(dir.path().join("f.00000002")).unwrap().len(),
        128 << 10
    );
    let read = Options {
        write: false,
        read: true,
        check_write: false,
        check_read: true,
        ..write
    };
    ior(dir.path(), &read, &Arc::default()).1.unwrap();

    let mut data = std::fs::read(dir.path().join("f.00000001")).unwrap();
    data[70_000] ^= 1;
    std::fs::write(dir.path().join("f.00000001"), &data).unwrap();
    let error = ior(dir.path(), &read, &Arc::default()).1.unwrap_err().to_string();
    assert!(
        error.contains("f.00000001") && error.contains("wrong data at offset 70000"),
        "{error}"
    );
    std::fs::write(dir.path().join("f.00000001"), &data[..100_000]).unwrap();
    let read = Options {
        check_read: false,
        ..read
    };
    let error = ior(dir.path(), &read, &Arc::default()).1.unwrap_err().to_string();
    assert!(
        error.contains("only 1696 of 16384 bytes at offset 98304"),
        "{error}"
    );
    assert_eq!(
        names(dir.path()).len(),
        3,
        "a run that only reads removes nothing"
    );
}

#[test]
fn time_limit_ends_a_run_and_reads_only_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        block: 1 << 40,
        stonewall: Some(Duration::from_millis(20)),
        check_read: true,
        reorder: true,
        segments: 1,
        ..small()
    };
    let (report, outcome) = ior(dir.path(), &options, &Arc::default());
    outcome.unwrap();
    let figures = report.unwrap().figures;
    let [write, read] = [0, 1].map(|i| figures[i].operations);
    assert!(write >= 3 && read >= 3 && read <= write, "{write} {read}");
    assert!(names(dir.path()).is_empty());
}

#[test]
fn interrupted_run_removes_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let progress = Arc::new(TaskProgress::default());
    progress.stop.store(true, Ordering::Relaxed);
    let (report, outcome) = ior(dir.path(), &small(), &progress);
    assert!(matches!(outcome, Err(BenchError::Interrupted)), "{outcome:?}");
    assert_eq!(report.unwrap().figures.len(), 1);
    assert!(names(dir.path()).is_empty());
}
