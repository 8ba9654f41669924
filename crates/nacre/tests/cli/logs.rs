//! Levels and format of the log of a running process.

use std::fs;

use crate::fixture::{Site, nacre_ok, nacre_refuses, run, sh};

#[test]
fn levels_and_format_of_the_log_change_at_run_time() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let dir = site.path_str("d");
    let lctl = |args: &[&str]| nacre_ok(&[&["lctl", "--dir", &dir], args].concat());
    let log = || fs::read_to_string(site.path("d").join("nacre.log")).expect("the log");
    assert!(lctl(&["get_param", "-n", "nacre.log_level"]).starts_with("info,"));
    assert_eq!(
        lctl(&["get_param", "nacre.log_format"]),
        "nacre.log_format=text\n"
    );
    assert!(!log().contains("DEBUG"), "{}", log());

    lctl(&["set_param", "nacre.log_format=json"]);
    assert_eq!(
        lctl(&["set_param", "nacre.log_level=warn,lnet=debug"]),
        "nacre.log_level=warn,lnet=debug\n"
    );
    let before = log().len();
    // Its own connection to an absent node is a debug message of LNet.
    let _ = crate::fixture::nacre(&["lctl", "--dir", &dir, "ping", "127.9.9.9@tcp", "1"]);
    let new = log().split_off(before);
    let line = new
        .lines()
        .find(|line| line.contains("DEBUG"))
        .unwrap_or_else(|| panic!("{new}"));
    let event: serde_json::Value = serde_json::from_str(line).expect("an object");
    assert_eq!(event["level"], "DEBUG");
    assert!(
        event["target"].as_str().is_some_and(|t| t.starts_with("lnet")),
        "{line}"
    );

    let error = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "nacre.log_level=debgu"]);
    assert!(error.contains("'debgu' is not a level"), "{error}");
    let error = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "nacre.log_format=xml"]);
    assert!(error.contains("text or json"), "{error}");
}

#[test]
fn process_on_some_cpus_prints_no_warning_of_the_allocator() {
    let nacre = env!("CARGO_BIN_EXE_nacre");
    let first_cpu = sh("taskset -pc $$ | sed 's/.*: //; s/[-,].*//'");
    let output =
        run(std::process::Command::new("taskset").args(["-c", first_cpu.trim(), nacre, "--version"]));
    assert!(output.ok && output.err.is_empty(), "{}", output.err);
}
