//! Flipped bits and lost blocks in the files of small indexes.

#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io::Write as _};

use bytes::Bytes;

use super::table::{Part, TableReader};
use super::{find_damage, rebuild};
use crate::check::Progress;
use crate::{Batch, Index, LocalConfig, LocalIndex, OsdError, target};

/// Small memory tables, so that few records make several tables.
const CONFIG: LocalConfig = LocalConfig {
    commit_interval: LocalConfig::COMMIT_INTERVAL,
    cache_bytes: 1 << 20,
    memtable_bytes: 64 << 10,
    initialised: false,
};

/// A target with records in tables of several ages and in the journal. Returns the records.
async fn aged_target(target: &Path) -> BTreeMap<Bytes, Bytes> {
    loop {
        let records = add_records(target).await;
        // The engine writes tables in the background.
        if !current_tables(target).is_empty() {
            return records;
        }
    }
}

async fn add_records(target: &Path) -> BTreeMap<Bytes, Bytes> {
    let index = LocalIndex::open(&target.join(target::INDEX), CONFIG).unwrap();
    for round in 0..6u32 {
        for n in 0..400u32 {
            let mut batch = Batch::new();
            let key = format!("key{:05}", (n * 7 + round * 100) % 1000);
            match n % 5 {
                4 => batch.delete(key),
                _ => batch.put(key, format!("{round} {n} {}", "x".repeat(150))),
            };
            index.apply(batch).unwrap();
            index.throttle().await;
        }
        index.sync().await.unwrap();
    }
    records(&index)
}

fn records(index: &LocalIndex) -> BTreeMap<Bytes, Bytes> {
    index
        .scan(&[0], &[crate::KEY_RESERVED], usize::MAX)
        .wait()
        .unwrap()
        .into_iter()
        .collect()
}

fn reopened(target: &Path) -> Result<BTreeMap<Bytes, Bytes>, OsdError> {
    let config = LocalConfig {
        initialised: true,
        ..CONFIG
    };
    Ok(records(&LocalIndex::open(&target.join(target::INDEX), config)?))
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// The files of the key space of the records, and those of the engine's own.
fn engine_files(target: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    files_below(&target.join(target::INDEX).join(super::KEY_SPACES), &mut files);
    files.sort();
    files
}

fn current_tables(target: &Path) -> Vec<PathBuf> {
    let key_space = target.join(target::INDEX).join("keyspaces/1");
    let tables = super::version::read(&key_space).unwrap();
    tables.into_iter().map(|table| table.path).collect()
}

#[tokio::test]
async fn intact_index_has_no_damage_and_a_rebuilt_one_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let before = aged_target(dir.path()).await;
    assert!(before.len() > 500);
    assert_eq!(find_damage(dir.path(), &Progress::default()).unwrap(), []);
    let old = rebuild(dir.path(), &Progress::default()).unwrap();
    assert!(old.ends_with("index.damaged-0") && old.join("keyspaces").is_dir());
    assert_eq!(find_damage(dir.path(), &Progress::default()).unwrap(), []);
    assert_eq!(reopened(dir.path()).unwrap(), before);
}

#[tokio::test]
async fn each_flipped_bit_is_reported_and_a_rebuild_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let before = aged_target(dir.path()).await;
    let current = current_tables(dir.path());
    let (mut reported, mut step) = (0, 0);
    for file in engine_files(dir.path()) {
        let good = fs::read(&file).unwrap();
        // About 40 bits of each file, at different positions.
        let stride = (good.len() * 8 / 40).max(1);
        for bit in (step % stride..good.len() * 8).step_by(stride) {
            step += 13;
            let mut flipped = good.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &flipped).unwrap();
            let damage = find_damage(dir.path(), &Progress::default()).unwrap();
            let is_leftover = damage.is_empty();
            assert!(
                !is_leftover || !current.contains(&file),
                "bit {bit} of {}",
                file.display()
            );
            reported += usize::from(!is_leftover);
        }
        fs::write(&file, &good).unwrap();
    }
    assert!(reported > 200, "{reported}");
    // One flipped bit in each table.
    for (n, table) in current.iter().enumerate() {
        let mut bytes = fs::read(table).unwrap();
        let at = bytes.len() / 4 + 1000 * n;
        bytes[at] ^= 16;
        fs::write(table, &bytes).unwrap();
    }
    assert_eq!(
        find_damage(dir.path(), &Progress::default()).unwrap().len(),
        current.len()
    );
    rebuild(dir.path(), &Progress::default()).unwrap();
    assert_eq!(find_damage(dir.path(), &Progress::default()).unwrap(), []);
    assert_eq!(reopened(dir.path()).unwrap(), before);
}

#[tokio::test]
async fn damaged_version_prevents_a_start_until_the_index_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let before = aged_target(dir.path()).await;
    let key_space = dir.path().join(target::INDEX).join("keyspaces/1");
    for n in 0..2 {
        let current = fs::read(key_space.join("current")).unwrap();
        let version = key_space.join(format!(
            "v{}",
            u64::from_le_bytes(current[..8].try_into().unwrap())
        ));
        let file = [key_space.join("current"), version][n].clone();
        let mut bytes = fs::read(&file).unwrap();
        bytes[20] ^= 1;
        fs::write(&file, bytes).unwrap();
        let damaged = reopened(dir.path()).unwrap_err();
        assert!(matches!(&damaged, OsdError::DamagedIndex(_)), "{damaged}");
        assert!(damaged.to_string().contains("fsck --repair"));
        assert!(
            rebuild(dir.path(), &Progress::default())
                .unwrap()
                .ends_with(format!("index.damaged-{n}"))
        );
        assert_eq!(reopened(dir.path()).unwrap(), before);
    }
}

#[tokio::test]
async fn lost_blocks_lose_only_their_own_records() {
    let dir = tempfile::tempdir().unwrap();
    let before = aged_target(dir.path()).await;
    let table = current_tables(dir.path()).remove(0);
    let (records_before, _) = read_table(&table);
    // The disk returns zeros for a page.
    let file = fs::OpenOptions::new().write(true).open(&table).unwrap();
    file.write_all_at(&[0; 4096], 4096).unwrap();
    let (records_after, damaged) = read_table(&table);
    assert!(records_after.iter().all(|key| records_before.contains(key)));
    // The page has parts of at most three blocks.
    let lost = records_before.len() - records_after.len();
    assert!(
        damaged > 0 && lost > 0 && lost < 3 * 4096 / 150,
        "{lost} of {}",
        records_before.len()
    );
    let why = &find_damage(dir.path(), &Progress::default()).unwrap()[0].why;
    assert!(why.contains("damaged blocks: bytes"), "{why}");
    rebuild(dir.path(), &Progress::default()).unwrap();
    let after = reopened(dir.path()).unwrap();
    assert!(before.iter().filter(|(key, _)| !after.contains_key(*key)).count() <= lost);
}

/// The keys of a table's records, with their sequence numbers, and the number of damaged parts.
fn read_table(table: &Path) -> (Vec<(Vec<u8>, u64)>, usize) {
    let mut reader = TableReader::open_correcting(table).unwrap();
    let (mut keys, mut damaged) = (Vec::new(), 0);
    while let Some(part) = reader.next_part().unwrap() {
        match part {
            Part::Records(records) => {
                keys.extend(records.iter().map(|r| (r.key.user_key.to_vec(), r.key.seqno)))
            }
            Part::Damaged(_) => damaged += 1,
            Part::Other => {}
        }
    }
    (keys, damaged)
}

#[tokio::test]
async fn interrupted_rebuild_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let before = aged_target(dir.path()).await;
    let new = dir.path().join("index.new");
    fs::create_dir(&new).unwrap();
    fs::File::create(new.join("0.jnl"))
        .unwrap()
        .write_all(b"partial")
        .unwrap();
    rebuild(dir.path(), &Progress::default()).unwrap();
    assert!(!new.exists());
    assert_eq!(reopened(dir.path()).unwrap(), before);
}

#[tokio::test]
async fn stopped_rebuild_leaves_the_index_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let before = aged_target(dir.path()).await;
    let progress = Progress::default();
    progress.stop();
    let stopped = [
        find_damage(dir.path(), &progress).map(drop),
        rebuild(dir.path(), &progress).map(drop),
    ];
    assert!(
        stopped
            .iter()
            .all(|result| matches!(result, Err(OsdError::Stopping)))
    );
    assert!(!dir.path().join("index.damaged-0").exists());
    assert_eq!(reopened(dir.path()).unwrap(), before);
}
