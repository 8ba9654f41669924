//! Deferred closes: of files that were opened for reading and not executed, or created and not
//! written.
//!
//! On Nacre's lock terms ([`wire::LockTerms`]) the next request that cancels locks carries such
//! handles. A handle that finds no such request within a short time gets a close request.
//!
//! The delay harms no other client. A file that is open for reading can be opened by all. A created
//! file cannot be executed while it is open; but a client that wants to execute it first writes to
//! it. That request carries the handle if it comes from this client. If it comes from another
//! client, it revokes the lock that marks the file as unwritten, and the handle is closed before
//! that lock is cancelled. The data of a file that was removed meanwhile lives that much longer.

use crate::inode::Denying;
use crate::mdc::Mdc;
use crate::pack;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use wire::{Fid, LockTerms, MDS_CLOSE, MdtRecSetattr, REINT_SETATTR};

/// How long a handle waits for a request that carries it.
const SOON: Duration = Duration::from_millis(20);
/// The closing task ends after this many rounds without a handle.
const IDLE: u32 = 50;
/// Largest number of waiting handles. A further one is closed at once.
const MAX: usize = 256;
/// Largest number of handles that one request carries.
const ALONG: usize = 16;

/// The handles that wait to be closed.
#[derive(Default)]
pub(crate) struct Closes {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// In the order in which they were added.
    handles: Vec<Closing>,
    /// Number of the first handles that will be overdue in the next round.
    old: usize,
    /// A task closes overdue handles.
    watched: bool,
}

/// A handle to close.
pub(crate) struct Closing {
    pub(crate) handle: u64,
    pub(crate) fid: Fid,
    /// Released when the server has closed the handle.
    pub(crate) denying: Option<Denying>,
}

impl Waiting {
    /// Takes up to `max` handles that satisfy a condition.
    fn take(&mut self, max: usize, which: impl Fn(&Closing) -> bool) -> Vec<Closing> {
        let (mut taken, mut place, old) = (0, 0, self.old);
        let leaves = |closing: &mut Closing| {
            let leaves = taken < max && which(closing);
            taken += usize::from(leaves);
            self.old -= usize::from(leaves && place < old);
            place += 1;
            leaves
        };
        self.handles.extract_if(.., leaves).collect()
    }
}

impl Closes {
    /// Takes the handles that a request carries: first those of the files that the request is
    /// about.
    pub(crate) fn taken_along(&self, first: impl Fn(Fid) -> bool) -> Vec<Closing> {
        let mut waiting = self.waiting.lock();
        let mut taken = waiting.take(ALONG, |closing| first(closing.fid));
        taken.extend(waiting.take(ALONG - taken.len(), |_| true));
        taken
    }

    /// Takes the handles of one file.
    fn of(&self, fid: Fid) -> Vec<Closing> {
        self.waiting.lock().take(MAX, |closing| closing.fid == fid)
    }

    /// Takes the handles that were already waiting in the last round.
    fn overdue(&self) -> Vec<Closing> {
        let mut waiting = self.waiting.lock();
        let old = waiting.old;
        let overdue = waiting.handles.drain(..old).collect();
        waiting.old = waiting.handles.len();
        overdue
    }

    /// Ends the closing task if no handle waits; returns true if it ends.
    fn leave(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.watched = !waiting.handles.is_empty();
        !waiting.watched
    }
}

impl Mdc {
    /// Queues a handle for one of the next requests. Returns it if the caller must close it now.
    pub(crate) fn close_later(self: &Arc<Mdc>, closing: Closing) -> Result<(), Closing> {
        if self.lock_terms() == LockTerms::Lustre {
            return Err(closing);
        }
        let mut waiting = self.closes.waiting.lock();
        if waiting.handles.len() >= MAX {
            return Err(closing);
        }
        waiting.handles.push(closing);
        if !std::mem::replace(&mut waiting.watched, true) {
            tokio::spawn(self.clone().look_after_closes());
        }
        Ok(())
    }

    /// Closes a file's waiting handles: another client wants to write to it, and may then execute
    /// it.
    pub(crate) async fn close_now(&self, fid: Fid) {
        for closing in self.closes.of(fid) {
            self.close_unchanged(closing).await;
        }
    }

    async fn look_after_closes(self: Arc<Mdc>) {
        let mut idle = 0;
        while idle < IDLE || !self.closes.leave() {
            tokio::time::sleep(SOON).await;
            let overdue = self.closes.overdue();
            idle = if overdue.is_empty() { idle + 1 } else { 0 };
            for closing in overdue {
                self.close_unchanged(closing).await;
            }
        }
    }

    async fn close_unchanged(&self, closing: Closing) {
        let rec = MdtRecSetattr {
            sa_opcode: REINT_SETATTR,
            sa_fid: closing.fid,
            ..MdtRecSetattr::default()
        };
        let req = rpc::Request::modifying(MDS_CLOSE, pack::close(closing.handle, &rec));
        // An error needs no retry: the server closes the handles of a client that it evicts.
        if let Err(e) = self.import.call(req).await {
            tracing::debug!(fid = %closing.fid, "close: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALONG, Closes, Closing};
    use wire::Fid;

    fn add(closes: &Closes, handles: std::ops::Range<u64>, fid: Fid) {
        let all = handles.map(|handle| Closing {
            handle,
            fid,
            denying: None,
        });
        closes.waiting.lock().handles.extend(all);
    }

    fn handles(all: &[Closing]) -> Vec<u64> {
        all.iter().map(|closing| closing.handle).collect()
    }

    #[test]
    fn a_handle_is_carried_once_or_overdue_in_the_second_round() {
        let closes = Closes::default();
        let add = |handles| add(&closes, handles, Fid::ROOT);
        let overdue = || handles(&closes.overdue());
        let along = || closes.taken_along(|_| false);
        add(0..3);
        assert!(overdue().is_empty());
        add(3..4);
        assert_eq!(overdue(), [0, 1, 2]);
        add(4..6);
        assert_eq!(handles(&along()), [3, 4, 5]);
        assert!(overdue().is_empty() && closes.leave());
        add(10..10 + 2 * ALONG as u64);
        assert!(overdue().is_empty() && !closes.leave());
        assert_eq!(along().len(), ALONG);
        assert_eq!(overdue().len(), ALONG);
    }

    #[test]
    fn handles_of_the_requests_files_are_carried_first() {
        let closes = Closes::default();
        let file = Fid::new(0x400, 1, 0);
        add(&closes, 0..100, Fid::ROOT);
        add(&closes, 100..102, file);
        assert!(closes.overdue().is_empty());
        add(&closes, 102..103, file);
        let along = handles(&closes.taken_along(|fid| fid == file));
        assert_eq!(along[..5], [100, 101, 102, 0, 1]);
        assert_eq!(along.len(), ALONG);
        // The other handles keep their age.
        add(&closes, 200..201, file);
        assert_eq!(handles(&closes.of(file)), [200]);
        add(&closes, 201..202, file);
        assert_eq!(handles(&closes.overdue()), Vec::from_iter(13..100));
        assert_eq!(handles(&closes.overdue()), [201]);
    }
}
