//! A file system of Nacre for a test suite.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Stage, root};

/// A running file system in `target/conformance`; stopped and deleted on drop.
pub(super) struct Instance {
    nacre: PathBuf,
    dir: PathBuf,
    nid: String,
}

impl Instance {
    /// Starts an empty file system with two OSTs in `target/conformance/NAME`, in place of one that
    /// an interrupted run left. `bin` contains `nacre`. Each instance needs its own address.
    /// `mounted`: also mounts the file system.
    pub(super) fn start(bin: &Path, name: &str, address: &str, mounted: bool) -> Result<Instance, String> {
        let instance = Instance {
            nacre: bin.join("nacre"),
            dir: root().join("target/conformance").join(name),
            nid: format!("{address}@tcp"),
        };
        if instance.dir.exists() {
            instance.remove();
        }
        let mut up = Command::new(&instance.nacre);
        up.args(["up", "--osts", "2", "--listen", &instance.nid, "--dir"]);
        up.arg(&instance.dir);
        up.args((!mounted).then_some("--no-mount"));
        Stage::new("start Nacre").run(up)?;
        Ok(instance)
    }

    /// Sets a parameter of the servers: `NAME=VALUE`.
    pub(super) fn set_param(&self, setting: &str) -> Result<(), String> {
        let mut lctl = Command::new(&self.nacre);
        lctl.args(["lctl", "--dir"]).arg(&self.dir);
        lctl.args(["set_param", setting]);
        Stage::new("set a parameter").run(lctl)
    }

    /// The mount point of a mounted instance.
    pub(super) fn mount_point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// The source for mount(8).
    pub(super) fn source(&self) -> String {
        format!("{}:/nacre", self.nid)
    }

    fn remove(&self) {
        for args in [&["down", "--dir"][..], &["destroy", "--yes"]] {
            let ended = Command::new(&self.nacre).args(args).arg(&self.dir).status();
            if !ended.as_ref().is_ok_and(|status| status.success()) {
                eprintln!("!!! nacre {} {}: {ended:?}", args[0], self.dir.display());
            }
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.remove();
    }
}
