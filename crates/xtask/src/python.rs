//! `cargo xtask python`: builds the Python package's wheel, installs it in a virtual environment of
//! its own, and runs its tests and fsspec's against a file system without a mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::instance::{Instance, Settings};
use crate::setup;
use crate::stage::{Stage, cargo, root, target_dir};

/// The packages from PyPI that the build and the tests need.
const PACKAGES: [&str; 4] = ["maturin>=1.9,<2", "fsspec>=2024.2.0", "pytest>=8", "mypy>=1.10"];
/// The address of the servers.
const ADDRESS: &str = "127.0.77.7";
/// The port of the servers, which ordinary users may use.
const PORT: u16 = 7988;
/// The cargo profile of a build for tests.
const TEST_PROFILE: &str = "dev";

/// Runs the command. `args`: `--release` builds optimised. `--rates` also builds optimised, and
/// compares the rates with those of the C library instead of running the tests. Pytest gets all
/// other arguments.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let has = |option| args.iter().any(|arg| arg == option);
    let rates = has("--rates");
    let (profile, directory) = match rates || has("--release") {
        true => ("release", "release"),
        false => (TEST_PROFILE, "debug"),
    };
    let directory = target_dir().join(directory);
    let python = install_wheel(profile)?;
    let mut packages = vec!["build", "--locked", "--profile", profile, "-p", "nacre"];
    packages.extend(rates.then_some(["-p", "capi"]).into_iter().flatten());
    Stage::new("python: servers").run(cargo(packages))?;
    let settings = Settings {
        name: "python",
        address: ADDRESS,
        port: PORT,
        mounted: false,
    };
    let servers = Instance::start(&directory, &settings)?;
    if rates {
        return compare_rates(&python, &directory, &servers);
    }
    // stubtest compares the stubs with the compiled classes. It runs outside of the sources, so
    // that it imports the installed package.
    let mut stubs = Command::new(&python);
    stubs.args(["-m", "mypy.stubtest", "nacre._nacre", "--ignore-disjoint-bases"]);
    Stage::new("python: stubs").run(stubs.current_dir(target_dir()))?;
    let mut tests = Command::new(&python);
    tests
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"])
        .args(args.iter().filter(|arg| *arg != "--release"));
    tests.current_dir(package());
    tests.env("NACRE_TEST_SOURCE", servers.source());
    tests.env("NACRE_TEST_PORT", PORT.to_string());
    Stage::new("python: tests").run(tests)
}

/// The directory of the package.
fn package() -> PathBuf {
    root().join("crates/python")
}

/// Builds the wheel and installs it in the virtual environment; returns the path of its Python.
fn install_wheel(profile: &str) -> Result<PathBuf, String> {
    let venv = target_dir().join("python-venv");
    let python = venv.join("bin/python");
    if !python.exists() {
        setup::install_python()?;
        Stage::new("python: virtual environment")
            .run(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    let pip = |stage, args: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        Stage::new(stage).run(pip.args(args))
    };
    pip("python: packages", &PACKAGES)?;
    let wheel = build_wheel(&venv, profile)?;
    pip(
        "python: install the wheel",
        &["--force-reinstall", "--no-deps", &wheel.to_string_lossy()],
    )?;
    Ok(python)
}

/// Runs the same operations with the C library and with the package.
fn compare_rates(python: &Path, directory: &Path, servers: &Instance) -> Result<(), String> {
    let program = directory.join("rates");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c99", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"])
        .arg("-I")
        .arg(root().join("crates/capi/include"))
        .arg(package().join("bench/rates.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(directory)
        .arg("-lnacre")
        .arg(format!("-Wl,-rpath,{}", directory.display()));
    Stage::new("python: C program").run(compiler)?;
    let mut rates = Command::new(python);
    rates.arg(package().join("bench/rates.py"));
    rates.args([&servers.source(), &PORT.to_string()]).arg(&program);
    Stage::new("python: rates").run(rates)
}

/// Builds the wheel; returns its path.
fn build_wheel(venv: &Path, profile: &str) -> Result<PathBuf, String> {
    let dir = target_dir().join("wheels");
    if dir.exists() {
        fs::remove_dir_all(&dir).map_err(|e| format!("!!! python: {}: {e}", dir.display()))?;
    }
    let mut build = Command::new(venv.join("bin/maturin"));
    build
        .args(["build", "--locked", "--profile", profile, "--out"])
        .arg(&dir);
    build.current_dir(package());
    Stage::new("python: wheel").run(build.env("VIRTUAL_ENV", venv))?;
    let entries = fs::read_dir(&dir).map_err(|e| format!("!!! python: {}: {e}", dir.display()))?;
    let wheels = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut wheels = wheels.filter(|path| path.extension().is_some_and(|e| e == "whl"));
    wheels
        .next()
        .ok_or_else(|| format!("!!! python: maturin left no wheel in {}", dir.display()))
}
