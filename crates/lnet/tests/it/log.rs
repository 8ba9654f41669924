//! What is logged while a test runs: on its thread, where everything of a test of one partition runs.
//!
//! One subscriber for the whole process keeps the lines of each thread. (With one of each thread's own, whether a place in
//! the code is listened to at all is decided anew whenever some other test begins or ends, and lines are missed.)
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // each test file uses some of it

use std::cell::RefCell;
use std::io::{Result, Write};

thread_local! {
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what is logged.
pub struct Log(());

struct Text;

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        TEXT.with_borrow_mut(|text| text.extend_from_slice(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Log {
    /// Keeps warnings and worse from now on.
    pub fn start() -> Log {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        // The first test sets it.
        let _ = log.with_ansi(false).with_writer(|| Text).try_init();
        // A place that another thread came by while it was set may believe that nobody listens.
        tracing::callsite::rebuild_interest_cache();
        TEXT.with_borrow_mut(Vec::clear);
        Log(())
    }

    /// The lines in which this stands.
    pub fn lines(&self, with: &str) -> Vec<String> {
        let text = TEXT.with_borrow(|text| String::from_utf8(text.clone()).unwrap());
        text.lines()
            .filter(|l| l.contains(with))
            .map(str::to_owned)
            .collect()
    }
}
