//! Logs the targets that do not answer: one line when requests have waited ten seconds for a
//! target, and one when the target answers again.

use crate::client::Client;
use parking_lot::Mutex;
use rpc::{Import, Unanswered};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{Instant, sleep};

/// How long requests wait before the log reports it.
const LONG: Duration = Duration::from_secs(10);
/// How often the targets are polled.
const LOOK: Duration = Duration::from_secs(1);

/// Polls the targets of a client until it is unmounted.
pub(crate) async fn watch(client: Weak<Client>) {
    let reported = Reported::default();
    loop {
        sleep(LOOK).await;
        let Some(client) = client.upgrade() else { return };
        if client.gone.load(Ordering::Acquire) {
            return;
        }
        for import in client.imports() {
            match reported.look(import.name(), import.unanswered()) {
                None => {}
                Some(Change::Waits(waits)) => {
                    let (target, nid) = (import.name(), import.peer());
                    let (since, requests) = (time_of_day(waits.since), waits.requests);
                    tracing::warn!(
                        target,
                        %nid,
                        requests,
                        "no answer since {since} UTC; programs that wait can be interrupted by signals"
                    );
                }
                Some(Change::Answers(after)) => {
                    let (target, seconds) = (import.name(), after.as_secs());
                    tracing::info!(target, seconds, "the target answers again");
                }
            }
        }
    }
}

impl Client {
    /// The imports of all targets.
    fn imports(&self) -> Vec<Arc<Import>> {
        let mdts = self.lmv.all().iter().map(|mdc| mdc.import.clone());
        mdts.chain(self.lov.imports()).collect()
    }
}

/// A change to report in the log.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    /// Requests have waited for [`REPORT_AFTER`].
    Waits(Unanswered),
    /// The target answered after this time.
    Answers(Duration),
}

/// The targets reported as not answering, and since when.
#[derive(Default)]
struct Reported(Mutex<HashMap<String, Instant>>);

impl Reported {
    /// Records the state of a target; returns a change that the log must report.
    fn look(&self, target: &str, waits: Option<Unanswered>) -> Option<Change> {
        let mut reported = self.0.lock();
        let long = waits.filter(|w| w.since.elapsed() >= LONG);
        match (reported.get(target).copied(), long) {
            (None, Some(waits)) => {
                reported.insert(target.to_owned(), waits.since);
                Some(Change::Waits(waits))
            }
            (Some(since), None) => {
                reported.remove(target);
                Some(Change::Answers(since.elapsed()))
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
    use super::{Change, LONG, Reported, time_of_day};
    use rpc::Unanswered;
    use tokio::time::{Instant, advance};

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_and_its_end_are_each_reported_once() {
        let reported = Reported::default();
        let waits = Unanswered {
            since: Instant::now(),
            requests: 3,
        };
        assert_eq!(reported.look("OST0000", Some(waits)), None);
        advance(LONG).await;
        assert_eq!(reported.look("OST0000", Some(waits)), Some(Change::Waits(waits)));
        assert_eq!(reported.look("OST0000", Some(waits)), None);
        assert_eq!(reported.look("OST0001", None), None);
        let answered = Unanswered {
            since: Instant::now(),
            requests: 1,
        };
        let over = reported.look("OST0000", Some(answered));
        assert_eq!(over, Some(Change::Answers(LONG)));
        assert_eq!(reported.look("OST0000", None), None);
        assert_eq!(time_of_day(Instant::now()).len(), "18:02:11".len());
    }
}
