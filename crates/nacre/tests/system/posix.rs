//! Third-party file system tests on a mount: pjdfstest (conformance with POSIX, case by case) and
//! fsx (random reads, writes, mappings, truncations and holes of one file, compared with a copy in
//! memory). `cargo xtask test` installs both.

#![allow(clippy::unwrap_used)]

use crate::fixture::{Site, sh};
use std::fs;
use std::path::PathBuf;

/// Cases of pjdfstest that fail, with the reason.
const EXPECTED_FAILURES: &[(&str, &str)] = &[];

/// Path of a program that cargo installed, or only its name.
fn installed_program(program: &str) -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    match home.map(|home| home.join("bin").join(program)) {
        Some(path) if path.is_file() => path.to_string_lossy().into_owned(),
        _ => program.to_owned(),
    }
}

#[test]
fn pjdfstest_passes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("!!! NOT TESTED: pjdfstest takes on other users, which needs root");
        return;
    }
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let (config, elsewhere) = (site.path_str("pjdfstest.toml"), site.path_str("elsewhere"));
    let expected: Vec<String> = EXPECTED_FAILURES
        .iter()
        .map(|(case, _)| format!("{case:?}"))
        .collect();
    fs::write(
        &config,
        format!(
            "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\
             [settings]\nnaptime = 1.1\nallow_remount = false\nexpected_failures = [{}]\n\
             [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
            expected.join(", ")
        ),
    )
    .unwrap();
    // Other users need access to the directories.
    sh(&format!(
        "chmod 755 {} && mkdir -m 777 {mount}/p {elsewhere}",
        site.path_str("")
    ));
    let output = sh(&format!(
        "RUST_BACKTRACE=0 {} -c {config} -p {mount}/p -s {elsewhere} 2>&1 || echo; true",
        installed_program("pjdfstest")
    ));
    let failed: Vec<&str> = output.lines().filter(|line| line.ends_with("FAILED")).collect();
    assert!(
        output.contains("Summary: 0 failed") && failed.is_empty(),
        "{failed:#?}\n{output}"
    );
}

/// Operations of a run of fsx. Even while several builds run, they take less than the time limit of
/// a command.
const OPERATIONS: u32 = 50_000;

/// Runs fsx with the given weights of its operations.
fn fsx(weights: &str, seed: u64) {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let config = site.path_str("fsx.toml");
    let text = format!("flen = 1048576\n[opsize]\nmax = 65536\n[weights]\n{weights}\n");
    fs::write(&config, text).unwrap();
    sh(&format!(
        "nacre() {{ {} \"$@\"; }}; nacre lfs setstripe -c 2 -S 64K {mount}/f",
        env!("CARGO_BIN_EXE_nacre")
    ));
    let output = sh(&format!(
        "{} -S {seed} -N {OPERATIONS} -f {config} -P {} {mount}/f 2>&1 || true",
        installed_program("fsx"),
        site.path_str("")
    ));
    // The end of the log has the last operations before a failure.
    let end = output.len().saturating_sub(4000);
    assert!(output.contains("A-OK"), "seed {seed}: {}", &output[end..]);
}

/// Weights common to all runs of fsx.
const WEIGHTS: &str = "read = 10\nwrite = 10\ntruncate = 3\nclose_open = 1\nfsync = 0.2\nfdatasync = 0.2\npunch_hole = 2\n\
                       posix_fallocate = 1\nsendfile = 1\ncopy_file_range = 1\ninvalidate = 1";

/// Weights of a run with mappings.
const MAPPINGS: &str = "mapread = 10\nmapwrite = 10";

#[test]
fn fsx_finds_no_difference() {
    fsx(&format!("{WEIGHTS}\nmapread = 0\nmapwrite = 0"), 1);
}

#[test]
fn fsx_with_mappings_finds_no_difference() {
    fsx(&format!("{WEIGHTS}\n{MAPPINGS}"), 2);
}

#[test]
fn fsx_with_mappings_and_another_seed_finds_no_difference() {
    fsx(&format!("{WEIGHTS}\n{MAPPINGS}"), 3);
}
