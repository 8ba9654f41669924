//! How phases went from their beginnings to their ends: rate and memory in equal windows of their time, so that a rate that
//! falls or memory that grows is seen. A task counts its operations in slices of time that become longer as it goes on; of a
//! phase that are [`PARTS`] equal parts of it; and all phases of an operation one after the other have slices that become longer
//! too. So a run of any length takes the same little memory for this.

use crate::Figure;
use crate::memory::Sample;
use std::fmt::Write;
use std::time::Duration;

/// Parts of a phase that are kept. Most numbers of windows divide them.
const PARTS: usize = 240;
/// Seconds of a slice of phases that took no time to speak of.
const FINEST: f64 = 1e-6;
/// Slices of time at most, in which a task counts, and of all phases: when there would be more, each two become one.
const SLICES: usize = 1024;
/// The first slices are 2^20 ns, about a millisecond.
const FIRST_SHIFT: u32 = 20;

/// When a task's operations were done.
pub(crate) struct Timeline {
    shift: u32,
    slices: Vec<u64>,
}

impl Timeline {
    /// Of no operations yet.
    pub(crate) fn new() -> Timeline {
        Timeline {
            shift: FIRST_SHIFT,
            slices: Vec::with_capacity(SLICES),
        }
    }

    /// One operation was done, so long after the beginning.
    pub(crate) fn add(&mut self, at: Duration) {
        let nanoseconds = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        while nanoseconds >> self.shift >= SLICES as u64 {
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

    /// Operations in each part of so many seconds.
    pub(crate) fn parts(&self, seconds: f64) -> Vec<f64> {
        let slice = (1u64 << self.shift) as f64 / 1e9;
        let pieces = self.slices.iter().enumerate().map(|(i, count)| {
            let left = (seconds - i as f64 * slice).max(0.0);
            (slice.min(left), *count as f64)
        });
        let done = self.slices.len() as f64 * slice;
        let rest = ((seconds - done).max(0.0), 0.0);
        spread(&pieces.chain([rest]).collect::<Vec<_>>(), PARTS)
    }
}

/// How one phase went, by equal parts of its time.
#[derive(Default)]
pub(crate) struct Parts {
    /// Operations in each part: each task's in this part of its own time.
    operations: Vec<f64>,
    /// Each task's operations per second in this part of its own time, added up.
    rates: Vec<f64>,
    /// Bytes that the tasks' own processes had in memory at the end of each part.
    own: Vec<f64>,
    /// The same of the processes that were named.
    others: Vec<f64>,
}

impl Parts {
    /// What a task has done in each part of so many seconds.
    pub(crate) fn add_task(&mut self, parts: &[f64], seconds: f64) {
        let rate = |operations: &f64| operations * PARTS as f64 / seconds.max(f64::MIN_POSITIVE);
        add(&mut self.rates, parts.iter().map(rate));
        add(&mut self.operations, parts.iter().copied());
    }

    /// What a process had in memory.
    pub(crate) fn add_memory(&mut self, own: &[f64], others: &[f64]) {
        add(&mut self.own, own.iter().copied());
        add(&mut self.others, others.iter().copied());
    }

    /// Bytes in memory at the end: of the tasks' own processes, and of those that were named.
    pub(crate) fn resident(&self) -> (u64, u64) {
        let last = |values: &[f64]| values.last().map_or(0, |v| *v as u64);
        (last(&self.own), last(&self.others))
    }

    /// The course of a phase that took so long.
    pub(crate) fn over(&self, seconds: f64) -> Course {
        let at = |values: &[f64], i: usize| values.get(i).copied().unwrap_or(0.0);
        let part = |i| Slice {
            operations: at(&self.operations, i),
            weighed: at(&self.rates, i) * seconds / PARTS as f64,
            own: at(&self.own, i),
            others: at(&self.others, i),
        };
        Course {
            width: (seconds / PARTS as f64).max(FINEST),
            seconds,
            slices: (0..PARTS).map(part).collect(),
        }
    }
}

/// How phases of an operation went, one after the other, by equal slices of their time.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// Seconds of a slice.
    width: f64,
    /// Of all; the last slice may reach beyond.
    seconds: f64,
    slices: Vec<Slice>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    operations: f64,
    /// The rate, times the seconds in which it was so.
    weighed: f64,
    /// Bytes in memory at its end.
    own: f64,
    others: f64,
}

impl Course {
    /// What came next.
    pub(crate) fn join(&mut self, next: &Course) {
        for (width, slice) in next.pieces() {
            self.push(width, slice);
        }
    }

    fn push(&mut self, seconds: f64, piece: Slice) {
        let (from, to) = (self.seconds, self.seconds + seconds);
        self.seconds = to;
        while to > self.width * SLICES as f64 {
            let both = |two: &[Slice]| {
                let sum = |of: fn(&Slice) -> f64| two.iter().map(of).sum();
                Slice {
                    operations: sum(|s| s.operations),
                    weighed: sum(|s| s.weighed),
                    ..two.last().copied().unwrap_or_default()
                }
            };
            self.slices = self.slices.chunks(2).map(both).collect();
            self.width *= 2.0;
        }
        let first = (from / self.width) as usize;
        let last = ((to / self.width) as usize).max(first);
        if self.slices.len() <= last {
            self.slices.resize(last + 1, Slice::default());
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
            slice.weighed += piece.weighed * share;
            (slice.own, slice.others) = (piece.own, piece.others);
        }
    }

    /// Each slice with the time that it has.
    fn pieces(&self) -> impl Iterator<Item = (f64, Slice)> + '_ {
        let width = |i: usize| (self.seconds - i as f64 * self.width).clamp(0.0, self.width);
        self.slices
            .iter()
            .enumerate()
            .map(move |(i, slice)| (width(i), *slice))
    }
}

/// Memory in each part: of the own process, and of the others.
pub(crate) fn memory_parts(samples: &[Sample], seconds: f64) -> (Vec<f64>, Vec<f64>) {
    // What was seen counts until something else is.
    let ends = samples.iter().skip(1).map(|s| s.at).chain([seconds]);
    let pieces = |of: fn(&Sample) -> u64| {
        let piece = |(s, end): (&Sample, f64)| ((end - s.at).max(0.0), of(s) as f64);
        at_ends(
            &samples.iter().zip(ends.clone()).map(piece).collect::<Vec<_>>(),
            PARTS,
        )
    };
    (pieces(|s| s.own), pieces(|s| s.others))
}

fn add(to: &mut Vec<f64>, values: impl ExactSizeIterator<Item = f64>) {
    to.resize(values.len().max(to.len()), 0.0);
    to.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Pieces of time with an amount each, cut anew into `count` equal ones.
fn spread(pieces: &[(f64, f64)], count: usize) -> Vec<f64> {
    let each = pieces.iter().map(|(width, _)| width).sum::<f64>() / count as f64;
    let mut out = vec![0.0; count];
    if each <= 0.0 {
        // No time to speak of, yet something may have been done.
        out.iter_mut()
            .take(1)
            .for_each(|first| *first = pieces.iter().map(|(_, a)| a).sum());
        return out;
    }
    let mut at = 0.0;
    for (width, amount) in pieces {
        let (from, to) = (at / each, (at + width) / each);
        at += width;
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

/// Pieces of time with a value each: those at the ends of `count` equal ones.
fn at_ends(pieces: &[(f64, f64)], count: usize) -> Vec<f64> {
    let each = pieces.iter().map(|(width, _)| width).sum::<f64>() / count as f64;
    let mut out = Vec::with_capacity(count);
    let mut at = 0.0;
    for (width, value) in pieces {
        at += width;
        // Sums of widths are a little off.
        while out.len() < count && at >= each * (out.len() as f64 + 1.0 - 1e-6) {
            out.push(*value);
        }
    }
    out.resize(count, pieces.last().map_or(0.0, |(_, value)| *value));
    out
}

/// One of the equal windows into which all phases of an operation together are cut.
#[derive(Clone, Debug)]
pub struct Window {
    /// Which operation.
    pub operation: &'static str,
    /// Tasks that did it.
    pub tasks: usize,
    /// Which window, from 1 on.
    pub number: usize,
    /// Operations of all tasks.
    pub operations: u64,
    /// How long it was.
    pub seconds: f64,
    /// Operations per second: each task's in this window of its own time, added up.
    pub rate: f64,
    /// Bytes in memory at its end: of the tasks' own processes.
    pub own_resident: u64,
    /// The same of the processes that were named.
    pub others_resident: u64,
}

/// The time of each operation, over all its phases one after the other, in `count` equal windows; nothing of one that was not
/// done so often.
pub fn windows(figures: &[Figure], count: usize) -> Vec<Window> {
    let mut groups: Vec<(&Figure, Course)> = Vec::new();
    for figure in figures.iter().filter(|f| f.operations > 0) {
        let Some(whole) = &figure.so_far else { continue };
        match groups.iter_mut().find(|(first, _)| figure.is_like(first)) {
            Some((_, course)) => course.join(&whole.course),
            None => groups.push((figure, whole.course.clone())),
        }
    }
    let of = |(first, course): &(&Figure, Course)| of_course(first, course, count);
    groups.iter().flat_map(of).collect()
}

fn of_course(first: &Figure, course: &Course, count: usize) -> Vec<Window> {
    if count == 0 {
        return Vec::new();
    }
    let pieces = |of: fn(&Slice) -> f64| {
        course
            .pieces()
            .map(|(width, s)| (width, of(&s)))
            .collect::<Vec<_>>()
    };
    let operations = spread(&pieces(|s| s.operations), count);
    if operations.iter().sum::<f64>().round() < count as f64 {
        return Vec::new();
    }
    let seconds = course.seconds / count as f64;
    let rates = spread(&pieces(|s| s.weighed), count);
    let own = at_ends(&pieces(|s| s.own), count);
    let others = at_ends(&pieces(|s| s.others), count);
    let at = |values: &[f64], i: usize| values.get(i).copied().unwrap_or(0.0);
    let window = |i| Window {
        operation: first.operation,
        tasks: first.tasks,
        number: i + 1,
        operations: at(&operations, i).round() as u64,
        seconds,
        rate: at(&rates, i) / seconds,
        own_resident: at(&own, i) as u64,
        others_resident: at(&others, i) as u64,
    };
    (0..count).map(window).collect()
}

/// The windows in words; empty: none are wanted.
pub(crate) fn text(figures: &[Figure], count: usize) -> String {
    if count == 0 {
        return String::new();
    }
    let mut out = String::from(
        "\nWINDOWS of equal time, and memory at the end of each (MiB):\n   Operation               tasks  window        seconds      ops/sec  of the 1st  own process  named ones\n",
    );
    let mut first = 0.0;
    for w in windows(figures, count) {
        if w.number == 1 {
            first = w.rate;
        }
        // Writing to a string does not fail.
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
    use crate::figure::{Latencies, Quantiles, Sum};

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 0.02 * b.abs().max(1.0)
    }

    /// A task that is fast for half of the time, and then half as fast.
    fn slowing(seconds: f64) -> Vec<f64> {
        let mut line = Timeline::new();
        let mut at = 0.0;
        while at < seconds {
            line.add(Duration::from_secs_f64(at));
            at += if at < seconds / 2.0 { 0.001 } else { 0.002 };
        }
        line.parts(seconds)
    }

    fn figure(seconds: f64, parts: &Parts) -> Figure {
        Figure {
            operation: "create",
            tasks: 1,
            iteration: 0,
            operations: 1,
            seconds,
            cpu_seconds: 0.0,
            others_cpu_seconds: 0.0,
            task_rates: vec![1.0],
            latencies: Quantiles::default(),
            resident: parts.resident(),
            so_far: Some(Box::new(Sum {
                latencies: Latencies::new(),
                course: parts.over(seconds),
            })),
        }
    }

    #[test]
    fn a_rate_that_falls_is_seen_however_long_it_took() {
        for seconds in [0.5, 8.0, 300.0] {
            let mut parts = Parts::default();
            parts.add_task(&slowing(seconds), seconds);
            parts.add_task(&slowing(seconds), seconds);
            let rates: Vec<f64> = windows(&[figure(seconds, &parts)], 4)
                .iter()
                .map(|w| w.rate)
                .collect();
            let expected = [2000.0, 2000.0, 1000.0, 1000.0];
            assert!(rates.iter().zip(expected).all(|(a, b)| near(*a, b)), "{rates:?}");
        }
    }

    #[test]
    fn what_was_done_less_often_than_there_are_windows_has_none() {
        let mut parts = Parts::default();
        parts.add_task(&[4.0 / PARTS as f64; PARTS], 2.0);
        let count = |n| windows(&[figure(2.0, &parts)], n).len();
        assert_eq!((count(4), count(5)), (4, 0));
    }

    #[test]
    fn windows_go_over_all_phases_of_an_operation_and_end_with_its_memory() {
        let phase = |rate: f64, memory: f64| {
            let mut parts = Parts::default();
            parts.add_task(&[rate * 2.0 / PARTS as f64; PARTS], 2.0);
            let sample = |at, own| Sample { at, own, others: 1 };
            let (own, others) = memory_parts(&[sample(0.0, 5), sample(1.5, memory as u64)], 2.0);
            parts.add_memory(&own, &others);
            figure(2.0, &parts)
        };
        let mut figures = [phase(100.0, 7.0), phase(50.0, 9.0)];
        let seen = |figures: &[Figure]| {
            let of = |w: &Window| (w.number, w.rate.round() as u64, w.own_resident);
            windows(figures, 4).iter().map(of).collect::<Vec<_>>()
        };
        let expected = [(1, 100, 5), (2, 100, 7), (3, 50, 5), (4, 50, 9)];
        assert_eq!(seen(&figures), expected);
        // Also when the last one has them all.
        let [first, second] = &mut figures;
        first.take_over(&mut []);
        second.take_over(std::slice::from_mut(first));
        assert!(first.so_far.is_none());
        assert_eq!(seen(&figures), expected);
        assert!(text(&figures, 4).lines().count() == 7 && text(&figures, 0).is_empty());
    }

    #[test]
    fn many_phases_take_as_much_memory_as_few_and_none_is_lost() {
        let phase = |rate: f64, seconds: f64| {
            let mut parts = Parts::default();
            parts.add_task(&[rate * seconds / PARTS as f64; PARTS], seconds);
            parts.over(seconds)
        };
        let mut all = phase(100.0, 0.01);
        for i in 1..2000 {
            all.join(&phase(if i < 1000 { 100.0 } else { 50.0 }, 0.01));
        }
        assert!(all.slices.len() <= SLICES + 1);
        let figure = figure(20.0, &Parts::default());
        let seen: Vec<(u64, u64)> = of_course(&figure, &all, 4)
            .iter()
            .map(|w| (w.operations, w.rate.round() as u64))
            .collect();
        assert_eq!(seen, [(500, 100), (500, 100), (250, 50), (250, 50)]);
    }

    #[test]
    fn nothing_is_lost_where_pieces_do_not_fit() {
        for count in [1, 3, 7, 10] {
            let cut = spread(
                &[(0.3, 5.0), (0.0, 2.0), (0.45, 11.0), (1.1, 0.0), (0.02, 3.0)],
                count,
            );
            assert!(near(cut.iter().sum::<f64>(), 21.0), "{cut:?}");
        }
    }
}
