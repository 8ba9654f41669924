//! The limits of unused locks, and the order in which the client cancels them.

use crate::cluster::{
    LOOKUP,
    fixture::{Cluster, directory},
};
use ldlm::{LockMode, Policy, UnusedLockBudget};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn unused_locks_are_cancelled_by_number_and_age() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a.locks.set_lru_size(10);
    for i in 0..100 {
        drop(
            client_a
                .enqueue(directory(i), LockMode::Pr, Policy::ibits(LOOKUP))
                .await
                .unwrap(),
        );
    }
    client_a.wait_for_write_backs().await;
    assert!(
        client_a.locks.unused_count() <= 10,
        "{}",
        client_a.locks.unused_count()
    );
    cluster.until(|s| s.locks <= 10).await;
    tokio::time::sleep(client_a.locks.lru_max_age() + Duration::from_secs(60)).await;
    cluster.until(|s| s.locks == 0).await;
}

#[tokio::test(start_paused = true)]
async fn imports_share_a_budget_of_unused_locks() {
    let cluster = Cluster::new().await;
    let budget = Arc::new(UnusedLockBudget::new(60));
    let mut clients = Vec::new();
    for name in ["a", "b", "c"] {
        let client = cluster.client_with_budget(name, &budget).await;
        for i in 0..100 {
            let lock = client.enqueue(directory(i), LockMode::Pr, Policy::ibits(LOOKUP));
            drop(lock.await.unwrap());
        }
        client.wait_for_write_backs().await;
        clients.push(client);
    }
    let unused: Vec<usize> = clients.iter().map(|c| c.locks.unused_count()).collect();
    // Each client keeps at most its share at the time of its requests: 60, 30 and 20. Later
    // requests of other clients cancel none of its locks.
    assert!(
        unused[0] <= 60 && unused[1] <= 30 && unused[2] <= 20,
        "{unused:?}"
    );
    assert!(unused.iter().all(|count| *count >= 10), "{unused:?}");
}

#[tokio::test(start_paused = true)]
async fn locks_in_constant_use_stay_cached() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let bits = Policy::ibits(LOOKUP);
    client_a.locks.set_lru_size(64);
    let mut used = Vec::new();
    for i in 0..4 {
        used.push(
            client_a
                .enqueue(directory(1000 + i), LockMode::Pr, bits)
                .await
                .unwrap()
                .info()
                .res,
        );
    }
    for i in 0..500 {
        drop(client_a.enqueue(directory(i), LockMode::Pr, bits).await.unwrap());
        for res in &used {
            assert!(
                client_a.locks.find(res, LockMode::Pr, bits).is_some(),
                "{i}: {res:?}"
            );
        }
    }
    client_a.wait_for_write_backs().await;
    assert_eq!(client_a.locks.unused_count(), 64);
}

#[tokio::test(start_paused = true)]
async fn a_revoked_lock_does_not_wait_for_slow_cancels_of_others() {
    const SLOW: u64 = 5;
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let bits = Policy::ibits(LOOKUP);
    for i in 0..50 {
        drop(client_a.enqueue(directory(i), LockMode::Pr, bits).await.unwrap());
    }
    for i in 0..50 {
        // Long enough for the server to revoke all locks before the first write-back ends.
        let write_back_time = Duration::from_millis(if i == SLOW { 60_000 } else { 100 });
        client_a.owner.set_write_back_time(directory(i), write_back_time);
    }
    let cancelling = tokio::spawn({
        let client_a = client_a.clone();
        async move { client_a.locks.cancel_all().await }
    });
    let started_at = tokio::time::Instant::now();
    let mut enqueues = tokio::task::JoinSet::new();
    for i in (0..50).filter(|i| *i != SLOW) {
        let client_b = client_b.clone();
        enqueues
            .spawn(async move { drop(client_b.enqueue(directory(i), LockMode::Ex, bits).await.unwrap()) });
    }
    enqueues.join_all().await;
    assert!(
        started_at.elapsed() < Duration::from_secs(1),
        "{:?} of virtual time",
        started_at.elapsed()
    );
    drop(
        client_b
            .enqueue(directory(SLOW), LockMode::Ex, bits)
            .await
            .unwrap(),
    );
    assert!(started_at.elapsed() >= Duration::from_secs(60));
    cancelling.await.unwrap();
}
