//! Tasks that go together: threads of this process that meet in memory, or of several processes that meet at a hub
//! ([`crate::hub`]). What MPI would be used for needs one thing only: everybody gives some bytes and gets what
//! everybody gave, when the last has given; that is a barrier too.
//!
//! Who leaves early (it failed) takes everybody along: nobody waits for it forever.

use crate::BenchError;
use crate::hub::Spoke;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// What all tasks gave, in the order of their ranks.
pub(crate) type All = Arc<Vec<Vec<u8>>>;

/// One task's place among the others.
pub struct Team {
    rank: usize,
    size: usize,
    link: Link,
}

enum Link {
    Threads(Arc<Meeting>),
    Processes(Spoke),
}

/// Where threads meet.
struct Meeting {
    round: Mutex<Round>,
    changed: Condvar,
}

struct Round {
    number: u64,
    given: Vec<Vec<u8>>,
    missing: usize,
    done: All,
    left: bool,
}

impl Team {
    /// `size` tasks of this process alone, in the order of their ranks.
    pub fn threads(size: usize) -> Vec<Team> {
        let meeting = Arc::new(Meeting {
            round: Mutex::new(Round {
                number: 0,
                given: vec![Vec::new(); size],
                missing: size,
                done: Arc::default(),
                left: false,
            }),
            changed: Condvar::new(),
        });
        let team = |rank| Team {
            rank,
            size,
            link: Link::Threads(meeting.clone()),
        };
        (0..size).map(team).collect()
    }

    /// A task that meets the others at a hub.
    pub(crate) fn at_hub(rank: usize, size: usize, spoke: Spoke) -> Team {
        Team {
            rank,
            size,
            link: Link::Processes(spoke),
        }
    }

    /// Which of them this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Gives, and gets what all gave.
    pub(crate) fn exchange(&mut self, mine: Vec<u8>) -> Result<All, BenchError> {
        match &mut self.link {
            Link::Threads(meeting) => meeting.exchange(self.rank, mine),
            Link::Processes(spoke) => spoke.exchange(&mine),
        }
    }

    /// Whether anybody says so.
    pub(crate) fn any(&mut self, mine: bool) -> Result<bool, BenchError> {
        Ok(self
            .exchange(vec![mine.into()])?
            .iter()
            .any(|m| m.as_slice() == [1]))
    }

    /// All numbers.
    pub(crate) fn numbers(&mut self, mine: u64) -> Result<Vec<u64>, BenchError> {
        let all = self.exchange(mine.to_le_bytes().to_vec())?;
        all.iter()
            .map(|m| m.as_slice().try_into().map(u64::from_le_bytes))
            .collect::<Result<_, _>>()
            .map_err(|_| BenchError::Apart)
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        if let Link::Threads(meeting) = &self.link {
            meeting.round.lock().left = true;
            meeting.changed.notify_all();
        }
    }
}

impl Meeting {
    fn exchange(&self, rank: usize, mine: Vec<u8>) -> Result<All, BenchError> {
        let mut round = self.round.lock();
        if round.left {
            return Err(BenchError::Apart);
        }
        let number = round.number;
        if let Some(place) = round.given.get_mut(rank) {
            *place = mine;
        }
        round.missing -= 1;
        if round.missing == 0 {
            round.missing = round.given.len();
            round.done = Arc::new(round.given.iter_mut().map(std::mem::take).collect());
            round.number += 1;
            self.changed.notify_all();
            return Ok(round.done.clone());
        }
        // The next round ends only when everybody has given again: what this one brought is still there then.
        while round.number == number && !round.left {
            self.changed.wait(&mut round);
        }
        match round.number == number {
            true => Err(BenchError::Apart),
            false => Ok(round.done.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Team;
    use crate::BenchError;

    #[test]
    fn everybody_gets_what_everybody_gave_round_after_round() {
        std::thread::scope(|scope| {
            for mut team in Team::threads(7) {
                scope.spawn(move || {
                    for round in 0..200u64 {
                        let all = team.numbers(round * 100 + team.rank() as u64).unwrap();
                        let expected: Vec<u64> = (0..7).map(|r| round * 100 + r).collect();
                        assert_eq!(all, expected);
                    }
                    assert!(team.any(team.rank() == 3).unwrap());
                    assert!(!team.any(false).unwrap());
                });
            }
        });
    }

    #[test]
    fn who_leaves_early_leaves_nobody_waiting() {
        std::thread::scope(|scope| {
            for mut team in Team::threads(3) {
                scope.spawn(move || {
                    team.any(false).unwrap();
                    if team.rank() != 1 {
                        assert!(matches!(team.any(false), Err(BenchError::Apart)));
                    }
                });
            }
        });
    }
}
