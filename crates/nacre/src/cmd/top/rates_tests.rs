//! Tests of the differences between samples: processes start and end, counts are reset or lost,
//! clocks jump.
#![allow(clippy::unwrap_used)]

use super::{Load, NO_UID, loads, uid_of_job};
use crate::activity::{Activity, LockCounts, OperationCounts, Scope, ServiceCounts, ThrottleCounts};
use crate::cli::{By, Sort};
use crate::cmd::top::sample::Sample;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

const SECOND: u64 = 1_000_000;
/// The wall clock's time at the first sample, in microseconds.
const START: u64 = 1_000 * SECOND;

/// Counts of `scope`: `reads` reads of 4096 bytes, and twice as many metadata operations.
fn counts(target: &str, scope: Scope, since: u64, reads: u64) -> OperationCounts {
    OperationCounts {
        target: target.to_owned(),
        scope,
        since,
        reads,
        writes: 0,
        metadata: 2 * reads,
        read_bytes: 4096 * reads,
        written_bytes: 0,
        busy: 30 * reads,
    }
}

fn job(target: &str, name: &str, since: u64, reads: u64) -> OperationCounts {
    counts(target, Scope::Job(name.to_owned()), since, reads)
}

/// The counts of a process, read this many seconds after [`START`].
fn read(seconds: u64, operations: Vec<OperationCounts>) -> Activity {
    Activity {
        read_at: START + seconds * SECOND,
        clock: 7 * SECOND + seconds * SECOND,
        operations,
        ..Activity::default()
    }
}

fn sample(processes: Vec<(u32, Activity)>) -> Sample {
    let key = |(pid, activity)| ((pid, 1, String::new()), activity);
    Sample {
        processes: processes.into_iter().map(key).collect(),
        ..Sample::default()
    }
}

/// The loads between two samples of one process.
fn loads_of(before: Activity, after: Activity, by: By) -> Vec<Load> {
    let (before, after) = (sample(vec![(1, before)]), sample(vec![(1, after)]));
    loads(&before, &after, by, Sort::Operations)
}

/// Key and number of reads of each row.
fn reads(loads: &[Load]) -> Vec<(&str, u64)> {
    loads
        .iter()
        .map(|l| (l.key.as_str(), l.operations.as_ref().map_or(0, |o| o.total.reads)))
        .collect()
}

#[test]
fn counts_of_targets_and_processes_are_added_up_by_key() {
    let before = sample(vec![
        (
            1,
            read(0, vec![job("T0", "dd.0", 5, 10), job("T1", "dd.0", 5, 20)]),
        ),
        (2, read(0, vec![job("T2", "dd.0", 5, 30)])),
    ]);
    let after = sample(vec![
        (
            1,
            read(2, vec![job("T0", "dd.0", 5, 14), job("T1", "dd.0", 5, 22)]),
        ),
        (2, read(4, vec![job("T2", "dd.0", 5, 38)])),
    ]);
    let loads = loads(&before, &after, By::Job, Sort::Operations);
    assert_eq!(reads(&loads), [("dd.0", 14)]);
    let operations = loads[0].operations.as_ref().unwrap();
    assert_eq!(operations.per_second.reads, 2.0 + 1.0 + 2.0);
    assert_eq!(operations.total.metadata, 28);
    assert_eq!(operations.total.read_bytes, 14 * 4096);
    assert_eq!(operations.latency_usec, Some(10.0));
}

#[test]
fn new_job_counts_from_zero_and_idle_one_has_no_row() {
    let before = read(0, vec![job("T0", "idle", 5, 10)]);
    let after = read(1, vec![job("T0", "idle", 5, 10), job("T0", "new", START + 1, 3)]);
    assert_eq!(reads(&loads_of(before, after, By::Job)), [("new", 3)]);
}

#[test]
fn process_that_started_between_the_reads_does_not_count() {
    let target = |seconds, reads| read(seconds, vec![counts("T0", Scope::Target, 5, reads)]);
    let before = sample(vec![(1, target(0, 1_000_000))]);
    let mut after = sample(vec![(2, target(1, 900_000))]);
    assert_eq!(loads(&before, &after, By::Target, Sort::Operations), []);
    // The same id, but another start time.
    after.processes = [((1, 2, String::new()), target(1, 2_000_000))].into();
    assert_eq!(loads(&before, &after, By::Target, Sort::Operations), []);
    assert_eq!(
        after.uncounted_processes(&before).len(),
        2,
        "one ended, one started"
    );
    assert_eq!(after.seconds_since(&before), 0.0);
}

#[test]
fn counts_restart_at_a_reset_and_a_loss_without_reset_is_no_rate() {
    let total = |since, now| {
        let before = read(0, vec![job("T0", "a", 5, 1000)]);
        let after = read(1, vec![job("T0", "a", since, now)]);
        reads(&loads_of(before, after, By::Job)).first().map(|(_, n)| *n)
    };
    assert_eq!(total(5, 1001), Some(1));
    assert_eq!(total(START + 1, 7), Some(7), "reset");
    assert_eq!(total(START + 1, 2000), Some(2000), "reset, and more than before");
    assert_eq!(total(5, 900), None, "some counts were dropped");
    assert_eq!(
        total(START - 1, 900),
        None,
        "the oldest counts were dropped, others are older than the read"
    );
}

#[test]
fn samples_at_the_same_time_have_no_rates() {
    let target = |reads| read(3, vec![counts("T0", Scope::Target, 5, reads)]);
    assert_eq!(loads_of(target(1), target(2), By::Target), []);
}

#[test]
fn users_come_from_names_of_jobs() {
    assert_eq!(uid_of_job("dd.1000"), Some(1000));
    assert_eq!(uid_of_job("a.b.0"), Some(0));
    for job in ["4711", "dd.", "dd.x", "dd.+1", "dd.4294967296"] {
        assert_eq!(uid_of_job(job), None, "{job}");
    }
    let jobs = |reads| {
        ["dd.7", "cp.7", "4711"]
            .map(|name| job("T0", name, 5, reads))
            .to_vec()
    };
    let loads = loads_of(read(0, jobs(0)), read(1, jobs(4)), By::Uid);
    assert_eq!(reads(&loads), [("7", 8), (NO_UID, 4)]);
}

#[test]
fn throttled_requests_and_rules_belong_to_the_fields_of_their_class() {
    let class = |class: &str, rule: &str, throttled| ThrottleCounts {
        service: "ost_io".to_owned(),
        cpt: "0".to_owned(),
        class: class.to_owned(),
        rule: rule.to_owned(),
        throttled,
        wait: 1000 * throttled,
        waiting: 1,
    };
    let with = |seconds, throttles| Activity {
        throttles,
        ..read(seconds, vec![])
    };
    let (slow, other) = ("nid={1.2.3.4@tcp}&uid={500}", "nid={1.2.3.5@tcp}&uid={500}");
    let before = with(0, vec![class(slow, "slow", 5), class(other, "late", 9)]);
    let after = with(2, vec![class(slow, "slow", 9), class(other, "late", 9)]);
    let loads = |by| loads_of(before.clone(), after.clone(), by);
    let users = loads(By::Uid);
    assert_eq!((users.len(), users[0].key.as_str()), (1, "500"));
    let throttled = users[0].throttled.as_ref().unwrap();
    assert_eq!(
        (throttled.total, throttled.per_second, throttled.waiting),
        (4, 2.0, 2)
    );
    assert_eq!(throttled.wait_usec, Some(1000.0));
    assert_eq!(
        users[0].rules,
        ["slow".to_owned()].into(),
        "the other rule throttled none"
    );
    assert_eq!(users[0].operations, None, "no operations are counted by user");
    let keys = |by| loads(by).into_iter().map(|l| l.key).collect::<Vec<_>>();
    assert_eq!(keys(By::Nid), ["1.2.3.4@tcp", "1.2.3.5@tcp"]);
    assert_eq!(keys(By::Service), ["ost_io"]);
    assert_eq!(keys(By::Job), Vec::<String>::new());
}

#[test]
fn services_have_queues_and_targets_lock_waits() {
    let with = |seconds, requests, waits| Activity {
        services: [(
            "mdt".to_owned(),
            ServiceCounts {
                since: 5,
                requests,
                wait: 10 * requests,
                waiting: 3,
                active: 2,
            },
        )]
        .into(),
        locks: ["MGS", "T0"]
            .map(|name| {
                let wait = 500 * waits;
                (
                    name.to_owned(),
                    LockCounts {
                        waits,
                        wait,
                        waiting: 1,
                    },
                )
            })
            .into(),
        ..read(seconds, vec![counts("T0", Scope::Target, 5, requests)])
    };
    let (before, after) = (with(0, 100, 7), with(1, 120, 9));
    let services = loads_of(before.clone(), after.clone(), By::Service);
    let queue = services[0].queue.as_ref().unwrap();
    assert_eq!((queue.total, queue.wait_usec), (20, Some(10.0)));
    assert_eq!((queue.waiting, queue.active), (3, Some(2)));
    let targets = loads_of(before, after, By::Target);
    assert_eq!(targets.len(), 1, "the lock server of the MGS has no row");
    let locks = targets[0].locks.as_ref().unwrap();
    assert_eq!((locks.total, locks.wait_usec, locks.waiting), (2, Some(500.0), 1));
}

#[test]
fn rows_are_sorted_by_the_selected_number() {
    let counts = |reads: u64| {
        let big = OperationCounts {
            read_bytes: 1 << 20,
            ..job("T0", "big", 5, 1)
        };
        let slow = OperationCounts {
            busy: 1 << 20,
            read_bytes: 0,
            ..job("T0", "slow", 5, 1)
        };
        let all = vec![big, job("T0", "many", 5, 9), job("T0", "same", 5, 1), slow];
        all.into_iter().filter(|_| reads > 0).collect::<Vec<_>>()
    };
    let (before, after) = (
        sample(vec![(1, read(0, counts(0)))]),
        sample(vec![(1, read(1, counts(1)))]),
    );
    let keys = |sort| -> Vec<String> {
        let loads = loads(&before, &after, By::Job, sort);
        loads.into_iter().map(|l| l.key).collect()
    };
    assert_eq!(keys(Sort::Operations), ["many", "big", "same", "slow"]);
    assert_eq!(keys(Sort::Bytes), ["big", "many", "same", "slow"]);
    assert_eq!(keys(Sort::Latency), ["slow", "big", "many", "same"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any operations, resets, losses, restarts and steps of the wall clock: no rate is
    /// negative, the intervals count no operation twice, and without such events they count all.
    #[test]
    fn intervals_count_each_operation_at_most_once(
        steps in proptest::collection::vec((0_u64..50, 0_u8..12, -5_i64..5), 1..30),
    ) {
        let (mut done, mut is_undisturbed) = (100_u64, true);
        let (mut count, mut since, mut start) = (100_u64, START - SECOND, 1_u64);
        let at = |start: u64, clock: u64, wall: i64, since, count| {
            let activity = Activity {
                read_at: wall.unsigned_abs(),
                clock,
                ..read(0, vec![counts("T0", Scope::Target, since, count)])
            };
            Sample {
                processes: [((1, start, String::new()), activity)].into(),
                ..Sample::default()
            }
        };
        let (mut clock, mut wall) = (0_u64, i64::try_from(START).unwrap());
        let mut before = at(start, clock, wall, since, count);
        let mut counted = 0;
        for (new, event, clock_step) in steps {
            clock += SECOND;
            wall += i64::try_from(SECOND).unwrap();
            match event {
                // A reset, after which the wall clock goes on.
                0 => (count, since) = (0, wall.unsigned_abs()),
                // A part of the counts is lost.
                1 => count /= 2,
                // Another process has taken its place.
                2 => (start, count, since) = (start + 1, 0, wall.unsigned_abs()),
                // The wall clock jumps.
                3 => wall += clock_step * i64::try_from(SECOND).unwrap(),
                _ => {}
            }
            is_undisturbed &= event > 3;
            wall += 1;
            count += new;
            done += new;
            let after = at(start, clock, wall, since, count);
            for load in loads(&before, &after, By::Target, Sort::Operations) {
                let operations = load.operations.unwrap();
                prop_assert!(operations.per_second.reads >= 0.0);
                prop_assert_eq!(operations.per_second.reads, operations.total.reads as f64);
                prop_assert!(operations.total.reads <= new, "{} of {new}", operations.total.reads);
                counted += operations.total.reads;
            }
            before = after;
        }
        prop_assert!(counted <= done - 100);
        if is_undisturbed {
            prop_assert_eq!(counted, done - 100);
        }
    }

    /// For any counts the differences do not overflow.
    #[test]
    fn any_counts_have_finite_rates(before in any::<[u64; 4]>(), after in any::<[u64; 4]>()) {
        let read = |[since, n, wait, clock]: [u64; 4]| Activity {
            clock,
            read_at: since,
            operations: vec![OperationCounts {
                reads: n,
                writes: wait,
                metadata: n,
                busy: wait,
                read_bytes: n,
                written_bytes: wait,
                ..counts("T0", Scope::Target, since, 0)
            }],
            ..Activity::default()
        };
        for load in loads_of(read(before), read(after), By::Target) {
            let operations = load.operations.unwrap();
            prop_assert!(operations.per_second.writes.is_finite());
            prop_assert!(operations.latency_usec.is_none_or(f64::is_finite));
        }
    }
}
