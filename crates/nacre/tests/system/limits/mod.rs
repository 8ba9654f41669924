//! Exhausted resources: space, inodes, locks, descriptors, memory. Programs get the right errno,
//! the service continues, data stays intact, and released resources can be used again.
//!
//! The tests need root, loop devices and `/dev/fuse`, and fail without them.

#![allow(clippy::unwrap_used)]

pub(crate) mod disk;
mod failing_disk;
mod files;
mod locks;
mod memory;
mod space;

use std::time::{Duration, Instant};

use crate::fixture::{self, Site, nacre_ok, sh};

/// Time limit of [`wait_until`].
const WAIT_MAX: Duration = Duration::from_secs(120);

/// The servers of a file system, with addresses and a port that no other test uses.
struct Servers {
    net: u8,
    port: String,
}

impl Servers {
    fn new(net: u8) -> Servers {
        Servers {
            net,
            port: (17900 + u16::from(net)).to_string(),
        }
    }

    fn nid(&self, host: u8) -> String {
        format!("127.0.{}.{host}@tcp", self.net)
    }

    /// Starts the MGS and an MDT in the site.
    fn start_mgs_and_mdt(&self, site: &mut Site) {
        self.serve(site, "mgs", 1, &["--mgs"]);
        self.serve(site, "mdt", 2, &["--mdt"]);
    }

    /// Starts a target in the site.
    fn serve(&self, site: &mut Site, name: &str, host: u8, mkfs: &[&str]) {
        let (nid, mgs) = (self.nid(host), self.nid(1));
        let target_options = ["--fsname", "lus", "--mgsnode", &mgs];
        let mkfs = match name {
            "mgs" => mkfs.to_vec(),
            _ => [mkfs, &target_options].concat(),
        };
        site.serve(name, &mkfs, &["--listen", &nid, "--port", &self.port]);
    }

    fn mount(&self, site: &mut Site) -> String {
        let source = format!("{}:/lus", self.nid(1));
        site.mount(&source, "mnt", &["--port", &self.port])
    }
}

/// Sets a parameter in the process that serves a directory.
fn set_param(site: &Site, name: &str, assignment: &str) {
    nacre_ok(&["lctl", "set_param", "--dir", &site.path_str(name), assignment]);
}

/// The value of a parameter that matches only one object.
fn get_param(site: &Site, name: &str, param: &str) -> String {
    nacre_ok(&["lctl", "get_param", "-n", "--dir", &site.path_str(name), param])
        .trim()
        .to_owned()
}

/// Waits until a condition holds; `expectation` describes the condition.
fn wait_until(expectation: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "not within {WAIT_MAX:?}: {expectation}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs a shell command that must fail with this error message; returns its output.
fn assert_fails(line: &str, errno: &str) -> String {
    let result = fixture::run(std::process::Command::new("bash").args(["-c", line]));
    assert!(!result.ok, "did not fail: {line}\n{}", result.out);
    assert!(
        result.err.contains(errno),
        "{line}: expected '{errno}', found: {}",
        result.err
    );
    result.out
}

/// Bytes available to users below a path.
fn available_bytes(path: &str) -> u64 {
    sh(&format!("stat -fc '%a %S' {path} | awk '{{print $1 * $2}}'"))
        .trim()
        .parse()
        .unwrap()
}
