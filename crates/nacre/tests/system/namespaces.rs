//! Every server and every client in a network namespace of its own, as hosts on one network are.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::clients::work_together;
use crate::fixture::{Site, nacre_ok, run, sh};

const HOSTS: [&str; 5] = ["mgs", "mdt", "ost", "a", "b"];

/// Hosts on one network; gone when dropped.
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
        // Not `ip netns exec`: that makes a mount namespace too, in which the mount would be hidden.
        let ended = run(Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.host(host)))
            .arg(env!("CARGO_BIN_EXE_nacre"))
            .args(args));
        assert!(ended.ok, "nacre {args:?} on {host}: {}", ended.err);
    }
}

/// Pulls the cable of one host, and plugs it in again. By a process of before: a new one would close, as it starts, what the
/// test has open in a mount that does not answer, and wait for that.
pub(crate) struct Cable {
    ip: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Cable {
    pub(crate) fn of(network: &Network, host: &str) -> Cable {
        let host = network.host(host);
        let each = format!("while read state; do ip -n {host} link set eth0 $state; echo $state; done");
        let mut ip = Command::new("bash")
            .args(["-c", &each])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let answers = BufReader::new(ip.stdout.take().unwrap()).lines();
        Cable { ip, answers }
    }

    /// `up` or `down`.
    pub(crate) fn set(&mut self, state: &str) {
        writeln!(self.ip.stdin.as_ref().unwrap(), "{state}").unwrap();
        assert_eq!(self.answers.next().unwrap().unwrap(), state);
    }
}

impl Drop for Cable {
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

/// A file system of three servers and two clients, each on a host of its own; gives the mount points.
pub(crate) fn on_hosts_of_their_own(site: &mut Site) -> (Network, [String; 2]) {
    let network = Network::new();
    let of_it = ["--fsname", "lus", "--index", "0", "--mgsnode", "10.66.0.1@tcp"];
    let mkfs: [(&str, &str, &[&str]); 3] = [
        ("mgs", "--mgs", &[]),
        ("mdt", "--mdt", &of_it),
        ("ost", "--ost", &of_it),
    ];
    for ((host, kind, more), i) in mkfs.into_iter().zip(1..) {
        let dir = site.directory(host);
        nacre_ok(&[&["mkfs", kind, &dir], more].concat());
        network.nacre(host, &["serve", "--listen", &format!("10.66.0.{i}@tcp"), &dir]);
    }
    let mounts = ["a", "b"].map(|host| {
        let at = site.mount_point(host);
        network.nacre(host, &["mount", "10.66.0.1@tcp:/lus", &at]);
        at
    });
    (network, mounts)
}

#[test]
fn servers_and_clients_on_hosts_of_their_own_work_together() {
    let mut site = Site::new();
    let (_network, mounts) = on_hosts_of_their_own(&mut site);
    work_together(mounts[0].as_ref(), mounts[1].as_ref());
    mounts.iter().for_each(|at| drop(nacre_ok(&["umount", at])));
    ["ost", "mdt", "mgs"].iter().for_each(|host| site.down(host));
}
