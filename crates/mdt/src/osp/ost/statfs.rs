//! The statfs of an OST, which the MDT requests to balance the OSTs, and to notice that an OST is
//! slow, full or failed. Within a second of such a change, new files use other OSTs.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use rpc::Request;
use tokio::time::{Instant, sleep, timeout};
use wire::format::bufs;
use wire::{Errno, OST_STATFS, ObdStatfs};

use super::Ost;

/// Interval of statfs requests to an OST that creates use or avoid. The MDT uses the replies to
/// balance the OSTs, and to notice that an OST is slow, or usable again.
const INTERVAL: Duration = Duration::from_millis(500);
/// An OST that has left a statfs request unanswered for this long is slow. With [`INTERVAL`], the
/// MDT detects it within a second.
pub(super) const SLOW: Duration = Duration::from_millis(400);
/// Maximum age of a statfs reply that the MDT uses instead of a new request.
const AGE_MAX: Duration = Duration::from_secs(1);
/// Maximum age of the statfs reply by which a create chooses OSTs. With the time of the request,
/// an OST gets no new files a second after a failure of its store.
const AGE_OF_CREATES: Duration = Duration::from_millis(700);
/// Time limit of waiting for a statfs reply.
const TIMEOUT: Duration = Duration::from_secs(3);

impl Ost {
    /// The OST's statfs. Uses the last reply if it is younger than [`AGE_MAX`], or if the OST is
    /// disconnected or does not answer. `None` without any reply.
    pub(crate) async fn statfs(&self) -> Option<ObdStatfs> {
        let known = self.space.load().as_deref().copied();
        if let Some((received, space)) = known
            && received.elapsed() < AGE_MAX
        {
            return Some(space);
        }
        if !self.is_connected() {
            return known.map(|(_, space)| space);
        }
        let request = timeout(TIMEOUT, self.request_statfs()).await;
        request
            .ok()
            .and_then(Result::ok)
            .or(known.map(|(_, space)| space))
    }

    /// Requests the OST's statfs, and updates the watermarks. One request is in progress at a time;
    /// callers that wait for their turn use its reply.
    async fn request_statfs(&self) -> Result<ObdStatfs, Errno> {
        let asked = Instant::now();
        let _turn = self.statfs_turn.lock().await;
        if let Some((received, space)) = self.space.load().as_deref().copied()
            && received > asked
        {
            return Ok(space);
        }
        let reply = self.import.call(Request::new(OST_STATFS, Vec::new())).await?;
        let space: ObdStatfs = reply.get(bufs::OBD_STATFS)?;
        let before = self.space.swap(Some(Arc::new((Instant::now(), space))));
        self.report_failure(before.as_deref().map(|(_, space)| space), &space);
        self.apply_watermarks();
        Ok(space)
    }

    /// Whether creates need a new statfs of the OST: the last one is too old, but the OST answers.
    pub(crate) fn needs_statfs(&self) -> bool {
        let space = self.space.load();
        let age = space.as_deref().map(|(received, _)| received.elapsed());
        self.is_connected() && !self.is_slow() && age.is_none_or(|age| age >= AGE_OF_CREATES)
    }

    /// Requests the OST's statfs for a create, and waits for the reply, but not as long as
    /// [`SLOW`]. Without a reply, later creates do not wait.
    pub(crate) async fn refresh_statfs(&self) {
        let answer = timeout(SLOW, self.request_statfs()).await;
        self.set_slow(problem_of(answer.ok()));
    }

    /// Records that the OST answers its statfs requests, or why it does not.
    fn set_slow(&self, problem: Option<String>) {
        let was_slow = self.slow.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_slow => {
                tracing::info!("{}: {problem}; new files use other OSTs", self.name);
            }
            None if was_slow => tracing::info!("{}: answers statfs again", self.name),
            _ => {}
        }
    }
}

/// Why the answer to a statfs request is no success; `None` as `answer`: no reply within [`SLOW`].
fn problem_of(answer: Option<Result<ObdStatfs, Errno>>) -> Option<String> {
    match answer {
        Some(Ok(_)) => None,
        Some(Err(e)) => Some(format!("statfs failed: {e}")),
        None => Some(format!("no reply to statfs within {SLOW:?}")),
    }
}

/// The statfs task: sends requests at intervals while creates use the OST or avoid it. The OST is
/// slow from a request that fails or is unanswered for longer than [`SLOW`] to the next success.
pub(super) async fn run(ost: Arc<Ost>) {
    loop {
        ost.wait_connected().await;
        sleep(INTERVAL).await;
        // Creates avoid a full or failed OST, but the MDT must notice that it is usable again.
        let in_use = ost.in_use.swap(false, Ordering::Relaxed);
        if !in_use && !ost.is_slow() && ost.exclusion().is_empty() {
            continue;
        }
        let mut request = std::pin::pin!(ost.request_statfs());
        let mut answer = timeout(SLOW, &mut request).await.ok();
        if answer.is_none() {
            ost.set_slow(problem_of(None));
            answer = Some(request.await);
        }
        ost.set_slow(problem_of(answer));
    }
}
