//! Busy polling: a thread polls for the next request for a short time before it sleeps.
//!
//! A single busy program sends its next request some microseconds after the last reply. Where an
//! idle CPU wakes slowly (tens of microseconds on a virtual machine), sleeping and waking take
//! longer than the request itself. So while requests follow each other closely, one of the mount's
//! threads polls the device before it sleeps, and yields its CPU to other runnable threads.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a thread polls: about the cost of a wake-up, so that polling at most
/// doubles this cost.
const POLL_TIME: Duration = Duration::from_micros(40);
/// Maximum gap between a reply and the next request: after a longer gap, no thread polls.
const REQUEST_GAP_MAX: Duration = Duration::from_micros(120);

/// The polling state of a mount.
pub(crate) struct BusyPoll {
    device: OwnedFd,
    created: Instant,
    /// Time of the last reply, in nanoseconds after `created`.
    last_reply: AtomicU64,
    /// Whether the last request came within [`REQUEST_GAP_MAX`] after the previous reply.
    requests_are_close: AtomicBool,
    /// Whether a thread is polling; one is enough.
    is_polling: AtomicBool,
}

impl BusyPoll {
    /// Polls this FUSE device.
    pub(crate) fn new(device: OwnedFd) -> BusyPoll {
        BusyPoll {
            device,
            created: Instant::now(),
            last_reply: AtomicU64::new(0),
            requests_are_close: AtomicBool::new(false),
            is_polling: AtomicBool::new(false),
        }
    }

    /// Runs `request` (the part of a request that needs no wait). Then polls for the next request,
    /// for at most [`POLL_TIME`], if requests are close and no other thread polls.
    pub(crate) fn run_and_poll(&self, request: impl FnOnce()) {
        let gap = self.elapsed().saturating_sub(self.last_reply.load(Relaxed));
        self.requests_are_close
            .store(gap < nanos(REQUEST_GAP_MAX), Relaxed);
        request();
        self.last_reply.store(self.elapsed(), Relaxed);
        if self.requests_are_close.load(Relaxed) && !self.is_polling.swap(true, Relaxed) {
            self.poll_device();
            self.is_polling.store(false, Relaxed);
        }
    }

    /// Polls for a request for at most [`POLL_TIME`]; returns the number of polls that found none.
    fn poll_device(&self) -> usize {
        let end = self.elapsed() + nanos(POLL_TIME);
        let mut polls = 0;
        while !self.is_readable() {
            polls += 1;
            if self.elapsed() >= end {
                break;
            }
            thread::yield_now();
        }
        polls
    }

    /// Nanoseconds since `created`.
    fn elapsed(&self) -> u64 {
        nanos(self.created.elapsed())
    }

    /// Whether a read of the device returns at once. True also at the end of the mount: the read
    /// then fails.
    fn is_readable(&self) -> bool {
        let mut fds = [PollFd::new(&self.device, PollFlags::IN)];
        !matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0))
    }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    #[test]
    fn poll_ends_at_a_request_or_after_poll_time() {
        let (device, mut kernel) = std::io::pipe().unwrap();
        let busy_poll = BusyPoll::new(device.into());
        assert!(busy_poll.poll_device() > 0);
        kernel.write_all(b"request").unwrap();
        assert_eq!(busy_poll.poll_device(), 0);
    }

    #[test]
    fn poll_ends_at_the_end_of_a_mount() {
        let (device, kernel) = std::io::pipe().unwrap();
        drop(kernel);
        assert_eq!(BusyPoll::new(device.into()).poll_device(), 0);
    }

    #[test]
    fn requests_are_close_only_after_a_short_gap() {
        let (device, _kernel) = std::io::pipe().unwrap();
        let busy_poll = BusyPoll::new(device.into());
        busy_poll.last_reply.store(u64::MAX, Relaxed);
        busy_poll.run_and_poll(|| ());
        assert!(busy_poll.requests_are_close.load(Relaxed) && !busy_poll.is_polling.load(Relaxed));
        thread::sleep(2 * REQUEST_GAP_MAX);
        busy_poll.run_and_poll(|| ());
        assert!(!busy_poll.requests_are_close.load(Relaxed));
    }
}
