//! The state machine of a target's recovery (docs/protocol.md, "Recovery"). Pure: events and the
//! time are arguments, actions are results.
//!
//! ```text
//! client:  Missing -> Requests -> Locks -> Done
//! target:  Requests -> Locks -> Finishing -> Complete
//! ```
//!
//! A client replays its requests one at a time, then its locks, and then sends its final ping. The
//! target executes replayed requests of all clients in the order of their transnos: it executes the
//! lowest one when each client has a request in the queue or no more requests. It grants replayed
//! locks when no client has more requests, and ends the recovery when all clients have sent their
//! final pings.
//!
//! The target waits for a client only for a limited time, its patience: with a missing client, for
//! twice the time that the slowest client took to reconnect, at least 10 s; with a client of
//! Lustre, `recovery_time_soft`, because such a client notices a restart late; with a connected
//! client that sends nothing, 30 s. It then evicts the client. After `recovery_time_hard` it waits
//! for no client longer than 10 s, and after ten times that it evicts all unfinished clients.

use crate::server::{Access, Holdings, KnownClient, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use wire::{Nid, Transno};

/// Minimum time for which the target waits for a client to reconnect.
const RECONNECT_MIN: Duration = Duration::from_secs(10);
/// Time for which the target waits for the next request of a connected client.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Number of hard limits after which the target evicts all clients that have not recovered.
const HARD_LIMITS_MAX: u32 = 10;

/// The limits of a recovery's duration, as in Lustre.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// `recovery_time_soft`: how long the target waits for clients that notice the
    /// restart late.
    pub(crate) soft: Duration,
    /// `recovery_time_hard`: how long the whole recovery may take.
    pub(crate) hard: Duration,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            soft: Duration::from_secs(60),
            hard: Duration::from_secs(180),
        }
    }
}

/// The next messages of clients that the target expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Replayed requests.
    Requests,
    /// Replayed locks.
    Locks,
    /// All clients are done; the target makes itself ready for new requests.
    Finishing,
    /// New requests.
    Complete,
}

/// The next action of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Reconnects.
    Missing,
    /// Replays a request, or begins to replay locks.
    Requests,
    /// Replays a lock, or sends the final ping.
    Locks,
    /// Waits for the end of the recovery.
    Done,
}

#[derive(Debug)]
struct Client {
    /// Its node before the restart.
    nid: Nid,
    /// The parts of the target in which it may hold something.
    holdings: Holdings,
    notices_late: bool,
    progress: Progress,
    /// The replayed request that waits or runs.
    request: Option<Transno>,
    /// Since when the target waits for the client.
    awaited_since: Instant,
}

/// An output of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Execute this client's replayed request with this transno.
    Run(Transno, String),
    /// The stage has changed.
    Enter(Stage),
    /// Evict a client; the text is the reason.
    Evict(String, String),
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Machine {
    window: Window,
    started_at: Instant,
    ended_at: Option<Instant>,
    stage: Stage,
    clients: BTreeMap<String, Client>,
    queue: BTreeSet<(Transno, String)>,
    /// The client of the request in execution.
    running: Option<String>,
    /// The longest time that a client took to reconnect.
    slowest_reconnect: Duration,
    known: usize,
    evicted: usize,
    replayed: usize,
    last_transno: Transno,
}

impl Machine {
    /// The recovery of a target that starts now.
    pub(crate) fn new(
        clients: impl IntoIterator<Item = KnownClient>,
        last_committed: Transno,
        window: Window,
        now: Instant,
    ) -> Machine {
        let client = |known: KnownClient| {
            let client = Client {
                nid: known.nid,
                holdings: known.holdings,
                notices_late: known.notices_late,
                progress: Progress::Missing,
                request: None,
                awaited_since: now,
            };
            (known.uuid, client)
        };
        let clients: BTreeMap<_, _> = clients.into_iter().map(client).collect();
        Machine {
            window,
            started_at: now,
            ended_at: None,
            stage: Stage::Requests,
            known: clients.len(),
            clients,
            queue: BTreeSet::new(),
            running: None,
            slowest_reconnect: Duration::ZERO,
            evicted: 0,
            replayed: 0,
            last_transno: last_committed,
        }
    }

    /// Changes the limits of the recovery's duration.
    pub(crate) fn set_window(&mut self, window: Window) {
        self.window = window;
    }

    pub(crate) fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether the client may recover: it was connected before the restart, and is not evicted.
    pub(crate) fn knows(&self, uuid: &str) -> bool {
        self.clients.contains_key(uuid)
    }

    /// Whether a new client can have this access to a part of the target: no client that has not
    /// recovered yet may hold something that excludes it. A client that has recovered holds what
    /// the target's lock table says.
    pub(crate) fn is_free(&self, part: &Part, access: Access) -> bool {
        let mut unfinished = self.clients.values().filter(|c| c.progress < Progress::Done);
        !unfinished.any(|client| client.holdings.excludes(part, access))
    }

    /// Number of clients for which new clients may have to wait.
    pub(crate) fn unfinished(&self) -> usize {
        let is_unfinished = |client: &&Client| client.progress < Progress::Done;
        self.clients.values().filter(is_unfinished).count()
    }

    /// The client has reconnected.
    pub(crate) fn connected(&mut self, uuid: &str, now: Instant) {
        let since_start = now.saturating_duration_since(self.started_at);
        if let Some(client) = self.clients.get_mut(uuid) {
            client.awaited_since = now;
            if client.progress == Progress::Missing {
                client.progress = Progress::Requests;
                self.slowest_reconnect = self.slowest_reconnect.max(since_start);
            }
        }
    }

    /// The client replays a request.
    pub(crate) fn request_arrived(&mut self, uuid: &str, transno: Transno, now: Instant) -> Vec<Action> {
        if let Some(client) = self.clients.get_mut(uuid)
            && client.progress == Progress::Requests
            && client.request.is_none()
        {
            client.request = Some(transno);
            self.queue.insert((transno, uuid.to_owned()));
        }
        self.advance(now)
    }

    /// A replayed request of the client was executed, or will not be.
    pub(crate) fn request_done(&mut self, uuid: &str, now: Instant) -> Vec<Action> {
        if self.running.as_deref() == Some(uuid) {
            self.running = None;
            self.replayed += 1;
        }
        if let Some(client) = self.clients.get_mut(uuid) {
            client.awaited_since = now;
            if let Some(transno) = client.request.take() {
                self.queue.remove(&(transno, uuid.to_owned()));
                self.last_transno = self.last_transno.max(transno);
            }
        }
        self.advance(now)
    }

    /// The client has no more requests: it replays a lock.
    pub(crate) fn lock_arrived(&mut self, uuid: &str, now: Instant) -> Vec<Action> {
        self.proceed(uuid, Progress::Locks, now)
    }

    /// The client has sent its final ping.
    pub(crate) fn final_ping(&mut self, uuid: &str, now: Instant) -> Vec<Action> {
        self.proceed(uuid, Progress::Done, now)
    }

    /// The client has disconnected or was evicted.
    pub(crate) fn gone(&mut self, uuid: &str, now: Instant) -> Vec<Action> {
        self.remove(uuid);
        self.advance(now)
    }

    /// The target is ready for new requests.
    pub(crate) fn finished(&mut self, now: Instant) -> Vec<Action> {
        self.ended_at = Some(now);
        self.enter(Stage::Complete, now)
    }

    /// Evicts the clients for which the target does not wait any longer.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Action> {
        let overdue: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, client)| self.deadline_of(client).is_some_and(|at| at <= now))
            .map(|(uuid, client)| {
                let waited = now.saturating_duration_since(client.awaited_since).as_secs();
                let why = match client.progress {
                    Progress::Missing => {
                        format!("it has not reconnected within {waited} s after the restart")
                    }
                    _ => format!("it stopped to replay: silent for {waited} s"),
                };
                (uuid.clone(), why)
            })
            .collect();
        self.evict_all(overdue, now)
    }

    /// Evicts the clients that have not reconnected (`abort_recovery`).
    pub(crate) fn abort(&mut self, now: Instant) -> Vec<Action> {
        let missing = self
            .clients
            .iter()
            .filter(|(_, c)| c.progress == Progress::Missing);
        let why = "the administrator aborted the recovery";
        let missing = missing.map(|(uuid, _)| (uuid.clone(), why.to_owned())).collect();
        self.evict_all(missing, now)
    }

    /// When the machine needs a tick.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.clients.values().filter_map(|c| self.deadline_of(c)).min()
    }

    /// The end of the target's patience with a client; `None` if the target does not wait for it.
    fn deadline_of(&self, client: &Client) -> Option<Instant> {
        if self.stage >= Stage::Finishing {
            return None;
        }
        let patience = match client.progress {
            Progress::Missing if client.notices_late => self.window.soft,
            Progress::Missing => RECONNECT_MIN.max(2 * self.slowest_reconnect),
            Progress::Requests if client.request.is_none() => SILENCE_MAX,
            Progress::Locks if self.stage == Stage::Locks => SILENCE_MAX,
            _ => return None,
        };
        let hard = (self.started_at + self.window.hard).max(client.awaited_since + RECONNECT_MIN);
        // A client that always replays something must not keep the target from others for ever.
        let last = self.started_at + HARD_LIMITS_MAX * self.window.hard;
        Some((client.awaited_since + patience).min(hard).min(last))
    }

    fn proceed(&mut self, uuid: &str, progress: Progress, now: Instant) -> Vec<Action> {
        if let Some(client) = self.clients.get_mut(uuid) {
            client.awaited_since = now;
            client.progress = client.progress.max(progress);
        }
        self.advance(now)
    }

    fn evict_all(&mut self, clients: Vec<(String, String)>, now: Instant) -> Vec<Action> {
        self.evicted += clients.len();
        clients.iter().for_each(|(uuid, _)| self.remove(uuid));
        let mut actions: Vec<_> = clients
            .into_iter()
            .map(|(uuid, why)| Action::Evict(uuid, why))
            .collect();
        actions.extend(self.advance(now));
        actions
    }

    /// Forgets a client. A request of it that runs goes on until [`Machine::request_done`].
    fn remove(&mut self, uuid: &str) {
        if let Some(client) = self.clients.remove(uuid)
            && let Some(transno) = client.request
        {
            self.queue.remove(&(transno, uuid.to_owned()));
        }
    }

    /// Executes the next request, or enters the next stage, if nothing is missing for it.
    fn advance(&mut self, now: Instant) -> Vec<Action> {
        if self.running.is_some() {
            return Vec::new();
        }
        let waits = |c: &Client| c.progress <= Progress::Requests && c.request.is_none();
        match self.stage {
            Stage::Requests if self.clients.values().any(waits) => Vec::new(),
            Stage::Requests => match self.queue.first().cloned() {
                Some((transno, uuid)) => {
                    self.running = Some(uuid.clone());
                    vec![Action::Run(transno, uuid)]
                }
                None => {
                    let mut actions = self.enter(Stage::Locks, now);
                    actions.extend(self.advance(now));
                    actions
                }
            },
            Stage::Locks if self.clients.values().all(|c| c.progress == Progress::Done) => {
                self.enter(Stage::Finishing, now)
            }
            _ => Vec::new(),
        }
    }

    fn enter(&mut self, stage: Stage, now: Instant) -> Vec<Action> {
        self.stage = stage;
        // The target did not wait for the clients that claimed locks.
        self.clients
            .values_mut()
            .for_each(|client| client.awaited_since = now);
        vec![Action::Enter(stage)]
    }

    /// The clients that have not reconnected: UUID, and NID of before the restart.
    pub(crate) fn missing(&self) -> Vec<String> {
        let is_missing = |(_, client): &(&String, &Client)| client.progress == Progress::Missing;
        let missing = self.clients.iter().filter(is_missing);
        missing
            .map(|(uuid, client)| format!("{uuid}@{}", client.nid))
            .collect()
    }

    /// The text of the parameter `recovery_status`, in Lustre's format. `start`: the start of the
    /// recovery, seconds since 1970.
    pub(crate) fn status(&self, start: u64, now: Instant) -> String {
        let count = |progress: Progress| self.clients.values().filter(|c| c.progress >= progress).count();
        let counts = format!("{}/{}", count(Progress::Requests), self.known);
        let Some(ended_at) = self.ended_at else {
            let left = self
                .wake_at()
                .map_or(0, |at| at.saturating_duration_since(now).as_secs());
            return format!(
                "status: RECOVERING\nrecovery_start: {start}\ntime_remaining: {left}\nconnected_clients: {counts}\n\
                 req_replay_clients: {}\nlock_replay_clients: {}\ncompleted_clients: {}\nevicted_clients: {}\n\
                 replayed_requests: {}\nqueued_requests: {}\nnext_transno: {}\nmissing_clients: [ {} ]",
                self.clients
                    .values()
                    .filter(|c| c.progress == Progress::Requests)
                    .count(),
                self.clients
                    .values()
                    .filter(|c| c.progress == Progress::Locks)
                    .count(),
                count(Progress::Done),
                self.evicted,
                self.replayed,
                self.queue.len(),
                self.last_transno.0 + 1,
                self.missing().join(" ")
            );
        };
        let duration = ended_at.saturating_duration_since(self.started_at).as_secs();
        format!(
            "status: COMPLETE\nrecovery_start: {start}\nrecovery_duration: {duration}\ncompleted_clients: {}/{}\n\
             replayed_requests: {}\nlast_transno: {}\nVBR: DISABLED\nIR: DISABLED",
            self.known - self.evicted,
            self.known,
            self.replayed,
            self.last_transno.0
        )
    }
}

#[cfg(test)]
mod tests;
