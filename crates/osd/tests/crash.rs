//! The state after a crash: all synced batches exist, each batch is complete, and no batch exists
//! without its predecessors.
//!
//! A child process (this test binary with an environment variable) applies and syncs until SIGKILL.
//! The torn tail of a power failure is simulated on a copy of the journal.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use osd::{Batch, Index, LocalStores, SetAttr, Stores};
use wire::Fid;

const DIR_VARIABLE: &str = "NACRE_CRASH_TEST_DIR";

fn fid(n: u64) -> Fid {
    Fid {
        f_seq: 0x2_4000_0400,
        f_oid: n as u32,
        f_ver: 0,
    }
}

fn key(kind: u8, n: u64) -> Vec<u8> {
    [&[kind][..], &n.to_be_bytes()].concat()
}

/// The child process of the tests below: writes until it is killed. Not a test itself.
#[tokio::test]
async fn writer_process() {
    let Some(dir) = std::env::var_os(DIR_VARIABLE) else {
        return;
    };
    let kind = LocalStores::in_dir(dir);
    let index = kind.open_index().await.unwrap();
    let objects = kind.open_objects(&index).await.unwrap();
    for n in 0u64.. {
        let t = index.transactions().begin();
        let mut batch = Batch {
            transno: Some(t.transno()),
            ..Batch::default()
        };
        for k in [b'a', b'b', b'c'] {
            batch.put(key(k, n), t.transno().0.to_le_bytes().to_vec());
        }
        index.apply(batch).unwrap();
        if n % 7 == 0 {
            let attr = SetAttr {
                uid: Some(n as u32),
                ..SetAttr::default()
            };
            objects
                .write(fid(n), n, vec![Bytes::from(n.to_le_bytes().to_vec())], attr)
                .await
                .unwrap();
            objects.sync(Some(fid(n))).await.unwrap();
            println!(
                "\ndurable {n} {} {}",
                t.transno(),
                index.transactions().committed()
            );
        }
    }
}

/// Runs the child process, and kills it when `after` has passed and it has reported a durable
/// batch. Returns the number and the transaction number of the last batch reported as durable.
fn run_and_kill(dir: &Path, after: Duration) -> (u64, u64) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer_process", "--nocapture"])
        .env(DIR_VARIABLE, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let start = Instant::now();
    let mut last = None;
    let mut killed = false;
    // Lines printed before the kill are still in the pipe.
    for line in out.lines().map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("durable ") {
            let mut n = rest.split(' ').map(|x| x.parse::<u64>().unwrap());
            last = Some((n.next().unwrap(), n.next().unwrap()));
        }
        if !killed && last.is_some() && start.elapsed() > after {
            child.kill().unwrap();
            killed = true;
        }
    }
    child.wait().unwrap();
    last.unwrap()
}

/// The number of batches. Panics if a batch is incomplete or one of its predecessors is missing.
fn count_complete_batches(index: &dyn Index) -> u64 {
    let count = |k: u8| index.scan(&[k], &[k + 1], usize::MAX).wait().unwrap();
    let (a, b, c) = (count(b'a'), count(b'b'), count(b'c'));
    assert_eq!((a.len(), b.len()), (b.len(), c.len()), "a batch is torn");
    for (n, (k, _)) in a.iter().enumerate() {
        assert_eq!(
            k[..],
            key(b'a', n as u64)[..],
            "a batch is missing among later ones"
        );
    }
    a.len() as u64
}

#[tokio::test]
async fn kill_loses_no_synced_batch() {
    let dir = tempfile::tempdir().unwrap();
    let kind = LocalStores::in_dir(dir.path());
    for ms in [50, 200, 400] {
        let _ = fs::remove_dir_all(dir.path().join("index"));
        let _ = fs::remove_dir_all(dir.path().join("objects"));
        let (durable, transno) = run_and_kill(dir.path(), Duration::from_millis(ms));
        let index = kind.open_index().await.unwrap();
        let objects = kind.open_objects(&index).await.unwrap();
        let found = count_complete_batches(&*index);
        assert!(
            found > durable,
            "batch {durable} was durable, found {found} batches"
        );
        assert!(index.transactions().committed().0 >= transno);
        let last = index.get(&key(b'a', found - 1)).wait().unwrap().unwrap();
        let last = u64::from_le_bytes(last[..].try_into().unwrap());
        assert!(
            index.transactions().committed().0 <= last,
            "a committed batch is missing"
        );
        assert!(index.transactions().begin().transno().0 > last);
        for n in (0..=durable).filter(|n| n % 7 == 0) {
            let data = objects.read(fid(n), n, 8).await.unwrap().concat();
            assert_eq!(data, n.to_le_bytes(), "object {n}");
            assert_eq!(objects.attr(fid(n)).await.unwrap().unwrap().uid, n as u32);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test]
async fn torn_tail_loses_only_the_last_batches() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    run_and_kill(&from, Duration::from_millis(100));
    let whole = {
        let index = LocalStores::in_dir(from.clone()).open_index().await.unwrap();
        count_complete_batches(&*index)
    };
    let journal = |d: &Path| -> PathBuf {
        let files = fs::read_dir(d.join("index")).unwrap().map(|e| e.unwrap().path());
        files
            .filter(|p| p.extension().is_some_and(|e| e == "jnl"))
            .max()
            .unwrap()
    };
    let bytes = fs::read(journal(&from)).unwrap();
    let used = bytes.iter().rposition(|&b| b != 0).unwrap() + 1;
    for (i, back) in [1, 2, 9, 30, 77, 150, 400, 1000, 3333].into_iter().enumerate() {
        let to = dir.path().join(format!("to{i}"));
        copy(&from, &to);
        let cut = used.saturating_sub(back);
        let mut torn = bytes.clone();
        if i % 2 == 0 {
            torn.truncate(cut);
        } else {
            torn[cut..used].fill(0);
        }
        fs::write(journal(&to), torn).unwrap();
        let index = LocalStores::in_dir(to).open_index().await.unwrap();
        let found = count_complete_batches(&*index);
        assert!(found <= whole);
        assert!(
            whole - found <= back as u64 / 50 + 2,
            "truncated {back} bytes, lost {} batches",
            whole - found
        );
    }
}
