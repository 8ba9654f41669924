//! One load on one subject: metadata operations by several threads, and one stream of data.

use crate::cpu;
use crate::subject::{NewFile, Subject};
use crate::{BenchError, Row};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Size of one load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) threads: usize,
    pub(crate) files_per_thread: usize,
    pub(crate) stream_bytes: u64,
}

/// Bytes of one read or write call of the stream.
const BLOCK: usize = 1 << 20;

/// Runs one phase in all threads and makes its row.
fn phase(
    subject: &Arc<dyn Subject>,
    name: &'static str,
    size: Size,
    stop: &AtomicBool,
    operation: fn(&dyn Subject, &str, &str) -> Result<(), BenchError>,
) -> Result<Row, BenchError> {
    let cpu_before = cpu::used(subject.processes());
    let start = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size.threads)
            .map(|thread| {
                scope.spawn(move || {
                    let dir = dir_name(thread);
                    (0..size.files_per_thread).try_for_each(|i| {
                        if stop.load(Ordering::Relaxed) {
                            return Err(BenchError::Interrupted);
                        }
                        operation(&**subject, &dir, &format!("f{i}"))
                    })
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().unwrap_or(Err(BenchError::Interrupted)))
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let operations = (size.threads * size.files_per_thread) as f64;
    let cpu = cpu::used(subject.processes()).since(cpu_before).all();
    let cpu_us = cpu.as_secs_f64() * 1e6 / operations;
    Ok(Row {
        subject: subject.name().to_owned(),
        phase: name,
        rate: operations / seconds,
        cpu_us: Some(cpu_us),
    })
}

fn dir_name(thread: usize) -> String {
    format!("t{thread}")
}

/// Creates, stats and unlinks empty files, a directory for each thread.
pub(crate) fn metadata(
    subject: &Arc<dyn Subject>,
    size: Size,
    stop: &AtomicBool,
) -> Result<Vec<Row>, BenchError> {
    for thread in 0..size.threads {
        subject.make_dir("", &dir_name(thread))?;
    }
    let rows = vec![
        phase(subject, "create/s", size, stop, |s, d, f| {
            s.create(d, f, &NewFile::EMPTY)
        })?,
        phase(subject, "stat/s", size, stop, |s, d, f| s.stat(d, f))?,
        phase(subject, "unlink/s", size, stop, |s, d, f| s.unlink(d, f))?,
    ];
    for thread in 0..size.threads {
        subject.remove_dir("", &dir_name(thread))?;
    }
    Ok(rows)
}

/// Writes a file from start to end, fsyncs it, forgets it, and reads it back.
pub(crate) fn stream(subject: &Arc<dyn Subject>, size: Size) -> Result<Vec<Row>, BenchError> {
    let dir = "stream";
    subject.make_dir("", dir)?;
    let block = Bytes::from((0..BLOCK).map(|i| (i * 31 % 251) as u8).collect::<Vec<u8>>());
    let blocks = size.stream_bytes / BLOCK as u64;
    let megabytes = (blocks * BLOCK as u64) as f64 / 1e6;
    let mut rows = Vec::new();
    let mut timed = |phase: &'static str, run: &dyn Fn() -> Result<(), BenchError>| {
        let cpu_before = cpu::used(subject.processes());
        let start = Instant::now();
        run()?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu = cpu::used(subject.processes()).since(cpu_before).all();
        let cpu_us = cpu.as_secs_f64() * 1e6 / megabytes;
        rows.push(Row {
            subject: subject.name().to_owned(),
            phase,
            rate: megabytes / seconds,
            cpu_us: Some(cpu_us),
        });
        Ok(())
    };
    timed("write MB/s", &|| subject.write(dir, "f", &block, blocks))?;
    subject.forget(dir, "f")?;
    timed("read MB/s", &|| subject.read(dir, "f", BLOCK).map(drop))?;
    subject.unlink(dir, "f")?;
    subject.remove_dir("", dir)?;
    Ok(rows)
}
