//! The specification of the data of one block of a file, as readers see it. Each write writes a
//! unique value; value 0 is a hole.

use std::collections::BTreeSet;

use crate::linear::Spec;

/// A client's number.
pub type ClientId = u8;

/// A call on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A client writes a value.
    Write(ClientId, u64),
    /// A reader gets a value.
    Read(u64),
    /// The block is truncated.
    Cut,
    /// A client makes its writes durable.
    Fsync(ClientId),
    /// The client dies or is evicted: data that it has not written back is lost.
    ClientLost(ClientId),
    /// The object server crashes: data that no fsync covers may be lost.
    ServerCrash,
}

/// The value of a block, and the older values to which a crash can return it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    value: u64,
    /// The client that wrote the value; `None` for holes.
    writer: Option<ClientId>,
    /// Values before this one that no fsync has made obsolete, with their writers.
    older: BTreeSet<(u64, Option<ClientId>)>,
    /// The last value that another client than `writer` wrote.
    others: u64,
}

/// The specification of a block.
pub struct BlockSpec;

impl State {
    fn set(&self, value: u64, writer: Option<ClientId>) -> State {
        let mut older = self.older.clone();
        older.insert((self.value, self.writer));
        State {
            value,
            writer,
            older,
            others: if writer == self.writer {
                self.others
            } else {
                self.value
            },
        }
    }

    fn at(value: u64, writer: Option<ClientId>) -> State {
        State {
            value,
            writer,
            older: BTreeSet::new(),
            others: value,
        }
    }
}

impl Spec for BlockSpec {
    type State = State;
    type Call = Call;

    fn step(&self, state: &State, call: &Call) -> Vec<State> {
        match *call {
            Call::Write(client, value) => vec![state.set(value, Some(client))],
            Call::Cut => vec![state.set(0, None)],
            Call::Read(value) => match value == state.value {
                true => vec![state.clone()],
                false => Vec::new(),
            },
            Call::Fsync(client) => match state.writer == Some(client) {
                true => vec![State::at(state.value, state.writer)],
                false => vec![state.clone()],
            },
            Call::ClientLost(client) => {
                let mut states = vec![state.clone()];
                if state.writer == Some(client) {
                    let own = state.older.iter().filter(|(_, writer)| *writer == Some(client));
                    states.extend(own.map(|(value, writer)| State::at(*value, *writer)));
                    states.push(State::at(state.others, None));
                }
                states
            }
            Call::ServerCrash => {
                let older = state.older.iter().copied();
                let all = older.chain([(state.value, state.writer)]);
                all.map(|(value, writer)| State::at(value, writer)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Timed, Verdict, check};

    fn verdict(calls: &[Call]) -> Verdict {
        let timed = |(i, call): (usize, &Call)| Timed {
            call: *call,
            start: 2 * i as u64,
            end: 2 * i as u64 + 1,
            definite: true,
        };
        let history: Vec<_> = calls.iter().enumerate().map(timed).collect();
        check(&BlockSpec, State::default(), &history, 1000)
    }

    #[test]
    fn fsync_protects_from_crashes() {
        use Call::{ClientLost, Fsync, Read, ServerCrash, Write};
        for (calls, expected) in [
            (vec![Write(0, 1), Read(1)], true),
            (vec![Write(0, 1), Read(0)], false),
            (vec![Write(0, 1), ServerCrash, Read(0)], true),
            (vec![Write(0, 1), Fsync(0), ServerCrash, Read(0)], false),
            (vec![Write(0, 1), Fsync(1), ServerCrash, Read(0)], true),
            (vec![Write(0, 1), ClientLost(1), Read(0)], false),
            (vec![Write(0, 1), ClientLost(0), Read(0)], true),
            (vec![Write(1, 1), Write(0, 2), ClientLost(0), Read(0)], false),
            (vec![Write(1, 1), Write(0, 2), ClientLost(0), Read(1)], true),
            (vec![Write(0, 1), ServerCrash, Read(0), Read(1)], false),
        ] {
            let linear = verdict(&calls) == Verdict::Linear;
            assert_eq!(linear, expected, "{calls:?}");
        }
    }
}
