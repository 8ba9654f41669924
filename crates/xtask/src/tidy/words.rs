//! Plain words, and short lines: CONTRIBUTING.md, "Plain words".

use std::fs;
use std::path::Path;

use super::{assert_none, files};
use crate::stage::root;

/// Words, and how many of a thousand lines may have one of them.
struct Limit {
    words: &'static [&'static str],
    per_thousand: usize,
}

/// Maximum length of comment lines, characters; rows of tables may be longer.
const COLUMNS_MAX: usize = 100;

/// The limits, which comments and pages must each keep.
const LIMITS: [Limit; 3] = [
    Limit {
        words: &["who", "whoever", "whom"],
        per_thousand: 2,
    },
    Limit {
        words: &["what", "whatever"],
        per_thousand: 5,
    },
    Limit {
        words: &["he", "his", "him"],
        per_thousand: 0,
    },
];

/// A line of text, and where it is.
#[derive(Clone)]
struct Line {
    place: String,
    text: String,
}

impl Line {
    fn new(path: &Path, index: usize, text: &str) -> Line {
        let path = path.strip_prefix(root()).unwrap_or(path);
        Line {
            place: format!("{}:{}", path.display(), index + 1),
            text: text.to_owned(),
        }
    }

    fn display(&self) -> String {
        format!("{}: {}", self.place, self.text.trim())
    }

    /// The words, without inline code.
    fn words(&self) -> Vec<&str> {
        let outside_code = self.text.split('`').step_by(2);
        let words =
            outside_code.flat_map(|t| t.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '_'));
        words.filter(|w| !w.is_empty()).collect()
    }

    fn has_one_of(&self, words: &[&str]) -> bool {
        self.words()
            .iter()
            .any(|w| words.contains(&w.to_lowercase().as_str()))
    }
}

/// All lines of comments of the sources.
fn comments() -> Vec<Line> {
    let mut out = Vec::new();
    for top in ["crates", "fuzz"] {
        for path in files(&root().join(top), "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let lines = text.lines().enumerate();
            let comments = lines.filter(|(_, l)| l.trim_start().starts_with("//"));
            out.extend(comments.map(|(i, l)| Line::new(&path, i, l)));
        }
    }
    out
}

/// All lines of the pages, without code.
fn pages() -> Vec<Line> {
    let mut out = Vec::new();
    for path in files(root(), "md") {
        let text = fs::read_to_string(&path).unwrap();
        let mut in_code = false;
        for (i, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            } else if !in_code && !line.trim().is_empty() {
                out.push(Line::new(&path, i, line));
            }
        }
    }
    out
}

impl Limit {
    /// The lines with these words, if there are too many.
    fn violations(&self, lines: &[Line]) -> Vec<String> {
        let found: Vec<&Line> = lines.iter().filter(|l| l.has_one_of(self.words)).collect();
        if found.len() * 1000 <= lines.len() * self.per_thousand {
            return Vec::new();
        }
        let limit = format!(
            "{}: {} of {} lines, at most {} of a thousand",
            self.words.join(", "),
            found.len(),
            lines.len(),
            self.per_thousand
        );
        std::iter::once(limit)
            .chain(found.iter().map(|l| l.display()))
            .collect()
    }
}

fn assert_within_limits(lines: &[Line]) {
    let violations = LIMITS.iter().flat_map(|l| l.violations(lines));
    assert_none("name the actor, or the thing", violations.collect());
}

#[test]
fn comments_name_the_actor() {
    let comments = comments();
    assert_within_limits(&comments);
    let possessive = Limit {
        words: &["who", "whoever", "whom", "whose"],
        per_thousand: 2,
    };
    assert_none("name the actor, or the thing", possessive.violations(&comments));
}

#[test]
fn pages_name_the_actor() {
    assert_within_limits(&pages());
}

#[test]
fn sentences_have_nouns_as_subjects() {
    let clauses = ["Who", "Whoever", "Whom", "Whose", "What", "Whatever"];
    let begins = |l: &&Line| l.words().iter().any(|w| clauses.contains(w)) && !l.text.contains('?');
    let lines = [comments(), pages()].concat();
    let found = lines.iter().filter(begins).map(Line::display).collect();
    assert_none("sentences whose subject is a clause", found);
}

#[test]
fn comments_are_narrow() {
    let comments = comments();
    let is_table = |l: &Line| {
        l.text
            .trim_start()
            .trim_start_matches(['/', '!', ' '])
            .starts_with('|')
    };
    let wide = comments
        .iter()
        .filter(|l| l.text.chars().count() > COLUMNS_MAX && !is_table(l));
    assert_none("comment lines to wrap", wide.map(Line::display).collect());
}

#[test]
fn words_are_found_outside_of_code() {
    let line = |text| Line::new(Path::new("a.rs"), 0, text);
    assert!(line("// notify whoever waits").has_one_of(&["whoever"]));
    assert!(!line("// `what` and `who`").has_one_of(&["what", "who"]));
    assert!(!line("// somewhat, the whole").has_one_of(&["what", "who"]));
}
