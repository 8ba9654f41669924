//! Counts of a process's operations, services, locks and throttled requests since their reset, for
//! `nacre top`. The counts come from the typed values of parameters. The command reads them twice
//! and subtracts (`cmd::top::rates`).

mod classes;

use std::collections::BTreeMap;
use std::time::SystemTime;

use params::{Registry, Row, USECS, Value};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

pub(crate) use classes::ClassKey;

/// The parameters that the counts come from.
const PATTERNS: &[&str] = &[
    "obdfilter.*.stats",
    "obdfilter.*.exports.*.stats",
    "obdfilter.*.job_stats",
    "mdt.*.md_stats",
    "mdt.*.exports.*.stats",
    "mdt.*.job_stats",
    "ldlm.namespaces.*.lock_waits",
    "ldlm.namespaces.*.lock_waiting",
];
/// The parameters of operations by directory. An MDT records these only for a while after a read.
const DIRECTORY_PATTERN: &str = "mdt.*.dir_stats";
/// The levels of the parameter tree that hold the services' parameters.
const SERVICE_PATTERNS: &[&str] = &["mds.MDS.*", "ost.OSS.*", "mgs.MGS.*", "ldlm.services.*"];

/// The counts of a process. Times are in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Activity {
    /// The process's wall clock before the read, since 1970; comparable with `since`.
    pub(crate) read_at: u64,
    /// The monotonic clock at the read.
    pub(crate) clock: u64,
    pub(crate) operations: Vec<OperationCounts>,
    /// By the service's name.
    pub(crate) services: BTreeMap<String, ServiceCounts>,
    pub(crate) throttles: Vec<ThrottleCounts>,
    /// By the target's name.
    pub(crate) locks: BTreeMap<String, LockCounts>,
}

/// Which operations of a target a count includes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// The whole target.
    Target,
    /// The clients with this NID.
    Nid(String),
    /// The job with this name.
    Job(String),
    /// The directory with this path.
    Directory(String),
}

/// Operations of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OperationCounts {
    pub(crate) target: String,
    pub(crate) scope: Scope,
    /// Time of the reset or of the first operation, since 1970.
    pub(crate) since: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    /// All other operations.
    pub(crate) metadata: u64,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Total duration of all operations.
    pub(crate) busy: u64,
}

/// Requests of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServiceCounts {
    /// Time of the reset, since 1970.
    pub(crate) since: u64,
    /// Requests that have left the queue.
    pub(crate) requests: u64,
    /// Their total time in the queue.
    pub(crate) wait: u64,
    /// Requests in the queue now.
    pub(crate) waiting: u64,
    /// Requests in execution now.
    pub(crate) active: u64,
}

/// Throttled requests of a class of the token bucket filter, on one partition of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ThrottleCounts {
    pub(crate) service: String,
    pub(crate) cpt: String,
    /// The class, as [`ClassKey`] parses it.
    pub(crate) class: String,
    pub(crate) rule: String,
    /// Requests that had to wait for a token and have left the queue.
    pub(crate) throttled: u64,
    /// Their total time in the queue.
    pub(crate) wait: u64,
    /// Requests in the queue now.
    pub(crate) waiting: u64,
}

/// Waits for locks of a target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockCounts {
    /// Waits that have ended.
    pub(crate) waits: u64,
    /// Their total length.
    pub(crate) wait: u64,
    /// Locks that wait now.
    pub(crate) waiting: u64,
}

/// Reads the counts of this process, with the counts by directory only if `with_directories`.
pub(crate) fn collect(registry: &Registry, with_directories: bool) -> Activity {
    let clock = clock_gettime(ClockId::Monotonic);
    let clock = clock.tv_sec.unsigned_abs() * 1_000_000 + clock.tv_nsec.unsigned_abs() / 1000;
    let mut activity = Activity {
        read_at: usecs_since_1970(SystemTime::now()),
        clock,
        ..Activity::default()
    };
    let directories = with_directories.then_some(&DIRECTORY_PATTERN);
    for (name, value) in PATTERNS
        .iter()
        .chain(directories)
        .flat_map(|p| registry.values(p))
    {
        activity.add(&name, &value);
    }
    for level in SERVICE_PATTERNS {
        for leaf in ["stats", "cpt_stats", "nrs_tbf_classes"] {
            for (name, value) in registry.values(&format!("{level}.{leaf}")) {
                let service = name.rsplit('.').nth(1).unwrap_or_default();
                activity.add_service(service, leaf, &value);
            }
        }
    }
    activity
}

impl Activity {
    /// Adds a parameter of a target.
    fn add(&mut self, name: &str, value: &Value) {
        let mut parts = name.splitn(3, '.').skip(1);
        let (Some(target), Some(leaf)) = (parts.next(), parts.next()) else {
            return;
        };
        if let Some(namespace) = name.strip_prefix("ldlm.namespaces.") {
            return self.add_locks(namespace, value);
        }
        let export = leaf
            .strip_prefix("exports.")
            .and_then(|nid| nid.strip_suffix(".stats"));
        match (value, export) {
            (Value::Stats(stats), _) => {
                let scope = export.map_or(Scope::Target, |nid| Scope::Nid(nid.to_owned()));
                self.add_operations(target, scope, stats.since, &stats.rows);
            }
            (Value::Jobs(jobs), _) => {
                for job in jobs {
                    self.add_operations(target, Scope::Job(job.key.clone()), job.first, &job.rows);
                }
            }
            (Value::Directories(directories), _) => {
                for dir in directories {
                    self.add_operations(target, Scope::Directory(dir.key.clone()), dir.first, &dir.rows);
                }
            }
            _ => {}
        }
    }

    fn add_operations(&mut self, target: &str, scope: Scope, since: SystemTime, rows: &[Row]) {
        let mut counts = OperationCounts {
            target: target.to_owned(),
            scope,
            since: usecs_since_1970(since),
            reads: 0,
            writes: 0,
            metadata: 0,
            read_bytes: 0,
            written_bytes: 0,
            busy: 0,
        };
        for row in rows {
            match row.name {
                "read_bytes" => counts.read_bytes = row.sums.sum,
                "write_bytes" => counts.written_bytes = row.sums.sum,
                "read" => counts.reads = row.sums.count,
                "write" => counts.writes = row.sums.count,
                _ => counts.metadata += row.sums.count,
            }
            if row.unit == USECS {
                counts.busy += row.sums.sum;
            }
        }
        self.operations.push(counts);
    }

    /// Adds a parameter of a lock server: `name` is `NAMESPACE.PARAMETER`.
    fn add_locks(&mut self, name: &str, value: &Value) {
        let Some((namespace, _)) = name.rsplit_once('.') else {
            return;
        };
        let target = namespace
            .strip_prefix("filter-")
            .or_else(|| namespace.strip_prefix("mdt-"))
            .unwrap_or(namespace);
        let locks = self
            .locks
            .entry(target.trim_end_matches("_UUID").to_owned())
            .or_default();
        match value {
            Value::Gauge(waiting) => locks.waiting = *waiting,
            Value::Stats(stats) => {
                for row in &stats.rows {
                    locks.waits += row.sums.count;
                    locks.wait += row.sums.sum;
                }
            }
            _ => {}
        }
    }

    fn add_service(&mut self, service: &str, leaf: &str, value: &Value) {
        match (leaf, value) {
            ("stats", Value::Stats(stats)) => {
                let counts = self.services.entry(service.to_owned()).or_default();
                counts.since = usecs_since_1970(stats.since);
                if let Some(row) = stats.rows.iter().find(|row| row.name == "req_waittime") {
                    (counts.requests, counts.wait) = (row.sums.count, row.sums.sum);
                }
            }
            ("cpt_stats", Value::Text(text)) => {
                let counts = self.services.entry(service.to_owned()).or_default();
                for line in text.lines().filter(|line| line.starts_with("CPT ")) {
                    counts.waiting += word_after(line, "queued");
                    counts.active += word_after(line, "active");
                }
            }
            ("nrs_tbf_classes", Value::Text(text)) => {
                self.throttles.extend(classes::throttled(service, text));
            }
            _ => {}
        }
    }
}

/// The number after a word of a line; 0 without that word.
fn word_after(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace();
    words.find(|w| *w == word);
    words.next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn usecs_since_1970(time: SystemTime) -> u64 {
    let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    params::as_usecs(time)
}

#[cfg(test)]
mod tests {
    use super::{LockCounts, Scope, collect};
    use crate::test_params::register_ost_stats;
    use params::{KeyedStats, Operations, Param, Registry, Row, Stats, StatsTable, Sums, Tally, USECS};
    use std::sync::Arc;
    use std::time::{Duration, UNIX_EPOCH};

    const OPERATIONS: Operations = &[
        ("read_bytes", "bytes"),
        ("write_bytes", "bytes"),
        ("read", USECS),
        ("write", USECS),
        ("punch", USECS),
    ];

    #[test]
    fn operations_of_targets_clients_and_jobs_are_split_by_kind() {
        let registry = Registry::default();
        let table = Arc::new(StatsTable::new(OPERATIONS));
        table.add(&[(0, 4096), (2, 7), (4, 5)]);
        let jobs = KeyedStats::new(OPERATIONS, 1, String::new(), Arc::default());
        let first = UNIX_EPOCH + Duration::from_secs(9);
        jobs.add(0, "dd.0", &[(1, 100), (3, 2)], first);
        let _params = register_ost_stats(&registry, &table, jobs, first);
        let activity = collect(&registry, false);
        let scopes: Vec<&Scope> = activity.operations.iter().map(|o| &o.scope).collect();
        let nid = Scope::Nid("10.0.0.7@tcp".to_owned());
        assert_eq!(scopes, [&Scope::Target, &nid, &Scope::Job("dd.0".to_owned())]);
        let target = &activity.operations[0];
        assert_eq!(target.target, "fs-OST0000");
        assert_eq!((target.reads, target.writes, target.metadata), (1, 0, 1));
        assert_eq!((target.read_bytes, target.busy), (4096, 12));
        let job = &activity.operations[2];
        assert_eq!((job.writes, job.written_bytes, job.since), (1, 100, 9_000_000));
    }

    #[test]
    fn services_and_locks_have_waits() {
        let registry = Registry::default();
        let waits = |name: &'static str| {
            let tally = Tally::default();
            tally.add(30);
            tally.add(12);
            let sums: Sums = tally.sums();
            let row = Row {
                name,
                unit: USECS,
                sums,
                buckets: None,
            };
            Param::read_only(move || Stats {
                since: UNIX_EPOCH,
                rows: vec![row],
            })
        };
        let text = |text: &'static str| Param::read_only(move || text.to_owned());
        let _params = [
            registry.register("mds.MDS.mdt.stats", waits("req_waittime")),
            registry.register(
                "mds.MDS.mdt.cpt_stats",
                text(
                    "CPT 0: threads 4 active 1 queued 2 dropped 9\nCPT 1: threads 4 active 0 queued 3 dropped 9\n",
                ),
            ),
            registry.register("ldlm.namespaces.mdt-fs-MDT0000_UUID.lock_waits", waits("lock_wait")),
            registry.register(
                "ldlm.namespaces.mdt-fs-MDT0000_UUID.lock_waiting",
                Param::gauge(|| 5),
            ),
        ];
        let activity = collect(&registry, false);
        let service = &activity.services["mdt"];
        assert_eq!((service.requests, service.wait), (2, 42));
        assert_eq!((service.waiting, service.active), (5, 1));
        let expected = LockCounts {
            waits: 2,
            wait: 42,
            waiting: 5,
        };
        assert_eq!(activity.locks["fs-MDT0000"], expected);
    }
}
