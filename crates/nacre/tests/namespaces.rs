//! Servers and two clients in network namespaces of their own, with addresses of their own. Only root can make those.

mod fixture;

use std::process::Command;

use fixture::{Site, is_root, run, sh};

const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

/// Three namespaces on a bridge; gone when dropped.
struct Net {
    tag: String,
}

impl Net {
    fn new() -> Net {
        let net = Net {
            tag: format!("nc{}", std::process::id() % 100_000),
        };
        let tag = &net.tag;
        sh(&format!(
            "ip link add {tag}br type bridge && ip link set {tag}br up"
        ));
        for (i, host) in ["s", "a", "b"].iter().enumerate() {
            let ip = 10 + i;
            sh(&format!(
                "ip netns add {tag}{host} && ip link add {tag}{host}v type veth peer name eth0 netns {tag}{host} && \
                 ip link set {tag}{host}v master {tag}br up && ip -n {tag}{host} addr add 10.231.77.{ip}/24 dev eth0 && \
                 ip -n {tag}{host} link set eth0 up && ip -n {tag}{host} link set lo up"
            ));
        }
        net
    }

    /// Runs nacre in one of them.
    fn nacre(&self, host: &str, args: &[&str]) -> String {
        let namespace = format!("{}{host}", self.tag);
        // Not `ip netns exec`: that gives the command a mount namespace of its own, and its mounts would be lost.
        let ended = run(Command::new("nsenter")
            .arg(format!("--net=/run/netns/{namespace}"))
            .arg(env!("CARGO_BIN_EXE_nacre"))
            .args(args));
        assert!(ended.ok, "nacre {}: {}", args.join(" "), ended.err);
        ended.out
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let tag = &self.tag;
        for host in ["s", "a", "b"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &format!("{tag}{host}")])
                .output();
        }
        let _ = Command::new("ip")
            .args(["link", "del", &format!("{tag}br")])
            .output();
    }
}

#[test]
fn servers_and_clients_with_addresses_of_their_own_work_together() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let net = Net::new();
    let site = Site::new();
    let dir = site.at("d");
    net.nacre(
        "s",
        &[
            "up",
            "--dir",
            &dir,
            "--no-mount",
            "--osts",
            "2",
            "--fsname",
            "lus",
            "--listen",
            "10.231.77.10@tcp",
        ],
    );
    let mut mounts = Vec::new();
    for host in ["a", "b"] {
        let at = site.at(host);
        sh(&format!("mkdir {at}"));
        net.nacre(host, &["mount", "10.231.77.10@tcp:/lus", &at]);
        mounts.push(at);
    }
    let (a, b) = (&mounts[0], &mounts[1]);
    sh(&format!("cp -a {TREE} {a}/tree && diff -r {TREE} {b}/tree"));
    sh(&format!(
        "for i in $(seq 20); do echo $i > {a}/f; test $(cat {b}/f) = $i; rm {b}/f; test ! -e {a}/f; done"
    ));
    assert_eq!(
        net.nacre("a", &["lctl", "--mount", a, "ping", "10.231.77.11@tcp"])
            .lines()
            .count(),
        2
    );
    for at in &mounts {
        fixture::nacre_ok(&["umount", at]);
    }
    fixture::nacre_ok(&["down", "--dir", &dir]);
}
