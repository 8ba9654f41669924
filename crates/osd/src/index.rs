//! The transactional index: an ordered map of byte strings that holds a target's metadata.
//!
//! A batch is applied atomically. It is visible at once, and durable a little later together with
//! everything applied before it (group commit). A crash loses only the last applied batches, each
//! as a whole, and never one that [`Index::sync`] covered. While a batch is being applied, a reader
//! can see a part of it. A reader that needs whole batches therefore holds a lock of the file
//! system (PDO, inode).

use std::{ops::Range, sync::Arc};
use wire::Transno;

use bytes::Bytes;
use cpt::BoxFuture;

use crate::{IndexRead, OsdError, Space, Transactions};

/// The keys with these first bytes belong to the index's user. This crate reserves all others.
pub const USER_KEYS: Range<u8> = KEY_COPY + 1..KEY_RESERVED;

/// This crate reserves the keys with a first byte of this value or higher.
pub const KEY_RESERVED: u8 = 0xf0;

/// The first byte of the keys of copies ([`Batch::put_twice`]). The key of the record follows.
/// Copies come first in the order of keys, so that in a large index they are in other blocks of the
/// sorted tables than their records.
pub(crate) const KEY_COPY: u8 = 0;

/// Changes that are applied atomically. Deletes are applied before puts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Keys with their new values.
    pub puts: Vec<(Bytes, Bytes)>,
    /// Keys to remove.
    pub deletes: Vec<Bytes>,
    /// The transaction number of this batch: finished when applied, committed when durable.
    pub transno: Option<Transno>,
    /// Transaction numbers of the batches merged into this one ([`Batch::join`]).
    pub joined: Vec<Transno>,
}

impl Batch {
    /// Creates an empty batch without a transaction number.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Sets the value of a key.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Batch {
        self.puts.push((key.into(), value.into()));
        self
    }

    /// Sets the value of a record that nothing else can restore, and stores it twice. If one of the
    /// two is damaged, a repair takes the other one ([`crate::engine_files::rebuild`]).
    pub fn put_twice(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Batch {
        let (key, value) = (key.into(), value.into());
        self.put(copy_key(&key), value.clone()).put(key, value)
    }

    /// Removes a record that may be stored twice; a missing record is no error.
    pub fn delete_twice(&mut self, key: impl Into<Bytes>) -> &mut Batch {
        let key = key.into();
        self.delete(copy_key(&key)).delete(key)
    }

    /// Removes a key; a missing key is no error.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> &mut Batch {
        self.deletes.push(key.into());
        self
    }

    /// Merges another batch, which must not change the same keys, into this one: both are applied,
    /// or neither.
    pub fn join(&mut self, other: Batch) {
        if self.is_empty() && self.transnos().next().is_none() {
            *self = other;
            return;
        }
        self.joined.extend(other.transnos());
        self.puts.extend(other.puts);
        self.deletes.extend(other.deletes);
    }

    /// The transaction numbers of the batch, including the merged ones.
    pub fn transnos(&self) -> impl Iterator<Item = Transno> + use<'_> {
        self.transno.iter().chain(&self.joined).copied()
    }

    /// Whether the batch changes nothing.
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.deletes.is_empty()
    }
}

/// The key of a record's copy.
pub(crate) fn copy_key(key: &[u8]) -> Bytes {
    [&[KEY_COPY], key].concat().into()
}

/// An ordered key-value store with atomic batches and group commit.
///
/// `get` and `scan` return futures that are ready at once if memory answers. A read sees at least
/// all batches that were applied before the call. `apply` runs at memory speed, so it is a plain
/// function and may run on a worker of the runtime. Nobody may wait for a future of an index while
/// holding a lock that a worker takes.
pub trait Index: Send + Sync {
    /// The value of a key.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] or [`OsdError::Engine`] if the store cannot be read,
    /// [`OsdError::Stopping`] if the runtime shuts down first.
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>>;

    /// Up to `limit` entries with `from <= key < to`, in order.
    ///
    /// # Errors
    ///
    /// The same as [`Index::get`].
    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>>;

    /// Applies a batch: visible when this returns, durable after the next commit. Finishes the
    /// batch's transactions, also on failure. A caller that adds data calls [`Space::check`] first;
    /// `apply` itself checks only for [`SpacePurpose::Upkeep`](crate::SpacePurpose).
    ///
    /// # Errors
    ///
    /// [`OsdError::NoSpace`] if not even upkeep has space left, or if the entries do not fit into a
    /// store in memory; [`OsdError::ReadOnly`] after an earlier failure; [`OsdError::Invalid`] if
    /// the index was opened read-only.
    fn apply(&self, batch: Batch) -> Result<(), OsdError>;

    /// Waits until everything applied before this call is on disk.
    ///
    /// # Errors
    ///
    /// [`OsdError::SyncFailed`] if this or an earlier commit failed.
    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>>;

    /// Back-pressure: waits while too many applied changes are not yet written into sorted tables,
    /// to bound their memory. Call it before a change and without holding a lock.
    fn throttle(&self) -> BoxFuture<'_, ()>;

    /// The transaction numbers of this index.
    fn transactions(&self) -> &Arc<Transactions>;

    /// The space of the target.
    fn space(&self) -> &Arc<Space>;

    /// Keeps all later changes in memory: they are visible, but never durable ([`crate::Barrier`]).
    ///
    /// # Errors
    ///
    /// [`OsdError::Unsupported`] if the index cannot do that.
    fn discard_changes(&self) -> Result<(), OsdError> {
        Err(OsdError::Unsupported("a barrier of a store in memory"))
    }

    /// The index below, which still makes its changes durable after [`Index::discard_changes`].
    fn below(&self) -> Option<&Arc<dyn Index>> {
        None
    }
}

/// The end of a scan over the keys that begin with `prefix`: the smallest key above all of them. If
/// all bytes of the prefix are 0xff, there is no such key: the result is then one 0xff longer than
/// the prefix.
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
    fn prefix_end_is_the_next_prefix() {
        assert_eq!(prefix_end(b"a"), b"b");
        assert_eq!(prefix_end(&[1, 0xff]), [2]);
        assert!(prefix_end(&[0xff, 0xff]).as_slice() > [0xff, 0xff].as_slice());
    }
}
