//! Requesters of FUSE requests, and signals that interrupt their wait.
//!
//! The kernel waits for the reply to a request that this process has read, even if the program gets
//! SIGKILL. A waiting request therefore checks the signals of its program periodically, and fails
//! with `EINTR` when a signal should end the wait. The kernel's own message for an interruption
//! (`FUSE_INTERRUPT`) is of no use: it does not name the signal, and a timer's signal, for example,
//! must not interrupt I/O. `fuser` answers this message with `ENOSYS`.

use client::{Caller, ProcessStatus, is_exiting, is_linking};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The interval of checking a program's signals.
const SIGNAL_POLL: Duration = Duration::from_millis(200);
/// A request for attributes within link(2) waits this long for the size of the file.
const LINK_WAIT: Duration = Duration::from_millis(200);
/// A termination signal (HUP, INT, QUIT, TERM) that the program handles ends a wait after this
/// time.
const HANDLED_SIGNAL_DELAY: Duration = Duration::from_secs(1);

/// The party that waits for the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requester {
    /// A program.
    Program(Caller),
    /// A program that closes a file. Nothing waits for the reply if the
    /// program is exiting.
    Closer(Caller),
    /// The kernel itself: an interruption would lose data or break a mapping.
    Kernel,
}

impl Requester {
    /// The program, if a program sent the request.
    pub(crate) fn caller(self) -> Option<Caller> {
        match self {
            Requester::Program(caller) | Requester::Closer(caller) => Some(caller),
            Requester::Kernel => None,
        }
    }

    /// Whether this requester's wait, which has lasted for `waited`, must end.
    fn is_interrupted(self, waited: Duration) -> bool {
        let has_ending_signal = |pid| {
            let status = ProcessStatus::of(pid);
            status.has_fatal_signal() || waited >= HANDLED_SIGNAL_DELAY && status.has_termination_signal()
        };
        match self {
            // Pid 0: the program is in a pid namespace that is invisible to this process.
            Requester::Program(Caller { pid: 0, .. })
            | Requester::Closer(Caller { pid: 0, .. })
            | Requester::Kernel => false,
            Requester::Program(Caller { pid, .. }) => has_ending_signal(pid),
            Requester::Closer(Caller { pid, .. }) => is_exiting(pid) || has_ending_signal(pid),
        }
    }

    /// Returns after [`LINK_WAIT`] if the requester is in link(2), else never. In link(2) the
    /// kernel requests the file's attributes while it holds the directory of the new name, and
    /// other programs wait for that directory.
    pub(crate) async fn link_timeout(self) {
        sleep(LINK_WAIT).await;
        match self {
            Requester::Program(Caller { pid, .. }) if pid != 0 && is_linking(pid) => {}
            _ => std::future::pending().await,
        }
    }

    /// Returns when the requester's wait must end: by a signal, or because a closer is exiting.
    /// Never returns for the kernel or for pid 0.
    pub(crate) async fn wait_for_interruption(self) {
        if self == Requester::Kernel {
            return std::future::pending().await;
        }
        let start = Instant::now();
        loop {
            sleep(SIGNAL_POLL).await;
            if self.is_interrupted(start.elapsed()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Caller, HANDLED_SIGNAL_DELAY, Requester};

    #[test]
    fn requesters_without_signals_keep_waiting() {
        let caller = |pid| Caller { pid, uid: 0, gid: 0 };
        let own = caller(std::process::id());
        for requester in [
            Requester::Program(own),
            Requester::Closer(own),
            Requester::Program(caller(0)),
            Requester::Kernel,
        ] {
            assert!(!requester.is_interrupted(HANDLED_SIGNAL_DELAY), "{requester:?}");
        }
    }
}
