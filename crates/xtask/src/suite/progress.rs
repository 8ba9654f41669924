//! Output of the test runner: running and remaining tests, failures, and totals.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::job::{JobResult, RunningJob};

/// Interval of progress messages if the output is no terminal.
const FILE_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of updates of the status line on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum length of the status line, characters.
const STATUS_CHARS_MAX: usize = 160;
/// Passed jobs that took longer are printed with their time.
const LONG_JOB: Duration = Duration::from_secs(10);

/// The state of a test run.
pub(super) struct Progress {
    /// Number of tests that have not ended.
    remaining: usize,
    /// Number of passed tests.
    passed: usize,
    /// Number of failed tests.
    failed: usize,
    /// Messages about failed jobs.
    failures: Vec<String>,
    start_time: Instant,
    /// Time when the running tests were last printed.
    last_shown: Instant,
    /// Whether the output is a terminal.
    terminal: bool,
}

impl Progress {
    /// Begins a run of `tests` tests.
    pub(super) fn new(tests: usize) -> Progress {
        println!("=== {tests} tests");
        Progress {
            remaining: tests,
            passed: 0,
            failed: 0,
            failures: Vec::new(),
            start_time: Instant::now(),
            last_shown: Instant::now(),
            terminal: std::io::stdout().is_terminal(),
        }
    }

    /// Records and prints the results of a job.
    pub(super) fn record(&mut self, job: &RunningJob, result: JobResult) {
        self.remaining -= result.passed + result.failed;
        self.passed += result.passed;
        self.failed += result.failed;
        let (label, took) = (&job.job.label, job.start_time.elapsed());
        if result.failed > 0 {
            self.print_line(&format!("FAILED {label} ({})", seconds(took)));
            let rerun_command = &job.job.rerun_command;
            self.failures.push(format!(
                "--- {label}\n{}\nrun it again: {rerun_command}\n",
                result.output.trim_end()
            ));
        } else if took > LONG_JOB {
            self.print_line(&format!("passed {label} ({})", seconds(took)));
        } else if result.output.contains("!!! NOT TESTED") {
            let note = result.output.lines().find(|l| l.contains("!!! NOT TESTED"));
            self.print_line(&format!("{label}: {}", note.unwrap_or_default()));
        }
    }

    /// Prints the running tests if the interval has passed.
    pub(super) fn show(&mut self, running: &[RunningJob]) {
        if self.last_shown.elapsed()
            < if self.terminal {
                TERMINAL_INTERVAL
            } else {
                FILE_INTERVAL
            }
        {
            return;
        }
        self.last_shown = Instant::now();
        let mut oldest: Vec<&RunningJob> = running.iter().collect();
        oldest.sort_by_key(|r| r.start_time);
        let names: Vec<String> = oldest
            .iter()
            .map(|r| format!("{} {}", r.job.label, seconds(r.start_time.elapsed())))
            .collect();
        let state = format!("{} left; running: {}", self.remaining, names.join(", "));
        if self.terminal {
            print!(
                "\r\x1b[2K{}",
                state.chars().take(STATUS_CHARS_MAX).collect::<String>()
            );
            let _ = std::io::stdout().flush();
        } else {
            println!("{state}");
        }
    }

    /// Prints a line, in place of the status line on a terminal.
    fn print_line(&self, text: &str) {
        println!("{}{text}", if self.terminal { "\r\x1b[2K" } else { "" });
    }

    /// Prints failures and totals; returns the number of failed tests.
    pub(super) fn finish(self) -> usize {
        self.print_line("");
        self.failures.iter().for_each(|failure| println!("{failure}"));
        println!("=== tests done in {}", seconds(self.start_time.elapsed()));
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
