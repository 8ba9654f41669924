//! Levels and format of the log, which the parameters `nacre.log_level` and `nacre.log_format`
//! change while the process runs.

use std::fmt::{self, Debug};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};

/// Whether the log has JSON objects instead of text.
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// The levels of this process's log.
static LEVELS: OnceLock<Levels> = OnceLock::new();

/// The present levels, and how to replace them.
struct Levels {
    text: Mutex<String>,
    replace: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

/// Makes the levels of the log changeable. `text` are the present levels.
pub(super) fn set_levels_handle<S: 'static>(text: String, handle: Handle<EnvFilter, S>) {
    let replace = Box::new(move |filter| handle.reload(filter));
    let text = Mutex::new(text);
    // The process starts its log once.
    let _ = LEVELS.set(Levels { text, replace });
}

/// The levels of the log; empty before the log has started.
pub(crate) fn levels() -> String {
    LEVELS
        .get()
        .map(|levels| levels.text.lock().clone())
        .unwrap_or_default()
}

/// Sets the levels of the log.
pub(crate) fn set_levels(text: &str) -> Result<(), String> {
    let text = text.trim();
    let filter = parse_levels(text)?;
    let levels = LEVELS.get().ok_or("this process has no log")?;
    (levels.replace)(filter).map_err(|e| e.to_string())?;
    text.clone_into(&mut levels.text.lock());
    Ok(())
}

/// Parses levels such as `debug` or `info,rpc=debug`. Unlike [`EnvFilter`], refuses a word that is
/// not a level.
pub(super) fn parse_levels(text: &str) -> Result<EnvFilter, String> {
    for part in text.split(',') {
        let (target, level) = part.rsplit_once('=').unwrap_or(("", part));
        let is_target = target
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':');
        if !is_target {
            return Err(format!("'{target}' is not the name of a crate or module"));
        }
        // `LevelFilter` also parses a number, and an empty word.
        let is_name = level.parse::<LevelFilter>().is_ok() && level.starts_with(|c: char| c.is_alphabetic());
        if !is_name {
            return Err(format!(
                "'{level}' is not a level: use off, error, warn, info, debug or trace, alone or as CRATE=LEVEL, separated by commas"
            ));
        }
    }
    EnvFilter::try_new(text).map_err(|e| e.to_string())
}

/// The format of the log.
pub(crate) fn format_name() -> &'static str {
    match IS_JSON.load(Ordering::Relaxed) {
        true => "json",
        false => "text",
    }
}

/// Sets the format of the log.
pub(crate) fn set_format(name: &str) -> Result<(), String> {
    let is_json = match name.trim() {
        "json" => true,
        "text" => false,
        _ => return Err("expected text or json".to_owned()),
    };
    IS_JSON.store(is_json, Ordering::Relaxed);
    Ok(())
}

/// Formats events as JSON objects, one on each line, or by the inner format for text.
pub(super) struct SwitchedFormat<T>(pub(super) T);

impl<T, S, N> FormatEvent<S, N> for SwitchedFormat<T>
where
    T: FormatEvent<S, N>,
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        match IS_JSON.load(Ordering::Relaxed) {
            true => writeln!(writer, "{}", json_object(event)?),
            false => self.0.format_event(context, writer, event),
        }
    }
}

/// Time, level, crate or module, message and fields of an event.
fn json_object(event: &Event<'_>) -> Result<Value, fmt::Error> {
    let mut time = String::new();
    tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut time))?;
    let mut fields = Fields(Map::new());
    event.record(&mut fields);
    let Fields(mut object) = fields;
    let meta = event.metadata();
    object.insert("time".to_owned(), time.into());
    object.insert("level".to_owned(), meta.level().as_str().into());
    object.insert("target".to_owned(), meta.target().into());
    Ok(Value::Object(object))
}

/// The fields of an event, with the message.
struct Fields(Map<String, Value>);

impl Fields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn unknown_levels_are_refused() {
        for good in [
            "info",
            "off",
            "DEBUG",
            "info,rpc=debug,lnet::tcp=trace",
            "rpc=off",
        ] {
            assert!(parse_levels(good).is_ok(), "{good}");
        }
        for bad in ["", "chatty", "info,", "rpc=loud", "3"] {
            let error = parse_levels(bad).unwrap_err();
            assert!(error.contains("is not a level"), "{bad}: {error}");
        }
        let error = parse_levels("info;rpc=debug").unwrap_err();
        assert!(error.contains("'info;rpc' is not the name"), "{error}");
    }

    #[test]
    fn unknown_format_is_refused() {
        assert!(set_format("xml").is_err());
    }
}
