//! One test process: a unit test binary, or one integration test.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::build::Binary;
use super::isolation::Isolation;
use crate::stage::root;

/// Crates with integration tests that mount file systems.
const MOUNTING_CRATES: [&str; 3] = ["nacre", "fuse", "capi"];

/// A test process that has not started.
pub(super) struct Job {
    /// The name in the output.
    pub(super) label: String,
    /// The tests to run.
    pub(super) tests: Vec<String>,
    /// Whether the tests mount file systems and start processes for them.
    pub(super) mounts: bool,
    /// The command that repeats the tests.
    pub(super) rerun_command: String,
    args: Vec<String>,
    path: PathBuf,
    dir: PathBuf,
}

/// The results of a job.
pub(super) struct JobResult {
    /// Number of passed tests.
    pub(super) passed: usize,
    /// Number of failed tests.
    pub(super) failed: usize,
    /// The output of the process.
    pub(super) output: String,
}

/// A job with a running process.
pub(super) struct RunningJob {
    pub(super) job: Job,
    pub(super) start_time: Instant,
    process: Child,
    log: PathBuf,
}

impl Job {
    /// Unit tests of a binary, in one process. `all`: whether `tests` are all tests of the binary.
    pub(super) fn unit_tests(binary: &Binary, tests: Vec<String>, all: bool) -> Job {
        let label = format!("{} ({} unit tests)", binary.package, tests.len());
        let exact = || std::iter::once("--exact".to_owned()).chain(tests.iter().cloned());
        let args = if all { Vec::new() } else { exact().collect() };
        let rerun_command = format!("cargo test -p {}", binary.package);
        Job::new(binary, label, tests, args, rerun_command)
    }

    /// One integration test.
    pub(super) fn integration_test(binary: &Binary, test: String) -> Job {
        let (package, name) = (&binary.package, &binary.name);
        let label = format!("{package} {name} {test}");
        let rerun_command = format!("cargo xtask test -p {package} '{label}'");
        let args = ["--exact", &test, "--nocapture"].map(str::to_owned).to_vec();
        let mut job = Job::new(binary, label, vec![test], args, rerun_command);
        job.mounts = MOUNTING_CRATES.contains(&package.as_str());
        job
    }

    fn new(
        binary: &Binary,
        label: String,
        tests: Vec<String>,
        args: Vec<String>,
        rerun_command: String,
    ) -> Job {
        Job {
            label,
            tests,
            mounts: false,
            rerun_command,
            args,
            path: binary.path.clone(),
            dir: binary.dir.clone(),
        }
    }

    /// Starts the process of the job.
    pub(super) fn start(self, isolation: &Isolation) -> Result<RunningJob, String> {
        let logs = root().join("target/test-logs");
        let name = self.label.replace(|c: char| !c.is_alphanumeric(), "_");
        let log = logs.join(format!("{name}.log"));
        let open = || {
            std::fs::create_dir_all(&logs)?;
            let out = File::create(&log)?;
            Ok((out.try_clone()?, out))
        };
        let (out, err) =
            open().map_err(|e: std::io::Error| format!("!!! cannot write {}: {e}", log.display()))?;
        let process = isolation
            .command(&self.path)
            .args(&self.args)
            .current_dir(&self.dir)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|e| format!("!!! cannot run {}: {e}", self.path.display()))?;
        Ok(RunningJob {
            job: self,
            start_time: Instant::now(),
            process,
            log,
        })
    }
}

impl RunningJob {
    /// The results, once the process has ended. Kills a process that has run for longer than
    /// `limit`.
    pub(super) fn try_finish(&mut self, limit: Duration) -> Result<Option<JobResult>, String> {
        let cannot_poll = |e| format!("!!! {}: {e}", self.job.label);
        if let Some(status) = self.process.try_wait().map_err(cannot_poll)? {
            return Ok(Some(self.result(status, "")));
        }
        if self.start_time.elapsed() < limit {
            return Ok(None);
        }
        let killed = self.process.kill().and_then(|()| self.process.wait());
        let status = killed.map_err(|e| format!("!!! {} cannot be killed: {e}", self.job.label))?;
        Ok(Some(self.result(status, "killed after the time limit\n")))
    }

    /// The results of the ended process; `remark` is appended to its output.
    fn result(&self, status: ExitStatus, remark: &str) -> JobResult {
        let read = std::fs::read(&self.log).unwrap_or_default();
        let output = format!("{}{remark}", String::from_utf8_lossy(&read));
        let all = self.job.tests.len();
        // A process that crashes does not report its remaining tests: count them as failed.
        let passed = if status.success() {
            all
        } else {
            count_passed(&output).min(all - 1)
        };
        JobResult {
            passed,
            failed: all - passed,
            output,
        }
    }
}

/// The number of passed tests in the summary of a failed test binary; 0 without a summary.
fn count_passed(output: &str) -> usize {
    let summary = output
        .lines()
        .rev()
        .find_map(|l| l.strip_prefix("test result: FAILED. "));
    summary
        .and_then(|s| s.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::count_passed;

    #[test]
    fn passed_tests_are_counted_from_the_summary() {
        assert_eq!(
            count_passed("x\ntest result: FAILED. 12 passed; 1 failed; 0 ignored\n\n"),
            12
        );
        assert_eq!(count_passed("thread panicked\nSIGSEGV\n"), 0);
    }
}
