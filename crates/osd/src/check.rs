//! Looking at a store as a whole, without changing it: what a check of any kind of target stands on.
//!
//! A [`Finding`] is what is wrong, told the same way by every kind of target. [`Progress`] counts what was looked at and
//! carries the wish to stop; [`each`] walks a part of an index. [`ObjectFiles`] is what the directory of objects holds.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use wire::Fid;

use crate::{
    Index, ObjAttr, OsdError,
    local_objects::{self, record},
    prefix_end,
    target::OBJECTS_MARK,
};

/// Entries of an index that are looked at together.
const PAGE: usize = 4096;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of damage it is, always in the same words.
    pub what: &'static str,
    /// The inode or object that it is about.
    pub fid: Option<Fid>,
    /// Where it is: a path, a key, a file.
    pub place: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
    /// What repairing it does; `None` where nothing can be done.
    pub repair: Option<&'static str>,
}

/// How far a check has come, and whether it is to stop.
#[derive(Debug, Default)]
pub struct Progress {
    seen: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    /// So many records more were looked at; an error when the check is to stop.
    pub fn add(&self, records: usize) -> Result<(), OsdError> {
        self.seen.fetch_add(records as u64, Relaxed);
        if self.stop.load(Relaxed) {
            return Err(OsdError::Stopping);
        }
        Ok(())
    }

    /// Records that were looked at.
    pub fn seen(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Ends the check at the next record.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }
}

/// Calls `f` with each entry of the index whose key begins with `prefix`, in order.
pub fn each<E: From<OsdError>>(
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
        let rows = index.scan(&from, &end, PAGE)?;
        progress.add(rows.len())?;
        let Some((last, _)) = rows.last() else {
            return Ok(());
        };
        from = [last, &b"\0"[..]].concat();
        for (key, value) in rows {
            f(key, value)?;
        }
    }
}

/// An object's record in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRecord {
    /// The entry's key.
    pub key: Bytes,
    /// Whose record it is; `None` when the key is of another form.
    pub fid: Option<Fid>,
    /// The attributes without size and space, or what is wrong with the record.
    pub attr: Result<ObjAttr, String>,
    /// Bytes that the object's file has at least, if the file is known to be on disk.
    pub on_disk: Option<u64>,
}

/// Calls `f` with the record of each object, in the order of FIDs.
pub fn each_object_record<E: From<OsdError>>(
    index: &dyn Index,
    progress: &Progress,
    mut f: impl FnMut(ObjectRecord) -> Result<(), E>,
) -> Result<(), E> {
    each(index, &record::PREFIX, progress, |key, value| {
        let (attr, on_disk) = match record::read(&value) {
            Ok((attr, on_disk)) => (Ok(attr), on_disk),
            Err(why) => (Err(why), None),
        };
        f(ObjectRecord {
            fid: record::fid_of(&key),
            attr,
            on_disk,
            key,
        })
    })
}

/// The file of an object, below the directory of objects.
pub fn object_file(root: &Path, fid: &Fid) -> PathBuf {
    local_objects::file_path(root, fid)
}

/// What is in a directory of objects ([`crate::LocalObjects`]).
#[derive(Debug, Default)]
pub struct ObjectFiles {
    /// The objects that have a file, sorted: 16 bytes each.
    pub objects: Vec<(u64, u32)>,
    /// Files and directories that are none of an object, or not where the object would be.
    pub strays: Vec<PathBuf>,
}

impl ObjectFiles {
    /// Reads the directory; there may be none yet. Waits for the disk.
    pub fn read(root: &Path, progress: &Progress) -> Result<ObjectFiles, OsdError> {
        let mut found = ObjectFiles::default();
        if !root.exists() {
            return Ok(found);
        }
        for (sequence, seq) in list(root)? {
            if seq.as_deref() == Some(OBJECTS_MARK) {
                continue;
            }
            let Some(seq) = seq.as_deref().and_then(hexadecimal) else {
                found.strays.push(sequence);
                continue;
            };
            for (bucket, byte) in list(&sequence)? {
                let Some(byte) = byte.as_deref().and_then(bucket_of) else {
                    found.strays.push(bucket);
                    continue;
                };
                let files = list(&bucket)?;
                progress.add(files.len())?;
                for (file, oid) in files {
                    let oid = oid.as_deref().and_then(hexadecimal);
                    match oid.and_then(|oid| u32::try_from(oid).ok()) {
                        Some(oid) if oid & 0xff == byte => found.objects.push((seq, oid)),
                        _ => found.strays.push(file),
                    }
                }
            }
        }
        found.objects.sort_unstable();
        Ok(found)
    }
}

/// The paths in a directory, with their names where they are of the kind that is expected: directories have no file in
/// their place, and no name is other than plain text.
fn list(dir: &Path) -> Result<Vec<(PathBuf, Option<String>)>, OsdError> {
    let mut out = Vec::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // A file where a directory should be: its name alone tells nothing, so it is found by its parent's caller.
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

/// A number as names of objects have it: lower case, no leading zeros.
fn hexadecimal(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (format!("{number:x}") == name).then_some(number)
}

fn bucket_of(name: &str) -> Option<u32> {
    let number = u32::from_str_radix(name, 16).ok()?;
    (format!("{number:02x}") == name).then_some(number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Batch, MemoryIndex};

    #[test]
    fn every_entry_is_seen_once_and_a_wish_to_stop_is_heard() {
        let index = MemoryIndex::default();
        let mut batch = Batch::new();
        for n in 0..10_000u32 {
            batch.put([b"k".as_slice(), &n.to_be_bytes()].concat(), Vec::new());
        }
        batch.put("j", "").put("l", "");
        index.apply(batch).unwrap();
        let (progress, mut keys) = (Progress::default(), Vec::new());
        each::<OsdError>(&index, b"k", &progress, |k, _| {
            keys.push(k);
            Ok(())
        })
        .unwrap();
        assert!(keys.len() == 10_000 && keys.is_sorted() && progress.seen() == 10_000);
        progress.stop();
        let stopped = each::<OsdError>(&index, b"k", &progress, |_, _| Ok(()));
        assert!(matches!(stopped, Err(OsdError::Stopping)));
    }

    #[test]
    fn object_files_are_told_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("objects");
        let progress = Progress::default();
        assert!(ObjectFiles::read(&root, &progress).unwrap().objects.is_empty());
        for path in [
            "240000400/3f/2a3f",
            "240000400/01/1",
            "240000400/01/2",
            "240000400/01/core",
        ] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        for stray in ["NOTES", "5", "240000400/zz", "240000400/02"] {
            fs::write(root.join(stray), "").unwrap();
        }
        let mut found = ObjectFiles::read(&root, &progress).unwrap();
        assert_eq!(found.objects, [(0x2_4000_0400, 1), (0x2_4000_0400, 0x2a3f)]);
        found.strays.sort();
        let strays: Vec<_> = found
            .strays
            .iter()
            .map(|p| p.strip_prefix(&root).unwrap())
            .collect();
        assert_eq!(
            strays,
            [
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
