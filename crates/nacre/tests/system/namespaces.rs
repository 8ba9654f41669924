//! Every server and client in a separate network namespace, like hosts on one network.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::clients::check_coherence;
use crate::fixture::{CommandOutput, Site, nacre_ok, run, sh};

const HOSTS: [&str; 5] = ["mgs", "mdt", "ost", "a", "b"];

/// Hosts on one network; removed on drop.
pub(crate) struct Network {
    tag: String,
}

impl Network {
    fn new() -> Network {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let network = Network {
            tag: format!("n{next}s{}", std::process::id() % 1_000_000),
        };
        let switch = network.host("sw");
        sh(&format!(
            "ip netns add {switch} && ip -n {switch} link add switch type bridge && ip -n {switch} link set switch up"
        ));
        for (host, i) in HOSTS.iter().zip(1..) {
            let namespace = network.host(host);
            sh(&format!(
                "ip netns add {namespace} && ip -n {namespace} link set lo up && \
                 ip -n {switch} link add port{i} type veth peer name eth0 netns {namespace} && \
                 ip -n {switch} link set port{i} master switch up && \
                 ip -n {namespace} addr add 10.66.0.{i}/24 dev eth0 && ip -n {namespace} link set eth0 up"
            ));
        }
        network
    }

    fn host(&self, name: &str) -> String {
        format!("{}-{name}", self.tag)
    }

    /// Runs nacre on a host.
    fn nacre(&self, host: &str, args: &[&str]) {
        let result = self.try_nacre(host, args);
        assert!(result.ok, "nacre {args:?} on {host}: {}", result.err);
    }

    fn try_nacre(&self, host: &str, args: &[&str]) -> CommandOutput {
        // `ip netns exec` would also create a mount namespace, in which the mount would be hidden.
        run(Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.host(host)))
            .arg(env!("CARGO_BIN_EXE_nacre"))
            .args(args))
    }
}

/// Disconnects and reconnects the network of one host, through a shell that starts in advance. The
/// start of a process would close the test's files in an unresponsive mount, and block.
pub(crate) struct NetworkLink {
    ip: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl NetworkLink {
    /// Sets the state of the host's own interface.
    pub(crate) fn of(network: &Network, host: &str) -> NetworkLink {
        let host = network.host(host);
        NetworkLink::with_command(&format!("ip -n {host} link set eth0 $state"))
    }

    /// Disconnects the host beyond the switch: the host keeps its link, but no peer answers.
    /// (Setting the state of the bridge port does not work: the kernel resets it to forwarding when
    /// it later notices the carrier.)
    pub(crate) fn behind_the_switch(network: &Network, host: &str) -> NetworkLink {
        let switch = network.host("sw");
        let port = 1 + HOSTS.iter().position(|h| *h == host).unwrap();
        NetworkLink::with_command(&format!(
            "case $state in up) to='master switch';; down) to=nomaster;; esac; ip -n {switch} link set port{port} $to"
        ))
    }

    /// Starts a shell that runs `line` for each state that it reads, in the variable `state`.
    fn with_command(line: &str) -> NetworkLink {
        let mut ip = Command::new("bash")
            .args(["-c", &format!("while read state; do {line} && echo $state; done")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(ip.stdout.take().unwrap()).lines();
        NetworkLink { ip, answers }
    }

    /// Sets the link `up` or `down`.
    pub(crate) fn set(&mut self, state: &str) {
        writeln!(self.ip.stdin.as_ref().unwrap(), "{state}").unwrap();
        assert_eq!(self.answers.next().unwrap().unwrap(), state);
    }
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        let _ = self.ip.kill();
        let _ = self.ip.wait();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in HOSTS.iter().chain(&["sw"]) {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.host(host)])
                .output();
        }
    }
}

/// Starts a file system of three servers and two clients on separate hosts; returns the mount
/// points.
pub(crate) fn start_on_separate_hosts(site: &mut Site) -> (Network, [String; 2]) {
    let network = Network::new();
    let target_options = ["--fsname", "lus", "--index", "0", "--mgsnode", "10.66.0.1@tcp"];
    let mkfs: [(&str, &str, &[&str]); 3] = [
        ("mgs", "--mgs", &["--server-nids", "10.66.0.[2-3]@tcp"]),
        ("mdt", "--mdt", &target_options),
        ("ost", "--ost", &target_options),
    ];
    for ((host, kind, options), i) in mkfs.into_iter().zip(1..) {
        let dir = site.directory(host);
        nacre_ok(&[&["mkfs", kind, &dir], options].concat());
        network.nacre(host, &["serve", "--listen", &format!("10.66.0.{i}@tcp"), &dir]);
    }
    let mounts = ["a", "b"].map(|host| {
        let mount = site.mount_point(host);
        network.nacre(host, &["mount", "10.66.0.1@tcp:/lus", &mount]);
        mount
    });
    (network, mounts)
}

#[test]
fn remote_target_needs_server_nids_or_token_to_register() {
    let mut site = Site::new();
    let network = Network::new();
    let target = |site: &mut Site, host: &str, kind: &str, options: &[&str]| -> String {
        let dir = site.directory(host);
        let target_options = ["--fsname", "lus", "--index", "0", "--mgsnode", "10.66.0.1@tcp"];
        let target_options: &[&str] = if kind == "--mgs" { &[] } else { &target_options };
        nacre_ok(&[&["mkfs", kind, &dir], target_options, options].concat());
        dir
    };
    let mgs = target(&mut site, "mgs", "--mgs", &[]);
    let token = format!("{mgs}/join-token");
    let mdt = target(&mut site, "mdt", "--mdt", &[]);
    let ost = target(&mut site, "ost", "--ost", &["--token-file", &token]);
    network.nacre("mgs", &["serve", "--listen", "10.66.0.1@tcp", &mgs]);
    let serve_mdt = ["serve", "--listen", "10.66.0.2@tcp", &mdt];
    let failure = network.try_nacre("mdt", &serve_mdt);
    assert!(!failure.ok, "{}", failure.out);
    for part in [
        "lus-MDT0000",
        "10.66.0.2@tcp",
        "mgs.MGS.server_nids",
        "join-token",
    ] {
        assert!(failure.err.contains(part), "{}", failure.err);
    }
    nacre_ok(&[
        "lctl",
        "--dir",
        &mgs,
        "set_param",
        "mgs.MGS.server_nids=10.66.0.2@tcp",
    ]);
    network.nacre("mdt", &serve_mdt);
    network.nacre("ost", &["serve", "--listen", "10.66.0.3@tcp", &ost]);
    let mount = site.mount_point("a");
    network.nacre("a", &["mount", "10.66.0.1@tcp:/lus", &mount]);
    sh(&format!(
        "echo hello > {mount}/f && test $(cat {mount}/f) = hello"
    ));
    nacre_ok(&["umount", &mount]);
    ["ost", "mdt", "mgs"].iter().for_each(|host| site.down(host));
}

#[test]
fn servers_and_clients_on_separate_hosts_work_together() {
    let mut site = Site::new();
    let (_network, mounts) = start_on_separate_hosts(&mut site);
    check_coherence(mounts[0].as_ref(), mounts[1].as_ref());
    mounts.iter().for_each(|at| drop(nacre_ok(&["umount", at])));
    ["ost", "mdt", "mgs"].iter().for_each(|host| site.down(host));
}
