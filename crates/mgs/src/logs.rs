//! The logs of the MGS, in memory and in its store.
//!
//! A log is stored as chunks with one key each (`log/<name>/<chunk>`): a change writes only the
//! changed chunks. The first chunk is the log's header. `id/<name>` has the log's id; a new log
//! gets the highest id plus one. `store/<target>` has the UUID of a Nacre target's store: the MGS
//! refuses another store with the same index.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use osd::{Batch, Index, prefix_end};
use wire::config::Config as Record;
use wire::llog_file::{CHUNK, Log as Llog};
use wire::{
    CM_END, CM_SKIP, CM_START, CfgMarker, LUSTRE_VERSION_CODE, OBD_CFG_REC, ObdUuid, Text, WireError,
};

use crate::MgsError;

/// Prefix of the keys of chunks.
const LOG: &[u8] = b"log/";
/// Prefix of the keys of logs' ids.
const ID: &[u8] = b"id/";
/// Prefix of the keys of stores' UUIDs.
const STORE: &[u8] = b"store/";
/// Bytes after the log's name in a chunk's key: a slash and the chunk's number, big-endian.
const CHUNK_NUMBER_LEN: usize = 5;
/// Maximum number of entries per read of the store.
const SCAN_BATCH: usize = 256;

/// A log and its id.
#[derive(Clone)]
pub(crate) struct Log {
    /// Identifies the log in requests after its open.
    pub(crate) id: u64,
    /// The contents.
    pub(crate) llog: Llog,
    /// The contents at the last save.
    saved: Bytes,
}

/// All logs of a store, and the UUIDs of the targets' stores.
#[derive(Clone)]
pub(crate) struct Logs {
    index: Arc<dyn Index>,
    /// Logs by name.
    logs: BTreeMap<String, Log>,
    /// UUIDs of the targets' stores, by the targets' names.
    stores: BTreeMap<String, String>,
    /// The targets with unsaved entries in `stores`.
    unsaved_stores: Vec<String>,
}

impl Logs {
    /// No logs, in memory.
    pub(crate) fn in_memory() -> Logs {
        Logs {
            index: Arc::new(osd::MemoryIndex::default()),
            logs: BTreeMap::new(),
            stores: BTreeMap::new(),
            unsaved_stores: Vec::new(),
        }
    }

    /// Reads all logs from the store.
    pub(crate) async fn load(index: Arc<dyn Index>) -> Result<Logs, MgsError> {
        let mut files: BTreeMap<String, BytesMut> = BTreeMap::new();
        for (key, chunk) in scan(&*index, LOG).await? {
            let name = key
                .get(LOG.len()..key.len().saturating_sub(CHUNK_NUMBER_LEN))
                .unwrap_or_default();
            let name = String::from_utf8_lossy(name).into_owned();
            // The keys of a log are in the order of its chunks.
            files.entry(name).or_default().extend_from_slice(&chunk);
        }
        let mut logs = BTreeMap::new();
        for (name, file) in files {
            let bad = |why: String| MgsError::Store {
                what: format!("log '{name}': {why}"),
            };
            let llog = Llog::parse(&file).map_err(|e| bad(e.to_string()))?;
            let id = index.get(&[ID, name.as_bytes()].concat()).await?;
            let id = id.and_then(|b| b[..].try_into().ok()).map(u64::from_le_bytes);
            let id = id.ok_or_else(|| bad("it has no id".to_owned()))?;
            logs.insert(
                name,
                Log {
                    id,
                    llog,
                    saved: file.freeze(),
                },
            );
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stores = scan(&*index, STORE)
            .await?
            .iter()
            .map(|(key, uuid)| (text(&key[STORE.len()..]), text(uuid)))
            .collect();
        Ok(Logs {
            index,
            logs,
            stores,
            unsaved_stores: Vec::new(),
        })
    }

    /// The UUID of a target's store; `None` if the target sent none or is unknown.
    pub(crate) fn store_of(&self, target: &str) -> Option<&str> {
        self.stores.get(target).map(String::as_str)
    }

    /// Sets or removes the UUID of a target's store.
    pub(crate) fn set_store(&mut self, target: &str, uuid: Option<&str>) {
        if self.store_of(target) == uuid {
            return;
        }
        match uuid {
            Some(uuid) => self.stores.insert(target.to_owned(), uuid.to_owned()),
            None => self.stores.remove(target),
        };
        self.unsaved_stores.push(target.to_owned());
    }

    /// The log with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Log> {
        self.logs.get(name)
    }

    /// The log with this id.
    pub(crate) fn get_by_id(&self, id: u64) -> Option<&Log> {
        self.logs.values().find(|l| l.id == id)
    }

    /// The names of all logs with this prefix.
    pub(crate) fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.logs
            .range(prefix.to_owned()..)
            .map(|(n, _)| n.as_str())
            .take_while(move |n| n.starts_with(prefix))
    }

    /// The valid live records of a log; empty if the log does not exist.
    pub(crate) fn records(&self, name: &str) -> Vec<Record> {
        let Some(log) = self.get(name) else {
            return Vec::new();
        };
        log.llog
            .live()
            .flatten()
            .filter_map(|r| Record::parse(r.data).ok())
            .collect()
    }

    /// The highest step of a log's sections; 0 without sections.
    pub(crate) fn last_step(&self, name: &str) -> u32 {
        let steps = self
            .records(name)
            .into_iter()
            .filter_map(|r| r.as_marker())
            .map(|m| m.cm_step);
        steps.max().unwrap_or(0)
    }

    /// Appends a section to a log. Creates the log if it does not exist. On failure the log is
    /// unchanged.
    pub(crate) fn append(
        &mut self,
        name: &str,
        section: &Section,
        records: &[Record],
    ) -> Result<(), MgsError> {
        let id = self.logs.values().map(|l| l.id).max().unwrap_or(0) + 1;
        let uuid = ObdUuid::new("config_uuid").unwrap_or_default();
        let new = || Log {
            id,
            llog: Llog::new(uuid, section.created),
            saved: Bytes::new(),
        };
        let mut log = self.get(name).cloned().unwrap_or_else(new);
        let full = |e: WireError| MgsError::Log {
            name: name.to_owned(),
            why: e.to_string(),
        };
        let markers = [section.marker(CM_START), section.marker(CM_END)];
        for record in [&markers[..1], records, &markers[1..]].concat() {
            log.llog.append(OBD_CFG_REC, 0, &record.build()).map_err(full)?;
        }
        self.logs.insert(name.to_owned(), log);
        Ok(())
    }

    /// Marks all sections with this target and comment as skipped. Returns whether any was not
    /// skipped before. `now` is in seconds since 1970.
    pub(crate) fn skip(&mut self, name: &str, target: &str, comment: &str, now: i64) -> bool {
        let Some(log) = self.logs.get_mut(name) else {
            return false;
        };
        let mut markers = Vec::new();
        for entry in log.llog.live().flatten() {
            let Some(mut marker) = Record::parse(entry.data).ok().and_then(|r| r.as_marker()) else {
                continue;
            };
            let matches = marker.cm_tgtname.as_str() == target && marker.cm_comment.as_str() == comment;
            if matches && marker.cm_flags & CM_SKIP == 0 {
                marker.cm_flags |= CM_SKIP;
                marker.cm_canceltime = now;
                markers.push((entry.index, Record::marker(&marker).build()));
            }
        }
        // All markers have one size, so the new one fits.
        markers
            .iter()
            .filter(|(index, marker)| log.llog.rewrite(*index, marker))
            .count()
            > 0
    }

    /// Applies all changes to the store. Does not wait for the disk.
    pub(crate) fn save(&mut self) -> Result<(), MgsError> {
        let mut batch = Batch::new();
        for (name, log) in &mut self.logs {
            let file = log.llog.build();
            if file == log.saved {
                continue;
            }
            batch.put_twice([ID, name.as_bytes()].concat(), log.id.to_le_bytes().to_vec());
            let mut before = log.saved.chunks(CHUNK);
            for (number, chunk) in (0u32..).zip(file.chunks(CHUNK)) {
                if before.next() != Some(chunk) {
                    let key = [LOG, name.as_bytes(), b"/", &number.to_be_bytes()].concat();
                    batch.put_twice(key, file.slice_ref(chunk));
                }
            }
            log.saved = file;
        }
        for target in std::mem::take(&mut self.unsaved_stores) {
            let key = [STORE, target.as_bytes()].concat();
            match self.store_of(&target) {
                Some(uuid) => batch.put_twice(key, uuid.as_bytes().to_vec()),
                None => batch.delete_twice(key),
            };
        }
        if !batch.is_empty() {
            self.index.apply(batch)?;
        }
        Ok(())
    }
}

/// The contents of a section's markers.
pub(crate) struct Section<'a> {
    /// Number that orders the changes of a file system, or of a log of values.
    pub(crate) step: u32,
    /// The target or device that the section describes.
    pub(crate) target: &'a str,
    /// The kind of change, such as `add osc`, or the name of a stored value.
    pub(crate) comment: &'a str,
    /// Time of creation in seconds since 1970.
    pub(crate) created: i64,
}

impl Section<'_> {
    fn marker(&self, flags: u32) -> Record {
        Record::marker(&CfgMarker {
            cm_step: self.step,
            cm_flags: flags,
            cm_vers: LUSTRE_VERSION_CODE,
            cm_createtime: self.created,
            cm_tgtname: Text::truncated(self.target),
            cm_comment: Text::truncated(self.comment),
            ..CfgMarker::default()
        })
    }
}

/// The keys and values of all entries with this prefix.
async fn scan(index: &dyn Index, prefix: &[u8]) -> Result<Vec<(Bytes, Bytes)>, MgsError> {
    let (mut from, end) = (prefix.to_vec(), prefix_end(prefix));
    let mut out = Vec::new();
    loop {
        let entries = index.scan(&from, &end, SCAN_BATCH).await?;
        let Some((last, _)) = entries.last() else {
            return Ok(out);
        };
        from = [&last[..], &[0]].concat();
        out.extend(entries);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use wire::LCFG_ATTACH;

    fn section<'a>(step: u32, target: &'a str) -> Section<'a> {
        Section {
            step,
            target,
            comment: "add",
            created: 1,
        }
    }

    #[tokio::test]
    async fn logs_are_the_same_after_a_restart() {
        let index: Arc<dyn Index> = Arc::new(osd::MemoryIndex::default());
        let mut logs = Logs::load(index.clone()).await.unwrap();
        for step in 1..100 {
            let records = [Record::new(LCFG_ATTACH, &["device", "osc", "uuid"])];
            logs.append("fs-client", &section(step, "fs-OST0000"), &records)
                .unwrap();
            logs.save().unwrap();
        }
        logs.append("fs-MDT0000", &section(100, "fs-MDT0000"), &[])
            .unwrap();
        for (target, store) in [
            ("fs-OST0000", Some("1234")),
            ("fs-OST0001", Some("5678")),
            ("fs-OST0001", None),
        ] {
            logs.set_store(target, store);
            logs.save().unwrap();
        }
        assert!(logs.skip("fs-client", "fs-OST0000", "add", 2));
        assert!(
            !logs.skip("fs-client", "fs-OST0000", "add", 2),
            "all are skipped already"
        );
        logs.save().unwrap();

        let restarted = Logs::load(index).await.unwrap();
        assert_eq!(restarted.store_of("fs-OST0000"), Some("1234"));
        assert_eq!(restarted.store_of("fs-OST0001"), None);
        for name in ["fs-client", "fs-MDT0000"] {
            let (old, new) = (logs.get(name).unwrap(), restarted.get(name).unwrap());
            assert_eq!((old.id, old.llog.build()), (new.id, new.llog.build()));
        }
        assert_eq!(
            restarted.names("fs-").collect::<Vec<_>>(),
            ["fs-MDT0000", "fs-client"]
        );
        assert_eq!(restarted.last_step("fs-client"), 99);
    }

    #[test]
    fn a_section_that_does_not_fit_leaves_its_log_unchanged() {
        let mut logs = Logs::in_memory();
        let long = "x".repeat(CHUNK);
        let records = [Record::new(LCFG_ATTACH, &["device", "osc", long.as_str()])];
        for step in [1, 2] {
            assert!(
                logs.append("fs-client", &section(step, "fs-OST0000"), &records)
                    .is_err()
            );
            assert_eq!(logs.records("fs-client").len(), 2 * (step as usize - 1));
            logs.append("fs-client", &section(step, "fs-OST0000"), &[])
                .unwrap();
        }
    }

    #[tokio::test]
    async fn a_missing_chunk_is_an_error_that_names_the_log() {
        let index: Arc<dyn Index> = Arc::new(osd::MemoryIndex::default());
        let mut logs = Logs::load(index.clone()).await.unwrap();
        for step in 1..100 {
            logs.append("fs-client", &section(step, "fs-OST0000"), &[])
                .unwrap();
        }
        logs.save().unwrap();
        let chunks: Vec<Bytes> = scan(&*index, LOG)
            .await
            .unwrap()
            .into_iter()
            .map(|(k, _)| k)
            .collect();
        assert!(chunks.len() > 3);
        for chunk in [0, 1, chunks.len() - 1] {
            let whole = index.get(&chunks[chunk]).await.unwrap().unwrap();
            let (mut removal, mut restoration) = (Batch::new(), Batch::new());
            removal.delete(chunks[chunk].clone());
            restoration.put(chunks[chunk].clone(), whole);
            index.apply(removal).unwrap();
            let why = Logs::load(index.clone()).await.err().unwrap().to_string();
            assert!(why.contains("log 'fs-client': "), "{chunk}: {why}");
            index.apply(restoration).unwrap();
        }
        assert!(Logs::load(index).await.is_ok());
    }
}
