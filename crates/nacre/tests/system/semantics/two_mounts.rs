//! The environment of a test: a file system with two mounts in different processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use crate::file_system::{FileSystem, Shape};
use crate::fixture::{CommandOutput, nacre_ok, run, sh};

/// A file system with mount `a` in the server process and mount `b` in a separate process.
pub(crate) struct TwoMounts {
    pub(crate) fs: FileSystem,
    pub(crate) a: PathBuf,
    pub(crate) b: PathBuf,
}

impl TwoMounts {
    pub(crate) fn new() -> TwoMounts {
        assert!(
            crate::fixture::is_root(),
            "these tests take on other users and need root"
        );
        let mut fs = FileSystem::new(Shape::OneProcess);
        let a = fs.mount_point();
        let b = fs.add_mount("second", 9);
        // Other users need access to the mount point.
        sh(&format!(
            "chmod 755 {} {}",
            fs.site.path_str(""),
            fs.site.path_str("d")
        ));
        TwoMounts { fs, a, b }
    }

    /// Creates an empty file with two stripes.
    pub(crate) fn create_striped(&self, name: &str) {
        let path = self.a.join(name);
        let setstripe = ["lfs", "setstripe", "-c", "2", "-S", "1M"];
        nacre_ok(&[&setstripe[..], &[path.to_str().unwrap()]].concat());
    }

    /// Runs a shell script in mount `a`; it must succeed. Returns its output.
    pub(crate) fn sh(&self, script: &str) -> String {
        run_script_in(&self.a, script)
    }

    /// Like [`TwoMounts::sh`], as user 1000 and group 1000 with supplementary groups (separated by
    /// commas; may be empty).
    pub(crate) fn sh_as_user(&self, groups: &str, script: &str) -> String {
        let result = self.try_user(groups, script);
        assert!(result.ok, "{script}\n{}{}", result.out, result.err);
        result.out
    }

    /// Runs a script that must fail for that user; returns the error output.
    pub(crate) fn sh_as_user_fails(&self, groups: &str, script: &str) -> String {
        let result = self.try_user(groups, script);
        assert!(!result.ok, "succeeded: {script}\n{}", result.out);
        result.err
    }

    fn try_user(&self, groups: &str, script: &str) -> CommandOutput {
        let groups = match groups {
            "" => "--clear-groups".to_owned(),
            some => format!("--groups={some}"),
        };
        run(Command::new("setpriv")
            .args(["--reuid=1000", "--regid=1000", &groups])
            .args(["bash", "-euo", "pipefail", "-c", script])
            .current_dir(&self.a))
    }
}

/// Runs a shell script in a directory; it must succeed. Returns its output.
pub(crate) fn run_script_in(dir: &Path, script: &str) -> String {
    let result = run(Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir));
    assert!(result.ok, "{script}\n{}{}", result.out, result.err);
    result.out
}

/// The error of a call that must fail.
pub(crate) fn errno_of<T>(result: rustix::io::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("the call succeeded"),
        Err(e) => e,
    }
}
