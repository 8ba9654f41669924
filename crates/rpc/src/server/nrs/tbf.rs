//! The token bucket filter: requests wait in classes, and each class has a bucket that tokens drop
//! into at the rate of its rule. A request takes a token; without a token the class waits.
//!
//! Pure: the time is an argument. A bucket holds at most `depth` tokens; the filter stores the time
//! at which it will be full. Classes with a token are served in the order in which they got it, so
//! none starves. The requests of a class are served in the order of arrival. A class without
//! requests and with a full bucket has only counters left: such classes are dropped when there are
//! many. If there are [`CLASSES_MAX`] classes, the requests of new ones go into one shared class.

use super::key::Key;
use super::rule::Rules;
use cpt::{HashSeed, SeededMap};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Maximum number of classes, not counting the shared one.
const CLASSES_MAX: usize = 8192;
/// Unused classes are kept, for their counters, while there are fewer classes than this.
const CLASSES_KEPT: usize = 512;

/// Counters of a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// All requests.
    pub(crate) requests: u64,
    /// Requests that had to wait for a token.
    pub(crate) throttled: u64,
    /// Total time of the throttled requests in the queue.
    pub(crate) wait_time: Duration,
}

#[derive(Debug)]
struct QueuedRequest<W> {
    request: W,
    arrived_at: Instant,
    /// Whether no token was available on arrival.
    throttled: bool,
}

/// Nanoseconds: a time since the filter was created, or a duration. Numbers of tokens have this
/// type too, since they are multiplied by durations.
type Nanos = i64;

/// Nanoseconds in a second.
const NANOS_PER_SEC: Nanos = 1_000_000_000;

/// A class's position among classes with requests: the time since which it has had a token, or at
/// which it will get one; and a sequence number.
type Place = (Nanos, u64);

#[derive(Debug)]
struct Class<W> {
    waiting: VecDeque<QueuedRequest<W>>,
    /// `None` without requests.
    place: Option<Place>,
    /// Index of its rule.
    rule: usize,
    /// The time in which the bucket gets one token.
    token_time: Nanos,
    /// When the bucket will be full.
    full_at: Nanos,
    counters: Counters,
}

/// Queued requests by class.
#[derive(Debug)]
pub(crate) struct Tbf<W> {
    created_at: Instant,
    classes: SeededMap<Key, Class<W>>,
    /// The classes with requests.
    order: BTreeMap<Place, Key>,
    /// The highest sequence number of a [`Place`] so far.
    sequence: u64,
    rules: Rules,
    /// Maximum number of tokens in a bucket.
    depth: Nanos,
    /// Number of queued requests.
    len: usize,
    /// The number of classes at which unused ones are dropped.
    sweep_at: usize,
}

impl<W> Tbf<W> {
    /// A filter with these rules and at most `depth` tokens per bucket.
    pub(crate) fn new(rules: Rules, depth: u32, seed: HashSeed, now: Instant) -> Tbf<W> {
        Tbf {
            created_at: now,
            classes: SeededMap::with_hasher(seed),
            order: BTreeMap::new(),
            sequence: 0,
            rules,
            depth: Nanos::from(depth.max(1)),
            len: 0,
            sweep_at: CLASSES_KEPT,
        }
    }

    /// Number of queued requests.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Queues a request of a class.
    pub(crate) fn push(&mut self, key: Key, request: W, now: Instant) {
        let (t, key) = (self.nanos(now), self.class_for(key, now));
        let (rules, depth) = (&self.rules, self.depth);
        let class = self
            .classes
            .entry(key)
            .or_insert_with(|| Class::new(rules, &key, t));
        class.counters.requests += 1;
        let throttled = class.tokens(t, depth) <= Nanos::try_from(class.waiting.len()).unwrap_or(Nanos::MAX);
        class.waiting.push_back(QueuedRequest {
            request,
            arrived_at: now,
            throttled,
        });
        self.len += 1;
        if class.place.is_none() {
            self.sequence += 1;
            let place = (class.ready_at(depth), self.sequence);
            class.place = Some(place);
            self.order.insert(place, key);
        }
    }

    /// Takes the first request of the next class with a token, if `is_allowed` accepts the request.
    pub(crate) fn pop(&mut self, now: Instant, is_allowed: impl Fn(&W) -> bool) -> Option<W> {
        let (place, key) = self.first_ready(now, is_allowed)?;
        let t = self.nanos(now);
        let class = self.classes.get_mut(&key)?;
        let next = class.waiting.pop_front()?;
        self.len -= 1;
        class.full_at = class.full_at.max(t) + class.token_time;
        if next.throttled {
            class.counters.throttled += 1;
            class.counters.wait_time += now.saturating_duration_since(next.arrived_at);
        }
        self.order.remove(&place);
        class.place = None;
        if !class.waiting.is_empty() {
            self.sequence += 1;
            let place = (class.ready_at(self.depth), self.sequence);
            class.place = Some(place);
            self.order.insert(place, key);
        }
        Some(next.request)
    }

    /// Whether [`Tbf::pop`] would return a request.
    pub(crate) fn has_ready(&self, now: Instant, is_allowed: impl Fn(&W) -> bool) -> bool {
        self.first_ready(now, is_allowed).is_some()
    }

    /// When the first class that waits for a token gets it.
    pub(crate) fn next_token_at(&self, now: Instant) -> Option<Instant> {
        let waiting = self.order.range((self.nanos(now) + 1, 0)..).next();
        waiting.map(|((ready_at, _), _)| {
            self.created_at + Duration::from_nanos(u64::try_from(*ready_at).unwrap_or(0))
        })
    }

    /// Replaces the rules, also for queued requests.
    pub(crate) fn set_rules(&mut self, rules: Rules, now: Instant) {
        let t = self.nanos(now);
        self.rules = rules;
        self.order.clear();
        for (key, class) in &mut self.classes {
            class.assign_rule(&self.rules, key);
            class.full_at = class.full_at.min(t + self.depth * class.token_time);
            class.place = None;
            if !class.waiting.is_empty() {
                self.sequence += 1;
                let place = (class.ready_at(self.depth), self.sequence);
                class.place = Some(place);
                self.order.insert(place, *key);
            }
        }
    }

    /// All queued requests, in the order of arrival within each class.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut W> {
        self.classes
            .values_mut()
            .flat_map(|c| &mut c.waiting)
            .map(|w| &mut w.request)
    }

    /// Removes all requests, in the order of arrival.
    pub(crate) fn drain(&mut self) -> Vec<W> {
        let mut all: Vec<QueuedRequest<W>> = self
            .classes
            .values_mut()
            .flat_map(|c| c.waiting.drain(..))
            .collect();
        self.classes.values_mut().for_each(|c| c.place = None);
        self.order.clear();
        self.len = 0;
        all.sort_by_key(|w| w.arrived_at);
        all.into_iter().map(|w| w.request).collect()
    }

    /// The rules, and the number of classes of each.
    pub(crate) fn rules(&self) -> (&Rules, Vec<usize>) {
        let mut class_counts = vec![0; self.rules.iter().count()];
        for class in self.classes.values() {
            if let Some(n) = class_counts.get_mut(class.rule) {
                *n += 1;
            }
        }
        (&self.rules, class_counts)
    }

    /// Each class with the name of its rule, its queue length and counters; those with the longest
    /// total wait first.
    pub(crate) fn classes(&self) -> Vec<(Key, String, usize, Counters)> {
        let row = |(key, c): (&Key, &Class<W>)| {
            let rule = self.rules.get(c.rule).name.clone();
            (*key, rule, c.waiting.len(), c.counters)
        };
        let mut all: Vec<_> = self.classes.iter().map(row).collect();
        all.sort_by_key(|(_, _, _, c)| std::cmp::Reverse((c.wait_time, c.throttled, c.requests)));
        all
    }

    /// The first class with a token and a first request that `is_allowed` accepts.
    fn first_ready(&self, now: Instant, is_allowed: impl Fn(&W) -> bool) -> Option<(Place, Key)> {
        let ready = self.order.range(..=(self.nanos(now), u64::MAX));
        let may_run = |key: &Key| {
            self.classes
                .get(key)
                .and_then(|c| c.waiting.front())
                .is_some_and(|w| is_allowed(&w.request))
        };
        ready
            .map(|(place, key)| (*place, *key))
            .find(|(_, key)| may_run(key))
    }

    /// The class to queue a request in: its own, or the shared one if there are too many classes.
    fn class_for(&mut self, key: Key, now: Instant) -> Key {
        if self.classes.contains_key(&key) || self.classes.len() < self.sweep_at {
            return key;
        }
        let t = self.nanos(now);
        self.classes.retain(|_, c| !c.waiting.is_empty() || c.full_at > t);
        self.sweep_at = (2 * self.classes.len()).clamp(CLASSES_KEPT, CLASSES_MAX);
        if self.classes.len() < self.sweep_at {
            key
        } else {
            Key::default()
        }
    }

    fn nanos(&self, now: Instant) -> Nanos {
        Nanos::try_from(now.saturating_duration_since(self.created_at).as_nanos()).unwrap_or(Nanos::MAX / 4)
    }
}

impl<W> Class<W> {
    fn new(rules: &Rules, key: &Key, full_at: Nanos) -> Class<W> {
        let mut class = Class {
            waiting: VecDeque::new(),
            place: None,
            rule: 0,
            token_time: 0,
            full_at,
            counters: Counters::default(),
        };
        class.assign_rule(rules, key);
        class
    }

    fn assign_rule(&mut self, rules: &Rules, key: &Key) {
        self.rule = rules.index_for(key);
        let rate = Nanos::try_from(rules.get(self.rule).rate).unwrap_or(1).max(1);
        // Rounded up, so that the rate is never exceeded.
        self.token_time = (NANOS_PER_SEC + rate - 1) / rate;
    }

    /// The time since which the class has had a token, or at which it gets one.
    fn ready_at(&self, depth: Nanos) -> Nanos {
        self.full_at - (depth - 1) * self.token_time
    }

    /// Number of tokens in the bucket at the time `t`.
    fn tokens(&self, t: Nanos, depth: Nanos) -> Nanos {
        let missing = (self.full_at - t).max(0);
        depth - (missing + self.token_time - 1) / self.token_time
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{CLASSES_MAX, Key, Rules, Tbf};
    use crate::server::nrs::key::KeyKind;
    use cpt::HashSeed;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use std::time::{Duration, Instant};

    fn key(uid: u32) -> Key {
        Key {
            uid: Some(uid),
            ..Key::default()
        }
    }

    fn rules(commands: &[&str]) -> Rules {
        let mut rules = Rules::new(10_000);
        commands
            .iter()
            .for_each(|c| rules.execute(c, KeyKind::Uid, 10_000).unwrap());
        rules
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_class_with_an_empty_bucket_runs_at_its_rate_and_others_pass_it() {
        let t = Instant::now();
        let mut tbf = Tbf::new(rules(&["start slow uid={1} rate=10"]), 3, HashSeed::fixed(0), t);
        (0..5).for_each(|n| tbf.push(key(1), n, t));
        (10..15).for_each(|n| tbf.push(key(2), n, t));
        let mut at_once = Vec::new();
        for i in 0..100 {
            at_once.extend(tbf.pop(t + Duration::from_micros(10 * i), |_| true));
        }
        at_once.sort_unstable();
        assert_eq!(at_once, [0, 1, 2, 10, 11, 12, 13, 14]);
        assert_eq!(tbf.next_token_at(t + ms(1)), Some(t + ms(100)));
        assert!(!tbf.has_ready(t + ms(99), |_| true));
        assert_eq!(tbf.pop(t + ms(100), |_| true), Some(3));
        assert_eq!(tbf.pop(t + ms(250), |_| true), Some(4));
        let counters = tbf.classes()[0].3;
        assert_eq!(
            (counters.requests, counters.throttled, counters.wait_time),
            (5, 2, ms(350))
        );
        assert_eq!(tbf.len(), 0);
    }

    #[test]
    fn new_rules_apply_to_queued_requests() {
        let t = Instant::now();
        let mut tbf = Tbf::new(rules(&["start slow uid={1} rate=1"]), 1, HashSeed::fixed(0), t);
        (0..3).for_each(|n| tbf.push(key(1), n, t));
        assert_eq!(
            (tbf.pop(t, |_| true), tbf.pop(t + ms(10), |_| true)),
            (Some(0), None)
        );
        tbf.set_rules(rules(&["start slow uid={1} rate=100"]), t + ms(10));
        assert_eq!(
            (tbf.pop(t + ms(15), |_| true), tbf.pop(t + ms(20), |_| true)),
            (None, Some(1))
        );
        assert_eq!(tbf.rules().1, [1, 0]);
        assert_eq!(tbf.drain(), [2]);
    }

    #[test]
    fn unused_classes_are_dropped_and_their_number_is_limited() {
        let t = Instant::now();
        let mut tbf = Tbf::new(rules(&[]), 3, HashSeed::fixed(0), t);
        for n in 0..100_000 {
            let now = t + ms(n.into());
            tbf.push(key(n), n, now);
            assert_eq!(tbf.pop(now, |_| true), Some(n));
        }
        assert!(tbf.classes.len() <= super::CLASSES_KEPT, "{}", tbf.classes.len());
        let mut tbf = Tbf::new(rules(&[]), 3, HashSeed::fixed(0), t);
        (0..20_000).for_each(|n| tbf.push(key(n), n, t));
        assert_eq!((tbf.classes.len(), tbf.len()), (CLASSES_MAX + 1, 20_000));
        assert!(tbf.classes.contains_key(&Key::default()));
    }

    proptest! {
        /// For any arrivals: no class exceeds its bucket and rate in any interval, classes with a
        /// token run, no request is lost, and each class keeps its order.
        #[test]
        fn rates_are_never_exceeded_and_no_class_starves(
            seed in any::<u64>(),
            steps in proptest::collection::vec((0_u32..4, 0_u64..40), 1..200),
        ) {
            let rates = [20, 50, 100, 10_000];
            let depth = 1 + (seed % 4) as u32;
            let commands: Vec<String> = rates.iter().enumerate().map(|(u, r)| format!("start u{u} uid={{{u}}} rate={r}")).collect();
            let rules = rules(&commands.iter().map(String::as_str).collect::<Vec<_>>());
            let started_at = Instant::now();
            let mut tbf = Tbf::new(rules, depth, HashSeed::fixed(0), started_at);
            let (mut now, mut taken) = (started_at, vec![Vec::new(); rates.len()]);
            let mut pushed = vec![0_u32; rates.len()];
            let take = |tbf: &mut Tbf<(u32, u32)>, now, taken: &mut Vec<Vec<(Instant, u32)>>| {
                while let Some((uid, n)) = tbf.pop(now, |_| true) {
                    taken[uid as usize].push((now, n));
                }
            };
            for (uid, wait) in steps {
                tbf.push(key(uid), (uid, pushed[uid as usize]), now);
                pushed[uid as usize] += 1;
                take(&mut tbf, now, &mut taken);
                prop_assert!(!tbf.has_ready(now, |_| true));
                now += ms(wait);
                take(&mut tbf, now, &mut taken);
            }
            // Each queued request gets a token. The next token comes within 51 ms, because the
            // lowest rate is 20 per second.
            while tbf.len() > 0 {
                let next = tbf.next_token_at(now);
                prop_assert!(next.is_some_and(|at| at > now && at <= now + ms(51)));
                now = next.unwrap();
                prop_assert!(tbf.has_ready(now, |_| true));
                take(&mut tbf, now, &mut taken);
            }
            for (uid, taken) in taken.iter().enumerate() {
                prop_assert_eq!(taken.len() as u32, pushed[uid]);
                prop_assert!(taken.windows(2).all(|w| w[0].1 + 1 == w[1].1));
                for (i, (from, _)) in taken.iter().enumerate() {
                    for (j, (to, _)) in taken.iter().enumerate().skip(i) {
                        let allowed = f64::from(depth) + (*to - *from).as_secs_f64() * rates[uid] as f64;
                        prop_assert!((j - i + 1) as f64 <= allowed + 1e-6, "{uid}: {} in {:?}", j - i + 1, *to - *from);
                    }
                }
            }
        }
    }
}
