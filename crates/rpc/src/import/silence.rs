//! Measures how long a target has been silent while requests wait for it.
//!
//! A request that timed out still counts until the target is heard from again: the next caller
//! learns at once that the target does not respond.

use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Requests that wait for a target's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// When the target was last heard from, or the first of the requests was sent, whichever is
    /// later.
    pub since: Instant,
    /// How many requests wait.
    pub requests: usize,
}

#[derive(Debug)]
struct State {
    waiting: usize,
    /// When the first request without any later reply was sent, including requests that timed out.
    asked: Option<Instant>,
    /// When the first of the waiting requests was sent, or the target was last heard from.
    began: Instant,
}

/// The time of a target's silence. See the module.
#[derive(Debug)]
pub(super) struct Silence(Mutex<State>);

impl Silence {
    pub(super) fn new() -> Silence {
        Silence(Mutex::new(State {
            waiting: 0,
            asked: None,
            began: Instant::now(),
        }))
    }

    /// A request is sent; its caller waits until the guard is dropped.
    pub(super) fn begin(&self) -> Waiting<'_> {
        let now = Instant::now();
        let mut s = self.0.lock();
        if s.waiting == 0 {
            s.began = now;
        }
        s.waiting += 1;
        s.asked.get_or_insert(now);
        Waiting {
            silence: self,
            answered: false,
        }
    }

    /// A message from the target arrived.
    pub(super) fn heard(&self) {
        let now = Instant::now();
        let mut s = self.0.lock();
        s.began = now;
        s.asked = (s.waiting > 0).then_some(now);
    }

    /// Time since the first request without any later reply.
    pub(super) fn lasts(&self) -> Option<Duration> {
        self.0.lock().asked.map(|at| at.elapsed())
    }

    /// The requests that wait now.
    pub(super) fn unanswered(&self) -> Option<Unanswered> {
        let s = self.0.lock();
        (s.waiting > 0).then_some(Unanswered {
            since: s.began,
            requests: s.waiting,
        })
    }
}

/// Guard of a caller that waits for a reply.
pub(super) struct Waiting<'a> {
    silence: &'a Silence,
    answered: bool,
}

impl Waiting<'_> {
    /// The reply has arrived.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut s = self.silence.0.lock();
        s.waiting -= 1;
        if self.answered && s.waiting == 0 {
            s.asked = None;
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
    async fn an_answer_ends_the_silence_for_all_who_wait() {
        let silence = Silence::new();
        assert_eq!((silence.lasts(), silence.unanswered()), (None, None));
        let (one, other) = (silence.begin(), silence.begin());
        advance(LONG).await;
        assert_eq!(silence.lasts(), Some(LONG));
        let waits = silence.unanswered().unwrap();
        assert_eq!((waits.requests, waits.since.elapsed()), (2, LONG));
        silence.heard();
        one.answered();
        assert_eq!(silence.lasts(), Some(Duration::ZERO));
        assert_eq!(silence.unanswered().unwrap().since, Instant::now());
        silence.heard();
        other.answered();
        assert_eq!((silence.lasts(), silence.unanswered()), (None, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_leaves_the_silence_but_not_its_wait() {
        let silence = Silence::new();
        drop(silence.begin());
        advance(LONG).await;
        assert_eq!((silence.lasts(), silence.unanswered()), (Some(LONG), None));
        let next = silence.begin();
        assert_eq!(silence.unanswered().unwrap().since, Instant::now());
        drop(next);
        silence.heard();
        assert_eq!(silence.lasts(), None);
    }
}
