//! At-most-once execution (docs/protocol.md, "PtlRPC"): the requests of one client that are in
//! execution, and the replies that the client may request again.
//!
//! Pure. A reply is kept until `pb_last_xid` reports its arrival, or until a later request uses its
//! slot (`pb_tag`). The number of replies without a slot is limited: the oldest are dropped, and a
//! resent request whose reply was dropped is executed again.

use super::Reply;
use foldhash::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{Errno, Xid};

/// Limit of cached replies without a slot.
const UNTAGGED_MAX: usize = 64;

/// The result of a request.
pub(crate) type Outcome = Result<Reply, Errno>;

/// The fields of a request that identify it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) xid: Xid,
    /// `pb_tag`; 0 for none.
    pub(crate) tag: u16,
    /// `pb_last_xid`.
    pub(crate) last_xid: Xid,
    /// `MSG_RESENT`.
    pub(crate) resent: bool,
    /// `MSG_REPLAY`.
    pub(crate) replay: bool,
}

/// The decision on a request.
#[derive(Debug)]
pub(crate) enum Verdict<R> {
    /// Execute it.
    Run,
    /// It is being executed: the reply goes to the latest attempt.
    Join(Arc<R>),
    /// It was executed: send the cached reply.
    Answer(Arc<Outcome>),
    /// Drop it: the network duplicated it, or the client no longer waits for it.
    Drop,
    /// Refuse it: its reply has arrived, or its xid was used for another request.
    Refuse(Errno),
}

#[derive(Debug)]
struct Saved {
    tag: u16,
    outcome: Arc<Outcome>,
}

/// The requests of one client; `R` represents one in execution.
#[derive(Debug)]
pub(crate) struct Once<R> {
    last_xid: Xid,
    running: HashMap<Xid, Arc<R>>,
    saved: BTreeMap<Xid, Saved>,
    by_tag: HashMap<u16, Xid>,
    untagged: usize,
}

impl<R> Default for Once<R> {
    fn default() -> Self {
        Once {
            last_xid: Xid::NONE,
            running: HashMap::default(),
            saved: BTreeMap::new(),
            by_tag: HashMap::default(),
            untagged: 0,
        }
    }
}

impl<R> Once<R> {
    /// The client has connected, and `pb_last_xid` starts again.
    pub(crate) fn connected(&mut self) {
        self.last_xid = Xid::NONE;
    }

    /// Decides on a request. After `Run` the caller calls `started`.
    pub(crate) fn admit(&mut self, ask: &Ask) -> Verdict<R> {
        if ask.xid <= self.last_xid && !ask.replay {
            return Verdict::Refuse(Errno::EPROTO);
        }
        if ask.last_xid > self.last_xid {
            self.last_xid = ask.last_xid;
            self.forget_arrived();
        }
        if let Some(running) = self.running.get(&ask.xid) {
            return if ask.resent {
                Verdict::Join(running.clone())
            } else {
                Verdict::Drop
            };
        }
        if let Some(saved) = self.saved.get(&ask.xid) {
            return match ask.resent || ask.replay {
                true => Verdict::Answer(saved.outcome.clone()),
                false => Verdict::Refuse(Errno::ENOTCONN),
            };
        }
        if ask.tag != 0
            && let Some(&other) = self.by_tag.get(&ask.tag)
        {
            if other > ask.xid {
                // The client has used the slot since then, so it no longer waits for this request.
                return Verdict::Drop;
            }
            self.forget(other);
        }
        Verdict::Run
    }

    /// The execution of a request begins.
    pub(crate) fn started(&mut self, xid: Xid, running: Arc<R>) {
        self.running.insert(xid, running);
    }

    /// The execution of a request has ended. With an `outcome`, the request is not executed again.
    pub(crate) fn finished(&mut self, xid: Xid, tag: u16, outcome: Option<Arc<Outcome>>) {
        self.running.remove(&xid);
        let Some(outcome) = outcome else { return };
        if xid <= self.last_xid {
            return;
        }
        if tag != 0 {
            if self.by_tag.get(&tag).is_some_and(|&newer| newer > xid) {
                return;
            }
            if let Some(older) = self.by_tag.insert(tag, xid) {
                self.forget(older);
            }
        } else {
            self.untagged += 1;
        }
        self.saved.insert(xid, Saved { tag, outcome });
        if self.untagged > UNTAGGED_MAX {
            let oldest = self
                .saved
                .iter()
                .find(|(_, saved)| saved.tag == 0)
                .map(|(&xid, _)| xid);
            oldest.into_iter().for_each(|xid| self.forget(xid));
        }
    }

    /// Number of cached replies.
    #[cfg(test)]
    pub(crate) fn saved(&self) -> usize {
        self.saved.len()
    }

    fn forget_arrived(&mut self) {
        while let Some((&xid, _)) = self.saved.first_key_value()
            && xid <= self.last_xid
        {
            self.forget(xid);
        }
    }

    fn forget(&mut self, xid: Xid) {
        let Some(saved) = self.saved.remove(&xid) else {
            return;
        };
        if saved.tag == 0 {
            self.untagged -= 1;
        } else if self.by_tag.get(&saved.tag) == Some(&xid) {
            self.by_tag.remove(&saved.tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ask, Once, Reply, UNTAGGED_MAX, Verdict};
    use std::sync::Arc;
    use wire::{Errno, Transno, Xid};

    fn ask(xid: u64, tag: u16, last_xid: u64) -> Ask {
        Ask {
            xid: Xid(xid),
            tag,
            last_xid: Xid(last_xid),
            resent: false,
            replay: false,
        }
    }

    fn resent(xid: u64, tag: u16, last_xid: u64) -> Ask {
        Ask {
            resent: true,
            ..ask(xid, tag, last_xid)
        }
    }

    fn run(once: &mut Once<u64>, a: &Ask, transno: u64) {
        assert!(matches!(once.admit(a), Verdict::Run));
        once.started(a.xid, Arc::new(a.xid.0));
        let outcome = Ok(Reply::default().with_transno(Transno(transno)));
        once.finished(a.xid, a.tag, Some(Arc::new(outcome)));
    }

    #[test]
    fn a_resent_request_gets_the_reply_that_was_lost() {
        let mut once = Once::default();
        run(&mut once, &ask(128, 1, 0), 7);
        match once.admit(&resent(128, 1, 0)) {
            Verdict::Answer(outcome) => {
                assert!(matches!(&*outcome, Ok(reply) if reply.transno == Transno(7)))
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            once.admit(&ask(128, 1, 0)),
            Verdict::Refuse(Errno::ENOTCONN)
        ));
    }

    #[test]
    fn a_reply_is_forgotten_when_it_has_arrived_or_its_slot_is_used_again() {
        let mut once = Once::default();
        run(&mut once, &ask(128, 1, 0), 7);
        run(&mut once, &ask(256, 2, 0), 8);
        run(&mut once, &ask(384, 1, 0), 9);
        assert_eq!(once.saved(), 2);
        assert!(matches!(once.admit(&resent(128, 1, 0)), Verdict::Drop));
        run(&mut once, &ask(512, 3, 383), 10);
        assert_eq!(once.saved(), 2);
        assert!(matches!(
            once.admit(&resent(256, 2, 383)),
            Verdict::Refuse(Errno::EPROTO)
        ));
    }

    #[test]
    fn a_request_in_progress_is_joined_when_resent_and_dropped_when_doubled() {
        let mut once = Once::default();
        assert!(matches!(once.admit(&ask(128, 0, 0)), Verdict::Run));
        once.started(Xid(128), Arc::new(1));
        assert!(matches!(once.admit(&ask(128, 0, 0)), Verdict::Drop));
        assert!(matches!(once.admit(&resent(128, 0, 0)), Verdict::Join(_)));
        once.finished(Xid(128), 0, None);
        assert!(matches!(once.admit(&resent(128, 0, 0)), Verdict::Run));
    }

    #[test]
    fn a_new_connection_counts_anew_but_remembers_what_was_executed() {
        let mut once = Once::default();
        run(&mut once, &ask(256, 1, 255), 7);
        once.connected();
        assert!(matches!(once.admit(&resent(256, 1, 0)), Verdict::Answer(_)));
        assert!(matches!(once.admit(&resent(128, 2, 0)), Verdict::Run));
    }

    #[test]
    fn what_a_client_without_slots_piles_up_is_bounded() {
        let mut once = Once::default();
        for i in 1..=2 * UNTAGGED_MAX as u64 {
            run(&mut once, &ask(i * 128, 0, 0), i);
        }
        assert_eq!(once.saved(), UNTAGGED_MAX);
    }
}
