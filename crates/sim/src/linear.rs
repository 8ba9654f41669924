//! Checks linearizability: whether the concurrent calls can be put in one order that agrees with
//! real time and explains the result of each call.
//!
//! The check keeps all states to which the calls so far can have led. A call takes effect at one
//! point between its start and its end (Lowe's just-in-time linearization).

use std::collections::{BTreeMap, BTreeSet};

use crate::watchdog;

/// The behaviour of an object.
pub trait Spec {
    /// A state of the object.
    type State: Clone + Ord;
    /// A call with its result.
    type Call;

    /// The states after the call took effect in `state`; none if the call's result is impossible
    /// there.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Vec<Self::State>;
}

/// A call in a history.
#[derive(Clone, Debug)]
pub struct Timed<C> {
    /// The call and its result.
    pub call: C,
    /// When it began. No two times of a history are equal.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Whether it must take effect before its end. A call that failed with an unclear result may
    /// take effect at any time after its start, or never.
    pub definite: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order explains all results.
    Linear,
    /// No order explains all results; the index of the first call whose result no order explains.
    Impossible(usize),
    /// Too many orders are possible to try them all.
    Undecided,
}

/// A state, and the calls that have not ended but have taken effect in it.
type Config<S> = (S, BTreeSet<usize>);

/// Checks a history of an object that begins in `initial`. Gives up after `limit` states.
pub fn check<S: Spec>(spec: &S, initial: S::State, history: &[Timed<S::Call>], limit: usize) -> Verdict {
    let mut events = BTreeMap::new();
    for (i, timed) in history.iter().enumerate() {
        events.insert(timed.start, (i, true));
        if timed.definite {
            events.insert(timed.end, (i, false));
        }
    }
    let mut configs: BTreeSet<Config<S::State>> = BTreeSet::from([(initial, BTreeSet::new())]);
    let mut pending = BTreeSet::new();
    let mut states = 0;
    for (i, starts) in events.into_values() {
        if starts {
            pending.insert(i);
            continue;
        }
        let mut ended = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut open: Vec<Config<S::State>> = configs.into_iter().collect();
        while let Some((state, done)) = open.pop() {
            if done.contains(&i) {
                let mut done = done;
                done.remove(&i);
                ended.insert((state, done));
                continue;
            }
            if !seen.insert((state.clone(), done.clone())) {
                continue;
            }
            states += 1;
            // Many states take a minute on a busy machine.
            watchdog::count();
            if states > limit {
                return Verdict::Undecided;
            }
            for &next in pending.difference(&done) {
                for state in spec.step(&state, &history[next].call) {
                    let mut done = done.clone();
                    done.insert(next);
                    open.push((state, done));
                }
            }
        }
        if ended.is_empty() {
            return Verdict::Impossible(i);
        }
        pending.remove(&i);
        configs = ended;
    }
    Verdict::Linear
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register; the calls are writes and reads of a value.
    struct Register;

    #[derive(Clone, Copy)]
    enum Call {
        Write(u32),
        Read(u32),
    }

    impl Spec for Register {
        type State = u32;
        type Call = Call;

        fn step(&self, state: &u32, call: &Call) -> Vec<u32> {
            match *call {
                Call::Write(value) => vec![value],
                Call::Read(value) => (value == *state).then_some(value).into_iter().collect(),
            }
        }
    }

    fn at(start: u64, end: u64, call: Call) -> Timed<Call> {
        Timed {
            call,
            start,
            end,
            definite: true,
        }
    }

    fn verdict(history: &[Timed<Call>]) -> Verdict {
        check(&Register, 0, history, 1000)
    }

    #[test]
    fn overlapping_calls_have_any_order_and_others_only_one() {
        let write = at(1, 6, Call::Write(1));
        let new = at(2, 3, Call::Read(1));
        let old = at(4, 5, Call::Read(0));
        assert_eq!(verdict(&[write.clone(), new.clone()]), Verdict::Linear);
        assert_eq!(verdict(&[write.clone(), old.clone()]), Verdict::Linear);
        assert_eq!(verdict(&[write, new, old]), Verdict::Impossible(2));
        let late = [at(1, 2, Call::Write(1)), at(3, 4, Call::Read(0))];
        assert_eq!(verdict(&late), Verdict::Impossible(1));
    }

    #[test]
    fn a_call_with_an_unclear_result_may_take_effect_late_or_never() {
        let unclear = Timed {
            definite: false,
            ..at(1, 2, Call::Write(1))
        };
        let reads = |a, b| [unclear.clone(), at(3, 4, Call::Read(a)), at(5, 6, Call::Read(b))];
        for (values, verdict_wanted) in [
            ((0, 0), Verdict::Linear),
            ((0, 1), Verdict::Linear),
            ((1, 1), Verdict::Linear),
            ((1, 0), Verdict::Impossible(2)),
        ] {
            assert_eq!(verdict(&reads(values.0, values.1)), verdict_wanted);
        }
    }

    #[test]
    fn a_check_with_too_many_states_gives_up() {
        let mut history: Vec<_> = (0..12).map(|n| at(n, 100 + n, Call::Write(n as u32))).collect();
        history.push(at(50, 60, Call::Read(99)));
        assert_eq!(verdict(&history), Verdict::Undecided);
    }
}
