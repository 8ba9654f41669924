//! Deferred closes of files that were opened only for reading, or created but not written.
//!
//! On Nacre's lock terms ([`wire::LockTerms`]) the next request with an early lock cancel carries
//! the handles of such files. If there is no such request within a short time, the client sends a
//! close request for each handle.
//!
//! The delay harms no other client. A handle that is open for reading denies no other open. The
//! handle of a created file is open for writing, so no client can execute the file before the
//! close. But some client must write a program before any client executes it, and the open for this
//! write closes the deferred handle. If this client opens the file, its request carries the handle.
//! If another client opens the file, the MDT revokes the lock that marks the file as unwritten
//! (on Nacre's lock terms this bit does not mean data on the MDT), and this client closes the
//! handle before it cancels the lock. The data of a file that was removed meanwhile exists until
//! the close.

use crate::inode::OpenDenyGuard;
use crate::mdc::Mdc;
use crate::pack;
use parking_lot::Mutex;
use rpc::job::JobId;
use std::sync::Arc;
use std::time::Duration;
use wire::{Fid, LockTerms, MDS_CLOSE, MdtRecSetattr, REINT_SETATTR};

/// Period of the closing task. A handle waits one to two periods for a request that carries it.
const CLOSE_PERIOD: Duration = Duration::from_millis(20);
/// The closing task ends when this many successive periods had no overdue handle and no handle
/// waits.
const IDLE_PERIODS_MAX: u32 = 50;
/// Largest number of waiting handles of a target. The client closes a further handle at once.
const CLOSES_MAX: usize = 256;
/// Largest number of handles that one request carries.
const CLOSES_PER_REQUEST: usize = 16;

/// The handles that wait to be closed.
#[derive(Default)]
pub(crate) struct DeferredCloses {
    waiting: Mutex<CloseQueue>,
}

#[derive(Default)]
struct CloseQueue {
    /// In the order in which they were added.
    handles: Vec<PendingClose>,
    /// Number of handles, from the first on, that will be overdue at the end of this period.
    aging: usize,
    /// Whether the closing task runs.
    has_task: bool,
}

/// A handle to close.
pub(crate) struct PendingClose {
    pub(crate) handle: u64,
    pub(crate) fid: Fid,
    /// Released when the server has closed the handle.
    pub(crate) deny_guard: Option<OpenDenyGuard>,
    /// The job that opened the file.
    pub(crate) job: JobId,
}

impl CloseQueue {
    /// Takes the first handles that match, up to `max`.
    fn take(&mut self, max: usize, matches: impl Fn(&PendingClose) -> bool) -> Vec<PendingClose> {
        let (mut taken, mut index, aging) = (0, 0, self.aging);
        let select = |closing: &mut PendingClose| {
            let is_selected = taken < max && matches(closing);
            taken += usize::from(is_selected);
            self.aging -= usize::from(is_selected && index < aging);
            index += 1;
            is_selected
        };
        self.handles.extract_if(.., select).collect()
    }
}

impl DeferredCloses {
    /// Takes the handles that a request carries: first the handles of the files that the request is
    /// about (`is_file_of_request`).
    pub(crate) fn take_for_request(&self, is_file_of_request: impl Fn(Fid) -> bool) -> Vec<PendingClose> {
        let mut waiting = self.waiting.lock();
        let mut taken = waiting.take(CLOSES_PER_REQUEST, |closing| is_file_of_request(closing.fid));
        taken.extend(waiting.take(CLOSES_PER_REQUEST - taken.len(), |_| true));
        taken
    }

    /// Takes the handles of one file.
    fn take_of_file(&self, fid: Fid) -> Vec<PendingClose> {
        self.waiting.lock().take(CLOSES_MAX, |closing| closing.fid == fid)
    }

    /// Ends a period: takes the handles that have waited during all of it.
    fn take_overdue(&self) -> Vec<PendingClose> {
        let mut waiting = self.waiting.lock();
        let aging = waiting.aging;
        let overdue = waiting.handles.drain(..aging).collect();
        waiting.aging = waiting.handles.len();
        overdue
    }

    /// Returns whether no handle waits; if so, records that the closing task ends.
    fn stop_if_empty(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.has_task = !waiting.handles.is_empty();
        !waiting.has_task
    }
}

impl Mdc {
    /// Queues a handle for one of the next requests.
    ///
    /// # Errors
    ///
    /// The handle itself: the queue is full, or the mount uses Lustre's lock terms. The caller must
    /// close the handle now.
    pub(crate) fn close_later(self: &Arc<Mdc>, closing: PendingClose) -> Result<(), PendingClose> {
        if self.lock_terms() == LockTerms::Lustre {
            return Err(closing);
        }
        let mut waiting = self.closes.waiting.lock();
        if waiting.handles.len() >= CLOSES_MAX {
            return Err(closing);
        }
        waiting.handles.push(closing);
        if !std::mem::replace(&mut waiting.has_task, true) {
            cpt::spawn(self.clone().close_overdue_handles());
        }
        Ok(())
    }

    /// Closes a file's waiting handles at once: another client opens the unwritten file for writing
    /// and may then execute it, or this client removes the file by its FID. The requests run to
    /// their end even if the caller stops waiting.
    pub(crate) async fn close_now(self: &Arc<Mdc>, fid: Fid) {
        let handles = self.closes.take_of_file(fid);
        if handles.is_empty() {
            return;
        }
        let mdc = self.clone();
        cpt::detach_on_drop(async move {
            for closing in handles {
                mdc.close_unchanged(closing).await;
            }
        })
        .await;
    }

    async fn close_overdue_handles(self: Arc<Mdc>) {
        let mut idle_periods = 0;
        while idle_periods < IDLE_PERIODS_MAX || !self.closes.stop_if_empty() {
            tokio::time::sleep(CLOSE_PERIOD).await;
            let overdue = self.closes.take_overdue();
            idle_periods = if overdue.is_empty() { idle_periods + 1 } else { 0 };
            for closing in overdue {
                self.close_unchanged(closing).await;
            }
        }
    }

    /// Sends a close that reports no change of the file's attributes.
    async fn close_unchanged(&self, closing: PendingClose) {
        let rec = MdtRecSetattr {
            sa_opcode: REINT_SETATTR,
            sa_fid: closing.fid,
            ..MdtRecSetattr::default()
        };
        let req = rpc::Request {
            jobid: closing.job,
            ..rpc::Request::modifying(MDS_CLOSE, pack::close(closing.handle, &rec))
        };
        // An error needs no retry: the server closes the handles of a client that it evicts.
        if let Err(e) = self.import.call(req).await {
            tracing::debug!(fid = %closing.fid, "deferred close failed: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CLOSES_PER_REQUEST, DeferredCloses, JobId, PendingClose};
    use wire::Fid;

    fn add(closes: &DeferredCloses, handles: std::ops::Range<u64>, fid: Fid) {
        let all = handles.map(|handle| PendingClose {
            handle,
            fid,
            deny_guard: None,
            job: JobId::default(),
        });
        closes.waiting.lock().handles.extend(all);
    }

    fn handles(all: &[PendingClose]) -> Vec<u64> {
        all.iter().map(|closing| closing.handle).collect()
    }

    #[test]
    fn a_handle_is_carried_by_one_request_or_overdue_after_two_periods() {
        let closes = DeferredCloses::default();
        let add = |handles| add(&closes, handles, Fid::ROOT);
        let overdue = || handles(&closes.take_overdue());
        let carried = || closes.take_for_request(|_| false);
        add(0..3);
        assert!(overdue().is_empty());
        add(3..4);
        assert_eq!(overdue(), [0, 1, 2]);
        add(4..6);
        assert_eq!(handles(&carried()), [3, 4, 5]);
        assert!(overdue().is_empty() && closes.stop_if_empty());
        add(10..10 + 2 * CLOSES_PER_REQUEST as u64);
        assert!(overdue().is_empty() && !closes.stop_if_empty());
        assert_eq!(carried().len(), CLOSES_PER_REQUEST);
        assert_eq!(overdue().len(), CLOSES_PER_REQUEST);
    }

    #[test]
    fn a_request_carries_the_handles_of_its_own_files_first() {
        let closes = DeferredCloses::default();
        let file = Fid::new(0x400, 1, 0);
        add(&closes, 0..100, Fid::ROOT);
        add(&closes, 100..102, file);
        assert!(closes.take_overdue().is_empty());
        add(&closes, 102..103, file);
        let carried = handles(&closes.take_for_request(|fid| fid == file));
        assert_eq!(carried[..5], [100, 101, 102, 0, 1]);
        assert_eq!(carried.len(), CLOSES_PER_REQUEST);
        // The other handles keep their age.
        add(&closes, 200..201, file);
        assert_eq!(handles(&closes.take_of_file(file)), [200]);
        add(&closes, 201..202, file);
        assert_eq!(handles(&closes.take_overdue()), Vec::from_iter(13..100));
        assert_eq!(handles(&closes.take_overdue()), [201]);
    }
}
