//! Tests of grants, queues, revocations and timeouts in one shard.
#![allow(clippy::unwrap_used)]

use super::Namespace;
use crate::action::{Action, LockRequest, Placement, Refusal};
use crate::lock::{Holder, LockId};
use crate::mode::LockMode::{self, Cr, Cw, Ex, Group, Pr, Pw};
use crate::policy::{Extent, Ibits, Policy};
use cpt::HashSeed;
use std::time::{Duration, Instant};
use wire::LdlmResId;

const RES: LdlmResId = LdlmResId { name: [1, 2, 3, 4] };
const TIMEOUT: Duration = Duration::from_secs(100);

struct Shard {
    ns: Namespace,
    now: Instant,
    out: Vec<Action>,
    cookie: u64,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            ns: Namespace::new(1, 1, HashSeed::fixed(0), TIMEOUT),
            now: Instant::now(),
            out: Vec::new(),
            cookie: 0,
        }
    }

    fn enqueue(&mut self, holder: u64, mode: LockMode, policy: Policy) -> Result<Placement, Refusal> {
        self.cookie += 1;
        let request = LockRequest::new(Holder(holder), self.cookie, RES, mode, policy);
        self.ns.enqueue(self.now, &request, &mut self.out)
    }

    fn grant(&mut self, holder: u64, mode: LockMode, policy: Policy) -> LockId {
        match self.enqueue(holder, mode, policy) {
            Ok(Placement::Granted(id)) => id,
            other => panic!("not granted: {other:?}"),
        }
    }

    fn queue(&mut self, holder: u64, mode: LockMode, policy: Policy) -> LockId {
        match self.enqueue(holder, mode, policy) {
            Ok(Placement::Queued { id, .. }) => id,
            other => panic!("not queued: {other:?}"),
        }
    }

    fn cancel(&mut self, id: LockId) {
        self.ns.cancel(self.now, id, &mut self.out).unwrap();
    }

    fn completions(&mut self) -> Vec<(LockId, bool)> {
        let completed = self.out.iter().filter_map(|a| match a {
            Action::Completion { lock, ast_sent, .. } => Some((lock.id, *ast_sent)),
            _ => None,
        });
        completed.collect()
    }
}

fn optional(bits: u64, try_bits: u64) -> Policy {
    Policy::Ibits(Ibits { bits, try_bits })
}

#[test]
fn disjoint_bits_do_not_conflict() {
    let mut shard = Shard::new();
    shard.grant(1, Ex, Policy::ibits(1));
    shard.grant(2, Ex, Policy::ibits(2));
    shard.queue(3, Pr, Policy::ibits(3));
}

#[test]
fn only_locks_with_bits_in_common_are_revoked() {
    /// Bits that the writer below does not request.
    const OTHERS: u64 = 0x111;
    let mut shard = Shard::new();
    for holder in 0..20 {
        shard.grant(holder, Pr, Policy::ibits(OTHERS));
    }
    shard.grant(20, Cw, Policy::ibits(2));
    let held = shard.grant(21, Cr, Policy::ibits(3));
    let writer = shard.queue(22, Ex, Policy::ibits(2 | 0x200));
    let blocking_asts: Vec<_> = shard
        .out
        .iter()
        .filter(|a| matches!(a, Action::Blocking { .. }))
        .collect();
    assert_eq!(blocking_asts.len(), 2, "{blocking_asts:?}");
    let first = shard.ns.granted(&RES).find(|l| l.mode == Cw).unwrap().id;
    shard.cancel(first);
    assert!(shard.completions().is_empty());
    let left = shard.ns.convert(shard.now, held, 1, &mut shard.out);
    assert_eq!((left, shard.completions()), (Some(1), vec![(writer, false)]));
    shard.queue(23, Cw, Policy::ibits(1));
    shard.cancel(held);
    shard.queue(24, Cw, Policy::ibits(2));
}

#[test]
fn each_of_many_holders_gets_one_ast_and_another_for_bits_kept_by_a_conversion() {
    let mut shard = Shard::new();
    let held: Vec<LockId> = (0..20)
        .map(|h| shard.grant(h + 1, Pr, Policy::ibits(3)))
        .collect();
    let first = shard.queue(30, Pw, Policy::ibits(1));
    shard.queue(31, Pw, Policy::ibits(1));
    assert_eq!(shard.out.len(), 20);
    shard.out.clear();
    for id in &held {
        shard.ns.convert(shard.now, *id, 2, &mut shard.out);
    }
    assert_eq!(shard.completions(), [(first, true)]);
    shard.out.clear();
    shard.queue(32, Pw, Policy::ibits(2));
    shard.queue(33, Pw, Policy::ibits(2));
    assert_eq!(shard.out.len(), 20);
}

#[test]
fn the_blocking_ast_is_sent_once_with_the_bits_to_cancel() {
    let mut shard = Shard::new();
    let held = shard.grant(1, Pr, Policy::ibits(0x13));
    shard.queue(2, Pw, Policy::ibits(2));
    shard.queue(3, Pw, Policy::ibits(2));
    let [Action::Blocking { lock, blocked, .. }] = &shard.out[..] else {
        panic!("{:?}", shard.out)
    };
    assert_eq!(lock.id, held);
    assert_eq!(
        (blocked.l_req_mode, blocked.l_policy_data.cancel_bits()),
        (wire::LCK_PW, 2)
    );
}

#[test]
fn a_lock_on_behalf_of_a_client_does_not_conflict_with_its_locks() {
    let mut shard = Shard::new();
    let own = shard.grant(1, Pr, Policy::ibits(2));
    let others = shard.grant(2, Pr, Policy::ibits(2));
    let request = LockRequest::local(Holder::SERVER, 0, RES, Pw, Policy::ibits(2));
    let request = LockRequest {
        on_behalf: Holder(1),
        ..request
    };
    let placement = shard.ns.enqueue(shard.now, &request, &mut shard.out).unwrap();
    assert!(matches!(placement, Placement::Queued { .. }), "{placement:?}");
    let revoked = |shard: &Shard| {
        let revoked = shard.out.iter().filter_map(|a| match a {
            Action::Blocking { lock, .. } => Some(lock.id),
            _ => None,
        });
        revoked.collect::<Vec<_>>()
    };
    assert_eq!(revoked(&shard), [others]);
    shard.cancel(others);
    assert!(matches!(
        shard.out.last(),
        Some(Action::Wake { granted: true, .. })
    ));
    // The server's lock does not block new locks of that client; other clients wait.
    shard.grant(1, Pr, Policy::ibits(2));
    shard.queue(2, Pr, Policy::ibits(2));
    assert_eq!(revoked(&shard), [others]);
    assert!(shard.ns.get(own).is_some());
}

#[test]
fn optional_bits_are_granted_only_if_free() {
    let mut shard = Shard::new();
    shard.grant(1, Ex, Policy::ibits(8));
    let id = shard.grant(2, Pr, optional(1, 2 | 8));
    assert_eq!(shard.ns.get(id).unwrap().policy, Policy::ibits(3));
    assert_eq!(
        shard.enqueue(3, Pr, optional(0, 8)).err(),
        Some(Refusal::WouldBlock)
    );
    assert!(shard.out.is_empty(), "optional bits revoke no lock");
}

#[test]
fn locks_are_granted_in_the_order_of_waiting() {
    let mut shard = Shard::new();
    let reader = shard.grant(1, Pr, Policy::Plain);
    let writer = shard.queue(2, Ex, Policy::Plain);
    let late = shard.queue(3, Pr, Policy::Plain);
    shard.cancel(reader);
    assert_eq!(
        shard.completions(),
        [(writer, true)],
        "the writer already blocks the next lock"
    );
    shard.out.clear();
    shard.cancel(writer);
    assert_eq!(shard.completions(), [(late, false)]);
}

#[test]
fn wait_counts_until_its_grant_and_a_cancelled_wait_does_not_count() {
    let mut shard = Shard::new();
    let reader = shard.grant(1, Pr, Policy::Plain);
    shard.queue(2, Ex, Policy::Plain);
    let cancelled = shard.queue(3, Ex, Policy::Plain);
    assert_eq!(shard.ns.waiting_count(), 2);
    shard.now += Duration::from_millis(3);
    shard.cancel(cancelled);
    assert_eq!((shard.ns.waiting_count(), shard.ns.wait_sums().count), (1, 0));
    shard.now += Duration::from_millis(4);
    shard.cancel(reader);
    let waits = shard.ns.wait_sums();
    assert_eq!(shard.ns.waiting_count(), 0);
    assert_eq!((waits.count, waits.sum), (1, 7000), "microseconds");
}

#[test]
fn converting_a_lock_grants_waiting_ones() {
    let mut shard = Shard::new();
    let held = shard.grant(1, Pr, Policy::ibits(3));
    let first = shard.queue(2, Pw, Policy::ibits(2));
    shard.queue(3, Pw, Policy::ibits(1));
    shard.out.clear();
    assert_eq!(shard.ns.convert(shard.now, held, 1, &mut shard.out), Some(1));
    assert_eq!(shard.completions(), [(first, false)]);
    let revoked_again = shard
        .out
        .iter()
        .any(|a| matches!(a, Action::Blocking { lock, .. } if lock.id == held));
    assert!(revoked_again, "the remaining bits block another lock");
}

#[test]
fn cancel_on_block_drops_the_lock_at_once() {
    let mut shard = Shard::new();
    shard.cookie += 1;
    let droppable = LockRequest {
        cancel_on_block: true,
        ..LockRequest::new(Holder(1), 1, RES, Pr, Policy::Plain)
    };
    shard.ns.enqueue(shard.now, &droppable, &mut shard.out).unwrap();
    shard.grant(2, Ex, Policy::Plain);
    assert!(matches!(&shard.out[..], [Action::Blocking { .. }]));
    assert!(!shard.ns.has_revoked(), "no timer runs");
    assert_eq!(shard.ns.lock_count(), 1);
}

#[test]
fn a_group_lock_joins_its_group_ahead_of_waiting_locks() {
    let group = |gid| Policy::Extent(Extent { gid, ..Extent::WHOLE });
    let mut shard = Shard::new();
    shard.grant(1, Group, group(7));
    shard.queue(2, Group, group(8));
    shard.queue(3, Pr, Policy::extent(0, 0));
    shard.grant(4, Group, group(7));
}

#[test]
fn group_locks_wait_ahead_of_other_locks_and_beside_their_group() {
    let group = |gid| Policy::Extent(Extent { gid, ..Extent::WHOLE });
    let mut shard = Shard::new();
    let held = shard.grant(1, Group, group(7));
    let reader = shard.queue(2, Pr, Policy::extent(0, 0));
    let first = shard.queue(3, Group, group(8));
    let other = shard.queue(4, Group, group(9));
    let second = shard.queue(5, Group, group(8));
    shard.out.clear();
    shard.cancel(held);
    assert_eq!(shard.completions(), [(first, false), (second, false)]);
    shard.cancel(first);
    shard.cancel(second);
    shard.cancel(other);
    let granted: Vec<LockId> = shard.completions().iter().map(|(id, _)| *id).collect();
    assert_eq!(granted, [first, second, other, reader]);
}

#[test]
fn a_holder_is_evicted_after_the_timeout() {
    let mut shard = Shard::new();
    let held = shard.grant(1, Pw, Policy::extent(0, 0));
    shard.queue(2, Pw, Policy::extent(0, 0));
    shard
        .ns
        .expire(shard.now + TIMEOUT - Duration::from_millis(1), &mut shard.out);
    assert_eq!(shard.out.len(), 1);
    shard.ns.expire(shard.now + TIMEOUT, &mut shard.out);
    assert!(matches!(&shard.out[1..], [Action::Evict { holder: Holder(1), id, .. }] if *id == held));
    shard.ns.drop_holder(shard.now, Holder(1), &mut shard.out);
    assert_eq!(shard.completions().len(), 1);
    assert!(!shard.ns.has_revoked());
}

#[test]
fn an_eviction_does_not_extend_the_time_to_cancel() {
    let mut shard = Shard::new();
    shard.grant(1, Ex, Policy::Plain);
    shard.queue(2, Ex, Policy::Plain);
    // A callback without a reply may evict the client before its timer expires.
    shard.now += TIMEOUT;
    shard.ns.drop_holder(shard.now, Holder(1), &mut shard.out);
    assert_eq!(shard.ns.cancel_timeout(), TIMEOUT);
}

#[test]
fn a_resource_has_locks_of_one_type() {
    let mut shard = Shard::new();
    shard.grant(1, Pr, Policy::Plain);
    assert_eq!(
        shard.enqueue(1, Pr, Policy::ibits(1)).err(),
        Some(Refusal::WrongType)
    );
}

#[test]
fn a_stale_handle_is_unknown() {
    let mut shard = Shard::new();
    let old = shard.grant(1, Pr, Policy::Plain);
    shard.cancel(old);
    let current = shard.grant(1, Pr, Policy::Plain);
    assert_ne!(old, current);
    assert!(shard.ns.get(old).is_none());
    assert_eq!(current.shard(), 1);
}

#[test]
fn a_writer_waits_for_the_last_of_many_readers() {
    let mut shard = Shard::new();
    let readers: Vec<LockId> = (0..100)
        .map(|i| shard.grant(i + 1, Pr, Policy::ibits(2)))
        .collect();
    shard.grant(200, Pr, Policy::ibits(2));
    shard.queue(201, Ex, Policy::ibits(2));
    assert_eq!(shard.out.len(), 101);
    shard.out.clear();
    readers.into_iter().for_each(|id| shard.cancel(id));
    assert!(shard.out.is_empty());
    shard.ns.drop_holder(shard.now, Holder(200), &mut shard.out);
    assert_eq!(shard.completions().len(), 1);
}
