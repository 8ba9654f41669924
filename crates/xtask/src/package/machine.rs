//! The test of the packages in a virtual machine: `packaging/test/guest.sh` runs in a Debian root
//! file system with Debian's kernel and systemd. QEMU emulates the processor, so the test also
//! runs where virtualisation is not available; it takes some minutes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{
    Packages, Profile, cargo_deb, copy_file, library_test_program, output_dir, replace_dir, succeed,
};
use crate::setup;
use crate::stage::{Stage, root};

/// Programs of the test, with their Debian packages.
const PROGRAMS: [(&str, &str); 3] = [
    ("mmdebstrap", "mmdebstrap"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("mke2fs", "e2fsprogs"),
];
/// The Debian release of the machine's root file system.
const SUITE: &str = "bookworm";
/// The packages of the root file system, besides apt and the essential ones.
const INCLUDED: &str = "systemd-sysv,udev,kmod,dbus,linux-image-cloud-amd64";
/// Version of the package that the test upgrades, unless the caller names a package.
const PREVIOUS_VERSION: &str = "0.0.1-1";
/// Size of the disk; the file is sparse.
const DISK_BYTES: u64 = 4 << 30;
/// Time limit of the test, long enough for a host with other work.
const LIMIT_SECONDS: &str = "3600";
/// Exit status of timeout(1) after the limit.
const TIMED_OUT: i32 = 124;
/// The parameters of the machine's kernel; a panic restarts it.
const KERNEL_PARAMETERS: &str = "console=ttyS0 root=/dev/vda rw panic=-1 quiet systemd.log_color=0";
/// The last line of a successful test.
const PASSED: &str = "package test: passed";

/// Runs the test. `previous` is the package to upgrade; by default this package with an earlier
/// version.
pub(super) fn test(packages: &Packages, profile: Profile, previous: Option<&Path>) -> Result<(), String> {
    setup::install(&PROGRAMS)?;
    if !setup::is_root() {
        return Err("!!! the root of the virtual machine can be made only by root".to_owned());
    }
    let dir = output_dir().join("machine");
    fs::create_dir_all(&dir).map_err(|e| format!("!!! {}: {e}", dir.display()))?;
    let archive = dir.join(format!("{SUITE}.tar"));
    if !archive.exists() {
        let mut debootstrap = Command::new("mmdebstrap");
        debootstrap.args(["--quiet", "--variant=apt", "--include", INCLUDED, SUITE]);
        // An interrupted run leaves no archive.
        let new = dir.join("new.tar");
        Stage::new("Debian for the virtual machine").run(debootstrap.arg(&new))?;
        fs::rename(&new, &archive).map_err(|e| format!("!!! {}: {e}", archive.display()))?;
    }
    let previous = match previous {
        Some(previous) => previous.to_owned(),
        None => make_previous(profile)?,
    };
    let stage = Stage::new("disk of the virtual machine");
    let debian = dir.join("root");
    replace_dir(&debian)?;
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--file").arg(&archive);
    succeed(tar.arg("--directory").arg(&debian))?;
    add_test(&debian, packages, &previous)?;
    let disk = dir.join("disk.img");
    let file = fs::File::create(&disk).and_then(|file| file.set_len(DISK_BYTES));
    file.map_err(|e| format!("!!! {}: {e}", disk.display()))?;
    stage.run(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&debian)
            .arg(&disk),
    )?;
    boot(&debian, &disk, &dir.join("console.log"))
}

/// Makes the package with an earlier version.
fn make_previous(profile: Profile) -> Result<PathBuf, String> {
    let path = output_dir().join(format!("machine/nacre_{PREVIOUS_VERSION}.deb"));
    let mut deb = cargo_deb(profile, &path);
    deb.args(["--fast", "--deb-version", PREVIOUS_VERSION]);
    Stage::new("package of an earlier version").run(deb)?;
    Ok(path)
}

/// Puts the test and the packages into the root file system.
fn add_test(debian: &Path, packages: &Packages, previous: &Path) -> Result<(), String> {
    let to = debian.join("packages");
    let name = |path: &Path| PathBuf::from(path.file_name().unwrap_or_default());
    for deb in packages.debs() {
        copy_file(deb, &to.join(name(deb)))?;
    }
    copy_file(previous, &to.join("previous").join(name(previous)))?;
    copy_file(&library_test_program(), &to.join("version"))?;
    let test = root().join("packaging/test");
    copy_file(&test.join("guest.sh"), &to.join("guest.sh"))?;
    let (units, unit) = (debian.join("etc/systemd/system"), "package-test.service");
    copy_file(&test.join(unit), &units.join(unit))?;
    let wanted = units.join("multi-user.target.wants");
    let linked =
        fs::create_dir_all(&wanted).and_then(|()| symlink(Path::new("..").join(unit), wanted.join(unit)));
    linked.map_err(|e| format!("!!! {}: {e}", wanted.display()))
}

/// The file with this prefix in `/boot` of the root file system.
fn file_in_boot(debian: &Path, prefix: &str) -> Result<PathBuf, String> {
    let boot = debian.join("boot");
    let files = fs::read_dir(&boot).map_err(|e| format!("!!! {}: {e}", boot.display()))?;
    files
        .flatten()
        .find(|file| file.file_name().to_string_lossy().starts_with(prefix))
        .map(|file| file.path())
        .ok_or_else(|| format!("!!! {} has no file {prefix}*", boot.display()))
}

/// The command that runs the machine.
fn qemu(debian: &Path, disk: &Path) -> Result<Command, String> {
    let mut qemu = Command::new("timeout");
    qemu.args([LIMIT_SECONDS, "qemu-system-x86_64"]);
    for option in [
        "-machine q35",
        "-accel tcg,thread=multi",
        "-cpu max",
        "-smp 2",
        "-m 2048",
        "-nographic",
        "-net none",
    ] {
        qemu.args(option.split(' '));
    }
    qemu.arg("-kernel").arg(file_in_boot(debian, "vmlinuz-")?);
    qemu.arg("-initrd").arg(file_in_boot(debian, "initrd.img-")?);
    qemu.args(["-append", KERNEL_PARAMETERS, "-drive"]);
    let disk = disk.display();
    qemu.arg(format!("file={disk},if=virtio,format=raw,cache=unsafe"));
    qemu.stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(qemu)
}

/// Boots the machine, prints the test's steps, and waits for its last line. The whole console goes
/// to `log`.
fn boot(debian: &Path, disk: &Path, log: &Path) -> Result<(), String> {
    println!("=== virtual machine (its console: {})", log.display());
    let machine = qemu(debian, disk)?.spawn();
    let mut machine = machine.map_err(|e| format!("!!! cannot run QEMU: {e}"))?;
    let mut copy = fs::File::create(log).map_err(|e| format!("!!! {}: {e}", log.display()))?;
    let mut passed = false;
    let console = machine.stdout.take().map(BufReader::new);
    let lines = console.into_iter().flat_map(|console| console.split(b'\n'));
    for line in lines.map_while(Result::ok) {
        let _ = copy.write_all(&[&line[..], b"\n"].concat());
        if let Some(text) = test_line(&String::from_utf8_lossy(&line)) {
            println!("{text}");
            passed |= text == PASSED;
        }
    }
    let ended = machine.wait().map_err(|e| format!("!!! QEMU: {e}"))?;
    let reason = match ended.code() {
        _ if passed => return Ok(()),
        Some(TIMED_OUT) => format!("it did not end within {LIMIT_SECONDS} s"),
        _ => ended.to_string(),
    };
    Err(format!(
        "!!! the test of the packages failed ({reason}): see {}",
        log.display()
    ))
}

/// The text of a line of the console, if it is about the test's progress. The console has a time
/// stamp and the name of the process before each line of the test.
fn test_line(line: &str) -> Option<&str> {
    let (_, text) = line.split_once("]: ")?;
    let is_progress = ["---", "!!!", "package test:"]
        .iter()
        .any(|mark| text.starts_with(mark));
    is_progress.then(|| text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::{PASSED, test_line};

    #[test]
    fn progress_of_the_test_is_found_in_the_console() {
        let line = |text: &str| format!("[    9.083283] bash[208]: {text}\r");
        assert_eq!(test_line(&line(PASSED)), Some(PASSED));
        assert_eq!(test_line(&line("--- stop: units")), Some("--- stop: units"));
        assert_eq!(test_line(&line("Unpacking nacre (0.1.0-1) ...")), None);
        assert_eq!(test_line("vm login: "), None);
    }
}
