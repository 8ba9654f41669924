//! Logs the MDTs and OSTs that do not answer: one line when requests have waited ten seconds for a
//! target, and one when the target answers again.

use crate::client::Client;
use parking_lot::Mutex;
use rpc::{Import, PendingRequests};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};

/// The log reports a target when a request has waited this long for its answer.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// How often the targets are polled.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// Polls the targets of a client until the unmount.
pub(crate) async fn watch(client: Weak<Client>) {
    let reported = ReportedTargets::default();
    loop {
        sleep(POLL_PERIOD).await;
        let Some(client) = client.upgrade() else { return };
        if client.unmounted.load(Ordering::Acquire) {
            return;
        }
        for import in client.imports() {
            match reported.update(import.name(), import.pending_requests(), import.silence()) {
                None => {}
                Some(Report::Silent(pending)) => {
                    let (target, nid) = (import.name(), import.peer());
                    let (since, requests) = (time_of_day(pending.since), pending.requests);
                    tracing::warn!(
                        target,
                        %nid,
                        requests,
                        "no answer since {since} UTC: start its server again; a lost OST can be replaced (nacre mkfs --replace); a terminating signal, such as SIGINT, ends the wait of a program"
                    );
                }
                Some(Report::Answering(after)) => {
                    let (target, seconds) = (import.name(), after.as_secs());
                    tracing::info!(target, seconds, "the target answers again");
                }
            }
        }
    }
}

impl Client {
    /// The imports of all MDTs and OSTs.
    pub fn imports(&self) -> Vec<Arc<Import>> {
        let mdts = self.lmv.all().map(|mdc| mdc.import.clone());
        mdts.chain(self.lov.imports()).collect()
    }
}

/// A change to report in the log.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    /// Requests have waited for [`REPORT_AFTER`] or longer.
    Silent(PendingRequests),
    /// The target answers again after this time.
    Answering(Duration),
}

/// The targets reported as silent: by name, the time since which requests have waited.
#[derive(Default)]
struct ReportedTargets(Mutex<HashMap<String, Instant>>);

impl ReportedTargets {
    /// Records the state of a target; returns a change that the log must report. `silence`: how
    /// long the target has left a request unanswered, including interrupted requests.
    fn update(
        &self,
        target: &str,
        pending: Option<PendingRequests>,
        silence: Option<Duration>,
    ) -> Option<Report> {
        let mut reported = self.0.lock();
        let overdue = pending.filter(|pending| pending.since.elapsed() >= REPORT_AFTER);
        match (reported.get(target).copied(), overdue) {
            (None, Some(pending)) => {
                reported.insert(target.to_owned(), pending.since);
                Some(Report::Silent(pending))
            }
            (Some(since), None) if silence.is_none_or(|time| time < REPORT_AFTER) => {
                reported.remove(target);
                Some(Report::Answering(since.elapsed()))
            }
            _ => None,
        }
    }
}

/// A point in time as `hours:minutes:seconds` of UTC.
fn time_of_day(at: Instant) -> String {
    let time = SystemTime::now() - at.elapsed();
    let secs = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{:02}:{:02}:{:02}", secs / 3600 % 24, secs / 60 % 60, secs % 60)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{REPORT_AFTER, Report, ReportedTargets, time_of_day};
    use rpc::PendingRequests;
    use std::time::Duration;
    use tokio::time::{Instant, advance};

    #[tokio::test(start_paused = true)]
    async fn a_silent_target_and_its_next_answer_are_each_reported_once() {
        let reported = ReportedTargets::default();
        let waits = PendingRequests {
            since: Instant::now(),
            requests: 3,
        };
        assert_eq!(reported.update("OST0000", Some(waits), None), None);
        advance(REPORT_AFTER).await;
        assert_eq!(
            reported.update("OST0000", Some(waits), Some(REPORT_AFTER)),
            Some(Report::Silent(waits))
        );
        assert_eq!(reported.update("OST0000", Some(waits), Some(REPORT_AFTER)), None);
        assert_eq!(reported.update("OST0001", None, None), None);
        let interrupted = reported.update("OST0000", None, Some(REPORT_AFTER));
        assert_eq!(interrupted, None, "the target is still silent");
        let answered = PendingRequests {
            since: Instant::now(),
            requests: 1,
        };
        let over = reported.update("OST0000", Some(answered), Some(Duration::ZERO));
        assert_eq!(over, Some(Report::Answering(REPORT_AFTER)));
        assert_eq!(reported.update("OST0000", None, None), None);
        assert_eq!(time_of_day(Instant::now()).len(), "18:02:11".len());
    }
}
