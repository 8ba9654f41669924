//! `cargo xtask demo`: builds the optimised binary and runs `nacre demo`.

use std::process::Command;

use crate::setup;
use crate::stage::{Stage, cargo, root};

/// Runs the demonstration; passes the arguments on to `nacre demo`.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    setup::install_packages()?;
    setup::check_mounts()?;
    Stage::new("build").run(cargo(["build", "--release", "--locked", "--package", "nacre"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    Stage::new("demo").run(
        Command::new(target.join("release/nacre"))
            .arg("demo")
            .args(args)
            .current_dir(root()),
    )
}
