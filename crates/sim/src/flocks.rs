//! The specification of a lock on a whole file (flock).

use crate::data::ClientId;
use crate::linear::Spec;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// The client gets the lock.
    Lock(ClientId),
    /// The client does not get the lock, because another client holds it.
    Refused(ClientId),
    /// The client releases the lock.
    Unlock(ClientId),
    /// The client dies or is evicted.
    ClientLost(ClientId),
    /// The metadata server dies, and evicts clients: a lock may be lost.
    ServerCrash,
}

/// The specification; the state is the holder.
pub struct FlockSpec;

impl Spec for FlockSpec {
    type State = Option<ClientId>;
    type Call = Call;

    fn step(&self, holder: &Option<ClientId>, call: &Call) -> Vec<Option<ClientId>> {
        let is_free_for = |client| holder.is_none_or(|holder| holder == client);
        match *call {
            Call::Lock(client) if is_free_for(client) => vec![Some(client)],
            Call::Refused(client) if !is_free_for(client) => vec![*holder],
            Call::Lock(_) | Call::Refused(_) => Vec::new(),
            Call::Unlock(client) | Call::ClientLost(client) => {
                vec![holder.filter(|holder| *holder != client)]
            }
            Call::ServerCrash => vec![*holder, None],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::{Timed, Verdict, check};

    #[test]
    fn a_lock_has_one_holder() {
        use Call::{ClientLost, Lock, Refused, ServerCrash, Unlock};
        for (calls, expected) in [
            (vec![Lock(1), Refused(2), Unlock(1), Lock(2)], true),
            (vec![Lock(1), Lock(2)], false),
            (vec![Lock(1), Unlock(1), Refused(2)], false),
            (vec![Lock(1), Unlock(2), Lock(2)], false),
            (vec![Lock(1), ClientLost(1), Lock(2)], true),
            (vec![Lock(1), ServerCrash, Lock(2)], true),
        ] {
            let timed = |(i, call): (usize, &Call)| Timed {
                call: *call,
                start: 2 * i as u64,
                end: 2 * i as u64 + 1,
                definite: true,
            };
            let history: Vec<_> = calls.iter().enumerate().map(timed).collect();
            let linear = check(&FlockSpec, None, &history, 1000) == Verdict::Linear;
            assert_eq!(linear, expected, "{calls:?}");
        }
    }
}
