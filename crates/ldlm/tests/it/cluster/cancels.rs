//! Cancels that the server did not request, or requested before the client had the lock.

use crate::cluster::{
    LOOKUP, UPDATE,
    fixture::{Client, Cluster, directory},
};
use ldlm::LockHandle;
use ldlm::{Enqueue, LockMode, Policy};
use rpc::RpcError;
use std::time::Duration;
use tokio::time::Instant;
use wire::{LdlmRequest, Message, PtlrpcBody, WireStruct};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancels_crossing_callbacks_are_harmless() {
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
                    client
                        .enqueue_after_cancelling(directory(i % 3), LookupBits(UPDATE))
                        .await;
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

struct LookupBits(u64);

impl Client {
    /// Cancels own locks early, with the next request.
    async fn enqueue_after_cancelling(&self, res: wire::LdlmResId, bits: LookupBits) {
        let mut e = Enqueue::new(res, LockMode::Pr, Policy::ibits(bits.0));
        e.elc = self.locks.elc(&res, bits.0, true);
        self.locks.enqueue(e).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn conflicting_own_locks_are_cancelled_with_the_request() {
    let cluster = Cluster::new().await;
    let a = cluster.client("a").await;
    drop(
        a.enqueue(directory(1), LockMode::Pr, Policy::ibits(UPDATE))
            .await
            .unwrap(),
    );
    a.enqueue_after_cancelling(directory(1), LookupBits(UPDATE)).await;
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.blocking_asts), (1, 0));
    assert_eq!(a.owner.dropped_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_opens_do_not_pile_up_locks() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.client("a").await, cluster.client("b").await);
    let (some, all) = (Policy::ibits(UPDATE), Policy::ibits(LOOKUP | UPDATE));
    for _ in 0..200 {
        // The same again; a part of it; all of it.
        for (file, policy) in [(1, some), (2, some), (2, all)] {
            drop(a.enqueue(directory(file), LockMode::Pr, policy).await.unwrap());
        }
        assert_eq!(a.locks.lock_count(), 2);
        assert!(cluster.server.stats().locks <= 4);
    }
    // A lock with a deferred cancel blocks no other client.
    for file in [1, 2] {
        drop(b.enqueue(directory(file), LockMode::Ex, all).await.unwrap());
    }
    let stats = cluster.server.stats();
    assert_eq!((a.locks.lock_count(), stats.locks, stats.evictions), (0, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lock_revoked_before_its_reply_is_cancelled_despite_a_duplicate() {
    let cluster = Cluster::new().await;
    let a = cluster.client("a").await;
    let bits = Policy::ibits(UPDATE);
    let first = a.enqueue(directory(1), LockMode::Pr, bits).await.unwrap();
    // Otherwise its reply would arrive at once.
    cluster.rpc.faults().lose_requests(wire::LDLM_ENQUEUE, 1);
    let mut asking = Box::pin(a.enqueue(directory(1), LockMode::Pr, bits));
    tokio::select! {
        biased;
        _ = &mut asking => unreachable!("it has only been sent"),
        () = std::future::ready(()) => {}
    }
    let coming = LockHandle(first.info().cookie.0 + 2);
    assert!(a.locks.is_pending(coming));
    let blocking = LdlmRequest {
        lock_handle: [coming.0, 0],
        ..LdlmRequest::default()
    };
    let blocking = Message::new(&PtlrpcBody::default(), [blocking.to_bytes()]);
    a.locks.ast(wire::LDLM_BL_CALLBACK, blocking).await.unwrap();
    assert_eq!(asking.await.unwrap().info().cookie, first.info().cookie);
    let gone = cluster.until(|stats| stats.locks == 1);
    tokio::time::timeout(Duration::from_secs(10), gone).await.unwrap();
}

/// An import with such a request must not count as idle: it would disconnect, and the lock would
/// never come.
#[tokio::test(start_paused = true)]
async fn a_queued_lock_is_pending_after_the_reply() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.client("a").await, cluster.client("b").await);
    let bits = Policy::ibits(UPDATE);
    let held = a.enqueue(directory(1), LockMode::Ex, bits).await.unwrap();
    let asking = tokio::spawn({
        let b = b.clone();
        async move { b.enqueue(directory(1), LockMode::Ex, bits).await.map(drop) }
    });
    cluster.until(|stats| stats.blocking_asts == 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(b.locks.has_pending() && b.locks.lock_count() == 0);
    drop(held);
    asking.await.unwrap().unwrap();
    assert!(!b.locks.has_pending());
}

/// No completion comes then, and the import's next ping is far away.
#[tokio::test(start_paused = true)]
async fn a_client_evicted_while_waiting_for_a_lock_learns_of_it_soon() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.client("a").await, cluster.client("b").await);
    let bits = Policy::ibits(UPDATE);
    let held = a.enqueue(directory(1), LockMode::Ex, bits).await.unwrap();
    let asking = tokio::spawn({
        let b = b.clone();
        async move { b.enqueue(directory(1), LockMode::Ex, bits).await.map(drop) }
    });
    cluster.until(|stats| stats.blocking_asts == 1).await;
    cluster.export_of("b").evict("the test wants it").await;
    let evicted = Instant::now();
    let told = asking.await.unwrap();
    assert!(matches!(told, Err(RpcError::Evicted(_))), "{told:?}");
    assert!(evicted.elapsed() < Duration::from_secs(1), "of virtual time");
    drop(held);
}
