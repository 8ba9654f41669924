//! Checks of style as ordinary tests, so that reviewers need not check it. This module checks the
//! floors of crates, source files, links and citations, and the features of shared dependencies.
//! [`cycles`] checks that modules import each other in one direction, [`pure`] that pure code stays
//! pure, [`simulated`] that a simulator can control the other code of a node, [`words`] the words
//! of comments and pages, [`commits`] the subjects of commits.

#![allow(clippy::unwrap_used)]

mod commits;
mod cycles;
mod pure;
mod simulated;
mod words;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::stage::{cargo, root};

/// Every crate and its floor. A crate may use only crates of lower floors (ARCHITECTURE.md).
const FLOORS: [(&str, u32); 28] = [
    ("wire", 0),
    ("cpt", 0),
    ("params", 0),
    ("workspace-hack", 0),
    ("lnet", 1),
    ("capture", 1),
    ("rpc", 2),
    ("lst", 2),
    ("lst-console", 3),
    ("ldlm", 3),
    ("osd", 3),
    ("mgc", 4),
    ("mgs", 5),
    ("mdt", 5),
    ("ost", 5),
    ("client", 5),
    ("fuse", 6),
    ("fsck", 6),
    ("node", 6),
    ("sim", 7),
    ("posix", 7),
    ("bench", 7),
    ("nacre", 8),
    ("capi", 8),
    ("python", 8),
    ("xtask", 0),
    ("testbase", 4),
    ("testkit", 7),
];

/// Crates for tests. Other crates may use them only as dev-dependencies, whatever their floors.
const FOR_TESTS: [&str; 2] = ["testbase", "testkit"];

/// Maximum number of lines of a source file.
const LINES_MAX: usize = 600;

fn floor(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(n, _)| *n == name).map(|&(_, f)| f)
}

/// Files below `dir` with the extension, without build outputs, reference data (`shared`) and
/// hidden folders.
fn files(dir: &Path, ext: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && name != "shared" && !name.starts_with('.') {
            out.extend(files(&path, ext));
        } else if path.extension().is_some_and(|e| e == ext) {
            out.push(path);
        }
    }
    out
}

fn sources() -> Vec<(PathBuf, String)> {
    files(&root().join("crates"), "rs")
        .into_iter()
        .map(|p| (p.clone(), fs::read_to_string(&p).unwrap()))
        .collect()
}

/// The lines of a source file and their numbers, without comments and without items for tests
/// (`#[cfg(test)]`). The file must be formatted by rustfmt.
fn code(text: &str) -> Vec<(usize, &str)> {
    let mut out = Vec::new();
    // The indentation of the item for tests that a line belongs to.
    let mut tests: Option<usize> = None;
    for (i, line) in text.lines().enumerate() {
        let content = line.trim_start();
        let indentation = line.len() - content.len();
        if content.starts_with("//") || content.is_empty() {
            continue;
        }
        match tests {
            Some(outer) if indentation <= outer => {
                let ends = content.starts_with('}') || content.ends_with([';', ',', '}']);
                tests = (!ends).then_some(outer);
            }
            Some(_) => {}
            None if content.starts_with("#[cfg(test)]") => tests = Some(indentation),
            None => out.push((i + 1, line)),
        }
    }
    out
}

/// The workspace's crates that a manifest depends on; true: only tests depend on the crate.
fn dependencies(manifest: &str) -> Vec<(String, bool)> {
    let mut out = Vec::new();
    let (mut in_dependencies, mut for_tests) = (false, false);
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            in_dependencies = line.ends_with("dependencies]");
            for_tests = line.ends_with("dev-dependencies]");
        } else if in_dependencies && let Some((name, _)) = line.split_once(['.', '=', ' ']) {
            out.push((name.to_owned(), for_tests));
        }
    }
    out.retain(|(name, _)| floor(name).is_some());
    out
}

fn assert_none(violation: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{violation}:\n  {}", found.join("\n  "));
}

#[test]
fn crates_use_only_lower_floors() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let dir = entry.unwrap().path();
        let name = dir.file_name().unwrap().to_string_lossy().into_owned();
        let Some(own_floor) = floor(&name) else {
            wrong.push(format!("{name} has no floor in FLOORS"));
            continue;
        };
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        for (used, for_tests) in dependencies(&manifest) {
            let used_floor = floor(&used).unwrap();
            if FOR_TESTS.contains(&used.as_str()) && for_tests {
                continue;
            }
            if FOR_TESTS.contains(&used.as_str()) && !FOR_TESTS.contains(&name.as_str()) {
                wrong.push(format!("{name} uses {used}, which is only for tests"));
            }
            // Tests may use crates of the same floor, to have a whole file system; no crate may use
            // a higher floor.
            if used_floor > own_floor || (used_floor == own_floor && !for_tests) {
                wrong.push(format!(
                    "{name} (floor {own_floor}) uses {used} (floor {used_floor})"
                ));
            }
        }
    }
    assert_none("dependencies on floors that are not lower", wrong);
}

/// Crates that only tools and tests need.
const TOOLS: [&str; 3] = ["bench", "capture", "lst-console"];

/// Crates of servers and clients, and of the nodes that run them.
const SERVERS_AND_CLIENTS: [&str; 15] = [
    "lnet", "rpc", "lst", "ldlm", "osd", "mgc", "mgs", "mdt", "ost", "client", "fuse", "posix", "fsck",
    "params", "node",
];

#[test]
fn no_server_or_client_depends_on_a_tool() {
    let mut wrong = Vec::new();
    for server in SERVERS_AND_CLIENTS {
        let (mut pending, mut seen) = (vec![server.to_owned()], BTreeSet::new());
        while let Some(name) = pending.pop() {
            if TOOLS.contains(&name.as_str()) {
                wrong.push(format!("{server} needs {name}"));
            }
            let manifest = root().join("crates").join(&name).join("Cargo.toml");
            let used = dependencies(&fs::read_to_string(manifest).unwrap());
            let of_code = used.into_iter().filter(|(_, for_tests)| !for_tests);
            pending.extend(
                of_code
                    .map(|(used, _)| used)
                    .filter(|used| seen.insert(used.clone())),
            );
        }
    }
    assert_none("servers that depend on tools", wrong);
}

#[test]
fn crates_include_no_sources_of_other_crates() {
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        let crate_dir = |path: &Path| {
            let parts = path.strip_prefix(root().join("crates")).unwrap().components();
            parts.take(1).collect::<PathBuf>()
        };
        for line in text.lines().filter(|l| l.trim_start().starts_with("#[path = ")) {
            let included = path.parent().unwrap().join(line.split('"').nth(1).unwrap());
            if crate_dir(&included.canonicalize().unwrap()) != crate_dir(&path) {
                wrong.push(format!("{}: {line}", path.display()));
            }
        }
    }
    assert_none(
        "sources of other crates: share them in `testbase` or `testkit`",
        wrong,
    );
}

#[test]
fn files_are_short() {
    let long = sources().into_iter().filter_map(|(path, text)| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{} has {lines} lines", path.display()))
    });
    assert_none("files to split", long.collect());
}

#[test]
fn files_begin_with_module_documentation() {
    let bare = sources().into_iter().filter(|(_, text)| !text.starts_with("//!"));
    assert_none(
        "files without module documentation",
        bare.map(|(p, _)| p.display().to_string()).collect(),
    );
}

#[test]
fn sources_have_no_marks_of_unfinished_work() {
    // Each mark is split so that the test does not find it in this file.
    let marks = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
        concat!("#[ign", "ore"),
    ];
    let mut found = Vec::new();
    for (path, text) in sources() {
        for (i, line) in text.lines().enumerate() {
            if marks.iter().any(|m| line.contains(m)) {
                found.push(format!("{}:{}: {}", path.display(), i + 1, line.trim()));
            }
        }
    }
    assert_none("marks of unfinished work", found);
}

/// The fragment of a link to a heading, as Git hosts form it.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn links_of_pages_lead_to_existing_files_and_headings() {
    let mut dead = Vec::new();
    for page in files(root(), "md") {
        let text = fs::read_to_string(&page).unwrap();
        for (i, _) in text.match_indices("](") {
            let target = text[i + 2..].split(')').next().unwrap_or_default();
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let to = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let has = |heading: &str| headings(&to).iter().any(|h| anchor(h) == heading);
            if !to.exists() || !heading.is_empty() && !has(heading) {
                dead.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert_none("dead links", dead);
}

/// The headings of a page.
fn headings(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).unwrap();
    let lines = text.lines().filter(|l| l.starts_with('#'));
    lines
        .map(|l| l.trim_start_matches('#').trim().to_owned())
        .collect()
}

#[test]
fn comments_cite_headings_that_exist() {
    let page = "docs/protocol.md";
    let headings = headings(&root().join(page));
    let mut wrong = Vec::new();
    for (path, text) in sources() {
        // A citation may continue in the next line of the comment.
        let lines = text
            .lines()
            .map(|l| l.trim_start().trim_start_matches(['/', '!']).trim());
        let text = lines.collect::<Vec<_>>().join(" ");
        for (i, cited) in text.match_indices(&format!("{page}, \"")) {
            let heading = text[i + cited.len()..].split('"').next().unwrap_or_default();
            if !headings.contains(heading) {
                wrong.push(format!("{}: {page} has no heading \"{heading}\"", path.display()));
            }
        }
    }
    assert_none("citations of missing headings", wrong);
}

/// The packages, with their features, that cargo builds for tests of the selected crates.
fn features(selected: &[&str]) -> BTreeSet<String> {
    let mut tree = cargo(["tree", "--locked", "--offline", "--edges", "normal,build,dev"]);
    let output = tree
        .args(["--prefix", "none", "--format", "{p} [{f}]"])
        .args(selected)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let packages = text.lines().map(|l| l.trim_end_matches(" (*)"));
    packages.map(|l| l.replace(" (proc-macro)", "")).collect()
}

#[test]
fn test_of_one_crate_recompiles_no_dependency() {
    let all = features(&["--workspace"]);
    let mut again = Vec::new();
    for (name, _) in FLOORS {
        for package in features(&["-p", name]).difference(&all) {
            again.push(format!("{name}: {package}"));
        }
    }
    assert_none(
        "features that differ from `cargo test --workspace`: add the missing ones to crates/workspace-hack/Cargo.toml",
        again,
    );
}
