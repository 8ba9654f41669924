//! Servers and two clients in network namespaces of their own, with addresses of their own. Only root can make those.

use std::process::Command;

use crate::fixture::{self, Site, is_root, run, sh};

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
        nacre_in(&format!("{}{host}", self.tag), args)
    }
}

fn nacre_in(namespace: &str, args: &[&str]) -> String {
    // Not `ip netns exec`: that gives the command a mount namespace of its own, and its mounts would be lost.
    let ended = run(Command::new("nsenter")
        .arg(format!("--net=/run/netns/{namespace}"))
        .arg(env!("CARGO_BIN_EXE_nacre"))
        .args(args));
    assert!(ended.ok, "nacre {}: {}", args.join(" "), ended.err);
    ended.out
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

/// A client, a router and a server, each in a namespace: the client on one network, the server on another.
struct Routed {
    tag: String,
}

impl Routed {
    fn new() -> Routed {
        let net = Routed {
            tag: format!("nr{}", std::process::id() % 100_000),
        };
        let tag = &net.tag;
        for host in ["a", "r", "s"] {
            sh(&format!(
                "ip netns add {tag}{host} && ip -n {tag}{host} link set lo up"
            ));
        }
        for (host, n, of_router) in [("a", 78, "eth0"), ("s", 79, "eth1")] {
            sh(&format!(
                "ip -n {tag}r link add {of_router} type veth peer name eth0 netns {tag}{host} && \
                 ip -n {tag}r addr add 10.231.{n}.1/24 dev {of_router} && ip -n {tag}r link set {of_router} up && \
                 ip -n {tag}{host} addr add 10.231.{n}.2/24 dev eth0 && ip -n {tag}{host} link set eth0 up"
            ));
        }
        net
    }

    fn nacre(&self, host: &str, args: &[&str]) -> String {
        nacre_in(&format!("{}{host}", self.tag), args)
    }
}

impl Drop for Routed {
    fn drop(&mut self) {
        for host in ["a", "r", "s"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &format!("{}{host}", self.tag)])
                .output();
        }
    }
}

#[test]
fn a_mount_works_through_a_router() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let net = Routed::new();
    let site = Site::new();
    let (router, servers, at) = (site.at("r"), site.at("d"), site.at("m"));
    let lnetctl = |args: &[&str]| {
        let all: Vec<&str> = ["lnetctl", "--dir", &router]
            .iter()
            .chain(args)
            .copied()
            .collect();
        net.nacre("r", &all)
    };
    let both = "networks=tcp(eth0),tcp1(eth1)";
    lnetctl(&[
        "lnet",
        "configure",
        "--param",
        both,
        "--param",
        "forwarding=enabled",
    ]);
    net.nacre(
        "s",
        &[
            "up",
            "--dir",
            &servers,
            "--no-mount",
            "--fsname",
            "lus",
            "--param",
            "networks=tcp1(eth0)",
            "--param",
            "routes=tcp 10.231.79.1@tcp1",
        ],
    );
    sh(&format!("mkdir {at}"));
    net.nacre(
        "a",
        &[
            "mount",
            "10.231.79.2@tcp1:/lus",
            &at,
            "--param",
            "networks=tcp",
            "--param",
            "routes=tcp1 10.231.78.1@tcp",
        ],
    );
    sh(&format!("cp -a {TREE} {at}/tree && diff -r {TREE} {at}/tree"));
    // More than a cache holds back: bulk of a MiB each way.
    sh(&format!(
        "head -c 50000000 /dev/urandom > {0} && cp {0} {at}/f && cmp {0} {at}/f",
        site.at("random")
    ));
    net.nacre("a", &["umount", &at]);
    net.nacre(
        "a",
        &[
            "mount",
            "10.231.79.2@tcp1:/lus",
            &at,
            "--param",
            "networks=tcp(eth0)",
            "--param",
            "routes=tcp1 10.231.78.1@tcp",
        ],
    );
    sh(&format!("cmp {} {at}/f", site.at("random")));
    let routes = net.nacre("a", &["lctl", "--mount", &at, "get_param", "-n", "routes"]);
    assert!(routes.contains("up 10.231.78.1@tcp"), "{routes}");
    let nis = net.nacre("a", &["lctl", "--mount", &at, "get_param", "nis", "peers"]);
    assert!(
        nis.contains("10.231.78.2@tcp") && nis.contains("10.231.78.1@tcp"),
        "{nis}"
    );
    assert!(!nis.contains("@tcp1"), "the ends are not connected: {nis}");

    // What the router says of itself, and what it is told.
    let stats = lnetctl(&["stats", "show"]);
    let routed = stats.lines().find_map(|l| l.trim().strip_prefix("route_count: "));
    let routed = routed.and_then(|n| n.parse::<u64>().ok());
    assert!(routed.is_some_and(|n| n > 200), "{stats}");
    let routing = lnetctl(&["routing", "show"]);
    assert!(
        routing.contains("enable: 1") && routing.contains("large: 1024"),
        "{routing}"
    );
    lnetctl(&["net", "add", "--nid", "127.0.0.1@tcp5", "--peer-credits", "16"]);
    let shown = lnetctl(&["net", "show", "--net", "tcp5", "-v"]);
    assert!(
        shown.contains("nid: 127.0.0.1@tcp5") && shown.contains("peer_credits: 16"),
        "{shown}"
    );
    let exported = site.at("lnet.yaml");
    lnetctl(&["export", &exported]);
    lnetctl(&["net", "del", "--net", "tcp5"]);
    sh(&format!(
        "sed -n '/net type: tcp5/,/CPT/p' {exported} | sed '1i net:' > {exported}.5"
    ));
    lnetctl(&["import", &format!("{exported}.5")]);
    let again = lnetctl(&["net", "show", "--net", "tcp5", "-v"]);
    assert!(again.contains("peer_credits: 16"), "{again}");
    let pinged = lnetctl(&["ping", "10.231.79.2@tcp1", "10.231.78.2@tcp"]);
    assert!(pinged.contains("- primary nid: 10.231.79.2@tcp1"), "{pinged}");
    assert_eq!(lnetctl(&["peer", "list"]).matches("- nid: ").count(), 2);

    net.nacre("a", &["umount", &at]);
    lnetctl(&["lnet", "unconfigure"]);
    fixture::nacre_ok(&["down", "--dir", &servers]);
}
