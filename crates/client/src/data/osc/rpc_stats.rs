//! `osc.*.rpc_stats`: how large the reads and writes to an OST are, how many are in flight and how
//! long they take, in Lustre's format.

use crate::data::PAGE_SIZE;
use params::{Param, as_usecs, times_header};
use parking_lot::Mutex;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};

use super::Osc;

/// Number of rows of a distribution. The last row has all larger values.
const ROWS: usize = 32;

/// The distance of a table's columns.
const TABS: &str = "\t\t\t";

/// Read or write.
#[derive(Clone, Copy, Debug)]
pub(in crate::data) enum Direction {
    Read,
    Write,
}

/// Number of requests per row.
#[derive(Debug, Default)]
struct Distribution([AtomicU64; ROWS]);

impl Distribution {
    fn add(&self, row: u32) {
        self.0[(row as usize).min(ROWS - 1)].fetch_add(1, Relaxed);
    }

    fn counts(&self) -> [u64; ROWS] {
        std::array::from_fn(|row| self.0[row].load(Relaxed))
    }
}

/// The requests of one direction.
#[derive(Debug, Default)]
struct Requests {
    in_flight: AtomicU64,
    /// Row `n`: up to 2^n pages.
    pages: Distribution,
    /// Row `n`: `n` requests in flight, including this one.
    concurrent: Distribution,
    /// By the number of the first page. Row 0: page 0; row `n`: pages from 2^(n-1) on.
    offset: Distribution,
    /// Row 0: less than one microsecond; row `n`: from 2^(n-1) microseconds on.
    latency: Distribution,
}

impl Requests {
    fn distributions(&self) -> [&Distribution; 4] {
        [&self.pages, &self.concurrent, &self.offset, &self.latency]
    }
}

/// The statistics of an OST's reads and writes.
#[derive(Debug)]
pub(super) struct RpcStats {
    since: Mutex<SystemTime>,
    read: Requests,
    write: Requests,
}

impl Default for RpcStats {
    fn default() -> RpcStats {
        RpcStats {
            since: Mutex::new(SystemTime::now()),
            read: Requests::default(),
            write: Requests::default(),
        }
    }
}

/// A request in flight; its latency is recorded when this is dropped.
#[must_use]
pub(in crate::data) struct RequestTimer<'a> {
    requests: &'a Requests,
    started_at: Instant,
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        self.requests.in_flight.fetch_sub(1, Relaxed);
        self.requests
            .latency
            .add(row_from(as_usecs(self.started_at.elapsed())));
    }
}

/// The row of a value: 0 for 0, else the `n` with 2^(n-1) <= value < 2^n.
fn row_from(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// The row of a value: the smallest `n` with value <= 2^n.
fn row_up_to(value: u64) -> u32 {
    row_from(value.saturating_sub(1))
}

impl RpcStats {
    /// Records a request; it is in flight until the timer is dropped, which includes the wait for
    /// `max_rpcs_in_flight`. `start`: its first offset; `bytes`: its size.
    pub(super) fn begin(&self, direction: Direction, start: u64, bytes: u64) -> RequestTimer<'_> {
        let requests = match direction {
            Direction::Read => &self.read,
            Direction::Write => &self.write,
        };
        let in_flight = requests.in_flight.fetch_add(1, Relaxed) + 1;
        requests.pages.add(row_up_to(bytes.div_ceil(PAGE_SIZE)));
        requests
            .concurrent
            .add(u32::try_from(in_flight).unwrap_or(u32::MAX));
        requests.offset.add(row_from(start / PAGE_SIZE));
        RequestTimer {
            requests,
            started_at: Instant::now(),
        }
    }

    fn clear(&self) {
        *self.since.lock() = SystemTime::now();
        for requests in [&self.read, &self.write] {
            for distribution in requests.distributions() {
                distribution.0.iter().for_each(|count| count.store(0, Relaxed));
            }
        }
    }

    /// The value of the parameter. `dirty_pages`: pages that wait for a write.
    fn show(&self, dirty_pages: u64) -> String {
        let mut out = times_header(*self.since.lock(), ":", 25);
        let (reads, writes) = (
            self.read.in_flight.load(Relaxed),
            self.write.in_flight.load(Relaxed),
        );
        // Writing to a string does not fail.
        let _ = write!(
            out,
            "read RPCs in flight:  {reads}\nwrite RPCs in flight: {writes}\n\
             pending write pages:  {dirty_pages}\npending read pages:   0\n"
        );
        let up_to: fn(usize) -> u64 = |row| 1 << row;
        let from: fn(usize) -> u64 = |row| if row == 0 { 0 } else { 1 << (row - 1) };
        let tables = [
            ("pages per rpc         rpcs", 0, up_to),
            ("rpcs in flight        rpcs", 1, |row| row as u64),
            ("offset                rpcs", 0, from),
            ("RPC latency (us)       count", 0, from),
        ];
        let (read, write) = (self.read.distributions(), self.write.distributions());
        for ((title, first, label), sides) in tables.into_iter().zip(read.into_iter().zip(write)) {
            show_table(&mut out, title, first, label, sides);
        }
        out
    }

    /// The parameter `rpc_stats` of an OSC.
    pub(super) fn param(osc: &Weak<Osc>) -> Param {
        let (shown, cleared) = (osc.clone(), osc.clone());
        Param::read_write(
            move || {
                let osc = shown.upgrade();
                osc.map_or_else(String::new, |osc| {
                    osc.rpc_stats.show(osc.budget.dirty() / PAGE_SIZE)
                })
            },
            move |_| {
                if let Some(osc) = cleared.upgrade() {
                    osc.rpc_stats.clear();
                }
                Ok(())
            },
        )
    }
}

/// Appends a table with the rows from `first` to the last one with requests. Each row has the
/// number of requests, their percentage, and the percentage of all rows so far.
fn show_table(
    out: &mut String,
    title: &str,
    first: usize,
    label: fn(usize) -> u64,
    (read, write): (&Distribution, &Distribution),
) {
    let unit = title.rsplit(' ').next().unwrap_or_default();
    let _ = writeln!(
        out,
        "\n{TABS}read{TABS}write\n{title}   % cum % |       {unit}   % cum %"
    );
    let (read, write) = (read.counts(), write.counts());
    let totals = [read, write].map(|counts| counts.iter().sum::<u64>());
    let percent = |part: u64, total: u64| (part * 100).checked_div(total).unwrap_or(0);
    let mut sums = [0, 0];
    for row in first..ROWS {
        if sums == totals {
            break;
        }
        let counts = [read[row], write[row]];
        let cell = |side: usize, sum: u64| {
            let (count, total) = (counts[side], totals[side]);
            let (part, all) = (percent(count, total), percent(sum, total));
            format!("{count:>10} {part:>3} {all:>3}")
        };
        sums = [sums[0] + counts[0], sums[1] + counts[1]];
        let (reads, writes) = (cell(0, sums[0]), cell(1, sums[1]));
        let _ = writeln!(out, "{}:\t\t{reads}   | {writes}", label(row));
    }
}

impl Osc {
    /// Records a read or write request of these ranges, until the timer is dropped.
    pub(in crate::data) fn time_request<'r>(
        &self,
        direction: Direction,
        ranges: impl IntoIterator<Item = &'r Range<u64>>,
    ) -> RequestTimer<'_> {
        let (mut start, mut bytes) = (None, 0);
        for range in ranges {
            start = start.or(Some(range.start));
            bytes += range.end - range.start;
        }
        match direction {
            Direction::Read => self.import().note_read(bytes),
            Direction::Write => self.import().note_write(bytes),
        }
        self.rpc_stats.begin(direction, start.unwrap_or(0), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Direction, RpcStats};

    #[test]
    fn the_text_has_the_format_of_lustre() {
        let stats = RpcStats::default();
        let in_flight = stats.begin(Direction::Write, 0, 3 * 4096);
        drop(stats.begin(Direction::Write, 4 * 4096, 4096));
        drop(stats.begin(Direction::Read, 0, 1));
        let text = stats.show(7);
        assert!(text.starts_with("snapshot_time:            "), "{text}");
        let head = "read RPCs in flight:  0\nwrite RPCs in flight: 1\npending write pages:  7\npending read pages:   0\n";
        assert!(text.contains(head), "{text}");
        let pages = "\t\t\twrite\n\
                     pages per rpc         rpcs   % cum % |       rpcs   % cum %\n\
                     1:\t\t         1 100 100   |          1  50  50\n\
                     2:\t\t         0   0 100   |          0   0  50\n\
                     4:\t\t         0   0 100   |          1  50 100\n";
        assert!(text.contains(pages), "{text}");
        let concurrent = "rpcs in flight        rpcs   % cum % |       rpcs   % cum %\n\
                          1:\t\t         1 100 100   |          1  50  50\n\
                          2:\t\t         0   0 100   |          1  50 100\n";
        assert!(text.contains(concurrent), "{text}");
        let offset = "offset                rpcs   % cum % |       rpcs   % cum %\n\
                      0:\t\t         1 100 100   |          1  50  50\n\
                      1:\t\t         0   0 100   |          0   0  50\n\
                      2:\t\t         0   0 100   |          0   0  50\n\
                      4:\t\t         0   0 100   |          1  50 100\n";
        assert!(text.contains(offset), "{text}");
        assert!(
            text.contains("RPC latency (us)       count   % cum % |       count   % cum %\n"),
            "{text}"
        );
        drop(in_flight);
        stats.clear();
        let cleared = stats.show(0);
        assert!(cleared.contains("write RPCs in flight: 0\n"), "{cleared}");
        assert!(!cleared.contains("1:\t"), "{cleared}");
    }
}
