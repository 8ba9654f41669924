//! Where a test works: a directory of a file system, seen through two mounts in processes of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use crate::file_system::{FileSystem, Shape};
use crate::fixture::{Ended, nacre_ok, run, sh};

/// A file system with two mounts, `a` beside the servers and `b` in a process of its own.
pub(crate) struct Place {
    pub(crate) fs: FileSystem,
    pub(crate) a: PathBuf,
    pub(crate) b: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Place {
        assert!(
            crate::fixture::is_root(),
            "these tests take on other users and need root"
        );
        let mut fs = FileSystem::new(Shape::OneProcess);
        let a = fs.mount();
        let b = fs.attach("second", 9);
        // Other users have to get there.
        sh(&format!("chmod 755 {} {}", fs.site.at(""), fs.site.at("d")));
        Place { fs, a, b }
    }

    /// Runs a script of the shell in the mount `a`; it must succeed. Gives what it says.
    /// Makes an empty file of two stripes.
    pub(crate) fn striped(&self, name: &str) {
        let path = self.a.join(name);
        let how = ["lfs", "setstripe", "-c", "2", "-S", "1M"];
        nacre_ok(&[&how[..], &[path.to_str().unwrap()]].concat());
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        script_in(&self.a, script)
    }

    /// The same as the user 1000 of the group 1000, with more groups (separated by commas, or none).
    pub(crate) fn user(&self, groups: &str, script: &str) -> String {
        let ended = self.try_user(groups, script);
        assert!(ended.ok, "{script}\n{}{}", ended.out, ended.err);
        ended.out
    }

    /// What that user is told who may not do it.
    pub(crate) fn user_may_not(&self, groups: &str, script: &str) -> String {
        let ended = self.try_user(groups, script);
        assert!(!ended.ok, "could do: {script}\n{}", ended.out);
        ended.err
    }

    fn try_user(&self, groups: &str, script: &str) -> Ended {
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

/// Runs a script of the shell in a directory; it must succeed. Gives what it says.
pub(crate) fn script_in(dir: &Path, script: &str) -> String {
    let ended = run(Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir));
    assert!(ended.ok, "{script}\n{}{}", ended.out, ended.err);
    ended.out
}

/// The error of a call that is to fail.
pub(crate) fn refused<T>(done: rustix::io::Result<T>) -> Errno {
    match done {
        Ok(_) => panic!("was done"),
        Err(e) => e,
    }
}
