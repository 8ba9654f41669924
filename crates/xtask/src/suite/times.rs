//! Durations of jobs in their previous run, stored in the target directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::stage::root;

/// Durations by job label.
pub(super) struct Times(BTreeMap<String, Duration>);

fn path() -> PathBuf {
    root().join("target/test-times.txt")
}

impl Times {
    /// Loads the durations; empty if the file is missing or unreadable.
    pub(super) fn load() -> Times {
        let text = std::fs::read_to_string(path()).unwrap_or_default();
        let entry = |line: &str| {
            let (ms, label) = line.split_once(' ')?;
            Some((label.to_owned(), Duration::from_millis(ms.parse().ok()?)))
        };
        Times(text.lines().filter_map(entry).collect())
    }

    /// The previous duration of a job; `None` if it has not run before.
    pub(super) fn get(&self, label: &str) -> Option<Duration> {
        self.0.get(label).copied()
    }

    /// Sets the duration of a job.
    pub(super) fn set(&mut self, label: &str, took: Duration) {
        self.0.insert(label.to_owned(), took);
    }

    /// Saves the durations; a failure only affects the order of the next run.
    pub(super) fn save(&self) {
        let lines = self
            .0
            .iter()
            .map(|(label, took)| format!("{} {label}\n", took.as_millis()));
        let _ = std::fs::write(path(), lines.collect::<String>());
    }
}
