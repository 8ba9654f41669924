//! The recovery of clients after a restart of their target, in virtual time.
#![allow(clippy::unwrap_used)]

use parking_lot::Mutex;
use rpc::{
    Access, BoxFuture, ConnectRequest, EndReason, Export, Import, ImportConfig, ImportKind, KeptReply,
    KnownClient, Part, Ptlrpc, Replay, Reply, Request, ServerRequest, Target,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use testbase::by_hand::{MDT, text};
use testbase::rpc_node::{RecordingOwner, import_config, node};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use wire::{Errno, LDLM_ENQUEUE, MDS_REINT, Nid, ObdConnectData, Transno, Xid};

/// A target for requests with a text.
#[derive(Default)]
struct TextTarget {
    known: Vec<KnownClient>,
    /// The number of the target's start.
    instance: u32,
    committed: u64,
    /// The last transno.
    last: AtomicU64,
    /// The texts of executed requests; a replayed request begins with its transno.
    executed: Mutex<Vec<String>>,
    /// The slot and xid of each request.
    keys: Mutex<Vec<(u16, Xid)>>,
    recovered: AtomicBool,
    forgotten: Mutex<Vec<String>>,
}

impl Target for TextTarget {
    fn uuid(&self) -> &str {
        MDT
    }

    fn negotiate(&self, req: &ConnectRequest) -> Result<ObdConnectData, Errno> {
        Ok(ObdConnectData {
            ocd_instance: self.instance,
            ..req.data
        })
    }

    fn last_committed(&self) -> Transno {
        Transno(self.committed)
    }

    fn replayable(&self) -> bool {
        true
    }

    fn known_clients(&self) -> Vec<KnownClient> {
        self.known.clone()
    }

    fn forget_client(&self, client_uuid: &str) {
        self.forgotten.lock().push(client_uuid.to_owned());
    }

    fn recovered<'a>(&'a self) -> BoxFuture<'a, ()> {
        self.recovered.store(true, Ordering::SeqCst);
        Box::pin(async {})
    }

    fn reconstruct<'a>(
        &'a self,
        _req: &'a mut ServerRequest,
        kept: KeptReply,
    ) -> BoxFuture<'a, Result<Reply, Errno>> {
        self.executed
            .lock()
            .push(format!("reconstruct {}", kept.transno.0));
        Box::pin(async move { Ok(Reply::status(kept.status).with_transno(kept.transno)) })
    }

    fn handle<'a>(&'a self, req: &'a mut ServerRequest) -> BoxFuture<'a, Result<Reply, Errno>> {
        Box::pin(async move {
            let text = String::from_utf8_lossy(req.buf(1))
                .trim_end_matches('\0')
                .to_owned();
            if let Some(group) = text.strip_prefix("group ") {
                req.export
                    .claim(part(group.parse().unwrap()), Access::Write)
                    .await?;
            }
            let new = || Transno(self.last.fetch_add(1, Ordering::SeqCst) + 1);
            let (transno, line) = match req.replayed_transno() {
                Some(transno) => (transno, format!("{} {text}", transno.0)),
                None if req.opc == LDLM_ENQUEUE => (Transno::NONE, text),
                None => (new(), text),
            };
            self.executed.lock().push(line);
            self.keys.lock().push((req.body.pb_tag, req.xid));
            // A replay that waits for its turn must not overtake this one.
            sleep(Duration::from_millis(1)).await;
            Ok(Reply::default().with_transno(transno))
        })
    }

    fn export_gone<'a>(&'a self, _export: &'a Arc<Export>, _why: EndReason) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

fn part(group: u64) -> Part {
    Part {
        group,
        member: 1,
        is_new: false,
    }
}

fn known(uuid: &str, replies: Vec<KeptReply>) -> KnownClient {
    KnownClient {
        uuid: uuid.to_owned(),
        nid: Nid::LO,
        // The client notices the restart by a missing reply or a ping, which takes up to 25 s.
        notices_late: uuid != "missing",
        replies,
        holdings: Default::default(),
    }
}

/// A target that starts for the second time, with these clients and without kept replies.
fn restarted(clients: &[&str], committed: u64) -> TextTarget {
    TextTarget {
        known: clients.iter().map(|uuid| known(uuid, Vec::new())).collect(),
        instance: 2,
        committed,
        last: AtomicU64::new(1 << 32),
        ..TextTarget::default()
    }
}

/// A target that starts for the first time.
fn first() -> TextTarget {
    TextTarget {
        instance: 1,
        ..TextTarget::default()
    }
}

/// An owner with one lock.
#[derive(Default)]
struct LockOwner {
    events: RecordingOwner,
    import: Mutex<Option<Arc<Import>>>,
}

impl rpc::ImportOwner for LockOwner {
    fn callback<'a>(&'a self, opc: u32, msg: wire::Message) -> BoxFuture<'a, Result<Reply, Errno>> {
        self.events.callback(opc, msg)
    }

    fn event(&self, event: rpc::ImportEvent) {
        self.events.event(event);
    }

    fn replay_locks<'a>(&'a self) -> BoxFuture<'a, Result<(), rpc::RpcError>> {
        Box::pin(async move {
            let import = self.import.lock().clone().unwrap();
            let request = Request {
                replay: Some(Replay::Lock),
                ..Request::new(LDLM_ENQUEUE, vec![format!("lock of {}", import.name()).into()])
            };
            import.call(request).await.map(drop)
        })
    }
}

async fn connect(rpc: &Arc<Ptlrpc>, uuid: &str) -> (Arc<Import>, Arc<LockOwner>) {
    let (import, owner) = start_connecting(rpc, uuid);
    import.connect().await.unwrap();
    (import, owner)
}

fn start_connecting(rpc: &Arc<Ptlrpc>, uuid: &str) -> (Arc<Import>, Arc<LockOwner>) {
    let owner = Arc::<LockOwner>::default();
    let config = ImportConfig {
        name: uuid.to_owned(),
        client_uuid: uuid.to_owned(),
        ..import_config(MDT, ImportKind::Mdc, owner.clone())
    };
    let import = Import::new(rpc, config);
    *owner.import.lock() = Some(import.clone());
    import.start_connecting();
    (import, owner)
}

async fn change(import: &Import, name: &'static str) {
    let reply = import
        .call(Request::modifying(MDS_REINT, text(name)))
        .await
        .unwrap();
    assert_ne!(reply.body.pb_transno, 0);
}

/// Sends a request that waits for the target's return.
fn change_later(import: &Arc<Import>, name: &'static str) -> JoinHandle<()> {
    let import = import.clone();
    tokio::spawn(async move { change(&import, name).await })
}

#[tokio::test(start_paused = true)]
async fn clients_replay_uncommitted_requests_in_order_then_locks_then_go_on() {
    let rpc = node(1);
    rpc.add_target(Arc::new(first()));
    let ((a, owner), (b, _)) = (connect(&rpc, "a").await, connect(&rpc, "b").await);
    for (import, name) in [(&a, "1"), (&b, "2"), (&b, "3"), (&a, "4"), (&a, "5"), (&b, "6")] {
        change(import, name).await;
    }
    rpc.remove_target(MDT).await;
    let waiting = [change_later(&a, "new of a"), change_later(&b, "new of b")];
    sleep(Duration::from_secs(20)).await;
    let target = Arc::new(restarted(&["a", "b"], 2));
    rpc.add_target(target.clone());
    let started_at = Instant::now();
    for call in waiting {
        call.await.unwrap();
    }
    assert!(
        started_at.elapsed() < Duration::from_secs(3),
        "{:?}",
        started_at.elapsed()
    );
    let mut executed = target.executed.lock().clone();
    assert_eq!(executed[..4], ["3 3", "4 4", "5 5", "6 6"]);
    executed[4..].sort();
    assert_eq!(executed[4..], ["lock of a", "lock of b", "new of a", "new of b"]);
    assert!(target.recovered.load(Ordering::SeqCst));
    assert_eq!(
        *owner.events.events.lock(),
        ["connected", "disconnected", "connected"]
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_message_of_a_later_start_moves_a_client() {
    let rpc = node(6);
    rpc.add_target(Arc::new(restarted(&[], 0)));
    let (import, owner) = connect(&rpc, "a").await;
    let nid = import.peer();
    for (instance, events) in [
        (1, &["connected"][..]),
        (2, &["connected"]),
        (3, &["connected", "disconnected", "connected"]),
    ] {
        import.target_started(&[nid], instance);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(*owner.events.events.lock(), events, "{instance}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_client_is_evicted_and_new_clients_wait_for_what_it_may_hold() {
    let rpc = node(2);
    rpc.add_target(Arc::new(first()));
    let (a, owner) = connect(&rpc, "a").await;
    change(&a, "1").await;
    rpc.remove_target(MDT).await;
    let waiting = change_later(&a, "2");
    let mut restarted = restarted(&["a", "missing"], 0);
    restarted.known[1].holdings.add_part(&part(7), Access::Read);
    let target = Arc::new(restarted);
    let exports = rpc.add_target(target.clone());
    let started_at = Instant::now();
    let (new, _) = start_connecting(&rpc, "new");
    let blocked = change_later(&new, "group 7");
    change(&new, "group 8").await;
    let waited = started_at.elapsed();
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    blocked.await.unwrap();
    waiting.await.unwrap();
    let waited = started_at.elapsed();
    assert!((10..13).contains(&waited.as_secs()), "{waited:?}");
    assert_eq!(*target.forgotten.lock(), ["missing"]);
    let mut executed = target.executed.lock().clone();
    assert_eq!(executed[0], "group 8");
    executed.sort();
    assert_eq!(executed, ["1 1", "2", "group 7", "group 8", "lock of a"]);
    assert_eq!(
        *owner.events.events.lock(),
        ["connected", "disconnected", "connected"]
    );
    let status = exports.recovery_status();
    assert!(
        status.contains("status: COMPLETE") && status.contains("completed_clients: 1/2"),
        "{status}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_with_an_older_connection_than_the_recovery_is_evicted() {
    let rpc = node(3);
    rpc.add_target(Arc::new(first()));
    let (a, owner) = connect(&rpc, "a").await;
    change(&a, "1").await;
    rpc.remove_target(MDT).await;
    rpc.add_target(Arc::new(restarted(&[], 0)));
    let result = a.call(Request::modifying(MDS_REINT, text("2"))).await;
    assert!(matches!(result, Err(rpc::RpcError::Evicted(_))), "{result:?}");
    assert_eq!(a.take_lost().len(), 1);
    change(&a, "3").await;
    assert_eq!(
        *owner.events.events.lock(),
        ["connected", "disconnected", "evicted", "connected"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_executed_before_the_restart_is_not_executed_again() {
    let rpc = node(4);
    let first = Arc::new(first());
    rpc.add_target(first.clone());
    rpc.faults().lose_replies(MDS_REINT, 1);
    let (a, _) = connect(&rpc, "a").await;
    let unanswered = change_later(&a, "1");
    sleep(Duration::from_millis(100)).await;
    let (tag, xid) = first.keys.lock()[0];
    rpc.remove_target(MDT).await;
    let kept = KeptReply {
        tag,
        xid,
        transno: Transno(1),
        status: 0,
        data: 0,
        pre_versions: [0; 4],
    };
    let target = Arc::new(TextTarget {
        known: vec![known("a", vec![kept])],
        ..restarted(&[], 1)
    });
    rpc.add_target(target.clone());
    unanswered.await.unwrap();
    change(&a, "2").await;
    assert_eq!(*target.executed.lock(), ["lock of a", "reconstruct 1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_restarts_during_its_recovery_gets_all_replays_again() {
    let rpc = node(5);
    rpc.add_target(Arc::new(first()));
    let (a, owner) = connect(&rpc, "a").await;
    for name in ["1", "2"] {
        change(&a, name).await;
    }
    rpc.remove_target(MDT).await;
    let waiting = change_later(&a, "3");
    let second = Arc::new(restarted(&["a"], 0));
    // The refusal of the waiting request is not lost.
    sleep(Duration::from_millis(100)).await;
    rpc.faults().lose_replies(MDS_REINT, 1);
    rpc.add_target(second.clone());
    while second.executed.lock().is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
    rpc.remove_target(MDT).await;
    let third = Arc::new(TextTarget {
        instance: 3,
        ..restarted(&["a"], 1)
    });
    rpc.add_target(third.clone());
    waiting.await.unwrap();
    assert_eq!(*third.executed.lock(), ["2 2", "lock of a", "3"]);
    assert!(!owner.events.events.lock().contains(&"evicted"));
}

#[tokio::test(start_paused = true)]
async fn a_replay_outside_of_a_recovery_is_refused() {
    let rpc = node(6);
    rpc.add_target(Arc::new(first()));
    let (a, _) = connect(&rpc, "a").await;
    let replay = Request {
        flags: wire::MSG_REPLAY,
        ..Request::modifying(MDS_REINT, text("1"))
    };
    let result = a.call(replay).await;
    assert!(
        matches!(result, Err(rpc::RpcError::Status(Errno::EPROTO))),
        "{result:?}"
    );
}
