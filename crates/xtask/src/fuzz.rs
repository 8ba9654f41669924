//! `cargo xtask fuzz`: builds the targets of `fuzz/` with coverage counters, creates their seeds,
//! and runs each for some seconds, one target per CPU at a time. After a failure it prints the
//! command that runs the input again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use crate::stage::{Stage, cargo, root};

/// The targets. Those that start servers take longest and are first.
const TARGETS: [&str; 9] = [
    "mdt", "ost", "ldlm", "ptlrpc", "socklnd", "lnet", "selftest", "llog", "layout",
];
/// Default run time of each target, seconds.
const SECONDS_DEFAULT: u32 = 12;
/// Number of last lines of output that the report of a failure without a panic contains.
const TAIL_LINES: usize = 60;
/// Limits for one input: 60 s and 2 GiB of memory.
const LIMITS: [&str; 2] = ["-timeout=60", "-rss_limit_mb=2048"];

/// Options of a run. By default libFuzzer prefers inputs with rare features; the computation of
/// these weights takes a fifth of the time of the targets that start servers.
const RUN: [&str; 1] = ["-entropic=0"];

/// The action that the command line requests.
#[derive(Debug, PartialEq)]
enum Job<'a> {
    /// Run these targets.
    Run { targets: Vec<&'a str>, seconds: u32 },
    /// Run one input again, or the inputs in a directory one after the other.
    Rerun { target: &'a str, input: &'a str },
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let job = parse(args)?;
    build()?;
    match job {
        Job::Rerun { target, input } => {
            let mut rerun = Command::new(binary_path(target));
            let inputs = inputs_at(Path::new(input))?;
            Stage::new("fuzz: the input").run(rerun.args(LIMITS).args(inputs))
        }
        Job::Run { targets, seconds } => {
            let seeds = root().join("fuzz/target/release/examples/seeds");
            let mut seeds = Command::new(seeds);
            seeds
                .arg(fuzz_path("corpus"))
                .arg(root().join("crates/wire/tests"));
            Stage::new("fuzz: seeds").run(seeds)?;
            run_targets(&targets, seconds)
        }
    }
}

fn parse(args: &[String]) -> Result<Job<'_>, String> {
    let mut seconds = SECONDS_DEFAULT;
    let mut words = Vec::new();
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        if arg == "--seconds" {
            let number = args.next().and_then(|n| n.parse().ok());
            seconds = number.ok_or("--seconds needs a number")?;
        } else {
            words.push(arg);
        }
    }
    let known = |word: &&str| TARGETS.contains(word);
    match &words[..] {
        [] => Ok(Job::Run {
            targets: TARGETS.to_vec(),
            seconds,
        }),
        [target, input] if known(target) && !known(input) => Ok(Job::Rerun { target, input }),
        targets if targets.iter().all(known) => Ok(Job::Run {
            targets: targets.to_vec(),
            seconds,
        }),
        _ => Err(format!("expected targets: {}", TARGETS.join(", "))),
    }
}

/// The input, or the inputs in the directory, in order.
fn inputs_at(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut inputs: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    inputs.sort();
    Ok(inputs)
}

fn fuzz_path(name: &str) -> PathBuf {
    root().join("fuzz").join(name)
}

fn binary_path(target: &str) -> PathBuf {
    fuzz_path("target/release").join(target)
}

/// Builds targets and seeds in a separate build directory. Only the project's own crates have
/// coverage counters (`fuzz/rustc.sh`).
fn build() -> Result<(), String> {
    let mut build = cargo(["build", "--release", "--locked", "--bins", "--example", "seeds"]);
    build.arg("--manifest-path").arg(fuzz_path("Cargo.toml"));
    build.arg("--target-dir").arg(fuzz_path("target"));
    build.env("NACRE_ROOT", root());
    build.env("RUSTC_WRAPPER", fuzz_path("rustc.sh"));
    Stage::new("fuzz: build").run(build)
}

fn run_targets(targets: &[&str], seconds: u32) -> Result<(), String> {
    let artifacts = fuzz_path("artifacts");
    fs::create_dir_all(&artifacts).map_err(|e| format!("!!! fuzz: {}: {e}", artifacts.display()))?;
    println!("=== fuzz: {seconds} s each");
    let remaining = Mutex::new(targets.iter());
    let next = || remaining.lock().ok()?.next();
    let failed = Mutex::new(Vec::new());
    let concurrency = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..concurrency {
            scope.spawn(|| {
                while let Some(target) = next() {
                    match run_target(target, seconds) {
                        Ok(statistics) => println!("{target}: {statistics}"),
                        Err(failure) => {
                            println!("{target}: {failure}");
                            failed.lock().unwrap_or_else(|e| e.into_inner()).push(*target);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|e| e.into_inner());
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("!!! fuzz failed: {}", failed.join(", ")))
}

/// The directory for the inputs that the servers had served before a failure.
fn history_path(target: &str) -> PathBuf {
    fuzz_path("artifacts").join(format!("{target}-history"))
}

/// Runs one target. Returns its final statistics, or a description of the failure.
fn run_target(target: &str, seconds: u32) -> Result<String, String> {
    let corpus = fuzz_path("corpus").join(target);
    let log = fuzz_path("artifacts").join(format!("{target}.log"));
    let artifact_prefix = fuzz_path("artifacts").join(format!("{target}-"));
    let history = history_path(target);
    let cannot_run = |e: std::io::Error| format!("cannot be run: {e}");
    if history.exists() {
        fs::remove_dir_all(&history).map_err(cannot_run)?;
    }
    fs::create_dir_all(&history).map_err(cannot_run)?;
    let out = fs::File::create(&log).map_err(cannot_run)?;
    let status = Command::new(binary_path(target))
        .args(LIMITS)
        .args(RUN)
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}", artifact_prefix.display()))
        .env("NACRE_FUZZ_HISTORY", history)
        .arg(corpus)
        .stdout(Stdio::null())
        .stderr(out)
        .status()
        .map_err(cannot_run)?;
    let output = fs::read(&log).map_err(cannot_run)?;
    let output = String::from_utf8_lossy(&output);
    let statistics = output.lines().rev().find(|l| l.starts_with("Done "));
    match statistics.filter(|_| status.success()) {
        Some(statistics) => Ok(statistics.to_owned()),
        None => Err(describe_failure(target, &output)),
    }
}

/// Formats a failure: the output from the panic on (without a panic, its last [`TAIL_LINES`]). Adds
/// a command that runs the input again here, and one that creates the input on another machine.
fn describe_failure(target: &str, output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let panicked = lines.iter().position(|l| l.contains("panicked at"));
    let end = lines[panicked.unwrap_or(lines.len().saturating_sub(TAIL_LINES))..].join("\n");
    let written = output
        .lines()
        .find_map(|l| l.split_once("Test unit written to ").map(|(_, path)| path.trim()));
    let Some(input) = written else {
        return format!("failed\n{end}");
    };
    let name = Path::new(input).strip_prefix(root()).unwrap_or(Path::new(input));
    let name = name.display();
    let base64 = Command::new("base64").arg("-w0").arg(input).output();
    let base64 = base64.map_or_else(
        |_| String::new(),
        |o| String::from_utf8_lossy(&o.stdout).into_owned(),
    );
    let history = history_path(target);
    let before = match fs::read_dir(&history).is_ok_and(|mut files| files.next().is_some()) {
        true => {
            let dir = history.strip_prefix(root()).unwrap_or(&history);
            format!(
                "\nif that does not fail, with the inputs before it: cargo xtask fuzz {target} {}",
                dir.display()
            )
        }
        false => String::new(),
    };
    format!(
        "failed\n{end}\nrun again: cargo xtask fuzz {target} {name}{before}\non another machine: base64 -d > {name} <<< {base64}"
    )
}

#[cfg(test)]
mod tests {
    use super::{Job, SECONDS_DEFAULT, TARGETS, parse, root};

    #[test]
    fn arguments_are_parsed() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let all = TARGETS.to_vec();
        let run = |targets, seconds| Ok(Job::Run { targets, seconds });
        assert_eq!(parse(&words("")), run(all.clone(), SECONDS_DEFAULT));
        assert_eq!(parse(&words("--seconds 5")), run(all, 5));
        assert_eq!(parse(&words("mdt --seconds 7 ost")), run(vec!["mdt", "ost"], 7));
        let (target, input) = ("mdt", "fuzz/artifacts/mdt-crash-1");
        assert_eq!(
            parse(&words("mdt fuzz/artifacts/mdt-crash-1")),
            Ok(Job::Rerun { target, input })
        );
        for wrong in ["mtd", "--seconds", "--seconds x", "file mdt"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_fuzz_target_is_listed() -> std::io::Result<()> {
        let mut existing = Vec::new();
        for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets"))? {
            existing.push(entry?.path().with_extension(""));
        }
        let mut existing: Vec<String> = existing
            .iter()
            .filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()))
            .collect();
        existing.sort();
        let mut listed = TARGETS.map(str::to_owned).to_vec();
        listed.sort();
        assert_eq!(existing, listed);
        Ok(())
    }
}
