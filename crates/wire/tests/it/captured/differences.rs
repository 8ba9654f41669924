//! The table of expected differences. Each row has a reason and must be needed, otherwise the test
//! fails.
//!
//! A line is `CAPTURE MESSAGE FIELD : REASON`. The first three are patterns in which `*` matches
//! anything; a field is a path of `wire::format::leaves`. Empty lines and lines that start with `#`
//! are ignored. A line that starts with `?` describes a difference that depends on timing; it may
//! be unused.

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
    /// Parses a table.
    pub fn parse(text: &str) -> Table {
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'));
        let rows = lines.map(|line| {
            let (difference, reason) = line
                .split_once(" : ")
                .unwrap_or_else(|| panic!("no reason: {line}"));
            assert!(!reason.trim().is_empty(), "no reason: {line}");
            let sometimes = difference.starts_with('?');
            let difference = difference.trim_start_matches('?');
            let patterns: Vec<_> = difference.split_whitespace().map(str::to_owned).collect();
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

    /// Whether a row explains this difference; all such rows count as used.
    pub fn explains(&self, capture: &str, message: &str, field: &str) -> bool {
        let mut found = false;
        for row in &self.0 {
            let [of, at, path] = &row.patterns;
            if matches(of, capture) && matches(at, message) && matches(path, field) {
                row.used.set(row.used.get() + 1);
                found = true;
            }
        }
        found
    }

    /// The rows that explained nothing and should be removed.
    pub fn unused(&self) -> Vec<&str> {
        let unused = self.0.iter().filter(|r| r.used.get() == 0 && !r.sometimes);
        unused.map(|r| r.line.as_str()).collect()
    }

    /// How often each row was used.
    pub fn uses(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|r| (r.line.as_str(), r.used.get()))
    }
}

/// Whether the text matches the pattern, in which `*` matches anything.
pub fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|i| rest.is_char_boundary(i) && matches(tail, &rest[i..]))
        }),
    }
}
