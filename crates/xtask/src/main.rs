//! The project's maintenance commands, for people and CI:
//! `cargo xtask check|test|model|linear|fuzz|demo|setup`.
//!
//! Each command installs missing programs where it may (Debian packages as root, cargo programs as
//! any user), and otherwise lists them. A failed stage ends the command with the stage's name and a
//! non-zero status.

mod demo;
mod fuzz;
mod setup;
mod spelling;
mod stage;
mod suite;
#[cfg(test)]
mod tidy;

use std::process::ExitCode;

use stage::{Stage, cargo};

const HELP: &str = "usage: cargo xtask COMMAND

  check   format, lints, documentation, style, spelling, licences and advisories
  test    install what the tests need, then run them: [-p CRATE]... [--jobs N] [PART OF A NAME]...
  model   random sequences on several mounts against a model: [--sequences N] [--seed S], a sequence a seed
  linear  what several mounts do in one directory at once, checked: [--rounds N] [--seed S], a round a seed
  fuzz    the fuzz targets, or some of them: [--seconds N] [TARGET...]; one input again: TARGET FILE
  demo    install what the demonstration needs, then run it (options go on to `nacre demo`)
  setup   only install what the other commands need";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match args.first().map(String::as_str) {
        Some("check") => check(),
        Some("test") => test(&args[1..]),
        Some("model") => MODEL.run(&args[1..]),
        Some("linear") => LINEAR.run(&args[1..]),
        Some("fuzz") => fuzz::run(&args[1..]),
        Some("demo") => demo::run(&args[1..]),
        Some("setup") => setup::packages()
            .and_then(|()| setup::codespell())
            .and_then(|()| setup::cargo_deny())
            .and_then(|()| setup::test_programs()),
        Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(HELP.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            // Failed tests have been printed already, and their number must remain the last line.
            if !why.is_empty() {
                eprintln!("{why}");
            }
            ExitCode::FAILURE
        }
    }
}

/// All static checks.
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
    setup::codespell()?;
    spelling::check()?;
    setup::cargo_deny()?;
    // Fetch the crates for other systems as well, since all are checked.
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
        setup::packages()?;
        setup::test_programs()?;
        setup::mounts_work()?;
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
    only: &'static str,
    /// The unit of work: name of the option, and suffix of the environment variable.
    of: &'static str,
    count: &'static str,
}

const MODEL: SeededTest = SeededTest {
    name: "model",
    package: "nacre",
    binary: "model",
    only: "mounts",
    of: "sequences",
    count: "10000",
};

const LINEAR: SeededTest = SeededTest {
    name: "linear",
    package: "client",
    binary: "it",
    only: "names_of_one_directory",
    of: "rounds",
    count: "2000",
};

impl SeededTest {
    fn run(&self, options: &[String]) -> Result<(), String> {
        let variable = |of: &str| format!("NACRE_{}_{of}", self.name).to_uppercase();
        let mut test = cargo(["test", "--release", "--locked", "--package", self.package]);
        test.args(["--test", self.binary, self.only]);
        test.env(variable(self.of), self.count);
        for option in options.chunks(2) {
            let [name, value] = option else {
                return Err(format!("{} needs a number", option.concat()));
            };
            let of = name
                .strip_prefix("--")
                .filter(|of| *of == self.of || *of == "seed");
            let of =
                of.ok_or_else(|| format!("unknown option {name}: expected --{} N or --seed S", self.of))?;
            test.env(variable(of), value);
        }
        Stage::new(self.name).run(test.args(["--", "--nocapture"]))
    }
}
