//! One object's cached bytes: extents of reference-counted buffers, with their dirty and in-flight
//! ranges.
//!
//! Pure: no lock, no network, no clock. An in-flight buffer never changes, so its checksum stays
//! right: if the program overwrites the data meanwhile, the cache replaces the buffer.

use super::ranges::RangeSet;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::ops::Range;

/// Reservations count whole pages, as grants do (docs/protocol.md, "Data (OST)").
pub(crate) const PAGE_SIZE: u64 = 4096;

/// The result of a pass of the limit's hand over one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SweepResult {
    /// Visited extents.
    pub steps: usize,
    /// The offset at which to continue; `None`: the hand has reached the object's end.
    pub next: Option<u64>,
}

/// Small sequential writes are merged into extents of up to this many bytes.
const GATHER_BYTES_MAX: usize = 64 << 10;

/// A part of a range: cached bytes or a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// Cached bytes.
    Data(Bytes),
    /// Not cached.
    Gap(Range<u64>),
}

/// Dirty data taken for one write RPC: ascending, disjoint ranges that share no page.
#[derive(Debug, Default)]
pub(super) struct Writeback {
    /// Each range with its bytes.
    pub ranges: Vec<(Range<u64>, Vec<Bytes>)>,
    /// Bytes of data.
    pub bytes: u64,
    /// Reserved bytes (grant, dirty budget) of the data's whole pages.
    pub reserved: u64,
}

#[derive(Debug)]
struct Extent {
    data: Bytes,
    /// Whether the extent is new, or was used since the last pass of [`ObjectCache::sweep`].
    used: bool,
}

impl Extent {
    fn new(data: Bytes) -> Extent {
        Extent { data, used: true }
    }

    fn len(&self) -> u64 {
        self.data.len() as u64
    }
}

/// The cache of one object.
#[derive(Debug, Default)]
pub(super) struct ObjectCache {
    /// By offset in bytes; disjoint.
    extents: BTreeMap<u64, Extent>,
    dirty: RangeSet,
    /// The ranges in flight to the server.
    writing: RangeSet,
    /// Whole pages with a reservation that no RPC carries yet.
    reserved: RangeSet,
    /// Cached bytes.
    bytes: u64,
}

/// The whole pages that a range touches.
fn pages(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE_SIZE * PAGE_SIZE..range.end.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE)
}

/// The end of an RPC that starts at `range.start` and carries at most `bytes_max`. A partial page
/// counts as a whole page.
pub(super) fn rpc_end(range: &Range<u64>, bytes_max: u64) -> u64 {
    range.end.min(range.start / PAGE_SIZE * PAGE_SIZE + bytes_max)
}

/// Length in bytes.
fn range_len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

impl ObjectCache {
    /// Cached bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether `range` has dirty bytes.
    pub(super) fn is_dirty(&self, range: Range<u64>) -> bool {
        self.dirty.intersects(range)
    }

    /// The end of the last unwritten data.
    pub(super) fn unwritten_end(&self) -> u64 {
        self.dirty.end().max(self.writing.end())
    }

    /// Dirty bytes.
    pub(super) fn dirty_bytes(&self) -> u64 {
        self.dirty.len()
    }

    /// Dirty and in-flight bytes.
    pub(super) fn unwritten_bytes(&self) -> u64 {
        self.dirty.len() + self.writing.len()
    }

    /// Dirty bytes of `range`.
    pub(super) fn dirty_in(&self, range: Range<u64>) -> u64 {
        self.dirty.overlaps(range).map(|r| range_len(&r)).sum()
    }

    /// Whether `range` has in-flight bytes.
    pub(super) fn is_writing(&self, range: Range<u64>) -> bool {
        self.writing.intersects(range)
    }

    /// Bytes that a write of `range` must reserve in addition to the existing reservation.
    pub(super) fn reservation(&self, range: Range<u64>) -> u64 {
        self.reserved.gaps(pages(&range)).iter().map(range_len).sum()
    }

    /// The cached parts and gaps of `range`, in order.
    pub(super) fn read(&self, range: Range<u64>) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut at = range.start;
        let first = self
            .extents
            .range(..=range.start)
            .next_back()
            .map_or(range.start, |(&s, _)| s);
        for (&start, extent) in self.extents.range(first..range.end.max(first)) {
            let end = start + extent.len();
            let (from, to) = (start.max(at), end.min(range.end));
            if from >= to {
                continue;
            }
            if at < from {
                runs.push(Run::Gap(at..from));
            }
            runs.push(Run::Data(
                extent.data.slice((from - start) as usize..(to - start) as usize),
            ));
            at = to;
        }
        if at < range.end {
            runs.push(Run::Gap(at..range.end));
        }
        runs
    }

    /// Marks the extents of `range` as used.
    pub(super) fn touch(&mut self, range: Range<u64>) {
        for (&start, extent) in self.extents.range_mut(..range.end).rev() {
            if start + extent.len() <= range.start {
                break;
            }
            extent.used = true;
        }
    }

    /// Caches bytes from the server. Bytes that are already cached are newer and stay.
    pub(super) fn fill(&mut self, offset: u64, data: Bytes) {
        let range = offset..offset + data.len() as u64;
        for run in self.read(range) {
            if let Run::Gap(gap) = run {
                let part = data.slice((gap.start - offset) as usize..(gap.end - offset) as usize);
                self.bytes += part.len() as u64;
                self.extents.insert(gap.start, Extent::new(part));
            }
        }
    }

    /// Caches a program's write as dirty. The caller has reserved [`ObjectCache::reservation`]
    /// bytes for it.
    pub(super) fn write(&mut self, offset: u64, data: Bytes) {
        if data.is_empty() {
            return;
        }
        let range = offset..offset + data.len() as u64;
        self.remove_extents(range.clone());
        self.dirty.insert(range.clone());
        self.reserved.insert(pages(&range));
        self.bytes += data.len() as u64;
        if let Some(mut gathered) = self.take_mergeable(offset, data.len()) {
            let start = offset - gathered.len() as u64;
            gathered.extend_from_slice(&data);
            self.extents.insert(start, Extent::new(gathered.freeze()));
        } else {
            self.extents.insert(offset, Extent::new(data));
        }
    }

    /// Takes out the extent that ends at `offset`, if it may grow by `len` bytes.
    fn take_mergeable(&mut self, offset: u64, len: usize) -> Option<BytesMut> {
        let (&start, before) = self.extents.range(..offset).next_back()?;
        if start + before.len() != offset || before.data.len() + len > GATHER_BYTES_MAX {
            return None;
        }
        let before = self.extents.remove(&start)?.data;
        Some(
            before
                .try_into_mut()
                .unwrap_or_else(|shared| BytesMut::from(&shared[..])),
        )
    }

    /// Removes the cached bytes of `range`; leaves the dirty and in-flight ranges.
    fn remove_extents(&mut self, range: Range<u64>) {
        while let Some((&start, extent)) = self.extents.range(..range.end).next_back() {
            let (end, used) = (start + extent.len(), extent.used);
            if end <= range.start {
                break;
            }
            let data = extent.data.clone();
            self.extents.remove(&start);
            self.bytes -= data.len() as u64;
            if end > range.end {
                let data = data.slice((range.end - start) as usize..);
                self.bytes += data.len() as u64;
                self.extents.insert(range.end, Extent { data, used });
            }
            if start < range.start {
                let data = data.slice(..(range.start - start) as usize);
                self.bytes += data.len() as u64;
                self.extents.insert(start, Extent { data, used });
            }
        }
    }

    /// Takes up to `bytes_max` dirty bytes of `within` for one RPC; they are in flight until
    /// [`ObjectCache::finish_write`]. Data that overlaps an in-flight range waits: the server must
    /// receive writes of the same bytes in order. `None`: nothing to take now.
    pub(super) fn take_dirty(
        &mut self,
        within: Range<u64>,
        bytes_max: u64,
        ranges_max: usize,
    ) -> Option<Writeback> {
        let mut batch = Writeback::default();
        let mut last_page_end = 0;
        let ready: Vec<Range<u64>> = self
            .dirty
            .overlaps(within)
            .flat_map(|d| self.writing.gaps(d))
            .take(ranges_max * 2)
            .collect();
        let mut bytes_left = bytes_max;
        for mut range in ready {
            // Ends at a page boundary, or with the range: two concurrent RPCs must share no page.
            range.end = rpc_end(&range, bytes_left);
            if range.start >= range.end || range.start < last_page_end || batch.ranges.len() == ranges_max {
                break;
            }
            last_page_end = pages(&range).end;
            batch.bytes += range_len(&range);
            bytes_left -= range_len(&pages(&range));
            batch.ranges.push((range, Vec::new()));
        }
        for (range, data) in &mut batch.ranges {
            self.dirty.remove(range.clone());
            self.writing.insert(range.clone());
            let covered = pages(range);
            batch.reserved += self
                .reserved
                .overlaps(covered.clone())
                .map(|r| range_len(&r))
                .sum::<u64>();
            self.reserved.remove(covered);
            data.extend(self.read(range.clone()).into_iter().filter_map(|run| match run {
                Run::Data(bytes) => Some(bytes),
                Run::Gap(_) => None,
            }));
        }
        (!batch.ranges.is_empty()).then_some(batch)
    }

    /// Records the end of a write RPC. The data becomes clean. With `lost`, the data is dropped
    /// except where a later write has replaced it.
    pub(super) fn finish_write<'a>(&mut self, ranges: impl IntoIterator<Item = &'a Range<u64>>, lost: bool) {
        for range in ranges {
            self.writing.remove(range.clone());
            if lost {
                for lost_range in self.dirty.gaps(range.clone()) {
                    self.remove_extents(lost_range);
                }
            }
        }
    }

    /// Drops `range`, dirty or not. Returns the freed reservation in bytes.
    pub(super) fn discard(&mut self, range: Range<u64>) -> u64 {
        self.remove_extents(range.clone());
        self.dirty.remove(range.clone());
        // The first and the last page keep their reservation if they have other dirty data.
        let mut inner = pages(&range);
        if self.dirty.intersects(inner.start..inner.start + PAGE_SIZE) {
            inner.start += PAGE_SIZE;
        }
        if inner.start < inner.end && self.dirty.intersects(inner.end - PAGE_SIZE..inner.end) {
            inner.end -= PAGE_SIZE;
        }
        let freed = self.reserved.overlaps(inner.clone()).map(|r| range_len(&r)).sum();
        self.reserved.remove(inner);
        freed
    }

    /// Moves the hand of the eviction clock ([`super::cache_limit`]) from `from` over at most
    /// `steps_max` extents until at least `bytes` are freed. Drops clean extents that were not used
    /// since the last pass, except the extents for which `keep` returns true.
    pub(super) fn sweep(
        &mut self,
        from: u64,
        bytes: u64,
        steps_max: usize,
        keep: impl Fn(&Range<u64>) -> bool,
    ) -> SweepResult {
        let (before, mut at) = (self.bytes, from);
        for steps in 0..=steps_max {
            if steps == steps_max || before - self.bytes >= bytes {
                return SweepResult {
                    steps,
                    next: Some(at),
                };
            }
            let Some((&start, extent)) = self.extents.range_mut(at..).next() else {
                return SweepResult { steps, next: None };
            };
            let range = start..start + extent.len();
            at = range.end;
            if keep(&range) || std::mem::take(&mut extent.used) {
                continue;
            }
            if !self.dirty.intersects(range.clone()) && !self.writing.intersects(range.clone()) {
                self.remove_extents(range);
            }
        }
        unreachable!("the last step returns")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn discarded_page_without_dirty_data_keeps_no_reservation() {
        let mut cache = ObjectCache::default();
        let half = PAGE_SIZE / 2;
        let bytes = |len: u64| Bytes::from(vec![1; len as usize]);
        for (offset, len, discarded, freed) in [
            (0, half, 0..half, PAGE_SIZE),
            (half, half, half..u64::MAX, PAGE_SIZE),
            (0, PAGE_SIZE, half..PAGE_SIZE, 0),
        ] {
            cache.write(offset, bytes(len));
            assert_eq!(cache.discard(discarded.clone()), freed, "{discarded:?}");
        }
        assert_eq!(cache.discard(0..half), PAGE_SIZE, "the rest of the page");
        assert_eq!(cache.reservation(0..PAGE_SIZE), PAGE_SIZE);
    }

    fn bytes(cache: &ObjectCache, range: Range<u64>) -> Vec<Option<u8>> {
        let mut out = Vec::new();
        for run in cache.read(range) {
            match run {
                Run::Data(d) => out.extend(d.iter().map(|&b| Some(b))),
                Run::Gap(g) => out.extend(std::iter::repeat_n(None, range_len(&g) as usize)),
            }
        }
        out
    }

    #[test]
    fn small_appends_are_merged_into_one_extent() {
        let mut cache = ObjectCache::default();
        for i in 0..100u64 {
            cache.write(i * 10, Bytes::from(vec![i as u8; 10]));
        }
        assert_eq!(cache.extents.len(), 1);
        assert_eq!(cache.bytes(), 1000);
        assert_eq!(cache.reservation(0..1000), 0);
        assert_eq!(cache.reservation(4000..4200), PAGE_SIZE);
    }

    #[test]
    fn in_flight_data_is_not_sent_twice_and_its_overwrite_is_sent_later() {
        let mut cache = ObjectCache::default();
        cache.write(0, Bytes::from_static(&[1; 100]));
        let first = cache.take_dirty(0..u64::MAX, 1 << 20, 16).unwrap();
        assert_eq!((first.bytes, first.reserved), (100, PAGE_SIZE));
        cache.write(50, Bytes::from_static(&[2; 10]));
        assert!(cache.take_dirty(0..u64::MAX, 1 << 20, 16).is_none());
        assert_eq!(first.ranges[0].1[0][55], 1, "in-flight bytes do not change");
        cache.finish_write([&(0..100)], false);
        let second = cache.take_dirty(0..u64::MAX, 1 << 20, 16).unwrap();
        assert_eq!(second.ranges[0].0, 50..60);
        cache.finish_write([&(50..60)], false);
        assert!(!cache.is_dirty(0..u64::MAX) && !cache.is_writing(0..u64::MAX));
    }

    #[test]
    fn ranges_of_one_page_go_in_different_rpcs() {
        let mut cache = ObjectCache::default();
        cache.write(0, Bytes::from_static(&[1; 10]));
        cache.write(20, Bytes::from_static(&[2; 10]));
        assert_eq!(
            cache.take_dirty(0..u64::MAX, 1 << 20, 16).unwrap().ranges.len(),
            1
        );
        assert_eq!(
            cache.take_dirty(0..u64::MAX, 1 << 20, 16).unwrap().ranges[0].0,
            20..30
        );
    }

    #[test]
    fn ranges_of_one_rpc_fit_its_descriptors() {
        let mut cache = ObjectCache::default();
        // Each write touches six pages, but has the bytes of five and a half.
        for i in 0..400u64 {
            cache.write(i * 40960 + 1000, Bytes::from(vec![1; 22528]));
        }
        let mut ranges = Vec::new();
        while let Some(batch) = cache.take_dirty(0..u64::MAX, 4 << 20, 256) {
            let sent = batch.ranges.iter().map(|(r, _)| r.clone());
            assert!(wire::brw::md_lengths(sent.clone()).len() <= 4);
            ranges.extend(sent);
        }
        assert_eq!(ranges.iter().map(range_len).sum::<u64>(), 400 * 22528);
        // The first page counts as a whole page, though the RPC carries only a part of it.
        let end = rpc_end(&(5..u64::MAX), 4 << 20);
        assert_eq!(end, 4 << 20);
        assert_eq!(wire::brw::md_lengths(std::iter::once(5..end)).len(), 4);
    }

    #[test]
    fn eviction_drops_unused_extents_first_and_never_dirty_ones() {
        let mut cache = ObjectCache::default();
        let page = || Bytes::from_static(&[1; 4096]);
        (0..4).for_each(|i| cache.fill(i * 4096, page()));
        cache.write(8 * 4096, page());
        // In the first round all extents are new.
        let round = cache.sweep(0, 4096, 100, |_| false);
        assert_eq!((round.steps, round.next, cache.bytes()), (5, None, 5 * 4096));
        cache.touch(4096..4097);
        let part = cache.sweep(0, 2 * 4096, 100, |range| range.start == 0);
        assert_eq!((part.steps, part.next), (4, Some(4 * 4096)));
        let left = [0, 4096, 8 * 4096].map(|at| matches!(cache.read(at..at + 1)[..], [Run::Data(_)]));
        assert_eq!((left, cache.bytes()), ([true; 3], 3 * 4096));
        assert_eq!(
            cache.sweep(0, u64::MAX, 1, |_| false).next,
            Some(4096),
            "no more steps"
        );
        for _ in 0..2 {
            cache.sweep(0, u64::MAX, 100, |_| false);
        }
        assert_eq!(cache.bytes(), 4096);
        assert!(cache.is_dirty(8 * 4096..9 * 4096));
    }

    proptest! {
        #[test]
        fn behaves_as_bytes_in_memory(ops in proptest::collection::vec((0u8..6, 0u64..200, 1u64..60), 1..60)) {
            let mut cache = ObjectCache::default();
            let mut model: Vec<Option<u8>> = vec![None; 300];
            let mut dirty = vec![false; 300];
            let mut in_flight: Vec<Writeback> = Vec::new();
            for (step, (op, start, len)) in ops.into_iter().enumerate() {
                let range = start..start + len;
                let (a, b) = (start as usize, (start + len) as usize);
                match op {
                    0 | 1 => {
                        cache.write(start, Bytes::from(vec![step as u8; len as usize]));
                        model[a..b].fill(Some(step as u8));
                        dirty[a..b].fill(true);
                    }
                    2 => {
                        cache.fill(start, Bytes::from(vec![200; len as usize]));
                        model[a..b].iter_mut().for_each(|m| { m.get_or_insert(200); });
                    }
                    3 => if let Some(w) = cache.take_dirty(range, 1 << 20, 8) {
                        for (r, data) in &w.ranges {
                            let sent: Vec<u8> = data.concat();
                            let (a, b) = (r.start as usize, r.end as usize);
                            let expected: Vec<u8> = model[a..b].iter().map(|m| m.unwrap()).collect();
                            prop_assert_eq!(sent, expected);
                            dirty[a..b].fill(false);
                        }
                        in_flight.push(w);
                    },
                    4 => if let Some(w) = in_flight.pop() {
                        cache.finish_write(w.ranges.iter().map(|r| &r.0), false);
                    },
                    _ => {
                        cache.sweep(start, len, 5, |_| false);
                        for (i, known) in bytes(&cache, 0..300).into_iter().enumerate() {
                            if known.is_none() { prop_assert!(!dirty[i]); model[i] = None; }
                        }
                    }
                }
                prop_assert_eq!(bytes(&cache, 0..300), model.clone());
                for (i, &d) in dirty.iter().enumerate() {
                    prop_assert_eq!(cache.is_dirty(i as u64..i as u64 + 1), d);
                }
                prop_assert_eq!(cache.bytes() as usize, model.iter().flatten().count());
            }
        }
    }
}
