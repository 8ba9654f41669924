//! What is logged while a test runs: on its thread, where everything of a test of one partition runs.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // each test file uses some of it

use std::io::{Result, Write};
use std::sync::{Arc, Mutex};
use tracing::subscriber::{DefaultGuard, set_default};

/// Keeps what is logged.
pub struct Log {
    text: Text,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Log {
    /// Keeps warnings and worse from now on.
    pub fn start() -> Log {
        let text = Text::default();
        let writer = text.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        let log = log.with_ansi(false).with_writer(move || writer.clone()).finish();
        Log {
            text,
            _guard: set_default(log),
        }
    }

    /// The lines in which this stands.
    pub fn lines(&self, with: &str) -> Vec<String> {
        let text = String::from_utf8(self.text.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .filter(|l| l.contains(with))
            .map(str::to_owned)
            .collect()
    }
}
