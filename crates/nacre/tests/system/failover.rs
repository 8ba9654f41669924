//! Targets move to a standby server under programs of many kinds: no program sees an error, and
//! nothing that a call has confirmed is lost. A server that was stopped in the middle of its work
//! continues afterwards: nothing counts that it writes, and it ends.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::crash_matrix::{SLACK, holds_within};
use crate::file_system::{Addresses, text};
use crate::fixture::{Site, has_ended, nacre_ok, nacre_refuses, sh};
use crate::recovery::{PROGRAMS, Program, sums_in};
use crate::unresponsive_clients::StoppedProcess;

/// Hosts of the servers.
const MGS: u8 = 1;
const MDT: u8 = 2;
const OST: u8 = 3;
/// The second and the third service node of both targets.
const STANDBY: u8 = 4;
const THIRD: u8 = 5;

/// A file system with an MGS, an MDT and an OST in processes of their own.
struct Cluster {
    site: Site,
    addresses: Addresses,
}

impl Cluster {
    /// The targets exist and do not run.
    fn stopped() -> Cluster {
        let cluster = Cluster {
            site: Site::new(),
            addresses: Addresses::new(),
        };
        nacre_ok(&["mkfs", "--mgs", &cluster.site.path_str("mgs")]);
        let mgs = cluster.addresses.nid(MGS);
        for (name, kind, host) in [("mdt", "--mdt", MDT), ("ost", "--ost", OST)] {
            let nodes = [host, STANDBY, THIRD]
                .map(|host| cluster.addresses.nid(host))
                .join(",");
            let dir = cluster.site.path_str(name);
            let identity = ["mkfs", kind, "--fsname", "lus", "--index", "0"];
            let servers = ["--mgsnode", &mgs, "--servicenode", &nodes, &dir];
            nacre_ok(&[&identity[..], &servers].concat());
        }
        cluster
    }

    fn new() -> Cluster {
        let mut cluster = Cluster::stopped();
        for (name, host) in [("mgs", MGS), ("mdt", MDT), ("ost", OST)] {
            let nid = cluster.addresses.nid(host);
            let listen = ["--listen", &nid, "--port", &cluster.addresses.port];
            cluster.site.serve(name, &[], &listen);
        }
        cluster
    }

    /// A standby for both targets.
    fn standby(&self, host: u8, options: &[&str]) -> Standby {
        let [mdt, ost] = ["mdt", "ost"].map(|name| self.site.path_str(name));
        let mut child = Command::new(env!("CARGO_BIN_EXE_nacre"))
            .args(["serve", "--standby", "--foreground", &mdt, &ost])
            .args([
                "--listen",
                &self.addresses.nid(host),
                "--port",
                &self.addresses.port,
            ])
            .args(options)
            .env("NACRE_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(self.standby_log(host)).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("standing by for lus-MDT0000 lus-OST0000"), "{line}");
        Standby(child)
    }

    fn standby_log(&self, host: u8) -> PathBuf {
        self.site.path(&format!("standby-{host}.log"))
    }

    /// Waits until the servers have answered a standby.
    fn wait_for_answer(&self, host: u8) {
        let log = || std::fs::read_to_string(self.standby_log(host)).unwrap();
        assert!(
            holds_within(SLACK, || log().contains("answer: standing by")),
            "{}",
            log()
        );
    }

    fn mount(&mut self, name: &str, host: u8) -> PathBuf {
        let (source, nid) = (self.addresses.source(), self.addresses.nid(host));
        let port = self.addresses.port.clone();
        self.site
            .mount(&source, name, &["--listen", &nid, "--port", &port])
            .into()
    }

    /// Whether this process serves both targets.
    fn serves_all(&self, standby: &Standby) -> bool {
        let ready =
            |name| self.site.path(name).join("run.json").exists() && self.site.pid_in(name) == standby.0.id();
        ready("mdt") && ready("ost")
    }

    /// Unmounts, stops the server of both targets, and checks them.
    fn stop_and_check(&self, mounts: &[&Path]) {
        for mount in mounts {
            nacre_ok(&["umount", text(mount)]);
        }
        self.site.down("mdt");
        let [mdt, ost] = ["mdt", "ost"].map(|name| self.site.path_str(name));
        nacre_ok(&["fsck", "--data", &mdt, &ost]);
    }
}

/// A standby server; it is killed on drop.
struct Standby(Child);

impl Drop for Standby {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts all programs, calls `disturb`, and compares the programs' files with the second mount.
fn check_programs(mount: &Path, second: &Path, disturb: impl FnOnce()) {
    let programs: Vec<_> = PROGRAMS
        .iter()
        .map(|(name, body)| Program::start(mount, name, body))
        .collect();
    disturb();
    for program in programs {
        let name = program.name;
        let (steps, sums) = program.finish();
        assert!(steps > 0, "{name} did nothing");
        assert_eq!(sums_in(&second.join(name)), sums, "{name}, after {steps} steps");
    }
}

/// Lets the programs do some steps: waits until the number of files of one of them grows.
fn let_programs_work(mount: &Path) {
    let count = || std::fs::read_dir(mount.join("creates")).unwrap().count();
    let before = count();
    assert!(holds_within(SLACK, || count() > before + 20));
}

#[test]
fn programs_only_wait_while_targets_move_between_servers_that_are_killed() {
    let mut cluster = Cluster::new();
    let (mount, second) = (cluster.mount("mnt", 8), cluster.mount("second", 9));
    let mut server = cluster.standby(STANDBY, &[]);
    check_programs(&mount, &second, || {
        let_programs_work(&mount);
        cluster.site.kill("mdt");
        cluster.site.kill("ost");
        assert!(holds_within(SLACK, || cluster.serves_all(&server)));
        // Back to the first node, and to the second one again.
        for host in [MDT, STANDBY] {
            let_programs_work(&mount);
            let next = cluster.standby(host, &[]);
            drop(std::mem::replace(&mut server, next));
            assert!(holds_within(SLACK, || cluster.serves_all(&server)));
        }
        let_programs_work(&mount);
    });
    cluster.stop_and_check(&[&mount, &second]);
}

#[test]
fn a_server_that_hangs_loses_its_targets_and_ends_when_it_continues() {
    let mut cluster = Cluster::new();
    let (mount, second) = (cluster.mount("mnt", 8), cluster.mount("second", 9));
    let hanging = ["mdt", "ost"].map(|name| cluster.site.pid_in(name));
    let standby = cluster.standby(STANDBY, &["--standby-timeout", "2"]);
    check_programs(&mount, &second, || {
        let_programs_work(&mount);
        cluster.wait_for_answer(STANDBY);
        let stopped = hanging.map(|pid| StoppedProcess::new(pid.into()));
        assert!(holds_within(SLACK, || cluster.serves_all(&standby)));
        let_programs_work(&mount);
        drop(stopped);
        assert!(holds_within(SLACK, || hanging.iter().all(|pid| has_ended(*pid))));
        let_programs_work(&mount);
    });
    let log = std::fs::read_to_string(cluster.site.path("mdt").join("nacre.log")).unwrap();
    assert!(log.contains("another server has taken the target over"), "{log}");
    assert!(!log.contains("Check its disk"), "{log}");
    // The new server removes the files of the first generation.
    for name in ["mdt", "ost"] {
        let dir = cluster.site.path(name);
        let removed = || !dir.join("index").exists() && !dir.join("lock").exists();
        assert!(holds_within(SLACK, removed), "{name}");
        assert!(dir.join("index.1").is_dir(), "{name}");
    }
    cluster.stop_and_check(&[&mount, &second]);
}

#[test]
fn of_two_standbys_one_takes_over_by_force_and_the_other_waits_on() {
    let mut cluster = Cluster::new();
    let mount = cluster.mount("mnt", 8);
    std::fs::write(mount.join("file"), "data").unwrap();
    let hanging = ["mdt", "ost"].map(|name| cluster.site.pid_in(name));
    let standbys = [STANDBY, THIRD].map(|host| cluster.standby(host, &["--standby-timeout", "2"]));
    for host in [STANDBY, THIRD] {
        cluster.wait_for_answer(host);
    }
    let stopped = hanging.map(|pid| StoppedProcess::new(pid.into()));
    let server = || standbys.iter().position(|standby| cluster.serves_all(standby));
    assert!(holds_within(SLACK, || server().is_some()));
    drop(stopped);
    assert!(holds_within(SLACK, || hanging.iter().all(|pid| has_ended(*pid))));
    assert_eq!(std::fs::read(mount.join("file")).unwrap(), b"data");
    // The server has a new generation once, and the other standby takes over when it ends.
    for name in ["mdt", "ost"] {
        let generation = std::fs::read_to_string(cluster.site.path(name).join("generation")).unwrap();
        assert!(generation.starts_with("0000000001 "), "{generation}");
    }
    let first = server().unwrap();
    let [a, b] = standbys;
    let (ends, next) = if first == 0 { (a, b) } else { (b, a) };
    drop(ends);
    assert!(holds_within(SLACK, || cluster.serves_all(&next)));
    assert_eq!(std::fs::read(mount.join("file")).unwrap(), b"data");
    cluster.stop_and_check(&[&mount]);
}

#[test]
fn a_standby_that_refuses_to_stop_still_takes_over() {
    let mut cluster = Cluster::new();
    let standby = cluster.standby(STANDBY, &[]);
    // A mount of the standby's process, in use.
    let mount = cluster.mount("mnt", STANDBY);
    let in_use = std::fs::File::create(mount.join("file")).unwrap();
    let mut control = UnixStream::connect(format!("/run/nacre/{}.sock", standby.0.id())).unwrap();
    control.write_all(b"{\"op\":\"stop\",\"lazy\":false}\n").unwrap();
    let mut answer = String::new();
    BufReader::new(control).read_line(&mut answer).unwrap();
    assert!(answer.contains("error") && answer.contains("mnt"), "{answer}");
    cluster.site.kill("mdt");
    cluster.site.kill("ost");
    assert!(holds_within(SLACK, || cluster.serves_all(&standby)));
    drop(in_use);
    cluster.stop_and_check(&[&mount]);
}

#[test]
fn a_standby_can_be_stopped_while_it_starts_its_targets() {
    let cluster = Cluster::stopped();
    let mut standby = cluster.standby(STANDBY, &[]);
    let pid = standby.0.id();
    // It has locked the targets, and waits for an MGS that does not run.
    let lock = cluster.site.path("ost").join("lock");
    let has_begun = || std::fs::read_to_string(&lock).is_ok_and(|text| text.contains(&pid.to_string()));
    assert!(holds_within(SLACK, has_begun));
    sh(&format!("kill -TERM {pid}"));
    let has_ended = || standby.0.try_wait().unwrap().is_some();
    assert!(holds_within(SLACK, has_ended));
}

#[test]
fn a_target_is_taken_over_by_hand_and_only_if_it_is_shared() {
    let mut cluster = Cluster::new();
    let mount = cluster.mount("mnt", 8);
    std::fs::write(mount.join("file"), "data").unwrap();
    let hanging = cluster.site.pid_in("ost");
    let stopped = StoppedProcess::new(hanging.into());
    let (ost, nid) = (cluster.site.path_str("ost"), cluster.addresses.nid(STANDBY));
    let listen = ["--listen", &nid, "--port", &cluster.addresses.port];
    let serve = [&["serve", &ost][..], &listen].concat();
    let refused = nacre_refuses(&serve);
    assert!(refused.contains("in use by another process"), "{refused}");
    nacre_ok(&[&serve[..], &["--takeover"]].concat());
    let works = || std::fs::read(mount.join("file")).is_ok_and(|data| data == b"data");
    assert!(holds_within(SLACK, works));
    drop(stopped);
    assert!(holds_within(SLACK, || has_ended(hanging)));
    // The MGS has no list of service nodes.
    let mgs = cluster.site.path_str("mgs");
    let refused = nacre_refuses(&["serve", &mgs, "--takeover"]);
    assert!(
        refused.contains("started without several service nodes"),
        "{refused}"
    );
    let refused = nacre_refuses(&["serve", &mgs, "--standby"]);
    assert!(refused.contains("no list of service nodes"), "{refused}");
}
