//! Tests of the record of locked ranges, and of their replay at a restarted target.
#![allow(clippy::unwrap_used)]

use super::{FlockOwner, FlockRange, FlockType, Flocks, flock_policy};
use ldlm::{
    Enqueue, LdlmConfig, LockClient, LockClientConfig, LockInfo, LockOwner, LockServer, LockType, NoLvb,
};
use parking_lot::Mutex;
use rpc::{BoxFuture, Import, ImportKind, Reply, ServerRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testbase::by_hand::{MDT, TestTarget};
use testbase::rpc_node::{self, RecordingOwner};
use wire::{Errno, Fid, OstLvb};

use FlockType::{Read, Unlock, Write};

const FILE: Fid = Fid {
    f_seq: 0x2_0000_0402,
    f_oid: 1,
    f_ver: 0,
};
const OWNER: u64 = 7;

fn range(ty: FlockType, start: u64, end: u64, pid: u32) -> FlockRange {
    FlockRange {
        ty,
        start,
        end,
        owner: OWNER,
        pid,
    }
}

#[test]
fn an_owner_holds_the_last_type_of_each_part_of_its_ranges() {
    let owner = FlockOwner::default();
    for (ty, start, end, pid) in [
        (Read, 0, 99, 1),
        (Read, 100, FlockRange::END, 1),
        (Write, 10, 19, 1),
        (Unlock, 15, 15, 1),
        (Read, 50, 59, 2),
    ] {
        assert!(owner.record_grant(&range(ty, start, end, pid), None, || true));
    }
    let held = [
        range(Read, 0, 9, 1),
        range(Write, 10, 14, 1),
        range(Write, 16, 19, 1),
        range(Read, 20, 49, 1),
        range(Read, 50, 59, 2),
        range(Read, 60, FlockRange::END, 1),
    ];
    assert_eq!(owner.held(OWNER), held);
    assert!(!owner.record_grant(&range(Unlock, 0, 99, 1), None, || false));
    assert_eq!(owner.held(OWNER), held);
}

/// The owner of a lock client without cached locks.
struct NoCache;

impl LockOwner for NoCache {
    fn blocking<'a>(&'a self, _lock: LockInfo, _cancel_bits: u64) -> BoxFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn glimpse(&self, _lock: LockInfo) -> Option<OstLvb> {
        None
    }

    fn dropped(&self, _lock: LockInfo, _bits: u64) {}
}

/// A metadata target that only locks.
struct LockTarget {
    server: Mutex<Arc<LockServer>>,
    /// Replies wait.
    holds_replies: AtomicBool,
}

impl LockTarget {
    fn new_server(seed: u64, types: &'static [LockType]) -> Arc<LockServer> {
        let cfg = LdlmConfig {
            seed,
            types,
            ..LdlmConfig::default()
        };
        LockServer::new("test", Arc::new(NoLvb), cfg)
    }

    fn server(&self) -> Arc<LockServer> {
        self.server.lock().clone()
    }

    /// Replaces the locks by those of a new server, which accepts replays.
    fn restart(&self, types: &'static [LockType]) {
        let server = LockTarget::new_server(1 << 20, types);
        server.begin_replay();
        *self.server.lock() = server;
    }

    async fn handle(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let reply = self.server().handle(req).await.unwrap();
        while self.holds_replies.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        reply
    }
}

/// A client of a target, and the locks of its programs.
struct Mount {
    target: Arc<LockTarget>,
    locks: Arc<LockClient>,
    flocks: Flocks,
}

impl Mount {
    async fn new() -> Mount {
        let target = Arc::new(LockTarget {
            server: Mutex::new(LockTarget::new_server(1, &[LockType::Flock])),
            holds_replies: AtomicBool::new(false),
        });
        let rpc = rpc_node::node(1);
        let handler = target.clone();
        rpc.add_target(TestTarget::new(MDT, move |req| {
            let target = handler.clone();
            Box::pin(async move { target.handle(req).await })
        }));
        let locks = LockClient::new(Arc::new(NoCache), LockClientConfig::default());
        let owner = Arc::<RecordingOwner>::default();
        let import = Import::new(&rpc, rpc_node::import_config(MDT, ImportKind::Mdc, owner));
        locks.set_import(import.clone());
        import.connect().await.unwrap();
        Mount {
            target,
            locks,
            flocks: Flocks::default(),
        }
    }

    async fn request(&self, requested: FlockRange) -> Result<bool, Errno> {
        let owner = self.flocks.add_request(FILE, requested.owner);
        let (mode, policy) = (requested.ty.mode(), flock_policy(&requested));
        let enqueue = Enqueue::new(FILE.flock_res_id(), mode, policy);
        self.flocks
            .request(&self.locks, enqueue, &owner, &requested, None)
            .await
    }

    fn held(&self) -> Vec<FlockRange> {
        self.flocks.find(FILE, OWNER).unwrap().held(OWNER)
    }
}

#[tokio::test(start_paused = true)]
async fn locked_ranges_are_claimed_at_a_restarted_target() {
    let mount = Mount::new().await;
    for requested in [
        range(Write, 0, 99, 1),
        range(Read, 20, 29, 1),
        range(Unlock, 90, 99, 1),
    ] {
        assert_eq!(mount.request(requested).await, Ok(true));
    }
    mount.target.restart(&[LockType::Flock]);
    mount.flocks.replay(&mount.locks).await.unwrap();
    let server = mount.target.server();
    server.replay_done();
    assert_eq!(server.stats().locks, 3);
    let other = |ty, start, end| FlockRange {
        owner: OWNER + 1,
        ..range(ty, start, end, 2)
    };
    mount.request(other(Read, 20, 29)).await.unwrap();
    mount.request(other(Write, 90, 99)).await.unwrap();
    assert_eq!((server.stats().locks, server.stats().waiting), (5, 0));
    let conflict = mount.request(other(Write, 20, 29));
    let timed_out = tokio::time::timeout(Duration::from_secs(1), conflict).await;
    assert!(timed_out.is_err(), "the owner has a read lock");
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_reply_is_older_than_the_restart_is_requested_again() {
    let mount = Mount::new().await;
    assert_eq!(mount.request(range(Write, 50, 59, 1)).await, Ok(true));
    for (requested, locks_after) in [(range(Write, 0, 9, 1), 2), (range(Unlock, 0, 9, 1), 1)] {
        mount.target.holds_replies.store(true, Ordering::Relaxed);
        let restart = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            mount.target.restart(&[LockType::Flock]);
            let release = async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                mount.target.holds_replies.store(false, Ordering::Relaxed);
            };
            let (replayed, ()) = tokio::join!(mount.flocks.replay(&mount.locks), release);
            replayed.unwrap();
            mount.target.server().replay_done();
        };
        let (granted, ()) = tokio::join!(mount.request(requested), restart);
        assert_eq!(granted, Ok(true));
        assert_eq!(mount.target.server().stats().locks, locks_after);
        assert_eq!(mount.held().len(), locks_after);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_lock_is_lost() {
    let mount = Mount::new().await;
    assert_eq!(mount.request(range(Write, 0, 9, 1)).await, Ok(true));
    mount.target.restart(&[LockType::Ibits]);
    mount.flocks.replay(&mount.locks).await.unwrap();
    assert!(mount.held().is_empty());
}
