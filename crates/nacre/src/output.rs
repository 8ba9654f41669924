//! Writing to standard output, which may be a closed pipe.

use std::fmt::Arguments;
use std::io::Write;

/// Writes text to standard output. If that fails, mostly because the reader has closed the pipe
/// (`nacre status | head -1`), the process exits with status 0.
pub(crate) fn write(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if out.write_fmt(text).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Like [`write()`], with bytes that need not be text, such as paths.
pub(crate) fn write_bytes(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Prints a line on standard output.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use outln;

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
}
