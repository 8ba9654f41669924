//! Closes that tell nothing: of files that were opened to read and not to execute, or that were made and not written to. On
//! Nacre's lock terms ([`wire::LockTerms`]) such a handle goes along with the next request that gives up locks; one that
//! finds none soon goes by itself.
//!
//! Nobody waits for them. A file that is open to read keeps nobody from opening it. One that was made keeps others from running
//! it, who first have to write to it: the request that asks for that takes the handle along, or, when another client asks,
//! takes back the lock by which its maker knows that it is empty, and the handle goes before the lock. One that was removed
//! meanwhile goes so much later.

use crate::inode::Denying;
use crate::mdc::Mdc;
use crate::pack;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use wire::{Fid, LockTerms, MDS_CLOSE, MdtRecSetattr, REINT_SETATTR};

/// How long a handle waits for a request to go along with.
const SOON: Duration = Duration::from_millis(20);
/// After so many looks that found none nobody looks any more.
const IDLE: u32 = 50;
/// Handles that wait; a further one goes at once.
const MAX: usize = 256;
/// Handles that go along with one request.
const ALONG: usize = 16;

/// Handles that are to be closed.
#[derive(Default)]
pub(crate) struct Closes {
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    /// The one that waits longest first.
    handles: Vec<Closing>,
    /// How many of them have waited for [`SOON`] when it is over.
    old: usize,
    /// Somebody looks after them.
    watched: bool,
}

/// A handle that is to be closed.
pub(crate) struct Closing {
    pub(crate) handle: u64,
    pub(crate) fid: Fid,
    /// Until the server knows.
    pub(crate) denying: Option<Denying>,
}

impl Waiting {
    /// Takes out, up to so many, those of which that is true.
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
    /// Those that a request takes along, first those of the files that it is about.
    pub(crate) fn taken_along(&self, first: impl Fn(Fid) -> bool) -> Vec<Closing> {
        let mut waiting = self.waiting.lock();
        let mut taken = waiting.take(ALONG, |closing| first(closing.fid));
        taken.extend(waiting.take(ALONG - taken.len(), |_| true));
        taken
    }

    /// Those of one file.
    fn of(&self, fid: Fid) -> Vec<Closing> {
        self.waiting.lock().take(MAX, |closing| closing.fid == fid)
    }

    /// Those that have waited long enough; from now on the others have.
    fn overdue(&self) -> Vec<Closing> {
        let mut waiting = self.waiting.lock();
        let old = waiting.old;
        let overdue = waiting.handles.drain(..old).collect();
        waiting.old = waiting.handles.len();
        overdue
    }

    /// Whether it is over: nothing waits, and nobody looks any more.
    fn leave(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.watched = !waiting.handles.is_empty();
        !waiting.watched
    }
}

impl Mdc {
    /// Closes a handle with one of the next requests. It comes back if it is to be closed now.
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

    /// Closes the handles of a file that wait: somebody else wants to write to it, and may then want to run it.
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
        // The server closes what a client had open that it does not know any more.
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
    fn a_handle_goes_along_once_or_is_overdue_at_the_second_look() {
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
    fn the_handles_of_the_file_that_a_request_is_about_go_first() {
        let closes = Closes::default();
        let file = Fid::new(0x400, 1, 0);
        add(&closes, 0..100, Fid::ROOT);
        add(&closes, 100..102, file);
        assert!(closes.overdue().is_empty());
        add(&closes, 102..103, file);
        let along = handles(&closes.taken_along(|fid| fid == file));
        assert_eq!(along[..5], [100, 101, 102, 0, 1]);
        assert_eq!(along.len(), ALONG);
        // The others have waited no longer for that.
        add(&closes, 200..201, file);
        assert_eq!(handles(&closes.of(file)), [200]);
        add(&closes, 201..202, file);
        assert_eq!(handles(&closes.overdue()), Vec::from_iter(13..100));
        assert_eq!(handles(&closes.overdue()), [201]);
    }
}
