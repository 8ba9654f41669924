//! Tests of the durable index.

#![allow(clippy::unwrap_used)]
use super::*;
use std::fs;

fn open(path: &Path) -> LocalIndex {
    LocalIndex::open(path, LocalConfig::default()).unwrap()
}

/// A batch that sets one key.
fn put_batch(key: &str, value: &str) -> Batch {
    let mut b = Batch::new();
    b.put(key.to_owned(), value.to_owned());
    b
}

#[tokio::test]
async fn synced_batches_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let (epoch, transno) = {
        let index = open(&path);
        let t = index.transactions().begin();
        let mut b = put_batch("k1", "v1");
        b.put("k2", "v2").transno = Some(t.transno());
        index.apply(b).unwrap();
        assert_eq!(index.get(b"k1").wait().unwrap().unwrap(), "v1");
        index.sync().await.unwrap();
        assert_eq!(index.transactions().committed(), t.transno());
        (index.transactions().epoch(), t.transno())
    };
    let index = open(&path);
    assert_eq!(index.scan(b"k", b"l", 9).wait().unwrap().len(), 2);
    assert_eq!(index.transactions().committed(), transno);
    assert!(index.transactions().epoch() > epoch);
    assert!(index.transactions().begin().transno() > transno);
}

#[tokio::test]
async fn restart_during_a_recovery_restores_the_old_committed_number() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let apply = async |index: &LocalIndex, batch: Batch, transno| {
        let batch = Batch {
            transno: Some(transno),
            ..batch
        };
        index.apply(batch).unwrap();
        index.sync().await.unwrap();
        index.transactions().committed()
    };
    let committed = {
        let index = open(&path);
        let t = index.transactions().begin();
        apply(&index, put_batch("k", "0"), t.transno()).await
    };
    let lost = wire::Transno(committed.0 + 3);
    for value in ["1", "2"] {
        let index = open(&path);
        let transactions = index.transactions().clone();
        transactions.begin_recovery();
        let replay = transactions.replay(lost);
        assert_eq!(replay.transno(), lost);
        assert_eq!(apply(&index, put_batch("k", value), lost).await, committed);
        let own = transactions.begin();
        assert_eq!(
            apply(&index, put_batch("own", value), own.transno()).await,
            committed
        );
    }
    let index = open(&path);
    let transactions = index.transactions().clone();
    assert_eq!(transactions.committed(), committed);
    assert_eq!(index.get(b"k").wait().unwrap().unwrap(), "2");
    transactions.begin_recovery();
    apply(&index, put_batch("k", "3"), lost).await;
    transactions.end_recovery();
    let empty = transactions.begin().transno();
    assert_eq!(apply(&index, Batch::new(), empty).await, empty);
    drop(index);
    let index = open(&path);
    assert_eq!(index.transactions().committed(), empty);
    assert_eq!(index.get(b"k").wait().unwrap().unwrap(), "3");
}

#[tokio::test]
async fn batch_applies_deletes_before_puts() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(&dir.path().join("index"));
    index.apply(put_batch("a", "1")).unwrap();
    let mut b = put_batch("a", "2");
    b.delete("a").delete("b");
    index.apply(b).unwrap();
    assert_eq!(index.get(b"a").wait().unwrap().unwrap(), "2");
}

#[tokio::test]
async fn changes_become_durable_without_a_sync() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(&dir.path().join("index"));
    let t = index.transactions().begin();
    index
        .apply(Batch {
            transno: Some(t.transno()),
            ..put_batch("a", "1")
        })
        .unwrap();
    let mut committed = index.transactions().watch_committed();
    committed.wait_for(|c| *c == t.transno()).await.unwrap();
}

#[test]
fn interrupted_creation_is_restarted() {
    let dir = tempfile::tempdir().unwrap();
    let partial = dir.path().join("index.new");
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("lock"), b"").unwrap();
    let index = open(&dir.path().join("index"));
    index.apply(put_batch("a", "1")).unwrap();
}

/// All files below a directory except journals.
fn files_except_journals(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let below = entries.flat_map(|path| match path.is_dir() {
        true => files_except_journals(&path),
        false => vec![path],
    });
    below
        .filter(|p| p.extension().is_none_or(|e| e != "jnl"))
        .collect()
}

#[test]
fn damaged_files_cause_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index");
    let index = open(&path);
    for n in 0..200 {
        index
            .apply(put_batch(&format!("key {n}"), &"value ".repeat(20)))
            .unwrap();
    }
    index.shared.keyspace.rotate_memtable_and_wait().unwrap();
    drop(index);
    for file in files_except_journals(&path) {
        let whole = fs::read(&file).unwrap();
        for at in (0..whole.len()).step_by(whole.len() / 20 + 1) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&file, flipped).unwrap();
            if let Ok(read) = LocalIndex::open_read_only(&path, LocalConfig::default()) {
                let _ = read.scan(b"a", b"z", usize::MAX).wait();
            }
        }
        fs::write(&file, &whole).unwrap();
    }
    let read = LocalIndex::open_read_only(&path, LocalConfig::default()).unwrap();
    assert_eq!(read.scan(b"a", b"z", usize::MAX).wait().unwrap().len(), 200);
}

#[tokio::test]
async fn a_worker_reads_after_a_series_of_fast_reads_and_other_threads_before() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(&dir.path().join("index"));
    index.apply(put_batch("k", "v")).unwrap();
    let slow = || thread::sleep(Duration::from_millis(1));
    index.shared.read_speed.measure(slow, |()| Duration::ZERO);
    let first = index.get(b"k").now().expect_err("not ready");
    assert_eq!(first.await.unwrap().unwrap(), "v");
    let ready = loop {
        match index.get(b"k").now() {
            Ok(ready) => break ready,
            Err(read) => drop(read.await.unwrap()),
        }
    };
    assert_eq!(ready.unwrap().unwrap(), "v");
    // A long scan never runs on the worker.
    let scan = index.scan(b"a", b"z", usize::MAX).now().expect_err("not ready");
    assert_eq!(scan.await.unwrap().len(), 1);
    let short = index.scan(b"a", b"z", 1).now();
    assert!(short.is_err() || short.is_ok_and(|rows| rows.unwrap().len() == 1));
}
