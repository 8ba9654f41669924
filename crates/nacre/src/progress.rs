//! The progress of a long command, on standard error: a line with a bar on a terminal, and
//! separate lines elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use crate::output::{self, errln, printable};

/// Interval of updates on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of lines elsewhere.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
/// Characters of the bar.
const BAR_WIDTH: usize = 24;
/// Characters of a line, so that no usual terminal breaks it.
const LINE_WIDTH: usize = 79;
/// Moves to the start of the terminal's line and clears it.
pub(crate) const CLEAR_LINE: &str = "\r\x1b[K";

/// Shows the progress; clears the terminal's line when dropped.
pub(crate) struct ProgressLine {
    is_terminal: bool,
    /// The time of the last output.
    last: Instant,
    /// Whether the terminal shows a line.
    is_shown: bool,
}

impl ProgressLine {
    pub(crate) fn new() -> ProgressLine {
        ProgressLine {
            is_terminal: std::io::stderr().is_terminal(),
            last: Instant::now(),
            is_shown: false,
        }
    }

    /// Shows `done` of `total`, if the last output is long enough ago. Shows no bar if the total is
    /// unknown.
    pub(crate) fn update(&mut self, text: &str, done: u64, total: Option<u64>) {
        let interval = match self.is_terminal {
            true => TERMINAL_INTERVAL,
            false => LINE_INTERVAL,
        };
        if self.last.elapsed() >= interval {
            self.show(text, done, total);
        }
    }

    /// Shows `done` of `total` now: for a few long steps.
    pub(crate) fn show(&mut self, text: &str, done: u64, total: Option<u64>) {
        self.last = Instant::now();
        let with_bar = total.filter(|_| self.is_terminal);
        let line = line(text, done, total, with_bar.is_some());
        match self.is_terminal {
            true => output::write_err(format_args!("{CLEAR_LINE}{line}")),
            false => errln!("{line}"),
        }
        self.is_shown = self.is_terminal;
    }

    /// Clears the terminal's line, so that other output can follow.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            output::write_err(format_args!("{CLEAR_LINE}"));
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// The text of a line: `[=====>    ]  45%  9 of 20: text`.
fn line(text: &str, done: u64, total: Option<u64>, with_bar: bool) -> String {
    let Some(total) = total else {
        return cut(&format!("{done} {text}"));
    };
    // More work than expected can appear, as in a tree that grows.
    let done = done.min(total);
    let share = done as f64 / total.max(1) as f64;
    let numbers = format!("{done} of {total}: {text}");
    if !with_bar {
        return numbers;
    }
    let filled = (share * BAR_WIDTH as f64) as usize;
    let bar: String = (0..BAR_WIDTH)
        .map(|i| match i.cmp(&filled) {
            std::cmp::Ordering::Less => '=',
            std::cmp::Ordering::Equal => '>',
            std::cmp::Ordering::Greater => ' ',
        })
        .collect();
    cut(&format!("[{bar}] {:3.0}%  {numbers}", share * 100.0))
}

/// The first characters of a line, without control characters.
fn cut(text: &str) -> String {
    printable(text).chars().take(LINE_WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::{LINE_WIDTH, line};

    #[test]
    fn bar_shows_the_share_of_the_total() {
        assert_eq!(
            line("files", 5, Some(20), true),
            "[======>                 ]  25%  5 of 20: files"
        );
        assert_eq!(
            line("files", 21, Some(20), true),
            "[========================] 100%  20 of 20: files"
        );
        assert_eq!(
            line("files", 0, Some(0), true),
            "[>                       ]   0%  0 of 0: files"
        );
        assert_eq!(line("files", 5, Some(20), false), "5 of 20: files");
        assert_eq!(line("records", 7, None, false), "7 records");
    }

    #[test]
    fn line_on_a_terminal_is_short_and_printable() {
        let text = line(&"\n".repeat(200), 1, Some(2), true);
        assert_eq!(text.chars().count(), LINE_WIDTH);
        assert!(text.ends_with('?'), "{text}");
    }
}
