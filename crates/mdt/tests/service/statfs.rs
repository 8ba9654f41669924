//! The MDT's statfs requests to OSTs: how creates use their answers.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use tokio::task::JoinSet;
use wire::{Errno, Fid, MDS_FMODE_WRITE, MDS_OPEN_CREAT};

use crate::fixture::{Fixture, wait_until};

/// Flags of an open that creates a file.
const CREATE: u64 = MDS_OPEN_CREAT | MDS_FMODE_WRITE;
/// After this time, a create needs a new statfs.
const LONG_IDLE: Duration = Duration::from_secs(5);

fn is_slow(f: &Fixture, ost: u32) -> bool {
    let name = format!("osp.testfs-OST{ost:04x}-osc-MDT0000.slow");
    f.params.get(&name)[0].1 == "1"
}

#[tokio::test(start_paused = true)]
async fn creates_at_the_same_time_share_a_statfs() {
    let f = Fixture::new(2).await;
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(f.client().await);
    }
    assert_eq!(clients[0].open(Fid::ROOT, "first", CREATE).await.status, 0);
    tokio::time::sleep(LONG_IDLE).await;
    for ost in &f.osts {
        ost.statfs_answer.lock().0 = Duration::from_millis(300);
    }
    let before: Vec<u64> = f
        .osts
        .iter()
        .map(|ost| ost.statfs_requests.load(SeqCst))
        .collect();
    let mut creates = JoinSet::new();
    for (n, client) in clients.into_iter().enumerate() {
        creates.spawn(async move { client.open(Fid::ROOT, &format!("f{n}"), CREATE).await.status });
    }
    for status in creates.join_all().await {
        assert_eq!(status, 0);
    }
    for (ost, before) in f.osts.iter().zip(before) {
        assert_eq!(ost.statfs_requests.load(SeqCst) - before, 1);
    }
    assert!(!is_slow(&f, 0) && !is_slow(&f, 1));
}

#[tokio::test(start_paused = true)]
async fn ost_whose_statfs_fails_counts_as_slow_until_a_success() {
    let f = Fixture::new(2).await;
    let client = f.client().await;
    assert_eq!(client.open(Fid::ROOT, "first", CREATE).await.status, 0);
    tokio::time::sleep(LONG_IDLE).await;
    f.osts[1].statfs_answer.lock().1 = Err(Errno::EIO);
    assert_eq!(client.open(Fid::ROOT, "second", CREATE).await.status, 0);
    assert!(!is_slow(&f, 0) && is_slow(&f, 1));
    // Not a success either.
    tokio::time::sleep(LONG_IDLE).await;
    assert!(is_slow(&f, 1));
    f.osts[1].statfs_answer.lock().1 = Ok(());
    wait_until(|| !is_slow(&f, 1)).await;
}
