//! Installs programs that are missing on a fresh Debian machine.

use std::process::{Command, Stdio};

use crate::stage::{Stage, cargo};

/// Programs of tests and the demonstration, with their Debian packages.
const PROGRAMS: [(&str, &str); 17] = [
    ("cc", "build-essential"),
    ("c++", "build-essential"),
    ("mpicc", "libopenmpi-dev"),
    ("mpirun", "openmpi-bin"),
    ("make", "make"),
    ("fusermount3", "fuse3"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("rsync", "rsync"),
    ("sqlite3", "sqlite3"),
    ("setfattr", "attr"),
    ("setfacl", "acl"),
    ("fio", "fio"),
    ("stress-ng", "stress-ng"),
    ("bindfs", "bindfs"),
    ("dbench", "dbench"),
    ("bonnie++", "bonnie++"),
];

/// Installs the packages of missing programs.
pub(crate) fn install_packages() -> Result<(), String> {
    install(&PROGRAMS)
}

/// Installs the spell checker if it is missing.
pub(crate) fn install_codespell() -> Result<(), String> {
    install(&[("codespell", "codespell")])
}

/// Installs the packages of those programs that are missing.
pub(crate) fn install(programs: &[(&str, &str)]) -> Result<(), String> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !is_installed(program))
        .map(|(_, package)| *package)
        .collect();
    install_missing(&missing)
}

/// Installs Python with the modules that make virtual environments, if they are missing.
pub(crate) fn install_python() -> Result<(), String> {
    let mut python = Command::new("python3");
    python.args(["-c", "import ensurepip, venv"]);
    match succeeds(python) {
        true => Ok(()),
        false => install_missing(&["python3-venv"]),
    }
}

/// Installs Debian packages.
fn install_missing(missing: &[&str]) -> Result<(), String> {
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !is_root() || !is_installed("apt-get") {
        return Err(format!(
            "!!! set-up: these Debian packages are missing: {names}\n    install them as root (apt-get install {names}) and run this again"
        ));
    }
    let stage = Stage::new("set-up: Debian packages");
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["-q", "-y"])
            .args(args);
        command
    };
    stage.run(apt(&["update"]))?;
    stage.run(apt(&[&["install", "--no-install-recommends"], missing].concat()))
}

/// Installs cargo-deny if it is missing.
pub(crate) fn install_cargo_deny() -> Result<(), String> {
    if is_installed("cargo-deny") || succeeds(cargo(["deny", "--version"])) {
        return Ok(());
    }
    Stage::new("set-up: cargo-deny").run(cargo(["install", "--locked", "cargo-deny"]))
}

/// Installs cargo-deb if it is missing.
pub(crate) fn cargo_deb() -> Result<(), String> {
    if is_installed("cargo-deb") || succeeds(cargo(["deb", "--version"])) {
        return Ok(());
    }
    Stage::new("set-up: cargo-deb").run(cargo(["install", "--locked", "cargo-deb"]))
}

/// Installs the test programs that cargo builds: pjdfstest and fsx.
pub(crate) fn install_test_programs() -> Result<(), String> {
    let installed = cargo(["install", "--list"]).output();
    let installed = installed
        .map_err(|e| format!("!!! cannot run cargo: {e}"))?
        .stdout;
    let installed = String::from_utf8_lossy(&installed);
    for (program, version) in [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")] {
        let line = format!("{program} v{version}:");
        if !installed.lines().any(|l| l == line) {
            let stage = Stage::new("set-up: file-system tests");
            stage.run(cargo(["install", "--locked", program, "--version", version]))?;
        }
    }
    Ok(())
}

/// Fails with the reason if no file system can be mounted, since otherwise many tests would fail
/// one by one.
pub(crate) fn check_mounts() -> Result<(), String> {
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        Ok(_) => Ok(()),
        Err(e) => Err(format!(
            "!!! /dev/fuse cannot be opened ({e}): most tests mount a file system\n    \
             load the module (modprobe fuse), or give the container the device (--device /dev/fuse --cap-add SYS_ADMIN)"
        )),
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}

/// Whether a command succeeds. Discards its output.
fn succeeds(mut command: Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Whether this process runs as root: `/proc/self` belongs to the effective user.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}
