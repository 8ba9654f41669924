//! `cargo xtask simulate`: builds the simulator, which is a program of its own, and runs it.

use std::process::Command;

use crate::stage::{Stage, cargo, root};

/// Number of seeds that CI runs.
const SEEDS_CI: u32 = 200;

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let build = [
        "build",
        "--quiet",
        "--locked",
        "--package",
        "sim",
        "--features",
        "sim",
    ];
    Stage::new("simulate: build").run(cargo(build))?;
    let mut simulator = Command::new(root().join("target/debug/sim"));
    simulator.args(args);
    Stage::new("simulate").run(&mut simulator)
}

/// The simulator's own tests, some seeds, and the planted bugs.
pub(crate) fn check() -> Result<(), String> {
    let tests = [
        "test",
        "--quiet",
        "--locked",
        "--package",
        "sim",
        "--features",
        "sim",
    ];
    Stage::new("simulate: tests").run(cargo(tests))?;
    run(&["--quiet".to_owned(), "--seeds".to_owned(), SEEDS_CI.to_string()])?;
    run(&["--planted".to_owned()])
}
