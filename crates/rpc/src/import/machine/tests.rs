//! Tests of the state machine of an import: connecting, evictions, pauses, pings, idleness.

#![allow(clippy::unwrap_used)]

use super::{Action, Attempt, Event, ImportState, Machine, Outcome};
use std::time::Duration;
use tokio::time::Instant;
use wire::{MSG_CONNECT_RECONNECT, MSG_CONNECT_RECOVERING};

fn machine(nid_count: usize) -> Machine {
    Machine::new(nid_count, Duration::from_secs(25), Duration::from_secs(7), 0)
}

fn attempt_of(actions: &[Action]) -> Attempt {
    let found = actions.iter().find_map(|a| match a {
        Action::Connect(attempt) => Some(*attempt),
        _ => None,
    });
    found.unwrap()
}

fn connect_event(conn_cnt: u32, handle: u64, op_flags: u32) -> Event {
    Event::Connect {
        conn_cnt,
        outcome: Outcome::Connected { handle, op_flags },
    }
}

fn connected_machine(t: Instant) -> Machine {
    let mut m = machine(1);
    assert_eq!(attempt_of(&m.on(Event::Open, t, false)).conn_cnt, 1);
    assert_eq!(
        m.on(connect_event(1, 77, 0), t, false),
        [Action::AnnounceConnected]
    );
    m.on(Event::Heard { ping: false }, t, false);
    m
}

/// Breaks the connection; the server answers the next attempt with `handle` and `op_flags`.
fn reconnect(m: &mut Machine, t: Instant, handle: u64, op_flags: u32) -> Vec<Action> {
    let actions = m.on(
        Event::Broken {
            conn_cnt: m.conn_cnt(),
        },
        t,
        false,
    );
    assert_eq!(actions[0], Action::AnnounceDisconnected);
    let attempt = attempt_of(&actions);
    m.on(connect_event(attempt.conn_cnt, handle, op_flags), t, false)
}

#[test]
fn reconnecting_to_a_known_export_keeps_locks() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    assert_eq!(
        reconnect(&mut m, t, 77, MSG_CONNECT_RECONNECT),
        [Action::AnnounceConnected]
    );
    assert_eq!(
        (m.state(), m.conn_cnt(), m.evictions()),
        (ImportState::Full, 2, 0)
    );
}

#[test]
fn a_new_export_means_an_eviction() {
    for (handle, flags) in [
        (78, 0),
        (78, MSG_CONNECT_RECONNECT),
        (78, MSG_CONNECT_RECOVERING),
        (77, MSG_CONNECT_RECONNECT | MSG_CONNECT_RECOVERING),
    ] {
        let t = Instant::now();
        let mut m = connected_machine(t);
        assert_eq!(
            reconnect(&mut m, t, handle, flags),
            [Action::Invalidate],
            "{handle} {flags}"
        );
        assert_eq!((m.state(), m.evictions()), (ImportState::Evicted, 1));
        assert_eq!(m.evictions_announced(), 0);
        assert_eq!(m.on(Event::Invalidated, t, false), [Action::AnnounceConnected]);
        assert_eq!((m.state(), m.handle()), (ImportState::Full, handle));
        assert_eq!(m.evictions_announced(), 1);
    }
}

/// Fails `count` attempts at once. Returns the index of the NID of each attempt, whether the
/// attempt was brief, and the time since the previous attempt.
fn failing_attempts(m: &mut Machine, t: Instant, count: usize) -> Vec<(usize, bool, Duration)> {
    let (mut now, mut previous_begin) = (t, t);
    let mut attempt = attempt_of(&m.on(Event::Open, t, false));
    let mut attempts = Vec::new();
    while attempts.len() < count {
        attempts.push((attempt.nid_index, attempt.brief, now - previous_begin));
        previous_begin = now;
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
    attempts
}

#[test]
fn attempts_go_round_the_nids_and_pause_after_each_round() {
    let mut m = machine(3);
    let attempts = failing_attempts(&mut m, Instant::now(), 7);
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
    assert_eq!(attempts, expected);
    assert_eq!(m.failed_rounds(), 2);
}

#[test]
fn jitter_spreads_the_attempts_of_many_clients_within_a_second() {
    let pause = |jitter: u8| {
        let mut m = Machine::new(1, Duration::from_secs(25), Duration::from_secs(7), jitter);
        let attempts = failing_attempts(&mut m, Instant::now(), 5000);
        assert!(attempts.iter().all(|(.., pause)| *pause < Duration::from_secs(1)));
        attempts[4999].2
    };
    let pauses: std::collections::BTreeSet<Duration> = (0..=255).map(pause).collect();
    assert_eq!(pauses.len(), 256);
    assert!(*pauses.first().unwrap() >= Duration::from_millis(800));
}

#[test]
fn events_of_an_older_connection_are_ignored() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    reconnect(&mut m, t, 77, MSG_CONNECT_RECONNECT);
    assert!(m.on(Event::Broken { conn_cnt: 1 }, t, false).is_empty());
    assert!(m.on(connect_event(1, 99, 0), t, false).is_empty());
    assert_eq!(m.state(), ImportState::Full);
}

#[test]
fn reconnecting_waits_if_the_last_connection_never_worked() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    reconnect(&mut m, t, 77, MSG_CONNECT_RECONNECT);
    assert_eq!(
        m.on(Event::Broken { conn_cnt: 2 }, t, false),
        [Action::AnnounceDisconnected]
    );
    assert_eq!(m.wake_at(false), Some(t + Duration::from_millis(250)));
}

#[test]
fn probe_if_silent_pings_only_a_silent_server() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    let quiet = Duration::from_secs(1);
    let probe_if_silent = |m: &mut Machine, after: u64| {
        m.on(
            Event::ProbeIfSilent { quiet },
            t + Duration::from_millis(after),
            false,
        )
    };
    assert_eq!(probe_if_silent(&mut m, 999), []);
    assert_eq!(probe_if_silent(&mut m, 1000), [Action::Ping]);
    assert_eq!(probe_if_silent(&mut m, 3000), [], "a ping is in flight");
    m.on(Event::PingDone, t + Duration::from_secs(3), false);
    assert_eq!(probe_if_silent(&mut m, 3500), []);
    assert_eq!(probe_if_silent(&mut m, 4000), [Action::Ping]);
}

#[test]
fn an_idle_import_pings_and_one_with_uncommitted_work_pings_soon() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    assert_eq!(m.wake_at(false), Some(t + Duration::from_secs(25)));
    assert_eq!(m.wake_at(true), Some(t + Duration::from_secs(7)));
    let ping_time = t + Duration::from_secs(7);
    assert!(m.on(Event::Tick, ping_time, false).is_empty());
    assert_eq!(m.on(Event::Tick, ping_time, true), [Action::Ping]);
    assert_eq!(m.wake_at(true), None);
    m.on(Event::Heard { ping: true }, ping_time, true);
    m.on(Event::PingDone, ping_time, true);
    assert_eq!(m.wake_at(true), Some(ping_time + Duration::from_secs(7)));
}

#[test]
fn an_unused_import_disconnects_and_reconnects_on_demand() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    m.set_idle_timeout(Some(Duration::from_secs(20)), t);
    let last_request = t + Duration::from_secs(10);
    m.on(Event::Heard { ping: false }, last_request, false);
    m.on(
        Event::Heard { ping: true },
        last_request + Duration::from_secs(9),
        false,
    );
    assert_eq!(m.wake_at(false), Some(last_request + Duration::from_secs(20)));
    let idle_time = last_request + Duration::from_secs(20);
    assert_eq!(m.on(Event::Tick, idle_time, false), [Action::CheckIdle]);
    // The owner holds locks: the machine checks again soon.
    assert_eq!(m.wake_at(false), Some(idle_time + Duration::from_secs(5)));
    m.on(Event::IdleDisconnect, idle_time, false);
    assert_eq!((m.state(), m.wake_at(false)), (ImportState::Idle, None));
    let attempt = attempt_of(&m.on(Event::Open, idle_time, false));
    assert_eq!((attempt.conn_cnt, attempt.handle), (2, 0));
    assert_eq!(
        m.on(connect_event(2, 99, 0), idle_time, false),
        [Action::AnnounceConnected]
    );
    assert_eq!(m.evictions(), 0);
}

#[test]
fn a_request_overtaken_by_the_disconnect_reconnects() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    m.on(Event::IdleDisconnect, t, false);
    let attempt = attempt_of(&m.on(Event::Broken { conn_cnt: 1 }, t, false));
    assert_eq!((attempt.conn_cnt, attempt.handle), (2, 0));
}

#[test]
fn a_closed_import_stays_closed() {
    let t = Instant::now();
    let mut m = connected_machine(t);
    assert_eq!(m.on(Event::Close, t, false), [Action::AnnounceClosed]);
    assert!(m.on(Event::Close, t, false).is_empty());
    assert!(m.on(Event::Open, t, false).is_empty());
    assert_eq!(m.wake_at(false), None);
}
