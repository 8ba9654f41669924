//! The reaction of an import's state machine when its target moves to other NIDs.

use super::ImportState;
use super::machine::{Action, Machine};
use std::time::Instant;

impl Machine {
    /// Handles a change of the target's NIDs; `nid_count` is their new number. `kept` is the new
    /// index of the NID in use. `None`: the target no longer has that NID, so the import gives up
    /// its connection or attempt and tries the first NID. An import that pauses between attempts
    /// tries again at once.
    pub(crate) fn change_nids(&mut self, nid_count: usize, kept: Option<usize>, now: Instant) -> Vec<Action> {
        self.nid_count = nid_count.max(1);
        self.nid_index = kept.unwrap_or(0);
        self.failures = 0;
        match (self.state, kept) {
            (ImportState::Discon, _) => {
                self.retry_at = Some(now);
                self.tick(now, false)
            }
            (ImportState::Connecting, None) => vec![self.begin_attempt()],
            (state, None) if state == ImportState::Full || state.is_replaying() => {
                vec![Action::AnnounceDisconnected, self.begin_attempt()]
            }
            _ => Vec::new(),
        }
    }

    /// Handles the message that the target has started again at the NID with this index: connects
    /// there at once.
    pub(crate) fn move_to(&mut self, nid_index: usize, now: Instant) -> Vec<Action> {
        let is_attempt_there = self.state == ImportState::Connecting && self.nid_index == nid_index;
        if is_attempt_there {
            return Vec::new();
        }
        self.nid_index = nid_index;
        self.failures = 0;
        match self.state {
            ImportState::Discon => {
                self.retry_at = Some(now);
                self.tick(now, false)
            }
            ImportState::Connecting => vec![self.begin_attempt()],
            state if state == ImportState::Full || state.is_replaying() => {
                vec![Action::AnnounceDisconnected, self.begin_attempt()]
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::import::ImportState;
    use crate::import::machine::{Action, Attempt, Event, Machine, Outcome};
    use std::time::{Duration, Instant};

    const MINUTE: Duration = Duration::from_secs(60);

    fn attempt_of(actions: &[Action]) -> Attempt {
        let found = actions.iter().find_map(|a| match a {
            Action::Connect(attempt) => Some(*attempt),
            _ => None,
        });
        found.unwrap()
    }

    fn end_of_attempt(conn_cnt: u32, outcome: Outcome) -> Event {
        Event::Connect { conn_cnt, outcome }
    }

    #[test]
    fn a_target_that_started_elsewhere_is_tried_there_at_once() {
        let start = Instant::now();
        let mut machine = Machine::new(3, MINUTE, MINUTE, 0);
        assert!(machine.move_to(1, start).is_empty(), "the import has not started");
        let first = attempt_of(&machine.process(Event::Open, start, false));
        assert_eq!(first.nid_index, 1);
        assert!(
            machine.move_to(1, start).is_empty(),
            "an attempt is in progress there"
        );
        assert_eq!(attempt_of(&machine.move_to(2, start)).nid_index, 2);
        let connected = Outcome::Connected {
            handle: 77,
            op_flags: 0,
        };
        machine.process(end_of_attempt(2, connected), start, false);
        let actions = machine.move_to(0, start);
        assert_eq!(actions[0], Action::AnnounceDisconnected);
        assert_eq!(attempt_of(&actions).nid_index, 0);
        for conn_cnt in 3..6 {
            machine.process(end_of_attempt(conn_cnt, Outcome::Failed), start, false);
        }
        assert_eq!(machine.state(), ImportState::Discon);
        assert_eq!(attempt_of(&machine.move_to(2, start)).nid_index, 2);
    }

    #[test]
    fn a_moved_target_is_tried_at_its_new_nid_at_once() {
        let start = Instant::now();
        let mut machine = Machine::new(1, MINUTE, MINUTE, 0);
        machine.process(Event::Open, start, false);
        let connected = Outcome::Connected {
            handle: 77,
            op_flags: 0,
        };
        machine.process(end_of_attempt(1, connected), start, false);
        assert!(
            machine.change_nids(2, Some(1), start).is_empty(),
            "the NID in use remains"
        );
        assert_eq!((machine.state(), machine.nid_index()), (ImportState::Full, 1));
        let actions = machine.change_nids(1, None, start);
        assert_eq!(actions[0], Action::AnnounceDisconnected);
        let attempt = attempt_of(&actions);
        assert_eq!((attempt.nid_index, attempt.conn_cnt), (0, 2));
        // The target moves again: the result of the old attempt is ignored.
        assert_eq!(attempt_of(&machine.change_nids(3, None, start)).conn_cnt, 3);
        assert!(
            machine
                .process(end_of_attempt(2, Outcome::Failed), start, false)
                .is_empty()
        );
        for conn_cnt in 3..6 {
            machine.process(end_of_attempt(conn_cnt, Outcome::Failed), start, false);
        }
        assert_eq!(
            machine.state(),
            ImportState::Discon,
            "the import waits for the next round"
        );
        assert_eq!(attempt_of(&machine.change_nids(1, None, start)).nid_index, 0);
    }
}
