//! A target's recovery after a restart: the clients of the earlier start replay their requests and
//! locks before the target serves new requests (docs/protocol.md, "Recovery").
//!
//! [`machine`] decides; this module lets the requests wait for their turn, and carries out the
//! decisions. A request that waits keeps no slot of its service.

mod machine;
mod params;

use super::{Access, Arrival, Export, Holdings, KeptReply, KnownClient, Part, TargetExports};
use cpt::{HashMap, JoinSet};
use lnet::Lnet;
use machine::{Action, Machine, Stage};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, sleep_until};
use wire::{
    Errno, LDLM_ENQUEUE, MSG_LOCK_REPLAY_DONE, MSG_REPLAY, MSG_REQ_REPLAY_DONE, Nid, OBD_PING, Transno,
};

pub(super) use params::SharedWindow;

/// Maximum number of requests of one client that wait; further ones are dropped.
const WAITING_MAX: usize = 4 << 10;
/// Maximum number of nodes that the target greets at the same time.
const GREETINGS_MAX: usize = 64;
/// Maximum number of requests of all new clients that execute or wait; further ones are dropped.
const NEW_CLIENTS_WAITING_MAX: usize = 16 << 10;
/// How often the target tries to greet a node, and the time limit of each try.
const GREETINGS_PER_NODE: u32 = 3;
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after the start of a recovery at which the log names the missing clients.
const REPORT_AFTER: Duration = Duration::from_secs(2);
/// How long the driver sleeps if the machine sets no time to wake up.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The recovery of one target.
pub(crate) struct TargetRecovery {
    exports: Weak<TargetExports>,
    state: Mutex<State>,
    stage: watch::Sender<Stage>,
    /// Changes when a new client may have less to wait for.
    progress: watch::Sender<()>,
    /// Requests of new clients.
    of_new_clients: Arc<AtomicUsize>,
    complete: AtomicBool,
    window: SharedWindow,
    /// Wakes the driver.
    wake: Notify,
    /// Seconds since 1970.
    started_at: u64,
    /// The node of each client.
    nodes: HashMap<String, Nid>,
}

struct State {
    machine: Machine,
    /// Replayed requests that wait for their turn, by client.
    waiting: HashMap<String, oneshot::Sender<()>>,
    /// The clients that have not reconnected.
    missing: HashMap<String, KnownClient>,
}

/// The event that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The request is replayed, and was executed under this number.
    Request(Transno),
    /// The request replays a lock: it waits until all requests are replayed.
    Lock,
    /// The request is new: it waits for the end of the recovery.
    End,
    /// A new client sent the request. It waits only where a client that recovers may hold
    /// something.
    Newcomer,
}

/// The number of a client's waiting requests; part of its export.
#[derive(Default)]
struct Waiting(Arc<AtomicUsize>);

/// Guard of a request that waits, or that executes in its turn.
pub(super) struct TurnGuard {
    recovery: Arc<TargetRecovery>,
    /// The client of a replayed request.
    replays: Option<String>,
    /// The counts of waiting requests that have this one.
    counts: Vec<Arc<AtomicUsize>>,
}

impl TargetRecovery {
    /// The recovery of the clients; `None` if there are none.
    pub(super) fn new(
        exports: Weak<TargetExports>,
        clients: Vec<KnownClient>,
        last_committed: Transno,
        window: SharedWindow,
    ) -> Option<Arc<TargetRecovery>> {
        if clients.is_empty() {
            return None;
        }
        let machine = Machine::new(clients.iter().cloned(), last_committed, window.get(), cpt::now());
        let nodes = clients.iter().map(|c| (c.uuid.clone(), c.nid)).collect();
        let missing = clients.into_iter().map(|c| (c.uuid.clone(), c)).collect();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Some(Arc::new(TargetRecovery {
            exports,
            state: Mutex::new(State {
                machine,
                waiting: HashMap::default(),
                missing,
            }),
            stage: watch::Sender::new(Stage::Requests),
            progress: watch::Sender::new(()),
            of_new_clients: Arc::default(),
            complete: AtomicBool::new(false),
            window,
            wake: Notify::new(),
            started_at: since_1970.map_or(0, |d| d.as_secs()),
            nodes,
        }))
    }

    /// Whether the target serves new requests.
    pub(super) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// Whether the client may recover.
    pub(super) fn knows(&self, uuid: &str) -> bool {
        self.state.lock().machine.knows(uuid)
    }

    /// Whether the client was at this node before the restart.
    pub(super) fn was_at(&self, uuid: &str, nid: Nid) -> bool {
        self.nodes.get(uuid) == Some(&nid)
    }

    /// The client reconnects. Returns its kept replies and its holdings at its first connect.
    pub(super) fn take_known(&self, uuid: &str) -> (Vec<KeptReply>, Holdings) {
        let known = self.state.lock().missing.remove(uuid);
        known.map_or_else(Default::default, |known| (known.replies, known.holdings))
    }

    /// Whether a new client can have this access to a part of the target.
    pub(super) fn is_free(&self, part: &Part, access: Access) -> bool {
        self.state.lock().machine.is_free(part, access)
    }

    /// Waits until a new client can have this access to a part of the target.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client disconnects.
    pub(super) async fn wait_until_free(
        &self,
        part: Part,
        access: Access,
        export: &Export,
    ) -> Result<(), Errno> {
        let mut progress = self.progress.subscribe();
        while !self.is_free(&part, access) {
            tokio::select! {
                biased;
                // Fails only when the sender is dropped, and `self` holds it.
                _ = progress.changed() => {}
                () = export.gone() => return Err(Errno::ENOTCONN),
            }
        }
        Ok(())
    }

    /// Waits for the end of the recovery.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client disconnects.
    pub(super) async fn wait_until_complete(&self, export: &Export) -> Result<(), Errno> {
        self.wait_for_stage(Stage::Complete, export).await
    }

    /// The client has reconnected. Returns false if the target does not wait for it any more.
    pub(super) fn connected(&self, uuid: &str) -> bool {
        let mut state = self.state.lock();
        state.machine.connected(uuid, cpt::now());
        let known = state.machine.knows(uuid);
        drop(state);
        self.wake.notify_one();
        known
    }

    /// The client has disconnected or was evicted, or a new instance has its UUID.
    pub(super) fn client_gone(&self, uuid: &str) {
        self.process(|machine, now| machine.gone(uuid, now));
    }

    /// Evicts the clients that have not reconnected.
    pub(super) fn abort(&self) {
        self.process(Machine::abort);
    }

    /// The text of the parameter `recovery_status`.
    pub(super) fn status(&self) -> String {
        self.state.lock().machine.status(self.started_at, cpt::now())
    }

    /// The event that a client's request waits for; `None` if the target handles it at once: pings
    /// and disconnects, and requests of servers.
    pub(super) fn turn_of(&self, arrival: &Arrival, export: &Export) -> Option<Turn> {
        let body = &arrival.body;
        if export.is_server() || self.is_complete() {
            return None;
        }
        if body.pb_flags & MSG_REPLAY != 0 {
            return Some(Turn::Request(Transno(body.pb_transno)));
        }
        if export.is_newcomer() {
            return Some(Turn::Newcomer);
        }
        let replays_lock = body.pb_opc == LDLM_ENQUEUE && body.pb_flags & MSG_REQ_REPLAY_DONE != 0;
        Some(if replays_lock { Turn::Lock } else { Turn::End })
    }

    /// Whether the request is a client's final ping.
    pub(super) fn is_final_ping(arrival: &Arrival) -> bool {
        arrival.body.pb_opc == OBD_PING && arrival.body.pb_flags & MSG_LOCK_REPLAY_DONE != 0
    }

    /// Counts a request that waits. `None` if too many requests of the client wait.
    pub(super) fn begin_waiting(self: &Arc<Self>, export: &Export) -> Option<TurnGuard> {
        let counts = match export.is_newcomer() {
            true => vec![
                (export.ext::<Waiting>().0.clone(), WAITING_MAX),
                (self.of_new_clients.clone(), NEW_CLIENTS_WAITING_MAX),
            ],
            false => vec![(export.ext::<Waiting>().0.clone(), WAITING_MAX)],
        };
        // All are counted, because dropping the guard reduces all.
        let mut is_below = true;
        for (count, max) in &counts {
            is_below &= count.fetch_add(1, Ordering::Relaxed) < *max;
        }
        let guard = TurnGuard {
            recovery: self.clone(),
            replays: None,
            counts: counts.into_iter().map(|(count, _)| count).collect(),
        };
        is_below.then_some(guard)
    }

    /// Waits for the end of the recovery, after the client's final ping.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client is evicted.
    pub(super) async fn wait_for_end(&self, export: &Export) -> Result<(), Errno> {
        self.process(|machine, now| machine.final_ping(&export.client_uuid, now));
        self.wait_for_stage(Stage::Complete, export).await
    }

    async fn wait_for_stage(&self, stage: Stage, export: &Export) -> Result<(), Errno> {
        let mut current = self.stage.subscribe();
        tokio::select! {
            biased;
            // Fails only when the sender is dropped, and `self` holds it.
            _ = current.wait_for(|s| *s >= stage) => Ok(()),
            () = export.gone() => Err(Errno::ENOTCONN),
        }
    }

    /// Resolves when the recovery has ended.
    async fn completed(&self) {
        let mut stage = self.stage.subscribe();
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = stage.wait_for(|s| *s == Stage::Complete).await;
    }

    /// The target stops: its recovery ends without a result.
    pub(super) fn stop(&self) {
        self.wake.notify_one();
    }

    /// From now on, the target serves new requests. The clients were silent while they waited.
    fn note_complete(&self) {
        if let Some(exports) = self.exports.upgrade() {
            exports.all().iter().for_each(|export| export.note_heard());
        }
        self.complete.store(true, Ordering::Release);
    }

    /// Passes an event to the machine, and carries out its decisions.
    fn process(&self, event: impl FnOnce(&mut Machine, Instant) -> Vec<Action>) {
        let unfinished = || self.state.lock().machine.unfinished();
        let before = unfinished();
        let mut actions = event(&mut self.state.lock().machine, cpt::now());
        while !actions.is_empty() {
            let mut next = Vec::new();
            for action in actions {
                next.extend(self.carry_out(action));
            }
            actions = next;
        }
        if unfinished() < before {
            self.progress.send_replace(());
        }
        self.wake.notify_one();
    }

    fn carry_out(&self, action: Action) -> Vec<Action> {
        match action {
            Action::Run(_, client) => {
                let mut state = self.state.lock();
                let waiter = state.waiting.remove(&client);
                // The request may have ended: its client was evicted.
                match waiter.map(|waiter| waiter.send(())) {
                    Some(Ok(())) => Vec::new(),
                    _ => state.machine.request_done(&client, cpt::now()),
                }
            }
            Action::Enter(stage) => {
                if stage == Stage::Complete {
                    self.note_complete();
                }
                // Another thread may have announced a later stage already.
                self.stage.send_if_modified(|current| {
                    let is_later = stage > *current;
                    *current = stage.max(*current);
                    is_later
                });
                Vec::new()
            }
            Action::Evict(client, why) => {
                if let Some(exports) = self.exports.upgrade() {
                    // First the record: after a crash, the client must not take part in a recovery.
                    exports.target().forget_client(&client);
                    match exports.client(&client) {
                        Some(export) => export.evict_soon(&why),
                        None => {
                            let target_uuid = exports.target().uuid();
                            tracing::warn!(target_uuid, %client, why, "evicting client");
                        }
                    }
                }
                Vec::new()
            }
        }
    }
}

impl TurnGuard {
    /// Waits for the turn of a request.
    ///
    /// # Errors
    ///
    /// `ENOTCONN` if the client is evicted.
    pub(super) async fn wait(&mut self, turn: Turn, export: &Export) -> Result<(), Errno> {
        let recovery = self.recovery.clone();
        let client = &export.client_uuid;
        match turn {
            Turn::Request(transno) => {
                let (sender, receiver) = oneshot::channel();
                recovery.state.lock().waiting.insert(client.clone(), sender);
                self.replays = Some(client.clone());
                recovery.process(|machine, now| machine.request_arrived(client, transno, now));
                tokio::select! {
                    biased;
                    run = receiver => run.map_err(|_| Errno::ENOTCONN),
                    () = export.gone() => Err(Errno::ENOTCONN),
                    () = recovery.completed() => Err(Errno::ENOTCONN),
                }
            }
            Turn::Lock => {
                recovery.process(|machine, now| machine.lock_arrived(client, now));
                recovery.wait_for_stage(Stage::Locks, export).await
            }
            Turn::End => recovery.wait_until_complete(export).await,
            Turn::Newcomer => Ok(()),
        }
    }
}

impl Drop for TurnGuard {
    fn drop(&mut self) {
        for count in &self.counts {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(client) = self.replays.take() {
            self.recovery
                .process(|machine, now| machine.request_done(&client, now));
        }
    }
}

/// Connects to the nodes of all clients. So a node notices the restart, even if its connection was
/// lost without a trace, because this machine lost power. Its clients reconnect at once.
async fn greet(recovery: &TargetRecovery, lnet: &Arc<Lnet>) {
    let mut greetings = JoinSet::new();
    let nodes: BTreeSet<Nid> = recovery.nodes.values().copied().collect();
    for nid in nodes {
        if greetings.len() >= GREETINGS_MAX {
            greetings.join_next().await;
        }
        let lnet = lnet.clone();
        greetings.spawn(async move {
            for _ in 0..GREETINGS_PER_NODE {
                match lnet.ping(nid, GREETING_TIMEOUT).await {
                    Ok(_) => return,
                    Err(error) => tracing::debug!(%nid, %error, "the node of a client does not answer"),
                }
            }
        });
    }
    while greetings.join_next().await.is_some() {}
}

/// The task of a recovery. It ends with the recovery, or when the target stops.
pub(super) async fn run(recovery: Arc<TargetRecovery>, lnet: Arc<Lnet>) {
    let greeting = async {
        greet(&recovery, &lnet).await;
        std::future::pending().await
    };
    let reporting = async {
        sleep(REPORT_AFTER).await;
        report_missing(&recovery);
        std::future::pending().await
    };
    tokio::select! {
        biased;
        () = drive(&recovery) => {}
        () = greeting => {}
        () = reporting => {}
    }
}

/// Names the clients in the log that have not reconnected.
fn report_missing(recovery: &TargetRecovery) {
    let missing = recovery.state.lock().machine.missing();
    if let Some(exports) = recovery.exports.upgrade().filter(|_| !missing.is_empty()) {
        let target_uuid = exports.target().uuid();
        let missing = missing.join(" ");
        tracing::warn!(
            target_uuid,
            missing,
            "recovery waits for clients that have not reconnected"
        );
    }
}

/// Evicts the clients that do not recover, and ends the recovery.
async fn drive(recovery: &TargetRecovery) {
    loop {
        let (stage, wake_at) = {
            let machine = &mut recovery.state.lock().machine;
            machine.set_window(recovery.window.get());
            (machine.stage(), machine.wake_at())
        };
        if stage == Stage::Finishing {
            break;
        }
        let wake_at = wake_at.unwrap_or_else(|| cpt::now() + SLEEP_MAX);
        tokio::select! {
            biased;
            () = recovery.wake.notified() => {}
            () = sleep_until(wake_at.into()) => recovery.process(|machine, now| machine.tick(now)),
        }
        match recovery.exports.upgrade() {
            Some(exports) if !exports.is_stopping() => {}
            _ => return,
        }
    }
    let Some(exports) = recovery
        .exports
        .upgrade()
        .filter(|exports| !exports.is_stopping())
    else {
        return;
    };
    exports.target().recovered().await;
    recovery.process(|machine, now| machine.finished(now));
    tracing::info!(
        target_uuid = exports.target().uuid(),
        "recovery complete: {}",
        one_line(&recovery.status())
    );
}

/// The lines of a status in one line, for the log.
fn one_line(status: &str) -> String {
    status.lines().collect::<Vec<_>>().join(", ")
}
