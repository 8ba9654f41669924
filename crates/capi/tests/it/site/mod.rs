//! The test site: a file system in this process that other processes can mount. Also builds C
//! programs against the header and the library that cargo has built, and runs them with a timeout.

#![allow(clippy::unwrap_used)]

use cpt::CptTable;
use lnet::{Accept, Lnet, LnetConfig, NiSpec};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use testkit::{Cluster, FSNAME};
use wire::Nid;

const LIBRARY: &str = "libnacre.so";
/// A program that runs longer than this has failed.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(240);

/// A file system that other processes can mount, and a directory for built programs.
pub(crate) struct TestSite {
    pub(crate) cluster: Cluster,
    nid: Nid,
    port: u16,
    /// The directory of the built programs.
    programs: tempfile::TempDir,
    /// The directory of the library.
    library: PathBuf,
    other_host: Option<OtherHost>,
}

/// Another host: a network namespace with a virtual cable to this one. Removed on drop.
struct OtherHost {
    name: String,
}

impl OtherHost {
    /// The address at this end of the cable.
    const HERE: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 1);

    fn new() -> OtherHost {
        let name = format!("nacre-c-{}", std::process::id());
        let host = OtherHost { name };
        let (name, address) = (&host.name, OtherHost::HERE);
        let output = Command::new("bash")
            .arg("-euc")
            .arg(format!(
                "ip netns add {name}
                 ip link add c{pid} type veth peer name eth0 netns {name}
                 ip addr add {address}/30 dev c{pid}
                 ip link set c{pid} up
                 ip -n {name} link set lo up
                 ip -n {name} addr add 10.67.0.2/30 dev eth0
                 ip -n {name} link set eth0 up",
                pid = std::process::id()
            ))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        host
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

/// The package's directory.
pub(crate) fn package_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The directory of `libnacre.so`: cargo puts it beside the test binary.
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

impl TestSite {
    /// A site with `osts` OSTs.
    pub(crate) async fn start(osts: u32) -> TestSite {
        TestSite::start_at(Ipv4Addr::new(127, 0, 1, 1), osts, None).await
    }

    /// A site with one OST and another host. Needs root. An ordinary user must connect from another
    /// host: from the servers' host, the servers accept only connections of root and of the user
    /// that runs them.
    pub(crate) async fn start_with_another_host() -> TestSite {
        TestSite::start_at(OtherHost::HERE, 1, Some(OtherHost::new())).await
    }

    async fn start_at(address: Ipv4Addr, osts: u32, other_host: Option<OtherHost>) -> TestSite {
        // A free port: other tests use the default ports.
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let nid = Nid::tcp(address, 0);
        let config = LnetConfig {
            accept_port: port,
            // An ordinary user's programs cannot bind a reserved port.
            accept: Accept::All,
            ..LnetConfig::default()
        };
        let lnet = Lnet::new(CptTable::single_current(), config);
        lnet.add_ni(&NiSpec::new(nid)).unwrap();
        TestSite {
            cluster: Cluster::start_on(lnet, osts).await,
            nid,
            port,
            programs: tempfile::tempdir().unwrap(),
            library: library_dir(),
            other_host,
        }
    }

    /// The arguments of test programs: mount source and options.
    pub(crate) fn mount_args(&self) -> [String; 2] {
        [
            format!("{}:/{FSNAME}", self.nid),
            format!("port={},threads=2", self.port),
        ]
    }

    /// Builds a program with a compiler and its options; returns the path of the program.
    pub(crate) fn build(&self, source: &Path, compiler: &[&str]) -> PathBuf {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let to = self.programs.path().join(format!("{name}-{}", compiler[0]));
        let mut command = Command::new(compiler[0]);
        command
            .args(&compiler[1..])
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"])
            .arg("-I")
            .arg(package_dir().join("include"))
            .arg(source)
            .arg("-o")
            .arg(&to)
            .arg("-L")
            .arg(&self.library)
            .arg("-lnacre")
            .arg(format!("-Wl,-rpath,{}", self.library.display()));
        let output = command.output().unwrap_or_else(|e| {
            panic!(
                "{} cannot be run ({e}): `cargo xtask setup` installs it",
                compiler[0]
            )
        });
        assert!(
            output.status.success(),
            "{command:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        to
    }

    /// Runs a program that must succeed, beside the servers in this process; returns its output.
    pub(crate) async fn run(&self, command: Command) -> String {
        tokio::task::spawn_blocking(move || run(command, true))
            .await
            .unwrap()
    }

    /// Runs a program, successful or not; returns its output.
    pub(crate) async fn output_of(&self, command: Command) -> String {
        tokio::task::spawn_blocking(move || run(command, false))
            .await
            .unwrap()
    }

    /// Makes the library, and the programs that [`TestSite::build`] builds afterwards, readable for
    /// every user of this machine.
    pub(crate) fn make_readable_by_all(&mut self) {
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.programs.path(), readable).unwrap();
        let library = self.programs.path().join(LIBRARY);
        std::fs::copy(self.library.join(LIBRARY), &library).unwrap();
        self.library = self.programs.path().to_owned();
    }

    /// The command that runs a test program with [`TestSite::mount_args`].
    pub(crate) fn program(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(self.mount_args());
        command
    }

    /// As [`TestSite::program`], but runs the program as an ordinary user of the other host, if the
    /// site has one.
    pub(crate) fn program_as_user(&self, program: &Path, user: u32) -> Command {
        let Some(host) = &self.other_host else {
            return self.program(program);
        };
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", host.name))
            .args(["setpriv", "--clear-groups"])
            .args([format!("--reuid={user}"), format!("--regid={user}")])
            .arg(program)
            .args(self.mount_args());
        command
    }

    pub(crate) async fn stop(self) {
        self.cluster.stop().await;
    }
}

/// A child process, killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command with a timeout; returns its standard output.
fn run(mut command: Command, must_succeed: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file("out"))
        .stderr(file("err"));
    let child = command.spawn();
    let mut child = KillOnDrop(child.unwrap_or_else(|e| {
        panic!(
            "{} cannot be run ({e}): `cargo xtask setup` installs it",
            command.get_program().display()
        )
    }));
    let (deadline, output) = (Instant::now() + PROGRAM_TIME_MAX, |name: &str| {
        std::fs::read_to_string(dir.path().join(name)).unwrap()
    });
    loop {
        if let Some(status) = child.0.try_wait().unwrap() {
            assert!(
                !must_succeed || status.success(),
                "{command:?}: {status}\n{}{}",
                output("out"),
                output("err")
            );
            return output("out");
        }
        assert!(
            Instant::now() < deadline,
            "timeout: {command:?}\n{}{}",
            output("out"),
            output("err")
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
