//! Imports: a client's side of a connection to a target.
//!
//! The `machine` decides; `drive` carries out what it decides, one task per import; `call` sends one request and stays
//! with it over reconnections until it has its reply.

mod call;
mod connect;
mod drive;
mod machine;
mod moved;
mod owner;
mod replay;
mod silence;
mod slots;

pub use machine::ImportState;
pub use owner::{ImportConfig, ImportEvent, ImportKind, ImportOwner};
pub use replay::Keep;
pub use silence::Unanswered;

pub(crate) use connect::{OWN_FLAGS, OWN_FLAGS2, connect_data};

use crate::at::{Estimate, timeout_secs};
use crate::xids::Unreplied;
use crate::{Ptlrpc, ReplyMsg, Request, RpcError};
use bytes::Bytes;
use foldhash::HashMap;
use machine::{Action, Event, Machine};
use parking_lot::Mutex;
use replay::ReplayList;
use silence::Silence;
use slots::Slots;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use wire::{Nid, OBD_CONNECT_FLAGS2, OBD_CONNECT_MULTIMODRPCS, ObdConnectData};

/// What calls in flight watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    state: ImportState,
    conn_cnt: u32,
    evictions: u64,
    failed_rounds: u32,
}

/// What is behind the import's lock.
struct Core {
    machine: Machine,
    /// Where the target may be.
    nids: Vec<Nid>,
    pending: Vec<Action>,
    unreplied: Unreplied,
    replay: ReplayList,
    estimates: HashMap<u32, Estimate>,
    data: ObdConnectData,
    /// Why the last attempt to connect failed.
    why_not: Option<RpcError>,
    /// The owner knows that requests flow.
    announced: bool,
    /// When the driver wakes by itself.
    wake_at: Option<Instant>,
}

impl Core {
    /// Tells the machine; whether the driver has something to do.
    fn on(&mut self, event: Event) -> bool {
        let uncommitted = self.replay.uncommitted() > 0;
        let actions = self.machine.on(event, Instant::now(), uncommitted);
        self.pending.extend(actions);
        let wake_at = self.machine.wake_at(uncommitted);
        // The driver that wakes too early goes back to sleep; only too late would be wrong.
        let sooner = wake_at.is_some_and(|at| self.wake_at.is_none_or(|set| at < set));
        !self.pending.is_empty() || sooner
    }

    /// The NID that is in use.
    fn peer(&self) -> Nid {
        self.nids.get(self.machine.nid()).copied().unwrap_or(Nid::LO)
    }

    /// What calls may know: not that requests flow before the owner does.
    fn phase(&self) -> Phase {
        let state = match self.machine.state() {
            ImportState::Full if !self.announced => ImportState::Connecting,
            state => state,
        };
        // A connection that is made but not announced is no failure, though the machine stays wary of it.
        let connected = self.machine.state() == ImportState::Full;
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

/// A client's connection to one target.
pub struct Import {
    rpc: Arc<Ptlrpc>,
    cfg: ImportConfig,
    /// Our handle, which the server puts into its callbacks.
    cookie: u64,
    core: Mutex<Core>,
    phase: watch::Sender<Phase>,
    slots: Slots,
    silence: Silence,
    wake: Arc<Notify>,
    /// Whether the driver has been started.
    driven: AtomicBool,
    me: Weak<Import>,
}

impl Import {
    /// An import, not yet connected.
    pub fn new(rpc: &Arc<Ptlrpc>, cfg: ImportConfig) -> Arc<Import> {
        let cookie = rpc.new_handle();
        let times = rpc.config();
        let jitter = (cookie >> 32) as u8;
        let machine = Machine::new(cfg.nids.len(), times.ping_interval, times.ping_soon(), jitter);
        let core = Core {
            machine,
            nids: cfg.nids.clone(),
            pending: Vec::new(),
            unreplied: Unreplied::default(),
            replay: ReplayList::default(),
            estimates: HashMap::default(),
            data: ObdConnectData::default(),
            why_not: None,
            announced: false,
            wake_at: None,
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
            cfg,
            cookie,
            core: Mutex::new(core),
            phase: watch::Sender::new(phase),
            wake: Arc::default(),
            driven: AtomicBool::new(false),
        });
        rpc.add_import(cookie, &import);
        import
    }

    /// Begins to connect, and returns: calls wait from now on.
    pub fn begin(&self) {
        self.start();
        self.event(Event::Open);
    }

    /// Connects, and stays connected: pings, reconnections and resending go on by themselves afterwards. Returns when
    /// connected, when the server refuses for good, or with the last error when all NIDs have failed once; then the
    /// import goes on trying until it is disconnected.
    pub async fn connect(&self) -> Result<ObdConnectData, RpcError> {
        self.begin();
        let mut phase = self.phase.subscribe();
        let settled = phase
            .wait_for(|p| matches!(p.state, ImportState::Full | ImportState::Closed) || p.failed_rounds > 0)
            .await
            .map(|p| p.state);
        match settled {
            Ok(ImportState::Full) => Ok(self.connect_data()),
            _ => Err(self.why_not()),
        }
    }

    /// Says goodbye to the server, if it is there, and closes: calls that are still in flight fail.
    pub async fn disconnect(&self) {
        if self.state() == ImportState::Full {
            self.say_goodbye().await;
        }
        self.start();
        self.event(Event::Close);
        let mut phase = self.phase.subscribe();
        // An error means that there is no import to wait for.
        let _ = phase.wait_for(|p| p.state == ImportState::Closed).await;
    }

    /// Sends a request and waits for its reply, for as long as it takes: over lost replies, lost connections and
    /// servers that come back. Fails with the server's negative status unless the request takes any.
    pub async fn call(&self, req: Request) -> Result<ReplyMsg, RpcError> {
        let limit = req.timeout;
        let waiting = self.silence.begin();
        // Some kilobytes, which otherwise were part of every future around this one, also of those that in the end send nothing.
        let call = Box::pin(call::call(self, req));
        let result = match limit {
            None => call.await,
            Some(limit) => match tokio::time::timeout(limit, call).await {
                Ok(result) => result,
                Err(_) => Err(RpcError::Timeout(self.cfg.name.clone())),
            },
        };
        if matches!(result, Ok(_) | Err(RpcError::Status(_) | RpcError::Evicted(_))) {
            waiting.answered();
        }
        result
    }

    /// How long nothing has been heard of the target since a request was made, also of one whose caller has given up.
    pub fn silence(&self) -> Option<Duration> {
        self.silence.lasts()
    }

    /// The requests that wait for the target now.
    pub fn unanswered(&self) -> Option<Unanswered> {
        self.silence.unanswered()
    }

    /// Asks the server whether it still knows us, unless it was heard of in the last `quiet`: for who waits for what comes by
    /// itself and not as a reply. Who was evicted is told so.
    pub fn doubt(&self, quiet: Duration) {
        self.event(Event::Doubted { quiet });
    }

    /// What the server granted.
    pub fn connect_data(&self) -> ObdConnectData {
        self.core.lock().data
    }

    /// Whether `flag` of `ocd_connect_flags` is granted.
    pub fn has(&self, flag: u64) -> bool {
        self.core.lock().data.ocd_connect_flags & flag == flag
    }

    /// Whether `flag` of `ocd_connect_flags2` is granted.
    pub fn has2(&self, flag: u64) -> bool {
        let data = self.connect_data();
        data.ocd_connect_flags & OBD_CONNECT_FLAGS2 != 0 && data.ocd_connect_flags2 & flag == flag
    }

    /// What it is doing.
    pub fn state(&self) -> ImportState {
        self.phase.borrow().state
    }

    /// The name it was made with.
    pub fn name(&self) -> &str {
        &self.cfg.name
    }

    /// The target it is of.
    pub fn target_uuid(&self) -> &str {
        &self.cfg.target_uuid
    }

    /// The NID that is in use.
    pub fn peer(&self) -> Nid {
        self.core.lock().peer()
    }

    /// Sets where the target is from now on. A connection, or an attempt to connect, goes on if its NID is one of these;
    /// else the import connects at once to the first one.
    pub fn set_nids(&self, nids: &[Nid]) {
        let mut core = self.core.lock();
        if nids.is_empty() || core.nids == nids {
            return;
        }
        tracing::info!(import = self.cfg.name, ?nids, "the target has other NIDs now");
        let current = core.peer();
        core.nids = nids.to_vec();
        let kept = nids.iter().position(|nid| *nid == current);
        let actions = core.machine.moved(nids.len(), kept, Instant::now());
        core.pending.extend(actions);
        drop(core);
        self.wake.notify_one();
    }

    /// The server's handle of this connection: another one after each time that the server has forgotten the client.
    pub fn server_handle(&self) -> u64 {
        self.core.lock().machine.handle()
    }

    /// How many replied transactions are not known to be durable.
    pub fn uncommitted(&self) -> usize {
        self.core.lock().replay.uncommitted()
    }

    /// The messages of requests that were answered by an earlier start of the server, which has lost what they did: its
    /// machine did not stop in order. Told once, after an eviction.
    pub fn take_lost(&self) -> Vec<Bytes> {
        self.core.lock().replay.take_lost()
    }

    /// The highest transaction number that the server has said to be durable.
    pub fn last_committed(&self) -> u64 {
        self.core.lock().replay.last_committed()
    }

    /// How often the server has forgotten this client, as far as the owner has been told: what the owner has cached and
    /// locked now is of the time after that ([`Request::evictions`]).
    pub fn evictions(&self) -> u64 {
        self.core.lock().machine.evictions_told()
    }

    /// How many requests have no reply yet.
    pub fn in_flight(&self) -> usize {
        self.core.lock().unreplied.len()
    }

    /// After how long without a request it disconnects, if nothing is held of the server ([`ImportOwner::in_use`]).
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.core.lock().machine.idle_timeout()
    }

    /// Sets that; `None`: never.
    pub fn set_idle_timeout(&self, after: Option<Duration>) {
        self.core.lock().machine.set_idle_timeout(after, Instant::now());
        self.wake.notify_one();
    }

    /// Sets `max_rpcs_in_flight`.
    pub fn set_max_rpcs_in_flight(&self, max: u32) {
        self.slots.set_in_flight(max as usize);
    }

    pub(crate) fn owner(&self) -> &Arc<dyn ImportOwner> {
        &self.cfg.owner
    }

    fn why_not(&self) -> RpcError {
        let why = self.core.lock().why_not.clone();
        why.unwrap_or_else(|| RpcError::Closed(self.cfg.name.clone()))
    }

    /// Tells the machine; what follows is for the driver.
    fn event(&self, event: Event) {
        let mut core = self.core.lock();
        if core.on(event) {
            drop(core);
            self.wake.notify_one();
        }
    }

    /// `pb_timeout` for a request to `portal`.
    fn timeout_secs(&self, portal: u32) -> u32 {
        let now = Instant::now();
        let mut core = self.core.lock();
        timeout_secs(self.estimate(&mut core, portal, now).secs(now))
    }

    fn estimate<'a>(&self, core: &'a mut Core, portal: u32, now: Instant) -> &'a mut Estimate {
        let cfg = self.rpc.config();
        let new = || Estimate::new(now, cfg.at_min, cfg.at_max, cfg.at_history);
        core.estimates.entry(portal).or_insert_with(new)
    }

    /// The server granted `data`.
    fn granted(&self, data: ObdConnectData) {
        self.core.lock().data = data;
        self.silence.heard();
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
