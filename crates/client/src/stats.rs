//! Statistics of a mount, with Lustre's names: `llite.*.stats` and `llite.*.read_ahead_stats`.

use crate::data::PAGE_SIZE;
use params::{Group, Operations, Param, Registry, Row, Stats, StatsTable, Sums, Tally, USECS, as_usecs};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

/// A row of `llite.*.stats`; the order is that of [`OPERATIONS`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    ReadBytes,
    WriteBytes,
    Read,
    Write,
    Open,
    Close,
    Seek,
    Fsync,
    Readdir,
    Setattr,
    Truncate,
    Flock,
    Getattr,
    Link,
    Unlink,
    Symlink,
    Mkdir,
    Rmdir,
    Mknod,
    Rename,
    Statfs,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
}

/// Lustre's names and units.
const OPERATIONS: Operations = &[
    ("read_bytes", "bytes"),
    ("write_bytes", "bytes"),
    ("read", USECS),
    ("write", USECS),
    ("open", USECS),
    ("close", USECS),
    ("seek", USECS),
    ("fsync", USECS),
    ("readdir", USECS),
    ("setattr", USECS),
    ("truncate", USECS),
    ("flock", USECS),
    ("getattr", USECS),
    ("link", USECS),
    ("unlink", USECS),
    ("symlink", USECS),
    ("mkdir", USECS),
    ("rmdir", USECS),
    ("mknod", USECS),
    ("rename", USECS),
    ("statfs", USECS),
    ("setxattr", USECS),
    ("getxattr", USECS),
    ("listxattr", USECS),
    ("removexattr", USECS),
    ("fallocate", USECS),
];

/// The statistics of a mount.
#[derive(Debug)]
pub(crate) struct MountStats {
    operations: StatsTable,
    pub(crate) read_ahead: ReadAheadStats,
}

impl Default for MountStats {
    fn default() -> MountStats {
        MountStats {
            operations: StatsTable::new(OPERATIONS),
            read_ahead: ReadAheadStats::default(),
        }
    }
}

impl MountStats {
    /// Starts to measure an operation. Its time is recorded when the timer is dropped, whether the
    /// operation succeeds or not.
    pub(crate) fn time(&self, operation: Operation) -> Timer<'_> {
        Timer {
            stats: self,
            operation,
            started_at: Instant::now(),
        }
    }

    /// Records the number of bytes of a read or write.
    pub(crate) fn add_bytes(&self, operation: Operation, bytes: usize) {
        self.operations.add(&[(operation as usize, bytes as u64)]);
    }

    /// Registers `stats` and `read_ahead_stats` below `llite.NAME`, until the group is dropped.
    pub(crate) fn register_params(self: &Arc<Self>, registry: &Registry, name: &str) -> Group {
        let mut group = registry.group(format!("llite.{name}"));
        let table = |show: fn(&MountStats) -> Stats, clear: fn(&MountStats)| {
            let (shown, cleared) = (self.clone(), self.clone());
            Param::read_write(
                move || show(&shown),
                move |_| {
                    clear(&cleared);
                    Ok(())
                },
            )
        };
        group
            .add(
                "stats",
                table(|s| s.operations.stats(), |s| s.operations.clear())
                    .about("operations of programs: their times, and bytes read and written; any write clears them"),
            )
            .add(
                "read_ahead_stats",
                table(|s| s.read_ahead.stats(), |s| s.read_ahead.clear()).about(
                    "pages that reads found cached or in flight (hits), pages that they requested (misses), pages read ahead; any write clears the counts",
                ),
            );
        group
    }
}

/// Measures an operation until it is dropped.
#[must_use]
pub(crate) struct Timer<'a> {
    stats: &'a MountStats,
    operation: Operation,
    started_at: Instant,
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        let time = as_usecs(self.started_at.elapsed());
        self.stats.operations.add(&[(self.operation as usize, time)]);
    }
}

/// Statistics of read-ahead, in pages.
#[derive(Debug)]
pub(crate) struct ReadAheadStats {
    since: Mutex<SystemTime>,
    /// Pages of reads that the cache had or that were in flight.
    hits: AtomicU64,
    /// Pages of reads that a read had to request.
    misses: AtomicU64,
    /// The size of each read-ahead.
    read_ahead: Tally,
}

impl Default for ReadAheadStats {
    fn default() -> ReadAheadStats {
        ReadAheadStats {
            since: Mutex::new(SystemTime::now()),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            read_ahead: Tally::default(),
        }
    }
}

/// Number of pages that a range touches.
fn pages(range: &Range<u64>) -> u64 {
    range
        .end
        .div_ceil(PAGE_SIZE)
        .saturating_sub(range.start / PAGE_SIZE)
}

impl ReadAheadStats {
    /// Records a read of `range`, of which it requested `missed` bytes from the server.
    pub(crate) fn add_read(&self, range: &Range<u64>, missed: u64) {
        let misses = missed.div_ceil(PAGE_SIZE).min(pages(range));
        self.misses.fetch_add(misses, Relaxed);
        self.hits.fetch_add(pages(range) - misses, Relaxed);
    }

    /// Records a read-ahead.
    pub(crate) fn add_read_ahead(&self, range: &Range<u64>) {
        self.read_ahead.add(pages(range));
    }

    fn clear(&self) {
        *self.since.lock() = SystemTime::now();
        self.hits.store(0, Relaxed);
        self.misses.store(0, Relaxed);
        self.read_ahead.clear();
    }

    fn stats(&self) -> Stats {
        let row = |name, sums| Row {
            name,
            unit: "pages",
            sums,
            buckets: None,
        };
        Stats {
            since: *self.since.lock(),
            rows: vec![
                row("hits", Sums::of_count(self.hits.load(Relaxed))),
                row("misses", Sums::of_count(self.misses.load(Relaxed))),
                row("readahead_pages", self.read_ahead.sums()),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MountStats, OPERATIONS, Operation};

    #[test]
    fn operations_are_recorded_in_the_row_of_their_name() {
        let stats = MountStats::default();
        drop(stats.time(Operation::Fallocate));
        stats.add_bytes(Operation::WriteBytes, 4096);
        assert_eq!(OPERATIONS.len(), Operation::Fallocate as usize + 1);
        let rows = stats.operations.stats().rows;
        let named = |name| rows.iter().find(|row| row.name == name).map(|row| row.sums);
        assert_eq!(named("fallocate").map(|sums| sums.count), Some(1));
        assert_eq!(named("write_bytes").map(|sums| sums.sum), Some(4096));
        assert_eq!(named("mkdir").map(|sums| sums.count), Some(0));
    }

    #[test]
    fn pages_of_a_read_are_hits_or_misses() {
        let stats = MountStats::default().read_ahead;
        stats.add_read(&(0..8192), 0);
        stats.add_read(&(4095..8193), 4096);
        stats.add_read_ahead(&(8192..1 << 20));
        let text = stats.stats().to_string();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .skip(3)
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(
            lines,
            [
                vec!["hits", "4", "samples", "[pages]"],
                vec!["misses", "1", "samples", "[pages]"],
                vec![
                    "readahead_pages",
                    "1",
                    "samples",
                    "[pages]",
                    "254",
                    "254",
                    "254",
                    "64516"
                ],
            ]
        );
    }
}
