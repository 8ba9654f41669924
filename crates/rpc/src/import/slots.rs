//! Limits of requests in flight: `max_rpcs_in_flight`, and the tagged slots of requests that modify
//! an MDT (`pb_tag`). Closes have one slot more, so that a close never waits for an open
//! (docs/protocol.md, "PtlRPC").

use crate::{Request, opcode};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A semaphore with a size that can change while permits are in use.
#[derive(Debug)]
struct Limit {
    permits: Semaphore,
    size: Mutex<Size>,
}

#[derive(Debug)]
struct Size {
    max: usize,
    /// Permits in use that are removed when they are returned.
    surplus: usize,
}

impl Limit {
    fn new(max: usize) -> Limit {
        Limit {
            permits: Semaphore::new(max),
            size: Mutex::new(Size { max, surplus: 0 }),
        }
    }

    fn resize(&self, max: usize) {
        let mut size = self.size.lock();
        let old_max = std::mem::replace(&mut size.max, max);
        let increase = max.saturating_sub(old_max);
        let kept = increase.min(size.surplus);
        size.surplus -= kept;
        self.permits.add_permits(increase - kept);
        let decrease = old_max.saturating_sub(max);
        size.surplus += decrease - self.permits.forget_permits(decrease);
    }

    async fn take(&self) -> Permit<'_> {
        let permit = self
            .permits
            .acquire()
            .await
            .expect("the semaphore is never closed");
        Permit {
            permit: Some(permit),
            limit: self,
        }
    }
}

struct Permit<'a> {
    permit: Option<SemaphorePermit<'a>>,
    limit: &'a Limit,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut size = self.limit.size.lock();
        if let Some(permit) = self.permit.take()
            && size.surplus > 0
        {
            size.surplus -= 1;
            permit.forget();
        }
    }
}

/// The limits of an import.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Limited requests except reads, writes and truncates; they may wait for locks on the server.
    non_io: Limit,
    /// Reads, writes and truncates. They have their own limit, because a request that waits for a
    /// lock may depend on them.
    io: Limit,
    /// Requests that modify an MDT.
    modifying: Limit,
    /// The extra slot for closes.
    extra_close: Limit,
    /// Whether each tag is in use; index 0 is for tag 1.
    tags: Arc<Mutex<Vec<bool>>>,
}

/// Permission to send one request; dropping it frees the slot.
pub(crate) struct Slot<'a> {
    _permit: Option<Permit<'a>>,
    tag: Option<(u16, Arc<Mutex<Vec<bool>>>)>,
}

impl Slot<'_> {
    /// `pb_tag`, from 1; 0 without a tagged slot.
    pub(crate) fn tag(&self) -> u16 {
        self.tag.as_ref().map_or(0, |(tag, _)| *tag)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if let Some((tag, tags)) = self.tag.take()
            && let Some(used) = tags.lock().get_mut(usize::from(tag) - 1)
        {
            *used = false;
        }
    }
}

impl Slots {
    pub(crate) fn new(max_rpcs_in_flight: usize) -> Slots {
        Slots {
            non_io: Limit::new(max_rpcs_in_flight.max(1)),
            io: Limit::new(max_rpcs_in_flight.max(1)),
            modifying: Limit::new(1),
            extra_close: Limit::new(1),
            tags: Arc::default(),
        }
    }

    /// Sets `max_rpcs_in_flight`.
    pub(crate) fn set_in_flight(&self, max: usize) {
        self.non_io.resize(max.max(1));
        self.io.resize(max.max(1));
    }

    /// Sets the number of modifying requests in flight that the server granted.
    pub(crate) fn set_modifying(&self, max: usize) {
        self.modifying.resize(max.clamp(1, usize::from(u16::MAX) - 1));
    }

    /// Waits for the slot that a request needs.
    pub(crate) async fn take(&self, req: &Request) -> Slot<'_> {
        // During a recovery, requests that wait for its end hold the slots.
        if req.replay.is_some() {
            return Slot {
                _permit: None,
                tag: None,
            };
        }
        if req.modifies || req.close {
            let permit = match req.close {
                false => self.modifying.take().await,
                true => tokio::select! {
                    biased;
                    permit = self.modifying.take() => permit,
                    permit = self.extra_close.take() => permit,
                },
            };
            return Slot {
                _permit: Some(permit),
                tag: Some((self.take_tag(), self.tags.clone())),
            };
        }
        let permit = match (req.limited, opcode::is_io(req.opc)) {
            (false, _) => None,
            (true, true) => Some(self.io.take().await),
            (true, false) => Some(self.non_io.take().await),
        };
        Slot {
            _permit: permit,
            tag: None,
        }
    }

    /// Takes the lowest free tag.
    fn take_tag(&self) -> u16 {
        let mut tags = self.tags.lock();
        let free = tags.iter().position(|used| !used).unwrap_or_else(|| {
            tags.push(false);
            tags.len() - 1
        });
        tags[free] = true;
        u16::try_from(free + 1).expect("there are fewer than 65536 modifying slots")
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;
    use crate::Request;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn poll_once<F: Future>(f: F) -> Option<F::Output> {
        match pin!(f).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(out) => Some(out),
            Poll::Pending => None,
        }
    }

    #[test]
    fn tags_are_reused_and_limit_modifying_requests() {
        let slots = Slots::new(8);
        slots.set_modifying(2);
        let reint = Request::modifying(wire::MDS_REINT, Vec::new());
        let first = poll_once(slots.take(&reint));
        let second = poll_once(slots.take(&reint));
        assert_eq!(first.as_ref().map(|s| s.tag()), Some(1));
        assert_eq!(second.as_ref().map(|s| s.tag()), Some(2));
        assert!(poll_once(slots.take(&reint)).is_none());
        drop(first);
        assert_eq!(poll_once(slots.take(&reint)).map(|s| s.tag()), Some(1));
    }

    #[test]
    fn a_close_has_one_slot_more() {
        let slots = Slots::new(8);
        let reint = Request::modifying(wire::MDS_REINT, Vec::new());
        let close = Request::modifying(wire::MDS_CLOSE, Vec::new());
        let _open = poll_once(slots.take(&reint));
        let first = poll_once(slots.take(&close));
        assert_eq!(first.as_ref().map(|s| s.tag()), Some(2));
        assert!(poll_once(slots.take(&close)).is_none());
    }

    #[test]
    fn the_limit_can_shrink_while_slots_are_in_use() {
        let slots = Slots::new(3);
        let read = Request::new(wire::OST_READ, Vec::new());
        let slots_in_use: Vec<_> = (0..3).filter_map(|_| poll_once(slots.take(&read))).collect();
        assert_eq!(slots_in_use.len(), 3);
        slots.set_in_flight(1);
        drop(slots_in_use);
        let slot = poll_once(slots.take(&read));
        assert!(slot.is_some() && poll_once(slots.take(&read)).is_none());
        slots.set_in_flight(2);
        assert!(poll_once(slots.take(&read)).is_some());
    }

    #[test]
    fn enqueues_do_not_wait_for_reads_and_cancels_have_no_limit() {
        let slots = Slots::new(1);
        let read = Request::new(wire::OST_READ, Vec::new());
        let _read_slot = poll_once(slots.take(&read));
        assert!(poll_once(slots.take(&read)).is_none());
        let enqueue = Request::new(wire::LDLM_ENQUEUE, Vec::new());
        let enqueue_slot = poll_once(slots.take(&enqueue));
        assert!(enqueue_slot.is_some() && poll_once(slots.take(&enqueue)).is_none());
        assert!(poll_once(slots.take(&Request::new(wire::LDLM_CANCEL, Vec::new()))).is_some());
    }
}
