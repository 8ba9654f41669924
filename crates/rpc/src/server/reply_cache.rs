//! At-most-once execution (docs/protocol.md, "PtlRPC"): the requests of one client that are in
//! execution, and the replies that the client may request again.
//!
//! Pure. A reply is kept until `pb_last_xid` reports its arrival, or until a later request uses its
//! slot (`pb_tag`). The number of replies without a slot is limited: the oldest are dropped, and
//! without its reply a resent request is executed again.

use super::{KeptReply, Reply};
use cpt::Bug;
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{Errno, Transno, Xid};

/// Maximum number of cached replies without a slot.
const UNTAGGED_MAX: usize = 64;

/// The result of a request.
pub(crate) type Outcome = Result<Reply, Errno>;

/// The fields of a request that identify it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestKey {
    pub(crate) xid: Xid,
    /// `pb_tag`; 0 for none.
    pub(crate) tag: u16,
    /// `pb_last_xid`.
    pub(crate) last_xid: Xid,
    /// `MSG_RESENT`.
    pub(crate) resent: bool,
    /// `MSG_REPLAY`.
    pub(crate) replay: bool,
    /// `pb_transno` of a replay.
    pub(crate) transno: Transno,
}

/// The decision on a request.
#[derive(Debug)]
pub(crate) enum Admission<R> {
    /// Execute it.
    Run,
    /// It is being executed: the reply goes to the latest attempt.
    Join(Arc<R>),
    /// It was executed: send the cached reply.
    Answer(Arc<Outcome>),
    /// An earlier start of the target executed it: build the reply again.
    Reconstruct(KeptReply),
    /// Drop it: the network duplicated it, or the client no longer waits for it.
    Drop,
    /// Refuse it: its reply has arrived, or it reuses an xid and is not a resend.
    Refuse(Errno),
}

#[derive(Debug)]
struct CachedReply {
    tag: u16,
    outcome: Arc<Outcome>,
}

/// The requests of one client; `R` represents one in execution.
#[derive(Debug)]
pub(crate) struct ReplyCache<R> {
    /// The highest `pb_last_xid` since the last connect.
    last_xid: Xid,
    running: BTreeMap<Xid, Arc<R>>,
    cached: BTreeMap<Xid, CachedReply>,
    /// The cached reply of each slot.
    by_tag: BTreeMap<u16, Xid>,
    /// The last request of each slot, running or not. The entry outlives the request, because the
    /// network may deliver a duplicate of an earlier request late.
    newest: BTreeMap<u16, Xid>,
    /// Number of cached replies without a slot.
    untagged: usize,
    /// The replies that an earlier start of the target kept, by slot, until the client uses the
    /// slot.
    kept: BTreeMap<u16, KeptReply>,
}

impl<R> Default for ReplyCache<R> {
    fn default() -> Self {
        ReplyCache {
            last_xid: Xid::NONE,
            running: BTreeMap::default(),
            cached: BTreeMap::new(),
            by_tag: BTreeMap::default(),
            newest: BTreeMap::default(),
            untagged: 0,
            kept: BTreeMap::new(),
        }
    }
}

impl<R> ReplyCache<R> {
    /// Forgets the highest `pb_last_xid`, because it starts again when the client connects.
    pub(crate) fn reset_last_xid(&mut self) {
        self.last_xid = Xid::NONE;
    }

    /// Adds the replies that an earlier start of the target kept.
    pub(crate) fn add_kept(&mut self, kept: Vec<KeptReply>) {
        self.kept.extend(kept.into_iter().map(|reply| (reply.tag, reply)));
    }

    /// Decides on a request. After [`Admission::Run`] and [`Admission::Reconstruct`] the caller
    /// must call [`ReplyCache::begin`].
    pub(crate) fn admit(&mut self, key: &RequestKey) -> Admission<R> {
        if key.xid <= self.last_xid && !key.replay {
            return Admission::Refuse(Errno::EPROTO);
        }
        // The client sends a replay's `pb_last_xid` for its new requests.
        if key.last_xid > self.last_xid && !key.replay {
            self.last_xid = key.last_xid;
            self.forget_arrived();
        }
        if let Some(running) = self.running.get(&key.xid)
            && !Bug::ResendExecutedTwice.is_planted()
        {
            return if key.resent {
                Admission::Join(running.clone())
            } else {
                Admission::Drop
            };
        }
        if let Some(cached) = self.cached.get(&key.xid) {
            return match key.resent || key.replay {
                true => Admission::Answer(cached.outcome.clone()),
                false => Admission::Refuse(Errno::ENOTCONN),
            };
        }
        if let Some(kept) = self.kept_reply(key) {
            return Admission::Reconstruct(kept);
        }
        if key.tag != 0 {
            let newest = self.newest.entry(key.tag).or_insert(key.xid);
            if *newest > key.xid && !key.replay {
                // The client has used the slot since then, so it no longer waits for this request.
                return Admission::Drop;
            }
            *newest = key.xid.max(*newest);
            if let Some(&other) = self.by_tag.get(&key.tag) {
                self.forget(other);
            }
        }
        Admission::Run
    }

    /// The kept part of a request's reply, if an earlier start of the target executed the request.
    /// That start executed the requests of a slot one after the other, so it also executed those
    /// before the one that it kept a reply for.
    fn kept_reply(&mut self, key: &RequestKey) -> Option<KeptReply> {
        let kept = *self.kept.get(&key.tag)?;
        match (key.xid == kept.xid, key.replay) {
            (true, _) if key.resent || key.replay => Some(kept),
            (false, true) if key.xid < kept.xid => Some(KeptReply {
                xid: key.xid,
                transno: key.transno,
                status: 0,
                data: 0,
                pre_versions: [0; 4],
                ..kept
            }),
            // The client replays a later request of the slot, which the kept reply does not cover.
            (false, true) => None,
            _ => {
                self.kept.remove(&key.tag);
                None
            }
        }
    }

    /// Records that the execution of a request begins.
    pub(crate) fn begin(&mut self, xid: Xid, running: Arc<R>) {
        self.running.insert(xid, running);
    }

    /// Records that the execution of a request has ended. An `outcome` is cached, so that the
    /// request is not executed again.
    pub(crate) fn end(&mut self, key: &RequestKey, outcome: Option<Arc<Outcome>>) {
        let RequestKey { xid, tag, .. } = *key;
        self.running.remove(&xid);
        let Some(outcome) = outcome.filter(|_| !Bug::ReplyNotKept.is_planted()) else {
            return;
        };
        if xid <= self.last_xid && !key.replay {
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
        self.cached.insert(xid, CachedReply { tag, outcome });
        if self.untagged > UNTAGGED_MAX {
            let oldest = self
                .cached
                .iter()
                .find(|(_, cached)| cached.tag == 0)
                .map(|(&xid, _)| xid);
            oldest.into_iter().for_each(|xid| self.forget(xid));
        }
    }

    /// Number of cached replies.
    #[cfg(test)]
    pub(crate) fn cached(&self) -> usize {
        self.cached.len()
    }

    fn forget_arrived(&mut self) {
        while let Some((&xid, _)) = self.cached.first_key_value()
            && xid <= self.last_xid
        {
            self.forget(xid);
        }
    }

    fn forget(&mut self, xid: Xid) {
        let Some(cached) = self.cached.remove(&xid) else {
            return;
        };
        if cached.tag == 0 {
            self.untagged -= 1;
        } else if self.by_tag.get(&cached.tag) == Some(&xid) {
            self.by_tag.remove(&cached.tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Admission, Reply, ReplyCache, RequestKey, UNTAGGED_MAX};
    use std::sync::Arc;
    use wire::{Errno, Transno, Xid};

    fn key(xid: u64, tag: u16, last_xid: u64) -> RequestKey {
        RequestKey {
            xid: Xid(xid),
            tag,
            last_xid: Xid(last_xid),
            resent: false,
            replay: false,
            transno: Transno::NONE,
        }
    }

    fn resent(xid: u64, tag: u16, last_xid: u64) -> RequestKey {
        RequestKey {
            resent: true,
            ..key(xid, tag, last_xid)
        }
    }

    fn run(cache: &mut ReplyCache<u64>, request_key: &RequestKey, transno: u64) {
        assert!(matches!(cache.admit(request_key), Admission::Run));
        cache.begin(request_key.xid, Arc::new(request_key.xid.0));
        let outcome = Ok(Reply::default().with_transno(Transno(transno)));
        cache.end(request_key, Some(Arc::new(outcome)));
    }

    #[test]
    fn a_resent_request_gets_the_cached_reply() {
        let mut cache = ReplyCache::default();
        run(&mut cache, &key(128, 1, 0), 7);
        match cache.admit(&resent(128, 1, 0)) {
            Admission::Answer(outcome) => {
                assert!(matches!(&*outcome, Ok(reply) if reply.transno == Transno(7)))
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            cache.admit(&key(128, 1, 0)),
            Admission::Refuse(Errno::ENOTCONN)
        ));
    }

    #[test]
    fn a_reply_is_dropped_when_it_has_arrived_or_its_slot_is_reused() {
        let mut cache = ReplyCache::default();
        run(&mut cache, &key(128, 1, 0), 7);
        run(&mut cache, &key(256, 2, 0), 8);
        run(&mut cache, &key(384, 1, 0), 9);
        assert_eq!(cache.cached(), 2);
        assert!(matches!(cache.admit(&resent(128, 1, 0)), Admission::Drop));
        run(&mut cache, &key(512, 3, 383), 10);
        assert_eq!(cache.cached(), 2);
        assert!(matches!(
            cache.admit(&resent(256, 2, 383)),
            Admission::Refuse(Errno::EPROTO)
        ));
    }

    #[test]
    fn a_running_request_is_joined_when_resent_and_dropped_when_duplicated() {
        let mut cache = ReplyCache::default();
        assert!(matches!(cache.admit(&key(128, 0, 0)), Admission::Run));
        cache.begin(Xid(128), Arc::new(1));
        assert!(matches!(cache.admit(&key(128, 0, 0)), Admission::Drop));
        assert!(matches!(cache.admit(&resent(128, 0, 0)), Admission::Join(_)));
        cache.end(&key(128, 0, 0), None);
        assert!(matches!(cache.admit(&resent(128, 0, 0)), Admission::Run));
    }

    #[test]
    fn a_late_duplicate_is_dropped_while_a_later_request_of_its_slot_runs() {
        let mut cache = ReplyCache::default();
        run(&mut cache, &key(128, 1, 0), 7);
        assert!(matches!(cache.admit(&key(256, 1, 0)), Admission::Run));
        cache.begin(Xid(256), Arc::new(2));
        assert!(matches!(cache.admit(&key(128, 1, 0)), Admission::Drop));
        // Not cached, such as a reply with bulk.
        cache.end(&key(256, 1, 0), None);
        assert!(matches!(cache.admit(&key(128, 1, 0)), Admission::Drop));
        assert!(matches!(cache.admit(&resent(256, 1, 0)), Admission::Run));
    }

    #[test]
    fn a_new_connection_resets_last_xid_but_keeps_replies() {
        let mut cache = ReplyCache::default();
        run(&mut cache, &key(256, 1, 255), 7);
        cache.reset_last_xid();
        assert!(matches!(cache.admit(&resent(256, 1, 0)), Admission::Answer(_)));
        assert!(matches!(cache.admit(&resent(128, 2, 0)), Admission::Run));
    }

    #[test]
    fn the_reply_to_a_replay_is_cached_though_later_requests_wait() {
        let mut cache = ReplyCache::default();
        let replay = RequestKey {
            replay: true,
            ..key(128, 1, 255)
        };
        run(&mut cache, &replay, 7);
        let again = RequestKey {
            resent: true,
            ..replay
        };
        assert!(matches!(cache.admit(&again), Admission::Answer(_)));
    }

    #[test]
    fn untagged_replies_are_limited() {
        let mut cache = ReplyCache::default();
        for i in 1..=2 * UNTAGGED_MAX as u64 {
            run(&mut cache, &key(i * 128, 0, 0), i);
        }
        assert_eq!(cache.cached(), UNTAGGED_MAX);
    }
}
