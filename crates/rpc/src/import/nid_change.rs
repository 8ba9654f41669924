//! The reaction of an import's state machine when its target moves to other NIDs.

use super::ImportState;
use super::machine::{Action, Machine};
use tokio::time::Instant;

impl Machine {
    /// The target has `nid_count` NIDs now; `kept` is the index of the NID in use, if it is among
    /// them. If it is not, the import gives up its connection or attempt and tries the first NID.
    /// An import that pauses between attempts tries again at once.
    pub(crate) fn nids_changed(
        &mut self,
        nid_count: usize,
        kept: Option<usize>,
        now: Instant,
    ) -> Vec<Action> {
        self.nid_count = nid_count.max(1);
        self.nid_index = kept.unwrap_or(0);
        self.failures = 0;
        match (self.state, kept) {
            (ImportState::Discon, _) => {
                self.retry_at = Some(now);
                self.tick(now, false)
            }
            (ImportState::Connecting, None) => vec![self.begin_attempt()],
            (ImportState::Full, None) => vec![Action::AnnounceDisconnected, self.begin_attempt()],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::import::ImportState;
    use crate::import::machine::{Action, Attempt, Event, Machine, Outcome};
    use std::time::Duration;
    use tokio::time::Instant;

    const MINUTE: Duration = Duration::from_secs(60);

    fn attempt_of(actions: &[Action]) -> Attempt {
        let found = actions.iter().find_map(|a| match a {
            Action::Connect(attempt) => Some(*attempt),
            _ => None,
        });
        found.unwrap()
    }

    fn attempt_ended(conn_cnt: u32, outcome: Outcome) -> Event {
        Event::Connect { conn_cnt, outcome }
    }

    #[test]
    fn a_moved_target_is_tried_at_its_new_nid_at_once() {
        let t = Instant::now();
        let mut m = Machine::new(1, MINUTE, MINUTE, 0);
        m.on(Event::Open, t, false);
        let connected = Outcome::Connected {
            handle: 77,
            op_flags: 0,
        };
        m.on(attempt_ended(1, connected), t, false);
        assert!(m.nids_changed(2, Some(1), t).is_empty(), "the NID in use remains");
        assert_eq!((m.state(), m.nid_index()), (ImportState::Full, 1));
        let actions = m.nids_changed(1, None, t);
        assert_eq!(actions[0], Action::AnnounceDisconnected);
        let attempt = attempt_of(&actions);
        assert_eq!((attempt.nid_index, attempt.conn_cnt), (0, 2));
        // The target moves again: the result of the old attempt is ignored.
        assert_eq!(attempt_of(&m.nids_changed(3, None, t)).conn_cnt, 3);
        assert!(m.on(attempt_ended(2, Outcome::Failed), t, false).is_empty());
        for conn_cnt in 3..6 {
            m.on(attempt_ended(conn_cnt, Outcome::Failed), t, false);
        }
        assert_eq!(
            m.state(),
            ImportState::Discon,
            "the import waits for the next round"
        );
        assert_eq!(attempt_of(&m.nids_changed(1, None, t)).nid_index, 0);
    }
}
