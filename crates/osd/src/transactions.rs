//! Transaction numbers: which are in flight, which are applied, which are committed.
//!
//! A number is handed out by [`Transactions::begin`] and is in flight until its batch is applied (or the guard is
//! dropped, which aborts it). `applied` is the highest number below which none is in flight; when a store has made
//! all of that durable it says so with `set_committed`. As in Lustre, the upper 32 bits are an epoch that grows with
//! every start of the target, so that a number is higher than any that was ever handed out, although a crash forgets
//! the numbers that were not committed. No lock is shared by all workers: a number in flight is registered in one
//! of a few shards, with a lower bound first and then itself, so that `applied` never overlooks one.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::watch;

const SHARDS: usize = 16;

/// The transaction numbers of one target.
pub struct Transactions {
    last: AtomicU64,
    in_flight: [Mutex<Vec<u64>>; SHARDS],
    /// Lower bounds of numbers that are being handed out at this moment.
    beginning: [Mutex<Vec<u64>>; SHARDS],
    next_shard: AtomicUsize,
    committed: watch::Sender<u64>,
    epoch: u64,
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
            beginning: Default::default(),
            next_shard: AtomicUsize::new(0),
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
        let ticket = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let bound = self.last.load(Ordering::SeqCst) + 1;
        self.beginning[ticket].lock().push(bound);
        let transno = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight[shard(transno)].lock().push(transno);
        remove(&mut self.beginning[ticket].lock(), bound);
        InFlight {
            transno,
            transactions: self.clone(),
        }
    }

    /// Finishes a transaction: its changes are applied, or it has none. A second time does nothing.
    pub fn finish(&self, transno: u64) {
        remove(&mut self.in_flight[shard(transno)].lock(), transno);
    }

    /// The last number handed out.
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::SeqCst)
    }

    /// The highest number such that it and all before it are finished.
    pub fn applied(&self) -> u64 {
        let last = self.last();
        // First those being handed out: such a number moves from `beginning` to `in_flight`, never back.
        let shards = self.beginning.iter().chain(&self.in_flight);
        let lowest = shards.filter_map(|s| s.lock().iter().min().copied()).min();
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

fn shard(transno: u64) -> usize {
    (transno % SHARDS as u64) as usize
}

fn remove(numbers: &mut Vec<u64>, n: u64) {
    if let Some(at) = numbers.iter().position(|&x| x == n) {
        numbers.swap_remove(at);
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
