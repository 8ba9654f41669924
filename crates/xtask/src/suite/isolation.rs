//! Separate namespaces for each test, where the user may create them.

use std::path::Path;
use std::process::{Command, Stdio};

/// Script that prepares new namespaces and runs a test. The shell remains as the first process of
/// the PID namespace and reaps orphans of the test.
const SETUP: &str = "mkdir -p /run/nacre /run/netns && mount -t tmpfs -o mode=755 tmpfs /run/nacre && \
                     mount -t tmpfs -o mode=755 tmpfs /run/netns && ip link set lo up && \"$@\"; exit $?";

/// The isolation of test processes.
pub(super) enum Isolation {
    /// Each test process has its own namespaces.
    Namespaces,
    /// Test processes differ only in addresses and directories.
    None,
}

impl Isolation {
    /// Checks whether namespaces can be created; prints a note if not.
    pub(super) fn probe() -> Isolation {
        let mut probe = Isolation::Namespaces.command(Path::new("true"));
        let quiet = probe
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if quiet.status().is_ok_and(|s| s.success()) {
            return Isolation::Namespaces;
        }
        println!("=== tests share the network and mounts of this machine, since namespaces need root");
        Isolation::None
    }

    /// A command that runs a program in isolation.
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
