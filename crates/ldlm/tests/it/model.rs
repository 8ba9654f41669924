//! Random requests, cancels, conversions and disconnects against the rules of a lock manager:
//! granted locks do not conflict, each waiting lock conflicts with another, no grant overtakes a
//! conflicting lock that waits longer (except group locks and flocks), and no lock is left at the
//! end.
#![allow(clippy::unwrap_used)]

use cpt::HashSeed;
use ldlm::{
    Action, Extent, Flock, Holder, Ibits, Lock, LockId, LockMode, LockRequest, Namespace, Placement, Policy,
    Waiter,
};
use proptest::prelude::{Strategy, any, prop, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::HashSet;
use std::time::{Duration, Instant};
use wire::LdlmResId;

const PLAIN: LdlmResId = LdlmResId { name: [1, 0, 0, 0] };
const IBITS: LdlmResId = LdlmResId { name: [2, 0, 0, 0] };
const EXTENT: LdlmResId = LdlmResId { name: [3, 0, 0, 0] };
const FLOCKS: [LdlmResId; 2] = [
    LdlmResId { name: [4, 0, 0, 12] },
    LdlmResId { name: [5, 0, 0, 12] },
];
const ALL: [LdlmResId; 5] = [PLAIN, IBITS, EXTENT, FLOCKS[0], FLOCKS[1]];
const TIMEOUT: Duration = Duration::from_secs(100);

#[derive(Clone, Debug)]
enum Event {
    Enqueue(LockRequest),
    /// The lock.
    Cancel(prop::sample::Index),
    /// A lock, and the bits to keep.
    Convert(prop::sample::Index, u64),
    /// The holder that disconnects.
    DropHolder(u64),
    /// The holder that does I/O under its extent locks.
    Prolong(u64),
    /// How long no other event happens, seconds.
    Wait(u64),
}

fn mode() -> impl Strategy<Value = LockMode> {
    use LockMode::{Cr, Cw, Ex, Pr, Pw};
    prop::sample::select(vec![Ex, Pw, Pr, Cw, Cr])
}

fn flock_mode() -> impl Strategy<Value = LockMode> {
    prop::sample::select(vec![LockMode::Pr, LockMode::Pw, LockMode::Nl])
}

/// A resource with a mode and a policy that suit its type.
fn resource_and_policy() -> impl Strategy<Value = (LdlmResId, LockMode, Policy)> {
    prop_oneof![
        mode().prop_map(|m| (PLAIN, m, Policy::Plain)),
        (mode(), 0..16u64, 0..16u64).prop_map(|(m, bits, try_bits)| (
            IBITS,
            m,
            Policy::Ibits(Ibits { bits, try_bits })
        )),
        (mode(), 0..8u64, 0..4u64).prop_map(|(m, s, n)| (
            EXTENT,
            m,
            Policy::extent(s << 12, ((s + n) << 12) | 0xfff)
        )),
        (0..8u64, 1..3u64).prop_map(|(s, gid)| {
            (
                EXTENT,
                LockMode::Group,
                Policy::Extent(Extent {
                    start: s << 12,
                    end: u64::MAX,
                    gid,
                }),
            )
        }),
        (flock_mode(), 0..8u64, 0..4u64, 0..3u64, 0..2usize).prop_map(|(m, start, n, owner, file)| {
            (
                FLOCKS[file],
                m,
                Policy::Flock(Flock {
                    start,
                    end: start + n,
                    owner,
                    pid: 1,
                }),
            )
        }),
    ]
}

fn enqueue() -> impl Strategy<Value = LockRequest> {
    (0..4u64, resource_and_policy(), any::<u64>(), any::<[bool; 5]>()).prop_map(
        |(holder, (res, mode, policy), cookie, flags)| LockRequest {
            waiter: if flags[0] || holder == 0 {
                Waiter::Local
            } else {
                Waiter::Client
            },
            no_wait: flags[1] && flags[2],
            no_expansion: flags[2],
            cancel_on_block: flags[3] && flags[1],
            report_deadlock: flags[4],
            ..LockRequest::new(Holder(holder), cookie, res, mode, policy)
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => enqueue().prop_map(Event::Enqueue),
        5 => any::<prop::sample::Index>().prop_map(Event::Cancel),
        1 => (any::<prop::sample::Index>(), 0..16u64).prop_map(|(i, keep)| Event::Convert(i, keep)),
        1 => (1..4u64).prop_map(Event::DropHolder),
        1 => (1..4u64).prop_map(Event::Prolong),
        1 => (1..200u64).prop_map(Event::Wait),
    ]
}

/// The published compatibility table, written independently of the code under test.
fn compatible(a: LockMode, b: LockMode) -> bool {
    let row = |m| match m {
        LockMode::Ex => "NL",
        LockMode::Pw => "NL CR",
        LockMode::Pr => "NL CR PR TXN",
        LockMode::Cw => "NL CR CW",
        LockMode::Cr => "NL CR CW PR PW TXN",
        LockMode::Group => "NL GROUP",
        // The events of this test request no such lock, except NL to unlock a flock.
        LockMode::Nl | LockMode::Cos | LockMode::Txn => "-",
    };
    let name = format!("{b:?}").to_uppercase();
    row(a).split(' ').any(|n| n == name)
}

fn conflict(a: &Lock, b: &Lock) -> bool {
    match (a.policy, b.policy) {
        (Policy::Plain, Policy::Plain) => !compatible(a.mode, b.mode),
        (Policy::Ibits(x), Policy::Ibits(y)) => !compatible(a.mode, b.mode) && x.bits & y.bits != 0,
        (Policy::Extent(x), Policy::Extent(y)) => {
            let other_group = a.mode == LockMode::Group && b.mode == LockMode::Group && x.gid != y.gid;
            (!compatible(a.mode, b.mode) || other_group) && x.start <= y.end && y.start <= x.end
        }
        (Policy::Flock(x), Policy::Flock(y)) => {
            let same_owner = a.holder == b.holder && x.owner == y.owner;
            !same_owner && !compatible(a.mode, b.mode) && x.start <= y.end && y.start <= x.end
        }
        _ => panic!("locks of two types on one resource"),
    }
}

struct Model {
    ns: Namespace,
    now: Instant,
    waiting: HashSet<LockId>,
}

impl Model {
    fn new() -> Model {
        Model {
            ns: Namespace::new(3, 7, HashSeed::fixed(0), TIMEOUT),
            now: Instant::now(),
            waiting: HashSet::new(),
        }
    }

    fn locks(&self) -> Vec<Lock> {
        ALL.iter()
            .flat_map(|r| self.ns.granted(r).chain(self.ns.waiting(r)))
            .cloned()
            .collect()
    }

    fn step(&mut self, event: &Event) -> Result<(), proptest::test_runner::TestCaseError> {
        let before = self.locks();
        let mut out = Vec::new();
        let (now, ns) = (self.now, &mut self.ns);
        let mut newly_granted: Vec<LockId> = Vec::new();
        let mut removed: Vec<LockId> = Vec::new();
        match event {
            Event::Enqueue(request) => match ns.enqueue(now, request, &mut out) {
                Ok(Placement::Granted(id)) => newly_granted.push(id),
                Ok(Placement::Queued { id, .. }) => {
                    prop_assert!(!request.no_wait);
                    self.waiting.insert(id);
                }
                Ok(Placement::Unlocked(_)) | Ok(Placement::Tested { .. }) | Err(_) => {}
            },
            Event::Cancel(i) if !before.is_empty() => {
                let lock = i.get(&before);
                prop_assert!(ns.cancel(now, lock.id, &mut out).is_some());
                prop_assert!(ns.cancel(now, lock.id, &mut out).is_none());
                removed.push(lock.id);
            }
            Event::Convert(i, keep) if !before.is_empty() => {
                let lock = i.get(&before);
                let bits = ns.convert(now, lock.id, *keep, &mut out);
                prop_assert_eq!(
                    bits.is_some(),
                    lock.granted && matches!(lock.policy, Policy::Ibits(_))
                );
            }
            Event::DropHolder(holder) => {
                removed.extend(
                    before
                        .iter()
                        .filter(|l| l.holder == Holder(*holder))
                        .map(|l| l.id),
                );
                prop_assert_eq!(ns.drop_holder(now, Holder(*holder), &mut out), removed.len());
            }
            Event::Prolong(holder) => ns.prolong(now, Holder(*holder), &EXTENT),
            Event::Wait(secs) => {
                self.now += Duration::from_secs(*secs);
                ns.expire(self.now, &mut out);
            }
            Event::Cancel(_) | Event::Convert(..) => {}
        }
        for action in &out {
            match action {
                Action::Completion {
                    lock,
                    deadlock: false,
                    ..
                } => {
                    prop_assert!(
                        self.waiting.remove(&lock.id),
                        "completed a lock that did not wait"
                    );
                    newly_granted.push(lock.id);
                }
                Action::Completion { lock, .. } => {
                    self.waiting.remove(&lock.id);
                }
                Action::Wake { id, granted } => {
                    prop_assert!(self.waiting.remove(id), "woke a lock that did not wait");
                    if *granted {
                        newly_granted.push(*id);
                    }
                }
                Action::Blocking { lock, .. } => prop_assert!(lock.granted && lock.holder != Holder::SERVER),
                Action::StaleLvb(res) => prop_assert_eq!(*res, EXTENT),
                Action::Evict { holder, .. } => prop_assert!(*holder != Holder::SERVER),
            }
        }
        for id in removed {
            self.waiting.remove(&id);
        }
        self.check(&newly_granted)
    }

    /// Checks the rules, after an event that granted the locks in `newly_granted`.
    fn check(&self, newly_granted: &[LockId]) -> Result<(), proptest::test_runner::TestCaseError> {
        let mut waiting = 0;
        for res in &ALL {
            let flocks = FLOCKS.contains(res);
            let granted: Vec<&Lock> = self.ns.granted(res).collect();
            let queue: Vec<&Lock> = self.ns.waiting(res).collect();
            waiting += queue.len();
            for (i, a) in granted.iter().enumerate() {
                prop_assert!(a.granted);
                for b in &granted[..i] {
                    prop_assert!(!conflict(a, b), "both granted: {a:?} {b:?}");
                }
            }
            for (i, waiting_lock) in queue.iter().enumerate() {
                prop_assert!(self.waiting.contains(&waiting_lock.id));
                let blockers: Vec<&&Lock> = granted.iter().filter(|g| conflict(g, waiting_lock)).collect();
                let ahead = queue[..i].iter().any(|a| conflict(a, waiting_lock));
                prop_assert!(
                    !blockers.is_empty() || (ahead && !flocks),
                    "waits for nothing: {waiting_lock:?}"
                );
                prop_assert!(
                    flocks || blockers.iter().all(|b| b.ast_sent != (b.mode == LockMode::Group)),
                    "no blocking AST: {waiting_lock:?} {blockers:?}"
                );
                let overtakes = |g: &&&Lock| {
                    newly_granted.contains(&g.id) && conflict(g, waiting_lock) && g.mode != LockMode::Group
                };
                prop_assert!(
                    flocks
                        || !granted
                            .iter()
                            .any(|g| overtakes(&g) && self.arrived_later(g, waiting_lock)),
                    "overtaken: {waiting_lock:?}"
                );
            }
        }
        prop_assert_eq!(waiting, self.waiting.len());
        prop_assert_eq!(self.ns.waiting_count(), waiting);
        Ok(())
    }

    /// Whether a granted lock was requested after one that still waits. Compares the serial numbers
    /// in their handles, which increase.
    fn arrived_later(&self, granted: &Lock, waits: &Lock) -> bool {
        granted.id.0 >> 32 > waits.id.0 >> 32
    }
}

proptest! {
    #[test]
    fn random_events_keep_the_rules_of_locks(events in prop::collection::vec(event(), 1..120)) {
        let mut model = Model::new();
        for event in &events {
            model.step(event)?;
        }
        let mut out = Vec::new();
        // A cancel may grant a waiting flock, which may split another flock of its owner in two.
        while let Some(lock) = model.locks().first() {
            prop_assert!(model.ns.cancel(model.now, lock.id, &mut out).is_some());
        }
        prop_assert_eq!(model.ns.lock_count(), 0);
        prop_assert_eq!(model.ns.resource_count(), 0);
        prop_assert!(!model.ns.has_revoked());
    }
}
