//! Room for dirty data of one OST: the grant that its server gave us, and `max_dirty_mb`. A write takes
//! room before it may stay in the cache; what cannot get any goes to the server at once.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What an RPC tells the server of our grant (`o_dirty`, `o_undirty`, `o_grant`, `o_dropped`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantReport {
    /// Bytes dirty here.
    pub dirty: u64,
    /// Bytes of grant that we could use in all.
    pub undirty: u64,
    /// Bytes of grant that we have left.
    pub available: u64,
    /// Bytes of grant that were lost here since the last report.
    pub dropped: u64,
}

#[derive(Debug)]
struct State {
    /// Reserved and not yet written, including what is on its way.
    dirty: u64,
    dirty_max: u64,
    available: u64,
    dropped: u64,
    /// Writers that wait for room.
    waiting: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Budget {
    state: Mutex<State>,
    freed: Notify,
}

/// What came of asking for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Taken.
    Taken,
    /// Not now; something that is dirty has to be written first.
    Wait,
    /// Nothing is dirty, so waiting would not help: the server grants too little.
    None,
}

impl Budget {
    /// No grant yet, and room for `dirty_max` bytes.
    pub(super) fn new(dirty_max: u64) -> Budget {
        let state = State {
            dirty: 0,
            dirty_max,
            available: 0,
            dropped: 0,
            waiting: 0,
        };
        Budget {
            state: Mutex::new(state),
            freed: Notify::new(),
        }
    }

    /// Changes `max_dirty_mb` (in bytes).
    pub(super) fn set_dirty_max(&self, bytes: u64) {
        self.state.lock().dirty_max = bytes;
        self.freed.notify_waiters();
    }

    /// `max_dirty_mb` in bytes.
    pub(super) fn dirty_max(&self) -> u64 {
        self.state.lock().dirty_max
    }

    /// A (re)connection: the server says what our grant is in all.
    pub(super) fn connected(&self, grant: u64) {
        let mut s = self.state.lock();
        s.available = grant.saturating_sub(s.dirty);
        s.dropped = 0;
        drop(s);
        self.freed.notify_waiters();
    }

    /// Bytes dirty or on their way.
    pub(super) fn dirty(&self) -> u64 {
        self.state.lock().dirty
    }

    /// Bytes of unused grant.
    pub(super) fn available(&self) -> u64 {
        self.state.lock().available
    }

    /// Whether somebody waits for room: then write back at once.
    pub(super) fn pressed(&self) -> bool {
        let s = self.state.lock();
        s.waiting > 0 || s.dirty > s.dirty_max / 2
    }

    /// Takes room for `bytes` if there is any now.
    pub(super) fn try_reserve(&self, bytes: u64) -> Room {
        let mut s = self.state.lock();
        if s.available >= bytes && s.dirty + bytes <= s.dirty_max {
            s.available -= bytes;
            s.dirty += bytes;
            Room::Taken
        } else if s.dirty > 0 {
            Room::Wait
        } else {
            Room::None
        }
    }

    /// Takes room for `bytes`, waiting while dirty data can be written to make some; `press` is called
    /// before each wait to have that done. False: there is no grant to wait for.
    pub(super) async fn reserve(&self, bytes: u64, press: impl Fn()) -> bool {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match self.try_reserve(bytes) {
                Room::Taken => return true,
                Room::None => return false,
                Room::Wait => {
                    let _waiting = Waiting::new(self);
                    press();
                    freed.await;
                }
            }
        }
    }

    /// Gives back room that was taken and not used: nothing was written for it.
    pub(super) fn unreserve(&self, bytes: u64) {
        let mut s = self.state.lock();
        s.dirty = s.dirty.saturating_sub(bytes);
        s.available += bytes;
        drop(s);
        self.freed.notify_waiters();
    }

    /// A write RPC with `reserved` bytes of room is over; `granted` is what its reply added.
    pub(super) fn written(&self, reserved: u64, granted: u64) {
        let mut s = self.state.lock();
        s.dirty = s.dirty.saturating_sub(reserved);
        s.available += granted;
        drop(s);
        self.freed.notify_waiters();
    }

    /// The figures for the next RPC; what was dropped is told once.
    pub(super) fn report(&self) -> GrantReport {
        let mut s = self.state.lock();
        let dropped = std::mem::take(&mut s.dropped);
        GrantReport {
            dirty: s.dirty,
            undirty: s.dirty_max,
            available: s.available,
            dropped,
        }
    }
}

/// Counts a waiter, also when its future is dropped.
struct Waiting<'a>(&'a Budget);

impl<'a> Waiting<'a> {
    fn new(budget: &'a Budget) -> Self {
        budget.state.lock().waiting += 1;
        Waiting(budget)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_writer_waits_for_room_and_goes_on_when_data_is_written() {
        let budget = Arc::new(Budget::new(8192));
        budget.connected(1 << 20);
        assert!(budget.reserve(8192, || ()).await);
        let b = budget.clone();
        let waiter = tokio::spawn(async move { b.reserve(4096, || ()).await });
        while !budget.pressed() || budget.state.lock().waiting == 0 {
            tokio::task::yield_now().await;
        }
        budget.written(4096, 4096);
        assert!(waiter.await.expect("the waiter ends"));
        assert_eq!(budget.dirty(), 8192);
        assert_eq!(budget.state.lock().waiting, 0);
    }

    #[tokio::test]
    async fn without_grant_and_without_dirty_data_nobody_waits() {
        let budget = Budget::new(1 << 20);
        assert!(!budget.reserve(4096, || ()).await);
        budget.connected(4096);
        assert!(budget.reserve(4096, || ()).await);
        assert_eq!(budget.try_reserve(1), Room::Wait);
        budget.unreserve(4096);
        assert_eq!(budget.available(), 4096);
    }
}
