//! Closes that tell nothing: of files that were opened to read and not to execute, or that were made and not written to. On
//! Nacre's lock terms ([`wire::LockTerms`]) such a handle goes along with the next request that gives up locks; one that
//! finds none soon goes by itself.
//!
//! Nobody waits for them: a file that is open to read, or empty, keeps nobody from opening it. One that was removed meanwhile
//! goes so much later.

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

/// Handles that are to be closed, and which files they are of.
#[derive(Debug, Default)]
pub(crate) struct Closes {
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The one that waits longest first.
    handles: Vec<(u64, Fid)>,
    /// How many of them have waited for [`SOON`] when it is over.
    old: usize,
    /// Somebody looks after them.
    watched: bool,
}

impl Closes {
    /// Those that a request takes along.
    pub(crate) fn taken_along(&self) -> impl Iterator<Item = u64> {
        let mut waiting = self.waiting.lock();
        let count = waiting.handles.len().min(ALONG);
        waiting.old = waiting.old.saturating_sub(count);
        let taken: Vec<_> = waiting.handles.drain(..count).collect();
        taken.into_iter().map(|(handle, _)| handle)
    }

    /// Those that have waited long enough; from now on the others have.
    fn overdue(&self) -> Vec<(u64, Fid)> {
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
    /// Closes a handle with one of the next requests. False: it is to be closed now.
    pub(crate) fn close_later(self: &Arc<Mdc>, handle: u64, fid: Fid) -> bool {
        if self.lock_terms() == LockTerms::Lustre {
            return false;
        }
        let mut waiting = self.closes.waiting.lock();
        if waiting.handles.len() >= MAX {
            return false;
        }
        waiting.handles.push((handle, fid));
        if !std::mem::replace(&mut waiting.watched, true) {
            tokio::spawn(self.clone().look_after_closes());
        }
        true
    }

    async fn look_after_closes(self: Arc<Mdc>) {
        let mut idle = 0;
        while idle < IDLE || !self.closes.leave() {
            tokio::time::sleep(SOON).await;
            let overdue = self.closes.overdue();
            idle = if overdue.is_empty() { idle + 1 } else { 0 };
            for (handle, fid) in overdue {
                let rec = MdtRecSetattr {
                    sa_opcode: REINT_SETATTR,
                    sa_fid: fid,
                    ..MdtRecSetattr::default()
                };
                let req = rpc::Request::modifying(MDS_CLOSE, pack::close(handle, &rec));
                // The server closes what a client had open that it does not know any more.
                if let Err(e) = self.import.call(req).await {
                    tracing::debug!(%fid, "close: {e}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALONG, Closes};
    use wire::Fid;

    #[test]
    fn a_handle_goes_along_once_or_is_overdue_at_the_second_look() {
        let closes = Closes::default();
        let add = |handles: std::ops::Range<u64>| {
            let all = handles.map(|h| (h, Fid::ROOT));
            closes.waiting.lock().handles.extend(all);
        };
        let overdue = || closes.overdue().iter().map(|(h, _)| *h).collect::<Vec<_>>();
        add(0..3);
        assert!(overdue().is_empty());
        add(3..4);
        assert_eq!(overdue(), [0, 1, 2]);
        add(4..6);
        assert_eq!(closes.taken_along().collect::<Vec<_>>(), [3, 4, 5]);
        assert!(overdue().is_empty() && closes.leave());
        add(10..10 + 2 * ALONG as u64);
        assert!(overdue().is_empty() && !closes.leave());
        assert_eq!(closes.taken_along().count(), ALONG);
        assert_eq!(overdue().len(), ALONG);
    }
}
