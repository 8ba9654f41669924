//! Reads a sorted table block by block. A damaged block does not hide the blocks behind it.
//!
//! A table is a sequence of blocks, followed by the table's contents. A block is a header (magic
//! number, kind, checksum of the data, length of the data, checksum of the header) and data.

use std::{
    fs::File,
    io::{self, BufReader},
    ops::Range,
    os::unix::fs::FileExt,
    path::Path,
};

use lsm_tree::{
    InternalValue,
    coding::Decode,
    table::{
        Block, DataBlock,
        block::{BlockType, Header, decoder::ParsedItem as _},
    },
};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::{FileDamage, one_bit, version::TableFile};

/// The first bytes of each block.
const MAGIC: [u8; 4] = *b"LSM\x03";
/// Maximum size of a block's data, bytes: a longer block counts as damaged. The largest block is
/// a table's filter or index.
const BLOCK_MAX: u32 = 64 << 20;
/// Number of bytes that are searched at once for the next block.
const WINDOW: usize = 64 << 10;

/// Compares a table with its checksum. `None` if it matches.
pub(super) fn damage(table: &TableFile) -> Option<FileDamage> {
    let file = table.path.clone();
    let why = match checksum(&file) {
        Ok(checksum) if checksum == table.checksum => return None,
        Ok(_) => match damaged_blocks(&file) {
            Ok(blocks) if blocks.is_empty() => {
                "does not match its checksum; all its records can be read".into()
            }
            Ok(blocks) => {
                let blocks = blocks
                    .iter()
                    .map(|block| format!("{} to {}", block.start, block.end));
                let blocks = blocks.collect::<Vec<_>>().join(", ");
                format!("does not match its checksum; damaged blocks: bytes {blocks}")
            }
            Err(e) => e.to_string(),
        },
        Err(e) => e.to_string(),
    };
    Some(FileDamage { file, why })
}

/// The XXH3 of a file.
fn checksum(path: &Path) -> io::Result<u128> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut hash = Xxh3::new();
    io::copy(&mut file, &mut hash)?;
    Ok(hash.digest128())
}

fn damaged_blocks(path: &Path) -> io::Result<Vec<Range<u64>>> {
    let mut table = TableReader::open(path)?;
    let mut damaged = Vec::new();
    while let Some(part) = table.next_part()? {
        if let Part::Damaged(bytes) = part {
            damaged.push(bytes);
        }
    }
    Ok(damaged)
}

/// A part of a table.
pub(super) enum Part {
    /// A block of records, in their order.
    Records(Vec<InternalValue>),
    /// A block without records.
    Other,
    /// Bytes of one or several damaged blocks.
    Damaged(Range<u64>),
}

/// Reads the parts of a table in their order.
pub(super) struct TableReader {
    file: File,
    len: u64,
    at: u64,
    /// Whether to correct blocks in which one bit is flipped.
    corrects: bool,
}

impl TableReader {
    pub(super) fn open(path: &Path) -> io::Result<TableReader> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(TableReader {
            file,
            len,
            at: 0,
            corrects: false,
        })
    }

    /// Like [`TableReader::open`]; blocks in which one bit is flipped are corrected.
    pub(super) fn open_correcting(path: &Path) -> io::Result<TableReader> {
        let table = TableReader::open(path)?;
        Ok(TableReader {
            corrects: true,
            ..table
        })
    }

    /// The next part; `None` after the last block.
    pub(super) fn next_part(&mut self) -> io::Result<Option<Part>> {
        let start = self.at;
        let Some(header) = self.header()? else {
            return match self.next_magic(start)? {
                // The table's contents follow the last block.
                None => Ok(None),
                Some(next) => {
                    self.at = next;
                    Ok(Some(Part::Damaged(start..next)))
                }
            };
        };
        let mut data = vec![0; header.data_length as usize];
        let data_start = start + Header::serialized_len() as u64;
        self.file.read_exact_at(&mut data, data_start)?;
        self.at = data_start + data.len() as u64;
        let checksum = header.checksum.into_u128();
        let is_intact = |data: &[u8]| xxh3_128(data) == checksum;
        let usable = is_intact(&data) || self.corrects && one_bit::correct(&mut data, is_intact);
        if !usable {
            return Ok(Some(Part::Damaged(start..self.at)));
        }
        if header.block_type != BlockType::Data {
            return Ok(Some(Part::Other));
        }
        let data = data.into();
        let block = DataBlock::new(Block { header, data });
        let records = block.iter().map(|record| record.materialize(block.as_slice()));
        Ok(Some(Part::Records(records.collect())))
    }

    /// The header of the block at the current position, if there is an intact one.
    fn header(&self) -> io::Result<Option<Header>> {
        let mut bytes = [0; Header::serialized_len()];
        if self.len - self.at < bytes.len() as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut bytes, self.at)?;
        let left = self.len - self.at - bytes.len() as u64;
        let decode = |bytes: &[u8]| {
            let header = Header::decode_from(&mut &bytes[..]).ok()?;
            (header.data_length <= BLOCK_MAX && u64::from(header.data_length) <= left).then_some(header)
        };
        if let Some(header) = decode(&bytes) {
            return Ok(Some(header));
        }
        let corrected = self.corrects && one_bit::correct(&mut bytes, |bytes| decode(bytes).is_some());
        Ok(corrected.then(|| decode(&bytes)).flatten())
    }

    /// The position of the next magic number after the block that begins at `start`.
    fn next_magic(&self, start: u64) -> io::Result<Option<u64>> {
        let mut at = start + 1;
        let mut window = Vec::new();
        while self.len.saturating_sub(at) >= MAGIC.len() as u64 {
            window.resize((self.len - at).min(WINDOW as u64) as usize, 0);
            self.file.read_exact_at(&mut window, at)?;
            if let Some(found) = window.windows(MAGIC.len()).position(|bytes| bytes == MAGIC) {
                return Ok(Some(at + found as u64));
            }
            at += (window.len() - MAGIC.len() + 1) as u64;
        }
        Ok(None)
    }
}
