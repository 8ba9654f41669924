//! Which client makes files in which FID sequence.
//!
//! A sequence belongs to the client that it was given to. What was given before the target started belongs to the first
//! client that uses it: its own, which comes back with it. Each client's sequences are with its export, so that the usual
//! question meets no lock that others take; all together are looked at only when a client uses one for the first time.

use foldhash::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rpc::Export;
use wire::Errno;

/// Sequences of one client at most; each has room for 2^17 files.
const PER_CLIENT: usize = 1 << 16;

/// All sequences that clients have.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashSet<u64>>);

/// What one client has; kept with its export.
#[derive(Default)]
struct Own(Mutex<HashSet<u64>>);

impl Owners {
    /// Checks that a client may be given one more.
    pub(crate) fn room(&self, export: &Arc<Export>) -> Result<(), Errno> {
        if export.ext::<Own>().0.lock().len() < PER_CLIENT {
            return Ok(());
        }
        lnet::warn_seldom!(client = %export.client_uuid, "no more sequences: it has {PER_CLIENT}");
        Err(Errno::ENOSPC)
    }

    /// Whether the sequence is the client's, or becomes so now. `was_given` says whether anybody was given it.
    pub(crate) fn may_use(&self, export: &Arc<Export>, seq: u64, was_given: impl FnOnce() -> bool) -> bool {
        let own = export.ext::<Own>();
        let mut own = own.0.lock();
        if own.contains(&seq) {
            return true;
        }
        if export.is_gone() || own.len() >= PER_CLIENT || !was_given() {
            return false;
        }
        // Somebody else's, if it is there already.
        self.0.lock().insert(seq) && own.insert(seq)
    }

    /// The client is gone.
    pub(crate) fn forget(&self, export: &Arc<Export>) {
        let gone = std::mem::take(&mut *export.ext::<Own>().0.lock());
        let mut all = self.0.lock();
        for seq in gone {
            all.remove(&seq);
        }
    }
}
