//! The log: its destination, its levels, and a filter that drops one message.

use std::fmt::Debug;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::daemon;

/// Starts logging to standard error, which in the background is the log file. `NACRE_LOG` sets the
/// levels. By default, fuser's warnings about unsupported requests are off in the background; the
/// manual lists those requests.
pub(crate) fn start() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("NACRE_LOG").unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new(if daemon::is_child() {
            "info,fjall=warn,lsm_tree=warn,fuser=error"
        } else {
            "warn"
        })
    });
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(!daemon::is_child() && std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .finish()
        .with(InterruptedReplyFilter)
        .try_init();
}

/// Drops fuser's error for a reply to a program that was killed while it waited. The kernel then
/// rejects the reply with `ENOENT`, which is normal.
struct InterruptedReplyFilter;

impl<S: Subscriber> Layer<S> for InterruptedReplyFilter {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let mut message = Message::default();
        event.record(&mut message);
        !(message.0.starts_with("Failed to send FUSE reply") && message.0.ends_with("(os error 2)"))
    }
}

/// The message text of an event.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn failed_reply_to_a_killed_program_is_not_logged() {
        let buffer = LogBuffer::default();
        let writer = buffer.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log.with(InterruptedReplyFilter), || {
            tracing::error!("Failed to send FUSE reply: No such file or directory (os error 2)");
            tracing::error!("Failed to send FUSE reply: Invalid argument (os error 22)");
            tracing::error!("the target fails: No such file or directory (os error 2)");
        });
        let log = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert_eq!(log.lines().count(), 2, "{log}");
        assert!(
            log.contains("Invalid argument") && log.contains("the target fails"),
            "{log}"
        );
    }
}
