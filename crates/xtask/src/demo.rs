//! `cargo xtask demo`: builds the optimised binary and runs `nacre demo`.

use std::process::Command;

use crate::setup;
use crate::stage::{Stage, cargo, root, target_dir};

/// Runs the demonstration; passes the arguments on to `nacre demo`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    setup::install_packages()?;
    setup::check_mounts()?;
    Stage::new("build").run(cargo(["build", "--release", "--locked", "--package", "nacre"]))?;
    Stage::new("demo").run(
        Command::new(target_dir().join("release/nacre"))
            .arg("demo")
            .args(args)
            .current_dir(root()),
    )
}
