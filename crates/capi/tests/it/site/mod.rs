//! What tests of the library stand on: a file system on the network, in this process; programs in C, built against the
//! header and the library that cargo has built; and runs of them that end.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it")]

use crate::cluster::{Cluster, FSNAME};
use cpt::CptTable;
use lnet::{Accept, Lnet, LnetConfig, NiSpec};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use wire::Nid;

const LIBRARY: &str = "libnacre.so";
/// A program that takes longer has hung.
const PROGRAM_MAX: Duration = Duration::from_secs(240);

/// A file system that other processes can mount, and a directory for what is built.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    lnet: std::sync::Arc<Lnet>,
    nid: Nid,
    port: u16,
    built: tempfile::TempDir,
    library: PathBuf,
    other_host: Option<OtherHost>,
}

/// A network namespace with a cable to this one: another host. Removed with the test.
struct OtherHost {
    name: String,
}

impl OtherHost {
    /// This end of the cable.
    const HERE: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 1);

    fn new() -> OtherHost {
        let name = format!("nacre-c-{}", std::process::id());
        let host = OtherHost { name };
        let (name, here) = (&host.name, OtherHost::HERE);
        let made = Command::new("bash")
            .arg("-euc")
            .arg(format!(
                "ip netns add {name}
                 ip link add c{pid} type veth peer name eth0 netns {name}
                 ip addr add {here}/30 dev c{pid}
                 ip link set c{pid} up
                 ip -n {name} link set lo up
                 ip -n {name} addr add 10.67.0.2/30 dev eth0
                 ip -n {name} link set eth0 up",
                pid = std::process::id()
            ))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        host
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// The package's directory.
pub(crate) fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo has put `libnacre.so`: beside the test itself, which it builds after it.
pub(crate) fn library_dir() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().unwrap().to_owned();
    assert!(
        dir.join("libnacre.so").exists(),
        "no libnacre.so in {}",
        dir.display()
    );
    dir
}

impl Site {
    /// With so many OSTs.
    pub(crate) async fn start(osts: u32) -> Site {
        Site::start_at(Ipv4Addr::new(127, 0, 1, 1), osts, None).await
    }

    /// With one OST and another host: on the servers' own host, no user but theirs and root may connect. Needs root.
    pub(crate) async fn start_with_another_host() -> Site {
        Site::start_at(OtherHost::HERE, 1, Some(OtherHost::new())).await
    }

    async fn start_at(address: Ipv4Addr, osts: u32, other_host: Option<OtherHost>) -> Site {
        // A port of its own: other tests have the usual ones.
        let free = TcpListener::bind((address, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let nid = Nid::tcp(address, 0);
        let config = LnetConfig {
            accept_port: port,
            // The programs of an ordinary user have no reserved port.
            accept: Accept::All,
            ..LnetConfig::default()
        };
        let lnet = Lnet::new(CptTable::single_current(), config);
        lnet.add_ni(&NiSpec::new(nid)).unwrap();
        Site {
            cluster: Cluster::start_on(lnet.clone(), osts).await,
            lnet,
            nid,
            port,
            built: tempfile::tempdir().unwrap(),
            library: library_dir(),
            other_host,
        }
    }

    /// What programs are told: what to mount, and how.
    pub(crate) fn told(&self) -> [String; 2] {
        [
            format!("{}:/{FSNAME}", self.nid),
            format!("port={},threads=2", self.port),
        ]
    }

    /// Builds a program with a compiler and its words.
    pub(crate) fn build(&self, source: &Path, compiler: &[&str]) -> PathBuf {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let to = self.built.path().join(format!("{name}-{}", compiler[0]));
        let mut command = Command::new(compiler[0]);
        command
            .args(&compiler[1..])
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"])
            .arg("-I")
            .arg(here().join("include"))
            .arg(source)
            .arg("-o")
            .arg(&to)
            .arg("-L")
            .arg(&self.library)
            .arg("-lnacre")
            .arg(format!("-Wl,-rpath,{}", self.library.display()));
        let done = command.output().unwrap_or_else(|e| {
            panic!(
                "{} cannot be run ({e}): `cargo xtask setup` installs it",
                compiler[0]
            )
        });
        assert!(
            done.status.success(),
            "{command:?}\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
        to
    }

    /// Runs a program to its end, which must be a good one, beside the servers in this process; gives what it says.
    pub(crate) async fn run(&self, command: Command) -> String {
        tokio::task::spawn_blocking(move || run(command, true))
            .await
            .unwrap()
    }

    /// What a program says until it ends, well or not.
    pub(crate) async fn said(&self, command: Command) -> String {
        tokio::task::spawn_blocking(move || run(command, false))
            .await
            .unwrap()
    }

    /// A place outside of cargo's, where every user of this machine may read: programs built there take the library along.
    pub(crate) fn for_everybody(&mut self) {
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.built.path(), readable).unwrap();
        let library = self.built.path().join(LIBRARY);
        std::fs::copy(self.library.join(LIBRARY), &library).unwrap();
        self.library = self.built.path().to_owned();
    }

    /// A program with what it is told.
    pub(crate) fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(self.told());
        command
    }

    /// The same as an ordinary user of the other host, or as the user of the test where there is no other host.
    pub(crate) fn program_of_a_user(&self, program: &Path, user: u32) -> Command {
        let Some(host) = &self.other_host else {
            return self.program(program);
        };
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", host.name))
            .args(["setpriv", "--clear-groups"])
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .arg(program)
            .args(self.told());
        command
    }

    pub(crate) async fn stop(self) {
        self.cluster.stop().await;
        self.lnet.shutdown().await;
    }
}

/// Ended with the test, whatever became of it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(mut command: Command, well: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file("out"))
        .stderr(file("err"));
    let child = command.spawn();
    let mut child = Running(child.unwrap_or_else(|e| {
        panic!(
            "{} cannot be run ({e}): `cargo xtask setup` installs it",
            command.get_program().display()
        )
    }));
    let (deadline, said) = (Instant::now() + PROGRAM_MAX, |name: &str| {
        std::fs::read_to_string(dir.path().join(name)).unwrap()
    });
    loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            assert!(
                !well || status.success(),
                "{command:?}: {status}\n{}{}",
                said("out"),
                said("err")
            );
            return said("out");
        }
        assert!(
            Instant::now() < deadline,
            "hangs: {command:?}\n{}{}",
            said("out"),
            said("err")
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
