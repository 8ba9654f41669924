//! Cancels that the server did not request, callbacks that arrive before the lock, and requests
//! that wait for a completion.

use crate::cluster::{
    LOOKUP, UPDATE,
    fixture::{Client, Cluster, directory},
    flock,
};
use ldlm::{Enqueue, LockCookie, LockMode, Policy};
use rpc::RpcError;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
use tokio::time::Instant;
use wire::{LdlmRequest, Message, PtlrpcBody, WireStruct};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancels_that_cross_callbacks_evict_no_client_and_leave_no_lock() {
    let cluster = Cluster::new().await;
    let mut running = tokio::task::JoinSet::new();
    let clients = [cluster.client("a").await, cluster.client("b").await];
    for client in &clients {
        let client = client.clone();
        running.spawn(async move {
            for i in 0..200u64 {
                let lock = client
                    .enqueue(directory(i % 3), LockMode::Ex, Policy::ibits(LOOKUP | UPDATE))
                    .await
                    .unwrap();
                drop(lock);
                if i % 2 == 0 {
                    client.locks.cancel_unused();
                } else {
                    client.enqueue_with_early_cancel(directory(i % 3), UPDATE).await;
                }
            }
        });
    }
    running.join_all().await;
    for client in &clients {
        client.locks.cancel_all().await;
    }
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.resources, stats.evictions), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn early_cancel_keeps_a_lock_that_also_protects_data() {
    let cluster = Cluster::new().await;
    let client = cluster.client("a").await;
    let both = Policy::ibits(LOOKUP | wire::MDS_INODELOCK_DOM);
    drop(client.enqueue(directory(1), LockMode::Pr, both).await.unwrap());
    assert!(client.locks.elc(&directory(1), LOOKUP, true).is_empty());
    let bits = LOOKUP | wire::MDS_INODELOCK_DOM;
    let cancelled = client.locks.elc(&directory(1), bits, true);
    assert_eq!((cancelled.len(), client.locks.lock_count()), (1, 0));
}

impl Client {
    /// Requests a lock, and cancels the client's own locks on `bits` with the request.
    async fn enqueue_with_early_cancel(&self, res: wire::LdlmResId, bits: u64) {
        let mut enqueue = Enqueue::new(res, LockMode::Pr, Policy::ibits(bits));
        enqueue.elc = self.locks.elc(&res, bits, true);
        self.locks.enqueue(enqueue).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_cancels_conflicting_own_locks_without_a_callback() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    drop(
        client_a
            .enqueue(directory(1), LockMode::Pr, Policy::ibits(UPDATE))
            .await
            .unwrap(),
    );
    client_a.enqueue_with_early_cancel(directory(1), UPDATE).await;
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.blocking_asts), (1, 0));
    assert_eq!(client_a.owner.dropped_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_opens_do_not_pile_up_locks() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let (some, all) = (Policy::ibits(UPDATE), Policy::ibits(LOOKUP | UPDATE));
    for _ in 0..200 {
        // On directory 1 always the same lock. On directory 2 first a part of the cached lock
        // (after the first round), then a lock that includes it.
        for (file, policy) in [(1, some), (2, some), (2, all)] {
            drop(
                client_a
                    .enqueue(directory(file), LockMode::Pr, policy)
                    .await
                    .unwrap(),
            );
        }
        assert_eq!(client_a.locks.lock_count(), 2);
        assert!(cluster.server.stats().locks <= 4);
    }
    // A lock with a deferred cancel blocks no other client.
    for file in [1, 2] {
        drop(
            client_b
                .enqueue(directory(file), LockMode::Ex, all)
                .await
                .unwrap(),
        );
    }
    let stats = cluster.server.stats();
    assert_eq!(
        (client_a.locks.lock_count(), stats.locks, stats.evictions),
        (0, 2, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_revoked_before_its_reply_is_cancelled_despite_a_duplicate() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let bits = Policy::ibits(UPDATE);
    let first = client_a.enqueue(directory(1), LockMode::Pr, bits).await.unwrap();
    // The client sends the lost request again, so the callback below arrives before the reply.
    cluster.rpc.faults().lose_requests(wire::LDLM_ENQUEUE, 1);
    let mut enqueue = Box::pin(client_a.enqueue(directory(1), LockMode::Pr, bits));
    tokio::select! {
        biased;
        _ = &mut enqueue => unreachable!("the request is lost"),
        () = std::future::ready(()) => {}
    }
    let pending = LockCookie(first.info().cookie.0 + 2);
    assert!(client_a.locks.is_pending(pending));
    let blocking = LdlmRequest {
        lock_handle: [pending.0, 0],
        ..LdlmRequest::default()
    };
    let blocking = Message::new(&PtlrpcBody::default(), [blocking.to_bytes()]);
    client_a
        .locks
        .ast(wire::LDLM_BL_CALLBACK, blocking)
        .await
        .unwrap();
    assert_eq!(enqueue.await.unwrap().info().cookie, first.info().cookie);
    let cancelled = cluster.until(|stats| stats.locks == 1);
    tokio::time::timeout(Duration::from_secs(10), cancelled)
        .await
        .unwrap();
}

/// While the lock is queued, the import must not count as idle: it would disconnect, and no
/// completion would arrive.
#[tokio::test(start_paused = true)]
async fn a_queued_lock_is_pending_after_the_reply() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let bits = Policy::ibits(UPDATE);
    let held = client_a.enqueue(directory(1), LockMode::Ex, bits).await.unwrap();
    let waiting = tokio::spawn({
        let client_b = client_b.clone();
        async move { client_b.enqueue(directory(1), LockMode::Ex, bits).await.map(drop) }
    });
    cluster.until(|stats| stats.blocking_asts == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(client_b.locks.has_pending() && client_b.locks.lock_count() == 0);
    drop(held);
    waiting.await.unwrap().unwrap();
    assert!(!client_b.locks.has_pending());
}

/// The server sends no completion, and the import's next regular ping is far away.
#[tokio::test(start_paused = true)]
async fn a_client_evicted_while_waiting_for_a_lock_fails_within_a_second() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let bits = Policy::ibits(UPDATE);
    let held = client_a.enqueue(directory(1), LockMode::Ex, bits).await.unwrap();
    let waiting = tokio::spawn({
        let client_b = client_b.clone();
        async move { client_b.enqueue(directory(1), LockMode::Ex, bits).await.map(drop) }
    });
    cluster.until(|stats| stats.blocking_asts == 1).await;
    cluster.export_of("b").evict("by the test").await;
    let evicted = Instant::now();
    let result = waiting.await.unwrap();
    assert!(matches!(result, Err(RpcError::Evicted(_))), "{result:?}");
    assert!(evicted.elapsed() < Duration::from_secs(1), "of virtual time");
    drop(held);
}

/// Polls a future once and drops it.
fn poll_once_and_drop<F: Future>(future: F) {
    let pending = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
    assert!(pending.is_pending());
}

#[tokio::test(start_paused = true)]
async fn cancels_in_a_dropped_request_are_sent() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let bits = Policy::ibits(UPDATE);
    drop(client_a.enqueue(directory(1), LockMode::Pr, bits).await.unwrap());
    client_a.locks.cancel_unused_of(&directory(1));
    cluster.rpc.faults().lose_requests(wire::LDLM_ENQUEUE, 1);
    poll_once_and_drop(client_a.enqueue(directory(2), LockMode::Pr, bits));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_revoked_before_its_reply_is_cancelled_when_the_request_is_dropped() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let bits = Policy::ibits(UPDATE);
    cluster.rpc.faults().lose_replies(wire::LDLM_ENQUEUE, 1);
    let unanswered = tokio::spawn({
        let client_a = client_a.clone();
        async move { client_a.enqueue(directory(1), LockMode::Ex, bits).await.map(drop) }
    });
    cluster.until(|stats| stats.locks == 1).await;
    let waiting =
        tokio::spawn(async move { client_b.enqueue(directory(1), LockMode::Ex, bits).await.map(drop) });
    cluster.until(|stats| stats.blocking_asts == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!unanswered.is_finished());
    let dropped_at = Instant::now();
    unanswered.abort();
    waiting.await.unwrap().unwrap();
    assert!(dropped_at.elapsed() < Duration::from_secs(1), "of virtual time");
    assert_eq!(cluster.server.stats().evictions, 0);
}

#[tokio::test(start_paused = true)]
async fn a_flock_whose_caller_has_stopped_waiting_is_unlocked() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    // The order in which the task sees the reply and the caller's end is random.
    for file in 1..=16 {
        poll_once_and_drop(client_a.flock(directory(file), LockMode::Pw, flock(1)));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(cluster.server.stats().locks, 0);
}
