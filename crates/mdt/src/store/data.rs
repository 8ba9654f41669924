//! The data of files on the MDT: blocks of [`BLOCK_BYTES`] and a record of attributes, which change
//! in one batch. A file without these records has no data.
//!
//! A block's record ends with the last byte that is not known to be zero, so a missing record is a
//! hole. The index keeps checksums, makes data durable in the order of transactions, and replays
//! them. So this data needs no rules of its own for crashes.

use std::{collections::BTreeMap, ops::Range};

use bytes::{Bytes, BytesMut};
use osd::{ExtentData, ObjAttr, Seek, prefix_end};
use wire::{Errno, Fid, Reader, Time, Writer};

use super::{Store, keys};

/// The size of a block, bytes.
pub const BLOCK_BYTES: u64 = 16 << 10;
/// Version of the record of attributes.
const VERSION: u8 = 1;
/// The unit in which the space of blocks is counted, bytes.
const SPACE_UNIT: u64 = 4096;

/// The number of the block with this byte.
fn block_of(offset: u64) -> u32 {
    u32::try_from(offset / BLOCK_BYTES).unwrap_or(u32::MAX)
}

/// The space of a block, in units of 512 bytes.
fn space_of(block: Option<&Bytes>) -> u64 {
    block.map_or(0, |b| (b.len() as u64).div_ceil(SPACE_UNIT) * (SPACE_UNIT / 512))
}

/// Blocks by number.
type Blocks = BTreeMap<u32, Bytes>;

/// A file's data as a change needs it: the attributes, and the blocks that the change touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileData {
    /// The attributes. `size` is the end of the data, `blocks` the space of the blocks.
    pub attr: ObjAttr,
    blocks: Blocks,
    /// The blocks that the change sets (`Some`) or removes (`None`).
    changed: BTreeMap<u32, Option<Bytes>>,
}

impl FileData {
    fn block(&self, number: u32) -> Option<&Bytes> {
        match self.changed.get(&number) {
            Some(changed) => changed.as_ref(),
            None => self.blocks.get(&number),
        }
    }

    fn set_block(&mut self, number: u32, block: Option<Bytes>) {
        let block = block.filter(|b| !b.is_empty());
        let old = space_of(self.block(number));
        self.attr.blocks = (self.attr.blocks + space_of(block.as_ref())).saturating_sub(old);
        self.changed.insert(number, block);
    }

    /// Writes an extent.
    pub fn write(&mut self, extent: &ExtentData) {
        let mut offset = extent.offset;
        for piece in &extent.data {
            let mut rest = &piece[..];
            while !rest.is_empty() {
                let number = block_of(offset);
                let from = (offset % BLOCK_BYTES) as usize;
                let (part, after) = rest.split_at(rest.len().min(BLOCK_BYTES as usize - from));
                let old = self.block(number).cloned().unwrap_or_default();
                let mut block = BytesMut::with_capacity(old.len().max(from + part.len()));
                block.extend_from_slice(&old[..old.len().min(from)]);
                block.resize(from, 0);
                block.extend_from_slice(part);
                block.extend_from_slice(old.get(from + part.len()..).unwrap_or_default());
                self.set_block(number, Some(block.freeze()));
                offset += part.len() as u64;
                rest = after;
            }
        }
        self.attr.size = self.attr.size.max(offset);
    }

    /// Sets the size: cuts the data, or extends it by a hole.
    pub fn truncate(&mut self, size: u64) {
        self.zero(size..self.attr.size.max(size));
        self.attr.size = size;
    }

    /// Makes a hole; the size stays.
    pub fn zero(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let numbers = block_of(range.start)..=block_of(range.end - 1);
        let stored: Vec<u32> = self.blocks.range(numbers.clone()).map(|(n, _)| *n).collect();
        let written: Vec<u32> = self.changed.range(numbers).map(|(n, _)| *n).collect();
        for number in stored.into_iter().chain(written) {
            let start = u64::from(number) * BLOCK_BYTES;
            let Some(old) = self.block(number).cloned() else {
                continue;
            };
            let from = (range.start.saturating_sub(start) as usize).min(old.len());
            let to = (range.end - start).min(old.len() as u64) as usize;
            let block = if to < old.len() {
                let mut zeroed = BytesMut::from(&old[..]);
                zeroed[from..to].fill(0);
                zeroed.freeze()
            } else {
                old.slice(..from)
            };
            self.set_block(number, Some(block));
        }
    }

    /// The bytes of a range, up to the end of the data.
    pub fn read(&self, range: Range<u64>) -> Vec<Bytes> {
        let end = range.end.min(self.attr.size);
        let mut out = Vec::new();
        let mut offset = range.start;
        while offset < end {
            let from = (offset % BLOCK_BYTES) as usize;
            let to = (end - offset).min(BLOCK_BYTES - from as u64) as usize + from;
            let block = self.block(block_of(offset));
            let stored = block.map_or(Bytes::new(), |b| b.slice(from.min(b.len())..to.min(b.len())));
            let zeros = to - from - stored.len();
            out.extend(
                [stored, Bytes::from(vec![0; zeros])]
                    .into_iter()
                    .filter(|b| !b.is_empty()),
            );
            offset += (to - from) as u64;
        }
        out
    }

    /// The next data or hole at or after `offset`, if all blocks were read. `None`: beyond the end,
    /// or no data follows.
    pub fn seek(&self, offset: u64, kind: Seek) -> Option<u64> {
        if offset >= self.attr.size {
            return None;
        }
        let data_of = |(number, block): (&u32, &Bytes)| {
            let start = u64::from(*number) * BLOCK_BYTES;
            start..(start + block.len() as u64).min(self.attr.size)
        };
        let mut parts = self.blocks.iter().map(data_of);
        match kind {
            Seek::Data => parts.find(|p| p.end > offset).map(|p| p.start.max(offset)),
            Seek::Hole => {
                let after = |at: u64, part: Range<u64>| match part.contains(&at) {
                    true => part.end,
                    false => at,
                };
                Some(parts.fold(offset, after))
            }
        }
    }

    /// The changed blocks.
    pub(super) fn into_changes(self) -> (ObjAttr, Vec<(u32, Option<Bytes>)>) {
        (self.attr, self.changed.into_iter().collect())
    }
}

/// The sum of a file's blocks, for checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataSum {
    /// The end of the last block's data.
    pub(crate) end: u64,
    /// The space, in units of 512 bytes.
    pub(crate) blocks: u64,
}

impl DataSum {
    /// Adds a block. Blocks come in the order of their numbers.
    pub(crate) fn add(&mut self, number: u32, block: &Bytes) {
        self.end = u64::from(number) * BLOCK_BYTES + block.len() as u64;
        self.blocks += space_of(Some(block));
    }

    /// Whether attributes are right for these blocks.
    pub(crate) fn matches(&self, attr: &ObjAttr) -> bool {
        attr.blocks == self.blocks && attr.size >= self.end
    }
}

/// The record of attributes.
pub(super) fn encode_attr(attr: &ObjAttr) -> Bytes {
    let mut writer = Writer::with_capacity(65);
    writer.u8(VERSION);
    for v in [attr.size, attr.blocks, attr.data_version] {
        writer.u64(v);
    }
    writer.u32(attr.layout_version);
    for t in [attr.atime, attr.mtime, attr.ctime] {
        writer.u64(t.sec as u64);
        writer.u32(t.ns);
    }
    writer.finish()
}

/// Decodes the record of attributes.
///
/// # Errors
///
/// `EPROTO` if the record is malformed.
pub fn decode_attr(value: &[u8]) -> Result<ObjAttr, Errno> {
    let mut reader = Reader::new("data on the MDT", value);
    if reader.u8()? != VERSION {
        return Err(Errno::EPROTO);
    }
    let mut attr = ObjAttr {
        size: reader.u64()?,
        blocks: reader.u64()?,
        data_version: reader.u64()?,
        layout_version: reader.u32()?,
        ..ObjAttr::default()
    };
    for time in [&mut attr.atime, &mut attr.mtime, &mut attr.ctime] {
        *time = Time::new(reader.u64()? as i64, reader.u32()?);
    }
    Ok(attr)
}

impl Store {
    /// The attributes of a file's data; `None` if it has none.
    ///
    /// # Errors
    ///
    /// `EIO` if the record is malformed, or the error of the index.
    pub async fn data_attr(&self, fid: Fid) -> Result<Option<ObjAttr>, Errno> {
        let value = self.index().get(&keys::data(fid)).await?;
        let decode = |value: Bytes| {
            decode_attr(&value).map_err(|e| {
                tracing::error!("cannot decode the data of file {fid}: {e}. Run 'nacre fsck' on the MDT");
                Errno::EIO
            })
        };
        value.map(decode).transpose()
    }

    /// A file's data: its attributes, and the blocks with bytes of a range.
    ///
    /// # Errors
    ///
    /// As [`Store::data_attr`].
    pub async fn file_data(&self, fid: Fid, range: Range<u64>) -> Result<FileData, Errno> {
        let attr = self.data_attr(fid).await?.unwrap_or_default();
        // A change also keeps the bytes around the range in its first block.
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end.min(attr.size);
        let mut blocks = Blocks::new();
        if start < attr.size && range.start < range.end {
            let (first, last) = (block_of(start), block_of(end.max(start + 1) - 1));
            let count = (last - first) as usize + 1;
            let to = [&keys::data_block(fid, last)[..], b"\0"].concat();
            let rows = self
                .index()
                .scan(&keys::data_block(fid, first), &to, count)
                .await?;
            blocks.extend(
                rows.into_iter()
                    .filter_map(|(key, value)| Some((keys::block(&key)?, value))),
            );
        }
        Ok(FileData {
            attr,
            blocks,
            changed: BTreeMap::new(),
        })
    }

    /// A file's data without blocks, with a size and space that match its stored blocks.
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub(crate) async fn repaired_data(&self, fid: Fid) -> Result<FileData, Errno> {
        let (from, blocks_max) = (keys::data(fid), u32::MAX as usize);
        let rows = self.index().scan(&from, &prefix_end(&from), blocks_max).await?;
        let (mut attr, mut sum) = (ObjAttr::default(), DataSum::default());
        for (key, value) in &rows {
            match keys::block(key) {
                Some(number) => sum.add(number, value),
                None => attr = decode_attr(value).unwrap_or_default(),
            }
        }
        attr.size = attr.size.max(sum.end);
        attr.blocks = sum.blocks;
        Ok(FileData {
            attr,
            ..FileData::default()
        })
    }

    /// The keys of all records of a file's data.
    ///
    /// # Errors
    ///
    /// The error of the index.
    pub(crate) async fn data_keys(&self, fid: Fid) -> Result<Vec<Bytes>, Errno> {
        let (from, blocks_max) = (keys::data(fid), u32::MAX as usize);
        let rows = self.index().scan(&from, &prefix_end(&from), blocks_max).await?;
        Ok(rows.into_iter().map(|(key, _)| key).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn extent(offset: u64, data: &[u8]) -> ExtentData {
        ExtentData {
            offset,
            data: data.chunks(1000).map(Bytes::copy_from_slice).collect(),
        }
    }

    /// The data as the next operation reads it.
    fn stored(data: FileData) -> FileData {
        let (attr, changes) = data.clone().into_changes();
        let mut blocks = data.blocks;
        for (number, block) in changes {
            match block {
                Some(block) => blocks.insert(number, block),
                None => blocks.remove(&number),
            };
        }
        let attr = decode_attr(&encode_attr(&attr)).unwrap();
        FileData {
            attr,
            blocks,
            changed: BTreeMap::new(),
        }
    }

    #[test]
    fn malformed_attributes_are_an_error() {
        let record = encode_attr(&ObjAttr::default());
        assert!(decode_attr(&record).is_ok());
        assert!(decode_attr(&record[1..]).is_err());
        assert!(decode_attr(&[]).is_err());
    }

    #[test]
    fn seek_finds_data_and_holes() {
        let mut data = FileData::default();
        data.write(&extent(BLOCK_BYTES * 2, &[1; 5000]));
        data.truncate(BLOCK_BYTES * 4);
        let data = stored(data);
        let start = BLOCK_BYTES * 2;
        assert_eq!(data.seek(0, Seek::Data), Some(start));
        assert_eq!(data.seek(start + 1, Seek::Data), Some(start + 1));
        assert_eq!(data.seek(start + 5000, Seek::Data), None);
        assert_eq!(data.seek(0, Seek::Hole), Some(0));
        assert_eq!(data.seek(start, Seek::Hole), Some(start + 5000));
        assert_eq!(data.seek(BLOCK_BYTES * 4, Seek::Hole), None);
        assert_eq!(data.attr.blocks, 16);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize, usize, u8),
        Truncate(usize),
        Zero(usize, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Three and a half blocks.
        let offset = 0usize..56 << 10;
        let len = prop_oneof![1usize..5000, 1usize..40_000];
        prop_oneof![
            (offset.clone(), len.clone(), 1u8..=255).prop_map(|(o, l, b)| Step::Write(o, l, b)),
            offset.clone().prop_map(Step::Truncate),
            (offset, len).prop_map(|(o, l)| Step::Zero(o, l)),
        ]
    }

    proptest! {
        #[test]
        fn data_is_what_a_buffer_in_memory_has(steps in prop::collection::vec((step(), any::<bool>()), 1..12)) {
            let (mut data, mut model) = (FileData::default(), Vec::new());
            for (step, stores) in steps {
                match step {
                    Step::Write(offset, len, byte) => {
                        data.write(&extent(offset as u64, &vec![byte; len]));
                        model.resize(model.len().max(offset + len), 0);
                        model[offset..offset + len].fill(byte);
                    }
                    Step::Truncate(size) => {
                        data.truncate(size as u64);
                        model.resize(size, 0);
                    }
                    Step::Zero(offset, len) => {
                        let end = (offset + len).min(model.len());
                        data.zero(offset as u64..end as u64);
                        model[offset.min(end)..end].fill(0);
                    }
                }
                if stores {
                    data = stored(data);
                }
                prop_assert_eq!(data.attr.size, model.len() as u64);
                prop_assert_eq!(data.read(0..u64::MAX).concat(), &model[..]);
                let middle = model.len() / 3;
                prop_assert_eq!(data.read(middle as u64..middle as u64 + 9000).concat(), &model[middle..(middle + 9000).min(model.len())]);
            }
            let data = stored(data);
            let space: u64 = data.blocks.values().map(|b| space_of(Some(b))).sum();
            prop_assert_eq!(data.attr.blocks, space);
        }
    }
}
