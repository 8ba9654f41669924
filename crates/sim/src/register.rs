//! An object of a server that may crash: the changes since its last sync may be lost.

use std::collections::BTreeSet;

use crate::linear::Spec;

/// A state, and the older states to which a crash can return.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Saved<S> {
    value: S,
    /// Empty if no crash happens in this run.
    older: BTreeSet<S>,
}

impl<S: Ord> Saved<S> {
    /// A state on disk.
    pub fn new(value: S) -> Saved<S> {
        Saved {
            value,
            older: BTreeSet::new(),
        }
    }
}

/// A call on the object, or an event of its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<C> {
    /// A call.
    Call(C),
    /// The calls so far are on disk.
    Sync,
    /// The server may lose the calls since the last sync.
    Crash,
}

/// The specification of an object on a server that may crash.
pub struct Recovered<S> {
    /// The object.
    pub spec: S,
    /// Whether a crash happens in this run.
    pub crashes: bool,
}

impl<S: Spec> Spec for Recovered<S> {
    type State = Saved<S::State>;
    type Call = Event<S::Call>;

    fn step(&self, state: &Saved<S::State>, event: &Event<S::Call>) -> Vec<Saved<S::State>> {
        match event {
            Event::Call(call) => {
                let values = self.spec.step(&state.value, call).into_iter();
                let saved = values.map(|value| {
                    let mut older = state.older.clone();
                    if self.crashes && value != state.value {
                        older.insert(state.value.clone());
                    }
                    Saved { value, older }
                });
                saved.collect()
            }
            Event::Sync => vec![Saved::new(state.value.clone())],
            Event::Crash => {
                let values = state.older.iter().chain([&state.value]);
                values.map(|value| Saved::new(value.clone())).collect()
            }
        }
    }
}
