//! Tests of the state machine.

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
