//! The changes in the complete batches of journals.

use std::{fs, io, ops::Range, os::unix::fs::FileExt, path::Path};

use wire::Reader;

use super::{
    scan::{CLEAR, END_BYTES, ITEM, START, TOMBSTONE},
    scan_all,
};
use crate::{OsdError, local_index::engine::KEY_SPACE, target::index_dir};

/// A change of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordChange<'a> {
    /// The batch's sequence number.
    pub sequence: u64,
    /// The record's key.
    pub key: &'a [u8],
    /// The new value; `None` if the record is removed.
    pub value: Option<&'a [u8]>,
}

/// Calls `f` with each change in the complete batches of the journals of a target's index, oldest
/// first. Blocks on the disk.
///
/// # Errors
///
/// [`OsdError::Io`] if a journal cannot be read, [`OsdError::Corrupt`] if there is no journal, or
/// one with a wrong name.
pub fn for_each_change(target: &Path, mut f: impl FnMut(RecordChange<'_>)) -> Result<(), OsdError> {
    let index = index_dir(target);
    for (path, scan) in scan_all(&index)? {
        for bytes in &scan.complete {
            let batches = read(&path, bytes).map_err(OsdError::io("read", &path))?;
            // The scan has checked the batches.
            changes_in(&batches, &mut f).map_err(|_| OsdError::Corrupt {
                path: index.clone(),
                record: format!("journal {}", path.display()),
                why: "it changed while it was read".into(),
            })?;
        }
    }
    Ok(())
}

fn read(journal: &Path, bytes: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut batches = vec![0; (bytes.end - bytes.start) as usize];
    fs::File::open(journal)?.read_exact_at(&mut batches, bytes.start)?;
    Ok(batches)
}

fn changes_in(batches: &[u8], f: &mut impl FnMut(RecordChange<'_>)) -> Result<(), wire::WireError> {
    let mut reader = Reader::new("journal", batches);
    let mut sequence = 0;
    while !reader.is_empty() {
        match reader.u8()? {
            START => {
                reader.u32()?;
                sequence = reader.u64()?;
            }
            ITEM => {
                let kind = reader.u8()?;
                reader.u8()?;
                let key_space = reader.u64()?;
                let key_len = usize::from(reader.u16()?);
                let value_len = reader.u32()? as usize;
                reader.u32()?;
                let (key, value) = (reader.take(key_len)?, reader.take(value_len)?);
                if key_space == KEY_SPACE {
                    let value = (kind < TOMBSTONE).then_some(value);
                    f(RecordChange { sequence, key, value });
                }
            }
            CLEAR => {
                reader.u64()?;
            }
            _ => {
                reader.take(END_BYTES - 1)?;
            }
        }
    }
    Ok(())
}
