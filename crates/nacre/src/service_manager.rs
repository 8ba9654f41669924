//! The service manager, such as systemd: messages about the state of this process (sd_notify(3)),
//! and the journal as the destination of the log.
//!
//! Only a process in the foreground sends messages: the manager started it and waits for it. The
//! command that waits for a background process has its own report ([`crate::daemon`]).

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use sd_notify::NotifyState;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::daemon;

/// Reports that the process serves, so that the manager starts the units that wait for this one.
/// The first line of the text, if any, becomes the status.
pub(crate) fn report_ready(text: Option<&str>) {
    match text.and_then(|text| text.lines().next()) {
        None => send(&[NotifyState::Ready]),
        Some(status) => send(&[NotifyState::Ready, NotifyState::Status(status)]),
    }
}

/// Reports that the process begins to stop.
pub(crate) fn report_stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Sends the state of the process as a line of text.
pub(crate) fn report_status(text: &str) {
    send(&[NotifyState::Status(&text.replace('\n', " "))]);
}

fn send(states: &[NotifyState<'_>]) {
    if daemon::is_child() {
        return;
    }
    if let Err(e) = sd_notify::notify(states) {
        tracing::warn!("cannot send {} to the service manager: {e}", states[0]);
    }
}

/// Whether standard error is a stream to systemd's journal.
pub(crate) fn logs_to_journal() -> bool {
    static RESULT: OnceLock<bool> = OnceLock::new();
    *RESULT.get_or_init(|| {
        let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        std::fs::metadata("/proc/self/fd/2")
            .is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
    })
}

/// Writes events to the journal on standard error, each line with the priority of its level
/// (sd-daemon(3)).
pub(crate) struct JournalStream;

impl<'a> MakeWriter<'a> for JournalStream {
    type Writer = JournalLines<std::io::Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        JournalLines::new(std::io::stderr(), Level::INFO)
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Self::Writer {
        JournalLines::new(std::io::stderr(), *event.level())
    }
}

/// Writes the lines of one event.
pub(crate) struct JournalLines<W> {
    out: W,
    priority: u8,
}

impl<W> JournalLines<W> {
    fn new(out: W, level: Level) -> JournalLines<W> {
        // syslog(3): 3 is an error, 7 a debug message. Level 5, a notice, has no counterpart.
        let priority = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        JournalLines { out, priority }
    }
}

impl<W: Write> Write for JournalLines<W> {
    /// Writes a whole event, as the formatter passes it.
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        let mut lines = Vec::with_capacity(event.len() + 8);
        for line in event.split_inclusive(|&byte| byte == b'\n') {
            lines.extend_from_slice(format!("<{}>", self.priority).as_bytes());
            lines.extend_from_slice(line);
        }
        self.out.write_all(&lines)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_line_of_an_event_has_its_priority() {
        for (level, expected) in [
            (Level::ERROR, "<3>one\n<3>two\n"),
            (Level::WARN, "<4>one\n<4>two\n"),
            (Level::INFO, "<6>one\n<6>two\n"),
            (Level::TRACE, "<7>one\n<7>two\n"),
        ] {
            let mut lines = JournalLines::new(Vec::new(), level);
            lines.write_all(b"one\ntwo\n").unwrap();
            assert_eq!(String::from_utf8(lines.out).unwrap(), expected);
        }
    }
}
