//! Parameters of an import: `stats`, `import` and `state`, as in Lustre (`osc.*.stats`, ...).

use super::{Import, ImportState};
use crate::opname::NAMES;
use ::params::{Group, Param, Row, Stats, Sums, Tally};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt::Write;
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
    /// Requests without a reply when a request is answered, including that request.
    active: Tally,
    /// Times until the reply in microseconds, indexed like `NAMES`.
    operations: Box<[Tally]>,
}

impl ImportStats {
    pub(super) fn new() -> ImportStats {
        ImportStats {
            since: Mutex::new(SystemTime::now()),
            wait: Tally::default(),
            active: Tally::default(),
            operations: NAMES.iter().map(|_| Tally::default()).collect(),
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
        self.operations.iter().for_each(Tally::clear);
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
    fn mean_wait(&self) -> u64 {
        self.wait.sums().mean()
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
fn state_name(state: ImportState) -> &'static str {
    match state {
        ImportState::New => "NEW",
        ImportState::Connecting => "CONNECTING",
        ImportState::Full => "FULL",
        ImportState::Discon => "DISCONN",
        ImportState::Evicted => "EVICTED",
        ImportState::Idle => "IDLE",
        ImportState::Closed => "CLOSED",
    }
}

impl Import {
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

    fn show(&self) -> String {
        let core = self.core.lock();
        let nids: Vec<String> = core.nids.iter().map(|nid| format!("\"{nid}\"")).collect();
        let data = self.connect_data();
        let mut out = String::from("import:\n");
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "    name: {name}\n    target: {target}\n    state: {state}\n    \
             connect_data:\n       flags: {flags:#x}\n       instance: {instance}\n       \
             initial_grant: {grant}\n       max_brw_size: {brw_size}\n    \
             connection:\n       failover_nids: [ {nids} ]\n       current_connection: \"{peer}\"\n       \
             connection_attempts: {attempts}\n    \
             rpcs:\n       inflight: {in_flight}\n       avg_waittime: {wait} usecs\n    \
             transactions:\n       peer_committed: {committed}\n",
            name = self.cfg.name,
            target = self.cfg.target_uuid,
            state = state_name(core.machine.state()),
            flags = data.ocd_connect_flags,
            instance = data.ocd_instance,
            grant = data.ocd_grant,
            brw_size = data.ocd_brw_size,
            nids = nids.join(", "),
            peer = core.peer(),
            attempts = core.machine.conn_cnt(),
            in_flight = core.unreplied.len(),
            wait = self.stats.mean_wait(),
            committed = core.replay.last_committed(),
        );
        out
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
