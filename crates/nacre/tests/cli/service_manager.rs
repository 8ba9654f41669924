//! Processes under a service manager: messages about their state, and the journal as their log.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::fixture::{Site, nacre, nacre_ok, sh};

/// Time limit for a message.
const MESSAGE_MAX: Duration = Duration::from_secs(60);

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    path: String,
}

impl Manager {
    fn new(site: &Site) -> Manager {
        let path = site.path_str("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(MESSAGE_MAX)).expect("a time limit");
        Manager { socket, path }
    }

    /// Starts nacre as a unit of the manager.
    fn start(&self, args: &[&str]) -> Unit {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("NOTIFY_SOCKET", &self.path);
        Unit(command.spawn().expect("nacre"))
    }

    /// The next message.
    fn message(&self) -> String {
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).expect("a message");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }
}

/// A process that the manager started; killed on drop.
struct Unit(Child);

impl Unit {
    fn succeeds(&mut self) -> bool {
        self.0.wait().expect("its status").success()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn service_manager_learns_when_a_file_system_is_up_and_stops() {
    let mut site = Site::new();
    let manager = Manager::new(&site);
    let mut process = manager.start(&["up", "--foreground", "--dir", &site.directory("d")]);
    let ready = manager.message();
    assert!(
        ready.starts_with("READY=1\nSTATUS=nacre is up, mounted on "),
        "{ready}"
    );
    sh(&format!("touch {}/mnt/f", site.path_str("d")));
    sh(&format!("kill {}", process.0.id()));
    assert_eq!(manager.message(), "STOPPING=1\nSTATUS=stopping\n");
    assert!(process.succeeds());
}

#[test]
fn service_manager_learns_that_a_target_waits_for_the_mgs() {
    let mut site = Site::new();
    let manager = Manager::new(&site);
    let [mgs, mdt] = ["mgs", "mdt"].map(|name| site.directory(name));
    nacre_ok(&["mkfs", "--mgs", &mgs]);
    nacre_ok(&[
        "mkfs",
        "--mdt",
        "--fsname",
        "fs",
        "--mgsnode",
        "127.0.0.9@tcp",
        &mdt,
    ]);
    let mut process = manager.start(&["serve", "--foreground", &mdt]);
    let status = manager.message();
    let waiting = "STATUS=fs-MDT0000: waiting at most 300 s (--wait) for the MGS to register it: ";
    assert!(status.starts_with(waiting), "{status}");
    nacre_ok(&["serve", &mgs, "--listen", "127.0.0.9@tcp"]);
    let ready = manager.message();
    assert!(ready.starts_with("READY=1\nSTATUS=serving fs-MDT0000"), "{ready}");
    nacre_ok(&["down", "--dir", &mdt]);
    assert_eq!(manager.message(), "STOPPING=1\nSTATUS=stopping\n");
    assert!(process.succeeds());
}

#[test]
fn command_that_returns_sends_no_messages() {
    let mut site = Site::new();
    let manager = Manager::new(&site);
    let mut command = manager.start(&["up", "--no-mount", "--dir", &site.directory("d")]);
    assert!(command.succeeds());
    manager.socket.set_nonblocking(true).expect("a flag");
    assert!(manager.socket.recv(&mut [0; 64]).is_err(), "no message");
}

#[test]
fn process_with_the_journal_as_standard_error_logs_priorities_there() {
    let mut site = Site::new();
    let dir = site.directory("d");
    let journal = std::fs::File::create(site.path("journal")).expect("a file");
    let meta = journal.metadata().expect("its inode");
    let up = Command::new(env!("CARGO_BIN_EXE_nacre"))
        .args(["up", "--no-mount", "--dir", &dir])
        .env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(journal)
        .status()
        .expect("nacre");
    assert!(up.success());
    let status = nacre_ok(&["status", "--dir", &dir]);
    assert!(status.contains("the journal"), "{status}");
    site.down("d");
    let log = sh(&format!("cat {}", site.path_str("journal")));
    assert!(log.lines().count() > 1, "{log}");
    for line in log.lines() {
        let text = line.strip_prefix("<6>").or_else(|| line.strip_prefix("<4>"));
        // A time stamp begins with the year, the level follows it.
        let is_plain = |text: &str| !text.starts_with("20") && !text.contains("INFO");
        assert!(text.is_some_and(|text| is_plain(text.trim_start())), "{log}");
    }
    assert!(!site.path("d/nacre.log").exists());
    assert_eq!(nacre(&["status", "--dir", &dir]).code, Some(3));
}
