//! Long commands: progress, interruption and reports.

use std::fs;
use std::process::{Command, Stdio};

use crate::bench::{processes_in, wait_until};
use crate::fixture::{Site, nacre, nacre_ok, sh};

#[test]
fn interrupted_demonstration_removes_its_file_system() {
    let site = Site::new();
    let temp = site.path_str("temp");
    let tree = site.path_str("tree");
    sh(&format!(
        "mkdir {temp} {tree}; cd {tree}; for i in $(seq 3000); do echo $i > f$i; done"
    ));
    let child = Command::new(env!("CARGO_BIN_EXE_nacre"))
        .args(["demo", &tree])
        .env("TMPDIR", &temp)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nacre runs");
    wait_until("no copy", || {
        !sh(&format!(
            "ls {temp}/nacre-demo-*/mnt/tree0 2>/dev/null | head -1 || true"
        ))
        .is_empty()
    });
    sh(&format!("kill -INT {}", child.id()));
    let output = child.wait_with_output().expect("ended");
    assert_eq!(output.status.code(), Some(130));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("interrupted; the temporary file system was removed"),
        "{error}"
    );
    assert_eq!(fs::read_dir(&temp).expect("the directory").count(), 0);
    assert!(processes_in(&temp).is_empty());
}

#[test]
fn demonstration_without_reader_removes_its_file_system() {
    let site = Site::new();
    let (temp, tree) = (site.path_str("temp"), site.path_str("tree"));
    sh(&format!("mkdir {temp} {tree}; echo 1 > {tree}/f"));
    sh(&format!(
        "TMPDIR={temp} {} demo {tree} 2> /dev/null | head -1 || true",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert_eq!(fs::read_dir(&temp).expect("the directory").count(), 0);
    assert!(processes_in(&temp).is_empty());
}

#[test]
fn comparison_skips_a_pass_through_file_system_that_does_not_mount() {
    let site = Site::new();
    let (bin, dir) = (site.path_str("bin"), site.path_str("dir"));
    sh(&format!(
        "mkdir {bin} {dir}; printf '#!/bin/sh\\nexit 1\\n' > {bin}/bindfs; chmod +x {bin}/bindfs"
    ));
    let out = sh(&format!(
        "PATH={bin}:$PATH {} bench --dir {dir} --files 2 --megabytes 1 --runs 1 --json 2> {dir}/err",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert!(out.contains("nacre library") && !out.contains("bindfs"), "{out}");
    let error = sh(&format!("cat {dir}/err"));
    assert!(
        error.contains("bindfs did not mount (exit status: 1): skipping"),
        "{error}"
    );
}

#[test]
fn demonstration_and_fsx_report_in_json() {
    let mut site = Site::new();
    let tree = site.path_str("tree");
    sh(&format!("mkdir {tree}; echo 1 > {tree}/f"));
    let out = nacre_ok(&["demo", "--json", &tree]);
    let steps: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let steps = steps.as_array().expect("a list");
    let copy = steps.iter().find(|s| s["step"] == "copy in").expect("a step");
    assert_eq!((&copy["count"], &copy["bytes"]), (&2.into(), &2.into()));
    assert!(steps.iter().any(|s| s["step"] == "unlink"), "{out}");

    let mount = site.up("d", &[]);
    let out = nacre_ok(&["bench", "fsx", "--ops", "50", "--json", &format!("{mount}/f")]);
    let report: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (&report["operations"], report["failure"].is_null()),
        (&50.into(), true)
    );
}

#[test]
fn failed_measurement_prints_no_table() {
    let result = nacre(&["bench", "mdtest", "-n", "5", "-d", "/proc/missing"]);
    assert!(!result.ok && !result.out.contains("SUMMARY"), "{}", result.out);
    assert!(
        result.err.contains("mkdir of the directory itself failed"),
        "{}",
        result.err
    );
}
