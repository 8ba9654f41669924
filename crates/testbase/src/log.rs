//! The log of one test. Tests with a single partition log everything on their own thread.
//!
//! One subscriber for the whole process stores the lines by thread. With one subscriber per thread,
//! the cached interest of each log call site would change whenever another test starts or ends, and
//! lines would be lost.

use std::cell::RefCell;
use std::io::{Result, Write};

thread_local! {
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Collects log lines.
pub struct Log(());

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        TEXT.with_borrow_mut(|text| text.extend_from_slice(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Log {
    /// Clears this thread's log and collects its warnings and errors.
    pub fn start() -> Log {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        // Only the first test of the process sets the subscriber.
        let _ = log.with_ansi(false).with_writer(|| LogWriter).try_init();
        // A call site that another thread reached during this call may have cached that no
        // subscriber is interested.
        tracing::callsite::rebuild_interest_cache();
        TEXT.with_borrow_mut(Vec::clear);
        Log(())
    }

    /// The lines that contain this text.
    pub fn lines(&self, part: &str) -> Vec<String> {
        let text = TEXT.with_borrow(|text| String::from_utf8(text.clone()).unwrap());
        text.lines()
            .filter(|l| l.contains(part))
            .map(str::to_owned)
            .collect()
    }
}
