//! Replays of locks at a restarted server, and what happens to the locks meanwhile.

use crate::cluster::{
    LOOKUP, UPDATE, WHOLE,
    fixture::{Client, Cluster, FILE_A, OBJECT, directory},
    flock,
};
use fastrand::Rng;
use ldlm::{Enqueue, LdlmConfig, LockCookie, LockLimits, LockMode, LockRef, LockType, Policy};
use rpc::RpcError;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use wire::{
    Errno, LDLM_CONVERT, LDLM_ENQUEUE, LDLM_FL_BLOCK_GRANTED, LDLM_FL_REPLAY, LdlmRequest, LdlmResId,
    Message, PtlrpcBody, WireStruct,
};

type Waiting = JoinHandle<Result<LockRef, RpcError>>;

fn is_replay(opc: u32, flags: u64) -> bool {
    opc == LDLM_ENQUEUE && flags & LDLM_FL_REPLAY != 0
}

impl Client {
    /// Requests a lock in a separate task.
    fn start_enqueue(&self, res: LdlmResId, mode: LockMode, policy: Policy) -> Waiting {
        let client = self.clone();
        tokio::spawn(async move { client.enqueue(res, mode, policy).await })
    }

    /// Replays all locks in a separate task.
    fn start_replay(&self) -> JoinHandle<Result<(), RpcError>> {
        let locks = self.locks.clone();
        tokio::spawn(async move { locks.replay().await })
    }

    /// Adds an unused lock on each of some directories.
    async fn lock_directories(&self, count: u64) {
        for n in 0..count {
            let lock = self.enqueue(directory(n), LockMode::Pr, Policy::ibits(LOOKUP));
            drop(lock.await.unwrap());
        }
    }

    /// Delivers a completion AST that no server sent.
    async fn complete_by_hand(&self, cookie: u64, handle: u64) -> Result<(), Errno> {
        let completion = LdlmRequest {
            lock_handle: [cookie, handle],
            ..LdlmRequest::default()
        };
        let message = Message::new(&PtlrpcBody::default(), [completion.to_bytes()]);
        let reply = self.locks.ast(wire::LDLM_CP_CALLBACK, message).await;
        reply.map(drop)
    }
}

#[tokio::test(start_paused = true)]
async fn locks_and_waits_survive_a_restart_of_the_server() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    client_a.lock_directories(100).await;
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    client_a.owner.add_one(held.info());
    let waiting = client_b.start_enqueue(OBJECT, LockMode::Pr, Policy::extent(0, 9));
    cluster.until(|stats| stats.waiting == 1).await;
    cluster.restart().await;
    // The waiting lock comes first; the granted one is still missing.
    client_b.locks.replay().await.unwrap();
    client_a.locks.replay().await.unwrap();
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.waiting), (102, 1));
    assert_eq!((stats.completion_asts, stats.blocking_asts), (0, 0));
    assert!(held.is_valid() && client_a.owner.dropped_count() == 0);
    cluster.server.replay_done();
    cluster.until(|stats| stats.blocking_asts == 1).await;
    assert!(!waiting.is_finished());
    drop(held);
    waiting.await.unwrap().unwrap();
    assert_eq!(cluster.disk.size(&OBJECT), 1);
    client_a.locks.cancel_all().await;
    client_b.locks.cancel_all().await;
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.evictions), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_an_answer_to_its_replay_leaves_the_cache_after_the_next_one() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a.lock_directories(3).await;
    cluster.restart().await;
    cluster.hold(is_replay);
    let replay = client_a.start_replay();
    cluster.until_held(3).await;
    replay.abort();
    client_a.locks.cancel_unused_of(&directory(0));
    assert!(client_a.locks.elc(&directory(1), LOOKUP, true).is_empty());
    client_a.locks.cancel_unused();
    client_a.wait_for_write_backs().await;
    cluster.hold(|_, _| false);
    cluster.until(|stats| stats.locks == 3).await;
    assert_eq!(client_a.locks.lock_count(), 3);
    client_a.locks.replay().await.unwrap();
    client_a.until(|| client_a.locks.lock_count() == 0).await;
    client_a.locks.cancel_all().await;
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_used_during_its_replay_is_unused_again_afterwards() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a.lock_directories(3).await;
    cluster.restart().await;
    cluster.hold(is_replay);
    let replay = client_a.start_replay();
    cluster.until_held(3).await;
    drop(
        client_a
            .locks
            .find(&directory(1), LockMode::Pr, Policy::ibits(LOOKUP)),
    );
    cluster.hold(|_, _| false);
    replay.await.unwrap().unwrap();
    assert_eq!(client_a.locks.unused_count(), 3);
    assert_eq!(cluster.server.stats().locks, 3);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_wait_leaves_no_lock_at_the_restarted_server() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let _held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    for abandoned_during_replay in [true, false] {
        let waiting = client_b.start_enqueue(OBJECT, LockMode::Pr, WHOLE);
        cluster.until(|stats| stats.waiting == 1).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        cluster.restart().await;
        client_a.locks.replay().await.unwrap();
        cluster.hold(is_replay);
        let replay = client_b.start_replay();
        cluster.until_held(1).await;
        if abandoned_during_replay {
            waiting.abort();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        cluster.hold(|_, _| false);
        replay.await.unwrap().unwrap();
        waiting.abort();
        cluster.until(|stats| stats.locks == 1).await;
        cluster.server.replay_done();
    }
    assert_eq!(cluster.server.stats().completion_asts, 0);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_written_back_during_the_restart_is_cancelled_afterwards() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    client_a.owner.set_write_back_time(OBJECT, Duration::from_secs(1));
    let lock = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    client_a.owner.add_one(lock.info());
    drop(lock);
    let waiting = client_b.start_enqueue(OBJECT, LockMode::Pr, WHOLE);
    client_a.until(|| !client_a.owner.revoked().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster.restart().await;
    client_a.locks.replay().await.unwrap();
    client_b.locks.replay().await.unwrap();
    cluster.server.replay_done();
    waiting.await.unwrap().unwrap();
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.evictions), (1, 0));
    assert_eq!(
        (cluster.disk.size(&OBJECT), client_a.owner.dropped_count()),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_the_client_gives_up_during_the_restart_is_cancelled_afterwards() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a
        .owner
        .set_write_back_time(directory(0), Duration::from_secs(1));
    client_a.lock_directories(1).await;
    client_a.locks.cancel_unused();
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster.restart().await;
    client_a.locks.replay().await.unwrap();
    assert_eq!(cluster.server.stats().locks, 1);
    cluster.server.replay_done();
    client_a.locks.cancel_all().await;
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_conversion_after_the_restart_has_the_new_handle() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let dir = directory(1);
    client_a.owner.set_write_back_time(dir, Duration::from_secs(1));
    let both = Policy::ibits(LOOKUP | UPDATE);
    drop(client_a.enqueue(dir, LockMode::Pr, both).await.unwrap());
    let waiting = client_b.start_enqueue(dir, LockMode::Ex, Policy::ibits(UPDATE));
    client_a.until(|| !client_a.owner.revoked().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster.restart().await;
    client_a.locks.replay().await.unwrap();
    client_b.locks.replay().await.unwrap();
    cluster.server.replay_done();
    let _granted = waiting.await.unwrap().unwrap();
    assert_eq!(client_a.locks.locks_of(&dir)[0].policy, Policy::ibits(LOOKUP));
    assert_eq!(cluster.server.stats().locks, 2);
}

#[tokio::test(start_paused = true)]
async fn a_replay_does_not_claim_bits_that_a_conversion_has_given_up() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let dir = directory(1);
    let both = Policy::ibits(LOOKUP | UPDATE);
    drop(client_a.enqueue(dir, LockMode::Pr, both).await.unwrap());
    cluster.hold(|opc, _| opc == LDLM_CONVERT);
    let server = cluster.server.clone();
    let writer = tokio::spawn(async move {
        let lock = server.lock(None, dir, LockMode::Ex, Policy::ibits(UPDATE));
        lock.await.map(drop)
    });
    cluster.until_held(1).await;
    cluster.restart().await;
    writer.abort();
    client_a.locks.replay().await.unwrap();
    cluster.server.replay_done();
    let update = Policy::ibits(UPDATE);
    let free = cluster.server.try_lock(None, dir, update).await;
    assert!(free.unwrap().is_some(), "the old server may have granted it");
    cluster.hold(|_, _| false);
    client_a.until(|| client_a.locks.lock_count() == 0).await;
    client_a.locks.cancel_all().await;
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_lock_is_lost_and_a_refused_wait_fails() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let kept = client_a.enqueue(OBJECT, LockMode::Pr, WHOLE).await.unwrap();
    let bits = Policy::ibits(UPDATE);
    let held = client_a.enqueue(directory(1), LockMode::Ex, bits).await.unwrap();
    let waiting = client_b.start_enqueue(directory(1), LockMode::Ex, bits);
    cluster.until(|stats| stats.waiting == 1).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster
        .restart_with(LdlmConfig {
            types: &[LockType::Extent],
            ..LdlmConfig::default()
        })
        .await;
    client_a.locks.replay().await.unwrap();
    client_b.locks.replay().await.unwrap();
    assert!(!held.is_valid() && kept.is_valid());
    assert_eq!(client_a.owner.dropped_count(), 1);
    let refused = waiting.await.unwrap();
    assert!(matches!(refused, Err(RpcError::Evicted(_))), "{refused:?}");
    assert_eq!(cluster.server.stats().locks, 1);
}

#[tokio::test(start_paused = true)]
async fn locks_that_the_server_drops_without_a_cancel_are_not_replayed() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    let mut enqueue = Enqueue::new(directory(1), LockMode::Pr, Policy::ibits(UPDATE));
    enqueue.flags = wire::LDLM_FL_CANCEL_ON_BLOCK;
    let held = client_a.locks.enqueue(enqueue).await.unwrap().lock.unwrap();
    cluster.restart().await;
    client_a.locks.replay().await.unwrap();
    assert!(!held.is_valid());
    assert_eq!(
        (cluster.server.stats().locks, client_a.owner.dropped_count()),
        (0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_repeated_replay_creates_no_second_lock() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    let waiting = client_b.start_enqueue(OBJECT, LockMode::Pr, WHOLE);
    cluster.until(|stats| stats.waiting == 1).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster.restart().await;
    for client in [&client_a, &client_b, &client_b, &client_a] {
        client.locks.replay().await.unwrap();
    }
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.waiting), (2, 1));
    cluster.server.replay_done();
    drop(held);
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_replay_flag_gives_no_conflicting_lock_outside_of_a_recovery() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    cluster.restart().await;
    cluster.server.replay_done();
    let claim = |client: &Client| {
        let mut enqueue = Enqueue::new(OBJECT, LockMode::Pw, WHOLE);
        enqueue.flags = LDLM_FL_REPLAY | LDLM_FL_BLOCK_GRANTED;
        let locks = client.locks.clone();
        tokio::spawn(async move { locks.enqueue(enqueue).await })
    };
    let granted = tokio::time::timeout(Duration::from_secs(10), claim(&client_a));
    let held = granted.await.expect("the reply has the lock").unwrap().unwrap();
    let waiting = claim(&client_b);
    cluster.until(|stats| stats.waiting == 1).await;
    drop(held);
    waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn completions_of_the_former_server_count_no_more() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    let held = client_a.enqueue(OBJECT, LockMode::Pw, WHOLE).await.unwrap();
    let cookie = held.info().cookie.0;
    let answered = client_b.start_enqueue(OBJECT, LockMode::Pr, WHOLE);
    cluster.until(|stats| stats.waiting == 1).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    // The server has not answered this request, but the completion has arrived.
    cluster.hold(|opc, flags| opc == LDLM_ENQUEUE && !is_replay(opc, flags));
    let unanswered = client_b.start_enqueue(OBJECT, LockMode::Pr, WHOLE);
    cluster.until_held(1).await;
    // Both clients count from the same cookie.
    assert!(client_b.locks.is_pending(LockCookie(cookie + 2)));
    client_b.complete_by_hand(cookie + 2, 4711).await.unwrap();
    cluster.restart().await;
    client_a.locks.replay().await.unwrap();
    client_b.locks.replay().await.unwrap();
    let late = client_b.complete_by_hand(cookie, 4711).await;
    assert_eq!(late, Err(Errno::EINVAL), "another handle");
    cluster.hold(|_, _| false);
    cluster.until(|stats| stats.waiting == 2).await;
    cluster.server.replay_done();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!answered.is_finished() && !unanswered.is_finished());
    drop(held);
    answered.await.unwrap().unwrap();
    unanswered.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn flocks_and_waits_for_flocks_survive_a_restart() {
    let mut cluster = Cluster::new().await;
    let (client_a, client_b) = (cluster.client("a").await, cluster.client("b").await);
    client_a.flock(FILE_A, LockMode::Pw, flock(1)).await.unwrap();
    let waiting = {
        let client_b = client_b.clone();
        tokio::spawn(async move { client_b.flock(FILE_A, LockMode::Pw, flock(2)).await })
    };
    cluster.until(|stats| stats.waiting == 1).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    cluster.restart().await;
    client_b.locks.replay().await.unwrap();
    let replayed = client_a.locks.replay_flock(FILE_A, LockMode::Pw, flock(1)).await;
    assert!(replayed.unwrap());
    cluster.server.replay_done();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiting.is_finished());
    client_a.flock(FILE_A, LockMode::Nl, flock(1)).await.unwrap();
    waiting.await.unwrap().unwrap();
    client_b.flock(FILE_A, LockMode::Nl, flock(2)).await.unwrap();
    assert_eq!(cluster.server.stats().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn replays_do_not_wait_at_the_limit_of_locks() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a.lock_directories(1100).await;
    let limits = Arc::<LockLimits>::default();
    limits.set(1, 1);
    cluster
        .restart_with(LdlmConfig {
            limits,
            ..LdlmConfig::default()
        })
        .await;
    let replay = tokio::time::timeout(Duration::from_secs(1), client_a.locks.replay());
    replay.await.unwrap().unwrap();
    let stats = cluster.server.stats();
    assert_eq!((stats.locks, stats.blocking_asts), (1100, 0));
}

#[tokio::test(start_paused = true)]
async fn a_replayed_intent_gets_no_lock() {
    let mut cluster = Cluster::new().await;
    let client_a = cluster.client("a").await;
    client_a.lock_directories(1).await;
    let export = cluster.export_of("a");
    cluster.restart().await;
    for replays in [true, false] {
        let server = &cluster.server;
        let waits = server.grant_to(&export, 5, directory(9), LockMode::Pr, LOOKUP, 0);
        assert_eq!(waits.await.unwrap().is_some(), !replays);
        let tries = server.try_grant_to(&export, 5, directory(9), LockMode::Pr, LOOKUP, 0);
        assert_eq!(tries.await.unwrap().is_some(), !replays);
        server.replay_done();
    }
}

/// While the clients work, the server restarts again and again. Some replays are given up and
/// repeated, as after a lost connection.
#[test]
fn restarts_lose_no_increment_and_leave_no_lock() {
    for seed in 0..20 {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run_with_restarts(seed));
    }
}

async fn run_with_restarts(seed: u64) {
    const ROUNDS: u64 = 200;
    let mut cluster = Cluster::seeded(seed).await;
    let clients = [
        cluster.client("a").await,
        cluster.client("b").await,
        cluster.client("c").await,
    ];
    let mut working = tokio::task::JoinSet::new();
    for (n, client) in clients.iter().enumerate() {
        client
            .owner
            .set_write_back_time(OBJECT, Duration::from_millis(30));
        let (client, mut random) = (client.clone(), Rng::with_seed(seed * 3 + n as u64));
        working.spawn(async move {
            for _ in 0..ROUNDS {
                tokio::time::sleep(Duration::from_millis(random.u64(..100))).await;
                client.add_one().await;
                let (mode, bits) = match random.u8(..3) {
                    0 => (LockMode::Ex, UPDATE),
                    _ => (LockMode::Pr, LOOKUP | UPDATE),
                };
                let lock = client.enqueue(directory(1), mode, Policy::ibits(bits));
                drop(lock.await.unwrap());
                if random.u8(..8) == 0 {
                    client.locks.cancel_unused();
                }
            }
        });
    }
    let mut random = Rng::with_seed(seed);
    while working.try_join_next().is_none_or(|done| done.is_ok()) && !working.is_empty() {
        tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
        // Requests that arrive from now on are executed by the next server. Those before get
        // their replies.
        cluster.hold(|opc, flags| !is_replay(opc, flags));
        tokio::time::sleep(Duration::from_millis(20)).await;
        cluster.restart().await;
        for client in &clients {
            let replay = client.start_replay();
            if random.bool() {
                tokio::time::sleep(Duration::from_micros(random.u64(..1000))).await;
                replay.abort();
                tokio::time::sleep(Duration::from_millis(20)).await;
                client.locks.replay().await.unwrap();
            } else {
                replay.await.unwrap().unwrap();
            }
        }
        cluster.server.replay_done();
        cluster.hold(|_, _| false);
    }
    for client in &clients {
        client.locks.cancel_all().await;
    }
    let stats = cluster.server.stats();
    let increments = ROUNDS * clients.len() as u64;
    assert_eq!(cluster.disk.size(&OBJECT), increments, "seed {seed}");
    assert_eq!((stats.locks, stats.evictions), (0, 0), "seed {seed}");
    let dropped: u64 = clients.iter().map(|client| client.owner.dropped_count()).sum();
    assert_eq!(dropped, 0, "seed {seed}");
}
