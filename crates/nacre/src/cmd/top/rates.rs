//! Rates: the differences between two samples, by key.
//!
//! This module does no I/O. It includes a process only if both samples have it: a process that
//! started in between has no earlier counts. If a server reset its counts between the samples, the
//! difference is the later count. If a count fell without a reset, because a server dropped a part
//! of the counts, the difference is zero for this interval.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::sample::Sample;
use crate::activity::{Activity, ClassKey, OperationCounts, Scope, ServiceCounts, ThrottleCounts};
use crate::cli::{By, Sort};

/// The key of jobs with names that contain no user.
const NO_UID: &str = "unknown";
/// Microseconds in a second.
const SECOND: f64 = 1e6;

/// The load of a key in an interval. A field is `None` if the key has no such statistics.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Load {
    pub(super) key: String,
    pub(super) operations: Option<Operations>,
    pub(super) queue: Option<Waits>,
    pub(super) locks: Option<Waits>,
    pub(super) throttled: Option<Waits>,
    /// Rules that throttled requests.
    pub(super) rules: BTreeSet<String>,
}

/// Operations of targets.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Operations {
    /// Numbers in the interval.
    pub(super) total: OperationNumbers<u64>,
    pub(super) per_second: OperationNumbers<f64>,
    /// Mean duration of an operation, in microseconds.
    pub(super) latency_usec: Option<f64>,
}

/// Numbers of operations by kind, and of bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct OperationNumbers<T> {
    pub(super) reads: T,
    pub(super) writes: T,
    /// All other operations.
    pub(super) metadata: T,
    pub(super) read_bytes: T,
    pub(super) written_bytes: T,
}

/// Requests that left a queue, or waits that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Waits {
    /// Number in the interval.
    pub(super) total: u64,
    pub(super) per_second: f64,
    /// Mean length of a wait, in microseconds.
    pub(super) wait_usec: Option<f64>,
    /// Requests or locks that wait at the end of the interval.
    pub(super) waiting: u64,
    /// For a queue: requests in execution at the end of the interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) active: Option<u64>,
}

impl Load {
    /// Operations per second, or for services requests.
    pub(super) fn operations_per_second(&self) -> f64 {
        match (&self.operations, &self.queue) {
            (Some(o), _) => o.per_second.reads + o.per_second.writes + o.per_second.metadata,
            (None, Some(queue)) => queue.per_second,
            (None, None) => 0.0,
        }
    }

    fn bytes_per_second(&self) -> f64 {
        let operations = self.operations.as_ref();
        operations.map_or(0.0, |o| o.per_second.read_bytes + o.per_second.written_bytes)
    }

    fn latency(&self) -> f64 {
        let latency = self.operations.as_ref().and_then(|o| o.latency_usec);
        let wait = self.queue.as_ref().and_then(|q| q.wait_usec);
        latency.or(wait).unwrap_or(0.0)
    }

    fn is_idle(&self) -> bool {
        let throttled = self.throttled.as_ref();
        self.operations_per_second() == 0.0 && throttled.is_none_or(|t| t.total == 0 && t.waiting == 0)
    }
}

/// The loads between two samples. Leaves out idle jobs, users, clients and directories.
pub(super) fn loads(before: &Sample, after: &Sample, by: By, sort: Sort) -> Vec<Load> {
    let mut sums: BTreeMap<String, Sums> = BTreeMap::new();
    for (process, now) in &after.processes {
        if let Some(earlier) = before.processes.get(process)
            && let Some(pair) = Pair::new(earlier, now)
        {
            pair.add(by, &mut sums);
        }
    }
    let mut loads: Vec<Load> = sums.into_iter().map(|(key, sums)| sums.load(key)).collect();
    if !matches!(by, By::Target | By::Service) {
        loads.retain(|load| !load.is_idle());
    }
    let amount = |load: &Load| match sort {
        Sort::Operations => load.operations_per_second(),
        Sort::Bytes => load.bytes_per_second(),
        Sort::Latency => load.latency(),
    };
    // The sort is stable, so equal rows stay in the order of their keys.
    loads.sort_by(|a, b| amount(b).total_cmp(&amount(a)));
    loads
}

/// The counts of a process in two samples.
struct Pair<'a> {
    before: &'a Activity,
    after: &'a Activity,
    seconds: f64,
}

impl<'a> Pair<'a> {
    /// `None` if no time has passed.
    fn new(before: &'a Activity, after: &'a Activity) -> Option<Pair<'a>> {
        let usecs = after.clock.checked_sub(before.clock).filter(|t| *t > 0)?;
        Some(Pair {
            before,
            after,
            seconds: usecs as f64 / SECOND,
        })
    }

    /// Adds the differences to the sums of their keys.
    fn add(&self, by: By, sums: &mut BTreeMap<String, Sums>) {
        match by {
            By::Service => self.add_services(sums),
            _ => self.add_operations(by, sums),
        }
        if by == By::Target {
            self.add_locks(sums);
        } else {
            self.add_throttles(by, sums);
        }
    }

    fn add_operations(&self, by: By, sums: &mut BTreeMap<String, Sums>) {
        let id = |o: &'a OperationCounts| (o.target.as_str(), &o.scope);
        let earlier: BTreeMap<_, _> = self.before.operations.iter().map(|o| (id(o), o)).collect();
        for now in &self.after.operations {
            let Some(key) = operations_key(by, now) else {
                continue;
            };
            let before = earlier.get(&id(now));
            let before = before.map(|b| (b.since, operation_values(b)));
            let change = self.change(before, now.since, operation_values(now));
            let sum = sums.entry(key).or_default();
            sum.operations.get_or_insert_default().add(change, self.seconds);
        }
    }

    fn add_services(&self, sums: &mut BTreeMap<String, Sums>) {
        let values = |s: &ServiceCounts| [s.requests, s.wait];
        for (name, now) in &self.after.services {
            let before = self.before.services.get(name);
            let before = before.map(|b| (b.since, values(b)));
            let change = self.change(before, now.since, values(now));
            let queue = sums
                .entry(name.clone())
                .or_default()
                .queue
                .get_or_insert_default();
            queue.counts.add(change, self.seconds);
            queue.waiting += now.waiting;
            *queue.active.get_or_insert(0) += now.active;
        }
    }

    fn add_locks(&self, sums: &mut BTreeMap<String, Sums>) {
        for (target, now) in &self.after.locks {
            // The lock server of the MGS has no target with operations.
            let Some(sum) = sums.get_mut(target) else { continue };
            let before = self.before.locks.get(target);
            let before = before.map(|b| (0, [b.waits, b.wait]));
            let locks = sum.locks.get_or_insert_default();
            locks
                .counts
                .add(self.change(before, 0, [now.waits, now.wait]), self.seconds);
            locks.waiting += now.waiting;
        }
    }

    fn add_throttles(&self, by: By, sums: &mut BTreeMap<String, Sums>) {
        let id = |t: &'a ThrottleCounts| (t.service.as_str(), t.cpt.as_str(), t.class.as_str());
        let earlier: BTreeMap<_, _> = self.before.throttles.iter().map(|t| (id(t), t)).collect();
        for now in &self.after.throttles {
            let Some(key) = throttle_key(by, now) else {
                continue;
            };
            let before = earlier.get(&id(now)).map(|b| (0, [b.throttled, b.wait]));
            let change = self.change(before, 0, [now.throttled, now.wait]);
            let sum = sums.entry(key).or_default();
            let throttled = sum.throttled.get_or_insert_default();
            throttled.counts.add(change, self.seconds);
            throttled.waiting += now.waiting;
            if change[0] > 0 {
                sum.rules.insert(now.rule.clone());
            }
        }
    }

    /// The growth of counts from one sample to the next. `before` has the reset time and the counts
    /// of the earlier sample, `since` and `now` those of the later sample.
    fn change<const N: usize>(&self, before: Option<(u64, [u64; N])>, since: u64, now: [u64; N]) -> [u64; N] {
        let Some((since_before, before)) = before else {
            return now;
        };
        if since != since_before && since >= self.before.read_at {
            return now;
        }
        let mut change = [0; N];
        for (change, (now, before)) in change.iter_mut().zip(now.iter().zip(before)) {
            match now.checked_sub(before) {
                Some(grown) => *change = grown,
                None => return [0; N],
            }
        }
        change
    }
}

/// The key of the row that includes these counts; `None` if no row by `by` includes them.
fn operations_key(by: By, counts: &OperationCounts) -> Option<String> {
    match (by, &counts.scope) {
        (By::Target, Scope::Target) => Some(counts.target.clone()),
        (By::Nid, Scope::Nid(nid)) => Some(nid.clone()),
        (By::Job, Scope::Job(job)) => Some(job.clone()),
        (By::Directory, Scope::Directory(path)) => Some(path.clone()),
        (By::Uid, Scope::Job(job)) => Some(uid_of_job(job).map_or(NO_UID.to_owned(), |uid| uid.to_string())),
        _ => None,
    }
}

fn throttle_key(by: By, counts: &ThrottleCounts) -> Option<String> {
    let class = ClassKey::parse(&counts.class);
    match by {
        By::Service => Some(counts.service.clone()),
        By::Nid => class.nid.map(str::to_owned),
        By::Job => class.job.map(str::to_owned),
        By::Uid => class.uid.map(|uid| uid.to_string()),
        By::Target | By::Directory => None,
    }
}

/// The user of a job with a name that ends with a dot and a user id, such as `dd.1000`.
fn uid_of_job(job: &str) -> Option<u32> {
    let (_, uid) = job.rsplit_once('.')?;
    let is_number = !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| uid.parse().ok()).flatten()
}

/// Number of values in [`operation_values`].
const VALUES: usize = 6;

fn operation_values(o: &OperationCounts) -> [u64; VALUES] {
    [
        o.reads,
        o.writes,
        o.metadata,
        o.read_bytes,
        o.written_bytes,
        o.busy,
    ]
}

/// The sums of a key over processes, targets and partitions.
#[derive(Default)]
struct Sums {
    operations: Option<Counts<VALUES>>,
    queue: Option<WaitSums>,
    locks: Option<WaitSums>,
    throttled: Option<WaitSums>,
    rules: BTreeSet<String>,
}

#[derive(Default)]
struct WaitSums {
    /// Number and total length of waits.
    counts: Counts<2>,
    waiting: u64,
    active: Option<u64>,
}

/// Counts of an interval, and their rates. The rates are summed separately, because the intervals
/// of the processes differ a little.
struct Counts<const N: usize> {
    total: [u64; N],
    per_second: [f64; N],
}

impl<const N: usize> Default for Counts<N> {
    fn default() -> Counts<N> {
        Counts {
            total: [0; N],
            per_second: [0.0; N],
        }
    }
}

impl<const N: usize> Counts<N> {
    fn add(&mut self, change: [u64; N], seconds: f64) {
        for (i, change) in change.into_iter().enumerate() {
            self.total[i] = self.total[i].saturating_add(change);
            self.per_second[i] += change as f64 / seconds;
        }
    }
}

impl Sums {
    fn load(self, key: String) -> Load {
        Load {
            key,
            operations: self.operations.map(operations),
            queue: self.queue.map(waits),
            locks: self.locks.map(waits),
            throttled: self.throttled.map(waits),
            rules: self.rules,
        }
    }
}

fn operations(counts: Counts<VALUES>) -> Operations {
    let [reads, writes, metadata, read_bytes, written_bytes, busy] = counts.total;
    let total = OperationNumbers {
        reads,
        writes,
        metadata,
        read_bytes,
        written_bytes,
    };
    let [reads_s, writes_s, metadata_s, read_bytes, written_bytes, _] = counts.per_second;
    Operations {
        total,
        per_second: OperationNumbers {
            reads: reads_s,
            writes: writes_s,
            metadata: metadata_s,
            read_bytes,
            written_bytes,
        },
        latency_usec: mean(busy, reads.saturating_add(writes).saturating_add(metadata)),
    }
}

fn waits(sums: WaitSums) -> Waits {
    let [total, length] = sums.counts.total;
    Waits {
        total,
        per_second: sums.counts.per_second[0],
        wait_usec: mean(length, total),
        waiting: sums.waiting,
        active: sums.active,
    }
}

fn mean(sum: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| sum as f64 / count as f64)
}

#[cfg(test)]
#[path = "rates_tests.rs"]
mod tests;
