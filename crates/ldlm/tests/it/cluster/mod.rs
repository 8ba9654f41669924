//! Lock clients and a lock server over the RPC layer, in one process.
#![allow(clippy::unwrap_used)]

mod cancels;
mod fixture;
mod lru;
mod replays;
mod waits;

use fastrand::Rng;
use fixture::{Cluster, FILE_A, FILE_B, OBJECT, directory};
use ldlm::{Enqueue, Extent, Flock, LockMode, Policy};
use rpc::RpcError;
use std::time::Duration;
use tokio::time::Instant;
use wire::{Errno, MDS_INODELOCK_LOOKUP, MDS_INODELOCK_PERM, MDS_INODELOCK_UPDATE};

const LOOKUP: u64 = MDS_INODELOCK_LOOKUP;
const UPDATE: u64 = MDS_INODELOCK_UPDATE;
const PERM: u64 = MDS_INODELOCK_PERM;
const WHOLE: Policy = Policy::extent(0, u64::MAX);

fn group(gid: u64) -> Policy {
    Policy::Extent(Extent { gid, ..Extent::WHOLE })
}

fn flock(owner: u64) -> Policy {
    Policy::Flock(Flock {
        start: 0,
        end: i64::MAX as u64,
        owner,
        pid: owner as u32,
    })
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_conflicts_covers_the_whole_object_and_stays_cached() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let got = client_a
        .locks
        .enqueue(Enqueue::new(OBJECT, LockMode::Pw, Policy::extent(0, 4095)))
        .await
        .unwrap();
    let lock = got.lock.unwrap();
    assert_eq!(*lock.policy(), WHOLE);
    assert_eq!(got.rep.lock_flags & wire::LDLM_FL_LOCK_CHANGED as u32, 1);
    drop(lock);
    assert!(
        client_a
            .locks
            .find(&OBJECT, LockMode::Pr, Policy::extent(1 << 30, 1 << 31))
            .is_some()
    );
    assert_eq!(cluster.server.stats().locks, 1);
    client_a.locks.cancel_all().await;
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_increments_of_an_object_are_not_lost() {
    const ROUNDS: u64 = 100;
    let cluster = Cluster::new().await;
    let mut adding = tokio::task::JoinSet::new();
    let clients = [
        cluster.client("a").await,
        cluster.client("b").await,
        cluster.client("c").await,
    ];
    for client in &clients {
        let client = client.clone();
        adding.spawn(async move {
            for _ in 0..ROUNDS {
                let lock = match client.locks.find(&OBJECT, LockMode::Pw, WHOLE) {
                    Some(lock) => lock,
                    None => {
                        let got = client
                            .locks
                            .enqueue(Enqueue::new(OBJECT, LockMode::Pw, WHOLE))
                            .await
                            .unwrap();
                        got.lock.unwrap()
                    }
                };
                client.owner.add_one(lock.info());
                tokio::task::yield_now().await;
            }
        });
    }
    adding.join_all().await;
    for client in &clients {
        client.locks.cancel_all().await;
    }
    assert_eq!(cluster.disk.size(&OBJECT), ROUNDS * clients.len() as u64);
    assert_eq!(cluster.server.stats().locks, 0);
    assert_eq!(cluster.server.stats().evictions, 0);
}

#[test]
fn lost_messages_lose_no_increment_and_evict_no_client() {
    for seed in 0..20 {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run_with_lost_messages(seed));
    }
}

async fn run_with_lost_messages(seed: u64) {
    const ROUNDS: u64 = 200;
    /// Longer than recovery from one lost message takes. With shorter intervals several losses
    /// could delay a cancel until the server evicts the client.
    const LOSS_INTERVAL: Duration = Duration::from_secs(40);
    let cluster = Cluster::seeded(seed).await;
    let clients = [
        cluster.client("a").await,
        cluster.client("b").await,
        cluster.client("c").await,
    ];
    let mut working = tokio::task::JoinSet::new();
    for (n, client) in clients.iter().enumerate() {
        let (client, mut random) = (client.clone(), Rng::with_seed(seed * 3 + n as u64));
        working.spawn(async move {
            for _ in 0..ROUNDS {
                tokio::time::sleep(Duration::from_millis(random.u64(..1000))).await;
                client.add_one().await;
                let (mode, bits) = match random.u8(..3) {
                    0 => (LockMode::Ex, UPDATE),
                    1 => (LockMode::Pr, LOOKUP | UPDATE),
                    _ => (LockMode::Pr, LOOKUP | PERM),
                };
                drop(client.intent(directory(1), mode, bits, PERM).await.unwrap());
            }
        });
    }
    let mut random = Rng::with_seed(seed);
    while !working.is_empty() {
        let opc = [wire::LDLM_ENQUEUE, wire::LDLM_CANCEL, wire::LDLM_CONVERT][random.usize(..3)];
        match random.bool() {
            true => cluster.rpc.faults().lose_requests(opc, 1),
            false => cluster.rpc.faults().lose_replies(opc, 1),
        }
        tokio::time::timeout(LOSS_INTERVAL, working.join_next())
            .await
            .ok()
            .flatten()
            .transpose()
            .unwrap();
    }
    for client in &clients {
        client.locks.cancel_all().await;
    }
    let stats = cluster.server.stats();
    assert_eq!(
        cluster.disk.size(&OBJECT),
        ROUNDS * clients.len() as u64,
        "seed {seed}"
    );
    assert_eq!((stats.locks, stats.evictions), (0, 0), "seed {seed}");
}

#[tokio::test(start_paused = true)]
async fn a_queued_lock_is_granted_when_the_conflict_is_cancelled() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    let waiting = tokio::spawn(async move { client_b.enqueue(OBJECT, LockMode::Pr, WHOLE).await });
    while !held.is_revoked() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!waiting.is_finished());
    assert!(
        client_a.locks.find(&OBJECT, LockMode::Pr, WHOLE).is_none(),
        "a revoked lock gets no new users"
    );
    drop(held);
    let got = waiting.await.unwrap().unwrap();
    assert_eq!(got.mode(), LockMode::Pr);
    assert_eq!(cluster.server.stats().completion_asts, 1);
}

#[tokio::test(start_paused = true)]
async fn only_conflicting_inode_bits_are_cancelled() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let dir = directory(1);
    drop(
        client_a
            .enqueue(dir, LockMode::Pr, Policy::ibits(LOOKUP | UPDATE | PERM))
            .await
            .unwrap(),
    );
    let server = cluster
        .server
        .lock(None, dir, LockMode::Pw, Policy::ibits(UPDATE))
        .await
        .unwrap();
    assert_eq!(client_a.owner.revoked(), [(dir, UPDATE)]);
    // The server continues as soon as the bits are free; the client updates its lock afterwards.
    client_a.wait_for_write_backs().await;
    assert!(
        client_a
            .locks
            .find(&dir, LockMode::Pr, Policy::ibits(LOOKUP | PERM))
            .is_some()
    );
    assert!(
        client_a
            .locks
            .find(&dir, LockMode::Pr, Policy::ibits(UPDATE))
            .is_none()
    );
    drop(server);
    drop(
        cluster
            .server
            .lock(None, dir, LockMode::Ex, Policy::ibits(LOOKUP | PERM))
            .await
            .unwrap(),
    );
    client_a.wait_for_write_backs().await;
    assert_eq!(client_a.locks.lock_count(), 0);
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_conversion_cancels_the_whole_lock() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client_with_flags2("a", 0).await;
    let dir = directory(1);
    drop(
        client_a
            .enqueue(dir, LockMode::Pr, Policy::ibits(LOOKUP | UPDATE))
            .await
            .unwrap(),
    );
    drop(
        cluster
            .server
            .lock(None, dir, LockMode::Pw, Policy::ibits(UPDATE))
            .await
            .unwrap(),
    );
    assert_eq!(client_a.owner.revoked(), [(dir, LOOKUP | UPDATE)]);
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_replies_is_evicted() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    client_a.owner.mute();
    let started_at = Instant::now();
    client_b.enqueue(OBJECT, LockMode::Pr, WHOLE).await.unwrap();
    let elapsed = started_at.elapsed();
    assert!(
        (fixture::ENQUEUE_MIN..fixture::ENQUEUE_MIN * 2).contains(&elapsed),
        "{elapsed:?}"
    );
    assert_eq!(cluster.server.stats().evictions, 1);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_keeps_a_revoked_lock_is_evicted_and_drops_its_cache() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    client_b.enqueue(OBJECT, LockMode::Pr, WHOLE).await.unwrap();
    assert_eq!(cluster.server.stats().evictions, 1);
    // The client learns of the eviction by its next request.
    client_a
        .import
        .call(rpc::Request::new(wire::OBD_PING, Vec::new()))
        .await
        .ok();
    client_a.until(|| !held.is_valid()).await;
    assert_eq!(client_a.owner.dropped_count(), 1);
    drop(held);
    client_a
        .enqueue(directory(1), LockMode::Pr, Policy::ibits(LOOKUP))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn io_under_a_revoked_lock_restarts_its_timeout() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    let export = cluster.export_of("a");
    let waiting = tokio::spawn(async move { client_b.enqueue(OBJECT, LockMode::Pr, WHOLE).await });
    for _ in 0..10 {
        tokio::time::sleep(fixture::ENQUEUE_MIN / 2).await;
        cluster.server.prolong(&export, OBJECT);
    }
    assert!(!waiting.is_finished());
    drop(held);
    waiting.await.unwrap().unwrap();
    assert_eq!(cluster.server.stats().evictions, 0);
}

#[tokio::test(start_paused = true)]
async fn flocks_wait_for_each_other_and_a_deadlock_is_refused() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    client_a.flock(FILE_A, LockMode::Pw, flock(1)).await.unwrap();
    client_b.flock(FILE_B, LockMode::Pw, flock(2)).await.unwrap();
    let mut nowait = Enqueue::new(FILE_A, LockMode::Pr, flock(2));
    nowait.flags = wire::LDLM_FL_BLOCK_NOWAIT;
    assert!(matches!(
        client_b.locks.enqueue(nowait).await,
        Err(RpcError::Status(Errno::EAGAIN))
    ));

    let waiting = {
        let client_a = client_a.clone();
        tokio::spawn(async move { client_a.flock(FILE_B, LockMode::Pw, flock(1)).await })
    };
    cluster.until(|s| s.waiting == 1).await;
    let deadlock = client_b.flock(FILE_A, LockMode::Pw, flock(2)).await;
    assert!(
        matches!(deadlock, Err(RpcError::Status(Errno::EDEADLK))),
        "{deadlock:?}"
    );
    client_b.flock(FILE_B, LockMode::Nl, flock(2)).await.unwrap();
    waiting.await.unwrap().unwrap();

    let mut test = Enqueue::new(FILE_A, LockMode::Pw, flock(2));
    test.flags = wire::LDLM_FL_TEST_LOCK;
    let found = client_b.locks.enqueue(test).await.unwrap().rep.lock_desc;
    assert_eq!(found.l_req_mode, wire::LCK_PW);
    assert_eq!(found.l_policy_data.owner(), 1);
    client_a.flock(FILE_A, LockMode::Nl, flock(1)).await.unwrap();
    client_a.flock(FILE_B, LockMode::Nl, flock(1)).await.unwrap();
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_nonblocking_request_waits_for_extent_locks_but_not_for_group_locks() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let nonblocking = |mode, gid| Enqueue {
        flags: wire::LDLM_FL_BLOCK_NOWAIT,
        ..Enqueue::new(OBJECT, mode, group(gid))
    };
    drop(client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap());
    drop(
        client_b
            .locks
            .enqueue(nonblocking(LockMode::Pr, 0))
            .await
            .unwrap(),
    );
    let held = client_a
        .locks
        .enqueue(nonblocking(LockMode::Group, 7))
        .await
        .unwrap();
    for (mode, gid) in [(LockMode::Pr, 0), (LockMode::Group, 8)] {
        assert!(matches!(
            client_b.locks.enqueue(nonblocking(mode, gid)).await,
            Err(RpcError::Status(Errno::EAGAIN))
        ));
    }
    drop(
        client_b
            .locks
            .enqueue(nonblocking(LockMode::Group, 7))
            .await
            .unwrap(),
    );
    drop(held);
    assert_eq!(cluster.server.stats().evictions, 0);
}

#[tokio::test(start_paused = true)]
async fn a_holder_may_keep_a_group_lock_that_blocks_others() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Group, group(7)).await.unwrap();
    let waiting = tokio::spawn(async move { client_b.enqueue(OBJECT, LockMode::Pw, WHOLE).await });
    cluster.until(|s| s.waiting == 1).await;
    tokio::time::sleep(10 * fixture::ENQUEUE_MIN).await;
    assert!(!waiting.is_finished());
    let stats = cluster.server.stats();
    assert_eq!((stats.blocking_asts, stats.evictions), (0, 0));
    drop(held);
    client_a.locks.cancel_all().await;
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn destroying_an_object_revokes_its_group_locks() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let held = client_a.enqueue(OBJECT, LockMode::Group, group(7)).await.unwrap();
    let destroy = cluster.server.lock_to_destroy(None, OBJECT);
    let (destroyed, ()) = tokio::join!(destroy, async {
        cluster.until(|s| s.blocking_asts == 1).await;
        drop(held);
    });
    drop(destroyed.unwrap());
    assert_eq!(cluster.server.stats().evictions, 0);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_wait_leaves_no_waiting_lock() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    client_a.flock(FILE_A, LockMode::Pw, flock(1)).await.unwrap();
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    for (res, policy) in [(FILE_A, flock(2)), (OBJECT, WHOLE)] {
        let client_b = client_b.clone();
        let waiting = tokio::spawn(async move {
            client_b
                .locks
                .enqueue(Enqueue::new(res, LockMode::Pw, policy))
                .await
        });
        cluster.until(|s| s.waiting == 1).await;
        // The reply that reports "queued" is still on its way.
        tokio::time::sleep(Duration::from_millis(10)).await;
        waiting.abort();
        cluster.until(|s| s.waiting == 0).await;
    }
    drop(held);
    client_b.flock(FILE_B, LockMode::Pw, flock(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resent_enqueue_creates_one_lock() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let first = client_a.raw_enqueue(directory(1), 4711, 0).await;
    let second = client_a.raw_enqueue(directory(1), 4711, wire::MSG_RESENT).await;
    assert_eq!(first.lock_handle, second.lock_handle);
    assert_ne!(first.lock_handle.cookie, 0);
    assert_eq!(cluster.server.stats().locks, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lock_unknown_to_the_client_is_dropped_when_revoked() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a.raw_enqueue(directory(1), 4711, 0).await;
    drop(
        cluster
            .server
            .lock(None, directory(1), LockMode::Ex, Policy::ibits(UPDATE))
            .await
            .unwrap(),
    );
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.evictions, stats.blocking_asts), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_glimpse_sees_dirty_data_of_the_writer() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    assert_eq!(
        client_b.glimpse(OBJECT).await,
        (0, true),
        "no client has a write lock: the lock is granted"
    );
    client_b.locks.cancel_all().await;
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    for _ in 0..5 {
        client_a.owner.add_one(held.info());
    }
    assert_eq!(client_b.glimpse(OBJECT).await, (5, false));
    assert!(!held.is_revoked(), "a glimpse does not revoke the lock");
}

#[tokio::test(start_paused = true)]
async fn an_intent_waits_for_required_bits_and_takes_free_optional_ones() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a
        .enqueue(directory(1), LockMode::Ex, Policy::ibits(UPDATE))
        .await
        .unwrap();
    let got = client_b
        .intent(directory(1), LockMode::Pr, LOOKUP, UPDATE | PERM)
        .await
        .unwrap();
    assert_eq!(*got.policy(), Policy::ibits(LOOKUP | PERM));
    let waiting = {
        let client_b = client_b.clone();
        tokio::spawn(async move { client_b.intent(directory(1), LockMode::Pr, UPDATE, 0).await })
    };
    client_a.until(|| held.is_revoked()).await;
    drop(held);
    assert_eq!(*waiting.await.unwrap().unwrap().policy(), Policy::ibits(UPDATE));
}

#[tokio::test(start_paused = true)]
async fn an_intent_revokes_its_own_clients_locks_too() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    drop(
        client_a
            .enqueue(directory(1), LockMode::Pr, Policy::ibits(LOOKUP | UPDATE))
            .await
            .unwrap(),
    );
    let got = client_a
        .intent(directory(1), LockMode::Ex, UPDATE, 0)
        .await
        .unwrap();
    assert_eq!(*got.policy(), Policy::ibits(UPDATE));
    assert_eq!(client_a.owner.revoked(), [(directory(1), UPDATE)]);
}

#[tokio::test(start_paused = true)]
async fn a_destroy_discards_dirty_data() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let lock = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    client_a.owner.add_one(lock.info());
    drop(lock);
    drop(cluster.server.lock_to_destroy(None, OBJECT).await.unwrap());
    assert_eq!(cluster.disk.size(&OBJECT), 0);
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn parameters_show_lock_counts_and_configure_the_cache() {
    let registry = params::Registry::default();
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let _params = (
        cluster.server.register_params(&registry),
        client_a.locks.register_params(&registry, "testfs-MDT0000-mdc-a"),
    );
    drop(
        client_a
            .enqueue(directory(1), LockMode::Pr, Policy::ibits(LOOKUP))
            .await
            .unwrap(),
    );
    let counts = registry.get("ldlm.namespaces.*.lock_count");
    assert!(
        counts.iter().all(|(_, n)| n == "1") && counts.len() == 2,
        "{counts:?}"
    );
    assert!(registry.set("ldlm.namespaces.*mdc*.lru_size", "many").is_err());
    registry.set("ldlm.namespaces.*mdc*.lru_size", "clear").unwrap();
    cluster.until(|s| s.locks == 0).await;
    registry.set("ldlm.namespaces.*.lru_max_age", "1500").unwrap();
    assert_eq!(client_a.locks.lru_max_age(), Duration::from_millis(1500));
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_releases_the_clients_locks() {
    let cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    let waiting = tokio::spawn(async move { client_b.enqueue(OBJECT, LockMode::Pr, WHOLE).await });
    cluster.until(|s| s.waiting == 1).await;
    client_a.import.disconnect().await;
    waiting.await.unwrap().unwrap();
    assert_eq!(cluster.server.stats().evictions, 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn invalid_request_flags_are_refused() {
    let cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let mut enqueue = Enqueue::new(directory(1), LockMode::Pr, Policy::ibits(LOOKUP));
    enqueue.flags = wire::LDLM_FL_AST_SENT;
    assert!(matches!(
        client_a.locks.enqueue(enqueue).await,
        Err(RpcError::Status(Errno::EPROTO))
    ));
    assert_eq!(cluster.server.stats().locks, 0);
}
