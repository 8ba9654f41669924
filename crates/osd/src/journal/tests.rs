//! Tests on journals written by the engine: with a flipped bit in each byte, truncated at each
//! byte, and with lost sectors.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;

use super::*;
use crate::{Batch, Index, LocalConfig, LocalIndex};

const BATCHES: u32 = 60;

fn open(target: &Path) -> LocalIndex {
    LocalIndex::open(&target.join("index"), LocalConfig::default()).unwrap()
}

/// Applies batches and syncs after each one, so that a commit record follows each.
async fn fill(target: &Path, from: u32, batches: u32) {
    let index = open(target);
    for n in from..from + batches {
        let mut batch = Batch::new();
        for part in 0..1 + n % 3 {
            batch.put(
                format!("key {n:04} {part}"),
                vec![n as u8; 10 + (n as usize * 37) % 150],
            );
        }
        if n % 5 == 4 {
            batch.delete(format!("key {:04} 0", n - 3));
        }
        index.apply(batch).unwrap();
        index.sync().await.unwrap();
    }
}

fn journal(target: &Path) -> PathBuf {
    let scans = scan_all(&target.join("index")).unwrap();
    assert_eq!(scans.len(), 1);
    scans[0].0.clone()
}

/// A target with one journal, and the journal's contents without the zeros at its end.
async fn target() -> (tempfile::TempDir, PathBuf, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    fill(dir.path(), 0, BATCHES).await;
    let path = journal(dir.path());
    let scan = scan::scan(&path, None).unwrap();
    assert_eq!((scan.damaged.len(), scan.torn, scan.complete.len()), (0, None, 1));
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(scan.complete[0].end as usize);
    (dir, path, bytes)
}

/// The start of each batch of a journal. Writes prefixes of the journal to `path`.
fn starts(path: &Path, bytes: &[u8]) -> Vec<usize> {
    let mut starts = vec![0];
    let mut complete_to = 0;
    for end in 1..bytes.len() {
        // Only an end entry has this trailer.
        if bytes[..end].ends_with(b"FJL\x03") {
            fs::write(path, &bytes[..end]).unwrap();
            let scan = scan::scan(path, None).unwrap();
            assert_eq!((scan.damaged.len(), scan.torn), (0, None));
            assert_eq!(scan.complete[0].end, end as u64);
            starts.push(end);
            complete_to = end;
        }
    }
    assert!(complete_to > 0);
    starts
}

/// The sequence number of the batch that begins here.
fn sequence(bytes: &[u8], start: usize) -> u64 {
    u64::from_le_bytes(bytes[start + 5..start + 13].try_into().unwrap())
}

#[tokio::test]
async fn scan_locates_a_flipped_bit_anywhere_before_the_last_batch() {
    let (dir, _, bytes) = target().await;
    let path = dir.path().join("1.jnl");
    let starts = starts(&path, &bytes);
    let last = *starts.last().unwrap();
    // As on disk, the journal has preallocated zeros at its end.
    let mut flipped = bytes.clone();
    flipped.resize(bytes.len() + 10_000, 0);
    fs::write(&path, &flipped).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in 0..bytes.len() {
        flipped[..at].copy_from_slice(&bytes[..at]);
        flipped[at] ^= 1 << (at % 8);
        let from = at.saturating_sub(1);
        file.write_at(&flipped[from..=at], from as u64).unwrap();
        let scan = scan::scan(&path, None).unwrap();
        let batch = starts.iter().rposition(|start| *start <= at).unwrap();
        if (starts[batch] + 5..starts[batch] + 13).contains(&at) {
            // The checksum does not cover the sequence number. Only the order shows that it is
            // wrong, and not always which of two batches is wrong.
            let between = |n: usize| sequence(&flipped, starts[n]) < sequence(&flipped, starts[n + 1]);
            let in_order = (batch == 0 || between(batch - 1)) && (starts[batch] == last || between(batch));
            let near = |d: &std::ops::Range<u64>| d.start <= at as u64 && at as u64 - d.start < 1000;
            assert!(
                in_order || scan.damaged.len() == 1 && near(&scan.damaged[0]),
                "byte {at}"
            );
            // A sequence number out of range makes the batch invalid; in the last batch that looks
            // like a torn tail.
            let torn_last = starts[batch] == last && scan.torn == Some(last as u64);
            assert!(torn_last || scan.torn.is_none(), "byte {at}");
            continue;
        }
        if starts[batch] == last {
            // No complete batch follows: it looks like a torn tail.
            assert_eq!(
                (scan.damaged.len(), scan.torn),
                (0, Some(last as u64)),
                "byte {at}"
            );
            continue;
        }
        let expected = starts[batch] as u64..starts[batch + 1] as u64;
        assert_eq!(scan.damaged, [expected], "byte {at}");
        assert_eq!(scan.torn, None, "byte {at}");
    }
}

#[tokio::test]
async fn truncated_journal_has_a_torn_tail_and_no_damage() {
    let (dir, _, bytes) = target().await;
    let path = dir.path().join("1.jnl");
    let starts = starts(&path, &bytes);
    fs::write(&path, &bytes).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for end in (1..bytes.len()).rev() {
        for zeros in [0, 5000] {
            file.set_len(end as u64).unwrap();
            file.set_len((end + zeros) as u64).unwrap();
            let scan = scan::scan(&path, None).unwrap();
            assert!(scan.damaged.is_empty(), "{end}");
            let whole = *starts.iter().rfind(|start| **start <= end).unwrap();
            assert_eq!(scan.complete.last().map_or(0, |w| w.end), whole as u64);
            assert_eq!(scan.torn, (whole < end).then_some(whole as u64), "{end}");
        }
    }
}

#[tokio::test]
async fn lost_sectors_are_a_torn_tail_only_if_unsynced() {
    let (dir, _, bytes) = target().await;
    let path = dir.path().join("1.jnl");
    let starts = starts(&path, &bytes);
    let sectors = bytes.len() / 512;
    let mut tried = 0;
    for sector in 0..sectors {
        let (from, to) = (sector * 512, (sector + 1) * 512);
        let mut lost = bytes.clone();
        lost[from..to].fill(0);
        // Truncate so that one commit record follows the lost sector.
        let after = starts.iter().position(|start| *start >= to);
        let Some(after) = after.filter(|after| after + 4 < starts.len()) else {
            continue;
        };
        fs::write(&path, &lost).unwrap();
        let synced = scan::scan(&path, None).unwrap();
        assert_eq!((synced.torn, synced.damaged.len()), (None, 1), "sector {sector}");
        lost.truncate(starts[after + 2]);
        fs::write(&path, &lost).unwrap();
        let scan = scan::scan(&path, None).unwrap();
        assert_eq!(scan.damaged, [], "sector {sector}");
        assert!(scan.torn.is_some_and(|torn| torn <= from as u64));
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
}

#[tokio::test]
async fn flipped_bit_in_the_last_change_before_a_close_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let mut batch = Batch::new();
    // The value looks like lost sectors.
    batch.put("key", vec![0; 2000]);
    index.apply(batch).unwrap();
    drop(index);
    let path = journal(dir.path());
    let mut bytes = fs::read(&path).unwrap();
    let value = bytes.windows(3).position(|w| w == b"key").unwrap() + 3;
    bytes[value + 7] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let found = find_damage(dir.path()).unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].bytes.contains(&(value as u64)));
}

#[tokio::test]
async fn damaged_index_opens_only_after_a_repair_that_keeps_a_copy() {
    let (dir, path, bytes) = target().await;
    let starts = starts(&dir.path().join("1.jnl"), &bytes);
    fs::remove_file(dir.path().join("1.jnl")).unwrap();
    let at = starts[starts.len() / 2] + 20;
    let mut damaged = bytes.clone();
    damaged[at] ^= 4;
    fs::write(&path, &damaged).unwrap();
    let refused = LocalIndex::open(&dir.path().join("index"), LocalConfig::default());
    let refused = refused.err().unwrap().to_string();
    let from = starts[starts.len() / 2];
    assert!(
        refused.contains(path.to_str().unwrap()) && refused.contains(&format!("from byte {from}")),
        "{refused}"
    );
    assert_eq!(fs::read(&path).unwrap(), damaged);
    let found = find_damage(dir.path()).unwrap();
    assert_eq!((found.len(), found[0].bytes.start), (1, from as u64));

    // Opening read-only gives access to the rest.
    let config = LocalConfig::default();
    let read = LocalIndex::open_read_only(&dir.path().join("index"), config).unwrap();
    let keys = read.scan(b"key", b"l", usize::MAX).wait().unwrap().len();
    drop(read);
    assert_eq!(fs::read(&path).unwrap(), damaged);

    let copies = repair(dir.path()).unwrap();
    assert_eq!(copies.len(), 1);
    assert_eq!(fs::read(&copies[0]).unwrap(), damaged);
    assert_eq!(find_damage(dir.path()).unwrap(), []);
    assert!(repair(dir.path()).unwrap().is_empty());
    let index = open(dir.path());
    assert_eq!(index.scan(b"key", b"l", usize::MAX).wait().unwrap().len(), keys);
    drop(index);
    fill(dir.path(), BATCHES, 3).await;
    assert!(open(dir.path()).get(b"key 0062 0").wait().unwrap().is_some());
}

#[tokio::test]
async fn open_fails_if_the_journal_or_the_index_is_missing() {
    let (dir, path, _) = target().await;
    let index = dir.path().join("index");
    let initialised = LocalConfig {
        initialised: true,
        ..LocalConfig::default()
    };
    drop(LocalIndex::open(&index, initialised).unwrap());
    fs::write(&path, b"").unwrap();
    // No change is in a table yet: without the journal all of them are lost.
    let refused = LocalIndex::open(&index, initialised).err().unwrap().to_string();
    assert!(
        refused.contains("it is empty, although the target ran"),
        "{refused}"
    );
    fs::remove_file(&path).unwrap();
    let refused = LocalIndex::open(&index, initialised).err().unwrap().to_string();
    assert!(refused.contains("*.jnl: no journal"), "{refused}");
    fs::remove_dir_all(&index).unwrap();
    for (exists, why) in [(false, "no such directory"), (true, "no index in it")] {
        if exists {
            fs::create_dir(&index).unwrap();
        }
        let refused = LocalIndex::open(&index, initialised).err().unwrap().to_string();
        assert!(refused.contains(why), "{refused}");
        assert_eq!(index.exists(), exists);
    }
    assert_eq!(fs::read_dir(&index).unwrap().count(), 0);
}
