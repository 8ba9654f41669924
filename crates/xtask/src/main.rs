//! The project's maintenance commands, for people and CI:
//! `cargo xtask check|test|model|linear|flips|simulate|fuzz|python|ltp|xfstests|demo|package` and
//! `cargo xtask setup`.
//!
//! `check`, `test`, `demo` and `setup` install missing programs. Debian packages need root; for
//! other users the commands list the missing packages and fail. A failed stage ends the command
//! with the stage's name and a non-zero status.

mod conformance;
mod demo;
mod fuzz;
mod instance;
mod package;
mod python;
mod setup;
mod simulate;
mod spelling;
mod stage;
mod suite;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

use stage::{Stage, cargo};

const HELP: &str = "usage: cargo xtask COMMAND

  check   format, lints, documentation, style, spelling, licences and advisories
  test    install the programs that the tests need, then run them: [-p CRATE]... [--jobs N] [PART OF A NAME]...
  model   random sequences on several mounts against a model: [--sequences N] [--seed S]; each sequence has a seed
  linear  concurrent operations of several mounts in one directory: [--rounds N] [--seed S]; each round has a seed
  flips   flipped bits in targets of different age: [--flips N] [--seed S]
  simulate  a whole cluster in one thread with faults: its tests, 200 seeds and the planted bugs; or --seeds N [--first S], --seed S (its history), --planted
  fuzz    all fuzz targets or the named ones: [--seconds N] [TARGET...]; one input again: TARGET FILE
  python  build the Python package's wheel and run its tests and fsspec's: [--release] [ARGUMENT OF PYTEST]...; or with --rates compare it with the C library
  ltp     LTP's tests of file systems and of system calls on files: SOURCE (a checkout of LTP), [PART OF A NAME]...
  xfstests  xfstests' generic tests, groups quick and auto: SOURCE (a checkout of xfstests), [TEST]...
  demo    install the programs that the demonstration needs, then run `nacre demo` with the given options
  package Debian packages and a tarball in target/package: [--debug] [--test [--previous DEB]] (a test in a virtual machine)
  setup   install the programs that the other commands need";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = match args.first().map(String::as_str) {
        Some("check") => check(),
        Some("test") => test(&args[1..]),
        Some("model") => MODEL.run(&args[1..]),
        Some("simulate") => match &args[1..] {
            [] => simulate::check(),
            args => simulate::run(args),
        },
        Some("linear") => LINEAR.run(&args[1..]),
        Some("flips") => FLIPS.run(&args[1..]),
        Some("fuzz") => fuzz::run(&args[1..]),
        Some("python") => python::run(&args[1..]),
        Some("ltp") => conformance::ltp(&args[1..]),
        Some("xfstests") => conformance::xfstests(&args[1..]),
        Some("package") => package::run(&args[1..]),
        Some("demo") => demo::run(&args[1..]),
        Some("setup") => setup::install_packages()
            .and_then(|()| setup::install_codespell())
            .and_then(|()| setup::install_cargo_deny())
            .and_then(|()| setup::install_test_programs()),
        Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(HELP.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            // Failed tests have been printed already, and their number must remain the last line.
            if !message.is_empty() {
                eprintln!("{message}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs all static checks.
fn check() -> Result<(), String> {
    Stage::new("format").run(cargo(["fmt", "--all", "--check"]))?;
    Stage::new("format of fuzz").run(cargo(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))?;
    let lints = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    Stage::new("lints").run(cargo(lints))?;
    let simulator = [
        "clippy",
        "--package",
        "sim",
        "--features",
        "sim",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ];
    Stage::new("lints of the simulator").run(cargo(simulator))?;
    let mut doc = cargo([
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]);
    Stage::new("documentation").run(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    let style = [
        "test",
        "--locked",
        "--package",
        "xtask",
        "tidy::",
        "--",
        "--nocapture",
    ];
    Stage::new("style").run(cargo(style))?;
    setup::install_codespell()?;
    spelling::check()?;
    setup::install_cargo_deny()?;
    // Also fetches the crates for other systems, since the checks below read all of them.
    Stage::new("sources of all crates").run(cargo(["fetch", "--locked"]))?;
    // The lock file of fuzz includes the project's own crates and their dependencies.
    let fuzz = ["fetch", "--locked", "--manifest-path", "fuzz/Cargo.toml"];
    Stage::new("sources of fuzz").run(cargo(fuzz))?;
    let policy = [
        "deny",
        "--locked",
        "--offline",
        "check",
        "--hide-inclusion-graph",
        "licenses",
        "bans",
        "sources",
    ];
    Stage::new("licences, bans, sources").run(cargo(policy))?;
    advisories()
}

/// Checks advisories. The database needs network access; without it, prints a warning and succeeds.
fn advisories() -> Result<(), String> {
    let stage = Stage::new("advisories");
    let mut fetch = cargo(["deny", "fetch", "db"]);
    // Limit the time on a network that drops packets.
    fetch.envs([
        ("GIT_HTTP_LOW_SPEED_LIMIT", "1000"),
        ("GIT_HTTP_LOW_SPEED_TIME", "20"),
    ]);
    if stage.passes(fetch) {
        return stage.run(cargo(["deny", "--locked", "--offline", "check", "advisories"]));
    }
    println!("!!! advisories NOT CHECKED: the advisory database cannot be fetched from here");
    Ok(())
}

/// Runs all tests, or those selected by the arguments.
fn test(selected: &[String]) -> Result<(), String> {
    if suite::needs_programs(selected) {
        setup::install_packages()?;
        setup::install_test_programs()?;
        setup::check_mounts()?;
    }
    suite::run(selected)
}

/// A randomised test that runs alone and optimised, with many seeds.
struct SeededTest {
    name: &'static str,
    package: &'static str,
    /// The test binary.
    binary: &'static str,
    /// Part of the names of the tests to run.
    filter: &'static str,
    /// The unit of work: name of the option, and suffix of the environment variable.
    unit: &'static str,
    /// Default number of units.
    count: &'static str,
}

const MODEL: SeededTest = SeededTest {
    name: "model",
    package: "nacre",
    binary: "model",
    filter: "mounts",
    unit: "sequences",
    count: "10000",
};

const LINEAR: SeededTest = SeededTest {
    name: "linear",
    package: "client",
    binary: "it",
    filter: "names_of_one_directory",
    unit: "rounds",
    count: "2000",
};

const FLIPS: SeededTest = SeededTest {
    name: "flips",
    package: "nacre",
    binary: "flips",
    filter: "flipped_bits",
    unit: "flips",
    count: "5000",
};

impl SeededTest {
    fn run(&self, options: &[String]) -> Result<(), String> {
        let variable = |suffix: &str| format!("NACRE_{}_{suffix}", self.name).to_uppercase();
        let mut test = cargo(["test", "--release", "--locked", "--package", self.package]);
        test.args(["--test", self.binary, self.filter]);
        test.env(variable(self.unit), self.count);
        for option in options.chunks(2) {
            let [name, value] = option else {
                return Err(format!("{} needs a number", option.concat()));
            };
            let suffix = name
                .strip_prefix("--")
                .filter(|suffix| *suffix == self.unit || *suffix == "seed");
            let suffix = suffix
                .ok_or_else(|| format!("unknown option {name}: expected --{} N or --seed S", self.unit))?;
            test.env(variable(suffix), value);
        }
        Stage::new(self.name).run(test.args(["--", "--nocapture"]))
    }
}
