//! Reads one journal of the engine (fjall 3) without changing it, and finds its complete batches.
//!
//! A journal is a sequence of batches followed by zeros. A batch is a start entry (number of items,
//! sequence number), the items, and an end entry with a checksum of the items. All numbers are
//! little-endian:
//!
//! ```text
//! start  01 | items u32 | sequence number u64
//! item   02 | kind u8 | compression u8 | key space u64 | key length u16 | value length u32
//!        | stored length u32 | key | value
//! clear  04 | key space u64
//! end    03 | xxh3 of the items u64 | "FJL" 03
//! ```
//!
//! A crash leaves a torn tail: an incomplete last batch with nothing after it. An incomplete batch
//! before a complete one is damage, with one exception: a power cut can lose unsynced sectors and
//! keep later ones. A lost sector reads as zeros up to its end. At most one commit record follows a
//! lost sector, because the index writes a second one only when everything up to the first is on
//! disk. When the index closes, it writes a second commit record, so damage in the last changes is
//! recognised too.

use std::{fs, io, ops::Range, os::unix::fs::FileExt, path::Path};

use rustix::fs::SeekFrom;
use xxhash_rust::xxh3::Xxh3;

use crate::Transactions;

pub(super) const START: u8 = 1;
pub(super) const ITEM: u8 = 2;
const END: u8 = 3;
pub(super) const CLEAR: u8 = 4;
const MAGIC: [u8; 4] = *b"FJL\x03";
const START_BYTES: usize = 13;
const ITEM_BYTES: usize = 21;
const CLEAR_BYTES: usize = 9;
pub(super) const END_BYTES: usize = 13;
/// The lowest kind of an item that removes a record.
pub(super) const TOMBSTONE: u8 = 1;
/// The index writes only item kinds below this one.
const KIND_END: u8 = 3;
/// Exclusive upper bound of the distance between the sequence numbers of two successive batches.
const SEQUENCE_STEP_MAX: u64 = 1 << 32;
/// Exclusive upper bound of a sequence number.
const SEQUENCE_END: u64 = 1 << 63;
/// The search for complete batches stops when [`Journal::searched_bytes`] exceeds this many times
/// the journal's size plus [`SEARCH_BYTES`]. Without a limit a user could stall the search with
/// data that looks like the start of many long batches.
const SEARCH_FACTOR: u64 = 16;
/// Minimum of the search's limit, bytes ([`SEARCH_FACTOR`]).
const SEARCH_BYTES: u64 = 64 << 20;
/// Minimum number of bytes read at once, as far as the journal has them.
const WINDOW: usize = 1 << 20;
/// Number of bytes that the search for nonzero data reads at once.
const PAGE: u64 = 4096;
/// The unit that a disk writes atomically.
const SECTOR: u64 = 512;
/// Minimum number of zero bytes at the end of a lost sector: fewer can belong to a record.
const ZEROS_MIN: u64 = 32;

/// The contents of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Byte ranges of complete batches, in order.
    pub(crate) complete: Vec<Range<u64>>,
    /// Damaged byte ranges.
    pub(crate) damaged: Vec<Range<u64>>,
    /// Offset of the torn tail; `None` if there is none.
    pub(crate) torn: Option<u64>,
    /// The sequence number of the last complete batch; if there is none, that of the previous
    /// journal.
    pub(crate) sequence: Option<u64>,
    /// The journal's size, bytes.
    pub(crate) len: u64,
}

/// A batch with a correct checksum.
#[derive(Clone)]
struct Batch {
    bytes: Range<u64>,
    sequence: u64,
    /// Number of commit records in it.
    commits: u32,
}

/// Adjacent complete batches.
struct BatchRun {
    bytes: Range<u64>,
    /// Number of commit records in them.
    commits: u32,
}

/// Whether a batch may follow one with the sequence number `before`; true without `before`.
fn follows(before: Option<u64>, sequence: u64) -> bool {
    before.is_none_or(|before| sequence > before && sequence - before < SEQUENCE_STEP_MAX)
}

/// Scans a journal; `before` is the sequence number of the last batch of the previous journal.
pub(crate) fn scan(path: &Path, before: Option<u64>) -> io::Result<Scan> {
    let mut journal = Journal::open(path)?;
    let mut runs: Vec<BatchRun> = Vec::new();
    // The checksum does not cover the sequence number. So a batch is accepted only if the next
    // batch follows it, or if it is the last batch. Otherwise one of the two is damaged: the
    // earlier batch if the later one follows the last accepted batch, else the later batch.
    let mut accepted = before;
    let mut last: Option<Batch> = None;
    let (mut pos, mut damaged_to) = (0, 0);
    while let Some(next) = journal.next_batch(pos)? {
        pos = next.bytes.end;
        match last.take() {
            Some(batch) if follows(Some(batch.sequence), next.sequence) => {
                accepted = Some(batch.sequence);
                add(&mut runs, &batch);
                last = Some(next);
            }
            batch if follows(accepted, next.sequence) => {
                damaged_to = batch.map_or(damaged_to, |batch| batch.bytes.end);
                last = Some(next);
            }
            batch => {
                damaged_to = next.bytes.end;
                last = batch;
            }
        }
    }
    if let Some(batch) = last {
        accepted = Some(batch.sequence);
        add(&mut runs, &batch);
    }
    if journal.gave_up {
        damaged_to = journal.len;
    }
    let mut scan = Scan {
        sequence: accepted,
        len: journal.len,
        ..Scan::default()
    };
    let mut end = 0;
    for (n, run) in runs.iter().enumerate() {
        let gap = end..run.bytes.start;
        if !gap.is_empty() {
            let commits: u32 = runs[n..].iter().map(|s| s.commits).sum();
            if commits < 2 && damaged_to <= end && journal.has_lost_sector(&gap)? {
                scan.torn = Some(end);
                return Ok(scan);
            }
            scan.damaged.push(gap);
        }
        end = run.bytes.end;
        scan.complete.push(run.bytes.clone());
    }
    if damaged_to > end {
        scan.damaged.push(end..damaged_to);
    } else if journal.next_data(end)?.is_some() {
        scan.torn = Some(end);
    }
    Ok(scan)
}

/// Adds a batch to the last run if it is adjacent, or else as a new run.
fn add(runs: &mut Vec<BatchRun>, batch: &Batch) {
    match runs.last_mut() {
        Some(last) if last.bytes.end == batch.bytes.start => {
            last.bytes.end = batch.bytes.end;
            last.commits = last.commits.saturating_add(batch.commits);
        }
        _ => runs.push(BatchRun {
            bytes: batch.bytes.clone(),
            commits: batch.commits,
        }),
    }
}

/// A journal, read through a window.
struct Journal {
    file: fs::File,
    len: u64,
    window: Vec<u8>,
    window_start: u64,
    /// Bytes read plus bytes of checked items. A byte counts each time that it is read or checked.
    searched_bytes: u64,
    /// The search limit was reached: the rest of the journal is unknown.
    gave_up: bool,
}

impl Journal {
    fn open(path: &Path) -> io::Result<Journal> {
        let file = fs::File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Journal {
            file,
            len,
            window: Vec::new(),
            window_start: 0,
            searched_bytes: 0,
            gave_up: false,
        })
    }

    /// `len` bytes at `pos`; `None` beyond the end of the journal.
    fn bytes(&mut self, pos: u64, len: usize) -> io::Result<Option<&[u8]>> {
        if pos.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let window = self.window_start..self.window_start + self.window.len() as u64;
        if !(window.contains(&pos) && pos + len as u64 <= window.end) {
            let size = (self.len - pos).min(len.max(WINDOW) as u64);
            self.window.resize(size as usize, 0);
            self.window_start = pos;
            self.file.read_exact_at(&mut self.window, pos)?;
            self.searched_bytes += size;
        }
        let from = (pos - self.window_start) as usize;
        Ok(Some(&self.window[from..from + len]))
    }

    /// The batch at `start`; `None` if there is no complete batch.
    fn batch(&mut self, start: u64) -> io::Result<Option<Batch>> {
        let Some(head) = self.bytes(start, START_BYTES)? else {
            return Ok(None);
        };
        let (items, sequence) = (number(&head[1..5]), number(&head[5..]));
        if head[0] != START || items == 0 || sequence >= SEQUENCE_END {
            return Ok(None);
        }
        let mut pos = start + START_BYTES as u64;
        let mut checksum = Xxh3::new();
        let mut commits = 0;
        for _ in 0..items {
            let Some(size) = self.item_bytes(pos)? else {
                return Ok(None);
            };
            let Some(item) = self.bytes(pos, size)? else {
                return Ok(None);
            };
            checksum.update(item);
            commits += u32::from(is_commit(item));
            pos += size as u64;
            self.searched_bytes += size as u64;
        }
        let Some(tail) = self.bytes(pos, END_BYTES)? else {
            return Ok(None);
        };
        let is_complete = tail[0] == END && tail[9..] == MAGIC && number(&tail[1..9]) == checksum.digest();
        let bytes = start..pos + END_BYTES as u64;
        Ok(is_complete.then_some(Batch {
            bytes,
            sequence,
            commits,
        }))
    }

    /// The size of the item at `pos`, bytes; `None` if there is no valid item.
    fn item_bytes(&mut self, pos: u64) -> io::Result<Option<usize>> {
        match self.bytes(pos, 1)? {
            Some(&[CLEAR]) => return Ok(Some(CLEAR_BYTES)),
            Some(&[ITEM]) => {}
            _ => return Ok(None),
        }
        let Some(head) = self.bytes(pos, ITEM_BYTES)? else {
            return Ok(None);
        };
        let (kind, compression, stored) = (head[1], head[2], number(&head[17..21]));
        if kind >= KIND_END || compression != 0 || stored != number(&head[13..17]) {
            return Ok(None);
        }
        let size = ITEM_BYTES as u64 + number(&head[11..13]) + stored;
        Ok((size <= self.len - pos).then_some(size as usize))
    }

    /// The first complete batch at or after `pos`.
    fn next_batch(&mut self, mut pos: u64) -> io::Result<Option<Batch>> {
        if let Some(batch) = self.batch(pos)? {
            return Ok(Some(batch));
        }
        while let Some(data) = self.next_data(pos)? {
            pos = data;
            let size = (self.len - pos).min(WINDOW as u64) as usize;
            let Some(window) = self.bytes(pos, size)? else {
                break;
            };
            let Some(start) = window.iter().position(|&b| b == START) else {
                pos += size as u64;
                continue;
            };
            pos += start as u64;
            if let Some(batch) = self.batch(pos)? {
                return Ok(Some(batch));
            }
            if self.searched_bytes
                > self
                    .len
                    .saturating_mul(SEARCH_FACTOR)
                    .saturating_add(SEARCH_BYTES)
            {
                self.gave_up = true;
                return Ok(None);
            }
            pos += 1;
        }
        Ok(None)
    }

    /// The position of the first nonzero byte at or after `pos`.
    fn next_data(&mut self, mut pos: u64) -> io::Result<Option<u64>> {
        while pos < self.len {
            let size = (self.len - pos).min(PAGE) as usize;
            let Some(page) = self.bytes(pos, size)? else { break };
            if let Some(found) = page.iter().position(|&b| b != 0) {
                return Ok(Some(pos + found as u64));
            }
            pos = match rustix::fs::seek(&self.file, SeekFrom::Data(pos + size as u64)) {
                Ok(data) => data,
                Err(rustix::io::Errno::NXIO) => return Ok(None),
                Err(e) => return Err(e.into()),
            };
        }
        Ok(None)
    }

    /// Whether a gap looks like the loss of a sector in a power cut: zeros up to a sector's end.
    fn has_lost_sector(&mut self, gap: &Range<u64>) -> io::Result<bool> {
        let mut end = (gap.start / SECTOR + 1) * SECTOR;
        while end <= gap.end {
            let zeros = end.saturating_sub(ZEROS_MIN).max(gap.start);
            if self.next_data(zeros)?.is_none_or(|data| data >= end) {
                return Ok(true);
            }
            end += SECTOR;
        }
        Ok(false)
    }
}

/// Whether an item is the record at the start of a commit.
fn is_commit(item: &[u8]) -> bool {
    item[0] == ITEM
        && number(&item[11..13]) == Transactions::KEY.len() as u64
        && item[ITEM_BYTES..].starts_with(&Transactions::KEY)
}

/// A little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}
