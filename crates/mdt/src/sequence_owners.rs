//! The client that owns each FID sequence.
//!
//! A sequence belongs to the client that requested it. If a sequence has no owner, because its
//! owner has disconnected or the target has restarted, it belongs to the first client that uses it:
//! usually the former owner, which reconnects. Each client's sequences are stored with its export,
//! so the usual check takes no lock that clients share. The table of all sequences is locked only
//! for a client's first use of a sequence, and when an export ends.

use cpt::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rpc::Export;
use wire::Errno;

/// Maximum number of sequences per client.
const SEQUENCES_PER_CLIENT: usize = 1 << 16;

/// The owned sequences of all clients.
#[derive(Default)]
pub(crate) struct SequenceOwners(Mutex<HashSet<u64>>);

/// The sequences of one client, stored with its export.
#[derive(Default)]
struct OwnedSequences(Mutex<HashSet<u64>>);

impl SequenceOwners {
    /// Checks that a client may get another sequence. `ENOSPC` if it has [`SEQUENCES_PER_CLIENT`].
    pub(crate) fn check_limit(&self, export: &Arc<Export>) -> Result<(), Errno> {
        if export.ext::<OwnedSequences>().0.lock().len() < SEQUENCES_PER_CLIENT {
            return Ok(());
        }
        lnet::warn_rate_limited!(client = %export.client_uuid, "sequence refused: the client has {SEQUENCES_PER_CLIENT}, the limit");
        Err(Errno::ENOSPC)
    }

    /// Returns whether the client owns a sequence. Makes it the owner if there is none, the target
    /// may have allocated the sequence (`was_allocated`), and the client is below its limit.
    pub(crate) fn claim(&self, export: &Arc<Export>, seq: u64, was_allocated: impl FnOnce() -> bool) -> bool {
        let own = export.ext::<OwnedSequences>();
        let mut own = own.0.lock();
        if own.contains(&seq) {
            return true;
        }
        if export.is_gone() || own.len() >= SEQUENCES_PER_CLIENT || !was_allocated() {
            return false;
        }
        // The insertion fails if another client owns the sequence.
        self.0.lock().insert(seq) && own.insert(seq)
    }

    /// Removes a client as the owner of its sequences, at the end of its export.
    pub(crate) fn release_all(&self, export: &Arc<Export>) {
        let released = std::mem::take(&mut *export.ext::<OwnedSequences>().0.lock());
        let mut all = self.0.lock();
        for seq in released {
            all.remove(&seq);
        }
    }
}
