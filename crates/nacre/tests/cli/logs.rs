//! Levels and format of the log of a running process.

use std::fs;

use crate::bench::wait_until;
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

    lctl(&["set_param", "nacre.log_level=off"]);
    lctl(&["set_param", "nacre.log_format=json"]);
    assert_eq!(
        lctl(&["set_param", "nacre.log_level=warn,nacre=info"]),
        "nacre.log_level=warn,nacre=info\n"
    );
    // The process logs this signal at level INFO.
    sh(&format!("kill -HUP {}", site.pid_in("d")));
    wait_until("no event in JSON", || log().contains("\n{"));
    let text = log();
    let line = text.lines().find(|line| line.starts_with('{')).expect("a line");
    let event: serde_json::Value = serde_json::from_str(line).expect("an object");
    assert_eq!(
        (&event["level"], &event["target"]),
        (&"INFO".into(), &"nacre::daemon".into())
    );
    assert!(
        event["message"].as_str().is_some_and(|m| m.contains("SIGHUP")),
        "{line}"
    );

    let error = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "nacre.log_level=chatty"]);
    assert!(error.contains("'chatty' is not a level"), "{error}");
    let error = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "nacre.log_format=xml"]);
    assert!(error.contains("text or json"), "{error}");
}

#[test]
fn process_pinned_to_one_cpu_prints_no_allocator_warning() {
    let nacre = env!("CARGO_BIN_EXE_nacre");
    let first_cpu = sh("taskset -pc $$ | sed 's/.*: //; s/[-,].*//'");
    let output =
        run(std::process::Command::new("taskset").args(["-c", first_cpu.trim(), nacre, "--version"]));
    assert!(output.ok && output.err.is_empty(), "{}", output.err);
}

#[test]
fn process_runs_although_its_log_cannot_be_written() {
    let mut site = Site::new();
    let dir = site.directory("d");
    let nacre = env!("CARGO_BIN_EXE_nacre");
    sh(&format!(
        "NACRE_LOG=info {nacre} up --foreground --no-mount --dir {dir} > /dev/null 2> /dev/full & pid=$!
         until test -e {dir}/run.json; do kill -0 $pid; sleep 0.01; done
         {nacre} down --dir {dir}; wait $pid"
    ));
}
