//! The journal of an MDT's index: a store that reads it has the same keys and values as the live
//! one.

use bytes::Bytes;
use fastrand::Rng;
use osd::{Index, LocalStores, Stores, Transactions};
use wire::{Fid, MDS_FMODE_WRITE, MDS_OPEN_CREAT};

use crate::fixture::Fixture;

/// Number of random operations of a seed.
const OPERATIONS: usize = 300;
/// Names in each directory.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// All keys and values, except the record that each commit writes.
async fn contents(index: &dyn Index) -> Vec<(Bytes, Bytes)> {
    let (mut all, mut from) = (Vec::new(), Vec::new());
    loop {
        let rows = index.scan(&from, &[0xff; 64], 1000).await.unwrap();
        let Some((last, _)) = rows.last() else { break };
        from = [last, &b"\0"[..]].concat();
        all.extend(rows);
    }
    all.retain(|(key, _)| key[..] != Transactions::KEY);
    all
}

/// Runs one operation on random names; it may fail, for example for a missing name.
async fn change(f: &Fixture, client: &testbase::mds_client::Client, dirs: &[Fid], rng: &mut Rng) {
    let mut place = || (dirs[rng.usize(..dirs.len())], NAMES[rng.usize(..NAMES.len())]);
    let ((dir, name), to) = (place(), place());
    match rng.u8(..8) {
        0 | 1 => {
            let opened = client.open(dir, name, MDS_OPEN_CREAT | MDS_FMODE_WRITE).await;
            // An open of a symlink has no handle.
            if opened.status == 0 && opened.handle() != 0 && rng.bool() {
                client.close(opened.fid(), opened.handle()).await.unwrap();
            }
        }
        2 => drop(client.make(dir, name, 0o120777, "target").await),
        3 => drop(client.unlink(dir, name, false).await),
        4 => drop(client.rename((dir, name), to).await),
        5 => drop(client.setxattr(dir, "user.a", name.as_bytes()).await),
        6 => drop(client.touch(dir).await),
        _ => f.index.sync().await.unwrap(),
    }
}

#[tokio::test]
async fn journal_yields_the_keys_and_values_of_the_live_index() {
    for seed in 0..4 {
        let (dir, mut rng) = (tempfile::tempdir().unwrap(), Rng::with_seed(seed));
        let stores = LocalStores::in_dir(dir.path());
        let f = Fixture::with_index(2, stores.open_index().await.unwrap()).await;
        let client = f.client().await;
        let mut dirs = vec![Fid::ROOT];
        for name in ["x", "y"] {
            dirs.push(client.mkdir(Fid::ROOT, name).await);
        }
        for _ in 0..OPERATIONS {
            change(&f, &client, &dirs, &mut rng).await;
        }
        // Ends the work for OSTs, which also changes the index.
        f.mdt.stop().await;
        f.index.sync().await.unwrap();
        let live = contents(&*f.index).await;
        // Copies the files of the open index, and reads their journal.
        let copy = stores.open_index_read_only().await.unwrap();
        assert!(live.len() > 20, "{}", live.len());
        assert_eq!(contents(&*copy).await, live, "seed {seed}");
    }
}
