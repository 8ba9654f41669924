//! Read-only access to a whole store, used by the checks of all kinds of targets.
//!
//! A [`Finding`] describes one problem in the same form for every kind of target. [`Progress`]
//! counts the examined records and files, and carries the request to stop. [`for_each_entry`] walks
//! a part of an index, and [`ObjectFiles`] lists the directory of objects.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use wire::Fid;

use crate::{
    Index, ObjAttr, OsdError,
    local_objects::{self, record},
    prefix_end,
    target::OBJECTS_MARK,
};

/// Maximum number of index entries read at once.
const PAGE: usize = 4096;

/// One problem that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// The kind of damage, from a fixed set of phrases.
    pub kind: &'static str,
    /// The affected inode or object.
    pub fid: Option<Fid>,
    /// The location: a path, a key or a file.
    pub place: String,
    /// The expected state.
    pub expected: String,
    /// The actual state.
    pub found: String,
    /// The effect of a repair; `None` if no repair is possible.
    pub repair: Option<&'static str>,
}

/// The progress of a check, and the request to stop it.
#[derive(Debug, Default)]
pub struct Progress {
    seen: AtomicU64,
    /// Number of targets of the current examination.
    targets: AtomicU64,
    targets_done: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    /// Counts `records` more examined records or files.
    ///
    /// # Errors
    ///
    /// [`OsdError::Stopping`] after [`Progress::stop`].
    pub fn add(&self, records: usize) -> Result<(), OsdError> {
        self.seen.fetch_add(records as u64, Relaxed);
        if self.stop.load(Relaxed) {
            return Err(OsdError::Stopping);
        }
        Ok(())
    }

    /// Records that an examination of this number of targets begins.
    pub fn begin(&self, targets: usize) {
        self.targets_done.store(0, Relaxed);
        self.targets.store(targets as u64, Relaxed);
    }

    /// Records that a target has been examined.
    pub fn finish_target(&self) {
        self.targets_done.fetch_add(1, Relaxed);
    }

    /// The number of targets that the current examination has finished, and the number of all.
    pub fn targets(&self) -> (u64, u64) {
        (self.targets_done.load(Relaxed), self.targets.load(Relaxed))
    }

    /// The number of examined records and files.
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Makes the next call of [`Progress::add`] fail, which ends the check.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

/// Calls `f` with each entry of the index with a key that begins with `prefix`, in order.
///
/// # Errors
///
/// The error of `f`, of reading the index, or [`OsdError::Stopping`].
pub async fn for_each_entry<E: From<OsdError>>(
    index: &dyn Index,
    prefix: &[u8],
    progress: &Progress,
    mut f: impl FnMut(Bytes, Bytes) -> Result<(), E>,
) -> Result<(), E> {
    let end = if prefix.is_empty() {
        vec![0xff; 2]
    } else {
        prefix_end(prefix)
    };
    let mut from = prefix.to_vec();
    loop {
        let rows = index.scan(&from, &end, PAGE).await?;
        progress.add(rows.len())?;
        let Some((last, _)) = rows.last() else {
            return Ok(());
        };
        from = [last, &b"\0"[..]].concat();
        for (key, value) in rows {
            f(key, value)?;
        }
        // Lets the worker's other tasks run, even if memory answers each read.
        tokio::task::yield_now().await;
    }
}

/// An object's record in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    /// The entry's key.
    pub key: Bytes,
    /// The object of the record; `None` if the key is malformed.
    pub fid: Option<Fid>,
    /// The attributes without size and blocks, or the reason why the record is malformed.
    pub attr: Result<ObjAttr, String>,
    /// Minimum size of the object's file on disk, bytes; `None` if no sync of the file is recorded.
    pub durable_size: Option<u64>,
    /// The generation of the object's file ([`object_file`]).
    pub generation: u32,
}

/// Calls `f` with the record of each object, in the order of FIDs.
///
/// # Errors
///
/// The error of `f`, of reading the index, or [`OsdError::Stopping`].
pub async fn for_each_object_record<E: From<OsdError>>(
    index: &dyn Index,
    progress: &Progress,
    mut f: impl FnMut(ObjectRecord) -> Result<(), E>,
) -> Result<(), E> {
    for_each_entry(index, &record::PREFIX, progress, |key, value| {
        let (attr, durable_size, generation) = match record::read(&value) {
            Ok(record) => (Ok(record.attr), record.durable_size, record.generation),
            Err(why) => (Err(why), None, 0),
        };
        f(ObjectRecord {
            fid: record::fid_of(&key),
            attr,
            durable_size,
            generation,
            key,
        })
    })
    .await
}

/// Up to `limit` objects with records, in the order of FIDs, after the object `after`.
///
/// # Errors
///
/// An error of reading the index.
pub async fn objects_after(
    index: Arc<dyn Index>,
    after: Option<Fid>,
    limit: usize,
) -> Result<Vec<Fid>, OsdError> {
    let from = match after {
        Some(fid) => [record::key(&fid), vec![0]].concat(),
        None => record::PREFIX.to_vec(),
    };
    let end = prefix_end(&record::PREFIX);
    let rows = index.scan(&from, &end, limit).await?;
    Ok(rows.iter().filter_map(|(key, _)| record::fid_of(key)).collect())
}

/// The path of an object's file below the directory of objects. A takeover of the target by another
/// server begins a new generation, with its own names for files ([`crate::target::Fence`]).
pub fn object_file(root: &Path, fid: &Fid, generation: u32) -> PathBuf {
    local_objects::file_path(root, fid, generation)
}

/// The generation of an object's file, from its record; 0 without a record.
///
/// # Errors
///
/// An error of reading the index.
pub async fn object_generation(index: &dyn Index, fid: &Fid) -> Result<u32, OsdError> {
    let value = index.get(&record::key(fid)).await?;
    let record = value.and_then(|value| record::read(&value).ok());
    Ok(record.unwrap_or_default().generation)
}

/// The contents of a directory of objects ([`crate::LocalObjects`]).
#[derive(Debug, Default)]
pub struct ObjectFiles {
    /// Sequence and object id of each object that has a file, sorted.
    pub objects: Vec<(u64, u32)>,
    /// Files and directories that belong to no object, or are in the wrong place, and files of
    /// which a later generation made a copy.
    pub strays: Vec<PathBuf>,
}

impl ObjectFiles {
    /// Reads the directory; an absent one is empty. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if a directory cannot be listed, [`OsdError::Stopping`] after
    /// [`Progress::stop`].
    pub fn read(root: &Path, progress: &Progress) -> Result<ObjectFiles, OsdError> {
        let mut found = ObjectFiles::default();
        if !root.exists() {
            return Ok(found);
        }
        for (seq_dir, seq) in list(root)? {
            if seq.as_deref() == Some(OBJECTS_MARK) {
                continue;
            }
            let Some(seq) = seq.as_deref().and_then(parse_hexadecimal) else {
                found.strays.push(seq_dir);
                continue;
            };
            for (bucket, byte) in list(&seq_dir)? {
                let Some(byte) = byte.as_deref().and_then(bucket_of) else {
                    found.strays.push(bucket);
                    continue;
                };
                let files = list(&bucket)?;
                progress.add(files.len())?;
                let mut newest: BTreeMap<u32, (u32, PathBuf)> = BTreeMap::new();
                for (file, name) in files {
                    match name.as_deref().and_then(parse_file_name) {
                        Some((oid, generation)) if oid & 0xff == byte => {
                            let other = newest.get(&oid).map_or(0, |(generation, _)| *generation);
                            let older = match other > generation {
                                true => Some(file),
                                false => newest.insert(oid, (generation, file)).map(|(_, file)| file),
                            };
                            found.strays.extend(older);
                        }
                        _ => found.strays.push(file),
                    }
                }
                found.objects.extend(newest.into_keys().map(|oid| (seq, oid)));
            }
        }
        found.objects.sort_unstable();
        Ok(found)
    }
}

/// The paths in a directory with their names; a name that is not UTF-8 is `None`. If `dir` is a
/// file, returns its own path with the name `None`.
fn list(dir: &Path) -> Result<Vec<(PathBuf, Option<String>)>, OsdError> {
    let mut out = Vec::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // A file in place of a directory: the caller reports it as a stray.
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => return Ok(vec![(dir.to_owned(), None)]),
        Err(e) => return Err(OsdError::io("list", dir)(e)),
    };
    for entry in entries {
        let path = entry.map_err(OsdError::io("list", dir))?.path();
        let name = path.file_name().and_then(OsStr::to_str).map(str::to_owned);
        out.push((path, name));
    }
    Ok(out)
}

/// Parses an object's file name: lower-case hexadecimal without leading zeros.
fn parse_hexadecimal(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (format!("{number:x}") == name).then_some(number)
}

/// Parses an object's file name: the object id in hexadecimal, and the generation if it is not 0.
fn parse_file_name(name: &str) -> Option<(u32, u32)> {
    let (oid, generation) = match name.split_once('.') {
        Some((oid, number)) => {
            let generation: u32 = number.parse().ok().filter(|g| *g > 0)?;
            (oid, (generation.to_string() == number).then_some(generation)?)
        }
        None => (name, 0),
    };
    Some((u32::try_from(parse_hexadecimal(oid)?).ok()?, generation))
}

/// Parses the name of a bucket, a directory of the objects with the same low byte of the id:
/// lower-case hexadecimal, at least two digits.
fn bucket_of(name: &str) -> Option<u32> {
    let number = u32::from_str_radix(name, 16).ok()?;
    (format!("{number:02x}") == name).then_some(number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Batch, MemoryIndex};

    #[tokio::test]
    async fn walk_visits_each_entry_once_and_stops_on_request() {
        let index = MemoryIndex::default();
        let mut batch = Batch::new();
        for n in 0..10_000u32 {
            batch.put([b"k".as_slice(), &n.to_be_bytes()].concat(), Vec::new());
        }
        batch.put("j", "").put("l", "");
        index.apply(batch).unwrap();
        let (progress, mut keys) = (Progress::default(), Vec::new());
        for_each_entry::<OsdError>(&index, b"k", &progress, |k, _| {
            keys.push(k);
            Ok(())
        })
        .await
        .unwrap();
        assert!(keys.len() == 10_000 && keys.is_sorted() && progress.seen() == 10_000);
        progress.stop();
        let stopped = for_each_entry::<OsdError>(&index, b"k", &progress, |_, _| Ok(())).await;
        assert!(matches!(stopped, Err(OsdError::Stopping)));
    }

    #[test]
    fn other_files_among_objects_are_strays() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("objects");
        let progress = Progress::default();
        assert!(ObjectFiles::read(&root, &progress).unwrap().objects.is_empty());
        for path in [
            "240000400/3f/2a3f",
            "240000400/01/1",
            "240000400/01/2",
            "240000400/01/core",
            "240000400/01/101",
            "240000400/01/101.2",
            "240000400/01/101.10",
            "240000400/01/101.02",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        for stray in ["NOTES", "5", "240000400/zz", "240000400/02"] {
            fs::write(root.join(stray), "").unwrap();
        }
        let mut found = ObjectFiles::read(&root, &progress).unwrap();
        assert_eq!(
            found.objects,
            [
                (0x2_4000_0400, 1),
                (0x2_4000_0400, 0x101),
                (0x2_4000_0400, 0x2a3f)
            ]
        );
        found.strays.sort();
        let strays: Vec<_> = found
            .strays
            .iter()
            .map(|p| p.strip_prefix(&root).unwrap())
            .collect();
        assert_eq!(
            strays,
            [
                "240000400/01/101",
                "240000400/01/101.02",
                "240000400/01/101.2",
                "240000400/01/2",
                "240000400/01/core",
                "240000400/02",
                "240000400/zz",
                "5",
                "NOTES"
            ]
            .map(Path::new)
        );
    }
}
