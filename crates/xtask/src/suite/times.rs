//! How long each job took the last time it ran, kept in the target directory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::stage::root;

/// Times by the jobs' names.
pub(super) struct Times(BTreeMap<String, Duration>);

fn path() -> PathBuf {
    root().join("target/test-times.txt")
}

impl Times {
    /// What is known; nothing where nothing can be read.
    pub(super) fn load() -> Times {
        let text = std::fs::read_to_string(path()).unwrap_or_default();
        let entry = |line: &str| {
            let (ms, label) = line.split_once(' ')?;
            Some((label.to_owned(), Duration::from_millis(ms.parse().ok()?)))
        };
        Times(text.lines().filter_map(entry).collect())
    }

    /// The last time of a job.
    pub(super) fn of(&self, label: &str) -> Option<Duration> {
        self.0.get(label).copied()
    }

    /// A job took so long.
    pub(super) fn set(&mut self, label: &str, took: Duration) {
        self.0.insert(label.to_owned(), took);
    }

    /// Keeps them for the next run, which does without them if they cannot be written.
    pub(super) fn save(&self) {
        let lines = self
            .0
            .iter()
            .map(|(label, took)| format!("{} {label}\n", took.as_millis()));
        let _ = std::fs::write(path(), lines.collect::<String>());
    }
}
