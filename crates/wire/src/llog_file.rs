//! Log files: a header of 8 KiB with a bitmap of live records, then records in chunks of 8 KiB. No
//! record crosses a chunk boundary.
//!
//! If the next record does not fit into the rest of a chunk, or would leave a gap too small for a
//! record, a pad record fills the rest. A pad uses an index but is never live.

use crate::codec::{Reader, Result, WireError, Writer, round_up8};
use crate::consts::llog::{
    LLOG_F_IS_PLAIN, LLOG_HDR_MAGIC, LLOG_MIN_CHUNK_SIZE, LLOG_MIN_REC_SIZE, LLOG_OP_MAGIC, LLOG_OP_MASK,
    LLOG_PAD_MAGIC,
};
use crate::layout::WireStruct;
use crate::llog::{LlogLogHdr, LlogRecHdr, LlogRecTail};
use crate::ptlrpc::ObdUuid;
use bytes::Bytes;

/// Size of the header and of a chunk, in bytes.
pub const CHUNK: usize = LLOG_MIN_CHUNK_SIZE as usize;

/// Size of a record's header and tail, in bytes.
const RECORD_OVERHEAD: usize = LLOG_MIN_REC_SIZE as usize;

/// Offset of `llh_bitmap` in the header, in bytes.
const BITMAP_OFFSET: u32 = 88;

/// The largest index in the header's bitmap of 2024 words with 32 bits.
const INDEX_MAX: u32 = 2024 * 32 - 1;

/// One record: fields of its header, and its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The index in the log.
    pub index: u32,
    /// `lrh_type`, such as `OBD_CFG_REC`.
    pub kind: u32,
    /// `lrh_id`, normally 0.
    pub id: u32,
    /// The content; after parsing with its padding to a multiple of 8 bytes.
    pub data: &'a [u8],
}

impl Record<'_> {
    /// Whether this is a pad record.
    pub fn is_pad(&self) -> bool {
        self.kind == LLOG_PAD_MAGIC
    }

    /// Size of the record in the file, in bytes.
    pub fn size(&self) -> usize {
        round_up8(self.data.len()) + RECORD_OVERHEAD
    }

    /// Appends the record in the format of the file.
    pub fn write(&self, w: &mut Writer) {
        let len = self.size() as u32;
        LlogRecHdr {
            lrh_len: len,
            lrh_index: self.index,
            lrh_type: self.kind,
            lrh_id: self.id,
        }
        .write(w);
        let end = w.len() + len as usize - RECORD_OVERHEAD;
        w.put(self.data);
        w.pad_to(end);
        LlogRecTail {
            lrt_len: len,
            lrt_index: self.index,
        }
        .write(w);
    }
}

/// Iterates over the records of one chunk, or of the part of a chunk that a reader received. Zeros
/// in the place of a record, or an error, end the iteration.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    reader: Reader<'a>,
}

/// The records of a chunk, including pads.
pub fn records(chunk: &[u8]) -> Records<'_> {
    Records {
        reader: Reader::new("llog record", chunk),
    }
}

impl<'a> Records<'a> {
    fn next_record(&mut self) -> Result<Option<Record<'a>>> {
        if self.reader.rest().iter().take(4).all(|b| *b == 0) {
            return Ok(None);
        }
        let head = LlogRecHdr::read(&mut self.reader)?;
        let len = head.lrh_len as usize;
        if !(RECORD_OVERHEAD..=CHUNK).contains(&len) || !len.is_multiple_of(8) {
            return Err(WireError::Value {
                what: "lrh_len",
                expected: "24 to 8192, a multiple of 8",
                found: len as u64,
            });
        }
        if head.lrh_type & LLOG_OP_MASK != LLOG_OP_MAGIC {
            return Err(WireError::Magic {
                what: "lrh_type",
                expected: LLOG_OP_MAGIC.into(),
                found: head.lrh_type.into(),
            });
        }
        let data = self.reader.take(len - RECORD_OVERHEAD)?;
        let tail = LlogRecTail::read(&mut self.reader)?;
        if (tail.lrt_len, tail.lrt_index) != (head.lrh_len, head.lrh_index) {
            let found = u64::from(tail.lrt_index) << 32 | u64::from(tail.lrt_len);
            return Err(WireError::Value {
                what: "llog_rec_tail",
                expected: "the header's length and index",
                found,
            });
        }
        Ok(Some(Record {
            index: head.lrh_index,
            kind: head.lrh_type,
            id: head.lrh_id,
            data,
        }))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.next_record();
        if record.is_err() {
            self.reader = Reader::new("llog record", &[]);
        }
        record.transpose()
    }
}

impl LlogLogHdr {
    /// Checks that this is the header of a log.
    ///
    /// # Errors
    ///
    /// A wrong type or length.
    pub fn check(&self) -> Result<()> {
        let (found, expected) = (self.llh_hdr.lrh_type, LLOG_HDR_MAGIC);
        if found != expected {
            return Err(WireError::Magic {
                what: "llog_log_hdr",
                expected: expected.into(),
                found: found.into(),
            });
        }
        let (found, len) = (self.llh_hdr.lrh_len, CHUNK as u32);
        if found != len || self.llh_tail.lrt_len != len {
            return Err(WireError::Value {
                what: "llog_log_hdr length",
                expected: "8192",
                found: found.into(),
            });
        }
        Ok(())
    }

    /// The index of the last record or pad; 0 in a new log.
    pub fn last_index(&self) -> u32 {
        self.llh_tail.lrt_index
    }

    /// Whether the record with this index is live.
    pub fn is_live(&self, index: u32) -> bool {
        let word = self.llh_bitmap.get(index as usize / 32).copied().unwrap_or(0);
        word >> (index % 32) & 1 == 1
    }

    fn set_live(&mut self, index: u32, live: bool) {
        if let Some(word) = self.llh_bitmap.get_mut(index as usize / 32) {
            let bit = 1 << (index % 32);
            *word = if live { *word | bit } else { *word & !bit };
        }
    }
}

/// A whole log in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    header: LlogLogHdr,
    /// The file behind the header.
    body: Vec<u8>,
}

impl Log {
    /// An empty log; `timestamp` is in seconds since 1970.
    pub fn new(uuid: ObdUuid, timestamp: i64) -> Log {
        let len = CHUNK as u32;
        let mut header = LlogLogHdr {
            llh_hdr: LlogRecHdr {
                lrh_len: len,
                lrh_index: 0,
                lrh_type: LLOG_HDR_MAGIC,
                lrh_id: 0,
            },
            llh_timestamp: timestamp,
            llh_count: 1,
            llh_bitmap_offset: BITMAP_OFFSET,
            llh_flags: LLOG_F_IS_PLAIN,
            llh_tgtuuid: uuid,
            llh_tail: LlogRecTail {
                lrt_len: len,
                lrt_index: 0,
            },
            ..Default::default()
        };
        header.set_live(0, true);
        Log {
            header,
            body: Vec::new(),
        }
    }

    /// Parses a log file with all its records. Ignores zeros behind the last record.
    ///
    /// # Errors
    ///
    /// A malformed header or record, missing records, or other bytes behind the last record.
    pub fn parse(file: &[u8]) -> Result<Log> {
        let header = LlogLogHdr::from_bytes(file)?;
        header.check()?;
        let body = &file[CHUNK..];
        let end = end_of_records(body, header.last_index())?;
        Ok(Log {
            header,
            body: body[..end].to_vec(),
        })
    }

    /// The log in the format of the file.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::with_capacity(CHUNK + self.body.len());
        self.header.write(&mut w);
        w.put(&self.body);
        w.finish()
    }

    /// The header.
    pub fn header(&self) -> &LlogLogHdr {
        &self.header
    }

    /// Size of the file, in bytes.
    pub fn len(&self) -> usize {
        CHUNK + self.body.len()
    }

    /// Whether no record is live. `llh_count` also counts the header.
    pub fn is_empty(&self) -> bool {
        self.header.llh_count <= 1
    }

    /// All records, including pads and cancelled ones; an error ends the iteration of a chunk.
    pub fn records(&self) -> impl Iterator<Item = Result<Record<'_>>> {
        self.body.chunks(CHUNK).flat_map(records)
    }

    /// The live records.
    pub fn live(&self) -> impl Iterator<Item = Result<Record<'_>>> {
        self.records().filter(|r| {
            r.as_ref()
                .map_or(true, |r| !r.is_pad() && self.header.is_live(r.index))
        })
    }

    /// The chunk with the record `index`, or with the first record after that index: the offset of
    /// the chunk in the file and its bytes.
    pub fn chunk_of(&self, index: u32) -> Option<(usize, &[u8])> {
        self.body.chunks(CHUNK).enumerate().find_map(|(i, chunk)| {
            let last = records(chunk).map_while(|r| r.ok()).last()?;
            (last.index >= index).then_some((CHUNK * (i + 1), chunk))
        })
    }

    /// Appends a record and returns its index.
    ///
    /// # Errors
    ///
    /// The data has more than 8144 bytes, or the log is full.
    pub fn append(&mut self, kind: u32, id: u32, data: &[u8]) -> Result<u32> {
        // A record that almost fills a chunk would leave a gap too small for a pad.
        let limit = CHUNK - 2 * RECORD_OVERHEAD;
        if data.len() > limit {
            return Err(WireError::TooLong {
                what: "llog record",
                limit,
                found: data.len(),
            });
        }
        let size = round_up8(data.len()) + RECORD_OVERHEAD;
        let left = CHUNK - self.body.len() % CHUNK;
        if left != CHUNK && left != size && left < size + RECORD_OVERHEAD {
            self.push(LLOG_PAD_MAGIC, 0, &vec![0; left - RECORD_OVERHEAD])?;
        }
        let index = self.push(kind, id, data)?;
        // Lustre stores the size of the smallest record in the header.
        let smallest = Some(self.header.llh_size).filter(|s| *s > 0).unwrap_or(u32::MAX);
        self.header.llh_size = smallest.min(size as u32);
        self.header.set_live(index, true);
        self.header.llh_count = self.header.llh_count.saturating_add(1);
        Ok(index)
    }

    /// Replaces a record's data, including its padding, by data of the same length. `false` if
    /// there is no record with this index and length.
    pub fn rewrite(&mut self, index: u32, data: &[u8]) -> bool {
        let Some((offset, chunk)) = self.chunk_of(index) else {
            return false;
        };
        let mut from = offset - CHUNK + LlogRecHdr::SIZE;
        for record in records(chunk).map_while(|r| r.ok()) {
            if record.index == index && record.data.len() == data.len() {
                self.body[from..from + data.len()].copy_from_slice(data);
                return true;
            }
            from += record.size();
        }
        false
    }

    /// Marks a live record as cancelled.
    pub fn cancel(&mut self, index: u32) {
        if index > 0 && self.header.is_live(index) {
            self.header.set_live(index, false);
            self.header.llh_count = self.header.llh_count.saturating_sub(1);
        }
    }

    /// Appends a record or a pad with the next index.
    fn push(&mut self, kind: u32, id: u32, data: &[u8]) -> Result<u32> {
        let index = self.header.last_index().saturating_add(1);
        if index > INDEX_MAX {
            let (limit, found) = (INDEX_MAX as usize, index as usize);
            return Err(WireError::TooLong {
                what: "llog index",
                limit,
                found,
            });
        }
        let mut w = Writer::new();
        Record {
            index,
            kind,
            id,
            data,
        }
        .write(&mut w);
        self.body.extend_from_slice(&w.finish());
        self.header.llh_tail.lrt_index = index;
        Ok(index)
    }
}

/// The offset in `body` behind the last record. Records must be contiguous and numbered from 1 to
/// `last`, the last index of the header. Only zeros may follow. The last chunk must be full or have
/// space for a record; otherwise readers would not find a record appended later.
fn end_of_records(body: &[u8], last: u32) -> Result<usize> {
    let (mut end, mut index) = (0, 0);
    for chunk in body.chunks(CHUNK) {
        let full = end + CHUNK;
        for record in records(chunk) {
            let record = record?;
            index += 1;
            if record.index != index {
                return Err(WireError::Value {
                    what: "lrh_index",
                    expected: "one more than the record before",
                    found: record.index.into(),
                });
            }
            end += record.size();
        }
        if end < full {
            break;
        }
    }
    if index != last {
        return Err(WireError::Value {
            what: "llog records",
            expected: "as many as the header's last index",
            found: index.into(),
        });
    }
    let left = CHUNK - end % CHUNK;
    if left < RECORD_OVERHEAD || body[end..].iter().any(|b| *b != 0) {
        return Err(WireError::Value {
            what: "llog records' end",
            expected: "only zeros, with space for a record in the last chunk",
            found: end as u64,
        });
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{CHUNK, INDEX_MAX, Log, RECORD_OVERHEAD};
    use crate::{OBD_CFG_REC, ObdUuid};
    use proptest::prelude::{any, prop, proptest};

    fn empty_log() -> Log {
        Log::new(ObdUuid::new("config_uuid").unwrap(), 1)
    }

    #[test]
    fn cancelled_records_are_not_live() {
        let mut log = empty_log();
        let a = log.append(OBD_CFG_REC, 0, b"a").unwrap();
        let b = log.append(OBD_CFG_REC, 0, b"b").unwrap();
        log.cancel(a);
        let live: Vec<u32> = log.live().map(|r| r.unwrap().index).collect();
        assert_eq!((live, log.header().llh_count), (vec![b], 2));
    }

    #[test]
    fn extreme_counts_and_indices_in_the_header_do_not_overflow() {
        let mut log = empty_log();
        let index = log.append(OBD_CFG_REC, 0, b"a").unwrap();
        let with_count = |count| {
            let mut wrong = log.clone();
            wrong.header.llh_count = count;
            Log::parse(&wrong.build()).unwrap()
        };
        let mut none_counted = with_count(0);
        none_counted.cancel(index);
        assert_eq!(
            (none_counted.header().llh_count, none_counted.live().count()),
            (0, 0)
        );
        let mut all_counted = with_count(u32::MAX);
        assert_eq!(all_counted.append(OBD_CFG_REC, 0, b"b").unwrap(), index + 1);
        assert_eq!(all_counted.header().llh_count, u32::MAX);
        for last in [INDEX_MAX, u32::MAX] {
            log.header.llh_tail.lrt_index = last;
            assert!(log.append(OBD_CFG_REC, 0, b"b").is_err());
        }
    }

    #[test]
    fn zeros_behind_the_last_record_do_not_hide_the_next_one() {
        let mut log = empty_log();
        log.append(OBD_CFG_REC, 0, b"a").unwrap();
        for zeros in [2, 8, CHUNK, 2 * CHUNK] {
            let file = [&log.build()[..], &vec![0; zeros]].concat();
            let mut read = Log::parse(&file).unwrap();
            assert_eq!(read, log);
            read.append(OBD_CFG_REC, 0, b"b").unwrap();
            let again = Log::parse(&read.build()).unwrap();
            assert_eq!(again.live().last().unwrap().unwrap().data[..1], *b"b", "{zeros}");
        }
    }

    #[test]
    fn a_log_with_missing_records_is_refused() {
        let mut log = empty_log();
        for _ in 0..5 {
            log.append(OBD_CFG_REC, 0, &[7; 4000]).unwrap();
        }
        let file = log.build();
        assert!(Log::parse(&file).is_ok());
        let zeroed = |from: usize, to: usize| {
            let mut file = file.to_vec();
            file[from..to].fill(0);
            file
        };
        // The beginning of a record, a whole chunk, and the last record without its tail.
        let tail = file.len() - RECORD_OVERHEAD;
        for (from, to) in [(CHUNK, CHUNK + 8), (2 * CHUNK, 3 * CHUNK), (3 * CHUNK, tail)] {
            assert!(Log::parse(&zeroed(from, to)).is_err(), "{from} to {to}");
        }
        // Chunks in the wrong order, repeated, and missing; then a record that the header does not
        // count.
        let chunk = |i: usize| &file[CHUNK * i..(CHUNK * (i + 1)).min(file.len())];
        for order in [&[0, 2, 1, 3][..], &[0, 1, 1, 3], &[0, 1, 3], &[0, 1, 2], &[0]] {
            let file: Vec<u8> = order.iter().flat_map(|i| chunk(*i)).copied().collect();
            assert!(Log::parse(&file).is_err(), "{order:?}");
        }
        log.header.llh_tail.lrt_index -= 1;
        assert!(Log::parse(&log.build()).is_err());
    }

    #[test]
    fn a_chunk_without_space_for_a_pad_is_refused() {
        for left in [0, 8, 16, 24] {
            let mut log = empty_log();
            log.push(OBD_CFG_REC, 0, &vec![7; CHUNK - RECORD_OVERHEAD - left])
                .unwrap();
            let read = Log::parse(&log.build());
            assert_eq!(read.is_ok(), left == 0 || left >= RECORD_OVERHEAD, "{left}");
            assert!(read.map_or(true, |mut log| log.append(OBD_CFG_REC, 0, b"b").is_ok()));
        }
    }

    #[test]
    fn a_record_is_rewritten_in_place() {
        let mut log = empty_log();
        let indices: Vec<u32> = (0..9)
            .map(|_| log.append(OBD_CFG_REC, 0, &[1; 2000]).unwrap())
            .collect();
        for (i, index) in indices.iter().enumerate() {
            assert!(log.rewrite(*index, &[i as u8; 2000]));
            assert!(!log.rewrite(*index, &[0; 8]));
        }
        let data: Vec<u8> = log.live().map(|r| r.unwrap().data[1999]).collect();
        assert_eq!(data, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(!log.rewrite(99, &[0; 2000]));
    }

    #[test]
    fn a_chunk_is_found_by_the_index_of_a_record() {
        let mut log = empty_log();
        for _ in 0..5 {
            log.append(OBD_CFG_REC, 0, &[7; 4000]).unwrap();
        }
        let (offset, chunk) = log.chunk_of(1).unwrap();
        assert_eq!((offset, chunk.len()), (CHUNK, CHUNK));
        assert_eq!(log.chunk_of(5).unwrap().0, 2 * CHUNK);
        assert!(log.chunk_of(99).is_none());
    }

    proptest! {
        #[test]
        fn a_log_survives_a_round_trip(sizes in prop::collection::vec(0usize..=8144, 0..40)) {
            let mut log = empty_log();
            for size in &sizes {
                log.append(OBD_CFG_REC, 0, &vec![1; *size]).unwrap();
            }
            let file = log.build();
            let read = Log::parse(&file).unwrap();
            assert_eq!(read.build(), file);
            assert_eq!(read.live().count(), sizes.len());
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 8192..9000)) {
            let _ = Log::parse(&bytes);
            bytes[..CHUNK].copy_from_slice(&empty_log().build());
            let _ = Log::parse(&bytes);
        }
    }
}
