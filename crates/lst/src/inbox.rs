//! The request queues of a portal: bounded, one for each CPU partition or one for all.

use cpt::{BoxFuture, CptId};
use lnet::{IncomingPut, PutSink, SinkFull};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// The queues of one portal.
#[derive(Debug)]
pub(crate) struct Inbox {
    queues: Vec<Queue>,
    /// Maximum number of requests in each queue.
    capacity: usize,
    /// Signalled when a worker has taken all requests of a queue.
    drained: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<VecDeque<IncomingPut>>,
    /// Signalled when a request arrives in the empty queue.
    arrived: Notify,
}

impl Inbox {
    /// Creates `queues` queues of `capacity` requests each.
    pub(crate) fn new(queues: usize, capacity: usize) -> Arc<Inbox> {
        Arc::new(Inbox {
            queues: (0..queues.max(1)).map(|_| Queue::default()).collect(),
            capacity,
            drained: Notify::new(),
        })
    }

    fn queue(&self, CptId(cpt): CptId) -> &Queue {
        &self.queues[cpt % self.queues.len()]
    }

    /// Takes all requests of a queue; waits while the queue is empty.
    pub(crate) async fn next(&self, queue: usize) -> VecDeque<IncomingPut> {
        let queue = self.queue(CptId(queue));
        loop {
            let waiting = std::mem::take(&mut *queue.waiting.lock());
            if !waiting.is_empty() {
                self.drained.notify_waiters();
                return waiting;
            }
            queue.arrived.notified().await;
        }
    }

    /// Whether any queue is full.
    fn is_full(&self) -> bool {
        self.queues
            .iter()
            .any(|queue| queue.waiting.lock().len() >= self.capacity)
    }
}

impl PutSink for Inbox {
    fn put(&self, message: IncomingPut) -> Result<(), SinkFull> {
        let queue = self.queue(message.cpt);
        let mut waiting = queue.waiting.lock();
        if waiting.len() >= self.capacity {
            return Err(SinkFull(message));
        }
        waiting.push_back(message);
        let was_empty = waiting.len() == 1;
        drop(waiting);
        if was_empty {
            queue.arrived.notify_one();
        }
        Ok(())
    }

    /// Waits until a worker drains any queue; returns at once if no queue is full. This function
    /// does not know which queue refused the message, so LNet offers it again after each drained
    /// queue.
    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let drained = self.drained.notified();
            if self.is_full() {
                drained.await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Inbox;
    use cpt::CptId;
    use lnet::{IncomingPut, Payload, PutSink};
    use wire::Nid;

    fn message(cpt: usize, match_bits: u64) -> IncomingPut {
        IncomingPut {
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
    async fn full_queue_refuses_messages_until_it_is_drained() {
        let inbox = Inbox::new(2, 2);
        assert!(inbox.put(message(1, 1)).is_ok() && inbox.put(message(1, 2)).is_ok());
        let refused = inbox.put(message(1, 3)).expect_err("the queue is full").0;
        assert!(inbox.put(message(0, 9)).is_ok(), "the other queue is not full");
        let (taken, ()) = tokio::join!(inbox.next(1), inbox.wait_for_space());
        assert_eq!(taken.iter().map(|m| m.match_bits).collect::<Vec<_>>(), [1, 2]);
        assert!(inbox.put(refused).is_ok());
    }
}
