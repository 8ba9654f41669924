//! Rates and memory over the time of an operation, in equal windows, so that falling rates and
//! growing memory become visible.
//!
//! A task counts its operations in time slices. At the end of a phase, the slices become [`PARTS`]
//! equal parts, and all phases of an operation together form a [`TimeSeries`]. When a task or
//! series has too many slices, pairs of them merge: memory use does not depend on the length of a
//! run.

use crate::Figure;
use crate::memory::MemorySample;
use std::fmt::Write;
use std::time::Duration;

/// Number of equal parts of a phase. Most numbers of windows divide it.
const PARTS: usize = 240;
/// The shortest slice, for phases without measurable duration, seconds.
const SLICE_SECONDS_MIN: f64 = 1e-6;
/// The most slices of a task; a series may have one more. Beyond that, pairs of slices merge.
const SLICES_MAX: usize = 1024;
/// Initial [`Timeline::shift`]: a slice of 2^20 ns is about a millisecond long.
const FIRST_SHIFT: u32 = 20;

/// Counts a task's operations in time slices.
pub(crate) struct Timeline {
    /// A slice is 2^shift nanoseconds long.
    shift: u32,
    /// Number of operations that ended in each slice.
    slices: Vec<u64>,
}

impl Timeline {
    /// A timeline without operations.
    pub(crate) fn new() -> Timeline {
        Timeline {
            shift: FIRST_SHIFT,
            slices: Vec::with_capacity(SLICES_MAX),
        }
    }

    /// Counts an operation that ended at `time` since the beginning of the phase.
    pub(crate) fn add(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        while nanoseconds >> self.shift >= SLICES_MAX as u64 {
            self.slices = self.slices.chunks(2).map(|two| two.iter().sum()).collect();
            self.shift += 1;
        }
        let slice = (nanoseconds >> self.shift) as usize;
        if self.slices.len() <= slice {
            self.slices.resize(slice + 1, 0);
        }
        if let Some(count) = self.slices.get_mut(slice) {
            *count += 1;
        }
    }

    /// The operations in each of [`PARTS`] equal parts of `seconds`.
    pub(crate) fn parts(&self, seconds: f64) -> Vec<f64> {
        let slice = (1u64 << self.shift) as f64 / 1e9;
        let pieces = self.slices.iter().enumerate().map(|(i, count)| {
            let remaining = (seconds - i as f64 * slice).max(0.0);
            (slice.min(remaining), *count as f64)
        });
        let covered = self.slices.len() as f64 * slice;
        let rest = ((seconds - covered).max(0.0), 0.0);
        resample(&pieces.chain([rest]).collect::<Vec<_>>(), PARTS)
    }
}

/// Rates and memory of one phase in equal parts of its time.
#[derive(Default)]
pub(crate) struct PhaseParts {
    /// Operations in each part, summed over tasks. Each task's own duration is divided into parts.
    operations: Vec<f64>,
    /// Operations per second in each part, summed over tasks.
    rates: Vec<f64>,
    /// Resident bytes of the tasks' processes at the end of each part.
    own: Vec<f64>,
    /// Resident bytes of the subject's processes at the end of each part.
    others: Vec<f64>,
}

impl PhaseParts {
    /// Adds the operations of a task that took `seconds`.
    pub(crate) fn add_task(&mut self, parts: &[f64], seconds: f64) {
        let rate = |operations: &f64| operations * PARTS as f64 / seconds.max(f64::MIN_POSITIVE);
        add(&mut self.rates, parts.iter().map(rate));
        add(&mut self.operations, parts.iter().copied());
    }

    /// Adds the memory of a process with tasks, and of the subject's processes: resident bytes at
    /// the end of each part.
    pub(crate) fn add_memory(&mut self, own: &[f64], others: &[f64]) {
        add(&mut self.own, own.iter().copied());
        add(&mut self.others, others.iter().copied());
    }

    /// Resident bytes at the end: of the tasks' processes, and of the subject's processes.
    pub(crate) fn resident(&self) -> (u64, u64) {
        let last = |values: &[f64]| values.last().map_or(0, |v| *v as u64);
        (last(&self.own), last(&self.others))
    }

    /// The time series of a phase that took `seconds`.
    pub(crate) fn series(&self, seconds: f64) -> TimeSeries {
        let value_at = |values: &[f64], i: usize| values.get(i).copied().unwrap_or(0.0);
        let part = |i| TimeSlice {
            operations: value_at(&self.operations, i),
            rate_seconds: value_at(&self.rates, i) * seconds / PARTS as f64,
            own: value_at(&self.own, i),
            others: value_at(&self.others, i),
        };
        TimeSeries {
            width: (seconds / PARTS as f64).max(SLICE_SECONDS_MIN),
            seconds,
            slices: (0..PARTS).map(part).collect(),
        }
    }
}

/// Rates and memory of consecutive phases of an operation, in equal slices.
#[derive(Clone, Debug)]
pub(crate) struct TimeSeries {
    /// Length of a slice, seconds.
    width: f64,
    /// Total length, seconds; the last slice may extend beyond it.
    seconds: f64,
    slices: Vec<TimeSlice>,
}

/// One slice of a series.
#[derive(Clone, Copy, Debug, Default)]
struct TimeSlice {
    /// Number of operations. It need not be whole, because resampling divides the operations of an
    /// earlier slice among the slices that overlap it.
    operations: f64,
    /// The rate, summed over tasks, times the length of the slice in seconds.
    rate_seconds: f64,
    /// Resident bytes of the tasks' processes at the end of the slice.
    own: f64,
    /// Resident bytes of the subject's processes at the end of the slice.
    others: f64,
}

impl TimeSeries {
    /// Appends the series of the next phase.
    pub(crate) fn append(&mut self, next: &TimeSeries) {
        for (width, slice) in next.pieces() {
            self.push(width, slice);
        }
    }

    fn push(&mut self, seconds: f64, piece: TimeSlice) {
        let (from, to) = (self.seconds, self.seconds + seconds);
        self.seconds = to;
        while to > self.width * SLICES_MAX as f64 {
            let both = |two: &[TimeSlice]| {
                let sum = |value: fn(&TimeSlice) -> f64| two.iter().map(value).sum();
                TimeSlice {
                    operations: sum(|s| s.operations),
                    rate_seconds: sum(|s| s.rate_seconds),
                    ..two.last().copied().unwrap_or_default()
                }
            };
            self.slices = self.slices.chunks(2).map(both).collect();
            self.width *= 2.0;
        }
        let first = (from / self.width) as usize;
        let last = ((to / self.width) as usize).max(first);
        if self.slices.len() <= last {
            self.slices.resize(last + 1, TimeSlice::default());
        }
        for (i, slice) in self.slices.iter_mut().enumerate().skip(first) {
            let begins = i as f64 * self.width;
            let inside = (to.min(begins + self.width) - from.max(begins)).max(0.0);
            let share = match seconds > 0.0 {
                true => inside / seconds,
                false if i == first => 1.0,
                false => 0.0,
            };
            slice.operations += piece.operations * share;
            slice.rate_seconds += piece.rate_seconds * share;
            (slice.own, slice.others) = (piece.own, piece.others);
        }
    }

    /// The slices with their lengths.
    fn pieces(&self) -> impl Iterator<Item = (f64, TimeSlice)> + '_ {
        let width = |i: usize| (self.seconds - i as f64 * self.width).clamp(0.0, self.width);
        self.slices
            .iter()
            .enumerate()
            .map(move |(i, slice)| (width(i), *slice))
    }
}

/// Resident bytes at the end of each part: of this process, and of the subject's processes.
pub(crate) fn memory_parts(samples: &[MemorySample], seconds: f64) -> (Vec<f64>, Vec<f64>) {
    // A sample is valid until the next one.
    let ends = samples.iter().skip(1).map(|s| s.seconds).chain([seconds]);
    let pieces = |value: fn(&MemorySample) -> u64| {
        let piece = |(s, end): (&MemorySample, f64)| ((end - s.seconds).max(0.0), value(s) as f64);
        values_at_ends(
            &samples.iter().zip(ends.clone()).map(piece).collect::<Vec<_>>(),
            PARTS,
        )
    };
    (pieces(|s| s.own), pieces(|s| s.others))
}

/// Adds the values to the sums in the same places; missing sums count as 0.
fn add(to: &mut Vec<f64>, values: impl ExactSizeIterator<Item = f64>) {
    to.resize(values.len().max(to.len()), 0.0);
    to.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Redistributes pieces of (length, amount) to `count` pieces of equal length.
fn resample(pieces: &[(f64, f64)], count: usize) -> Vec<f64> {
    let length = pieces.iter().map(|(width, _)| width).sum::<f64>() / count as f64;
    let mut out = vec![0.0; count];
    if length <= 0.0 {
        // Without measurable duration, the first piece gets everything.
        out.iter_mut()
            .take(1)
            .for_each(|first| *first = pieces.iter().map(|(_, a)| a).sum());
        return out;
    }
    let mut covered = 0.0;
    for (width, amount) in pieces {
        let (from, to) = (covered / length, (covered + width) / length);
        covered += width;
        let first = (from as usize).min(count.saturating_sub(1));
        for (i, sum) in out.iter_mut().enumerate().skip(first) {
            let inside = to.min(i as f64 + 1.0) - from.max(i as f64);
            match to > from {
                false => *sum += amount,
                true if inside > 0.0 => *sum += amount * inside / (to - from),
                true => {}
            }
            if to <= i as f64 + 1.0 {
                break;
            }
        }
    }
    out
}

/// The values at the ends of `count` equal pieces, from pieces of (length, value).
fn values_at_ends(pieces: &[(f64, f64)], count: usize) -> Vec<f64> {
    let length = pieces.iter().map(|(width, _)| width).sum::<f64>() / count as f64;
    let mut out = Vec::with_capacity(count);
    let mut covered = 0.0;
    for (width, value) in pieces {
        covered += width;
        // Tolerate rounding errors.
        while out.len() < count && covered >= length * (out.len() as f64 + 1.0 - 1e-6) {
            out.push(*value);
        }
    }
    out.resize(count, pieces.last().map_or(0.0, |(_, value)| *value));
    out
}

/// One of the equal windows of the time of an operation.
#[derive(Clone, Debug)]
pub struct Window {
    /// The operation.
    pub operation: &'static str,
    /// Number of tasks.
    pub tasks: usize,
    /// Number of the window, from 1.
    pub number: usize,
    /// Operations of all tasks in the window.
    pub operations: u64,
    /// Length of the window, seconds.
    pub seconds: f64,
    /// Operations per second: the sum of the tasks' rates in this window. For each task, the
    /// windows divide its own duration.
    pub rate: f64,
    /// Resident bytes of the tasks' processes at the end of the window.
    pub own_resident: u64,
    /// Resident bytes of the subject's processes at the end of the window.
    pub others_resident: u64,
}

/// Divides the time of each operation and number of tasks, over all phases, into `count` equal
/// windows. Skips operations with fewer executions than windows.
pub fn windows(figures: &[Figure], count: usize) -> Vec<Window> {
    let mut groups: Vec<(&Figure, TimeSeries)> = Vec::new();
    for figure in figures.iter().filter(|f| f.operations > 0) {
        let Some(totals) = &figure.totals else { continue };
        match groups.iter_mut().find(|(first, _)| figure.has_same_load(first)) {
            Some((_, series)) => series.append(&totals.series),
            None => groups.push((figure, totals.series.clone())),
        }
    }
    let windows_of = |(first, series): &(&Figure, TimeSeries)| series_windows(first, series, count);
    groups.iter().flat_map(windows_of).collect()
}

fn series_windows(first: &Figure, series: &TimeSeries, count: usize) -> Vec<Window> {
    if count == 0 {
        return Vec::new();
    }
    let pieces = |value: fn(&TimeSlice) -> f64| {
        series
            .pieces()
            .map(|(width, s)| (width, value(&s)))
            .collect::<Vec<_>>()
    };
    let operations = resample(&pieces(|s| s.operations), count);
    if operations.iter().sum::<f64>().round() < count as f64 {
        return Vec::new();
    }
    let seconds = series.seconds / count as f64;
    let rates = resample(&pieces(|s| s.rate_seconds), count);
    let own = values_at_ends(&pieces(|s| s.own), count);
    let others = values_at_ends(&pieces(|s| s.others), count);
    let value_at = |values: &[f64], i: usize| values.get(i).copied().unwrap_or(0.0);
    let window = |i| Window {
        operation: first.operation,
        tasks: first.tasks,
        number: i + 1,
        operations: value_at(&operations, i).round() as u64,
        seconds,
        rate: value_at(&rates, i) / seconds,
        own_resident: value_at(&own, i) as u64,
        others_resident: value_at(&others, i) as u64,
    };
    (0..count).map(window).collect()
}

/// The table of windows; empty if `count` is 0.
pub(crate) fn windows_table(figures: &[Figure], count: usize) -> String {
    if count == 0 {
        return String::new();
    }
    let mut out = String::from(
        "\nWINDOWS of equal time, and memory at the end of each (MiB):\n   Operation               tasks  window        seconds      ops/sec  of the 1st  own process      others\n",
    );
    let mut first = 0.0;
    for w in windows(figures, count) {
        if w.number == 1 {
            first = w.rate;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "   {:<22} {:6} {:7} {:14.3} {:12.1} {:11.3} {:12.1} {:11.1}",
            w.operation,
            w.tasks,
            w.number,
            w.seconds,
            w.rate,
            w.rate / first,
            w.own_resident as f64 / f64::from(1 << 20),
            w.others_resident as f64 / f64::from(1 << 20),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Latencies, OperationTotals, Quantiles};

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() < 0.02 * b.abs().max(1.0)
    }

    /// The parts of a task that runs at half speed in the second half.
    fn parts_of_slowing_task(seconds: f64) -> Vec<f64> {
        let mut line = Timeline::new();
        let mut time = 0.0;
        while time < seconds {
            line.add(Duration::from_secs_f64(time));
            time += if time < seconds / 2.0 { 0.001 } else { 0.002 };
        }
        line.parts(seconds)
    }

    fn figure(seconds: f64, parts: &PhaseParts) -> Figure {
        Figure {
            operation: "create",
            tasks: 1,
            iteration: 0,
            operations: 1,
            seconds,
            cpu_seconds: 0.0,
            server_cpu_seconds: 0.0,
            task_rates: vec![1.0],
            latencies: Quantiles::default(),
            resident: parts.resident(),
            totals: Some(Box::new(OperationTotals {
                latencies: Latencies::new(),
                series: parts.series(seconds),
            })),
        }
    }

    #[test]
    fn falling_rate_is_visible_at_any_duration() {
        for seconds in [0.5, 8.0, 300.0] {
            let mut parts = PhaseParts::default();
            parts.add_task(&parts_of_slowing_task(seconds), seconds);
            parts.add_task(&parts_of_slowing_task(seconds), seconds);
            let rates: Vec<f64> = windows(&[figure(seconds, &parts)], 4)
                .iter()
                .map(|w| w.rate)
                .collect();
            let expected = [2000.0, 2000.0, 1000.0, 1000.0];
            assert!(
                rates.iter().zip(expected).all(|(a, b)| is_near(*a, b)),
                "{rates:?}"
            );
        }
    }

    #[test]
    fn operation_with_fewer_executions_than_windows_is_skipped() {
        let mut parts = PhaseParts::default();
        parts.add_task(&[4.0 / PARTS as f64; PARTS], 2.0);
        let count = |n| windows(&[figure(2.0, &parts)], n).len();
        assert_eq!((count(4), count(5)), (4, 0));
    }

    #[test]
    fn windows_span_all_phases_and_show_memory() {
        let phase = |rate: f64, memory: f64| {
            let mut parts = PhaseParts::default();
            parts.add_task(&[rate * 2.0 / PARTS as f64; PARTS], 2.0);
            let sample = |seconds, own| MemorySample {
                seconds,
                own,
                others: 1,
            };
            let (own, others) = memory_parts(&[sample(0.0, 5), sample(1.5, memory as u64)], 2.0);
            parts.add_memory(&own, &others);
            figure(2.0, &parts)
        };
        let mut figures = [phase(100.0, 7.0), phase(50.0, 9.0)];
        let seen = |figures: &[Figure]| {
            let shown = |w: &Window| (w.number, w.rate.round() as u64, w.own_resident);
            windows(figures, 4).iter().map(shown).collect::<Vec<_>>()
        };
        let expected = [(1, 100, 5), (2, 100, 7), (3, 50, 5), (4, 50, 9)];
        assert_eq!(seen(&figures), expected);
        // The windows stay the same after the last figure has accumulated the totals.
        let [first, second] = &mut figures;
        first.accumulate(&mut []);
        second.accumulate(std::slice::from_mut(first));
        assert!(first.totals.is_none());
        assert_eq!(seen(&figures), expected);
        assert!(windows_table(&figures, 4).lines().count() == 7 && windows_table(&figures, 0).is_empty());
    }

    #[test]
    fn series_of_many_phases_is_bounded_and_complete() {
        let phase = |rate: f64, seconds: f64| {
            let mut parts = PhaseParts::default();
            parts.add_task(&[rate * seconds / PARTS as f64; PARTS], seconds);
            parts.series(seconds)
        };
        let mut all = phase(100.0, 0.01);
        for i in 1..2000 {
            all.append(&phase(if i < 1000 { 100.0 } else { 50.0 }, 0.01));
        }
        assert!(all.slices.len() <= SLICES_MAX + 1);
        let figure = figure(20.0, &PhaseParts::default());
        let seen: Vec<(u64, u64)> = series_windows(&figure, &all, 4)
            .iter()
            .map(|w| (w.operations, w.rate.round() as u64))
            .collect();
        assert_eq!(seen, [(500, 100), (500, 100), (250, 50), (250, 50)]);
    }

    #[test]
    fn resampling_preserves_the_sum() {
        for count in [1, 3, 7, 10] {
            let cut = resample(
                &[(0.3, 5.0), (0.0, 2.0), (0.45, 11.0), (1.1, 0.0), (0.02, 3.0)],
                count,
            );
            assert!(is_near(cut.iter().sum::<f64>(), 21.0), "{cut:?}");
        }
    }
}
