//! A file system of Nacre for the tests of another project or of the Python package.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::stage::{Stage, root};

/// Where and how to start a file system.
pub(crate) struct Settings<'a> {
    /// The name of the directory in `target/conformance`.
    pub(crate) name: &'a str,
    /// The address of the servers; each instance needs its own.
    pub(crate) address: &'a str,
    /// The port of the servers.
    pub(crate) port: u16,
    /// Whether to mount the file system too.
    pub(crate) mounted: bool,
}

/// A running file system in `target/conformance`; stopped and deleted on drop.
pub(crate) struct Instance {
    nacre: PathBuf,
    dir: PathBuf,
    nid: String,
}

impl Instance {
    /// Starts an empty file system with two OSTs, in place of one that an interrupted run left.
    /// `bin` contains `nacre`.
    pub(crate) fn start(bin: &Path, settings: &Settings<'_>) -> Result<Instance, String> {
        let instance = Instance {
            nacre: bin.join("nacre"),
            dir: root().join("target/conformance").join(settings.name),
            nid: format!("{}@tcp", settings.address),
        };
        if instance.dir.exists() {
            instance.remove();
        }
        let mut up = Command::new(&instance.nacre);
        up.args(["up", "--osts", "2", "--listen", &instance.nid]);
        up.args(["--port", &settings.port.to_string(), "--dir"]);
        up.arg(&instance.dir);
        up.args((!settings.mounted).then_some("--no-mount"));
        Stage::new("start Nacre").run(up)?;
        Ok(instance)
    }

    /// Sets a parameter of the servers: `NAME=VALUE`.
    pub(crate) fn set_param(&self, setting: &str) -> Result<(), String> {
        let mut lctl = Command::new(&self.nacre);
        lctl.args(["lctl", "--dir"]).arg(&self.dir);
        lctl.args(["set_param", setting]);
        Stage::new("set a parameter").run(lctl)
    }

    /// The mount point of a mounted instance.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// The source for mount(8).
    pub(crate) fn source(&self) -> String {
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
