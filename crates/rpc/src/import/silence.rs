//! Measures the time for which a target has been silent while calls wait for it.
//!
//! A call that timed out counts until the target's next message: the next caller learns at once
//! that the target does not respond.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The requests of calls that wait for a target's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRequests {
    /// When the target's last message arrived, or the first of the calls began, whichever is later.
    pub since: Instant,
    /// Number of waiting calls, each with one request.
    pub requests: usize,
}

#[derive(Debug)]
struct State {
    /// Number of waiting calls.
    waiting: usize,
    /// The beginning of the target's silence: the last message that arrived while calls waited, or
    /// the first call after the last message. A call that timed out still counts.
    unanswered_since: Option<Instant>,
    /// When the first of the waiting calls began, or the target's last message arrived, whichever
    /// is later.
    waiting_since: Instant,
}

/// Measures the time of a target's silence.
#[derive(Debug)]
pub(super) struct Silence(Mutex<State>);

impl Silence {
    pub(super) fn new() -> Silence {
        Silence(Mutex::new(State {
            waiting: 0,
            unanswered_since: None,
            waiting_since: Instant::now(),
        }))
    }

    /// Records that a call begins; it waits until the guard is dropped.
    pub(super) fn begin(&self) -> WaitGuard<'_> {
        let now = Instant::now();
        let mut state = self.0.lock();
        if state.waiting == 0 {
            state.waiting_since = now;
        }
        state.waiting += 1;
        state.unanswered_since.get_or_insert(now);
        WaitGuard {
            silence: self,
            answered: false,
        }
    }

    /// Records that a message from the target arrived.
    pub(super) fn note_heard(&self) {
        let now = Instant::now();
        let mut state = self.0.lock();
        state.waiting_since = now;
        state.unanswered_since = (state.waiting > 0).then_some(now);
    }

    /// Time since the target's last message or, if no call waited then, since the next call began.
    /// `None` if no call waits and none has timed out since that message.
    pub(super) fn duration(&self) -> Option<Duration> {
        self.0.lock().unanswered_since.map(|since| since.elapsed())
    }

    /// The calls that wait now; `None` if there are none.
    pub(super) fn pending_requests(&self) -> Option<PendingRequests> {
        let state = self.0.lock();
        (state.waiting > 0).then_some(PendingRequests {
            since: state.waiting_since,
            requests: state.waiting,
        })
    }
}

/// Guard of a caller that waits for a reply.
pub(super) struct WaitGuard<'a> {
    silence: &'a Silence,
    answered: bool,
}

impl WaitGuard<'_> {
    /// Ends the wait because the target has responded.
    pub(super) fn mark_answered(mut self) {
        self.answered = true;
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.silence.0.lock();
        state.waiting -= 1;
        if self.answered && state.waiting == 0 {
            state.unanswered_since = None;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Silence;
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn a_reply_ends_the_silence_for_all_waiters() {
        let silence = Silence::new();
        assert_eq!((silence.duration(), silence.pending_requests()), (None, None));
        let (first_wait, second_wait) = (silence.begin(), silence.begin());
        advance(LONG).await;
        assert_eq!(silence.duration(), Some(LONG));
        let pending = silence.pending_requests().unwrap();
        assert_eq!((pending.requests, pending.since.elapsed()), (2, LONG));
        silence.note_heard();
        first_wait.mark_answered();
        assert_eq!(silence.duration(), Some(Duration::ZERO));
        assert_eq!(silence.pending_requests().unwrap().since, Instant::now());
        silence.note_heard();
        second_wait.mark_answered();
        assert_eq!((silence.duration(), silence.pending_requests()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timed_out_call_leaves_the_silence_but_no_waiter() {
        let silence = Silence::new();
        drop(silence.begin());
        advance(LONG).await;
        assert_eq!(
            (silence.duration(), silence.pending_requests()),
            (Some(LONG), None)
        );
        let next = silence.begin();
        assert_eq!(silence.pending_requests().unwrap().since, Instant::now());
        drop(next);
        silence.note_heard();
        assert_eq!(silence.duration(), None);
    }
}
