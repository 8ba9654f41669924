//! The client that owns each FID sequence.
//!
//! A sequence belongs to the client that it was allocated for. One allocated before this start of
//! the target belongs to the first client that uses it: the former owner, which reconnects with it.
//! Each client's sequences are stored with its export, so the usual check takes no shared lock; the
//! table of all sequences is used only on a client's first use of one.

use foldhash::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rpc::Export;
use wire::Errno;

/// Maximum number of sequences per client; each has 2^17 FIDs.
const PER_CLIENT: usize = 1 << 16;

/// The sequences of all clients.
#[derive(Default)]
pub(crate) struct SequenceOwners(Mutex<HashSet<u64>>);

/// The sequences of one client, stored with its export.
#[derive(Default)]
struct OwnedSequences(Mutex<HashSet<u64>>);

impl SequenceOwners {
    /// Checks that a client may get another sequence.
    pub(crate) fn check_limit(&self, export: &Arc<Export>) -> Result<(), Errno> {
        if export.ext::<OwnedSequences>().0.lock().len() < PER_CLIENT {
            return Ok(());
        }
        lnet::warn_rate_limited!(client = %export.client_uuid, "sequence refused: the client has {PER_CLIENT}, the limit");
        Err(Errno::ENOSPC)
    }

    /// Whether the client owns the sequence, or claims an unowned one now. `was_allocated` tells
    /// whether the sequence was ever allocated.
    pub(crate) fn claim(&self, export: &Arc<Export>, seq: u64, was_allocated: impl FnOnce() -> bool) -> bool {
        let own = export.ext::<OwnedSequences>();
        let mut own = own.0.lock();
        if own.contains(&seq) {
            return true;
        }
        if export.is_gone() || own.len() >= PER_CLIENT || !was_allocated() {
            return false;
        }
        // Fails if another client owns it.
        self.0.lock().insert(seq) && own.insert(seq)
    }

    /// Removes a client's sequences, when its export ends.
    pub(crate) fn forget(&self, export: &Arc<Export>) {
        let released = std::mem::take(&mut *export.ext::<OwnedSequences>().0.lock());
        let mut all = self.0.lock();
        for seq in released {
            all.remove(&seq);
        }
    }
}
