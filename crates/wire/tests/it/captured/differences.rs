//! The table of expected differences: each with its reason, each used, or the test fails.
//!
//! A line is `CAPTURE MESSAGE FIELD : REASON`. The first three may hold `*`, which stands for anything; a field is a path
//! as `wire::format::leaves` names them. Empty lines and lines that begin with `#` say nothing. A line that begins with `?`
//! is about what comes and goes with the time: it may go unused.

use std::cell::Cell;

/// One expected difference.
#[derive(Debug)]
struct Row {
    line: String,
    patterns: [String; 3],
    used: Cell<usize>,
    sometimes: bool,
}

/// The whole table.
#[derive(Debug)]
pub struct Table(Vec<Row>);

impl Table {
    /// Reads a table.
    pub fn parse(text: &str) -> Table {
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let rows = lines.map(|line| {
            let (what, reason) = line
                .split_once(" : ")
                .unwrap_or_else(|| panic!("no reason: {line}"));
            assert!(!reason.trim().is_empty(), "no reason: {line}");
            let sometimes = what.starts_with('?');
            let what = what.trim_start_matches('?');
            let patterns: Vec<_> = what.split_whitespace().map(str::to_owned).collect();
            let patterns = patterns
                .try_into()
                .unwrap_or_else(|_| panic!("not capture, message, field: {line}"));
            Row {
                line: line.to_owned(),
                patterns,
                used: Cell::new(0),
                sometimes,
            }
        });
        Table(rows.collect())
    }

    /// Whether a row explains this difference; every row that does counts as used.
    pub fn explains(&self, capture: &str, message: &str, field: &str) -> bool {
        let mut found = false;
        for row in &self.0 {
            let [of, at, what] = &row.patterns;
            if matches(of, capture) && matches(at, message) && matches(what, field) {
                row.used.set(row.used.get() + 1);
                found = true;
            }
        }
        found
    }

    /// The rows that explained nothing: they are to be taken out.
    pub fn unused(&self) -> Vec<&str> {
        let unused = self.0.iter().filter(|r| r.used.get() == 0 && !r.sometimes);
        unused.map(|r| r.line.as_str()).collect()
    }

    /// How often each row was needed.
    pub fn uses(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|r| (r.line.as_str(), r.used.get()))
    }
}

/// Whether the text is as the pattern says, in which `*` stands for anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|i| rest.is_char_boundary(i) && matches(tail, &rest[i..]))
        }),
    }
}
