//! Sparse bytes in memory: a set of chunks of up to 64 KiB. A chunk ends with the last page (4 KiB)
//! that was written or allocated.

use std::{collections::BTreeMap, ops::Range};

use bytes::{Bytes, BytesMut};

use crate::{OsdError, READ_PIECE, Seek};

/// Bytes that a chunk covers.
const CHUNK: u64 = 64 << 10;
/// Unit of allocation, bytes.
const PAGE: u64 = SparseData::PAGE;

/// Bytes with holes, which read as zeros.
#[derive(Clone, Debug, Default)]
pub struct SparseData {
    size: u64,
    /// The chunks by offset divided by [`CHUNK`]. Bytes beyond `size` are zero.
    chunks: BTreeMap<u64, Vec<u8>>,
    /// Sum of all chunks' lengths, bytes.
    allocated: u64,
}

/// The chunks that a range touches, each with its part of the range, relative to the chunk.
fn chunks_of(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
    let Range { start, end } = *range;
    let chunks = if start < end {
        start / CHUNK..end.div_ceil(CHUNK)
    } else {
        0..0
    };
    chunks.map(move |i| {
        let first = i * CHUNK;
        let (from, to) = (start.max(first) - first, (end - first).min(CHUNK));
        (i, from as usize..to as usize)
    })
}

impl SparseData {
    /// Length of a page, the unit of allocation, bytes.
    pub const PAGE: u64 = 4 << 10;

    /// Size, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Allocated space, bytes.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Bytes that must be allocated to hold a range.
    pub fn missing(&self, range: &Range<u64>) -> u64 {
        chunks_of(range)
            .map(|(i, part)| {
                let chunk_len = self.chunks.get(&i).map_or(0, |c| c.len() as u64);
                (part.end as u64).next_multiple_of(PAGE).saturating_sub(chunk_len)
            })
            .sum()
    }

    /// Grows a chunk to at least `end` bytes; creates it if it is missing.
    fn grow_chunk(&mut self, i: u64, end: usize) -> &mut Vec<u8> {
        let chunk = self.chunks.entry(i).or_default();
        if chunk.len() < end {
            let len = end.next_multiple_of(PAGE as usize);
            self.allocated += (len - chunk.len()) as u64;
            chunk.reserve_exact(len - chunk.len());
            chunk.resize(len, 0);
        }
        chunk
    }

    /// Allocates a range; the size stays.
    pub fn allocate(&mut self, range: &Range<u64>) {
        for (i, part) in chunks_of(range) {
            self.grow_chunk(i, part.end);
        }
    }

    /// Truncates or extends to `size` bytes.
    pub fn set_size(&mut self, size: u64) {
        if size < self.size {
            self.free(size..u64::MAX);
        }
        self.size = size;
    }

    /// Writes bytes.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut rest = data;
        for (i, part) in chunks_of(&(offset..end)) {
            let (head, tail) = rest.split_at(part.len());
            self.grow_chunk(i, part.end)[part].copy_from_slice(head);
            rest = tail;
        }
        self.size = self.size.max(end);
    }

    /// Reads up to `len` bytes, fewer at the end, in buffers of at most [`READ_PIECE`].
    pub fn read(&self, offset: u64, len: u64) -> Vec<Bytes> {
        let end = self.size.min(offset.saturating_add(len));
        let mut position = offset;
        let mut out = Vec::new();
        while position < end {
            let mut piece = BytesMut::zeroed((end - position).min(READ_PIECE) as usize);
            let mut rest = &mut piece[..];
            let len = rest.len() as u64;
            for (i, part) in chunks_of(&(position..position + len)) {
                let (head, tail) = rest.split_at_mut(part.len());
                let stored = self.chunks.get(&i).and_then(|c| c.get(part.start..));
                if let Some(stored) = stored {
                    let n = stored.len().min(head.len());
                    head[..n].copy_from_slice(&stored[..n]);
                }
                rest = tail;
            }
            position += len;
            out.push(piece.freeze());
        }
        out
    }

    /// Frees a range: drops chunks inside it, shortens a chunk that ends inside it, and zeroes the
    /// rest. The size stays.
    pub fn free(&mut self, range: Range<u64>) {
        let chunks_end = self.chunks.keys().next_back().map_or(0, |i| (i + 1) * CHUNK);
        for (i, part) in chunks_of(&(range.start..range.end.min(chunks_end))) {
            let Some(chunk) = self.chunks.get_mut(&i) else {
                continue;
            };
            if part.end < chunk.len() {
                chunk[part].fill(0);
                continue;
            }
            let keep = part.start.next_multiple_of(PAGE as usize).min(chunk.len());
            if let Some(rest) = chunk.get_mut(part.start..keep) {
                rest.fill(0);
            }
            self.allocated -= (chunk.len() - keep) as u64;
            chunk.truncate(keep);
            chunk.shrink_to_fit();
            if keep == 0 {
                self.chunks.remove(&i);
            }
        }
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    ///
    /// [`OsdError::NotFound`] beyond the end, or if no data follows.
    pub fn seek(&self, offset: u64, kind: Seek) -> Result<u64, OsdError> {
        if offset >= self.size {
            return Err(OsdError::NotFound);
        }
        let found = match kind {
            Seek::Data => self
                .chunks
                .range(offset / CHUNK..)
                .next()
                .map(|(&i, _)| offset.max(i * CHUNK)),
            Seek::Hole => {
                let mut index = offset / CHUNK;
                while self.chunks.contains_key(&index) {
                    index += 1;
                }
                Some(offset.max(index * CHUNK).min(self.size))
            }
        };
        found
            .filter(|&f| f < self.size || kind == Seek::Hole)
            .ok_or(OsdError::NotFound)
    }

    /// The allocated pages in a range of bytes, each with its number: its offset divided by the
    /// length of a page.
    pub fn pages(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8])> {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK).max(range.start / CHUNK);
        let pages = self.chunks.range(chunks).flat_map(|(i, chunk)| {
            let pages = chunk.chunks(PAGE as usize).enumerate();
            pages.map(move |(n, page)| (i * (CHUNK / PAGE) + n as u64, page))
        });
        pages.filter(move |(page, _)| (page + 1) * PAGE > range.start && page * PAGE < range.end)
    }

    /// Copies a page of other data; the size stays. If the page is a hole in `from`, this frees its
    /// space only if it is the last page of a chunk. So a caller that copies several pages copies
    /// the last page first.
    pub fn copy_page(&mut self, from: &SparseData, page: u64) {
        let (i, start) = (page * PAGE / CHUNK, (page * PAGE % CHUNK) as usize);
        let end = start + PAGE as usize;
        match from.chunks.get(&i).and_then(|chunk| chunk.get(start..end)) {
            Some(bytes) => self.grow_chunk(i, end)[start..end].copy_from_slice(bytes),
            None => self.free(page * PAGE..(page + 1) * PAGE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copied_pages_equal_the_original() {
        let mut data = SparseData::default();
        data.write(PAGE + 1, b"a");
        data.write(CHUNK + 3 * PAGE, b"b");
        let pages: Vec<u64> = data.pages(0..u64::MAX).map(|(page, _)| page).collect();
        assert_eq!(pages, [0, 1, 16, 17, 18, 19]);
        let inside: Vec<u64> = data.pages(PAGE..CHUNK + PAGE + 1).map(|(page, _)| page).collect();
        assert_eq!(inside, [1, 16, 17]);
        let mut copy = SparseData::default();
        copy.set_size(data.size());
        copy.write(0, b"lost");
        pages.iter().for_each(|page| copy.copy_page(&data, *page));
        let len = data.size();
        assert_eq!((copy.read(0, len), copy.size()), (data.read(0, len), len));
        data.free(0..u64::MAX);
        pages.iter().rev().for_each(|page| copy.copy_page(&data, *page));
        assert_eq!((copy.read(0, len), copy.allocated()), (data.read(0, len), 0));
    }
}
