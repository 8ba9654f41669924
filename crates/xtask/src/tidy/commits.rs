//! Subjects of commits: CONTRIBUTING.md, "Commits".

use std::process::Command;

use super::assert_none;
use crate::stage::root;

/// Commits from this moment on follow the rule.
const SINCE: &str = "2026-11-24T18:00:00+00:00";
/// Maximum length of a subject, characters.
const SUBJECT_MAX: usize = 72;

/// Whether the subject has the form `area: imperative`: an area of lower-case words, and a rest
/// without a full stop, in at most 72 characters.
fn is_valid(subject: &str) -> bool {
    let Some((area, rest)) = subject.split_once(": ") else {
        return false;
    };
    let is_area_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_,/ ".contains(c);
    subject.chars().count() <= SUBJECT_MAX
        && area.starts_with(|c: char| c.is_ascii_lowercase())
        && area.chars().all(is_area_char)
        && !rest.trim().is_empty()
        && !rest.ends_with('.')
}

/// Subjects since [`SINCE`], as far as this clone has history.
fn subjects() -> Result<String, String> {
    let mut git = Command::new("git");
    git.args(["log", "--no-merges", "--format=%h %s", "--since", SINCE])
        .current_dir(root());
    let output = git.output().map_err(|e| format!("cannot run git: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn subjects_of_commits_have_an_area_and_are_short() {
    let subjects = match subjects() {
        Ok(subjects) => subjects,
        Err(error) => {
            println!("!!! commit subjects NOT CHECKED: {error}");
            assert!(
                std::env::var_os("CI").is_none(),
                "CI needs the history since {SINCE}: {error}"
            );
            return;
        }
    };
    let invalid = subjects
        .lines()
        .filter(|l| !l.split_once(' ').is_some_and(|(_, subject)| is_valid(subject)));
    assert_none(
        "commit subjects that are not `area: imperative`, or longer than 72 characters",
        invalid.map(str::to_owned).collect(),
    );
}

#[test]
fn subjects_without_an_area_or_too_long_are_invalid() {
    assert!(is_valid("rpc: evict clients that owe an answer"));
    assert!(is_valid("client, mdt: keep the parent's lock"));
    assert!(!is_valid("Evict clients"));
    assert!(!is_valid("rpc:evict clients"));
    assert!(!is_valid("Rpc: evict clients"));
    assert!(!is_valid(&format!("rpc: {}", "x".repeat(68))));
}
