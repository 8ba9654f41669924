//! The spelling of sources and pages. The spell checker accepts the terms of the glossary.

use std::fs;
use std::process::Command;

use crate::stage::{Stage, root};

/// Checks for common misspellings; `.codespellrc` names the files to check and further words.
pub(crate) fn check() -> Result<(), String> {
    let words = root().join("target/glossary.txt");
    let glossary = root().join("docs/glossary.md");
    let text = fs::read_to_string(&glossary).map_err(|e| format!("!!! {}: {e}", glossary.display()))?;
    fs::create_dir_all(root().join("target"))
        .and_then(|()| fs::write(&words, terms(&text)))
        .map_err(|e| format!("!!! {}: {e}", words.display()))?;
    let mut codespell = Command::new("codespell");
    codespell.arg("--ignore-words").arg(&words).current_dir(root());
    Stage::new("spelling").run(codespell)
}

/// The words of the first column of all tables, one per line.
fn terms(glossary: &str) -> String {
    let rows = glossary.lines().filter_map(|l| l.strip_prefix("| "));
    let columns = rows.filter_map(|row| row.split(" |").next());
    let words = columns.flat_map(|c| c.split(|c: char| !c.is_alphanumeric()));
    let mut out = String::new();
    for word in words.filter(|w| w.len() > 1) {
        out.push_str(&word.to_lowercase());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn terms_are_the_first_column() {
        let page = "# Glossary\n\n| term | meaning |\n|---|---|\n| MDT, MDS | A target. |\n| inode bits | Parts. |\n";
        assert_eq!(super::terms(page), "term\nmdt\nmds\ninode\nbits\n");
    }
}
