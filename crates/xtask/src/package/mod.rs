//! `cargo xtask package`: Debian packages and a tarball in `target/package`, checked by lintian.
//! With `--test` a virtual machine installs, upgrades, uses, removes and purges them
//! ([`machine`]).
//!
//! cargo-deb makes the package `nacre` from `crates/nacre/Cargo.toml`; debhelper makes those of the
//! library from `packaging/debian/libnacre`, because cargo-deb cannot make a `shlibs` file.

mod documents;
mod machine;
mod tarball;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::setup;
use crate::stage::{Stage, cargo, root, target_dir};

const USAGE: &str = "usage: cargo xtask package [--debug] [--test [--previous nacre_VERSION.deb]]";

/// Programs that packages need, with their Debian packages.
const PROGRAMS: [(&str, &str); 5] = [
    ("cc", "build-essential"),
    ("dh", "debhelper"),
    ("dpkg-buildpackage", "dpkg-dev"),
    ("lintian", "lintian"),
    ("pkg-config", "pkg-config"),
];
/// The soname of the library. Its number grows with each incompatible change of the interface.
const SONAME: &str = "libnacre.so.0";
/// Shells with a completion script in the packages.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// A program that uses the library.
const LIBRARY_USER: &str = "\
#include <nacre.h>
#include <stdio.h>

int main(void) {
    return puts(nacre_version()) < 0;
}
";

/// The version of Nacre.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    let profile = match args.contains(&"--debug") {
        true => Profile::Debug,
        false => Profile::Release,
    };
    args.retain(|arg| *arg != "--debug");
    let (with_test, previous) = match args[..] {
        [] => (false, None),
        ["--test"] => (true, None),
        ["--test", "--previous", path] => {
            let path = fs::canonicalize(path).map_err(|e| format!("!!! {path}: {e}"))?;
            (true, Some(path))
        }
        _ => return Err(USAGE.to_owned()),
    };
    setup::install(&PROGRAMS)?;
    setup::cargo_deb()?;
    let packages = build(profile)?;
    if with_test {
        check_library(&packages)?;
        machine::test(&packages, profile, previous.as_deref())?;
    }
    for path in packages.all() {
        println!("=== {}", path.display());
    }
    Ok(())
}

/// The profile of the packaged binaries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Profile {
    Release,
    /// A fast build, to test the packages.
    Debug,
}

impl Profile {
    /// The name for cargo.
    fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Debug => "dev",
        }
    }

    /// The directory of the built binaries.
    fn dir(self) -> PathBuf {
        match self {
            Profile::Release => target_dir().join("release"),
            Profile::Debug => target_dir().join("debug"),
        }
    }
}

/// The packages that the command has built.
struct Packages {
    nacre: PathBuf,
    library: PathBuf,
    library_dev: PathBuf,
    tarball: PathBuf,
}

impl Packages {
    fn debs(&self) -> [&Path; 3] {
        [&self.nacre, &self.library, &self.library_dev]
    }

    fn all(&self) -> impl Iterator<Item = &Path> {
        self.debs().into_iter().chain([self.tarball.as_path()])
    }
}

/// The directory of packages and of their parts.
fn output_dir() -> PathBuf {
    root().join("target/package")
}

/// Builds everything and runs lintian.
fn build(profile: Profile) -> Result<Packages, String> {
    let cargo_with_profile = |word| cargo([word, "--locked", "--profile", profile.name(), "--package"]);
    Stage::new("build").run(cargo_with_profile("build").arg("nacre"))?;
    let mut library = cargo_with_profile("rustc");
    library.args(["capi", "--lib", "--crate-type", "cdylib", "--"]);
    library.arg(format!("-Clink-arg=-Wl,-soname,{SONAME}"));
    Stage::new("build of the library").run(library)?;
    generate(&profile.dir().join("nacre"))?;
    let architecture = output_of(Command::new("dpkg").arg("--print-architecture"))?;
    let deb = |name: &str| output_dir().join(format!("{name}_{VERSION}-1_{architecture}.deb"));
    let packages = Packages {
        nacre: deb("nacre"),
        library: deb("libnacre0"),
        library_dev: deb("libnacre-dev"),
        tarball: tarball::path(),
    };
    Stage::new("package nacre").run(cargo_deb(profile, &packages.nacre))?;
    build_library_packages(&profile.dir())?;
    tarball::build(&profile.dir(), &packages.tarball)?;
    prepare_container(&packages.nacre)?;
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]);
    Stage::new("lintian").run(lintian.args(packages.debs()))?;
    Ok(packages)
}

/// Puts the files of the container image into a directory of their own: Docker copies the whole
/// directory, and the one with the packages may also contain a virtual machine's disk.
fn prepare_container(deb: &Path) -> Result<(), String> {
    let dir = output_dir().join("container");
    replace_dir(&dir)?;
    let entry_point = root().join("packaging/container/nacre-container");
    for file in [deb, &entry_point] {
        copy_file(file, &dir.join(file.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// The command that makes the package `nacre` of the built binary.
fn cargo_deb(profile: Profile, to: &Path) -> Command {
    let mut deb = cargo(["deb", "--quiet", "--locked", "--no-build", "--strip"]);
    deb.args(["--profile", profile.name(), "--package", "nacre", "--output"]);
    deb.arg(to);
    deb
}

/// Writes manual pages and completion scripts.
fn generate(nacre: &Path) -> Result<(), String> {
    let dir = output_dir();
    for part in ["man", "completions"] {
        replace_dir(&dir.join(part))?;
    }
    Stage::new("manual pages").run(Command::new(nacre).arg("man-pages").arg(dir.join("man")))?;
    for shell in SHELLS {
        let script = output_of(Command::new(nacre).args(["completions", shell]))?;
        write(
            &dir.join("completions").join(format!("nacre.{shell}")),
            &format!("{script}\n"),
        )?;
    }
    Ok(())
}

/// The pkg-config file of the library in the directory `libdir` of `prefix`.
fn pkg_config_file(prefix: &str, libdir: &str) -> Result<String, String> {
    let path = root().join("packaging/debian/libnacre/nacre.pc");
    let template = fs::read_to_string(&path).map_err(|e| format!("!!! {}: {e}", path.display()))?;
    let values = [("@VERSION@", VERSION), ("@PREFIX@", prefix), ("@LIBDIR@", libdir)];
    Ok(values
        .iter()
        .fold(template, |text, (name, value)| text.replace(name, value)))
}

/// Makes the packages of the library in `built` with debhelper.
fn build_library_packages(built: &Path) -> Result<(), String> {
    let multiarch = output_of(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?;
    let source = output_dir().join("libnacre");
    replace_dir(&source)?;
    let packaging = root().join("packaging/debian");
    let mut copy = Command::new("cp");
    copy.arg("-r")
        .arg(packaging.join("libnacre"))
        .arg(source.join("debian"));
    succeed(&mut copy)?;
    for name in ["changelog", "copyright"] {
        copy_file(&packaging.join(name), &source.join("debian").join(name))?;
    }
    copy_file(&built.join("libnacre.so"), &source.join(SONAME))?;
    copy_file(
        &root().join("crates/capi/include/nacre.h"),
        &source.join("nacre.h"),
    )?;
    copy_file(&root().join("docs/manual/library.md"), &source.join("library.md"))?;
    write(
        &source.join("nacre.pc"),
        &pkg_config_file("/usr", &format!("lib/{multiarch}"))?,
    )?;
    let mut build = Command::new("dpkg-buildpackage");
    build.args(["--build=binary", "--unsigned-source", "--unsigned-changes"]);
    build
        .env("DEB_BUILD_OPTIONS", "noautodbgsym")
        .current_dir(&source);
    Stage::new("packages of the library").run(build)
}

/// Builds and runs a program with the library's packages, unpacked into a directory. The virtual
/// machine has no compiler; it runs the program with the installed library.
fn check_library(packages: &Packages) -> Result<(), String> {
    let stage = Stage::new("a program with the packaged library");
    let dir = output_dir().join("library");
    replace_dir(&dir)?;
    for deb in [&packages.library, &packages.library_dev] {
        succeed(Command::new("dpkg-deb").arg("--extract").arg(deb).arg(&dir))?;
    }
    let multiarch = output_of(Command::new("dpkg-architecture").arg("-qDEB_HOST_MULTIARCH"))?;
    let libraries = dir.join("usr/lib").join(multiarch);
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.env("PKG_CONFIG_SYSROOT_DIR", &dir);
    pkg_config.env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let flags = output_of(pkg_config.args(["--cflags", "--libs", "nacre"]))?;
    let (source, program) = (dir.join("version.c"), library_test_program());
    write(&source, LIBRARY_USER)?;
    let mut compile = Command::new("cc");
    compile.arg(&source).arg("-o").arg(&program);
    stage.run(compile.args(flags.split_whitespace()))?;
    let version = output_of(Command::new(&program).env("LD_LIBRARY_PATH", &libraries))?;
    match version == VERSION {
        true => Ok(()),
        false => Err(format!(
            "!!! the packaged library has version {version}, not {VERSION}"
        )),
    }
}

/// The program that uses the library.
fn library_test_program() -> PathBuf {
    output_dir().join("library/version")
}

/// Makes a directory empty; creates it if necessary.
fn replace_dir(dir: &Path) -> Result<(), String> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(|e| format!("!!! {}: {e}", dir.display()))?;
    }
    fs::create_dir_all(dir).map_err(|e| format!("!!! {}: {e}", dir.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("!!! {}: {e}", path.display()))
}

fn files_in(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).and_then(|entries| {
        entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
    });
    entries.map_err(|e| format!("!!! {}: {e}", dir.display()))
}

/// Copies a file, and creates its new directory if necessary.
fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    let directory = to.parent().map_or(Ok(()), fs::create_dir_all);
    let copied = directory.and_then(|()| fs::copy(from, to));
    copied
        .map(drop)
        .map_err(|e| format!("!!! cannot copy {} to {}: {e}", from.display(), to.display()))
}

/// Runs a command that must succeed.
fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("!!! failed ({status}): {command:?}")),
        Err(e) => Err(format!("!!! cannot run {command:?}: {e}")),
    }
}

/// The output of a command that must succeed, without the last line's end.
fn output_of(command: &mut Command) -> Result<String, String> {
    match command.output() {
        Ok(output) if output.status.success() => {
            Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
        }
        Ok(output) => Err(format!(
            "!!! failed ({}): {command:?}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(e) => Err(format!("!!! cannot run {command:?}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{SONAME, VERSION};
    use crate::stage::root;
    use std::fs;

    fn packaged(path: &str) -> String {
        fs::read_to_string(root().join("packaging").join(path)).unwrap()
    }

    #[test]
    fn changelog_of_the_packages_begins_with_this_version() {
        let changelog = packaged("debian/changelog");
        assert!(
            changelog.starts_with(&format!("nacre ({VERSION}-1) ")),
            "{changelog}"
        );
    }

    #[test]
    fn library_is_packaged_under_its_soname() {
        let number = SONAME.strip_prefix("libnacre.so.").unwrap();
        let control = packaged("debian/libnacre/control");
        assert!(control.contains(&format!("Package: libnacre{number}\n")));
        let files = packaged(&format!("debian/libnacre/libnacre{number}.install"));
        assert!(files.starts_with(&format!("{SONAME} ")), "{files}");
    }
}
