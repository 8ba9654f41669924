//! Rules for the crates that a simulated node runs: the simulator must know the node of each task,
//! and the same seed must repeat every choice.

use super::{assert_none, code, files};
use crate::stage::root;
use std::fs;

/// The crates, besides `cpt`.
const SIMULATED: [&str; 10] = [
    "lnet", "rpc", "ldlm", "osd", "mgc", "mgs", "mdt", "ost", "client", "node",
];

/// The sources of these crates, each with the path of its file; no tests.
fn sources(crates: &[&str]) -> Vec<(String, String)> {
    let of_crate = |name: &&str| files(&root().join("crates").join(name).join("src"), "rs");
    let paths = crates.iter().flat_map(of_crate);
    let paths = paths.filter(|path| !path.to_string_lossy().contains("tests"));
    let read = |path: std::path::PathBuf| (path.display().to_string(), fs::read_to_string(path).unwrap());
    paths.map(read).collect()
}

/// The lines of code for which `is_wrong` returns true. It gets a line and the following line.
fn wrong_lines(crates: &[&str], is_wrong: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in sources(crates) {
        let lines = code(&text);
        for (i, (number, line)) in lines.iter().enumerate() {
            let next = lines.get(i + 1).map_or("", |(_, next)| next.trim());
            if is_wrong(line.trim(), next) {
                wrong.push(format!("{path}:{number}: {}", line.trim()));
            }
        }
    }
    wrong
}

#[test]
fn tasks_are_spawned_through_cpt() {
    let calls = ["tokio::spawn", "tokio::task::spawn", "task::JoinSet"];
    let spawns = |line: &str, _: &str| calls.iter().any(|call| line.contains(call));
    assert_none("tasks to spawn through `cpt`", wrong_lines(&SIMULATED, spawns));
}

#[test]
fn selects_take_the_first_ready_branch() {
    // Otherwise tokio takes a random one, and no seed repeats its choice.
    let crates = [&["cpt"][..], &SIMULATED].concat();
    let is_random = |line: &str, next: &str| line.ends_with("select! {") && next != "biased;";
    assert_none(
        "`select!` without `biased;`: order the branches, stop signals first",
        wrong_lines(&crates, is_random),
    );
}

#[test]
fn tables_get_their_hash_function_from_cpt() {
    // The seeds of foldhash's own hash functions come from addresses and the time.
    let names_foldhash = |line: &str, _: &str| line.contains("foldhash");
    let crates = [&["fuse", "lst"][..], &SIMULATED].concat();
    assert_none(
        "tables whose seed is not from `cpt::HashState` or `cpt::HashSeed`",
        wrong_lines(&crates, names_foldhash),
    );
}
