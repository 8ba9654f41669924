//! Writing to standard output, which may be a pipe that nobody reads any more.

use std::fmt::Arguments;
use std::io::Write;

/// Writes text; when nobody wants it (`nacre status | head -1`), the command has done its work.
pub(crate) fn write(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if out.write_fmt(text).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// A line on standard output.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}
pub(crate) use say;
