//! Every server and every client in a network namespace of its own, as hosts on one network are.

use std::process::Command;

use crate::clients::work_together;
use crate::fixture::{Site, nacre_ok, run, sh};

const HOSTS: [&str; 5] = ["mgs", "mdt", "ost", "a", "b"];

/// Hosts on one network; gone when dropped.
struct Network {
    tag: String,
}

impl Network {
    fn new() -> Network {
        let network = Network {
            tag: format!("ns{}", std::process::id() % 1_000_000),
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

impl Drop for Network {
    fn drop(&mut self) {
        for host in HOSTS.iter().chain(&["sw"]) {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.host(host)])
                .output();
        }
    }
}

#[test]
fn servers_and_clients_on_hosts_of_their_own_work_together() {
    let network = Network::new();
    let mut site = Site::new();
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
    work_together(mounts[0].as_ref(), mounts[1].as_ref());
    mounts.iter().for_each(|at| drop(nacre_ok(&["umount", at])));
    ["ost", "mdt", "mgs"].iter().for_each(|host| site.down(host));
}
