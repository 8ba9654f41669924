//! The project's own chores, the same for people and CI: `cargo xtask check|test|model|linear|fuzz|demo|setup`.
//!
//! Each command installs what it needs where it may (Debian packages as root, `cargo-deny` for anybody) and says what
//! is missing where it may not. A stage that fails ends the command with its name and a non-zero status.

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
            // Failed tests have been printed already, and the sum is the last line.
            if !why.is_empty() {
                eprintln!("{why}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Everything that looks at the code without running it.
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
    // Those for other systems too, that nothing here was built with: all are looked at.
    Stage::new("sources of all crates").run(cargo(["fetch", "--locked"]))?;
    // Its lock file has our own crates in it, and what they need.
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

/// Advisories need a database from the network: without it this is said aloud, and is not a failure of the code.
fn advisories() -> Result<(), String> {
    let stage = Stage::new("advisories");
    let mut fetch = cargo(["deny", "fetch", "db"]);
    // A network that swallows everything must not hold the check up.
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

/// Every test, or those that the arguments select.
fn test(selected: &[String]) -> Result<(), String> {
    if suite::needs_programs(selected) {
        setup::packages()?;
        setup::test_programs()?;
        setup::mounts_work()?;
    }
    suite::run(selected)
}

/// A test that tries what its seeds say, alone and optimised: as many of them as wanted, from one on.
struct Random {
    name: &'static str,
    package: &'static str,
    /// The test binary.
    binary: &'static str,
    /// Part of the names of the tests that it is about.
    only: &'static str,
    /// What is counted: also the option, and the end of the variable that the test reads.
    of: &'static str,
    count: &'static str,
}

const MODEL: Random = Random {
    name: "model",
    package: "nacre",
    binary: "model",
    only: "mounts",
    of: "sequences",
    count: "10000",
};

const LINEAR: Random = Random {
    name: "linear",
    package: "client",
    binary: "it",
    only: "names_of_one_directory",
    of: "rounds",
    count: "2000",
};

impl Random {
    fn run(&self, options: &[String]) -> Result<(), String> {
        let variable = |of: &str| format!("NACRE_{}_{of}", self.name).to_uppercase();
        let mut test = cargo(["test", "--release", "--locked", "--package", self.package]);
        test.args(["--test", self.binary, self.only]);
        test.env(variable(self.of), self.count);
        for option in options.chunks(2) {
            let [name, value] = option else {
                return Err(format!("{} wants a number", option.concat()));
            };
            let of = name
                .strip_prefix("--")
                .filter(|of| *of == self.of || *of == "seed");
            let of = of.ok_or_else(|| format!("{name} is not known: --{} N, --seed S", self.of))?;
            test.env(variable(of), value);
        }
        Stage::new(self.name).run(test.args(["--", "--nocapture"]))
    }
}
