//! Waits that a signal ends.
//!
//! A program that waits for an answer of the mount has to act on the signals that ask it to end, SIGKILL among them: the
//! kernel waits for the answer to a request that this process has read, whatever signal the program has. So a request
//! that waits looks, every now and then, at the signals of the program that made it, and is answered with `EINTR`. The
//! kernel has a message for that (`FUSE_INTERRUPT`), which does not say which signal it is; `fuser` answers it with
//! `ENOSYS`. Timers and the like must not break off what goes on as usual, so the signals have to be looked at anyway.

use client::{ProcessStatus, is_exiting};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often a request that waits looks at the signals of its program.
const LOOK: Duration = Duration::from_millis(200);
/// After how long a wait ends by a signal that the program handles.
const HANDLED: Duration = Duration::from_secs(1);

/// Who waits for the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A program, by the thread that made the request.
    Program(u32),
    /// A program that closes a file: its thread, unless the program exits, when nobody waits.
    Closer(u32),
    /// The kernel, for its own purposes: to give up a wait would lose data, or break a mapping.
    Kernel,
}

impl Asker {
    /// Whether this asker's wait ends now that it has lasted so long.
    fn gives_up(self, after: Duration) -> bool {
        let asked_to_end = |pid| {
            let status = ProcessStatus::of(pid);
            status.is_being_ended() || after >= HANDLED && status.is_asked_to_end()
        };
        match self {
            // The kernel knows no number of a program in a container that this process is not in.
            Asker::Program(0) | Asker::Closer(0) | Asker::Kernel => false,
            Asker::Program(pid) => asked_to_end(pid),
            Asker::Closer(pid) => is_exiting(pid) || asked_to_end(pid),
        }
    }

    /// Returns when the wait that begins now is to end.
    pub(crate) async fn gave_up(self) {
        if self == Asker::Kernel {
            return std::future::pending().await;
        }
        let begun = Instant::now();
        loop {
            sleep(LOOK).await;
            if self.gives_up(begun.elapsed()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Asker, HANDLED};

    #[test]
    fn a_program_without_signals_goes_on_waiting() {
        let pid = std::process::id();
        for asker in [
            Asker::Program(pid),
            Asker::Closer(pid),
            Asker::Program(0),
            Asker::Kernel,
        ] {
            assert!(!asker.gives_up(HANDLED), "{asker:?}");
        }
    }
}
