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
mod tests {
    use super::{Action, Machine, SILENCE_MAX, Stage, Window};
    use crate::server::{Access, Holdings, KnownClient, Part};
    use std::time::{Duration, Instant};
    use wire::{Nid, Transno};

    fn machine(clients: &[&str], now: Instant) -> Machine {
        let holdings_of = |uuid: &str| {
            let mut holdings = Holdings::default();
            // Client `a` changes part 'a'.
            holdings.add_part(&part(uuid), Access::Write);
            holdings
        };
        let clients = clients.iter().map(|uuid| KnownClient {
            uuid: (*uuid).to_owned(),
            nid: Nid(7),
            notices_late: uuid.starts_with("lustre"),
            replies: Vec::new(),
            holdings: holdings_of(uuid),
        });
        Machine::new(clients, Transno(10), Window::default(), now)
    }

    fn part(uuid: &str) -> Part {
        Part {
            group: 1,
            member: uuid.bytes().map(u32::from).sum(),
            is_new: false,
        }
    }

    #[test]
    fn new_clients_wait_only_for_clients_that_have_not_recovered() {
        let now = Instant::now();
        let mut m = machine(&["a", "b"], now);
        let free = |m: &Machine| ["a", "b", "c"].map(|uuid| m.is_free(&part(uuid), Access::Read));
        assert_eq!(free(&m), [false, false, true]);
        m.connected("a", now);
        m.lock_arrived("a", now);
        assert_eq!(free(&m), [false, false, true]);
        m.final_ping("a", now);
        assert_eq!(free(&m), [true, false, true]);
        assert!(m.status(0, now).contains("missing_clients: [ b@"));
        m.tick(now + secs(10));
        assert_eq!(free(&m), [true, true, true]);
    }

    fn run(transno: u64, uuid: &str) -> Vec<Action> {
        vec![Action::Run(Transno(transno), uuid.to_owned())]
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn requests_run_in_the_order_of_transnos_of_all_clients() {
        let now = Instant::now();
        let mut m = machine(&["a", "b"], now);
        m.connected("a", now);
        assert_eq!(m.request_arrived("a", Transno(12), now), []);
        m.connected("b", now);
        assert_eq!(m.request_arrived("b", Transno(11), now), run(11, "b"));
        assert_eq!(m.request_done("b", now), []);
        assert_eq!(m.request_arrived("b", Transno(13), now), run(12, "a"));
        assert_eq!(m.request_done("a", now), []);
        assert_eq!(m.lock_arrived("a", now), run(13, "b"));
        assert_eq!(m.request_done("b", now), []);
        assert_eq!(m.final_ping("b", now), [Action::Enter(Stage::Locks)]);
        assert_eq!(m.final_ping("a", now), [Action::Enter(Stage::Finishing)]);
        assert_eq!(m.finished(now), [Action::Enter(Stage::Complete)]);
        assert!(
            m.status(0, now)
                .contains("completed_clients: 2/2\nreplayed_requests: 3")
        );
    }

    #[test]
    fn clients_without_requests_and_locks_end_the_recovery_with_their_final_pings() {
        let now = Instant::now();
        let mut m = machine(&["a"], now);
        m.connected("a", now);
        assert_eq!(
            m.final_ping("a", now),
            [Action::Enter(Stage::Locks), Action::Enter(Stage::Finishing)]
        );
    }

    #[test]
    fn missing_clients_are_evicted_after_twice_the_slowest_reconnect() {
        let now = Instant::now();
        let mut m = machine(&["a", "b", "lustre"], now);
        assert_eq!(m.wake_at(), Some(now + secs(10)));
        m.connected("a", now + secs(7));
        m.final_ping("a", now + secs(7));
        assert_eq!(m.tick(now + secs(13)), []);
        let evicted = m.tick(now + secs(14));
        assert!(
            matches!(&evicted[..], [Action::Evict(b, _)] if b == "b"),
            "{evicted:?}"
        );
        assert!(!m.knows("b") && m.knows("lustre"));
        assert_eq!(m.tick(now + secs(59)), []);
        let evicted = m.tick(now + secs(60));
        assert!(matches!(&evicted[0], Action::Evict(c, _) if c == "lustre"));
        assert_eq!(
            evicted[1..],
            [Action::Enter(Stage::Locks), Action::Enter(Stage::Finishing)]
        );
    }

    #[test]
    fn a_client_that_stops_to_replay_is_evicted_but_not_while_it_waits_for_others() {
        let now = Instant::now();
        let mut m = machine(&["a", "lustre"], now);
        m.connected("a", now);
        m.request_arrived("a", Transno(11), now);
        assert_eq!(m.tick(now + SILENCE_MAX), []);
        m.connected("lustre", now + secs(40));
        assert_eq!(m.final_ping("lustre", now + secs(40)), run(11, "a"));
        m.request_done("a", now + secs(41));
        let evicted = m.tick(now + secs(41) + SILENCE_MAX);
        assert!(matches!(&evicted[0], Action::Evict(a, _) if a == "a"));
    }

    #[test]
    fn the_request_of_an_evicted_client_ends_before_the_next_one_runs() {
        let now = Instant::now();
        let mut m = machine(&["a", "b"], now);
        for (uuid, transno) in [("a", 11), ("b", 12)] {
            m.connected(uuid, now);
            m.request_arrived(uuid, Transno(transno), now);
        }
        assert_eq!(m.gone("a", now), []);
        assert_eq!(m.request_done("a", now), run(12, "b"));
    }

    #[test]
    fn an_abort_evicts_the_missing_clients() {
        let now = Instant::now();
        let mut m = machine(&["a", "b"], now);
        m.connected("a", now);
        m.lock_arrived("a", now);
        let actions = m.abort(now);
        assert!(matches!(&actions[0], Action::Evict(b, _) if b == "b"));
        assert_eq!(actions[1..], [Action::Enter(Stage::Locks)]);
        assert_eq!(m.final_ping("a", now), [Action::Enter(Stage::Finishing)]);
    }

    #[test]
    fn a_client_that_claims_locks_has_its_time_from_the_end_of_the_requests() {
        let now = Instant::now();
        let mut m = machine(&["a", "lustre"], now);
        m.connected("a", now);
        m.lock_arrived("a", now);
        let later = now + secs(59);
        m.connected("lustre", later);
        m.final_ping("lustre", later);
        assert_eq!((m.stage(), m.tick(later)), (Stage::Locks, vec![]));
        assert_eq!(m.tick(later + SILENCE_MAX).len(), 2);
    }

    #[test]
    fn the_hard_limit_evicts_no_client_that_replays() {
        let now = Instant::now();
        let mut m = machine(&["a"], now);
        m.connected("a", now);
        let later = now + Window::default().hard;
        m.request_arrived("a", Transno(11), later);
        m.request_done("a", later);
        assert_eq!(m.tick(later + secs(9)), []);
        assert_eq!(m.tick(later + secs(10)).len(), 3);
    }

    #[test]
    fn a_client_that_never_ends_its_replays_is_evicted() {
        let now = Instant::now();
        let mut m = machine(&["a"], now);
        let later = now + 10 * Window::default().hard;
        m.connected("a", later - secs(1));
        assert_eq!(m.tick(later - secs(1)), []);
        assert_eq!(m.tick(later).len(), 3);
    }

    #[test]
    fn a_reconnected_client_goes_on_where_it_was() {
        let now = Instant::now();
        let mut m = machine(&["a"], now);
        m.connected("a", now);
        assert_eq!(m.request_arrived("a", Transno(11), now), run(11, "a"));
        m.connected("a", now);
        assert_eq!(m.request_arrived("a", Transno(11), now), []);
        assert_eq!(m.request_done("a", now), []);
        m.lock_arrived("a", now);
        m.connected("a", now);
        assert_eq!(m.final_ping("a", now), [Action::Enter(Stage::Finishing)]);
    }
}
