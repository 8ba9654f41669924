//! The steps of stopping a node, and their time limits. A step that takes too long is abandoned, so
//! that a dead peer cannot keep the process alive (`ARCHITECTURE.md`, "Commands").

use std::future::Future;
use std::time::Duration;

use cpt::JoinSet;

/// Time limit of one stop step, and of the wait until a new node's OSTs can take files.
pub const STEP_MAX: Duration = Duration::from_secs(20);

/// Runs the parts of a stop step at the same time, so that their number does not extend the step.
/// Returns their results in the order in which the parts end.
pub async fn await_all<T: Send + 'static>(
    parts: impl IntoIterator<Item: Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let mut tasks = JoinSet::new();
    for part in parts {
        tasks.spawn(part);
    }
    tasks.join_all().await
}

/// Awaits one stop step for at most [`STEP_MAX`]; `None` if the step takes longer.
pub async fn limit_step<T>(name: &str, step: impl Future<Output = T>) -> Option<T> {
    let result = tokio::time::timeout(STEP_MAX, step).await;
    if result.is_err() {
        tracing::warn!(
            "{name} did not stop within {} s: continuing without it",
            STEP_MAX.as_secs()
        );
    }
    result.ok()
}

#[cfg(test)]
mod tests {
    use super::{STEP_MAX, await_all, limit_step};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn hanging_parts_of_a_step_share_its_time_limit() {
        let start_time = Instant::now();
        let part = |_| async {
            limit_step("a part", std::future::pending::<()>()).await;
        };
        await_all((0..9).map(part)).await;
        assert!(start_time.elapsed() < 2 * STEP_MAX);
    }
}
