//! Namespaces of a test's own, where the caller may make them.

use std::path::Path;
use std::process::{Command, Stdio};

/// The shell stays as the first process of the namespace: it reaps what a test leaves behind.
const SETUP: &str = "mkdir -p /run/nacre /run/netns && mount -t tmpfs -o mode=755 tmpfs /run/nacre && \
                     mount -t tmpfs -o mode=755 tmpfs /run/netns && ip link set lo up && \"$@\"; exit $?";

/// How the processes of tests are kept apart.
pub(super) enum Isolation {
    /// By namespaces.
    Namespaces,
    /// By addresses and directories of their own alone.
    None,
}

impl Isolation {
    /// Tries whether namespaces can be made here; says so where they cannot.
    pub(super) fn probe() -> Isolation {
        let mut tried = Isolation::Namespaces.command(Path::new("true"));
        let quiet = tried
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if quiet.status().is_ok_and(|s| s.success()) {
            return Isolation::Namespaces;
        }
        println!("=== tests share the network and mounts of this machine: namespaces need root");
        Isolation::None
    }

    /// A command that runs this program apart from others.
    pub(super) fn command(&self, program: &Path) -> Command {
        match self {
            Isolation::None => Command::new(program),
            Isolation::Namespaces => {
                let mut command = Command::new("unshare");
                command.args([
                    "--net",
                    "--mount",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount-proc",
                ]);
                command.args(["bash", "-c", SETUP, "test"]).arg(program);
                command
            }
        }
    }
}
