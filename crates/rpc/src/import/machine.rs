//! An import's states (guide 3.8): pure, told events and the time, giving back what to do and when to be asked again.
//!
//! ```text
//! New -> Connecting -> Full <-> Discon -> Connecting ...
//!              |         ^
//!              +-> Evicted (everything dropped) -> Full
//! Full -> Idle (goodbye said) -> Connecting ..., when a request is made
//! any -> Closed
//! ```
//!
//! Every attempt to connect has a number, `conn_cnt`; whatever speaks of an older connection is ignored. Attempts go
//! round the target's NIDs, the one that worked last first. After a round without success there is a pause, of less than
//! a second however long the server is away: a client notices within a second that its server is back.
//! Replay after the death of a server is not done: a server that is recovering is treated like one that has forgotten
//! us, so that no lock and no cached data outlives what they were granted on.

use std::time::Duration;
use tokio::time::Instant;
use wire::{MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING};

const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// With the jitter this stays below a second.
const BACKOFF_MAX: Duration = Duration::from_millis(800);

/// What an import is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImportState {
    /// Not yet asked to connect.
    New,
    /// An attempt is under way.
    Connecting,
    /// Connected: requests flow.
    Full,
    /// Not connected; the next attempt waits its turn.
    Discon,
    /// The server has forgotten us; the owner is dropping what it cached.
    Evicted,
    /// Nothing was asked for and nothing is held, so we took our leave; the next request connects.
    Idle,
    /// Done for good.
    Closed,
}

/// An attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// Which of the NIDs.
    pub(crate) nid: usize,
    /// `pb_conn_cnt`.
    pub(crate) conn_cnt: u32,
    /// The server's handle of an earlier connection; 0 if there was none.
    pub(crate) handle: u64,
    /// Other NIDs wait for their turn, so a NID that cannot be reached gets little time. Not in the first round: a slow
    /// network is no reason to report that the target is not there.
    pub(crate) brief: bool,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The server's handle for us, and the `MSG_CONNECT_*` flags of its reply.
    Connected { handle: u64, op_flags: u32 },
    /// It failed; another may work.
    Failed,
    /// It failed, and so will every other.
    Refused,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The owner, or a request where there is no connection for want of any, wants to be connected.
    Open,
    /// The attempt `conn_cnt` ended.
    Connect { conn_cnt: u32, outcome: Outcome },
    /// The connection `conn_cnt` does not work: no reply in time, not sent, or the server does not know us.
    Broken { conn_cnt: u32 },
    /// The owner has dropped what it cached.
    Invalidated,
    /// A reply came, to a ping or to something that was wanted.
    Heard { ping: bool },
    /// A ping came to an end, answered or not.
    PingDone,
    /// The owner waits for what the server does by itself, and doubts that it still will, unless something was heard
    /// in the last `quiet`.
    Doubted { quiet: Duration },
    /// Nothing is under way and nothing held: the server need not keep us.
    Rest,
    /// The owner is done.
    Close,
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Connect(Attempt),
    /// Tell the owner, then report `Invalidated`.
    Invalidate,
    /// Tell the owner that requests flow.
    AnnounceConnected,
    /// Tell the owner that they do not.
    AnnounceDisconnected,
    /// Tell the owner that they never will.
    AnnounceClosed,
    Ping,
    /// Report `Rest` if nothing is under way and nothing held.
    OfferRest,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(super) state: ImportState,
    pub(super) nids: usize,
    pub(super) nid: usize,
    conn_cnt: u32,
    handle: u64,
    evictions: u64,
    /// Attempts that failed since the last that did not.
    pub(super) failures: u32,
    /// Connections that were made since a reply was last heard on one.
    unproven: u32,
    /// When the next attempt may begin, in `Discon`.
    pub(super) retry_at: Option<Instant>,
    heard_at: Option<Instant>,
    pinging: bool,
    ping_interval: Duration,
    ping_soon: Duration,
    /// `idle_timeout`: how long without a request until we take our leave; `None`: never.
    idle_timeout: Option<Duration>,
    /// When to look whether we may.
    rest_at: Option<Instant>,
    /// Spreads the attempts of many clients in time: 0 to 255.
    jitter: u32,
}

impl Machine {
    pub(crate) fn new(nids: usize, ping_interval: Duration, ping_soon: Duration, jitter: u8) -> Machine {
        Machine {
            state: ImportState::New,
            nids: nids.max(1),
            nid: 0,
            conn_cnt: 0,
            handle: 0,
            evictions: 0,
            failures: 0,
            unproven: 0,
            retry_at: None,
            heard_at: None,
            pinging: false,
            ping_interval,
            ping_soon,
            idle_timeout: None,
            rest_at: None,
            jitter: u32::from(jitter),
        }
    }

    pub(crate) fn state(&self) -> ImportState {
        self.state
    }

    pub(crate) fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// From now on.
    pub(crate) fn set_idle_timeout(&mut self, after: Option<Duration>, now: Instant) {
        self.idle_timeout = after;
        self.rest_at = after.map(|after| now + after);
    }

    /// The number of the current attempt or connection.
    pub(crate) fn conn_cnt(&self) -> u32 {
        self.conn_cnt
    }

    /// The server's handle for us.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// How often the server has forgotten us.
    pub(crate) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// The same, as far as the owner has dropped what it cached.
    pub(crate) fn evictions_told(&self) -> u64 {
        self.evictions - u64::from(self.state == ImportState::Evicted)
    }

    /// Which NID is in use.
    pub(crate) fn nid(&self) -> usize {
        self.nid
    }

    /// How many rounds over all NIDs have failed since the last attempt that did not.
    pub(crate) fn failed_rounds(&self) -> u32 {
        self.failures / self.nids as u32
    }

    /// What follows from an event. `uncommitted`: there are transactions whose fate is not known yet.
    pub(crate) fn on(&mut self, event: Event, now: Instant, uncommitted: bool) -> Vec<Action> {
        match event {
            Event::Open if self.state == ImportState::New => vec![self.attempt()],
            // Also a request that was on its way when the goodbye was said.
            Event::Open | Event::Broken { .. } if self.state == ImportState::Idle => {
                self.handle = 0;
                vec![self.attempt()]
            }
            Event::Connect { conn_cnt, outcome }
                if conn_cnt == self.conn_cnt && self.state == ImportState::Connecting =>
            {
                self.connect_ended(outcome, now)
            }
            Event::Broken { conn_cnt } if conn_cnt == self.conn_cnt && self.state == ImportState::Full => {
                self.state = ImportState::Discon;
                // The first attempt after a working connection is at once; a connection that never worked waits.
                self.retry_at = Some(now + self.backoff());
                let mut actions = vec![Action::AnnounceDisconnected];
                actions.extend(self.tick(now, uncommitted));
                actions
            }
            Event::Invalidated if self.state == ImportState::Evicted => self.full(now),
            Event::Heard { ping } => {
                if self.state == ImportState::Full {
                    self.unproven = 0;
                    self.heard_at = Some(now);
                    if !ping {
                        self.rest_at = self.idle_timeout.map(|after| now + after);
                    }
                }
                Vec::new()
            }
            Event::Doubted { quiet } if self.state == ImportState::Full && !self.pinging => {
                if self.heard_at.is_some_and(|at| now < at + quiet) {
                    return Vec::new();
                }
                self.pinging = true;
                vec![Action::Ping]
            }
            Event::Rest if self.state == ImportState::Full && !self.pinging => {
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

    /// When to be asked again, should nothing happen before.
    pub(crate) fn wake_at(&self, uncommitted: bool) -> Option<Instant> {
        match self.state {
            ImportState::Discon => self.retry_at,
            ImportState::Full if !self.pinging => {
                self.ping_at(uncommitted).into_iter().chain(self.rest_at).min()
            }
            _ => None,
        }
    }

    fn ping_at(&self, uncommitted: bool) -> Option<Instant> {
        self.heard_at.map(|at| {
            at + if uncommitted {
                self.ping_soon
            } else {
                self.ping_interval
            }
        })
    }

    pub(super) fn tick(&mut self, now: Instant, uncommitted: bool) -> Vec<Action> {
        let due = self.wake_at(uncommitted).is_some_and(|at| at <= now);
        match self.state {
            ImportState::Discon if due => vec![self.attempt()],
            ImportState::Full if due && self.rest_at.is_some_and(|at| at <= now) => {
                // What is held now may not be soon.
                self.rest_at = self.idle_timeout.map(|after| now + after / 4);
                vec![Action::OfferRest]
            }
            ImportState::Full if due => {
                self.pinging = true;
                vec![Action::Ping]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn attempt(&mut self) -> Action {
        self.state = ImportState::Connecting;
        self.retry_at = None;
        self.conn_cnt += 1;
        Action::Connect(Attempt {
            nid: self.nid,
            conn_cnt: self.conn_cnt,
            handle: self.handle,
            brief: self.nids > 1 && (self.handle != 0 || self.failed_rounds() > 0),
        })
    }

    fn connect_ended(&mut self, outcome: Outcome, now: Instant) -> Vec<Action> {
        match outcome {
            Outcome::Connected { handle, op_flags } => {
                let before = std::mem::replace(&mut self.handle, handle);
                let flag = |flag| op_flags & flag != 0;
                let known = flag(MSG_CONNECT_RECONNECT) && before == handle && !flag(MSG_CONNECT_RECOVERING);
                if before == 0 || known {
                    return self.full(now);
                }
                self.state = ImportState::Evicted;
                self.evictions += 1;
                vec![Action::Invalidate]
            }
            Outcome::Failed => {
                self.failures += 1;
                self.nid = (self.nid + 1) % self.nids;
                self.state = ImportState::Discon;
                let round_done = (self.failures as usize).is_multiple_of(self.nids);
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

    fn full(&mut self, now: Instant) -> Vec<Action> {
        self.state = ImportState::Full;
        self.heard_at = Some(now);
        self.rest_at = self.idle_timeout.map(|after| now + after);
        self.pinging = false;
        // Until a reply proves that the connection works, a break waits before it connects again.
        self.unproven += 1;
        self.failures = 0;
        vec![Action::AnnounceConnected]
    }

    fn backoff(&self) -> Duration {
        let rounds = self.failures.div_ceil(self.nids as u32) + self.unproven;
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Action, Attempt, Event, ImportState, Machine, Outcome};
    use std::time::Duration;
    use tokio::time::Instant;
    use wire::{MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING};

    fn machine(nids: usize) -> Machine {
        Machine::new(nids, Duration::from_secs(25), Duration::from_secs(7), 0)
    }

    fn attempt_of(actions: &[Action]) -> Attempt {
        let found = actions.iter().find_map(|a| match a {
            Action::Connect(attempt) => Some(*attempt),
            _ => None,
        });
        found.unwrap()
    }

    fn connected(conn_cnt: u32, handle: u64, op_flags: u32) -> Event {
        Event::Connect {
            conn_cnt,
            outcome: Outcome::Connected { handle, op_flags },
        }
    }

    fn full(t: Instant) -> Machine {
        let mut m = machine(1);
        assert_eq!(attempt_of(&m.on(Event::Open, t, false)).conn_cnt, 1);
        assert_eq!(m.on(connected(1, 77, 0), t, false), [Action::AnnounceConnected]);
        m.on(Event::Heard { ping: false }, t, false);
        m
    }

    /// Breaks the connection and lets the server answer the next attempt with `handle` and `op_flags`.
    fn reconnected(m: &mut Machine, t: Instant, handle: u64, op_flags: u32) -> Vec<Action> {
        let actions = m.on(
            Event::Broken {
                conn_cnt: m.conn_cnt(),
            },
            t,
            false,
        );
        assert_eq!(actions[0], Action::AnnounceDisconnected);
        let attempt = attempt_of(&actions);
        m.on(connected(attempt.conn_cnt, handle, op_flags), t, false)
    }

    #[test]
    fn a_server_that_knows_us_lets_requests_go_on() {
        let t = Instant::now();
        let mut m = full(t);
        assert_eq!(
            reconnected(&mut m, t, 77, MSG_CONNECT_RECONNECT),
            [Action::AnnounceConnected]
        );
        assert_eq!(
            (m.state(), m.conn_cnt(), m.evictions()),
            (ImportState::Full, 2, 0)
        );
    }

    #[test]
    fn a_server_that_forgot_us_evicts() {
        for (handle, flags) in [
            (78, 0),
            (78, MSG_CONNECT_RECONNECT),
            (78, MSG_CONNECT_RECOVERING),
            (77, MSG_CONNECT_RECONNECT | MSG_CONNECT_RECOVERING),
        ] {
            let t = Instant::now();
            let mut m = full(t);
            assert_eq!(
                reconnected(&mut m, t, handle, flags),
                [Action::Invalidate],
                "{handle} {flags}"
            );
            assert_eq!((m.state(), m.evictions()), (ImportState::Evicted, 1));
            assert_eq!(m.evictions_told(), 0);
            assert_eq!(m.on(Event::Invalidated, t, false), [Action::AnnounceConnected]);
            assert_eq!((m.state(), m.handle()), (ImportState::Full, handle));
            assert_eq!(m.evictions_told(), 1);
        }
    }

    /// Lets every attempt fail at once; the NID of each, whether it was brief, and how long after the last it began.
    fn failing_attempts(m: &mut Machine, t: Instant, count: usize) -> Vec<(usize, bool, Duration)> {
        let (mut now, mut begun) = (t, t);
        let mut attempt = attempt_of(&m.on(Event::Open, t, false));
        let mut made = Vec::new();
        while made.len() < count {
            made.push((attempt.nid, attempt.brief, now - begun));
            begun = now;
            let failed = Event::Connect {
                conn_cnt: attempt.conn_cnt,
                outcome: Outcome::Failed,
            };
            let mut actions = m.on(failed, now, false);
            if actions.is_empty() {
                now = m.wake_at(false).unwrap();
                actions = m.on(Event::Tick, now, false);
            }
            attempt = attempt_of(&actions);
        }
        made
    }

    #[test]
    fn attempts_alternate_over_the_nids_and_pause_after_each_round() {
        let mut m = machine(3);
        let made = failing_attempts(&mut m, Instant::now(), 7);
        let ms = Duration::from_millis;
        let expected = [
            (0, false, ms(0)),
            (1, false, ms(0)),
            (2, false, ms(0)),
            (0, true, ms(250)),
            (1, true, ms(0)),
            (2, true, ms(0)),
            (0, true, ms(500)),
        ];
        assert_eq!(made, expected);
        assert_eq!(m.failed_rounds(), 2);
    }

    #[test]
    fn a_server_that_is_away_for_long_is_tried_every_second_by_each_client_at_another_time() {
        let pause = |jitter: u8| {
            let mut m = Machine::new(1, Duration::from_secs(25), Duration::from_secs(7), jitter);
            let made = failing_attempts(&mut m, Instant::now(), 5000);
            assert!(made.iter().all(|(.., pause)| *pause < Duration::from_secs(1)));
            made[4999].2
        };
        let pauses: std::collections::BTreeSet<Duration> = (0..=255).map(pause).collect();
        assert_eq!(pauses.len(), 256);
        assert!(*pauses.first().unwrap() >= Duration::from_millis(800));
    }

    #[test]
    fn what_speaks_of_an_older_connection_is_ignored() {
        let t = Instant::now();
        let mut m = full(t);
        reconnected(&mut m, t, 77, MSG_CONNECT_RECONNECT);
        assert!(m.on(Event::Broken { conn_cnt: 1 }, t, false).is_empty());
        assert!(m.on(connected(1, 99, 0), t, false).is_empty());
        assert_eq!(m.state(), ImportState::Full);
    }

    #[test]
    fn a_connection_that_never_works_is_not_made_again_at_once() {
        let t = Instant::now();
        let mut m = full(t);
        reconnected(&mut m, t, 77, MSG_CONNECT_RECONNECT);
        assert_eq!(
            m.on(Event::Broken { conn_cnt: 2 }, t, false),
            [Action::AnnounceDisconnected]
        );
        assert_eq!(m.wake_at(false), Some(t + Duration::from_millis(250)));
    }

    #[test]
    fn one_whose_owner_doubts_that_it_is_known_pings_unless_it_was_heard_of() {
        let t = Instant::now();
        let mut m = full(t);
        let quiet = Duration::from_secs(1);
        let doubt = |m: &mut Machine, after: u64| {
            m.on(Event::Doubted { quiet }, t + Duration::from_millis(after), false)
        };
        assert_eq!(doubt(&mut m, 999), []);
        assert_eq!(doubt(&mut m, 1000), [Action::Ping]);
        assert_eq!(doubt(&mut m, 3000), [], "one is under way");
        m.on(Event::PingDone, t + Duration::from_secs(3), false);
        assert_eq!(doubt(&mut m, 3500), []);
        assert_eq!(doubt(&mut m, 4000), [Action::Ping]);
    }

    #[test]
    fn an_idle_import_pings_and_one_with_uncommitted_work_pings_soon() {
        let t = Instant::now();
        let mut m = full(t);
        assert_eq!(m.wake_at(false), Some(t + Duration::from_secs(25)));
        assert_eq!(m.wake_at(true), Some(t + Duration::from_secs(7)));
        let later = t + Duration::from_secs(7);
        assert!(m.on(Event::Tick, later, false).is_empty());
        assert_eq!(m.on(Event::Tick, later, true), [Action::Ping]);
        assert_eq!(m.wake_at(true), None);
        m.on(Event::Heard { ping: true }, later, true);
        m.on(Event::PingDone, later, true);
        assert_eq!(m.wake_at(true), Some(later + Duration::from_secs(7)));
    }

    #[test]
    fn an_import_that_nobody_needs_takes_its_leave_and_begins_anew() {
        let t = Instant::now();
        let mut m = full(t);
        m.set_idle_timeout(Some(Duration::from_secs(20)), t);
        let used = t + Duration::from_secs(10);
        m.on(Event::Heard { ping: false }, used, false);
        m.on(Event::Heard { ping: true }, used + Duration::from_secs(9), false);
        assert_eq!(m.wake_at(false), Some(used + Duration::from_secs(20)));
        let late = used + Duration::from_secs(20);
        assert_eq!(m.on(Event::Tick, late, false), [Action::OfferRest]);
        // Something is held: it is asked again before long.
        assert_eq!(m.wake_at(false), Some(late + Duration::from_secs(5)));
        m.on(Event::Rest, late, false);
        assert_eq!((m.state(), m.wake_at(false)), (ImportState::Idle, None));
        let attempt = attempt_of(&m.on(Event::Open, late, false));
        assert_eq!((attempt.conn_cnt, attempt.handle), (2, 0));
        assert_eq!(
            m.on(connected(2, 99, 0), late, false),
            [Action::AnnounceConnected]
        );
        assert_eq!(m.evictions(), 0);
    }

    #[test]
    fn a_request_that_the_goodbye_overtook_connects_again() {
        let t = Instant::now();
        let mut m = full(t);
        m.on(Event::Rest, t, false);
        let attempt = attempt_of(&m.on(Event::Broken { conn_cnt: 1 }, t, false));
        assert_eq!((attempt.conn_cnt, attempt.handle), (2, 0));
    }

    #[test]
    fn what_is_closed_stays_closed() {
        let t = Instant::now();
        let mut m = full(t);
        assert_eq!(m.on(Event::Close, t, false), [Action::AnnounceClosed]);
        assert!(m.on(Event::Close, t, false).is_empty());
        assert!(m.on(Event::Open, t, false).is_empty());
        assert_eq!(m.wake_at(false), None);
    }
}
