//! Checksums of the blocks of objects' files.
//!
//! The index has a record with the checksums of each region of 256 blocks ([`region`]). A write
//! keeps the checksums of its blocks in memory, and a sync of the file puts them into the index
//! after the data is on disk. So the index never has a checksum of data that a power cut can lose.
//!
//! A later change of such a block could make its checksum wrong, because the kernel may write the
//! new data to the disk at any time. So the store first writes a mark for the block's window of 64
//! MiB to the index, and syncs the index. After a crash, [`Checksums::open`] removes the checksums
//! of all marked windows. A mark stays until its window has had no changes for a while, so that
//! later changes in the window do not wait for the index.
//!
//! Reads do not check a block without a checksum. These are old data, data that was not synced
//! before a crash, holes, and windows that were marked at a crash. A scrub gives checksums to
//! blocks without one.

mod change;
pub(crate) mod region;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Range, RangeInclusive},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use wire::Fid;

use crate::{Batch, Index, KEY_RESERVED, OsdError};
pub(super) use change::BlockChange;
use change::{Slot, UnsettledRegion};
pub(crate) use region::{BLOCK, PREFIX as REGION_PREFIX, parse_key};
use region::{REGION_BLOCKS, Region, Sum, key_of};

/// Prefix of the keys of marks; their values are empty.
pub(crate) const MARK_PREFIX: [u8; 1] = [KEY_RESERVED + 3];
/// Regions per window.
const WINDOW_REGIONS: u64 = 64;
const SHARDS: usize = 16;
/// Maximum number of regions with cached checksums, of at most 1 KiB each.
const CACHED_REGIONS: usize = 4096;
/// A mark stays for this number of calls of [`Checksums::settle_marks`] after the last change.
const IDLE_MAX: u8 = 2;
/// Maximum number of regions that one batch changes.
const BATCH_REGIONS: usize = 64;
/// Maximum number of records read at once.
const PAGE: usize = 1024;

/// The data that a block must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Data with this checksum.
    Sum(Sum),
    /// Any data: the block has no checksum.
    Unchecked,
    /// A change of the block is in progress.
    Changing,
}

/// The checksums of a store's objects.
pub(super) struct Checksums {
    index: Arc<dyn Index>,
    shards: [Mutex<Shard>; SHARDS],
    cache: Cache<(Fid, u64), Arc<Region>>,
    /// The windows with marks of an earlier run in an index that is open for reading only.
    untrusted: BTreeSet<(Fid, u64)>,
    /// Counts changes of blocks.
    clock: AtomicU64,
}

/// The mutex of a shard stays locked while the index applies changes of the records of the shard's
/// objects, so that the shard and the index agree.
#[derive(Default)]
struct Shard {
    /// Changed blocks with checksums that are not in the index, by object and region.
    unsettled: BTreeMap<(Fid, u64), UnsettledRegion>,
    /// The windows with marks in the index.
    marks: BTreeMap<(Fid, u64), Mark>,
    /// Number of calls of [`Checksums::replace`] so far.
    replaced: u64,
}

#[derive(Clone, Copy, Default)]
struct Mark {
    /// The mark is on disk.
    durable: bool,
    /// Calls of [`Checksums::settle_marks`] since the last change.
    idle: u8,
}

impl Shard {
    /// The marked windows of an object.
    fn marks_of(&self, fid: Fid) -> Vec<u64> {
        self.marks
            .range(object(fid))
            .map(|((_, window), _)| *window)
            .collect()
    }
}

fn shard_of(fid: &Fid) -> usize {
    fid.f_oid as usize % SHARDS
}

/// The keys of an object in the tables of a shard.
fn object(fid: Fid) -> RangeInclusive<(Fid, u64)> {
    (fid, 0)..=(fid, u64::MAX)
}

/// The record of a region: key, number and checksums; without checksums if it is malformed.
type Record = (Bytes, u64, Region);

/// The checksums in a region's record; none without a record.
fn decode(fid: Fid, value: Option<Bytes>) -> Result<Arc<Region>, OsdError> {
    let decoded = value.map_or(Ok(Region::default()), |value| Region::decode(&value));
    decoded.map(Arc::new).map_err(|why| OsdError::Corrupt {
        path: "objects".into(),
        record: format!("of the checksums of object {:x}:{:x}", fid.f_seq, fid.f_oid),
        why,
    })
}

/// The regions that hold blocks.
fn regions_of(blocks: &Range<u64>) -> Range<u64> {
    match blocks.is_empty() {
        true => 0..0,
        false => blocks.start / REGION_BLOCKS..(blocks.end - 1) / REGION_BLOCKS + 1,
    }
}

/// The positions in the region of those of `blocks` that the region contains.
fn positions(region: u64, blocks: &Range<u64>) -> Range<usize> {
    let first = region * REGION_BLOCKS;
    let within = |block: u64| (block.max(first) - first).min(REGION_BLOCKS) as usize;
    within(blocks.start)..within(blocks.end)
}

impl Checksums {
    /// Reads the marks of an earlier run, and removes them with the checksums of their windows.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn open(index: Arc<dyn Index>) -> Result<Checksums, OsdError> {
        let mut sums = Checksums {
            index,
            shards: Default::default(),
            cache: Cache::new(CACHED_REGIONS),
            untrusted: BTreeSet::new(),
            clock: AtomicU64::new(0),
        };
        let mut from = MARK_PREFIX.to_vec();
        loop {
            let marks = sums
                .index
                .scan(&from, &crate::prefix_end(&MARK_PREFIX), PAGE)
                .wait()?;
            let Some((last, _)) = marks.last() else {
                return Ok(sums);
            };
            from = [last, &b"\0"[..]].concat();
            for (key, _) in marks {
                let Some((fid, window)) = parse_key(MARK_PREFIX, &key) else {
                    continue;
                };
                let mut batch = Batch::new();
                batch.delete(key);
                let regions = window * WINDOW_REGIONS..(window + 1) * WINDOW_REGIONS;
                let records = sums.records(&fid, regions)?;
                for (key, ..) in records {
                    batch.delete(key);
                }
                match sums.index.apply(batch) {
                    // The index is open for reading only.
                    Err(OsdError::Invalid(_)) => {
                        sums.untrusted.insert((fid, window));
                    }
                    applied => applied?,
                }
            }
        }
    }

    fn shard(&self, fid: &Fid) -> &Mutex<Shard> {
        &self.shards[shard_of(fid)]
    }

    /// Up to [`PAGE`] records of an object's regions.
    fn records(&self, fid: &Fid, regions: Range<u64>) -> Result<Vec<Record>, OsdError> {
        let [from, to] = [regions.start, regions.end].map(|n| key_of(region::PREFIX, fid, n));
        let rows = self.index.scan(&from, &to, PAGE).wait()?;
        let record = |(key, value): (Bytes, Bytes)| {
            let (_, number) = parse_key(region::PREFIX, &key)?;
            let region = Region::decode(&value).unwrap_or_default();
            Some((key, number, region))
        };
        Ok(rows.into_iter().filter_map(record).collect())
    }

    /// The checksums that the index has for a region. May read the disk.
    fn region(&self, fid: Fid, number: u64) -> Result<Arc<Region>, OsdError> {
        self.cache.get_or_insert_with(&(fid, number), || {
            let value = match self.untrusted.contains(&(fid, number / WINDOW_REGIONS)) {
                true => None,
                false => self.index.get(&key_of(region::PREFIX, &fid, number)).wait()?,
            };
            decode(fid, value)
        })
    }

    /// Caches the checksums that the index has for these blocks, if memory has them. Returns false
    /// if not: then a change of the blocks may read the disk.
    pub(super) fn cache_from_memory(&self, fid: Fid, blocks: &Range<u64>) -> bool {
        regions_of(blocks).all(|number| {
            if self.cache.get(&(fid, number)).is_some() {
                return true;
            }
            let read = self.index.get(&key_of(region::PREFIX, &fid, number));
            let Ok(Ok(value)) = read.now() else { return false };
            let is_trusted = !self.untrusted.contains(&(fid, number / WINDOW_REGIONS));
            let value = value.filter(|_| is_trusted);
            let cached = self
                .cache
                .get_or_insert_with(&(fid, number), || decode(fid, value));
            cached.is_ok()
        })
    }

    /// The data that blocks must have. With `cached`, returns `None` if the index has to be read.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn expected(
        &self,
        fid: Fid,
        blocks: Range<u64>,
        cached: bool,
    ) -> Result<Option<Vec<Expected>>, OsdError> {
        let mut expected = Vec::with_capacity((blocks.end - blocks.start) as usize);
        for number in regions_of(&blocks) {
            let positions = positions(number, &blocks);
            let unsettled: Option<Vec<Slot>> = {
                let shard = self.shard(&fid).lock();
                let unsettled = shard.unsettled.get(&(fid, number));
                unsettled.map(|u| positions.clone().map(|p| u.slot(p)).collect())
            };
            let region = match cached {
                true => self.cache.get(&(fid, number)),
                false => Some(self.region(fid, number)?),
            };
            for (i, position) in positions.enumerate() {
                let sum = match unsettled.as_ref().map_or(Slot::Settled, |slots| slots[i]) {
                    Slot::Changing { .. } => {
                        expected.push(Expected::Changing);
                        continue;
                    }
                    Slot::Changed(sum) => sum,
                    Slot::Settled => match &region {
                        Some(region) => region.sum(position),
                        None => return Ok(None),
                    },
                };
                expected.push(sum.map_or(Expected::Unchecked, Expected::Sum));
            }
        }
        Ok(Some(expected))
    }

    /// Drops the cached checksums of the regions of `blocks`; the next use reads them from the
    /// index again.
    pub(super) fn drop_cached(&self, fid: Fid, blocks: Range<u64>) {
        for number in regions_of(&blocks) {
            self.cache.remove(&(fid, number));
        }
    }

    /// The present value of the clock of changes. A sync that begins after this call covers all
    /// changes up to this value.
    pub(super) fn now(&self) -> u64 {
        self.clock.load(SeqCst)
    }

    /// Puts the checksums of changes until `now` into the index. Call this after a sync of the
    /// objects' files that began when the clock was `now`.
    ///
    /// # Errors
    ///
    /// An error of the index. The checksums stay in memory.
    pub(super) fn settle(&self, fids: impl IntoIterator<Item = Fid>, now: u64) -> Result<(), OsdError> {
        let mut regions: [Vec<(Fid, u64)>; SHARDS] = Default::default();
        for fid in fids {
            let shard = self.shard(&fid).lock();
            let unsettled = shard.unsettled.range(object(fid));
            let settles = unsettled.filter(|(_, u)| u.had_settled_at(now));
            regions[shard_of(&fid)].extend(settles.map(|(key, _)| *key));
        }
        for (shard, regions) in self.shards.iter().zip(regions) {
            for regions in regions.chunks(BATCH_REGIONS) {
                // Before the lock, because this may read the disk.
                regions
                    .iter()
                    .try_for_each(|(fid, n)| self.region(*fid, *n).map(drop))?;
                let mut shard = shard.lock();
                let mut settled = Vec::with_capacity(regions.len());
                for key in regions {
                    // A later change or a destroy may have removed or changed the region meanwhile.
                    let unsettled = shard.unsettled.get(key).filter(|u| u.had_settled_at(now));
                    if let Some(unsettled) = unsettled {
                        settled.push((*key, unsettled.over(&*self.region(key.0, key.1)?)));
                    }
                }
                for key in self.replace(&mut shard, settled)? {
                    shard.unsettled.remove(&key);
                }
            }
        }
        Ok(())
    }

    /// Replaces records of regions, and returns their keys. `shard` is that of the objects.
    fn replace(
        &self,
        shard: &mut Shard,
        regions: Vec<((Fid, u64), Region)>,
    ) -> Result<Vec<(Fid, u64)>, OsdError> {
        if regions.is_empty() {
            return Ok(Vec::new());
        }
        shard.replaced += 1;
        let mut batch = Batch::new();
        for ((fid, number), region) in &regions {
            let key = key_of(region::PREFIX, fid, *number);
            match region.is_empty() {
                true => batch.delete(key),
                false => batch.put(key, region.encode()),
            };
        }
        self.index.apply(batch)?;
        let replaced = |(key, region): (_, Region)| {
            self.cache.insert(key, Arc::new(region));
            key
        };
        Ok(regions.into_iter().map(replaced).collect())
    }

    /// Removes the mark of each window that has no unsettled changes and had none during the last
    /// [`IDLE_MAX`] calls; with `all`, does not wait for these calls. Returns the number of marks
    /// that stay.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn settle_marks(&self, all: bool) -> Result<usize, OsdError> {
        let mut stay = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let (mut batch, mut removed) = (Batch::new(), Vec::new());
            let Shard { unsettled, marks, .. } = &mut *shard;
            for (&(fid, window), mark) in marks.iter_mut() {
                let [first, end] = [window, window + 1].map(|w| (fid, w * WINDOW_REGIONS));
                mark.idle += 1;
                if unsettled.range(first..end).next().is_some() || (mark.idle <= IDLE_MAX && !all) {
                    mark.idle = mark.idle.min(IDLE_MAX);
                    stay += 1;
                    continue;
                }
                batch.delete(key_of(MARK_PREFIX, &fid, window));
                removed.push((fid, window));
            }
            if !removed.is_empty() {
                self.index.apply(batch)?;
            }
            for mark in removed {
                shard.marks.remove(&mark);
            }
        }
        Ok(stay)
    }

    /// Removes the checksums of blocks that a punch or a truncate removes. Returns true if the
    /// index had some: the caller must then sync the index before it changes the file.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn forget(&self, fid: Fid, blocks: Range<u64>) -> Result<bool, OsdError> {
        let regions = regions_of(&blocks);
        {
            let mut shard = self.shard(&fid).lock();
            let unsettled = shard
                .unsettled
                .range_mut((fid, regions.start)..(fid, regions.end));
            for ((_, number), unsettled) in unsettled {
                for position in positions(*number, &blocks) {
                    unsettled.set(position, Slot::Changed(None));
                }
            }
        }
        let (mut from, mut removed) = (regions.start, false);
        loop {
            // Before the lock, because this may read the disk.
            let replaced = self.shard(&fid).lock().replaced;
            let records = self.records(&fid, from..regions.end)?;
            let Some((_, last, _)) = records.last() else {
                return Ok(removed);
            };
            let mut shard = self.shard(&fid).lock();
            if shard.replaced != replaced {
                continue;
            }
            from = last + 1;
            let without = |(_, number, mut region): Record| {
                let before = region.clone();
                positions(number, &blocks).for_each(|p| region.set(p, None));
                (region != before).then_some(((fid, number), region))
            };
            let regions: Vec<_> = records.into_iter().filter_map(without).collect();
            removed |= !regions.is_empty();
            self.replace(&mut shard, regions)?;
        }
    }

    /// Records checksums for the blocks of a region that have none; returns their number. Does
    /// nothing if the region has unsettled changes. The caller ensures that the data is on disk.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn fill(&self, fid: Fid, number: u64, sums: &[Sum]) -> Result<u64, OsdError> {
        self.region(fid, number)?;
        let mut shard = self.shard(&fid).lock();
        if shard.unsettled.contains_key(&(fid, number)) {
            return Ok(0);
        }
        let mut region = (*self.region(fid, number)?).clone();
        let mut filled = 0;
        for (position, sum) in sums.iter().enumerate() {
            if region.sum(position).is_none() {
                region.set(position, Some(*sum));
                filled += 1;
            }
        }
        if filled > 0 {
            self.replace(&mut shard, vec![((fid, number), region)])?;
        }
        Ok(filled)
    }

    /// Adds the removal of all checksums and marks of an object to a batch. `size` is the size of
    /// the object's file in bytes. Returns the regions with checksums: call
    /// [`Checksums::forget_object`] with them after the batch.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(super) fn remove(&self, fid: Fid, size: u64, batch: &mut Batch) -> Result<Vec<u64>, OsdError> {
        let marks = self.shard(&fid).lock().marks_of(fid);
        for window in marks {
            batch.delete(key_of(MARK_PREFIX, &fid, window));
        }
        if size <= BLOCK * REGION_BLOCKS {
            // The ordinary case needs no scan.
            batch.delete(key_of(region::PREFIX, &fid, 0));
            return Ok(vec![0]);
        }
        let (mut from, mut regions) = (0, Vec::new());
        loop {
            let records = self.records(&fid, from..u64::MAX)?;
            let Some((_, last, _)) = records.last() else {
                return Ok(regions);
            };
            from = last + 1;
            for (key, number, _) in records {
                batch.delete(key);
                regions.push(number);
            }
        }
    }

    /// Drops all data in memory about a destroyed object. The index had checksums of `regions`.
    pub(super) fn forget_object(&self, fid: Fid, regions: &[u64]) {
        let mut shard = self.shard(&fid).lock();
        let unsettled: Vec<_> = shard.unsettled.range(object(fid)).map(|(key, _)| *key).collect();
        for key in unsettled {
            shard.unsettled.remove(&key);
        }
        for window in shard.marks_of(fid) {
            shard.marks.remove(&(fid, window));
        }
        drop(shard);
        for number in regions {
            self.cache.remove(&(fid, *number));
        }
    }
}
