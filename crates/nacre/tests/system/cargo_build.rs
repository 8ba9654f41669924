//! Cargo builds a crate of this project in the mount: programs that are written and run there, files mapped into memory,
//! hard links, locks, and times that must be right.

use crate::file_system::Shape;
use crate::fixture::{Ended, run, sh};
use crate::life::{Place, Workload, live};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const WORKLOAD: Workload = Workload { put, change, check };

/// A program, not an example: that would need all that tests depend on.
const BUILD: [&str; 3] = ["build", "-p", "wire"];

/// Runs cargo in the copy; its registry is the one that this test was built from.
fn cargo(dir: &str, args: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO"));
    command
        .args(args)
        .arg("--offline")
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", format!("{dir}/target"));
    // Whatever this test was built with does not hold there.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    let Ended { ok, out, err, .. } = run(&mut command);
    assert!(ok, "cargo {args:?}: {out}{err}");
    out + &err
}

fn put(place: &Place) {
    let dir = &place.dir;
    sh(&format!(
        "mkdir {dir}/crates && cp -a {ROOT}/Cargo.toml {ROOT}/Cargo.lock {dir} && cp -a {ROOT}/crates/wire {ROOT}/crates/workspace-hack {dir}/crates && \
         mkdir {dir}/crates/wire/src/bin && \
         echo 'fn main() {{ println!(\"{{}}\", wire::Nid::default()); }}' > {dir}/crates/wire/src/bin/one.rs"
    ));
    let built = cargo(dir, &BUILD);
    assert!(built.contains("Compiling wire "), "{built}");
}

/// Only what was changed is built again.
fn change(place: &Place) {
    let dir = &place.dir;
    // At once: in the second of the last build, most likely.
    sh(&format!(
        "echo 'fn main() {{ println!(\"changed\"); }}' > {dir}/crates/wire/src/bin/one.rs"
    ));
    let built = cargo(dir, &BUILD);
    assert_eq!(built.matches("Compiling").count(), 1, "{built}");
    assert_eq!(sh(&format!("{dir}/target/debug/one")), "changed\n");
}

/// What was built runs, and is known to be up to date.
fn check(place: &Place) {
    let dir = &place.dir;
    sh(&format!("{dir}/target/debug/one"));
    let built = cargo(dir, &BUILD);
    assert!(
        !built.contains("Compiling") && built.contains("Finished"),
        "{built}"
    );
}

#[test]
fn cargo_builds_in_one_process() {
    live(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn cargo_builds_in_four_processes() {
    live(Shape::FourProcesses, &WORKLOAD);
}
