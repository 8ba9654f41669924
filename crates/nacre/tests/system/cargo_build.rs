//! Cargo builds a crate of this project in the mount: it writes and runs programs, maps files, uses
//! hard links and locks, and relies on correct times.

use crate::file_system::Shape;
use crate::fixture::{CommandOutput, run, sh};
use crate::workload::{WorkDirs, Workload, run_workload};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const WORKLOAD: Workload = Workload {
    create,
    change,
    check,
};

/// Builds the crate with a program in `src/bin`: an example would need the dependencies of tests.
const BUILD: [&str; 3] = ["build", "-p", "wire"];

/// Runs cargo in the copy, with the registry of this test's own build.
fn cargo(dir: &str, args: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO"));
    command
        .args(args)
        .arg("--offline")
        .current_dir(dir)
        .env("CARGO_TARGET_DIR", format!("{dir}/target"));
    // Remove settings of this test's own build.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
        command.env_remove(name);
    }
    let CommandOutput { ok, out, err, .. } = run(&mut command);
    assert!(ok, "cargo {args:?}: {out}{err}");
    out + &err
}

fn create(dirs: &WorkDirs) {
    let dir = &dirs.dir;
    sh(&format!(
        "mkdir {dir}/crates && cp -a {ROOT}/Cargo.toml {ROOT}/Cargo.lock {dir} && cp -a {ROOT}/crates/wire {ROOT}/crates/workspace-hack {dir}/crates && \
         mkdir {dir}/crates/wire/src/bin && \
         echo 'fn main() {{ println!(\"{{}}\", wire::Nid::default()); }}' > {dir}/crates/wire/src/bin/one.rs"
    ));
    let output = cargo(dir, &BUILD);
    assert!(output.contains("Compiling wire "), "{output}");
}

/// Changes the program; cargo must rebuild only the crate.
fn change(dirs: &WorkDirs) {
    let dir = &dirs.dir;
    // Change the source at once, probably within the same second as the last build.
    sh(&format!(
        "echo 'fn main() {{ println!(\"changed\"); }}' > {dir}/crates/wire/src/bin/one.rs"
    ));
    let output = cargo(dir, &BUILD);
    assert_eq!(output.matches("Compiling").count(), 1, "{output}");
    assert_eq!(sh(&format!("{dir}/target/debug/one")), "changed\n");
}

/// The program runs, and cargo considers it up to date.
fn check(dirs: &WorkDirs) {
    let dir = &dirs.dir;
    sh(&format!("{dir}/target/debug/one"));
    let output = cargo(dir, &BUILD);
    assert!(
        !output.contains("Compiling") && output.contains("Finished"),
        "{output}"
    );
}

#[test]
fn cargo_builds_in_one_process() {
    run_workload(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn cargo_builds_in_four_processes() {
    run_workload(Shape::FourProcesses, &WORKLOAD);
}
