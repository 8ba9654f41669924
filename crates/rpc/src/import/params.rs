//! Parameters of an import: `stats`, `import` and `state`, as in Lustre (`osc.*.stats`, ...).

use super::{Import, ImportState};
use crate::opname::NAMES;
use ::params::{Group, Param, Row, Stats, Sums, Tally};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// Number of changes of the state that the import remembers, as in Lustre.
const HISTORY_MAX: usize = 16;

/// The statistics of an import's requests.
pub(super) struct ImportStats {
    since: Mutex<SystemTime>,
    /// Time until the reply, in microseconds.
    wait: Tally,
    /// Number of requests in flight, sampled at each reply; includes the request that it answers.
    active: Tally,
    /// Times until the reply in microseconds, indexed like `NAMES`.
    operations: Box<[Tally]>,
    /// Requested bytes of reads and of writes.
    data: [Tally; 2],
    /// Number of requests that got no reply in time.
    timeouts: AtomicU64,
}

/// For each tally of [`ImportStats::data`], its name in the text and the name of its operation.
const DATA_OPERATIONS: [(&str, &str); 2] = [("read", "ost_read"), ("write", "ost_write")];

/// Means over all reads, or over all writes.
pub(super) struct DataAverages {
    /// Requested bytes.
    pub(super) bytes: u64,
    /// Time until the reply, in microseconds.
    pub(super) usecs: u64,
}

impl ImportStats {
    pub(super) fn new() -> ImportStats {
        ImportStats {
            since: Mutex::new(SystemTime::now()),
            wait: Tally::default(),
            active: Tally::default(),
            operations: NAMES.iter().map(|_| Tally::default()).collect(),
            data: Default::default(),
            timeouts: AtomicU64::new(0),
        }
    }

    /// Records an answered request. `active`: requests without a reply, including this one.
    pub(super) fn record(&self, opc: u32, active: usize, duration: Duration) {
        self.wait.add_time(duration);
        self.active.add(active as u64);
        if let Some(index) = NAMES.iter().position(|(named, _)| *named == opc) {
            self.operations[index].add_time(duration);
        }
    }

    fn clear(&self) {
        *self.since.lock() = SystemTime::now();
        [&self.wait, &self.active].into_iter().for_each(Tally::clear);
        self.operations.iter().chain(&self.data).for_each(Tally::clear);
        self.timeouts.store(0, Ordering::Relaxed);
    }

    fn stats(&self) -> Stats {
        let row = |name, unit, sums: Sums| Row {
            name,
            unit,
            sums,
            buckets: None,
        };
        let mut rows = vec![
            row("req_waittime", "usecs", self.wait.sums()),
            row("req_active", "reqs", self.active.sums()),
        ];
        let operations = NAMES.iter().zip(&self.operations);
        rows.extend(operations.map(|((_, name), tally)| row(name, "usecs", tally.sums())));
        Stats {
            since: *self.since.lock(),
            rows,
        }
    }

    /// Mean time until the reply, in microseconds.
    pub(super) fn mean_wait(&self) -> u64 {
        self.wait.sums().mean()
    }

    /// Records that a request got no reply in time.
    pub(super) fn note_timeout(&self) {
        self.timeouts.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of requests that got no reply in time.
    pub(super) fn timeouts(&self) -> u64 {
        self.timeouts.load(Ordering::Relaxed)
    }

    /// The means of reads and of writes, each only if there were any.
    pub(super) fn data_averages(&self) -> Vec<(&'static str, DataAverages)> {
        let mut found = Vec::new();
        for ((name, operation), data) in DATA_OPERATIONS.into_iter().zip(&self.data) {
            let sums = data.sums();
            let index = NAMES.iter().position(|(_, named)| *named == operation);
            if let Some(index) = index.filter(|_| sums.count > 0) {
                let usecs = self.operations[index].sums().mean();
                let bytes = sums.mean();
                found.push((name, DataAverages { bytes, usecs }));
            }
        }
        found
    }
}

/// The last changes of an import's state, and their times.
#[derive(Default)]
pub(super) struct StateHistory {
    changes: VecDeque<(SystemTime, ImportState)>,
    last_eviction: Option<Instant>,
}

impl StateHistory {
    pub(super) fn add(&mut self, state: ImportState) {
        if self.changes.len() == HISTORY_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back((SystemTime::now(), state));
        if state == ImportState::Evicted {
            self.last_eviction = Some(Instant::now());
        }
    }

    /// Time since the last eviction.
    pub(super) fn since_eviction(&self) -> Option<Duration> {
        self.last_eviction.map(|at| at.elapsed())
    }
}

/// Lustre's name of a state.
pub(super) fn state_name(state: ImportState) -> &'static str {
    match state {
        ImportState::New => "NEW",
        ImportState::Connecting => "CONNECTING",
        ImportState::Full => "FULL",
        ImportState::Discon => "DISCONN",
        ImportState::Replay => "REPLAY",
        ImportState::ReplayLocks => "REPLAY_LOCKS",
        ImportState::ReplayWait => "REPLAY_WAIT",
        ImportState::Evicted => "EVICTED",
        ImportState::Idle => "IDLE",
        ImportState::Closed => "CLOSED",
    }
}

impl Import {
    /// Records the bytes that a read asks for, for the averages of the parameter `import`.
    pub fn note_read(&self, bytes: u64) {
        self.stats.data[0].add(bytes);
    }

    /// Records the bytes that a write sends, for the averages of the parameter `import`.
    pub fn note_write(&self, bytes: u64) {
        self.stats.data[1].add(bytes);
    }

    /// Adds the import's parameters to a group: `stats`, `import` and `state`.
    pub fn add_params(self: &Arc<Self>, group: &mut Group) {
        let shown = |show: fn(&Import) -> String| {
            let import: Weak<Import> = Arc::downgrade(self);
            Param::read_only(move || import.upgrade().map(|i| show(&i)).unwrap_or_default())
        };
        let (stats, cleared) = (self.stats.clone(), self.stats.clone());
        let stats = Param::read_write(
            move || stats.stats(),
            move |_| {
                cleared.clear();
                Ok(())
            },
        );
        group
            .add(
                "stats",
                stats.about("requests to the target: time until the reply; any write clears them"),
            )
            .add(
                "import",
                shown(Import::show).about("the connection to the target"),
            )
            .add(
                "state",
                shown(Import::show_state).about("the state of the connection, and its last changes"),
            );
    }

    fn show_state(&self) -> String {
        let core = self.core.lock();
        let mut out = format!(
            "current_state: {}\nstate_history:\n",
            state_name(core.machine.state())
        );
        for (time, state) in &core.history.changes {
            let secs = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            // Writing to a string does not fail.
            let _ = writeln!(out, " - [ {secs}, {} ]", state_name(*state));
        }
        out
    }
}
