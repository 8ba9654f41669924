//! The budget for dirty data of one OST: the grant from its server, and `max_dirty_mb`. A write
//! reserves bytes before its data may stay in the cache. Without a reservation, the data goes to
//! the server at once.

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The grant state that an RPC reports (`o_dirty`, `o_undirty`, `o_grant`). `o_dropped` stays 0:
/// the client gives up grant only when it disconnects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GrantReport {
    /// Dirty bytes of this client.
    pub dirty: u64,
    /// Grant that this client can use in total, in bytes.
    pub undirty: u64,
    /// Unused grant in bytes.
    pub available: u64,
}

#[derive(Debug)]
struct State {
    /// Bytes reserved and not yet written, including in-flight bytes.
    dirty: u64,
    /// `max_dirty_mb` in bytes.
    dirty_max: u64,
    /// Unused grant in bytes.
    available: u64,
    /// Number of writers that wait for a reservation.
    waiting: usize,
}

/// The budget of one OST.
#[derive(Debug)]
pub(super) struct Budget {
    state: Mutex<State>,
    /// Notified when a waiting writer may be able to reserve bytes.
    freed: Notify,
}

/// The result of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reservation {
    /// The bytes are reserved.
    Reserved,
    /// Not possible before some dirty data is written.
    Wait,
    /// Nothing is dirty, so a wait would not help: the grant or the limit is too small.
    Impossible,
}

impl Budget {
    /// A budget without grant, limited to `dirty_max` bytes.
    pub(super) fn new(dirty_max: u64) -> Budget {
        let state = State {
            dirty: 0,
            dirty_max,
            available: 0,
            waiting: 0,
        };
        Budget {
            state: Mutex::new(state),
            freed: Notify::new(),
        }
    }

    /// Sets `max_dirty_mb`, in bytes.
    pub(super) fn set_dirty_max(&self, bytes: u64) {
        self.state.lock().dirty_max = bytes;
        self.freed.notify_waiters();
    }

    /// `max_dirty_mb` in bytes.
    pub(super) fn dirty_max(&self) -> u64 {
        self.state.lock().dirty_max
    }

    /// Sets the total grant in bytes, after a connect or an idle disconnect.
    pub(super) fn set_grant(&self, grant: u64) {
        let mut state = self.state.lock();
        state.available = grant.saturating_sub(state.dirty);
        drop(state);
        self.freed.notify_waiters();
    }

    /// Dirty and in-flight bytes.
    pub(super) fn dirty(&self) -> u64 {
        self.state.lock().dirty
    }

    /// Unused grant in bytes.
    pub(super) fn available(&self) -> u64 {
        self.state.lock().available
    }

    /// Whether dirty data should be written back at once: a writer waits, or over half of
    /// `max_dirty_mb` is dirty.
    pub(super) fn under_pressure(&self) -> bool {
        let state = self.state.lock();
        state.waiting > 0 || state.dirty > state.dirty_max / 2
    }

    /// Reserves `bytes` if possible now.
    pub(super) fn try_reserve(&self, bytes: u64) -> Reservation {
        let mut state = self.state.lock();
        if state.available >= bytes && state.dirty + bytes <= state.dirty_max {
            state.available -= bytes;
            state.dirty += bytes;
            Reservation::Reserved
        } else if state.dirty > 0 {
            Reservation::Wait
        } else {
            Reservation::Impossible
        }
    }

    /// Reserves `bytes`; if that is not possible yet, waits until dirty data is written. Calls
    /// `start_write_back` before each wait. False: no data is dirty, so a wait would free no bytes.
    pub(super) async fn reserve(&self, bytes: u64, start_write_back: impl Fn()) -> bool {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            match self.try_reserve(bytes) {
                Reservation::Reserved => return true,
                Reservation::Impossible => return false,
                Reservation::Wait => {
                    let _waiting = WaitCount::new(self);
                    start_write_back();
                    freed.await;
                }
            }
        }
    }

    /// Cancels an unused reservation: its bytes return to the unused grant.
    pub(super) fn unreserve(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.dirty = state.dirty.saturating_sub(bytes);
        state.available += bytes;
        drop(state);
        self.freed.notify_waiters();
    }

    /// Records the end of an RPC: its data had `reserved` bytes reserved (0: none), and its reply
    /// added `granted` bytes of grant.
    pub(super) fn finish_rpc(&self, reserved: u64, granted: u64) {
        let mut state = self.state.lock();
        state.dirty = state.dirty.saturating_sub(reserved);
        state.available += granted;
        drop(state);
        self.freed.notify_waiters();
    }

    /// The grant state for the next RPC.
    pub(super) fn report(&self) -> GrantReport {
        let state = self.state.lock();
        GrantReport {
            dirty: state.dirty,
            undirty: state.dirty_max,
            available: state.available,
        }
    }
}

/// Counts a waiting writer, until the wait ends or its future is dropped.
struct WaitCount<'a>(&'a Budget);

impl<'a> WaitCount<'a> {
    fn new(budget: &'a Budget) -> Self {
        budget.state.lock().waiting += 1;
        WaitCount(budget)
    }
}

impl Drop for WaitCount<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_writer_waits_for_the_budget_until_data_is_written() {
        let budget = Arc::new(Budget::new(8192));
        budget.set_grant(1 << 20);
        assert!(budget.reserve(8192, || ()).await);
        let shared = budget.clone();
        let waiter = cpt::spawn(async move { shared.reserve(4096, || ()).await });
        while !budget.under_pressure() || budget.state.lock().waiting == 0 {
            tokio::task::yield_now().await;
        }
        budget.finish_rpc(4096, 4096);
        assert!(waiter.await.expect("the waiter ends"));
        assert_eq!(budget.dirty(), 8192);
        assert_eq!(budget.state.lock().waiting, 0);
    }

    #[tokio::test]
    async fn a_reservation_without_grant_fails_at_once_unless_data_is_dirty() {
        let budget = Budget::new(1 << 20);
        assert!(!budget.reserve(4096, || ()).await);
        budget.set_grant(4096);
        assert!(budget.reserve(4096, || ()).await);
        assert_eq!(budget.try_reserve(1), Reservation::Wait);
        budget.unreserve(4096);
        assert_eq!(budget.available(), 4096);
    }
}
