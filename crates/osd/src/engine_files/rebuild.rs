//! Rebuilds a damaged index from the records that can still be read.

use std::{
    collections::BTreeMap,
    fs, io, iter,
    path::{Path, PathBuf},
    vec,
};

use bytes::Bytes;
use fjall::{Database, Keyspace, PersistMode};
use itertools::{Itertools as _, kmerge_by};
use lsm_tree::InternalValue;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{
    KEY_SPACES,
    table::{Part, TableReader},
    version::{self, TableFile},
};
use crate::{
    LocalConfig, OsdError,
    check::Progress,
    files,
    index::{KEY_COPY, copy_key},
    journal,
    local_index::engine::{KEY_SPACE, create_empty, engine_error},
    target,
};

/// File name prefix of replaced indexes, in the target's directory.
const REPLACED_PREFIX: &str = "index.damaged-";
/// Number of records in one batch.
const BATCH_RECORDS: usize = 100;

/// One version of a record.
struct Record {
    key: Bytes,
    /// Orders the versions.
    sequence: u64,
    /// `None`: the record is removed.
    value: Option<Bytes>,
}

impl Record {
    /// Whether this record comes before the other one: by key, and the newest version first.
    fn precedes(&self, other: &Record) -> bool {
        (&self.key, other.sequence) < (&other.key, self.sequence)
    }
}

/// Replaces the index of a target by a new one with all records that can be read; blocks in which
/// one bit is flipped are corrected. The journals must be intact ([`journal::repair`]). Keeps the
/// old index as `index.damaged-N` and returns its path. After an interruption, the old index is
/// unchanged. Blocks on the disk.
///
/// The other records of a damaged block are lost, or an earlier version of them returns: check the
/// target's records afterwards.
///
/// # Errors
///
/// [`OsdError::Io`] or [`OsdError::Engine`] if a file cannot be read, or the new index cannot be
/// written; [`OsdError::NoSpace`]; [`OsdError::Stopping`] after [`Progress::stop`].
pub fn rebuild(target: &Path, progress: &Progress) -> Result<PathBuf, OsdError> {
    let index = target::index_dir(target);
    let new = target::incomplete_index(&index);
    let (db, keyspace) = create_empty(&new, LocalConfig::default())?;
    copy_newest(target, progress, &new, (&db, &keyspace))?;
    db.persist(PersistMode::SyncAll)
        .map_err(engine_error("sync", &new))?;
    drop((keyspace, db));
    // The exchange leaves no moment without an index.
    renameat_with(CWD, &new, CWD, &index, RenameFlags::EXCHANGE)
        .map_err(|e| OsdError::io("exchange the index with", &new)(e.into()))?;
    let old = unused_name(target);
    fs::rename(&new, &old).map_err(OsdError::io("rename", &new))?;
    files::sync_dir(target).map_err(OsdError::io("sync", target))?;
    Ok(old)
}

/// Paths of the indexes that [`rebuild`] replaced.
pub(crate) fn replaced_indexes(target: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(target)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if name.to_string_lossy().starts_with(REPLACED_PREFIX) {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn unused_name(target: &Path) -> PathBuf {
    let mut n = 0;
    loop {
        let path = target.join(format!("{REPLACED_PREFIX}{n}"));
        if !path.exists() {
            return path;
        }
        n += 1;
    }
}

/// Copies the newest version of each record of a target to a new index.
fn copy_newest(
    target: &Path,
    progress: &Progress,
    new: &Path,
    (db, keyspace): (&Database, &Keyspace),
) -> Result<(), OsdError> {
    let index = target::index_dir(target);
    let key_space = index.join(KEY_SPACES).join(KEY_SPACE.to_string());
    let tables = match version::read(&key_space) {
        Ok(tables) => tables,
        Err(_) => version::list_tables(&key_space).map_err(OsdError::io("list", &key_space))?,
    };
    let mut sources: Vec<Box<dyn Iterator<Item = Result<Record, OsdError>>>> = Vec::new();
    for table in tables.into_iter().filter(|table| table.path.exists()) {
        sources.push(Box::new(table_records(table)?));
    }
    sources.push(Box::new(journal_records(target)?.into_iter().map(Ok)));
    let merged = kmerge_by(sources, |a: &Result<Record, _>, b: &Result<Record, _>| {
        match (a, b) {
            (Ok(a), Ok(b)) => a.precedes(b),
            // An error ends the copy: it comes first.
            (a, _) => a.is_err(),
        }
    });
    let newest = merged.dedup_by(|a, b| matches!((a, b), (Ok(a), Ok(b)) if a.key == b.key));
    let mut copies = Copies::default();
    for records in &newest.chunks(BATCH_RECORDS) {
        let mut batch = db.batch();
        for record in records {
            for (key, value) in copies.newest(record?) {
                batch.insert(keyspace, &key[..], &value[..]);
            }
        }
        progress.add(batch.len())?;
        batch.commit().map_err(engine_error("write", new))?;
    }
    for (key, value) in copies.of_lost_records() {
        let written = keyspace.insert(&key[..], &value[..]);
        written.map_err(engine_error("write", new))?;
    }
    Ok(())
}

/// The copies of records that are stored twice ([`crate::Batch::put_twice`]), by the keys of the
/// records. A record and its copy are written together: if one of them is older, its newest version
/// is lost.
#[derive(Default)]
struct Copies(BTreeMap<Bytes, Record>);

impl Copies {
    /// Takes the next record in the order of keys; copies come first. Returns the records to write.
    fn newest(&mut self, record: Record) -> Vec<(Bytes, Bytes)> {
        if record.key.first() == Some(&KEY_COPY) {
            self.0.insert(record.key.slice(1..), record);
            return Vec::new();
        }
        let Some(copy) = self.0.remove(&record.key) else {
            let value = record.value.map(|value| (record.key, value));
            return value.into_iter().collect();
        };
        let value = match copy.sequence > record.sequence {
            true => copy.value,
            false => record.value,
        };
        twice(&record.key, value)
    }

    /// The records to write for copies without a record.
    fn of_lost_records(self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let copies = self.0.into_iter();
        copies.flat_map(|(key, copy)| twice(&key, copy.value))
    }
}

/// A record and its copy.
fn twice(key: &Bytes, value: Option<Bytes>) -> Vec<(Bytes, Bytes)> {
    let Some(value) = value else { return Vec::new() };
    vec![(copy_key(key), value.clone()), (key.clone(), value)]
}

/// The records of a table, in order.
fn table_records(table: TableFile) -> Result<impl Iterator<Item = Result<Record, OsdError>>, OsdError> {
    let TableFile {
        path, sequence_base, ..
    } = table;
    let mut reader = TableReader::open_correcting(&path).map_err(OsdError::io("open", &path))?;
    let mut block = vec::IntoIter::default();
    Ok(iter::from_fn(move || {
        loop {
            if let Some(record) = block.next() {
                return Some(Ok(table_record(&record, sequence_base)));
            }
            match reader.next_part() {
                Ok(None) => return None,
                Ok(Some(Part::Records(records))) => block = records.into_iter(),
                Ok(Some(Part::Other | Part::Damaged(_))) => {}
                Err(e) => return Some(Err(OsdError::io("read", &path)(e))),
            }
        }
    }))
}

fn table_record(record: &InternalValue, sequence_base: u64) -> Record {
    let value = Bytes::copy_from_slice(&record.value);
    Record {
        key: Bytes::copy_from_slice(&record.key.user_key),
        sequence: record.key.seqno.saturating_add(sequence_base),
        value: (!record.key.value_type.is_tombstone()).then_some(value),
    }
}

/// The newest version of each record in the journals, in order. The engine keeps at most 64 MiB of
/// journals.
fn journal_records(target: &Path) -> Result<Vec<Record>, OsdError> {
    let mut newest: BTreeMap<Bytes, Record> = BTreeMap::new();
    journal::for_each_change(target, |change| {
        let record = Record {
            key: Bytes::copy_from_slice(change.key),
            sequence: change.sequence,
            value: change.value.map(Bytes::copy_from_slice),
        };
        match newest.get_mut(change.key) {
            Some(other) if other.sequence > record.sequence => {}
            _ => {
                newest.insert(record.key.clone(), record);
            }
        }
    })?;
    Ok(newest.into_values().collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{Copies, Record, copy_key};

    fn record(key: &Bytes, sequence: u64, value: Option<&'static str>) -> Record {
        Record {
            key: key.clone(),
            sequence,
            value: value.map(Bytes::from),
        }
    }

    #[test]
    fn the_newer_of_a_record_and_its_copy_is_written_twice() {
        let key = Bytes::from("m");
        let copy = copy_key(&key);
        let both = |value: &'static str| {
            vec![
                (copy.clone(), Bytes::from(value)),
                (key.clone(), Bytes::from(value)),
            ]
        };
        for (copied, stored, expected) in [
            ((5, Some("a")), Some((5, Some("a"))), both("a")),
            ((6, Some("new")), Some((5, Some("old"))), both("new")),
            ((5, Some("old")), Some((6, Some("new"))), both("new")),
            ((5, Some("old")), Some((6, None)), vec![]),
            ((6, None), Some((5, Some("old"))), vec![]),
            ((5, Some("a")), None, both("a")),
        ] {
            let mut copies = Copies::default();
            let mut written = copies.newest(record(&copy, copied.0, copied.1));
            if let Some((sequence, value)) = stored {
                written.extend(copies.newest(record(&key, sequence, value)));
            }
            written.extend(copies.of_lost_records());
            assert_eq!(written, expected);
        }
        let once = Copies::default().newest(record(&key, 1, Some("x")));
        assert_eq!(once, [(key, Bytes::from("x"))]);
    }
}
