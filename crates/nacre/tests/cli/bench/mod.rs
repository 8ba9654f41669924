//! `nacre bench`: output of the benchmarks, and cleanup after success, failure and interruption.

mod demo;
mod tools;

use std::fs;
use std::time::{Duration, Instant};

/// Time limit for a condition; longer than the 150 s until a server evicts a killed client.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(240);

/// Processes that have this directory in their command line.
pub(crate) fn processes_in(dir: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    let inside = format!("{dir}/");
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&inside)
    })
    .collect()
}

/// Waits for a condition; `failure` is the message after [`WAIT_MAX`].
pub(crate) fn wait_until(failure: &str, mut done: impl FnMut() -> bool) {
    let start_time = Instant::now();
    while !done() {
        assert!(start_time.elapsed() < WAIT_MAX, "{failure}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
