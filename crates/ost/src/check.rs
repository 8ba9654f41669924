//! Offline check of an OST's store, without the MDT: every record can be read, and each file
//! belongs to an object and has at least its recorded size. [`Store`] lists the objects and
//! sequences for a caller that also reads the files' layouts.
//!
//! Only a [`Store`] opened with `repair` changes anything. The target must not run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use osd::{
    Batch, Index, LocalStores, ObjAttr, Objects, OsdError, SetAttr, Stores as _,
    check::{
        Finding, ObjectFiles, Progress, for_each_entry, for_each_object_record, object_file,
        object_generation,
    },
};
use wire::{FID_SEQ_IDIF, Fid, OstIndex};

use crate::{commit, sequence};

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A record that cannot be parsed.
    BadRecord {
        /// The record's key.
        key: bytes::Bytes,
        /// The kind of record for messages, such as "a sequence".
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// A record of an unknown kind.
    UnknownRecord {
        /// The record's key.
        key: bytes::Bytes,
    },
    /// A file in the object directory that belongs to no object.
    Stray(PathBuf),
    /// An object with a missing file, or with a file shorter than its record requires.
    DamagedFile {
        /// The object.
        fid: Fid,
        /// The object's file.
        path: PathBuf,
        /// Minimum size according to the object's record, bytes.
        expected: u64,
        /// The actual size, bytes; `None` if the file is missing.
        found: Option<u64>,
    },
    /// An object with data that does not match its checksum.
    WrongData {
        /// The object.
        fid: Fid,
        /// The object's file.
        path: PathBuf,
        /// Offsets of the wrong blocks of 4 KiB.
        offsets: Vec<u64>,
    },
}

impl Problem {
    /// Converts the problem into a [`Finding`].
    pub fn finding(&self) -> Finding {
        let record = |key: &[u8]| format!("record {}", key.escape_ascii());
        match self {
            Problem::BadRecord { key, what, why } => Finding {
                kind: "unreadable record",
                fid: None,
                place: record(key),
                expected: format!("a record of {what}"),
                found: why.clone(),
                repair: Some("removes it"),
            },
            Problem::UnknownRecord { key } => Finding {
                kind: "unknown record",
                fid: None,
                place: record(key),
                expected: "a record kind that this version knows".into(),
                found: "an unknown kind".into(),
                repair: None,
            },
            Problem::DamagedFile {
                fid,
                path,
                expected,
                found,
            } => Finding {
                kind: match found {
                    None => "missing object file",
                    Some(_) => "short object file",
                },
                fid: Some(*fid),
                place: path.display().to_string(),
                expected: format!("at least {expected} bytes"),
                found: found.map_or_else(|| "no file".into(), |size| format!("{size} bytes")),
                repair: None,
            },
            Problem::WrongData { fid, path, offsets } => Finding {
                kind: "wrong data",
                fid: Some(*fid),
                place: path.display().to_string(),
                expected: "data that matches its checksum".into(),
                found: format!(
                    "{} blocks of 4 KiB do not match their checksums, the first at byte {}",
                    offsets.len(),
                    offsets.first().unwrap_or(&0)
                ),
                repair: None,
            },
            Problem::Stray(path) => Finding {
                kind: "stray file",
                fid: None,
                place: path.display().to_string(),
                expected: "only files of objects, each in its directory".into(),
                found: "a file that belongs to no object".into(),
                repair: None,
            },
        }
    }
}

/// An object that has a record, a file, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectEntry {
    /// The object's FID.
    pub fid: Fid,
    /// The FID of the object's file, with the stripe index as `f_ver`. Zero if the object does not
    /// record its file.
    pub parent: Fid,
}

/// The sequences that a target allocated, and the last object created in each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceTable {
    /// The super-sequence: start, end (exclusive) and the next sequence to allocate. Zeros: none
    /// yet.
    pub range: (u64, u64, u64),
    /// The id of the last object created, by sequence.
    pub last: BTreeMap<u64, u64>,
    /// The target's sequence of objects without FIDs (IDIF).
    idif: u64,
}

impl SequenceTable {
    /// Whether the target allocated this sequence to an MDT, or the sequence is the target's IDIF
    /// one.
    pub fn is_allocated(&self, seq: u64) -> bool {
        (self.range.0..self.range.2).contains(&seq) || seq == self.idif || self.last.contains_key(&seq)
    }

    /// The id of the last object created in a sequence; 0 if there is none.
    pub fn last(&self, seq: u64) -> u64 {
        self.last.get(&seq).copied().unwrap_or(0)
    }
}

/// The store of a stopped target.
pub struct Store {
    root: PathBuf,
    ost_index: OstIndex,
    index: Arc<dyn Index>,
    /// `None` if the target never ran.
    objects: Option<Arc<dyn Objects>>,
    /// The objects' files by sequence and id, with their sizes in bytes; `None`: the files are in
    /// `root`.
    files: Option<BTreeMap<(u64, u32), u64>>,
}

impl Store {
    /// Opens the store in a target's directory. Without `repair`, nothing in it changes.
    ///
    /// # Errors
    ///
    /// The store cannot be opened, for example because the target runs.
    pub async fn open(
        dir: &Path,
        stores: &LocalStores,
        ost_index: OstIndex,
        repair: bool,
    ) -> Result<Store, OsdError> {
        let index = match repair {
            true => stores.open_index().await?,
            false => stores.open_index_read_only().await?,
        };
        let root = dir.join("objects");
        let objects = match root.is_dir() {
            true => Some(stores.open_objects(&index).await?),
            false => None,
        };
        Ok(Store {
            root,
            ost_index,
            index,
            objects,
            files: None,
        })
    }

    /// The store of a target whose objects are not in a directory. `files`: the sequence and id of
    /// each object that has a file, and the file's size in bytes.
    pub fn on(
        ost_index: OstIndex,
        index: Arc<dyn Index>,
        objects: Arc<dyn Objects>,
        files: BTreeMap<(u64, u32), u64>,
    ) -> Store {
        Store {
            root: PathBuf::from(osd::target::OBJECTS),
            ost_index,
            index,
            objects: Some(objects),
            files: Some(files),
        }
    }

    /// The files of the objects.
    fn object_files(&self, progress: &Progress) -> Result<ObjectFiles, OsdError> {
        match &self.files {
            Some(files) => Ok(ObjectFiles {
                objects: files.keys().copied().collect(),
                strays: Vec::new(),
            }),
            None => ObjectFiles::read(&self.root, progress),
        }
    }

    /// The size of an object's file at `path`, bytes.
    fn file_size(&self, fid: &Fid, path: &Path) -> Result<u64, OsdError> {
        if let Some(files) = &self.files {
            return Ok(files.get(&(fid.f_seq, fid.f_oid)).copied().unwrap_or_default());
        }
        let metadata = fs::metadata(path).map_err(OsdError::io("stat", path))?;
        Ok(metadata.len())
    }

    /// Reads the target's sequences. Adds unreadable and unknown records to `problems`.
    ///
    /// # Errors
    ///
    /// The index cannot be read.
    pub async fn sequences(
        &self,
        progress: &Progress,
        problems: &mut Vec<Problem>,
    ) -> Result<SequenceTable, OsdError> {
        let mut found = SequenceTable {
            idif: FID_SEQ_IDIF | u64::from(self.ost_index.0 & 0xffff) << 16,
            ..SequenceTable::default()
        };
        for tag in osd::USER_KEYS {
            for_each_entry(&*self.index, &[tag], progress, |key, value| {
                let bad = |what, why: String| Problem::BadRecord {
                    key: key.clone(),
                    what,
                    why,
                };
                let size = format!("{} bytes", value.len());
                if key[..] == sequence::SUPER_KEY {
                    match sequence::parse_super(&value) {
                        Some(r) => found.range = (r.start, r.end, r.next),
                        None => problems.push(bad("the super-sequence", size)),
                    }
                } else if key.starts_with(&sequence::LAST_PREFIX) {
                    match sequence::parse_last(&key, &value) {
                        Some((seq, last)) => drop(found.last.insert(seq, last)),
                        None => problems.push(bad("a sequence", size)),
                    }
                } else if key[..] != commit::KEY {
                    problems.push(Problem::UnknownRecord { key });
                } else if commit::parse(&value).is_none() {
                    problems.push(bad("transactions", size));
                }
                Ok::<(), OsdError>(())
            })
            .await?;
        }
        Ok(found)
    }

    /// Calls `f` with each object, in the order of FIDs. Adds unreadable records, damaged objects
    /// and stray files to `problems`.
    ///
    /// # Errors
    ///
    /// The index or the object directory cannot be read.
    pub async fn for_each_object(
        &self,
        progress: &Progress,
        problems: &mut Vec<Problem>,
        mut f: impl FnMut(ObjectEntry),
    ) -> Result<(), OsdError> {
        let files = self.object_files(progress)?;
        problems.extend(files.strays.into_iter().map(Problem::Stray));
        let without_record = |(seq, oid): (u64, u32)| ObjectEntry {
            fid: Fid::new(seq, oid, 0),
            parent: Fid::ZERO,
        };
        let mut files = files.objects.into_iter().peekable();
        for_each_object_record(&*self.index, progress, |record| {
            let (Some(fid), Ok(attr)) = (record.fid, &record.attr) else {
                problems.push(Problem::BadRecord {
                    key: record.key,
                    what: "an object",
                    why: record.attr.err().unwrap_or_else(|| "the key is not a FID".into()),
                });
                return Ok(());
            };
            while let Some(file) = files.next_if(|file| *file < (fid.f_seq, fid.f_oid)) {
                f(without_record(file));
            }
            let has_file = files.next_if_eq(&(fid.f_seq, fid.f_oid)).is_some();
            if let Some(expected) = record.durable_size {
                let path = object_file(&self.root, &fid, record.generation);
                let found = match has_file {
                    true => Some(self.file_size(&fid, &path)?),
                    false => None,
                };
                if found.is_none_or(|size| size < expected) {
                    problems.push(Problem::DamagedFile {
                        fid,
                        path,
                        expected,
                        found,
                    });
                }
            }
            f(ObjectEntry {
                fid,
                parent: attr.parent,
            });
            Ok::<(), OsdError>(())
        })
        .await?;
        files.for_each(|file| f(without_record(file)));
        Ok(())
    }

    /// Reads the data of objects, and adds those with wrong data to `problems`. Skips objects with
    /// damaged files, which are in `problems` already.
    ///
    /// # Errors
    ///
    /// A file or the index cannot be opened or read, or [`OsdError::Stopping`].
    pub async fn check_data(
        &self,
        fids: &[Fid],
        progress: &Progress,
        problems: &mut Vec<Problem>,
    ) -> Result<(), OsdError> {
        let Some(objects) = &self.objects else {
            return Ok(());
        };
        let damaged: BTreeSet<Fid> = problems
            .iter()
            .filter_map(|problem| match problem {
                Problem::DamagedFile { fid, .. } => Some(*fid),
                _ => None,
            })
            .collect();
        for fid in fids.iter().filter(|fid| !damaged.contains(fid)) {
            let (mut next, mut offsets) = (Some(0), Vec::new());
            while let Some(offset) = next {
                progress.add(usize::from(offset == 0))?;
                let scrubbed = objects.scrub(*fid, offset, false).await?;
                offsets.extend(scrubbed.damaged);
                next = scrubbed.next;
            }
            if !offsets.is_empty() {
                let generation = object_generation(&*self.index, fid).await?;
                problems.push(Problem::WrongData {
                    fid: *fid,
                    path: object_file(&self.root, fid, generation),
                    offsets,
                });
            }
        }
        Ok(())
    }

    /// An object's attributes; zeros if it has none or its file is damaged.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn attr(&self, object: Fid) -> Result<ObjAttr, OsdError> {
        match &self.objects {
            Some(objects) => match objects.attr(object).await {
                // [`Store::for_each_object`] has reported the damage already.
                Err(OsdError::DamagedObject { .. }) => Ok(ObjAttr::default()),
                attr => Ok(attr?.unwrap_or_default()),
            },
            None => Ok(ObjAttr::default()),
        }
    }

    /// Repairs a problem: removes a record that cannot be parsed. Leaves all other problems.
    ///
    /// # Errors
    ///
    /// The index cannot be written.
    pub fn repair(&self, problem: &Problem) -> Result<(), OsdError> {
        let Problem::BadRecord { key, .. } = problem else {
            return Ok(());
        };
        let mut batch = Batch::new();
        batch.delete_twice(key.clone());
        self.index.apply(batch)
    }

    /// Destroys an object.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn destroy(&self, object: Fid) -> Result<(), OsdError> {
        match &self.objects {
            Some(objects) => objects.destroy(object).await.map(drop),
            None => Ok(()),
        }
    }

    /// Sets the file of an object: the file's FID, with the stripe index as `f_ver`.
    ///
    /// # Errors
    ///
    /// `NotFound` if the target never ran; else the store cannot be written.
    pub async fn set_parent(&self, object: Fid, parent: Fid) -> Result<(), OsdError> {
        let attr = SetAttr {
            parent: Some(parent),
            ..SetAttr::default()
        };
        match &self.objects {
            Some(objects) => objects.setattr(object, attr).await,
            None => Err(OsdError::NotFound),
        }
    }

    /// Records the last object created in a sequence.
    ///
    /// # Errors
    ///
    /// The index cannot be written.
    pub fn set_last(&self, seq: u64, last: u64) -> Result<(), OsdError> {
        let mut batch = Batch::new();
        let (key, value) = sequence::last_record(seq, last);
        batch.put_twice(key, value);
        self.index.apply(batch)
    }

    /// Waits until all changes are on disk.
    ///
    /// # Errors
    ///
    /// The disk cannot be written.
    pub async fn sync(&self) -> Result<(), OsdError> {
        match &self.objects {
            Some(objects) => objects.sync(None).await,
            None => self.index.sync().await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SEQ: u64 = 0x2_4000_0400;

    fn fid(oid: u32) -> Fid {
        Fid::new(SEQ, oid, 0)
    }

    /// A store with the objects 3, 9 and 0x103, and object 7 without a file.
    async fn store_with_objects(dir: &Path) -> Store {
        std::fs::create_dir_all(dir.join("objects")).unwrap();
        let store = Store::open(dir, &LocalStores::in_dir(dir), OstIndex(0), true).await;
        let store = store.unwrap();
        store.set_last(SEQ, 40).unwrap();
        let objects = store.objects.as_ref().unwrap();
        for oid in [3, 0x103, 9] {
            let data = vec![bytes::Bytes::from_static(b"data")];
            objects
                .write(fid(oid), 0, data, SetAttr::default())
                .await
                .unwrap();
        }
        store
            .set_parent(fid(7), Fid::new(0x2_0000_0401, 5, 1))
            .await
            .unwrap();
        store.sync().await.unwrap();
        store
    }

    async fn check(store: &Store) -> (SequenceTable, Vec<ObjectEntry>, Vec<Problem>) {
        let (mut problems, mut objects) = (Vec::new(), Vec::new());
        let progress = Progress::default();
        let sequences = store.sequences(&progress, &mut problems).await.unwrap();
        store
            .for_each_object(&progress, &mut problems, |o| objects.push(o))
            .await
            .unwrap();
        (sequences, objects, problems)
    }

    #[tokio::test]
    async fn objects_have_a_record_or_a_file_and_a_check_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        drop(store_with_objects(dir.path()).await);
        std::fs::write(dir.path().join("objects/240000400/08").with_file_name("note"), "").unwrap();
        let store = Store::open(dir.path(), &LocalStores::in_dir(dir.path()), OstIndex(0), false)
            .await
            .unwrap();
        let (sequences, objects, problems) = check(&store).await;
        assert_eq!(
            (sequences.last(SEQ), sequences.is_allocated(SEQ + 1)),
            (40, false)
        );
        let fids: Vec<u32> = objects.iter().map(|o| o.fid.f_oid).collect();
        assert_eq!(fids, [3, 7, 9, 0x103]);
        assert_eq!(objects[1].parent, Fid::new(0x2_0000_0401, 5, 1));
        assert!(matches!(&problems[..], [Problem::Stray(p)] if p.ends_with("note")));
        assert_eq!(store.attr(fid(0x103)).await.unwrap().size, 4);
        assert!(store.set_last(SEQ, 1).is_err());
    }

    #[tokio::test]
    async fn unreadable_records_are_reported_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = store_with_objects(dir.path()).await;
        let mut batch = Batch::new();
        batch.put("sq", "short").put("sl", "?").put("st", "");
        batch.put(
            [&[0xf1], &SEQ.to_be_bytes()[..], &3u32.to_be_bytes()[..]].concat(),
            "?",
        );
        batch.put(vec![0xf1, 9], "?").put("zebra", "");
        store.index.apply(batch).unwrap();
        let (_, objects, problems) = check(&store).await;
        assert_eq!(objects.len(), 4);
        let kinds: Vec<_> = problems.iter().map(|p| p.finding().kind).collect();
        assert_eq!(
            kinds,
            [
                &["unreadable record"; 3][..],
                &["unknown record"],
                &["unreadable record"; 2]
            ]
            .concat()
        );
        for problem in &problems {
            store.repair(problem).unwrap();
        }
        let (_, objects, problems) = check(&store).await;
        assert_eq!((objects.len(), problems.len()), (4, 1));
    }
}
