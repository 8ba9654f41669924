//! Changes of blocks before their new checksums are in the index.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, atomic::Ordering::SeqCst},
};

use wire::Fid;

use super::{
    Checksums, MARK_PREFIX, WINDOW_REGIONS, positions,
    region::{REGION_BLOCKS, Region, Sum, key_of},
    regions_of,
};
use crate::{Batch, OsdError};

/// The state of a block's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// The index's record applies.
    Settled,
    /// A change has ended and left this checksum; `None`: the block's data is unknown.
    Changed(Option<Sum>),
    /// A change is in progress. `before` is the state before it: `None` for `Settled`, `Some(sum)`
    /// for `Changed(sum)`.
    Changing { before: Option<Option<Sum>> },
}

/// The unsettled changes of a region.
#[derive(Clone, Debug, Default)]
pub(super) struct UnsettledRegion {
    /// The position of the first slot.
    first: usize,
    /// The states of blocks in the order of their positions. A block without a slot is settled.
    slots: VecDeque<Slot>,
    /// Value of [`Checksums::clock`] when the last change ended.
    changed: u64,
    /// Number of blocks with a change in progress.
    changing: usize,
}

impl UnsettledRegion {
    pub(super) fn slot(&self, position: usize) -> Slot {
        let slot = position.checked_sub(self.first).and_then(|i| self.slots.get(i));
        slot.copied().unwrap_or(Slot::Settled)
    }

    pub(super) fn set(&mut self, position: usize, slot: Slot) {
        if self.slots.is_empty() {
            self.first = position;
        }
        while position < self.first {
            self.first -= 1;
            self.slots.push_front(Slot::Settled);
        }
        let index = position - self.first;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, Slot::Settled);
        }
        let changing = |slot: &Slot| usize::from(matches!(slot, Slot::Changing { .. }));
        self.changing += changing(&slot);
        self.changing -= changing(&self.slots[index]);
        self.slots[index] = slot;
    }

    /// Whether all changes had ended when the clock was `now`.
    pub(super) fn had_settled_at(&self, now: u64) -> bool {
        self.changing == 0 && self.changed <= now
    }

    /// Returns the region's checksums with these changes applied.
    pub(super) fn over(&self, region: &Region) -> Region {
        let mut region = region.clone();
        for (position, slot) in (self.first..).zip(&self.slots) {
            if let Slot::Changed(sum) = slot {
                region.set(position, *sum);
            }
        }
        region
    }
}

/// A change of blocks of one object. The caller holds the object's write lock while it exists.
/// Dropping it restores the earlier checksum of each block for which the caller has not called
/// [`BlockChange::set`].
pub(in crate::local_objects) struct BlockChange {
    sums: Arc<Checksums>,
    fid: Fid,
    /// The blocks, in disjoint ranges.
    blocks: Vec<Range<u64>>,
    /// Windows with marks that may not be on disk yet.
    new_marks: Vec<u64>,
}

impl BlockChange {
    /// Begins a change of blocks: marks their windows if the index has checksums of them. May read
    /// the disk.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(in crate::local_objects) fn begin(
        sums: &Arc<Checksums>,
        fid: Fid,
        mut blocks: Vec<Range<u64>>,
    ) -> Result<BlockChange, OsdError> {
        blocks.retain(|range| !range.is_empty());
        blocks.sort_unstable_by_key(|range| range.start);
        blocks.dedup_by(|next, before| {
            let joins = next.start <= before.end;
            if joins {
                before.end = before.end.max(next.end);
            }
            joins
        });
        let mut change = BlockChange {
            sums: sums.clone(),
            fid,
            blocks,
            new_marks: Vec::new(),
        };
        // From now on no sync settles these blocks.
        change.for_each_slot(|slot| match slot {
            Slot::Settled => Slot::Changing { before: None },
            Slot::Changed(sum) => Slot::Changing { before: Some(sum) },
            changing @ Slot::Changing { .. } => changing,
        });
        change.mark()?;
        Ok(change)
    }

    /// Replaces the state of each block.
    fn for_each_slot(&self, f: impl Fn(Slot) -> Slot) {
        let mut shard = self.sums.shard(&self.fid).lock();
        for blocks in &self.blocks {
            for number in regions_of(blocks) {
                let unsettled = shard.unsettled.entry((self.fid, number)).or_default();
                for position in positions(number, blocks) {
                    unsettled.set(position, f(unsettled.slot(position)));
                }
            }
        }
    }

    /// Marks the windows of blocks with checksums in the index.
    fn mark(&mut self) -> Result<(), OsdError> {
        let mut windows = Vec::new();
        for blocks in &self.blocks {
            for number in regions_of(blocks) {
                let region = self.sums.region(self.fid, number)?;
                let window = number / WINDOW_REGIONS;
                if positions(number, blocks).any(|p| region.sum(p).is_some())
                    && windows.last() != Some(&window)
                {
                    windows.push(window);
                }
            }
        }
        if windows.is_empty() {
            return Ok(());
        }
        let mut shard = self.sums.shard(&self.fid).lock();
        let mut batch = Batch::new();
        for window in &windows {
            if !shard.marks.contains_key(&(self.fid, *window)) {
                batch.put(key_of(MARK_PREFIX, &self.fid, *window), "");
            }
        }
        if !batch.is_empty() {
            self.sums.index.apply(batch)?;
        }
        for window in windows {
            let mark = shard.marks.entry((self.fid, window)).or_default();
            mark.idle = 0;
            if !mark.durable {
                self.new_marks.push(window);
            }
        }
        Ok(())
    }

    /// Whether the index must be synced before the data changes.
    pub(in crate::local_objects) fn waits_for_index(&self) -> bool {
        !self.new_marks.is_empty()
    }

    /// Records that the index was synced.
    pub(in crate::local_objects) fn index_synced(&mut self) {
        let mut shard = self.sums.shard(&self.fid).lock();
        for window in self.new_marks.drain(..) {
            if let Some(mark) = shard.marks.get_mut(&(self.fid, window)) {
                mark.durable = true;
            }
        }
    }

    /// The checksum of the block before the change, if it has one. May read the disk.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub(in crate::local_objects) fn before(&self, block: u64) -> Result<Option<Sum>, OsdError> {
        let number = block / REGION_BLOCKS;
        let position = (block % REGION_BLOCKS) as usize;
        let slot = {
            let shard = self.sums.shard(&self.fid).lock();
            let unsettled = shard.unsettled.get(&(self.fid, number));
            unsettled.map_or(Slot::Settled, |u| u.slot(position))
        };
        match slot {
            Slot::Changed(sum) | Slot::Changing { before: Some(sum) } => Ok(sum),
            Slot::Settled | Slot::Changing { before: None } => {
                Ok(self.sums.region(self.fid, number)?.sum(position))
            }
        }
    }

    /// Ends the change of the blocks from `first`, which now have these checksums; `None`: unknown
    /// data.
    pub(in crate::local_objects) fn set(&self, first: u64, sums: impl IntoIterator<Item = Option<Sum>>) {
        let now = self.sums.clock.fetch_add(1, SeqCst) + 1;
        let mut shard = self.sums.shard(&self.fid).lock();
        for (block, sum) in (first..).zip(sums) {
            let (number, position) = (block / REGION_BLOCKS, (block % REGION_BLOCKS) as usize);
            let unsettled = shard.unsettled.entry((self.fid, number)).or_default();
            unsettled.set(position, Slot::Changed(sum));
            unsettled.changed = now;
        }
    }
}

impl Drop for BlockChange {
    fn drop(&mut self) {
        self.for_each_slot(|slot| match slot {
            Slot::Changing { before: None } => Slot::Settled,
            Slot::Changing { before: Some(sum) } => Slot::Changed(sum),
            ended => ended,
        });
        let mut shard = self.sums.shard(&self.fid).lock();
        for number in self.blocks.iter().flat_map(regions_of) {
            let unsettled = shard.unsettled.get(&(self.fid, number));
            if unsettled.is_some_and(|u| u.slots.iter().all(|s| *s == Slot::Settled)) {
                shard.unsettled.remove(&(self.fid, number));
            }
        }
    }
}
