//! Tests of the state machine of an import: connecting, evictions, pauses, pings, idleness.

#![allow(clippy::unwrap_used)]

use super::{Action, Attempt, Event, ImportState, Machine, Outcome};
use std::time::{Duration, Instant};
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

fn connected_machine(start: Instant) -> Machine {
    let mut machine = machine(1);
    assert_eq!(
        attempt_of(&machine.process(Event::Open, start, false)).conn_cnt,
        1
    );
    assert_eq!(
        machine.process(connect_event(1, 77, 0), start, false),
        [Action::AnnounceConnected]
    );
    machine.process(Event::Reply { ping: false }, start, false);
    machine
}

/// Breaks the connection; the server answers the next attempt with `handle` and `op_flags`.
fn reconnect(machine: &mut Machine, start: Instant, handle: u64, op_flags: u32) -> Vec<Action> {
    let actions = machine.process(
        Event::Broken {
            conn_cnt: machine.conn_cnt(),
        },
        start,
        false,
    );
    assert_eq!(actions[0], Action::AnnounceDisconnected);
    let attempt = attempt_of(&actions);
    machine.process(connect_event(attempt.conn_cnt, handle, op_flags), start, false)
}

#[test]
fn reconnecting_to_a_known_export_keeps_locks() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    assert_eq!(
        reconnect(&mut machine, start, 77, MSG_CONNECT_RECONNECT),
        [Action::AnnounceConnected]
    );
    assert_eq!(
        (machine.state(), machine.conn_cnt(), machine.evictions()),
        (ImportState::Full, 2, 0)
    );
}

#[test]
fn a_new_export_means_an_eviction() {
    for (handle, flags) in [(78, 0), (78, MSG_CONNECT_RECONNECT)] {
        let start = Instant::now();
        let mut machine = connected_machine(start);
        assert_eq!(
            reconnect(&mut machine, start, handle, flags),
            [Action::Invalidate],
            "{handle} {flags}"
        );
        assert_eq!((machine.state(), machine.evictions()), (ImportState::Evicted, 1));
        assert_eq!(machine.evictions_announced(), 0);
        assert_eq!(
            machine.process(Event::Invalidated, start, false),
            [Action::AnnounceConnected]
        );
        assert_eq!((machine.state(), machine.handle()), (ImportState::Full, handle));
        assert_eq!(machine.evictions_announced(), 1);
    }
}

#[test]
fn a_recovering_server_gets_requests_and_locks_again() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    // The reply to the first connect at the restarted server may have been lost.
    let found = MSG_CONNECT_RECOVERING | MSG_CONNECT_RECONNECT;
    assert_eq!(
        reconnect(&mut connected_machine(start), start, 78, found),
        [Action::Recover { conn_cnt: 2 }]
    );
    let actions = reconnect(&mut machine, start, 78, MSG_CONNECT_RECOVERING);
    assert_eq!(actions, [Action::Recover { conn_cnt: 2 }]);
    let mut states = vec![machine.state()];
    for _ in 0..2 {
        assert_eq!(machine.process(Event::Replayed { conn_cnt: 1 }, start, false), []);
        assert_eq!(machine.process(Event::Replayed { conn_cnt: 2 }, start, false), []);
        states.push(machine.state());
    }
    assert_eq!(
        states,
        [
            ImportState::Replay,
            ImportState::ReplayLocks,
            ImportState::ReplayWait
        ]
    );
    // The connection is lost, and the client goes on with the same export.
    let flags = MSG_CONNECT_RECONNECT | MSG_CONNECT_RECOVERING;
    let actions = reconnect(&mut machine, start, 78, flags);
    assert_eq!(actions, [Action::Recover { conn_cnt: 3 }]);
    let replayed = Event::Replayed { conn_cnt: 3 };
    assert_eq!(machine.process(replayed, start, false), []);
    assert_eq!(machine.process(replayed, start, false), []);
    assert_eq!(
        machine.process(replayed, start, false),
        [Action::AnnounceConnected]
    );
    assert_eq!((machine.state(), machine.evictions()), (ImportState::Full, 0));
}

#[test]
fn a_refused_replay_means_an_eviction() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    reconnect(&mut machine, start, 78, MSG_CONNECT_RECOVERING);
    let refused = Event::ReplayRefused { conn_cnt: 2 };
    assert_eq!(machine.process(refused, start, false), [Action::Invalidate]);
    assert_eq!(machine.state(), ImportState::Evicted);
}

/// Makes `count` attempts that fail immediately. Returns for each attempt the index of its NID,
/// whether it was brief, and the time since the previous attempt.
fn failing_attempts(machine: &mut Machine, start: Instant, count: usize) -> Vec<(usize, bool, Duration)> {
    let (mut now, mut previous_begin) = (start, start);
    let mut attempt = attempt_of(&machine.process(Event::Open, start, false));
    let mut attempts = Vec::new();
    while attempts.len() < count {
        attempts.push((attempt.nid_index, attempt.brief, now - previous_begin));
        previous_begin = now;
        let failed = Event::Connect {
            conn_cnt: attempt.conn_cnt,
            outcome: Outcome::Failed,
        };
        let mut actions = machine.process(failed, now, false);
        if actions.is_empty() {
            now = machine.wake_at(false).unwrap();
            actions = machine.process(Event::Tick, now, false);
        }
        attempt = attempt_of(&actions);
    }
    attempts
}

#[test]
fn attempts_go_round_the_nids_and_pause_after_each_round() {
    let mut machine = machine(3);
    let attempts = failing_attempts(&mut machine, Instant::now(), 7);
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
    assert_eq!(machine.failed_rounds(), 2);
}

#[test]
fn jitter_spreads_the_attempts_of_many_clients_within_a_second() {
    let pause = |jitter: u8| {
        let mut machine = Machine::new(1, Duration::from_secs(25), Duration::from_secs(7), jitter);
        let attempts = failing_attempts(&mut machine, Instant::now(), 5000);
        assert!(attempts.iter().all(|(.., pause)| *pause < Duration::from_secs(1)));
        attempts[4999].2
    };
    let pauses: std::collections::BTreeSet<Duration> = (0..=255).map(pause).collect();
    assert_eq!(pauses.len(), 256);
    assert!(*pauses.first().unwrap() >= Duration::from_millis(800));
}

#[test]
fn events_of_an_older_connection_are_ignored() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    reconnect(&mut machine, start, 77, MSG_CONNECT_RECONNECT);
    assert!(
        machine
            .process(Event::Broken { conn_cnt: 1 }, start, false)
            .is_empty()
    );
    assert!(machine.process(connect_event(1, 99, 0), start, false).is_empty());
    assert_eq!(machine.state(), ImportState::Full);
}

#[test]
fn reconnecting_waits_if_the_last_connection_never_worked() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    reconnect(&mut machine, start, 77, MSG_CONNECT_RECONNECT);
    assert_eq!(
        machine.process(Event::Broken { conn_cnt: 2 }, start, false),
        [Action::AnnounceDisconnected]
    );
    assert_eq!(machine.wake_at(false), Some(start + Duration::from_millis(250)));
}

#[test]
fn probe_if_silent_pings_only_a_silent_server() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    let quiet = Duration::from_secs(1);
    let probe_if_silent = |machine: &mut Machine, after: u64| {
        machine.process(
            Event::ProbeIfSilent { quiet },
            start + Duration::from_millis(after),
            false,
        )
    };
    assert_eq!(probe_if_silent(&mut machine, 999), []);
    assert_eq!(probe_if_silent(&mut machine, 1000), [Action::Ping]);
    assert_eq!(probe_if_silent(&mut machine, 3000), [], "a ping is in flight");
    machine.process(Event::PingDone, start + Duration::from_secs(3), false);
    assert_eq!(probe_if_silent(&mut machine, 3500), []);
    assert_eq!(probe_if_silent(&mut machine, 4000), [Action::Ping]);
}

#[test]
fn a_silent_connection_is_pinged_sooner_with_uncommitted_transactions() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    assert_eq!(machine.wake_at(false), Some(start + Duration::from_secs(25)));
    assert_eq!(machine.wake_at(true), Some(start + Duration::from_secs(7)));
    let ping_time = start + Duration::from_secs(7);
    assert!(machine.process(Event::Tick, ping_time, false).is_empty());
    assert_eq!(machine.process(Event::Tick, ping_time, true), [Action::Ping]);
    assert_eq!(machine.wake_at(true), None);
    machine.process(Event::Reply { ping: true }, ping_time, true);
    machine.process(Event::PingDone, ping_time, true);
    assert_eq!(machine.wake_at(true), Some(ping_time + Duration::from_secs(7)));
}

#[test]
fn an_unused_import_disconnects_and_reconnects_on_demand() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    machine.set_idle_timeout(Some(Duration::from_secs(20)), start);
    let last_request = start + Duration::from_secs(10);
    machine.process(Event::Reply { ping: false }, last_request, false);
    machine.process(
        Event::Reply { ping: true },
        last_request + Duration::from_secs(9),
        false,
    );
    assert_eq!(
        machine.wake_at(false),
        Some(last_request + Duration::from_secs(20))
    );
    let idle_time = last_request + Duration::from_secs(20);
    assert_eq!(
        machine.process(Event::Tick, idle_time, false),
        [Action::CheckIdle]
    );
    // The owner holds locks: the machine checks again soon.
    assert_eq!(machine.wake_at(false), Some(idle_time + Duration::from_secs(5)));
    machine.process(Event::IdleDisconnect, idle_time, false);
    assert_eq!(
        (machine.state(), machine.wake_at(false)),
        (ImportState::Idle, None)
    );
    let attempt = attempt_of(&machine.process(Event::Open, idle_time, false));
    assert_eq!((attempt.conn_cnt, attempt.handle), (2, 0));
    assert_eq!(
        machine.process(connect_event(2, 99, 0), idle_time, false),
        [Action::AnnounceConnected]
    );
    assert_eq!(machine.evictions(), 0);
}

#[test]
fn a_request_overtaken_by_the_disconnect_reconnects() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    machine.process(Event::IdleDisconnect, start, false);
    let attempt = attempt_of(&machine.process(Event::Broken { conn_cnt: 1 }, start, false));
    assert_eq!((attempt.conn_cnt, attempt.handle), (2, 0));
}

#[test]
fn a_closed_import_stays_closed() {
    let start = Instant::now();
    let mut machine = connected_machine(start);
    assert_eq!(
        machine.process(Event::Close, start, false),
        [Action::AnnounceClosed]
    );
    assert!(machine.process(Event::Close, start, false).is_empty());
    assert!(machine.process(Event::Open, start, false).is_empty());
    assert_eq!(machine.wake_at(false), None);
}
