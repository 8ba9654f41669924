//! Writing to standard output and standard error, which may be closed pipes.

use std::fmt::Arguments;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Writes text to standard output, as [`write_bytes`] does.
pub(crate) fn write(text: Arguments<'_>) {
    write_bytes(text.to_string().as_bytes());
}

/// The flag that makes the command clean up and end ([`crate::interrupt`]), if it has one.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Makes a closed pipe set this flag instead of ending the process: the command has to clean up.
pub(crate) fn stop_at_closed_pipe(stop: &Arc<AtomicBool>) {
    let _ = STOP.set(stop.clone());
}

/// Writes bytes to standard output. If the reader has closed the pipe (`nacre status | head -1`),
/// the process exits with status 0, or its work is stopped ([`stop_at_closed_pipe`]). After another
/// error, such as a full disk, it exits with status 1.
pub(crate) fn write_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    match (out.write_all(bytes).and_then(|()| out.flush()), STOP.get()) {
        (Ok(()), _) => {}
        (Err(e), Some(stop)) if e.kind() == ErrorKind::BrokenPipe => stop.store(true, Ordering::Relaxed),
        (Err(e), None) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        (Err(e), _) => {
            errln!("nacre: cannot write the output: {e}");
            std::process::exit(1);
        }
    }
}

/// Writes text to standard error. Ignores a failure, because there is no other place for a report.
pub(crate) fn write_err(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(text);
}

/// Prints a line on standard error.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::write_err(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use errln;

/// Prints a line on standard output.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use outln;

/// Whether text for this stream may have colours: on a terminal, unless `NO_COLOR` is set.
pub(crate) fn has_color(stream: &impl IsTerminal) -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !no_color
}

/// A path as a word of a shell command, in quotes where needed.
pub(crate) fn shell_word(path: &Path) -> String {
    let path = path.to_string_lossy();
    // Only a NUL byte cannot be quoted, and no path contains one.
    shlex::try_quote(&path).map_or_else(|_| path.to_string(), |quoted| quoted.into_owned())
}

/// The text with a question mark for each control character: other users or clients supply it, and
/// it must not control the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

/// An error and its causes in one line, without causes that the text already contains.
pub(crate) fn describe(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !out.contains(&cause) {
            if !out.is_empty() {
                out.push_str(": ");
            }
            out.push_str(&cause);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_cause_is_printed_once() {
        let error = anyhow::anyhow!("port 988 is taken")
            .context("cannot start: port 988 is taken")
            .context("serve");
        assert_eq!(describe(&error), "serve: cannot start: port 988 is taken");
    }

    #[test]
    fn printable_text_has_no_control_characters() {
        assert_eq!(printable("a\x1b[2J"), "a?[2J");
    }
}
