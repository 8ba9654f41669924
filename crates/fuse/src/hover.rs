//! Looking for the next request before sleeping.
//!
//! A program that works alone sends its next request some microseconds after it has the last answer. To sleep and be
//! woken for that takes longer than the request itself where an idle CPU has to be called back (tens of microseconds on
//! a virtual machine). So while requests follow each other closely, one of the threads that read them looks for a while
//! whether there is one before it goes to sleep, and gives its CPU to whoever else wants it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// How long a thread looks: about what waking it costs, so that at worst twice as much is spent.
const LOOK: Duration = Duration::from_micros(40);
/// Requests further apart than this are not waited for.
const CLOSE: Duration = Duration::from_micros(120);

/// When the threads of a mount look for requests.
pub(crate) struct Hover {
    device: OwnedFd,
    begun: Instant,
    /// When a request was last done, nanoseconds after `begun`.
    done: AtomicU64,
    /// The last request came closely after the one before it.
    close: AtomicBool,
    /// A thread looks; one is enough.
    looking: AtomicBool,
}

impl Hover {
    /// Looks at this device of FUSE.
    pub(crate) fn new(device: OwnedFd) -> Hover {
        Hover {
            device,
            begun: Instant::now(),
            done: AtomicU64::new(0),
            close: AtomicBool::new(false),
            looking: AtomicBool::new(false),
        }
    }

    /// Does what a request asks for, as much of it as goes without waiting. Returns when there is another request, or it
    /// is time to sleep.
    pub(crate) fn around(&self, request: impl FnOnce()) {
        let apart = self.now().saturating_sub(self.done.load(Relaxed));
        self.close.store(apart < nanos(CLOSE), Relaxed);
        request();
        self.done.store(self.now(), Relaxed);
        if self.close.load(Relaxed) && !self.looking.swap(true, Relaxed) {
            self.look();
            self.looking.store(false, Relaxed);
        }
    }

    /// Looks for a request; how often it did so in vain.
    fn look(&self) -> usize {
        let end = self.now() + nanos(LOOK);
        let mut vain = 0;
        while !self.is_readable() {
            vain += 1;
            if self.now() >= end {
                break;
            }
            thread::yield_now();
        }
        vain
    }

    fn now(&self) -> u64 {
        nanos(self.begun.elapsed())
    }

    /// Also at the end of the mount: who reads then is told so.
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
    fn it_looks_until_there_is_a_request_or_time_is_over() {
        let (device, mut kernel) = std::io::pipe().unwrap();
        let hover = Hover::new(device.into());
        assert!(hover.look() > 0);
        kernel.write_all(b"request").unwrap();
        assert_eq!(hover.look(), 0);
    }

    #[test]
    fn the_end_of_a_mount_is_not_waited_for() {
        let (device, kernel) = std::io::pipe().unwrap();
        drop(kernel);
        assert_eq!(Hover::new(device.into()).look(), 0);
    }

    #[test]
    fn requests_are_close_only_when_they_follow_each_other() {
        let (device, _kernel) = std::io::pipe().unwrap();
        let hover = Hover::new(device.into());
        hover.done.store(u64::MAX, Relaxed);
        hover.around(|| ());
        assert!(hover.close.load(Relaxed) && !hover.looking.load(Relaxed));
        thread::sleep(2 * CLOSE);
        hover.around(|| ());
        assert!(!hover.close.load(Relaxed));
    }
}
