//! Other people's file-system tests on a mount: pjdfstest (the rules of POSIX, case by case) and fsx (random reads, writes,
//! mappings, truncations and holes of one file, compared with memory after each). `cargo xtask test` installs both.

#![allow(clippy::unwrap_used)]

use crate::fixture::{Site, sh};
use std::fs;
use std::path::PathBuf;

/// Cases of pjdfstest that fail, and why that is right.
const EXPECTED: &[(&str, &str)] = &[];

/// A program that cargo has installed.
fn installed(program: &str) -> String {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    match home.map(|home| home.join("bin").join(program)) {
        Some(path) if path.is_file() => path.to_string_lossy().into_owned(),
        _ => program.to_owned(),
    }
}

#[test]
fn every_case_of_pjdfstest_passes_or_is_known_to_fail() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("!!! NOT TESTED: pjdfstest takes on other users, which needs root");
        return;
    }
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "2"]);
    let (config, elsewhere) = (site.at("pjdfstest.toml"), site.at("elsewhere"));
    let expected: Vec<String> = EXPECTED.iter().map(|(case, _)| format!("{case:?}")).collect();
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
    // Other users have to get there.
    sh(&format!(
        "chmod 755 {} && mkdir -m 777 {at}/p {elsewhere}",
        site.at("")
    ));
    let ran = sh(&format!(
        "RUST_BACKTRACE=0 {} -c {config} -p {at}/p -s {elsewhere} 2>&1 || echo; true",
        installed("pjdfstest")
    ));
    let failed: Vec<&str> = ran.lines().filter(|line| line.ends_with("FAILED")).collect();
    assert!(
        ran.contains("Summary: 0 failed") && failed.is_empty(),
        "{failed:#?}\n{ran}"
    );
}

/// Runs fsx with operations weighted like this.
fn fsx(weights: &str, seed: u64) {
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "2"]);
    let config = site.at("fsx.toml");
    let text = format!("flen = 1048576\n[opsize]\nmax = 65536\n[weights]\n{weights}\n");
    fs::write(&config, text).unwrap();
    sh(&format!(
        "nacre() {{ {} \"$@\"; }}; nacre lfs setstripe -c 2 -S 64K {at}/f",
        env!("CARGO_BIN_EXE_nacre")
    ));
    let ran = sh(&format!(
        "{} -S {seed} -N 100000 -f {config} -P {} {at}/f 2>&1 || true",
        installed("fsx"),
        site.at("")
    ));
    // The end of a failure's log tells what was done last.
    let end = ran.len().saturating_sub(4000);
    assert!(ran.contains("A-OK"), "seed {seed}: {}", &ran[end..]);
}

/// What both runs of fsx do.
const WEIGHTS: &str = "read = 10\nwrite = 10\ntruncate = 3\nclose_open = 1\nfsync = 0.2\nfdatasync = 0.2\npunch_hole = 2\n\
                       posix_fallocate = 1\nsendfile = 1\ncopy_file_range = 1\ninvalidate = 1";

#[test]
fn fsx_reads_what_it_wrote() {
    fsx(&format!("{WEIGHTS}\nmapread = 0\nmapwrite = 0"), 1);
}

#[test]
fn fsx_reads_what_it_wrote_and_mapped() {
    fsx(&format!("{WEIGHTS}\nmapread = 10\nmapwrite = 10"), 2);
}
