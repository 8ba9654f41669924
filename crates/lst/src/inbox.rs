//! Requests that wait to be served: a bounded queue for each partition.

use cpt::{BoxFuture, CptId};
use lnet::{Full, Incoming, PutSink};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// The queues of one portal.
#[derive(Debug)]
pub(crate) struct Inbox {
    parts: Vec<Part>,
    /// Places in each.
    places: usize,
    /// Somebody has made room.
    room: Notify,
}

#[derive(Debug, Default)]
struct Part {
    waiting: Mutex<VecDeque<Incoming>>,
    came: Notify,
}

impl Inbox {
    /// With so many queues, and so many places in each.
    pub(crate) fn new(parts: usize, places: usize) -> Arc<Inbox> {
        Arc::new(Inbox {
            parts: (0..parts.max(1)).map(|_| Part::default()).collect(),
            places,
            room: Notify::new(),
        })
    }

    fn part(&self, CptId(cpt): CptId) -> &Part {
        &self.parts[cpt % self.parts.len()]
    }

    /// All that waits in a queue; waits until there is something.
    pub(crate) async fn next(&self, part: usize) -> VecDeque<Incoming> {
        let part = self.part(CptId(part));
        loop {
            let waiting = std::mem::take(&mut *part.waiting.lock());
            if !waiting.is_empty() {
                self.room.notify_waiters();
                return waiting;
            }
            part.came.notified().await;
        }
    }

    fn is_full(&self) -> bool {
        self.parts
            .iter()
            .any(|part| part.waiting.lock().len() >= self.places)
    }
}

impl PutSink for Inbox {
    fn put(&self, message: Incoming) -> Result<(), Full> {
        let part = self.part(message.cpt);
        let mut waiting = part.waiting.lock();
        if waiting.len() >= self.places {
            return Err(Full(message));
        }
        waiting.push_back(message);
        let first = waiting.len() == 1;
        drop(waiting);
        if first {
            part.came.notify_one();
        }
        Ok(())
    }

    /// Which queue the message was for is not known here: whenever one was emptied, it is worth a try.
    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let emptied = self.room.notified();
            if self.is_full() {
                emptied.await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Inbox;
    use cpt::CptId;
    use lnet::{Incoming, Payload, PutSink};
    use wire::Nid;

    fn message(cpt: usize, match_bits: u64) -> Incoming {
        Incoming {
            from: Nid::LO,
            portal: 50,
            match_bits,
            hdr_data: 0,
            offset: 0,
            payload: Payload::new(),
            cpt: CptId(cpt),
        }
    }

    #[tokio::test]
    async fn a_full_queue_gives_back_until_it_is_emptied() {
        let inbox = Inbox::new(2, 2);
        assert!(inbox.put(message(1, 1)).is_ok() && inbox.put(message(1, 2)).is_ok());
        let back = inbox.put(message(1, 3)).expect_err("it is full").0;
        assert!(inbox.put(message(0, 9)).is_ok(), "the other is not");
        let (taken, ()) = tokio::join!(inbox.next(1), inbox.room());
        assert_eq!(taken.iter().map(|m| m.match_bits).collect::<Vec<_>>(), [1, 2]);
        assert!(inbox.put(back).is_ok());
    }
}
