//! Reads, writes and punches of objects' files, with the checksums of their blocks.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;
use wire::Fid;

use super::{
    LocalObjects, ObjectFile, Shared,
    cache::{DirtyState, Entry},
    checksums::{
        BLOCK, BlockChange, Expected,
        region::{REGION_BLOCKS, Sum, sums_of, trim},
    },
    object_marks::MarkedChange,
};
use crate::{Extent, ExtentData, OsdError, Scrubbed, SetAttr, blocking, objects::bytes_of};

/// Why a read stopped before its end.
enum ReadStop {
    /// Data or checksums are not in memory.
    NotCached,
    /// The file ends `found` bytes after `offset`.
    EarlyEnd { offset: u64, found: u64 },
    /// The block's data does not match its checksum, or is being changed.
    Mismatch { block: u64 },
}

/// A change of a file: its result, or the rest of the change if the index must be synced first.
enum Begun<T, F> {
    Done(T),
    Waits(OwnedMutexGuard<()>, BlockChange, Option<MarkedChange>, F),
}

impl Entry {
    /// The file with its size, bytes; `None` if there is no file.
    fn file_and_size(&self) -> Option<(Arc<dyn ObjectFile>, u64)> {
        let state = self.state.lock();
        state.file.clone().map(|file| (file, state.attr.size))
    }

    /// Logs that a block's data is wrong.
    fn report_mismatch(&self, block: u64) -> OsdError {
        let offset = block * BLOCK;
        tracing::error!(
            "object file {}: the {BLOCK} bytes at offset {offset} do not match their checksum; reads of them fail",
            self.path.display()
        );
        OsdError::DamagedBlock {
            path: self.path.clone(),
            offset,
        }
    }
}

impl Shared {
    /// Reads extents in their order and adds their data to `read`; with `cached`, only data in the
    /// page cache, without blocking. Stops at the first extent that it cannot read in whole or that
    /// has wrong data.
    fn read(
        &self,
        entry: &Entry,
        extents: &[Extent],
        cached: bool,
        read: &mut Vec<Vec<Bytes>>,
    ) -> Result<Option<ReadStop>, OsdError> {
        for Extent { offset, len } in extents.iter().copied() {
            let Some((file, size)) = entry.file_and_size().filter(|(_, size)| offset < *size) else {
                read.push(Vec::new());
                continue;
            };
            let start = offset - offset % BLOCK;
            let len = u64::from(len).min(size - offset);
            let end = (offset + len).next_multiple_of(BLOCK).min(size);
            let pieces = file.read(start, end - start, cached);
            let Some(pieces) = pieces.map_err(OsdError::io("read", &entry.path))? else {
                return Ok(Some(ReadStop::NotCached));
            };
            let found = bytes_of(&pieces);
            if found != end - start {
                let offset = start;
                return Ok(Some(ReadStop::EarlyEnd { offset, found }));
            }
            let blocks = start / BLOCK..end.div_ceil(BLOCK);
            let Some(expected) = self.checksums.expected(entry.fid, blocks.clone(), cached)? else {
                return Ok(Some(ReadStop::NotCached));
            };
            if let Some(wrong) = first_mismatch(&pieces, &expected) {
                let block = blocks.start + wrong;
                return Ok(Some(ReadStop::Mismatch { block }));
            }
            read.push(match start == offset && end == offset + len {
                true => pieces,
                false => trim(pieces, offset - start, len),
            });
        }
        Ok(None)
    }

    /// Writes extents; `change` covers their blocks.
    fn write(
        &self,
        entry: &Entry,
        extents: &[ExtentData],
        attr: &SetAttr,
        change: &BlockChange,
    ) -> Result<Vec<Result<(), OsdError>>, OsdError> {
        let (file, new) = self.open_or_create(entry)?;
        let mut size = entry.state.lock().attr.size;
        let write = |extent: &ExtentData| {
            let written = write_extent(entry, &*file, extent, size, change);
            size = match written {
                Ok(()) => size.max(extent.offset + extent.len()),
                // A failed write may have changed a part of the range.
                Err(_) => file.measure().map_or(size, |(size, _)| size),
            };
            written
        };
        let written = extents.iter().map(write).collect();
        self.end_change(entry, new, attr)?;
        Ok(written)
    }

    /// Begins a change of `start..end`: removes the checksums of the whole blocks in this range,
    /// and begins a change of the blocks at its edges. Returns true if the index must be synced
    /// before the file changes.
    fn begin_punch(&self, entry: &Entry, start: u64, end: u64) -> Result<(BlockChange, bool), OsdError> {
        let file = entry.file_and_size();
        let size = file.as_ref().map_or(0, |(_, size)| *size);
        let edges = edges(start, end, size).map(|block| block..block + 1).collect();
        // The index may have checksums of blocks beyond the present size of a lost file: a truncate
        // removes these too.
        let end = match end {
            u64::MAX if start < size || file.is_none() => end / BLOCK,
            _ if end < size => end / BLOCK,
            _ => size.div_ceil(BLOCK),
        };
        let inner = start.div_ceil(BLOCK)..end;
        let waits = !inner.is_empty() && self.checksums.forget(entry.fid, inner)?;
        Ok((BlockChange::begin(&self.checksums, entry.fid, edges)?, waits))
    }

    /// Punches or truncates the file; `change` is that of [`Shared::begin_punch`].
    fn punch(
        &self,
        entry: &Entry,
        (start, end): (u64, u64),
        attr: &SetAttr,
        change: &BlockChange,
    ) -> Result<(), OsdError> {
        let truncates = end == u64::MAX;
        let (file, new) = self.open_or_create(entry)?;
        let size = entry.state.lock().attr.size;
        let mut changed = Vec::new();
        for block in edges(start, end, size) {
            let mut data = old_block(entry, &*file, block, size, change)?;
            let within =
                |byte: u64| (byte.max(block * BLOCK) - block * BLOCK).min(data.len() as u64) as usize;
            let zeros = within(start)..within(end);
            data[zeros].fill(0);
            changed.push((block, sums_of([&data[..]])));
        }
        let punched = if truncates {
            file.set_size(start)
                .map_err(OsdError::io("truncate", &entry.path))
        } else if end > start {
            file.punch(start, end - start)
                .map_err(OsdError::io("punch", &entry.path))
        } else {
            Ok(())
        };
        for (block, sums) in changed {
            change.set(block, sums.into_iter().map(|sum| punched.is_ok().then_some(sum)));
        }
        let attr = if punched.is_ok() {
            *attr
        } else {
            SetAttr::default()
        };
        self.end_change(entry, new, &attr)?;
        punched
    }

    /// [`Shared::finish_change`] of a change with checksums.
    fn end_change(&self, entry: &Entry, new: bool, attr: &SetAttr) -> Result<(), OsdError> {
        let ended = self.finish_change(entry, new, attr);
        if matches!(ended, Err(OsdError::NotFound)) {
            // The object was destroyed meanwhile. The destroy dropped only the checksums that
            // existed then.
            self.checksums.forget_object(entry.fid, &[]);
        }
        ended
    }

    /// Puts the checksums of synced files into the index; the sync began at `now`. After a failure
    /// they stay in memory until the next sync.
    pub(super) fn settle_checksums(&self, synced: &[(Fid, DirtyState)], now: u64) {
        if let Err(e) = self.checksums.settle(synced.iter().map(|(fid, _)| *fid), now) {
            tracing::debug!("checksums not recorded yet: {e}");
        }
    }

    /// [`crate::Objects::scrub`]; the caller holds the write lock.
    pub(super) fn scrub(&self, entry: &Entry, offset: u64, fill: bool) -> Result<Scrubbed, OsdError> {
        let mut scrubbed = Scrubbed::default();
        let Some((file, size)) = entry.file_and_size() else {
            return Ok(scrubbed);
        };
        let data = match file.seek(offset.min(size), crate::Seek::Data) {
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Ok(scrubbed),
            data => data.map_err(OsdError::io("seek", &entry.path))?,
        };
        let number = data / (BLOCK * REGION_BLOCKS);
        let start = number * BLOCK * REGION_BLOCKS;
        let end = (start + BLOCK * REGION_BLOCKS).min(size);
        scrubbed.next = (end < size).then_some(end);
        let pieces = match file.read(start, end - start, false) {
            Ok(pieces) => pieces.unwrap_or_default(),
            Err(e) => {
                // A bad sector must not end the scrub of all other data.
                tracing::error!("object file {}: read at {start}: {e}", entry.path.display());
                scrubbed.damaged.push(start);
                return Ok(scrubbed);
            }
        };
        scrubbed.bytes = bytes_of(&pieces);
        let first = number * REGION_BLOCKS;
        let sums = sums_of(pieces.iter().map(|p| &p[..]));
        self.checksums.drop_cached(entry.fid, first..first + 1);
        let expected = self
            .checksums
            .expected(entry.fid, first..first + sums.len() as u64, false)?;
        for (i, (sum, expected)) in sums.iter().zip(expected.unwrap_or_default()).enumerate() {
            if matches!(expected, Expected::Sum(expected) if expected != *sum) {
                let block = first + i as u64;
                scrubbed.damaged.push(block * BLOCK);
                entry.report_mismatch(block);
            }
        }
        if fill && self.cache.dirty(&entry.fid).is_none() {
            scrubbed.filled = self.checksums.fill(entry.fid, number, &sums)?;
        }
        Ok(scrubbed)
    }
}

/// The index in `expected` of the first block whose data does not match its checksum, or that is
/// being changed.
fn first_mismatch(pieces: &[Bytes], expected: &[Expected]) -> Option<u64> {
    if expected.iter().all(|e| *e == Expected::Unchecked) {
        return None;
    }
    let sums = sums_of(pieces.iter().map(|p| &p[..]));
    let differs = |(sum, expected): (&Sum, &Expected)| match expected {
        Expected::Sum(expected) => expected != sum,
        Expected::Unchecked => false,
        Expected::Changing => true,
    };
    let position = sums.iter().zip(expected).position(differs);
    position.map(|position| position as u64)
}

/// The blocks of a file of `size` bytes that `start..end` covers only in part.
fn edges(start: u64, end: u64, size: u64) -> impl Iterator<Item = u64> {
    let last = (!end.is_multiple_of(BLOCK) && end < size).then_some(end / BLOCK);
    let first = (!start.is_multiple_of(BLOCK) && start < size && start < end).then_some(start / BLOCK);
    first.into_iter().chain(last.filter(|last| first != Some(*last)))
}

/// Reads the present data of a block, up to the end of the file. Fails if the data does not match
/// the block's checksum.
fn old_block(
    entry: &Entry,
    file: &dyn ObjectFile,
    block: u64,
    size: u64,
    change: &BlockChange,
) -> Result<Vec<u8>, OsdError> {
    let start = block * BLOCK;
    if start >= size {
        return Ok(Vec::new());
    }
    let pieces = file.read(start, BLOCK.min(size - start), false);
    let data = pieces
        .map_err(OsdError::io("read", &entry.path))?
        .unwrap_or_default()
        .concat();
    match change.before(block)? {
        Some(sum) if sums_of([&data[..]]).first() != Some(&sum) => Err(entry.report_mismatch(block)),
        _ => Ok(data),
    }
}

/// Writes one extent to a file of `size` bytes, and records the checksums of its blocks.
fn write_extent(
    entry: &Entry,
    file: &dyn ObjectFile,
    extent: &ExtentData,
    size: u64,
    change: &BlockChange,
) -> Result<(), OsdError> {
    let (start, end) = (extent.offset, extent.offset + extent.len());
    if start == end {
        return Ok(());
    }
    let (first, last) = (start / BLOCK, (end - 1) / BLOCK);
    let old = |block| old_block(entry, file, block, size, change);
    // The parts of the first and the last block around the extent.
    let mut head = Vec::new();
    let mut tail = Vec::new();
    if !end.is_multiple_of(BLOCK) && end < size {
        tail = old(last)?;
    }
    if !start.is_multiple_of(BLOCK) {
        head = match first == last && !tail.is_empty() {
            true => tail.clone(),
            false => old(first)?,
        };
        head.resize((start % BLOCK) as usize, 0);
    }
    let tail = tail.get((end % BLOCK) as usize..).unwrap_or_default();
    let data = extent.data.iter().map(|piece| &piece[..]);
    let sums = sums_of([&head[..]].into_iter().chain(data).chain([tail]));
    let mut position = start;
    let written = extent.data.iter().try_for_each(|piece| {
        file.write(position, piece)
            .map_err(OsdError::io("write", &entry.path))?;
        position += piece.len() as u64;
        Ok(())
    });
    change.set(first, sums.into_iter().map(|sum| written.is_ok().then_some(sum)));
    written
}

impl LocalObjects {
    pub(super) async fn read_checked(
        &self,
        fid: Fid,
        extents: Vec<Extent>,
    ) -> Result<Vec<Vec<Bytes>>, OsdError> {
        let entry = self.entry(fid).await?;
        entry.check_undamaged()?;
        let mut read = Vec::with_capacity(extents.len());
        // Data in the page cache needs no other thread.
        if self.shared.read(&entry, &extents, true, &mut read)?.is_none() {
            return Ok(read);
        }
        let (shared, first) = (self.shared.clone(), entry.clone());
        let (extents, mut read, stop) = blocking(move || {
            let stop = shared.read(&first, &extents[read.len()..], false, &mut read)?;
            Ok((extents, read, stop))
        })
        .await?;
        if stop.is_none() {
            return Ok(read);
        }
        // The file is too short, or a block does not match its checksum. The cause may be a change
        // in progress: take the write lock, which that change holds, and read again.
        let write_lock = entry.write_lock.clone().lock_owned().await;
        let shared = self.shared.clone();
        blocking(move || {
            let _write_lock = write_lock;
            if let Some(ReadStop::Mismatch { block }) = stop {
                shared.checksums.drop_cached(fid, block..block + 1);
            }
            match shared.read(&entry, &extents[read.len()..], false, &mut read)? {
                None => Ok(read),
                Some(ReadStop::EarlyEnd { offset, found }) => Err(entry.report_early_end(offset, found)),
                Some(ReadStop::Mismatch { block }) => Err(entry.report_mismatch(block)),
                Some(ReadStop::NotCached) => Err(OsdError::Invalid("a blocking read returned no data")),
            }
        })
        .await
    }

    pub(super) async fn write_checked(
        &self,
        fid: Fid,
        extents: Vec<ExtentData>,
        attr: SetAttr,
    ) -> Result<Vec<Result<(), OsdError>>, OsdError> {
        let blocks_of = |e: &ExtentData| e.offset / BLOCK..(e.offset + e.len()).div_ceil(BLOCK);
        let blocks = extents.iter().map(blocks_of).collect();
        let begin = move |shared: &Shared, _: &Entry| {
            let change = BlockChange::begin(&shared.checksums, fid, blocks)?;
            Ok((change, false))
        };
        let entry = self.entry(fid).await?;
        let locked = entry.write_lock.clone().lock_owned().await;
        let worker_may = self.shared.worker_may_write(&entry, &extents);
        let write = move |shared: &Shared, entry: &Entry, change: &BlockChange| {
            shared.write(entry, &extents, &attr, change)
        };
        self.change_locked((entry, locked), worker_may, begin, write)
            .await
    }

    pub(super) async fn punch_checked(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        attr: SetAttr,
    ) -> Result<(), OsdError> {
        let truncates = end == u64::MAX;
        let begin = move |shared: &Shared, entry: &Entry| {
            let lowered = truncates && shared.lower_durable_size(entry, start)?;
            let (change, waits) = shared.begin_punch(entry, start, end)?;
            Ok((change, lowered || waits))
        };
        self.change_file(fid, begin, move |shared, entry, change| {
            entry.check_undamaged()?;
            if entry.state.lock().file.is_none() && (start == 0 || !truncates) {
                entry.state.lock().set_attr(&attr);
                return shared.write_record(entry);
            }
            shared.punch(entry, (start, end), &attr, change)
        })
        .await
    }

    /// Changes an object's file on a thread for blocking work and with the object's write lock.
    /// `begin` starts the [`BlockChange`], and returns true if the index must be synced before the
    /// file changes.
    pub(super) async fn change_file<T: Send + 'static>(
        &self,
        fid: Fid,
        begin: impl FnOnce(&Shared, &Entry) -> Result<(BlockChange, bool), OsdError> + Send + 'static,
        change: impl FnOnce(&Shared, &Entry, &BlockChange) -> Result<T, OsdError> + Send + 'static,
    ) -> Result<T, OsdError> {
        let entry = self.entry(fid).await?;
        let locked = entry.write_lock.clone().lock_owned().await;
        self.change_locked((entry, locked), false, begin, change).await
    }

    /// As [`LocalObjects::change_file`], with the write lock held; on this thread if `worker_may`
    /// and the disk is fast.
    async fn change_locked<T: Send + 'static>(
        &self,
        (entry, locked): (Arc<Entry>, OwnedMutexGuard<()>),
        worker_may: bool,
        begin: impl FnOnce(&Shared, &Entry) -> Result<(BlockChange, bool), OsdError> + Send + 'static,
        change: impl FnOnce(&Shared, &Entry, &BlockChange) -> Result<T, OsdError> + Send + 'static,
    ) -> Result<T, OsdError> {
        let (shared, of_first) = (self.shared.clone(), entry.clone());
        let work = move || {
            // Released last.
            let locked = locked;
            let exists = of_first.state.lock().exists;
            let mark = match exists {
                true => shared.marks.begin(of_first.fid)?,
                false => None,
            };
            let (blocks, waits) = begin(&shared, &of_first)?;
            let mark_waits = mark.as_ref().is_some_and(MarkedChange::waits_for_index);
            if waits || blocks.waits_for_index() || mark_waits {
                return Ok(Begun::Waits(locked, blocks, mark, change));
            }
            change(&shared, &of_first, &blocks).map(Begun::Done)
        };
        let begun = match worker_may {
            true => self.shared.run_small(true, work).await?,
            false => blocking(work).await?,
        };
        let (locked, mut blocks, mark, change) = match begun {
            Begun::Done(result) => return Ok(result),
            Begun::Waits(locked, blocks, mark, change) => (locked, blocks, mark, change),
        };
        self.shared.index.sync().await?;
        blocks.index_synced();
        mark.iter().for_each(MarkedChange::index_synced);
        let shared = self.shared.clone();
        blocking(move || {
            let (_locked, _mark) = (locked, mark);
            let blocks = blocks;
            change(&shared, &entry, &blocks)
        })
        .await
    }
}
