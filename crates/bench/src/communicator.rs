//! Communication between tasks: threads of this process, or several processes connected by
//! [`crate::rendezvous`]. The only operation is an all-gather: each task contributes some bytes and
//! gets the bytes of all tasks. The all-gather is also a barrier.
//!
//! When a task ends early, for example after a failure, all waiting tasks fail, so that none waits
//! forever.

use crate::BenchError;
use crate::rendezvous::HubConnection;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// The contributions of all tasks, by rank.
pub(crate) type Contributions = Arc<Vec<Vec<u8>>>;

/// The connection of one task with all tasks of the load.
pub struct Communicator {
    rank: usize,
    size: usize,
    link: Link,
}

enum Link {
    Threads(Arc<SharedRound>),
    Processes(HubConnection),
}

/// The state that the threads share.
struct SharedRound {
    round: Mutex<Round>,
    /// Notified when a round is complete, or a task has ended.
    changed: Condvar,
}

/// The current all-gather.
struct Round {
    /// Number of complete rounds.
    number: u64,
    /// The contributions so far, by rank.
    contributions: Vec<Vec<u8>>,
    /// Number of tasks that have not contributed yet.
    missing: usize,
    /// The contributions of the last complete round.
    gathered: Contributions,
    /// Whether a task has ended.
    closed: bool,
}

impl Communicator {
    /// Connects `size` tasks of this process; returns them by rank.
    pub fn threads(size: usize) -> Vec<Communicator> {
        let shared = Arc::new(SharedRound {
            round: Mutex::new(Round {
                number: 0,
                contributions: vec![Vec::new(); size],
                missing: size,
                gathered: Arc::default(),
                closed: false,
            }),
            changed: Condvar::new(),
        });
        let comm = |rank| Communicator {
            rank,
            size,
            link: Link::Threads(shared.clone()),
        };
        (0..size).map(comm).collect()
    }

    /// Connects a task of this process to tasks of other processes through `hub`.
    pub(crate) fn over_network(rank: usize, size: usize, hub: HubConnection) -> Communicator {
        Communicator {
            rank,
            size,
            link: Link::Processes(hub),
        }
    }

    /// The rank of this task.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of tasks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Contributes bytes, and returns the contributions of all tasks.
    pub(crate) fn exchange(&mut self, contribution: Vec<u8>) -> Result<Contributions, BenchError> {
        match &mut self.link {
            Link::Threads(shared) => shared.exchange(self.rank, contribution),
            Link::Processes(hub) => hub.exchange(&contribution),
        }
    }

    /// Whether any task passes true. Every task gets the same answer.
    pub(crate) fn any(&mut self, value: bool) -> Result<bool, BenchError> {
        Ok(self
            .exchange(vec![value.into()])?
            .iter()
            .any(|m| m.as_slice() == [1]))
    }

    /// Contributes a number, and returns the numbers of all tasks by rank.
    pub(crate) fn exchange_numbers(&mut self, number: u64) -> Result<Vec<u64>, BenchError> {
        let all = self.exchange(number.to_le_bytes().to_vec())?;
        all.iter()
            .map(|m| m.as_slice().try_into().map(u64::from_le_bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| BenchError::PeerEnded)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if let Link::Threads(shared) = &self.link {
            shared.round.lock().closed = true;
            shared.changed.notify_all();
        }
    }
}

impl SharedRound {
    fn exchange(&self, rank: usize, contribution: Vec<u8>) -> Result<Contributions, BenchError> {
        let mut round = self.round.lock();
        if round.closed {
            return Err(BenchError::PeerEnded);
        }
        let number = round.number;
        if let Some(slot) = round.contributions.get_mut(rank) {
            *slot = contribution;
        }
        round.missing -= 1;
        if round.missing == 0 {
            round.missing = round.contributions.len();
            round.gathered = Arc::new(round.contributions.iter_mut().map(std::mem::take).collect());
            round.number += 1;
            self.changed.notify_all();
            return Ok(round.gathered.clone());
        }
        // The result stays valid here: the next round ends only after this task has contributed
        // again.
        while round.number == number && !round.closed {
            self.changed.wait(&mut round);
        }
        match round.number == number {
            true => Err(BenchError::PeerEnded),
            false => Ok(round.gathered.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Communicator;
    use crate::BenchError;

    #[test]
    fn all_tasks_get_all_contributions_in_every_round() {
        std::thread::scope(|scope| {
            for mut comm in Communicator::threads(7) {
                scope.spawn(move || {
                    for round in 0..200u64 {
                        let all = comm.exchange_numbers(round * 100 + comm.rank() as u64).unwrap();
                        let expected: Vec<u64> = (0..7).map(|r| round * 100 + r).collect();
                        assert_eq!(all, expected);
                    }
                    assert!(comm.any(comm.rank() == 3).unwrap());
                    assert!(!comm.any(false).unwrap());
                });
            }
        });
    }

    #[test]
    fn early_end_of_a_task_fails_the_others() {
        std::thread::scope(|scope| {
            for mut comm in Communicator::threads(3) {
                scope.spawn(move || {
                    comm.any(false).unwrap();
                    if comm.rank() != 1 {
                        assert!(matches!(comm.any(false), Err(BenchError::PeerEnded)));
                    }
                });
            }
        });
    }
}
