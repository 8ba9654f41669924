//! The transactional index: an ordered map of byte strings that metadata lives in.
//!
//! A batch is applied whole: it is visible at once, and durable a little later, together with everything applied
//! before it (group commit). A crash loses only a suffix of the applied batches, never half of one, and nothing
//! that [`Index::sync`] waited for. Readers are not isolated from a batch that is being applied at the same
//! moment: whoever needs that holds the file system's own lock (PDO, inode) as it must anyway.

use std::sync::Arc;

use bytes::Bytes;
use cpt::BoxFuture;

use crate::{OsdError, Space, Transactions};

/// Keys that begin with a byte from here on belong to this crate; a user's keys begin with a smaller one.
pub const KEY_RESERVED: u8 = 0xf0;

/// Changes that are applied together or not at all. Deletes come first, then puts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Keys with their new values.
    pub puts: Vec<(Bytes, Bytes)>,
    /// Keys to forget.
    pub deletes: Vec<Bytes>,
    /// The transaction that this batch is: finished once applied, committed once durable.
    pub transno: Option<u64>,
    /// Transactions that joined it ([`Batch::join`]).
    pub joined: Vec<u64>,
}

impl Batch {
    /// An empty batch of no transaction.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a value.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Batch {
        self.puts.push((key.into(), value.into()));
        self
    }

    /// Removes a key; that it is not there is no error.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> &mut Batch {
        self.deletes.push(key.into());
        self
    }

    /// Takes in another batch, which changes none of this one's keys: both are applied, or neither.
    pub fn join(&mut self, other: Batch) {
        if self.is_empty() && self.transnos().next().is_none() {
            *self = other;
            return;
        }
        self.joined.extend(other.transnos());
        self.puts.extend(other.puts);
        self.deletes.extend(other.deletes);
    }

    /// The transactions that it is.
    pub fn transnos(&self) -> impl Iterator<Item = u64> + use<'_> {
        self.transno.iter().chain(&self.joined).copied()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }
}

/// An ordered key-value store with atomic batches and group commit.
///
/// `get`, `scan` and `apply` run at the speed of memory as long as what they touch is cached, so they are plain
/// functions and may be called on a runtime's worker; what waits for the disk (`sync`, `room`) is asynchronous.
pub trait Index: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, OsdError>;

    /// Up to `limit` entries with `from <= key < to`, in order.
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, OsdError>;

    /// Applies a batch: visible when this returns, durable after the next commit. A batch's transactions are
    /// finished by this, also when it fails. Who makes something grow has asked [`Space::check`] before; here only
    /// what is needed to go on is kept ([`Need::Upkeep`](crate::Need)).
    fn apply(&self, batch: Batch) -> Result<(), OsdError>;

    /// Waits until everything applied before this call is on disk.
    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Waits while too much is applied that is not on disk yet. To be awaited before a change is begun, holding
    /// no lock: it is what bounds the memory of changes that wait for their commit.
    fn room(&self) -> BoxFuture<'_, ()>;

    /// The transaction numbers of this index.
    fn transactions(&self) -> &Arc<Transactions>;

    /// Space used and free, and what it may be used for.
    fn space(&self) -> &Arc<Space>;
}

/// The smallest key greater than every key that begins with `prefix`: the end of a scan over a prefix.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.last_mut() {
        if *last < 0xff {
            *last += 1;
            return end;
        }
        end.pop();
    }
    vec![0xff; prefix.len() + 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(prefix_end(b"a"), b"b");
        assert_eq!(prefix_end(&[1, 0xff]), [2]);
        assert!(prefix_end(&[0xff, 0xff]).as_slice() > [0xff, 0xff].as_slice());
    }
}
