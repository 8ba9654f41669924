//! A wait for a lock on the server ends with the client's eviction or a timeout. Refused locks do
//! not wait. A cancel waits for work that has begun under the revoked lock.

use crate::cluster::{
    LOOKUP, UPDATE, WHOLE,
    fixture::{Cluster, ENQUEUE_MIN, OBJECT, directory},
};
use ldlm::{LockMode, Policy};
use rpc::RpcError;
use std::time::Duration;
use tokio::time::Instant;
use wire::{Errno, LdlmResId};

#[tokio::test(start_paused = true)]
async fn a_request_of_an_evicted_client_stops_waiting() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let bits = Policy::ibits(UPDATE);
    drop(client_a.enqueue(directory(2), LockMode::Pr, bits).await.unwrap());
    let held = cluster.server.lock(None, directory(1), LockMode::Ex, bits).await;
    let export = cluster.export_of("a");
    let waiting = tokio::spawn({
        let (server, export) = (cluster.server.clone(), export.clone());
        async move {
            let lock = server.lock(Some(&export), directory(1), LockMode::Pw, bits);
            lock.await.map(drop)
        }
    });
    cluster.until(|stats| stats.waiting == 1).await;
    let started_at = Instant::now();
    export.evict("by the test").await;
    assert_eq!(waiting.await.unwrap(), Err(Errno::ENOTCONN));
    assert!(started_at.elapsed() < ENQUEUE_MIN);
    assert_eq!(cluster.server.stats().waiting, 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_never_free_times_out_and_leaves_no_waiting_lock() {
    let cluster = Cluster::new().await;
    let bits = Policy::ibits(UPDATE);
    let server = &cluster.server;
    let held = server.lock(None, directory(1), LockMode::Ex, bits).await.unwrap();
    let started_at = Instant::now();
    let refused = server.lock(None, directory(1), LockMode::Pw, bits).await;
    assert_eq!(refused.map(drop), Err(Errno::ETIMEDOUT));
    assert!(
        started_at.elapsed() > ENQUEUE_MIN,
        "not before the holder's timeout"
    );
    assert_eq!(server.stats().locks, 1);
    drop(held);
    server.lock(None, directory(1), LockMode::Pw, bits).await.unwrap();
}

#[tokio::test]
async fn a_client_cannot_lock_a_resource_of_the_servers_own_locks() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let mut name = directory(1).name;
    name[3] = 7;
    let refused = client_a
        .enqueue(LdlmResId { name }, LockMode::Ex, Policy::ibits(UPDATE))
        .await;
    assert!(matches!(refused, Err(RpcError::Status(Errno::EINVAL))));
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_waits_for_work_that_begins_during_the_write_back() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    client_a
        .owner
        .set_write_back_time(OBJECT, Duration::from_millis(20));
    drop(client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap());
    let reader = client_b.clone();
    let waiting = tokio::spawn(async move { reader.enqueue(OBJECT, LockMode::Pr, WHOLE).await });
    client_a.until(|| !client_a.owner.revoked().is_empty()).await;
    let find = || client_a.locks.find_even_revoked(&OBJECT, LockMode::Pw, WHOLE);
    let work = find().unwrap();
    client_a.wait_for_write_backs().await;
    assert!(!waiting.is_finished() && work.is_valid(), "the lock has a user");
    client_a.owner.add_one(work.info());
    drop(work);
    waiting.await.unwrap().unwrap();
    assert_eq!(client_a.owner.revoked().len(), 2, "the owner writes back again");
    assert_eq!(
        client_b.glimpse(OBJECT).await.0,
        1,
        "the server has the data of the work"
    );
    assert!(find().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_conversion_waits_for_work_that_begins_during_the_write_back() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let file = directory(1);
    client_a
        .owner
        .set_write_back_time(file, Duration::from_millis(20));
    let both = Policy::ibits(LOOKUP | UPDATE);
    drop(client_a.enqueue(file, LockMode::Pw, both).await.unwrap());
    let reader = client_b.clone();
    let bits = Policy::ibits(UPDATE);
    let waiting = tokio::spawn(async move { reader.enqueue(file, LockMode::Pr, bits).await });
    client_a.until(|| !client_a.owner.revoked().is_empty()).await;
    let find = |bits| {
        client_a
            .locks
            .find_even_revoked(&file, LockMode::Pw, Policy::ibits(bits))
    };
    let work = find(UPDATE).unwrap();
    client_a.wait_for_write_backs().await;
    assert!(!waiting.is_finished(), "the lock has a user");
    drop(work);
    waiting.await.unwrap().unwrap();
    assert_eq!(
        client_a.owner.revoked(),
        [(file, UPDATE); 2],
        "the owner writes back again"
    );
    assert!(find(UPDATE).is_none() && find(LOOKUP).is_some());
}
