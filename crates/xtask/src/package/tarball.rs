//! The tarball: the tree that a user unpacks into a prefix such as `/usr/local`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{
    SONAME, VERSION, copy_file, documents, files_in, output_dir, pkg_config_file, replace_dir, succeed, write,
};
use crate::stage::{Stage, root};

/// The directory of the units in the tree.
const UNITS: &str = "lib/systemd/system";

/// The file.
pub(super) fn path() -> PathBuf {
    output_dir().join(format!("nacre-{VERSION}-{}-linux.tar.gz", std::env::consts::ARCH))
}

/// Makes the tarball of the binaries in `built` and the generated files.
pub(super) fn build(built: &Path, to: &Path) -> Result<(), String> {
    let name = format!("nacre-{VERSION}");
    let parent = output_dir().join("tarball");
    let tree = parent.join(&name);
    replace_dir(&tree)?;
    let completions = output_dir().join("completions");
    for (from, to) in [
        (built.join("nacre"), "bin/nacre"),
        (built.join("libnacre.so"), &format!("lib/{SONAME}")),
        (root().join("crates/capi/include/nacre.h"), "include/nacre.h"),
        (
            completions.join("nacre.bash"),
            "share/bash-completion/completions/nacre",
        ),
        (completions.join("nacre.zsh"), "share/zsh/site-functions/_nacre"),
        (
            completions.join("nacre.fish"),
            "share/fish/vendor_completions.d/nacre.fish",
        ),
        (root().join("LICENSE"), "share/doc/nacre/LICENSE"),
        (root().join("CHANGELOG.md"), "share/doc/nacre/CHANGELOG.md"),
    ] {
        copy_file(&from, &tree.join(to))?;
    }
    for page in files_in(&output_dir().join("man"))? {
        let section = page.extension().unwrap_or_default().to_string_lossy();
        copy_into(&page, &tree.join("share/man").join(format!("man{section}")))?;
    }
    for file in documents::all()? {
        copy_file(&root().join(&file), &tree.join("share/doc/nacre").join(&file))?;
    }
    for unit in files_in(&root().join("packaging/systemd"))? {
        copy_into(&unit, &tree.join(UNITS))?;
    }
    let mut strip = Command::new("strip");
    strip.arg("--strip-unneeded").current_dir(&tree);
    succeed(strip.arg("bin/nacre").arg(Path::new("lib").join(SONAME)))?;
    let link = tree.join("lib/libnacre.so");
    std::os::unix::fs::symlink(SONAME, &link).map_err(|e| format!("!!! {}: {e}", link.display()))?;
    let pkg_config = tree.join("lib/pkgconfig");
    replace_dir(&pkg_config)?;
    // The user chooses the prefix.
    let text = pkg_config_file("${pcfiledir}/../..", "lib")?;
    write(&pkg_config.join("nacre.pc"), &text)?;
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--mtime=@0",
    ]);
    tar.args(["--gzip", "--create", "--file"]).arg(to);
    tar.arg("--directory").arg(&parent).arg(&name);
    Stage::new("tarball").run(tar)
}

fn copy_into(file: &Path, dir: &Path) -> Result<(), String> {
    copy_file(file, &dir.join(file.file_name().unwrap_or_default()))
}
