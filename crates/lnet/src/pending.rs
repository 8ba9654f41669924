//! One shard of this node's PUTs and GETs that wait for an ACK or a REPLY, and the rules for
//! answers. Pure code: the caller supplies each operation's waiter, and passes the answer to it.

use crate::{LnetError, Payload};
use cpt::{HashSeed, SeededMap};
use wire::Nid;

/// The answer to one of this node's PUTs or GETs.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The number of bytes of a PUT that the peer accepted.
    Ack(u32),
    /// The data of a GET.
    Reply(Payload),
}

/// The result of an operation.
pub(crate) type AnswerResult = Result<Answer, LnetError>;

/// One of this node's PUTs or GETs.
struct PendingOp<W> {
    peer: Nid,
    /// The router that the message was sent to, if any. If all connections to that router are
    /// closed, the operation fails.
    via: Option<Nid>,
    /// Maximum length of the REPLY in bytes; `None` for a PUT, which waits for an ACK.
    reply_max: Option<u32>,
    waiter: W,
}

/// The pending operations, by the object cookie of each operation's handle. `W` is the waiter that
/// gets the answer.
pub(crate) struct PendingOps<W>(SeededMap<u64, PendingOp<W>>);

impl<W> PendingOps<W> {
    /// No operations.
    pub(crate) fn new(seed: HashSeed) -> PendingOps<W> {
        PendingOps(SeededMap::with_hasher(seed))
    }

    /// Adds a PUT that `peer` will acknowledge or, with `reply_max`, a GET that `peer` will answer.
    pub(crate) fn add(&mut self, object: u64, peer: Nid, reply_max: Option<u32>, waiter: W) {
        let operation = PendingOp {
            peer,
            via: None,
            reply_max,
            waiter,
        };
        self.0.insert(object, operation);
    }

    /// Removes an operation after its waiter has given up; does nothing if it has ended.
    pub(crate) fn remove(&mut self, object: u64) {
        self.0.remove(&object);
    }

    /// Records that the message of an operation leaves through a router.
    pub(crate) fn set_router(&mut self, object: u64, router: Nid) {
        if let Some(operation) = self.0.get_mut(&object) {
            operation.via = Some(router);
        }
    }

    /// Removes the operations that wait for `peer`, or that were sent through `peer`.
    pub(crate) fn remove_peer(&mut self, peer: Nid) -> Vec<W> {
        self.0
            .extract_if(|_, operation| operation.peer == peer || operation.via == Some(peer))
            .map(|(_, operation)| operation.waiter)
            .collect()
    }

    /// Removes the operation that an answer completes. `is_sender` tells whether a peer is the
    /// sender of the answer.
    ///
    /// # Errors
    ///
    /// The reason to drop an answer that completes no operation.
    pub(crate) fn complete(
        &mut self,
        object: u64,
        answer: &Answer,
        is_sender: impl Fn(Nid) -> bool,
    ) -> Result<W, &'static str> {
        let unknown = "no operation waits for this answer";
        let operation = self.0.get(&object).ok_or(unknown)?;
        if !is_sender(operation.peer) {
            return Err("the answer is not from the peer that the operation was sent to");
        }
        match (answer, operation.reply_max) {
            (Answer::Ack(_), None) => {}
            (Answer::Reply(payload), Some(max)) if payload.len() <= max as usize => {}
            _ => return Err("the answer is of the wrong kind, or too long"),
        }
        let operation = self.0.remove(&object).ok_or(unknown)?;
        Ok(operation.waiter)
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, PendingOps};
    use cpt::HashSeed;
    use wire::Nid;

    const PEER: Nid = Nid(0x0002_0000_0a00_0001);
    const ROUTER: Nid = Nid(0x0002_0000_0a00_0002);

    #[test]
    fn operations_end_with_their_peer_or_router() {
        let mut pending = PendingOps::new(HashSeed::fixed(0));
        pending.add(1, PEER, None, "put");
        pending.add(2, PEER, Some(8), "get");
        pending.set_router(1, ROUTER);
        assert_eq!(pending.remove_peer(ROUTER), ["put"]);
        assert_eq!(pending.remove_peer(PEER), ["get"]);
        assert!(pending.complete(2, &Answer::Ack(0), |_| true).is_err());
    }

    #[test]
    fn refused_answers_leave_the_operation() {
        let mut pending = PendingOps::new(HashSeed::fixed(0));
        pending.add(1, PEER, Some(2), "get");
        let long_reply = Answer::Reply(bytes::Bytes::from_static(b"abc").into());
        assert!(pending.complete(1, &long_reply, |peer| peer == PEER).is_err());
        assert!(pending.complete(1, &Answer::Ack(0), |peer| peer == PEER).is_err());
        let reply = Answer::Reply(bytes::Bytes::from_static(b"ab").into());
        assert!(pending.complete(1, &reply, |peer| peer == ROUTER).is_err());
        assert_eq!(pending.complete(1, &reply, |peer| peer == PEER), Ok("get"));
    }
}
