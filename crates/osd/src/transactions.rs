//! Transaction numbers: which are in flight, which are applied, which are committed.
//!
//! A number is handed out by [`Transactions::begin`] and is in flight until its batch is applied (or the guard is
//! dropped, which aborts it). `applied` is the highest number below which none is in flight; when a store has made
//! all of that durable it says so with `set_committed`. As in Lustre, the upper 32 bits are an epoch that grows with
//! every start of the target, so that a number is higher than any that was ever handed out, although a crash forgets
//! the numbers that were not committed. No lock is shared by all workers: a number in flight is in one of a few shards,
//! which tells its lowest before the number is anybody's, so that `applied` looks without a lock and overlooks none.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use parking_lot::Mutex;
use tokio::sync::watch;

const SHARDS: usize = 16;

/// The transaction numbers of one target.
pub struct Transactions {
    last: AtomicU64,
    in_flight: [Shard; SHARDS],
    committed: watch::Sender<u64>,
    epoch: u64,
}

/// A share of the numbers in flight: those of one remainder. In cache lines of its own.
#[repr(align(64))]
struct Shard {
    numbers: Mutex<Vec<u64>>,
    /// Not above the lowest of them; changed under their lock.
    lowest: AtomicU64,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            numbers: Mutex::default(),
            lowest: AtomicU64::new(u64::MAX),
        }
    }
}

impl Shard {
    fn tell_lowest(&self, numbers: &[u64]) {
        self.lowest
            .store(numbers.iter().copied().min().unwrap_or(u64::MAX), SeqCst);
    }
}

/// A transaction in flight; dropping it finishes it.
pub struct InFlight {
    transno: u64,
    transactions: Arc<Transactions>,
}

impl Transactions {
    /// The numbers after a start: `committed` and `epoch` are what the store kept (0, 0 when it is new). The new
    /// epoch is to be made durable before the first number is used.
    pub fn restore(committed: u64, epoch: u64) -> Arc<Transactions> {
        // Numbers handed out but not committed may have run over into the epoch after `committed`'s.
        let epoch = match (committed, epoch) {
            (0, 0) => 1,
            _ => epoch.max(committed >> 32) + 2,
        };
        Arc::new(Transactions {
            last: AtomicU64::new(epoch << 32),
            in_flight: Default::default(),
            committed: watch::Sender::new(committed),
            epoch,
        })
    }

    /// This start's epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins a transaction.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        loop {
            let last = self.last();
            let transno = last + 1;
            let shard = self.shard(transno);
            let mut numbers = shard.numbers.lock();
            if self.last() != last {
                // All who begin at once meet here, and one of them has had it.
                continue;
            }
            // Told before the number is handed out; if it is another's by then, it is taken back.
            shard.lowest.fetch_min(transno, SeqCst);
            if self.last.compare_exchange(last, transno, SeqCst, SeqCst).is_ok() {
                numbers.push(transno);
                drop(numbers);
                return InFlight {
                    transno,
                    transactions: self.clone(),
                };
            }
            shard.tell_lowest(&numbers);
        }
    }

    fn shard(&self, transno: u64) -> &Shard {
        &self.in_flight[(transno % SHARDS as u64) as usize]
    }

    /// Finishes a transaction: its changes are applied, or it has none. A second time does nothing.
    pub fn finish(&self, transno: u64) {
        let shard = self.shard(transno);
        if shard.lowest.load(SeqCst) > transno {
            return;
        }
        let mut numbers = shard.numbers.lock();
        if let Some(at) = numbers.iter().position(|&n| n == transno) {
            numbers.swap_remove(at);
            shard.tell_lowest(&numbers);
        }
    }

    /// The last number handed out.
    pub fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    /// The highest number such that it and all before it are finished.
    pub fn applied(&self) -> u64 {
        // First the last number: whatever is below it and in flight is told by its shard before.
        let last = self.last();
        let lowest = self.in_flight.iter().map(|s| s.lowest.load(SeqCst)).min();
        lowest.map_or(last, |l| last.min(l - 1))
    }

    /// The highest number such that it and all before it are durable.
    pub fn committed(&self) -> u64 {
        *self.committed.borrow()
    }

    /// Says that everything up to `transno` is durable; never goes back.
    pub fn set_committed(&self, transno: u64) {
        self.committed.send_if_modified(|c| {
            let grows = transno > *c;
            *c = transno.max(*c);
            grows
        });
    }

    /// To wait for commits.
    pub fn watch_committed(&self) -> watch::Receiver<u64> {
        self.committed.subscribe()
    }
}

impl InFlight {
    /// Its number.
    pub fn transno(&self) -> u64 {
        self.transno
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.transactions.finish(self.transno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applied_waits_for_the_oldest_in_flight() {
        let t = Transactions::restore(0, 0);
        let start = t.applied();
        let (a, b, c) = (t.begin(), t.begin(), t.begin());
        assert_eq!((a.transno(), c.transno()), (start + 1, start + 3));
        drop(b);
        assert_eq!(t.applied(), start);
        t.finish(a.transno());
        assert_eq!(t.applied(), start + 2);
        drop(a);
        drop(c);
        assert_eq!(t.applied(), start + 3);
    }

    #[test]
    fn numbers_after_a_restart_are_higher_than_any_before() {
        let t = Transactions::restore(0, 0);
        t.set_committed(t.begin().transno());
        let lost = (0..100).map(|_| t.begin().transno()).max().unwrap_or(0);
        let again = Transactions::restore(t.committed(), t.epoch());
        assert!(again.begin().transno() > lost);
        assert_eq!(again.committed(), t.committed());
        // Also when the numbers ran over into the next epoch.
        let again = Transactions::restore((7 << 32) - 1, 6);
        assert!(again.begin().transno() > (7 << 32) + 1_000_000);
    }

    #[test]
    fn committed_never_goes_back() {
        let t = Transactions::restore(9, 0);
        t.set_committed(12);
        t.set_committed(11);
        assert_eq!(t.committed(), 12);
    }

    #[test]
    fn applied_never_passes_a_number_in_flight() {
        let t = Transactions::restore(0, 0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let t = t.clone();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        let f = t.begin();
                        assert!(t.applied() < f.transno());
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .for_each(|h| h.join().expect("no thread fails"));
        assert_eq!(t.applied(), t.last());
    }
}
