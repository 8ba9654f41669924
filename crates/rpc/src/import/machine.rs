//! The state machine of an import (docs/protocol.md, "Connect flags" and "Recovery"). Pure: events
//! and the time are arguments; actions and the time of the next tick are results.
//!
//! ```text
//! New        -> Connecting
//! Connecting -> Full, Discon (failed), Evicted (the server has lost the export) or Replay (the
//!               server has restarted, and knows this client)
//! Replay     -> ReplayLocks -> ReplayWait -> Full; from each Discon (connection lost) or Evicted
//! Evicted    -> Full, once the owner has dropped locks and caches
//! Full       -> Discon (connection lost), Idle (unused) or Connecting (the target moved)
//! Discon     -> Connecting, after a pause
//! Idle       -> Connecting, on the next request
//! any        -> Closed
//! ```
//!
//! Each attempt to connect has a number, `conn_cnt`; events of older connections are ignored.
//! Attempts go round the target's NIDs, beginning with the last one that worked. A pause of less
//! than a second follows each round without success, however long the server has been away: a
//! client soon notices the return of its server.

use std::time::{Duration, Instant};
use wire::{MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING};

/// The pause after the first round without success; it doubles with each further round.
const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// The longest pause, without jitter. With jitter it stays below a second.
const BACKOFF_MAX: Duration = Duration::from_millis(800);

/// The state of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportState {
    /// Not started.
    New,
    /// An attempt to connect is in progress.
    Connecting,
    /// Connected.
    Full,
    /// Disconnected; the next attempt waits for its time.
    Discon,
    /// Connected to a server that recovers: the client replays its requests.
    Replay,
    /// The client replays its locks.
    ReplayLocks,
    /// The client waits for the end of the server's recovery.
    ReplayWait,
    /// The server has dropped this client's export; the owner is dropping its locks and caches.
    Evicted,
    /// Disconnected because nothing is in use (`idle_timeout`); the next request connects.
    Idle,
    /// Closed for good.
    Closed,
}

impl ImportState {
    /// Whether the client takes part in the recovery of its server.
    pub fn is_replaying(self) -> bool {
        matches!(
            self,
            ImportState::Replay | ImportState::ReplayLocks | ImportState::ReplayWait
        )
    }
}

/// An attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Index of the NID among the target's.
    pub(crate) nid_index: usize,
    /// `pb_conn_cnt`.
    pub(crate) conn_cnt: u32,
    /// The server's handle from the previous connection; 0 without one.
    pub(crate) handle: u64,
    /// Whether an unreachable NID gets little time, because other NIDs remain. False in the first
    /// round of an import without an export (never connected, or idle): calls must not report a
    /// target as absent only because the network is slow.
    pub(crate) brief: bool,
}

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Connected: the server's handle and the `MSG_CONNECT_*` flags of its reply.
    Connected { handle: u64, op_flags: u32 },
    /// Failed; another attempt may succeed.
    Failed,
    /// Refused; the server would refuse every other attempt, too.
    Refused,
}

/// An input of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The owner starts the import, or a request needs an idle import to connect.
    Open,
    /// The attempt `conn_cnt` has ended.
    Connect { conn_cnt: u32, outcome: Outcome },
    /// The connection `conn_cnt` is broken: LNet lost it, a request was not sent or got no reply in
    /// time, or the server lost the export.
    Broken { conn_cnt: u32 },
    /// A part of the recovery on the connection `conn_cnt` is done: requests, locks, or the wait
    /// for the server.
    Replayed { conn_cnt: u32 },
    /// The server cannot execute a replayed request on the connection `conn_cnt`.
    ReplayRefused { conn_cnt: u32 },
    /// The owner has dropped its locks and caches.
    Invalidated,
    /// A reply arrived, to a ping or to another request.
    Reply { ping: bool },
    /// A ping has ended, with or without a reply.
    PingDone,
    /// The owner waits for a message that is not a reply: ping, unless a reply has arrived or a
    /// ping has ended within `quiet`.
    ProbeIfSilent { quiet: Duration },
    /// The import is idle and disconnects: the owner holds nothing, no request is in flight, and no
    /// transaction is uncommitted.
    IdleDisconnect,
    /// The owner closes the import.
    Close,
    /// Time passed.
    Tick,
}

/// An output of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Connect(Attempt),
    /// Replay requests and locks on the connection `conn_cnt`, and report `Replayed` after each
    /// part.
    Recover {
        conn_cnt: u32,
    },
    /// Tell the owner to drop locks and caches, then report `Invalidated`.
    Invalidate,
    /// Tell the owner that the import is connected.
    AnnounceConnected,
    /// Tell the owner that the import is disconnected.
    AnnounceDisconnected,
    /// Tell the owner that the import is closed.
    AnnounceClosed,
    Ping,
    /// Report `IdleDisconnect` if the import is idle.
    CheckIdle,
}

/// The state machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(super) state: ImportState,
    /// Number of the target's NIDs.
    pub(super) nid_count: usize,
    /// Index of the NID in use.
    pub(super) nid_index: usize,
    conn_cnt: u32,
    handle: u64,
    evictions: u64,
    /// Failed attempts since the last success or change of NIDs.
    pub(super) failures: u32,
    /// Connections established since the last reply.
    connects_since_reply: u32,
    /// When the next attempt may begin, in `Discon`.
    pub(super) retry_at: Option<Instant>,
    /// When the import connected, the last reply arrived or the last ping ended, whichever is
    /// latest.
    heard_at: Option<Instant>,
    pinging: bool,
    ping_interval: Duration,
    /// Interval of pings while transactions are uncommitted.
    uncommitted_ping_interval: Duration,
    /// `idle_timeout`: disconnect after this long without a request; `None`: never.
    idle_timeout: Option<Duration>,
    /// When to check whether the import is idle.
    idle_check_at: Option<Instant>,
    /// Spreads the attempts of many clients over time: 0 to 255, in 1024ths of a pause.
    jitter: u32,
}

impl Machine {
    pub(crate) fn new(
        nid_count: usize,
        ping_interval: Duration,
        uncommitted_ping_interval: Duration,
        jitter: u8,
    ) -> Machine {
        Machine {
            state: ImportState::New,
            nid_count: nid_count.max(1),
            nid_index: 0,
            conn_cnt: 0,
            handle: 0,
            evictions: 0,
            failures: 0,
            connects_since_reply: 0,
            retry_at: None,
            heard_at: None,
            pinging: false,
            ping_interval,
            uncommitted_ping_interval,
            idle_timeout: None,
            idle_check_at: None,
            jitter: u32::from(jitter),
        }
    }

    pub(crate) fn state(&self) -> ImportState {
        self.state
    }

    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// When the import connected, the last reply arrived or the last ping ended.
    pub(crate) fn heard_at(&self) -> Option<Instant> {
        self.heard_at
    }

    /// Sets the timeout, which starts now.
    pub(crate) fn set_idle_timeout(&mut self, after: Option<Duration>, now: Instant) {
        self.idle_timeout = after;
        self.idle_check_at = after.map(|after| now + after);
    }

    /// The number of the current attempt or connection; 0 before the first attempt.
    pub(crate) fn conn_cnt(&self) -> u32 {
        self.conn_cnt
    }

    /// The server's handle of this client's export.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Number of times that the server has evicted this client.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Number of evictions after which the owner has dropped its locks and caches.
    pub(crate) fn evictions_announced(&self) -> u64 {
        self.evictions - u64::from(self.state == ImportState::Evicted)
    }

    /// Index of the NID in use.
    pub(crate) fn nid_index(&self) -> usize {
        self.nid_index
    }

    /// Rounds over all NIDs that failed since the last success or change of NIDs.
    pub(crate) fn failed_rounds(&self) -> u32 {
        self.failures / self.nid_count as u32
    }

    /// Processes an event; returns the actions to carry out, in order. `uncommitted`: some
    /// transactions are not known to be committed.
    pub(crate) fn process(&mut self, event: Event, now: Instant, uncommitted: bool) -> Vec<Action> {
        match event {
            Event::Open if self.state == ImportState::New => vec![self.begin_attempt()],
            // `Broken` comes from a request that the disconnect overtook.
            Event::Open | Event::Broken { .. } if self.state == ImportState::Idle => {
                self.handle = 0;
                vec![self.begin_attempt()]
            }
            Event::Connect { conn_cnt, outcome }
                if conn_cnt == self.conn_cnt && self.state == ImportState::Connecting =>
            {
                self.end_attempt(outcome, now)
            }
            Event::Broken { conn_cnt }
                if conn_cnt == self.conn_cnt
                    && (self.state == ImportState::Full || self.state.is_replaying()) =>
            {
                self.state = ImportState::Discon;
                // The first attempt after a working connection is immediate. After a connection
                // that never worked, there is a pause.
                self.retry_at = Some(now + self.backoff());
                let mut actions = vec![Action::AnnounceDisconnected];
                actions.extend(self.tick(now, uncommitted));
                actions
            }
            Event::Replayed { conn_cnt } if conn_cnt == self.conn_cnt => match self.state {
                ImportState::Replay => self.proceed_to(ImportState::ReplayLocks),
                ImportState::ReplayLocks => self.proceed_to(ImportState::ReplayWait),
                ImportState::ReplayWait => self.enter_full(now),
                _ => Vec::new(),
            },
            Event::ReplayRefused { conn_cnt } if conn_cnt == self.conn_cnt && self.state.is_replaying() => {
                self.enter_evicted()
            }
            Event::Invalidated if self.state == ImportState::Evicted => self.enter_full(now),
            Event::Reply { ping } => {
                if self.state == ImportState::Full {
                    self.connects_since_reply = 0;
                    self.heard_at = Some(now);
                    if !ping {
                        self.idle_check_at = self.idle_timeout.map(|after| now + after);
                    }
                }
                Vec::new()
            }
            Event::ProbeIfSilent { quiet } if self.state == ImportState::Full && !self.pinging => {
                if self.heard_at.is_some_and(|at| now < at + quiet) {
                    return Vec::new();
                }
                self.pinging = true;
                vec![Action::Ping]
            }
            Event::IdleDisconnect if self.state == ImportState::Full && !self.pinging => {
                self.state = ImportState::Idle;
                Vec::new()
            }
            Event::PingDone => {
                self.pinging = false;
                self.heard_at = self.heard_at.map(|_| now);
                Vec::new()
            }
            Event::Close if self.state != ImportState::Closed => {
                self.state = ImportState::Closed;
                vec![Action::AnnounceClosed]
            }
            Event::Tick => self.tick(now, uncommitted),
            _ => Vec::new(),
        }
    }

    /// When the machine needs a `Tick` if no other event comes first.
    pub(crate) fn wake_at(&self, uncommitted: bool) -> Option<Instant> {
        match self.state {
            ImportState::Discon => self.retry_at,
            ImportState::Full if !self.pinging => self
                .ping_at(uncommitted)
                .into_iter()
                .chain(self.idle_check_at)
                .min(),
            _ => None,
        }
    }

    fn ping_at(&self, uncommitted: bool) -> Option<Instant> {
        self.heard_at.map(|at| {
            at + if uncommitted {
                self.uncommitted_ping_interval
            } else {
                self.ping_interval
            }
        })
    }

    pub(super) fn tick(&mut self, now: Instant, uncommitted: bool) -> Vec<Action> {
        let due = self.wake_at(uncommitted).is_some_and(|at| at <= now);
        match self.state {
            ImportState::Discon if due => vec![self.begin_attempt()],
            ImportState::Full if due && self.idle_check_at.is_some_and(|at| at <= now) => {
                // If the owner still has locks, it may release them soon: the next check comes
                // after a quarter of the timeout.
                self.idle_check_at = self.idle_timeout.map(|after| now + after / 4);
                vec![Action::CheckIdle]
            }
            ImportState::Full if due => {
                self.pinging = true;
                vec![Action::Ping]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn begin_attempt(&mut self) -> Action {
        self.state = ImportState::Connecting;
        self.retry_at = None;
        self.conn_cnt += 1;
        Action::Connect(Attempt {
            nid_index: self.nid_index,
            conn_cnt: self.conn_cnt,
            handle: self.handle,
            brief: self.nid_count > 1 && (self.handle != 0 || self.failed_rounds() > 0),
        })
    }

    fn end_attempt(&mut self, outcome: Outcome, now: Instant) -> Vec<Action> {
        match outcome {
            Outcome::Connected { handle, op_flags } => {
                let old_handle = std::mem::replace(&mut self.handle, handle);
                let flag = |flag| op_flags & flag != 0;
                let same_export = flag(MSG_CONNECT_RECONNECT) && old_handle == handle;
                match flag(MSG_CONNECT_RECOVERING) {
                    _ if old_handle == 0 => self.enter_full(now),
                    // Also at another export: the reply to an earlier connect may be lost.
                    true => {
                        let conn_cnt = self.conn_cnt;
                        self.state = ImportState::Replay;
                        vec![Action::Recover { conn_cnt }]
                    }
                    false if same_export => self.enter_full(now),
                    false => self.enter_evicted(),
                }
            }
            Outcome::Failed => {
                self.failures += 1;
                self.nid_index = (self.nid_index + 1) % self.nid_count;
                self.state = ImportState::Discon;
                let round_done = (self.failures as usize).is_multiple_of(self.nid_count);
                self.retry_at = Some(if round_done { now + self.backoff() } else { now });
                self.tick(now, false)
            }
            Outcome::Refused => {
                self.failures += 1;
                self.state = ImportState::Closed;
                vec![Action::AnnounceClosed]
            }
        }
    }

    fn enter_evicted(&mut self) -> Vec<Action> {
        self.state = ImportState::Evicted;
        self.evictions += 1;
        vec![Action::Invalidate]
    }

    fn proceed_to(&mut self, state: ImportState) -> Vec<Action> {
        self.state = state;
        Vec::new()
    }

    fn enter_full(&mut self, now: Instant) -> Vec<Action> {
        self.state = ImportState::Full;
        self.heard_at = Some(now);
        self.idle_check_at = self.idle_timeout.map(|after| now + after);
        self.pinging = false;
        // Until a reply proves that the connection works, a reconnection begins with a pause.
        self.connects_since_reply += 1;
        self.failures = 0;
        vec![Action::AnnounceConnected]
    }

    fn backoff(&self) -> Duration {
        let rounds = self.failures.div_ceil(self.nid_count as u32) + self.connects_since_reply;
        if rounds == 0 {
            return Duration::ZERO;
        }
        let wait = BACKOFF_FIRST
            .saturating_mul(1 << (rounds - 1).min(10))
            .min(BACKOFF_MAX);
        wait + wait * self.jitter / 1024
    }
}

#[cfg(test)]
mod tests;
