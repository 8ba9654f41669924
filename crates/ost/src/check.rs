//! Is the store of an object target consistent? What can be said without the metadata target: its records can be read, its
//! files are objects. Which objects it has, of which sequences, is told to who knows the files' layouts.
//!
//! [`Store`] opens the store of a target that does not run; only what [`Store::open`] opened to be repaired changes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use osd::{
    Batch, Index, ObjAttr, Objects, OsdError, SetAttr, StoreKind,
    check::{Finding, ObjectFiles, Progress, each, each_object_record, object_file},
};
use wire::{FID_SEQ_IDIF, Fid, OstIndex};

use crate::{commit, sequence};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A record cannot be read.
    BadRecord {
        /// Its key.
        key: bytes::Bytes,
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        why: String,
    },
    /// A record of a kind that there is not.
    UnknownRecord {
        /// Its key.
        key: bytes::Bytes,
    },
    /// A file that is no object.
    Stray(PathBuf),
    /// An object's file is missing, or is shorter than what was written.
    DamagedFile {
        /// The object.
        fid: Fid,
        /// Its file.
        path: PathBuf,
        /// Bytes that it has at least, as its record says.
        expected: u64,
        /// Its size; `None` when it is missing.
        found: Option<u64>,
    },
}

impl Problem {
    /// As it is told.
    pub fn finding(&self) -> Finding {
        let record = |key: &[u8]| format!("record {}", key.escape_ascii());
        match self {
            Problem::BadRecord { key, what, why } => Finding {
                what: "unreadable record",
                fid: None,
                place: record(key),
                expected: format!("that of {what}"),
                found: why.clone(),
                repair: Some("removes it"),
            },
            Problem::UnknownRecord { key } => Finding {
                what: "unknown record",
                fid: None,
                place: record(key),
                expected: "records that this version writes".into(),
                found: "another".into(),
                repair: None,
            },
            Problem::DamagedFile {
                fid,
                path,
                expected,
                found,
            } => Finding {
                what: match found {
                    None => "missing object file",
                    Some(_) => "short object file",
                },
                fid: Some(*fid),
                place: path.display().to_string(),
                expected: format!("at least {expected} bytes"),
                found: found.map_or_else(|| "no file".into(), |size| format!("{size} bytes")),
                repair: None,
            },
            Problem::Stray(path) => Finding {
                what: "stray file",
                fid: None,
                place: path.display().to_string(),
                expected: "files of objects only, each in its place".into(),
                found: "another".into(),
                repair: None,
            },
        }
    }
}

/// An object that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// The object.
    pub fid: Fid,
    /// The file that it says it is a part of, with the stripe's index as version; zero when it does not say.
    pub parent: Fid,
}

/// The sequences of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sequences {
    /// Its super-sequence: first, end and the next one to give; zeros: none yet.
    pub range: (u64, u64, u64),
    /// The last object that was made of each sequence.
    pub last: BTreeMap<u64, u64>,
    idif: u64,
}

impl Sequences {
    /// Whether the target gave this sequence to somebody, or has objects of old in it.
    pub fn is_given(&self, seq: u64) -> bool {
        (self.range.0..self.range.2).contains(&seq) || seq == self.idif || self.last.contains_key(&seq)
    }

    /// The last object that was made of a sequence.
    pub fn last(&self, seq: u64) -> u64 {
        self.last.get(&seq).copied().unwrap_or(0)
    }
}

/// The store of a target that does not run.
pub struct Store {
    root: PathBuf,
    ost_index: OstIndex,
    index: Arc<dyn Index>,
    /// None when the target never ran.
    objects: Option<Arc<dyn Objects>>,
}

impl Store {
    /// Opens the store in a target's directory, to be looked at or to be repaired.
    pub async fn open(dir: &Path, ost_index: OstIndex, repair: bool) -> Result<Store, OsdError> {
        let kind = StoreKind::Local(dir.to_owned());
        let index = match repair {
            true => osd::open_index(&kind).await?,
            false => osd::open_index_unchanged(&kind).await?,
        };
        let root = dir.join("objects");
        let objects = match root.is_dir() {
            true => Some(osd::open_objects(&kind, &index).await?),
            false => None,
        };
        Ok(Store {
            root,
            ost_index,
            index,
            objects,
        })
    }

    /// Its sequences; what of its records cannot be read is added to `problems`.
    pub fn sequences(&self, progress: &Progress, problems: &mut Vec<Problem>) -> Result<Sequences, OsdError> {
        let mut found = Sequences {
            idif: FID_SEQ_IDIF | u64::from(self.ost_index.0 & 0xffff) << 16,
            ..Sequences::default()
        };
        for tag in 0..osd::KEY_RESERVED {
            each(&*self.index, &[tag], progress, |key, value| {
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
            })?;
        }
        Ok(found)
    }

    /// Calls `f` with each object that is there, in the order of FIDs: it has a record, or a file.
    pub fn each_object(
        &self,
        progress: &Progress,
        problems: &mut Vec<Problem>,
        mut f: impl FnMut(Object),
    ) -> Result<(), OsdError> {
        let files = ObjectFiles::read(&self.root, progress)?;
        problems.extend(files.strays.into_iter().map(Problem::Stray));
        let without_record = |(seq, oid): (u64, u32)| Object {
            fid: Fid::new(seq, oid, 0),
            parent: Fid::ZERO,
        };
        let mut files = files.objects.into_iter().peekable();
        each_object_record(&*self.index, progress, |record| {
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
            let there = files.next_if_eq(&(fid.f_seq, fid.f_oid)).is_some();
            if let Some(expected) = record.on_disk {
                let path = object_file(&self.root, &fid);
                let found = match there {
                    true => Some(fs::metadata(&path).map_err(OsdError::io("stat", &path))?.len()),
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
            f(Object {
                fid,
                parent: attr.parent,
            });
            Ok::<(), OsdError>(())
        })?;
        files.for_each(|file| f(without_record(file)));
        Ok(())
    }

    /// An object's attributes.
    pub async fn attr(&self, object: Fid) -> Result<ObjAttr, OsdError> {
        match &self.objects {
            Some(objects) => match objects.attr(object).await {
                // Found by [`Store::each_object`]; what its record says is lost with it.
                Err(OsdError::DamagedObject { .. }) => Ok(ObjAttr::default()),
                attr => Ok(attr?.unwrap_or_default()),
            },
            None => Ok(ObjAttr::default()),
        }
    }

    /// Repairs what can be repaired.
    pub fn repair(&self, problem: &Problem) -> Result<(), OsdError> {
        let Problem::BadRecord { key, .. } = problem else {
            return Ok(());
        };
        let mut batch = Batch::new();
        batch.delete(key.clone());
        self.index.apply(batch)
    }

    /// Destroys an object.
    pub async fn destroy(&self, object: Fid) -> Result<(), OsdError> {
        match &self.objects {
            Some(objects) => objects.destroy(object).await.map(drop),
            None => Ok(()),
        }
    }

    /// Says whose an object is: the file, with the stripe's index as version.
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

    /// Notes the last object of a sequence.
    pub fn set_last(&self, seq: u64, last: u64) -> Result<(), OsdError> {
        let mut batch = Batch::new();
        let (key, value) = sequence::last_record(seq, last);
        batch.put(key, value);
        self.index.apply(batch)
    }

    /// Waits until everything is on disk.
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

    async fn with_objects(dir: &Path) -> Store {
        std::fs::create_dir_all(dir.join("objects")).unwrap();
        let store = Store::open(dir, OstIndex(0), true).await;
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

    fn look(store: &Store) -> (Sequences, Vec<Object>, Vec<Problem>) {
        let (mut problems, mut objects) = (Vec::new(), Vec::new());
        let progress = Progress::default();
        let sequences = store.sequences(&progress, &mut problems).unwrap();
        store
            .each_object(&progress, &mut problems, |o| objects.push(o))
            .unwrap();
        (sequences, objects, problems)
    }

    #[tokio::test]
    async fn objects_are_those_with_a_record_or_a_file_and_looking_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        drop(with_objects(dir.path()).await);
        std::fs::write(dir.path().join("objects/240000400/08").with_file_name("note"), "").unwrap();
        let store = Store::open(dir.path(), OstIndex(0), false).await.unwrap();
        // One that lost its record, as a power failure may leave it.
        let (sequences, objects, problems) = look(&store);
        assert_eq!((sequences.last(SEQ), sequences.is_given(SEQ + 1)), (40, false));
        let fids: Vec<u32> = objects.iter().map(|o| o.fid.f_oid).collect();
        assert_eq!(fids, [3, 7, 9, 0x103]);
        assert_eq!(objects[1].parent, Fid::new(0x2_0000_0401, 5, 1));
        assert!(matches!(&problems[..], [Problem::Stray(p)] if p.ends_with("note")));
        assert_eq!(store.attr(fid(0x103)).await.unwrap().size, 4);
        assert!(store.set_last(SEQ, 1).is_err());
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_told_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = with_objects(dir.path()).await;
        let mut batch = Batch::new();
        batch.put("sq", "short").put("sl", "?").put("st", "");
        batch.put(
            [&[0xf1], &SEQ.to_be_bytes()[..], &3u32.to_be_bytes()[..]].concat(),
            "?",
        );
        batch.put(vec![0xf1, 9], "?").put("zebra", "");
        store.index.apply(batch).unwrap();
        let (_, objects, problems) = look(&store);
        assert_eq!(objects.len(), 4);
        let what: Vec<_> = problems.iter().map(|p| p.finding().what).collect();
        assert_eq!(
            what,
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
        let (_, objects, problems) = look(&store);
        assert_eq!((objects.len(), problems.len()), (4, 1));
    }
}
