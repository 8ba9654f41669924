//! Third-party test suites on a mount of Nacre, built in a checkout that the user names: LTP's
//! file-system and file-syscall tests (`ltp.rs`) and the generic tests of xfstests (`xfstests.rs`).
//! `exceptions/` lists their exceptions with reasons; a run fails if an outcome contradicts the
//! list.

mod exceptions;
mod ltp;
mod xfstests;

use std::path::{Path, PathBuf};

use crate::instance::{Instance, Settings};
use crate::setup;
use crate::stage::{Stage, cargo, target_dir};

pub(crate) use ltp::run as ltp;
pub(crate) use xfstests::run as xfstests;

/// The parts of a command line: the checkout, and the tests or parts of their names.
struct Arguments<'a> {
    source: PathBuf,
    selected: &'a [String],
}

fn parse_arguments<'a>(suite: &str, args: &'a [String]) -> Result<Arguments<'a>, String> {
    let usage =
        || format!("usage: cargo xtask {suite} SOURCE [TEST]..., where SOURCE is a checkout of {suite}");
    let (source, selected) = args.split_first().ok_or_else(usage)?;
    let source = std::fs::canonicalize(source).map_err(|e| format!("!!! {source}: {e}\n{}", usage()))?;
    Ok(Arguments { source, selected })
}

/// Builds the optimised `nacre`; returns its directory.
fn build_nacre() -> Result<PathBuf, String> {
    setup::check_mounts()?;
    Stage::new("build").run(cargo(["build", "--release", "--locked", "--package", "nacre"]))?;
    Ok(target_dir().join("release"))
}

/// Starts a file system on the default port, as mount(8) expects it.
fn start_instance(bin: &Path, name: &str, address: &str, mounted: bool) -> Result<Instance, String> {
    let port = 988;
    Instance::start(
        bin,
        &Settings {
            name,
            address,
            port,
            mounted,
        },
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::exceptions::Exceptions;
    use super::{ltp, xfstests};

    #[test]
    fn lists_of_exceptions_parse() {
        for list in [ltp::EXCEPTIONS, xfstests::EXCEPTIONS] {
            Exceptions::parse(list).unwrap();
        }
    }
}
