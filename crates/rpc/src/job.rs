//! The job for which a task works. Requests that the task builds carry the job's name.

use wire::Text;

/// The name of a job; empty without one.
pub type JobId = Text<32>;

tokio::task_local! {
    static JOB: JobId;
}

/// The job of the current task; empty without one.
pub fn current() -> JobId {
    JOB.try_with(|job| *job).unwrap_or_default()
}

/// Runs `work` for a job.
pub fn run_for<F: Future>(job: JobId, work: F) -> impl Future<Output = F::Output> + use<F> {
    JOB.scope(job, work)
}

/// Makes `work` run for the job of the current task, even in a task of its own.
pub fn inherit<F: Future>(work: F) -> impl Future<Output = F::Output> {
    run_for(current(), work)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{JobId, current, inherit, run_for};

    #[tokio::test]
    async fn a_spawned_task_inherits_the_job_only_if_asked() {
        let job = JobId::truncated("dd.0");
        let (inherited, plain) = run_for(job, async {
            let inherited = cpt::spawn(inherit(async { current() }));
            let plain = cpt::spawn(async { current() });
            (inherited.await.unwrap(), plain.await.unwrap())
        })
        .await;
        assert_eq!((inherited, plain), (job, JobId::default()));
        assert!(current().is_empty());
    }
}
