//! Transaction numbers: in flight, applied and committed.
//!
//! [`Transactions::begin`] allocates a number. The number is in flight until
//! [`Transactions::finish`], which the index calls at the end of `apply`, or until its
//! [`TransactionGuard`] is dropped. All transactions up to the number `applied` are finished. A
//! store that has made them durable calls `set_committed`.
//!
//! As in Lustre, the upper 32 bits of a number are an epoch, which grows with every start of the
//! target. A crash forgets the uncommitted numbers; the epoch keeps new numbers above them.
//!
//! After a restart, clients replay requests that were perhaps lost, in the order of their numbers
//! and under these numbers ([`Transactions::replay`]). Until all clients have done so, the
//! committed number stays that of the last start, also in the record of each commit
//! ([`Transactions::begin_recovery`]): after another crash the clients replay everything again. The
//! first commit after the recovery covers all replays.
//!
//! Workers share no single lock. `begin` puts a number into one of several shards, and the shard
//! publishes its lowest number before `begin` returns. So `applied` reads without a lock and misses
//! no number in flight.

use cpt::Bug;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};
use wire::Transno;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{KEY_RESERVED, OsdError};

const RECORD_VERSION: u32 = 1;
const SHARDS: usize = 16;

/// The transaction numbers of one target.
pub struct Transactions {
    /// The last allocated number.
    last: AtomicU64,
    in_flight: [Shard; SHARDS],
    committed: watch::Sender<Transno>,
    /// Clients replay requests: the committed number does not change.
    recovering: AtomicBool,
    epoch: u64,
}

/// The numbers in flight with the same remainder modulo [`SHARDS`], in cache lines of their own.
#[repr(align(64))]
struct Shard {
    numbers: Mutex<Vec<u64>>,
    /// A lower bound of `numbers`; `u64::MAX` if it is empty. Written only with `numbers` locked.
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
    fn publish_lowest(&self, numbers: &[u64]) {
        self.lowest
            .store(numbers.iter().copied().min().unwrap_or(u64::MAX), SeqCst);
    }
}

/// A transaction in flight or the replay of one; dropping it finishes it.
pub struct TransactionGuard {
    transno: Transno,
    transactions: Arc<Transactions>,
}

impl Transactions {
    /// Key of the record in an index ([`Transactions::record`]).
    pub const KEY: [u8; 2] = [KEY_RESERVED, b't'];

    /// Begins a new epoch after a start of the target. `committed` and `epoch` are the stored
    /// values (0, 0 for a new store). The new epoch must be durable before its first number is
    /// used.
    pub fn restore(committed: Transno, epoch: u64) -> Arc<Transactions> {
        // A run that uses more than 2^32 numbers continues into the next epoch, so its uncommitted
        // numbers may lie in the epoch after that of `committed`. The new run skips that epoch too.
        let epoch = match (committed, epoch) {
            (Transno::NONE, 0) => 1,
            _ => epoch.max(committed.0 >> 32) + 2,
        };
        Arc::new(Transactions {
            last: AtomicU64::new(epoch << 32),
            in_flight: Default::default(),
            committed: watch::Sender::new(committed),
            recovering: AtomicBool::new(false),
            epoch,
        })
    }

    /// Begins a new epoch after a start of the target; `record` is the stored result of
    /// [`Transactions::record`], `None` for a new store. `path` is the path of the store, for the
    /// error message.
    ///
    /// # Errors
    ///
    /// [`OsdError::Corrupt`] if the record is malformed.
    pub fn from_record(path: &Path, record: Option<&[u8]>) -> Result<Arc<Transactions>, OsdError> {
        let Some(record) = record else {
            return Ok(Transactions::restore(Transno::NONE, 0));
        };
        let corrupt = |why: String| OsdError::Corrupt {
            path: path.into(),
            record: "transactions".into(),
            why,
        };
        let (committed, epoch) = Transactions::parse_record(record).map_err(corrupt)?;
        Ok(Transactions::restore(committed, epoch))
    }

    /// The committed number and the epoch in a record. The error says why it is malformed.
    pub(crate) fn parse_record(record: &[u8]) -> Result<(Transno, u64), String> {
        let r: [u8; 20] = record
            .try_into()
            .map_err(|_| format!("expected 20 bytes, found {}", record.len()))?;
        let number =
            |from: usize, to: usize| r[from..to].iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        match number(0, 4) {
            1 => Ok((Transno(number(4, 12)), number(12, 20))),
            v => Err(format!("expected version {RECORD_VERSION}, found {v}")),
        }
    }

    /// The record that an index stores with each commit, little-endian: version u32, the number
    /// `committed` u64, the epoch u64.
    pub fn record(&self, committed: Transno) -> [u8; 20] {
        let mut r = [0; 20];
        r[..4].copy_from_slice(&RECORD_VERSION.to_le_bytes());
        r[4..12].copy_from_slice(&committed.0.to_le_bytes());
        r[12..].copy_from_slice(&self.epoch.to_le_bytes());
        r
    }

    /// The highest number that a commit which begins now makes durable. During a recovery that is
    /// the committed number.
    pub fn committable(&self) -> Transno {
        if self.is_recovering() {
            return self.committed();
        }
        // Numbers of this start begin above `epoch << 32`; before the first one there is nothing to
        // commit.
        match self.applied() {
            Transno(none) if none == self.epoch << 32 => self.committed(),
            applied => applied.max(self.committed()),
        }
    }

    /// The epoch of this start.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins the recovery of clients: the committed number does not change until
    /// [`Transactions::end_recovery`]. Called before the first transaction of a start.
    pub fn begin_recovery(&self) {
        self.recovering.store(true, SeqCst);
    }

    /// Ends the recovery of clients; all replays are applied. The next commit of a transaction of
    /// this start covers the replays, too.
    pub fn end_recovery(&self) {
        self.recovering.store(false, SeqCst);
    }

    /// Whether clients replay requests.
    pub fn is_recovering(&self) -> bool {
        self.recovering.load(SeqCst)
    }

    /// Begins the replay of a transaction under its number, which an earlier start gave it. A
    /// number that no earlier start can have given is replaced by a new one.
    pub fn replay(self: &Arc<Self>, transno: Transno) -> TransactionGuard {
        if transno.0 > self.epoch << 32 {
            return self.begin();
        }
        // The number is not in flight: it is below those of this start, and finishing it does
        // nothing.
        TransactionGuard {
            transno,
            transactions: self.clone(),
        }
    }

    /// Begins a transaction.
    pub fn begin(self: &Arc<Self>) -> TransactionGuard {
        TransactionGuard {
            transno: self.begin_unguarded(),
            transactions: self.clone(),
        }
    }

    /// Begins a transaction that never ends, so that no later one counts as committed.
    pub(crate) fn hold(&self) -> Transno {
        self.begin_unguarded()
    }

    fn begin_unguarded(&self) -> Transno {
        loop {
            let last = self.last();
            let transno = Transno(last.0 + 1);
            let shard = self.shard(transno);
            let mut numbers = shard.numbers.lock();
            if self.last() != last {
                // A concurrent `begin` took the number.
                continue;
            }
            // Publish the number before handing it out, and withdraw it if another thread took it.
            shard.lowest.fetch_min(transno.0, SeqCst);
            let next = self.last.compare_exchange(last.0, transno.0, SeqCst, SeqCst);
            if next.is_ok() {
                numbers.push(transno.0);
                return transno;
            }
            shard.publish_lowest(&numbers);
        }
    }

    fn shard(&self, transno: Transno) -> &Shard {
        &self.in_flight[(transno.0 % SHARDS as u64) as usize]
    }

    /// Finishes a transaction: its changes are applied, or it has none. A second call does nothing.
    pub fn finish(&self, transno: Transno) {
        let shard = self.shard(transno);
        if shard.lowest.load(SeqCst) > transno.0 {
            return;
        }
        let mut numbers = shard.numbers.lock();
        if let Some(position) = numbers.iter().position(|&n| n == transno.0) {
            numbers.swap_remove(position);
            shard.publish_lowest(&numbers);
        }
    }

    /// The last allocated number.
    pub fn last(&self) -> Transno {
        Transno(self.last.load(SeqCst))
    }

    /// The highest number up to which all transactions are finished.
    pub fn applied(&self) -> Transno {
        // Read `last` first: every number in flight up to it is already published by its shard.
        let last = self.last();
        let lowest = self.in_flight.iter().map(|s| s.lowest.load(SeqCst)).min();
        lowest.map_or(last, |lowest| last.min(Transno(lowest - 1)))
    }

    /// The numbers in flight up to `last`.
    pub(crate) fn in_flight(&self, last: Transno) -> impl Iterator<Item = Transno> + use<'_> {
        let numbers = self.in_flight.iter().flat_map(|s| s.numbers.lock().clone());
        numbers.map(Transno).filter(move |t| *t <= last)
    }

    /// The highest number up to which all transactions are durable.
    pub fn committed(&self) -> Transno {
        let committed = *self.committed.borrow();
        match Bug::LastCommittedTooHigh.is_planted() {
            true => Transno(committed.0 + 1),
            false => committed,
        }
    }

    /// Records that everything up to `transno` is durable; the number never decreases. During a
    /// recovery this changes nothing.
    pub fn set_committed(&self, transno: Transno) {
        if self.is_recovering() || Bug::LostCommitCallback.is_planted() {
            return;
        }
        self.committed.send_if_modified(|c| {
            let grows = transno > *c;
            *c = transno.max(*c);
            grows
        });
    }

    /// A receiver of the committed number, to wait for commits.
    pub fn watch_committed(&self) -> watch::Receiver<Transno> {
        self.committed.subscribe()
    }
}

impl TransactionGuard {
    /// The transaction number.
    pub fn transno(&self) -> Transno {
        self.transno
    }
}

impl Drop for TransactionGuard {
    fn drop(&mut self) {
        self.transactions.finish(self.transno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applied_stays_below_the_oldest_in_flight() {
        let t = Transactions::restore(Transno::NONE, 0);
        let start = t.applied();
        let (a, b, c) = (t.begin(), t.begin(), t.begin());
        assert_eq!(
            (a.transno(), c.transno()),
            (Transno(start.0 + 1), Transno(start.0 + 3))
        );
        drop(b);
        assert_eq!(t.applied(), start);
        t.finish(a.transno());
        assert_eq!(t.applied(), Transno(start.0 + 2));
        drop(a);
        drop(c);
        assert_eq!(t.applied(), Transno(start.0 + 3));
    }

    #[test]
    fn restart_allocates_higher_numbers_than_before() {
        let t = Transactions::restore(Transno::NONE, 0);
        t.set_committed(t.begin().transno());
        let lost = (0..100).map(|_| t.begin().transno()).max().unwrap_or_default();
        let restarted = Transactions::restore(t.committed(), t.epoch());
        assert!(restarted.begin().transno() > lost);
        assert_eq!(restarted.committed(), t.committed());
        // Also if the numbers reached into the next epoch.
        let restarted = Transactions::restore(Transno((7 << 32) - 1), 6);
        assert!(restarted.begin().transno() > Transno((7 << 32) + 1_000_000));
    }

    #[test]
    fn malformed_record_is_an_error() {
        let path = Path::new("x");
        let t = Transactions::restore(Transno((6 << 32) + 5), 6);
        let mut record = t.record(t.committed());
        let restored = Transactions::from_record(path, Some(&record)).expect("the record is valid");
        assert_eq!(
            (restored.committed(), restored.epoch()),
            (t.committed(), t.epoch() + 2)
        );
        assert!(Transactions::from_record(path, Some(b"")).is_err());
        record[0] = 2;
        assert!(Transactions::from_record(path, Some(&record)).is_err());
    }

    #[test]
    fn committed_never_decreases() {
        let t = Transactions::restore(Transno(9), 0);
        t.set_committed(Transno(12));
        t.set_committed(Transno(11));
        assert_eq!(t.committed(), Transno(12));
    }

    #[test]
    fn committed_number_stays_during_a_recovery() {
        let restored = Transno((6 << 32) + 5);
        let t = Transactions::restore(restored, 6);
        t.begin_recovery();
        let watched = t.watch_committed();
        let replay = t.replay(Transno(restored.0 + 2));
        assert_eq!(replay.transno(), Transno(restored.0 + 2));
        let other = t.begin();
        t.finish(replay.transno());
        drop(replay);
        assert_eq!(t.applied(), Transno(other.transno().0 - 1));
        drop(other);
        assert_eq!(t.committable(), restored);
        t.set_committed(t.applied());
        assert_eq!(
            (t.committed(), watched.has_changed().unwrap_or(true)),
            (restored, false)
        );
        // A crash now restores the old number, and new numbers are above those of this start.
        let again = Transactions::from_record(Path::new("x"), Some(&t.record(t.committable())));
        let again = again.expect("the record is valid");
        assert_eq!(again.committed(), restored);
        assert!(again.begin().transno() > t.last());

        t.end_recovery();
        assert_eq!(t.committable(), t.last());
        t.set_committed(t.committable());
        assert_eq!(t.committed(), t.last());
    }

    #[test]
    fn replay_of_a_number_in_flight_gets_a_new_one() {
        let t = Transactions::restore(Transno::NONE, 0);
        let a = t.begin();
        let forged = t.replay(a.transno());
        assert!(forged.transno() > a.transno());
        drop(forged);
        assert!(t.applied() < a.transno());
    }

    #[test]
    fn applied_never_passes_a_number_in_flight() {
        let t = Transactions::restore(Transno::NONE, 0);
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
