//! The table of expected differences. Each row has a reason. A test fails if a row without `?`
//! explains no difference.
//!
//! A line is `CAPTURE MESSAGE FIELD : REASON`. The first three are patterns in which `*` matches
//! anything; a field is a path of `wire::format::leaves`. The parser ignores empty lines and lines
//! that start with `#`. A line that starts with `?` describes a difference that depends on timing;
//! it may explain none.

use std::cell::Cell;

/// One expected difference.
#[derive(Debug)]
struct Row {
    line: String,
    /// The patterns of capture, message and field.
    patterns: [String; 3],
    /// Number of differences that the row has explained.
    uses: Cell<usize>,
    /// Whether the row may explain no difference.
    optional: bool,
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
            let optional = difference.starts_with('?');
            let difference = difference.trim_start_matches('?');
            let patterns: Vec<_> = difference.split_whitespace().map(str::to_owned).collect();
            let patterns = patterns
                .try_into()
                .unwrap_or_else(|_| panic!("not capture, message, field: {line}"));
            Row {
                line: line.to_owned(),
                patterns,
                uses: Cell::new(0),
                optional,
            }
        });
        Table(rows.collect())
    }

    /// Whether a row explains this difference. Counts a use of each row that does.
    pub fn explains(&self, capture: &str, message: &str, field: &str) -> bool {
        let mut found = false;
        for row in &self.0 {
            let [in_capture, in_message, in_field] = &row.patterns;
            if matches(in_capture, capture) && matches(in_message, message) && matches(in_field, field) {
                row.uses.set(row.uses.get() + 1);
                found = true;
            }
        }
        found
    }

    /// The rows without `?` that explained no difference: they should be removed.
    pub fn unused(&self) -> Vec<&str> {
        let unused = self.0.iter().filter(|r| r.uses.get() == 0 && !r.optional);
        unused.map(|r| r.line.as_str()).collect()
    }

    /// Each row and the number of differences that it explained.
    pub fn uses(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|r| (r.line.as_str(), r.uses.get()))
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
