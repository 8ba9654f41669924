//! The log: its destination, its levels, and a filter that drops one message.

mod runtime;

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::daemon;
use crate::output::{self, errln};
use crate::service_manager::{JournalStream, logs_to_journal};
use runtime::{SwitchedFormat, parse_levels, set_levels_handle};
pub(crate) use runtime::{format_name, levels, set_format, set_levels};

/// The levels in the background and in the journal, without `NACRE_LOG`. Fuser's warnings about
/// unsupported requests are off; the manual lists those requests.
const BACKGROUND_LEVELS: &str = "info,fjall=warn,lsm_tree=warn,fuser=error";
/// The levels in the foreground.
const FOREGROUND_LEVELS: &str = "warn";

/// Starts logging to standard error, which in the background is the log file. `NACRE_LOG` sets the
/// levels, `NACRE_LOG_FORMAT` the format.
pub(crate) fn start() {
    let to_journal = logs_to_journal();
    let default = match daemon::is_child() || to_journal {
        true => BACKGROUND_LEVELS,
        false => FOREGROUND_LEVELS,
    };
    let chosen = std::env::var("NACRE_LOG").ok();
    let parsed = chosen.as_deref().map(parse_levels);
    let (text, filter) = match (&chosen, parsed) {
        (Some(text), Some(Ok(filter))) => (text.clone(), filter),
        (_, rejected) => {
            if let Some(Err(why)) = rejected {
                errln!("nacre: NACRE_LOG is ignored: {why}");
            }
            (default.to_owned(), EnvFilter::new(default))
        }
    };
    if let Ok(format) = std::env::var("NACRE_LOG_FORMAT")
        && let Err(why) = set_format(&format)
    {
        errln!("nacre: NACRE_LOG_FORMAT is ignored: {why}");
    }
    let writer = match to_journal {
        true => BoxMakeWriter::new(JournalStream),
        false => BoxMakeWriter::new(std::io::stderr),
    };
    let log = tracing_subscriber::fmt()
        .with_writer(writer)
        // Otherwise tracing-subscriber reports a failed write on standard error, and panics if
        // that report fails too.
        .log_internal_errors(false)
        .with_ansi(!daemon::is_child() && output::has_color(&std::io::stderr()))
        .map_event_format(|text| SwitchedFormat(TextFormat::new(text, to_journal)))
        .with_env_filter(filter)
        .with_filter_reloading();
    let levels_handle = log.reload_handle();
    if log.finish().with(InterruptedReplyFilter).try_init().is_ok() {
        set_levels_handle(text, levels_handle);
    }
}

/// The format of a log with lines of text, not JSON.
enum TextFormat {
    File(Format),
    /// The journal adds the time and shows the level.
    Journal(Format<Full, ()>),
}

impl TextFormat {
    fn new(format: Format, to_journal: bool) -> TextFormat {
        match to_journal {
            true => TextFormat::Journal(format.without_time().with_level(false)),
            false => TextFormat::File(format),
        }
    }
}

impl<S, N> FormatEvent<S, N> for TextFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match self {
            TextFormat::File(format) => format.format_event(context, writer, event),
            TextFormat::Journal(format) => format.format_event(context, writer, event),
        }
    }
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
    fn event_is_an_object_in_json() {
        let buffer = LogBuffer::default();
        let writer = buffer.clone();
        let log = tracing_subscriber::fmt()
            .map_event_format(SwitchedFormat)
            .with_writer(move || writer.clone())
            .finish();
        let before = format_name();
        tracing::subscriber::with_default(log, || {
            set_format("json").unwrap();
            tracing::info!(nid = "10.0.0.1@tcp", count = 3, "connected \"again\"");
            set_format("text").unwrap();
            tracing::info!("text");
        });
        set_format(before).unwrap();
        let log = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let (first, second) = log.split_once('\n').unwrap();
        let object: serde_json::Value = serde_json::from_str(first).unwrap();
        assert_eq!(object["message"], "connected \"again\"");
        assert_eq!((&object["level"], &object["count"]), (&"INFO".into(), &3.into()));
        assert_eq!(object["nid"], "10.0.0.1@tcp");
        assert!(object["time"].as_str().unwrap().ends_with('Z'), "{first}");
        assert!(second.contains("INFO") && second.contains("text"), "{second}");
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
