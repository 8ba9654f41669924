//! Statistics of a target: its operations in total, by job, and by the NID of the clients.
//!
//! A partition writes its own totals and its own shard of the jobs. The clients of one NID share a
//! table of counters.

use super::{ServerRequest, TargetExports};
use params::{Group, KeyedStats, Operations, Param, Registry, Stats, StatsTable, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;
use wire::Nid;

/// Default of `job_cleanup_interval`, in seconds.
const JOB_IDLE_SECS: u64 = 600;
/// Maximum of `job_cleanup_interval`, in seconds: a leap year.
const JOB_IDLE_SECS_MAX: u64 = 366 * 24 * 3600;
/// The job that counts the requests of all jobs for which a full table has no place.
const OTHER_JOBS: &str = "other.jobs";

/// The statistics of one target.
#[derive(Debug)]
pub(crate) struct TargetStats {
    operations: Operations,
    /// One table per partition.
    totals: Box<[StatsTable]>,
    jobs: KeyedStats<String>,
    /// Number of evicted clients since the start.
    pub(super) evictions: AtomicU64,
    /// Number of reconnects since the start.
    pub(super) reconnects: AtomicU64,
    /// `job_cleanup_interval`: how long a job without requests is kept, in seconds; 0: forever.
    job_idle_secs: Arc<AtomicU64>,
}

impl TargetStats {
    pub(crate) fn new(operations: Operations, partitions: usize) -> TargetStats {
        let job_idle_secs = Arc::new(AtomicU64::new(JOB_IDLE_SECS));
        TargetStats {
            operations,
            totals: (0..partitions.max(1))
                .map(|_| StatsTable::with_histograms(operations))
                .collect(),
            jobs: KeyedStats::new(
                operations,
                partitions,
                OTHER_JOBS.to_owned(),
                job_idle_secs.clone(),
            ),
            evictions: AtomicU64::new(0),
            reconnects: AtomicU64::new(0),
            job_idle_secs,
        }
    }

    /// An empty table for the clients of one NID.
    pub(crate) fn table(&self) -> Arc<StatsTable> {
        Arc::new(StatsTable::new(self.operations))
    }

    fn total(&self) -> Stats {
        let mut parts = self.totals.iter().map(StatsTable::stats);
        let first = parts
            .next()
            .unwrap_or_else(|| StatsTable::new(self.operations).stats());
        parts.fold(first, |mut sum, part| {
            sum.add(&part);
            sum
        })
    }

    /// Handles a write to `job_stats`: removes the named job, or all jobs if `text` is `clear`.
    fn clear_jobs(&self, text: &str) {
        let name = text.trim();
        self.jobs.retain(|job| name != "clear" && job != name);
    }
}

impl ServerRequest {
    /// Adds samples to the statistics of the target, of the client's NID and of the request's job:
    /// pairs of an index in [`Target::operations`](super::Target::operations) and a value.
    pub fn record(&self, samples: &[(usize, u64)]) {
        let target = self.export.target_stats();
        target.totals[self.cpt.0 % target.totals.len()].add(samples);
        self.export.nid_stats().add(samples);
        let job = self.body.pb_jobid.as_str();
        if !job.is_empty() {
            target.jobs.add(self.cpt.0, job, samples, SystemTime::now());
        }
    }
}

/// Where the statistics of a target's clients are registered.
pub(crate) struct StatsPrefix {
    registry: Registry,
    /// The target's prefix, such as `mdt.testfs-MDT0000`.
    prefix: String,
}

impl TargetExports {
    /// Registers the target's statistics below `prefix`. The total (`total_name`), the parameters
    /// of jobs and the counts of clients are registered until the returned group is dropped;
    /// `exports.NID.stats` and `exports.NID.uuid` while a client with this NID is connected.
    pub fn register_stats(
        self: &Arc<Self>,
        registry: &Registry,
        prefix: &str,
        total_name: &'static str,
    ) -> Group {
        self.publish_origins(StatsPrefix {
            registry: registry.clone(),
            prefix: prefix.to_owned(),
        });
        let mut group = registry.group(prefix);
        let (shown, cleared) = (self.stats().clone(), self.stats().clone());
        let total = Param::read_write(
            move || shown.total(),
            move |_| {
                cleared.totals.iter().for_each(StatsTable::clear);
                Ok(())
            },
        );
        let (shown, cleared) = (self.stats().clone(), self.stats().clone());
        let jobs = Param::read_write(
            move || Value::Jobs(shown.jobs.all(SystemTime::now())),
            move |text| {
                cleared.clear_jobs(text);
                Ok(())
            },
        );
        let exports = Arc::downgrade(self);
        let num_exports = Param::gauge(move || exports.upgrade().map_or(0, |e| e.len() as u64));
        let count = |counter: fn(&TargetStats) -> &AtomicU64| {
            let stats = self.stats().clone();
            Param::counter(move || counter(&stats).load(Relaxed))
        };
        group
            .add(
                total_name,
                total.about(
                    "operations: samples, minimum, maximum, sum, sum of squares; any write clears them",
                ),
            )
            .add(
                "job_stats",
                jobs.about(
                    "operations of each job; write a job's name to remove it, or `clear` to remove all",
                ),
            )
            .add(
                "job_cleanup_interval",
                Param::atomic(self.stats().job_idle_secs.clone(), 0..=JOB_IDLE_SECS_MAX)
                    .about("time in seconds for which job_stats keeps a job without requests; 0: forever"),
            )
            .add(
                "exports.clear",
                self.clear_param()
                    .about("any write clears the operations of all clients (`exports.NID.stats`)"),
            )
            .add("num_exports", num_exports.about("number of connected clients"))
            .add(
                "eviction_count",
                count(|stats| &stats.evictions).about("clients that the target has evicted since its start"),
            )
            .add(
                "reconnect_count",
                count(|stats| &stats.reconnects).about("reconnects of clients since the target's start"),
            );
        group
    }

    /// `exports.clear`, which shows how to use it, as in Lustre.
    fn clear_param(self: &Arc<Self>) -> Param {
        let exports = Arc::downgrade(self);
        Param::read_write(
            || "write any value to clear the statistics of all clients".to_owned(),
            move |_| {
                if let Some(exports) = exports.upgrade() {
                    exports.all().iter().for_each(|export| export.nid_stats().clear());
                }
                Ok(())
            },
        )
    }

    /// The UUIDs of the clients of a NID, one on each line.
    fn uuids_at(&self, nid: Nid) -> String {
        let mut uuids: Vec<String> = self
            .all()
            .iter()
            .filter(|export| export.origin == nid)
            .map(|export| format!("{}\n", export.client_uuid))
            .collect();
        uuids.sort();
        uuids.concat()
    }
}

impl StatsPrefix {
    /// Registers the parameters of a NID's clients.
    pub(crate) fn register(&self, exports: &Arc<TargetExports>, nid: Nid, table: &Arc<StatsTable>) -> Group {
        let mut group = self.registry.group(format!("{}.exports.{nid}", self.prefix));
        let exports = Arc::downgrade(exports);
        let uuids = Param::read_only(move || {
            exports
                .upgrade()
                .map(|exports| exports.uuids_at(nid))
                .unwrap_or_default()
        });
        let (shown, cleared) = (table.clone(), table.clone());
        let stats = Param::read_write(
            move || shown.stats(),
            move |_| {
                cleared.clear();
                Ok(())
            },
        );
        group.add("uuid", uuids.about("the clients with this NID")).add(
            "stats",
            stats.about("operations of the clients with this NID; any write clears them"),
        );
        group
    }
}
