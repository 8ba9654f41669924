//! Imports: the client's side of a connection to a target.
//!
//! `machine` decides, `drive` carries out its decisions in one task per import, and `call` sends
//! one request and resends it after reconnections until it has a reply.

mod call;
mod connect;
mod drive;
mod machine;
mod nid_change;
mod owner;
mod params;
mod recover;
mod show;
mod silence;
mod slots;
mod uncommitted;

pub use machine::ImportState;
pub use owner::{ImportConfig, ImportEvent, ImportKind, ImportOwner};
pub use silence::PendingRequests;
pub use uncommitted::UncommittedGuard;

pub(crate) use connect::{OWN_FLAGS, OWN_FLAGS2, parse_connect_data};

use crate::at::{Estimate, timeout_secs};
use crate::granted::Granted;
use crate::xids::{UnrepliedXids, Xids};
use crate::{Ptlrpc, ReplyMsg, Request, RpcError};
use cpt::HashMap;
use machine::{Action, Event, Machine};
use params::{ImportStats, StateHistory};
use parking_lot::Mutex;
use recover::ReplayedTo;
use show::NidStats;
use silence::Silence;
use slots::Slots;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};
use uncommitted::{UncommittedList, UncommittedRequest};
use wire::{Errno, LockTerms, Nid, OBD_CONNECT_MULTIMODRPCS, ObdConnectData, Precision, Transno, Xid};

/// The state that calls in flight watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    state: ImportState,
    conn_cnt: u32,
    /// Number of evictions so far.
    evictions: u64,
    /// Rounds over all NIDs that failed since the last connection or change of NIDs.
    failed_rounds: u32,
}

/// The state under the import's mutex.
struct Core {
    machine: Machine,
    /// The target's NIDs.
    nids: Vec<Nid>,
    /// Actions that the driver has not carried out yet.
    pending: Vec<Action>,
    unreplied: UnrepliedXids,
    uncommitted: UncommittedList,
    /// The replays that a recovering server has answered.
    replayed_to: ReplayedTo,
    /// Whether the server has restarted and this client has not recovered yet: an eviction now
    /// loses the uncommitted requests.
    is_unrecovered: bool,
    /// Service time estimates by portal.
    estimates: HashMap<u32, Estimate>,
    /// Why the last attempt to connect failed.
    last_error: Option<RpcError>,
    /// Whether the connection was announced to the owner.
    announced: bool,
    /// When the driver wakes up without an event.
    wake_at: Option<Instant>,
    history: StateHistory,
    /// A copy of `unreplied.len()` that others read without the mutex.
    in_flight: Arc<AtomicUsize>,
    nid_stats: Vec<NidStats>,
}

impl Core {
    /// Assigns an xid to a new request, which is in flight from now on.
    fn begin_request(&mut self, xids: &Xids) -> Xid {
        let xid = self.unreplied.begin(xids);
        self.in_flight.store(self.unreplied.len(), Ordering::Relaxed);
        xid
    }

    /// Ends a request that has its reply, or that its caller gave up.
    fn end_request(&mut self, xid: Xid) {
        self.unreplied.end(xid);
        self.in_flight.store(self.unreplied.len(), Ordering::Relaxed);
    }

    /// Passes an event to the machine. Returns whether the driver must wake up.
    fn process(&mut self, event: Event) -> bool {
        let uncommitted = self.uncommitted.count() > 0;
        let before = self.machine.state();
        let actions = self.machine.process(event, cpt::now(), uncommitted);
        let after = self.machine.state();
        if after != before {
            self.history.add(after);
        }
        self.pending.extend(actions);
        let wake_at = self.machine.wake_at(uncommitted);
        // A driver that wakes up too early just sleeps again.
        let sooner = wake_at.is_some_and(|at| self.wake_at.is_none_or(|set| at < set));
        !self.pending.is_empty() || sooner
    }

    /// The NID that is in use; `lo` if the target has no NIDs.
    fn peer(&self) -> Nid {
        self.nids
            .get(self.machine.nid_index())
            .copied()
            .unwrap_or(Nid::LO)
    }

    /// The state that calls see. They see `Full` only after the driver has announced it to the
    /// owner.
    fn phase(&self) -> Phase {
        let state = match self.machine.state() {
            ImportState::Full if !self.announced => ImportState::Connecting,
            state => state,
        };
        let connected = state_is_connected(self.machine.state());
        Phase {
            state,
            conn_cnt: self.machine.conn_cnt(),
            evictions: self.machine.evictions(),
            failed_rounds: if connected {
                0
            } else {
                self.machine.failed_rounds()
            },
        }
    }
}

/// Whether the import has a connection, on which it works or recovers.
fn state_is_connected(state: ImportState) -> bool {
    state == ImportState::Full || state.is_replaying()
}

/// A client's connection to one target.
pub struct Import {
    rpc: Arc<Ptlrpc>,
    cfg: ImportConfig,
    /// This import's handle, which the server puts into callbacks.
    cookie: u64,
    core: Mutex<Core>,
    /// The granted connect data.
    granted: Granted,
    /// Number of requests without a reply.
    in_flight: Arc<AtomicUsize>,
    phase: watch::Sender<Phase>,
    slots: Slots,
    silence: Silence,
    stats: Arc<ImportStats>,
    /// Wakes the driver.
    wake: Arc<Notify>,
    /// Whether the driver has been started.
    driver_started: AtomicBool,
    me: Weak<Import>,
}

impl Import {
    /// Creates an import that is not connected.
    pub fn new(rpc: &Arc<Ptlrpc>, cfg: ImportConfig) -> Arc<Import> {
        let cookie = rpc.new_handle();
        let times = rpc.config();
        let jitter = (cookie >> 32) as u8;
        let machine = Machine::new(
            cfg.nids.len(),
            times.ping_interval,
            times.uncommitted_ping_interval(),
            jitter,
        );
        let core = Core {
            machine,
            nids: cfg.nids.clone(),
            pending: Vec::new(),
            unreplied: UnrepliedXids::default(),
            uncommitted: UncommittedList::default(),
            replayed_to: ReplayedTo::default(),
            is_unrecovered: false,
            estimates: HashMap::default(),
            last_error: None,
            announced: false,
            wake_at: None,
            history: StateHistory::default(),
            in_flight: Arc::default(),
            nid_stats: Vec::new(),
        };
        let phase = Phase {
            state: ImportState::New,
            conn_cnt: 0,
            evictions: 0,
            failed_rounds: 0,
        };
        let import = Arc::new_cyclic(|me| Import {
            me: me.clone(),
            rpc: rpc.clone(),
            slots: Slots::new(cfg.max_rpcs_in_flight as usize),
            silence: Silence::new(),
            stats: Arc::new(ImportStats::new()),
            cfg,
            cookie,
            granted: Granted::default(),
            in_flight: core.in_flight.clone(),
            core: Mutex::new(core),
            phase: watch::Sender::new(phase),
            wake: Arc::default(),
            driver_started: AtomicBool::new(false),
        });
        rpc.add_import(cookie, &import);
        import
    }

    /// Starts to connect and returns at once; calls wait for the connection.
    pub fn start_connecting(&self) {
        self.start_driver();
        self.event(Event::Open);
    }

    /// Connects and stays connected: from then on the import pings, reconnects and resends. Returns
    /// when it is connected, when the server refuses it, or when all NIDs have failed once. In the
    /// last case the import keeps trying until [`Import::disconnect`]. Waits while a restarted
    /// server lets its former clients recover.
    ///
    /// # Errors
    ///
    /// The error of the last attempt.
    pub async fn connect(&self) -> Result<ObdConnectData, RpcError> {
        self.start_connecting();
        let mut phase = self.phase.subscribe();
        let mut failed_rounds = 0;
        loop {
            let is_settled = |p: &Phase| {
                matches!(p.state, ImportState::Full | ImportState::Closed) || p.failed_rounds > failed_rounds
            };
            let settled = phase.wait_for(is_settled).await.map(|p| *p);
            match (settled, self.last_error()) {
                (Ok(p), _) if p.state == ImportState::Full => return Ok(self.connect_data()),
                // The server recovers, and admits new clients afterwards.
                (Ok(p), RpcError::Status(Errno::EBUSY)) if p.state != ImportState::Closed => {
                    failed_rounds = p.failed_rounds;
                }
                (_, error) => return Err(error),
            }
        }
    }

    /// Sends a disconnect if the import is connected, and closes it: calls in flight fail.
    pub async fn disconnect(&self) {
        if self.state() == ImportState::Full {
            self.send_disconnect().await;
        }
        self.start_driver();
        self.event(Event::Close);
        let mut phase = self.phase.subscribe();
        // Fails only when the sender is dropped, and `self` holds it.
        let _ = phase.wait_for(|p| p.state == ImportState::Closed).await;
    }

    /// Sends a request and waits for its reply. Resends the request after lost replies and lost
    /// connections, until the server evicts the client or the import is closed.
    ///
    /// # Errors
    ///
    /// [`RpcError::Status`] with the server's negative status, unless the request has
    /// `return_error_replies`; [`RpcError::Evicted`], [`RpcError::Closed`], [`RpcError::Timeout`];
    /// [`RpcError::Protocol`] if the bulk was missing three times; the error of the last attempt to
    /// connect if the server refuses the client. Other errors only with `no_delay` or `no_resend`.
    pub async fn call(&self, req: Request) -> Result<ReplyMsg, RpcError> {
        let (limit, opc, started_at) = (req.timeout, req.opc, tokio::time::Instant::now());
        let waiting = self.silence.begin();
        // Boxed: the future takes kilobytes, which every caller's future would include.
        let call = Box::pin(call::call(self, req));
        let result = match limit {
            None => call.await,
            Some(limit) => match tokio::time::timeout(limit, call).await {
                Ok(result) => result,
                Err(_) => Err(RpcError::Timeout(self.cfg.name.clone())),
            },
        };
        if matches!(result, Ok(_) | Err(RpcError::Status(_) | RpcError::Evicted(_))) {
            waiting.mark_answered();
            self.stats.record(opc, self.in_flight() + 1, started_at.elapsed());
        }
        result
    }

    /// Time for which the target has been silent while calls waited, including calls that timed
    /// out. `None` if no call waits and none has timed out since the target's last message.
    pub fn silence(&self) -> Option<Duration> {
        self.silence.duration()
    }

    /// The calls that wait for a reply; `None` if there are none.
    pub fn pending_requests(&self) -> Option<PendingRequests> {
        self.silence.pending_requests()
    }

    /// Pings the server unless a reply has arrived or a ping has ended within `quiet`. For callers
    /// that wait for a message other than a reply, such as a completion AST: an evicted client
    /// learns of its eviction by the ping.
    pub fn probe_if_silent(&self, quiet: Duration) {
        self.event(Event::ProbeIfSilent { quiet });
    }

    /// The connect data that the server granted.
    pub fn connect_data(&self) -> ObdConnectData {
        self.granted.data()
    }

    /// The precision of times that the server agreed to.
    pub fn precision(&self) -> Precision {
        self.granted.precision()
    }

    /// The terms of this client's locks that the server agreed to.
    pub fn lock_terms(&self) -> LockTerms {
        self.granted.lock_terms()
    }

    /// Whether `flag` of `ocd_connect_flags` is granted.
    pub fn has(&self, flag: u64) -> bool {
        self.granted.flags() & flag == flag
    }

    /// Whether `flag` of `ocd_connect_flags2` is granted.
    pub fn has2(&self, flag: u64) -> bool {
        self.granted.flags2() & flag == flag
    }

    /// The state, as calls see it.
    pub fn state(&self) -> ImportState {
        self.phase.borrow().state
    }

    /// [`ImportConfig::name`].
    pub fn name(&self) -> &str {
        &self.cfg.name
    }

    /// The UUID of the target.
    pub fn target_uuid(&self) -> &str {
        &self.cfg.target_uuid
    }

    /// The NID that is in use.
    pub fn peer(&self) -> Nid {
        self.core.lock().peer()
    }

    /// Replaces the target's NIDs, unless `nids` is empty. A connection or an attempt to connect
    /// continues if its NID is among them; otherwise the import connects to the first one at once.
    pub fn set_nids(&self, nids: &[Nid]) {
        let mut core = self.core.lock();
        if nids.is_empty() || core.nids == nids {
            return;
        }
        tracing::info!(import = self.cfg.name, ?nids, "target NIDs changed");
        let current = core.peer();
        core.nids = nids.to_vec();
        let kept = nids.iter().position(|nid| *nid == current);
        let actions = core.machine.change_nids(nids.len(), kept, cpt::now());
        core.pending.extend(actions);
        drop(core);
        self.wake.notify_one();
    }

    /// Handles the message that the target has started as `instance` (`ocd_instance`) at one of
    /// `nids`: connects there at once, unless the last connection was to that instance or a later
    /// one, because the message may be old. Without an earlier connection, the NID is only the
    /// first one to try.
    pub fn target_started(&self, nids: &[Nid], instance: u32) {
        let known = self.connect_data().ocd_instance;
        let mut core = self.core.lock();
        let index = core.nids.iter().position(|nid| nids.contains(nid));
        let Some(index) = index.filter(|_| known < instance) else {
            return;
        };
        let actions = core.machine.move_to(index, cpt::now());
        if !actions.is_empty() {
            tracing::info!(import = self.cfg.name, peer = %core.nids[index], "the target has started again: reconnecting");
        }
        core.pending.extend(actions);
        drop(core);
        self.wake.notify_one();
    }

    /// The server's handle of this client's export. It changes with every eviction, and when the
    /// import reconnects after it was idle.
    pub fn server_handle(&self) -> u64 {
        self.core.lock().machine.handle()
    }

    /// Number of replied transactions that are not known to be committed.
    pub fn uncommitted(&self) -> usize {
        self.core.lock().uncommitted.count()
    }

    /// The requests that the server lost in a crash: it replied to them before it restarted, and
    /// did not commit them. Each is returned once, after the eviction.
    pub fn take_lost(&self) -> Vec<Arc<Request>> {
        self.core.lock().uncommitted.take_lost()
    }

    /// `pb_last_committed`: the highest transno known to be committed.
    pub fn last_committed(&self) -> Transno {
        self.core.lock().uncommitted.last_committed()
    }

    /// Number of evictions announced to the owner. The owner obtained its current locks and caches
    /// after the last of these evictions ([`Request::evictions`]).
    pub fn evictions(&self) -> u64 {
        self.core.lock().machine.evictions_announced()
    }

    /// Time since the last eviction; `None` before the first.
    pub fn since_eviction(&self) -> Option<Duration> {
        self.core.lock().history.since_eviction()
    }

    /// Number of requests without a reply.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// The import disconnects after this time without a request, unless [`ImportOwner::in_use`];
    /// `None`: never.
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.core.lock().machine.idle_timeout()
    }

    /// Sets the idle timeout; `None`: never.
    pub fn set_idle_timeout(&self, after: Option<Duration>) {
        self.core.lock().machine.set_idle_timeout(after, cpt::now());
        self.wake.notify_one();
    }

    /// Sets `max_rpcs_in_flight`.
    pub fn set_max_rpcs_in_flight(&self, max: u32) {
        self.slots.set_in_flight(max as usize);
    }

    pub(crate) fn owner(&self) -> &Arc<dyn ImportOwner> {
        &self.cfg.owner
    }

    /// Why the last attempt to connect failed; `None` if none has failed.
    pub fn connect_error(&self) -> Option<RpcError> {
        self.core.lock().last_error.clone()
    }

    fn last_error(&self) -> RpcError {
        self.connect_error()
            .unwrap_or_else(|| RpcError::Closed(self.cfg.name.clone()))
    }

    /// Passes an event to the machine and wakes the driver if needed.
    fn event(&self, event: Event) {
        let mut core = self.core.lock();
        if core.process(event) {
            drop(core);
            self.wake.notify_one();
        }
    }

    /// `pb_timeout` for a request to `portal`.
    fn timeout_secs(&self, core: &mut Core, portal: u32) -> u32 {
        let now = cpt::now();
        timeout_secs(self.estimate(core, portal, now).secs(now))
    }

    fn estimate<'a>(&self, core: &'a mut Core, portal: u32, now: Instant) -> &'a mut Estimate {
        let cfg = self.rpc.config();
        let new = || Estimate::new(now, cfg.at_min, cfg.at_max, cfg.at_history);
        core.estimates.entry(portal).or_insert_with(new)
    }

    /// Records the connect data that the server granted, and sets the limit of modifying requests
    /// in flight that follows from it.
    fn set_granted(&self, data: ObdConnectData) {
        self.granted.set(data);
        self.silence.note_heard();
        let modifying = match data.ocd_connect_flags & OBD_CONNECT_MULTIMODRPCS {
            0 => 1,
            _ => usize::from(data.ocd_maxmodrpcs),
        };
        self.slots.set_modifying(modifying);
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        self.rpc.forget_import(self.cookie);
        self.wake.notify_one();
    }
}
