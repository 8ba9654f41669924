//! Servers and clients in separate network namespaces with their own addresses. Needs root.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::fixture::{self, CommandOutput, Site, has_ended, is_root, nacre_ok, run, sh};

/// A tree of source files to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

/// Three network namespaces on a bridge, `s` for servers, `a` and `b` for clients; removed on drop.
struct Net {
    tag: String,
}

impl Net {
    fn new() -> Net {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let net = Net {
            tag: format!("c{next}n{}", std::process::id() % 100_000),
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

    /// Runs nacre in a namespace.
    fn nacre(&self, host: &str, args: &[&str]) -> String {
        nacre_in(&format!("{}{host}", self.tag), args)
    }

    /// Runs a program in a namespace.
    fn run(&self, host: &str, args: &[&str]) -> CommandOutput {
        run_in(&format!("{}{host}", self.tag), args)
    }

    /// Starts the servers of file system `lus` on host `s`, without a mount.
    fn serve(&self, site: &mut Site) {
        let dir = site.directory("d");
        let up = [
            "up",
            "--dir",
            &dir,
            "--no-mount",
            "--fsname",
            "lus",
            "--listen",
            "10.231.77.10@tcp",
        ];
        self.nacre("s", &up);
    }
}

fn run_in(namespace: &str, args: &[&str]) -> CommandOutput {
    // `ip netns exec` would also create a mount namespace, in which the mounts would be lost.
    run(Command::new("nsenter")
        .arg(format!("--net=/run/netns/{namespace}"))
        .args(args))
}

fn nacre_in(namespace: &str, args: &[&str]) -> String {
    let result = run_in(namespace, &[&[env!("CARGO_BIN_EXE_nacre")], args].concat());
    assert!(result.ok, "nacre {}: {}", args.join(" "), result.err);
    result.out
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
fn servers_and_clients_with_different_addresses_work_together() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let net = Net::new();
    let site = Site::new();
    let dir = site.path_str("d");
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
        let at = site.path_str(host);
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

const SOURCE: &str = "10.231.77.10@tcp:/lus";

/// The process of a mount.
fn pid_of(mount: &str) -> u32 {
    let all: serde_json::Value = serde_json::from_str(&nacre_ok(&["status", "--json"])).expect("JSON");
    let has = |r: &&serde_json::Value| {
        let mounts = r["record"]["mounts"].as_array();
        mounts.is_some_and(|m| m.iter().any(|m| m["mountpoint"].as_str() == Some(mount)))
    };
    let found = all.as_array().and_then(|all| all.iter().find(has));
    let pid = found.and_then(|r| r["record"]["pid"].as_u64());
    pid.expect("a process with that mount") as u32
}

/// Checks that each mount sees the other's changes immediately.
fn check_coherence(a: &str, b: &str) {
    sh(&format!(
        "for i in $(seq 20); do echo $i > {a}/f; test $(cat {b}/f) = $i; mv {b}/f {b}/g; test $(cat {a}/g) = $i; rm {a}/g; \
         test ! -e {b}/g; done"
    ));
}

#[test]
fn mounts_of_one_host_share_a_process_and_its_address() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let (net, mut site) = (Net::new(), Site::new());
    net.serve(&mut site);
    let mounts = ["m1", "m2", "m3"].map(|name| site.mount_point(name));
    let [mount_1, mount_2, mount_3] = &mounts;
    net.nacre("a", &["mount", SOURCE, mount_1]);
    let output = net.nacre("a", &["mount", "-o", "ro", SOURCE, mount_2]);
    let pid = pid_of(mount_1);
    assert!(output.contains(&format!("process {pid}")), "{output}");
    assert_eq!(pid_of(mount_2), pid);
    sh(&format!(
        "echo x > {mount_1}/f; test $(cat {mount_2}/f) = x; ! touch {mount_2}/f; rm {mount_1}/f"
    ));
    let other = site.mount_point("other");
    net.nacre("b", &["mount", SOURCE, &other]);
    check_coherence(mount_1, &other);

    // Mounts end independently, through nacre or umount(8). The process exits after the last
    // unmount.
    sh(&format!("umount {mount_1}"));
    net.nacre("a", &["mount", SOURCE, mount_3]);
    assert_eq!(pid_of(mount_3), pid);
    nacre_ok(&["umount", mount_2]);
    check_coherence(mount_3, &other);
    assert!(!has_ended(pid));
    nacre_ok(&["umount", mount_3]);
    assert!(has_ended(pid));
    nacre_ok(&["umount", &other]);
    let log = sh(&format!("cat {}/nacre.log", site.path_str("d")));
    assert!(!log.contains("evict"), "{log}");
}

#[test]
fn concurrent_mounts_on_one_host_share_a_process() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let (net, mut site) = (Net::new(), Site::new());
    net.serve(&mut site);
    let mounts = ["m1", "m2", "m3", "m4"].map(|name| site.mount_point(name));
    std::thread::scope(|scope| {
        for at in &mounts {
            let net = &net;
            scope.spawn(move || net.nacre("a", &["mount", SOURCE, at]));
        }
    });
    let pid = pid_of(&mounts[0]);
    for at in &mounts {
        assert_eq!(pid_of(at), pid);
        check_coherence(at, &mounts[0]);
    }
    for at in &mounts {
        nacre_ok(&["umount", at]);
    }
    assert!(has_ended(pid));
}

#[test]
fn server_process_mounts_on_its_own_host() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let (net, mut site) = (Net::new(), Site::new());
    net.serve(&mut site);
    let (server_mount, client_mount) = (site.mount_point("m1"), site.mount_point("m2"));
    net.nacre("s", &["mount", SOURCE, &server_mount]);
    net.nacre("a", &["mount", SOURCE, &client_mount]);
    let pid = pid_of(&server_mount);
    assert_eq!(pid, site.pid_in("d"));
    check_coherence(&server_mount, &client_mount);
    nacre_ok(&["umount", &server_mount]);
    sh(&format!("echo x > {client_mount}/f"));
    assert!(!has_ended(pid), "the servers still run");
    net.nacre("s", &["mount", SOURCE, &server_mount]);
    sh(&format!("test $(cat {server_mount}/f) = x"));
    nacre_ok(&["umount", &client_mount]);
    site.down("d");
    assert!(has_ended(pid) && sh(&format!("ls -A {server_mount}")).is_empty());
}

#[test]
fn address_in_use_is_explained_with_an_alternative() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let (net, mut site) = (Net::new(), Site::new());
    net.serve(&mut site);
    let (first, second) = (site.mount_point("m1"), site.mount_point("m2"));
    net.nacre("a", &["mount", SOURCE, &first]);
    let pid = pid_of(&first);
    let nacre = env!("CARGO_BIN_EXE_nacre");
    let error_of = |args: &[&str]| {
        let result = net.run("a", args);
        assert!(!result.ok, "{}", result.out);
        result.err
    };
    let error = error_of(&["unshare", "-m", nacre, "mount", SOURCE, &second]);
    assert!(
        error.contains("mount namespace") && error.contains(&format!("process {pid}")),
        "{error}"
    );
    let error = error_of(&[nacre, "mount", "--param", "peer_credits=16", SOURCE, &second]);
    assert!(error.contains("without peer_credits=16"), "{error}");
    let serve = [
        "up",
        "--no-mount",
        "--listen",
        "10.231.77.11@tcp",
        "--dir",
        &site.path_str("other"),
    ];
    let error = error_of(&[&[nacre], &serve[..]].concat());
    assert!(
        error.contains(&format!("process {pid}")) && error.contains(&first),
        "{error}"
    );

    // Another user needs access to the binary and the mount point.
    let (binary, user_mount) = (site.binary_for_all(), site.path_str("user_mount"));
    sh(&format!("mkdir {user_mount}; chown 4713 {user_mount}"));
    let user = [
        "setpriv",
        "--reuid",
        "4713",
        "--regid",
        "4713",
        "--clear-groups",
        "--inh-caps=-all",
    ];
    let mount = [&user[..], &[&binary, "mount", SOURCE, &user_mount]].concat();
    let error = error_of(&mount);
    assert!(
        error.contains(&format!("process {pid}")) && error.contains("ip addr add"),
        "{error}"
    );
    sh(&format!("ip -n {}a addr add 10.231.77.50/24 dev eth0", net.tag));
    let error = error_of(&mount);
    assert!(error.contains("--listen: 10.231.77.50@tcp"), "{error}");
    // A mount with another address has a process of its own.
    net.nacre("a", &["mount", "--listen", "10.231.77.50@tcp", SOURCE, &second]);
    assert_ne!(pid_of(&second), pid);
    check_coherence(&first, &second);
    nacre_ok(&["umount", &first]);
    nacre_ok(&["umount", &second]);
}

/// A client, a router and a server in separate namespaces, with client and server on different
/// networks.
struct RoutedNetwork {
    tag: String,
}

impl RoutedNetwork {
    fn new() -> RoutedNetwork {
        let net = RoutedNetwork {
            tag: format!("nr{}", std::process::id() % 100_000),
        };
        let tag = &net.tag;
        for host in ["a", "r", "s"] {
            sh(&format!(
                "ip netns add {tag}{host} && ip -n {tag}{host} link set lo up"
            ));
        }
        for (host, subnet, router_interface) in [("a", 78, "eth0"), ("s", 79, "eth1")] {
            sh(&format!(
                "ip -n {tag}r link add {router_interface} type veth peer name eth0 netns {tag}{host} && \
                 ip -n {tag}r addr add 10.231.{subnet}.1/24 dev {router_interface} && ip -n {tag}r link set {router_interface} up && \
                 ip -n {tag}{host} addr add 10.231.{subnet}.2/24 dev eth0 && ip -n {tag}{host} link set eth0 up"
            ));
        }
        net
    }

    fn nacre(&self, host: &str, args: &[&str]) -> String {
        nacre_in(&format!("{}{host}", self.tag), args)
    }
}

impl Drop for RoutedNetwork {
    fn drop(&mut self) {
        for host in ["a", "r", "s"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &format!("{}{host}", self.tag)])
                .output();
        }
    }
}

#[test]
fn mount_works_through_a_router() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: network namespaces need root");
        return;
    }
    let net = RoutedNetwork::new();
    let site = Site::new();
    let (router, servers, at) = (site.path_str("r"), site.path_str("d"), site.path_str("m"));
    let lnetctl = |args: &[&str]| {
        let all: Vec<&str> = ["lnetctl", "--dir", &router]
            .iter()
            .chain(args)
            .copied()
            .collect();
        net.nacre("r", &all)
    };
    let networks = "networks=tcp(eth0),tcp1(eth1)";
    lnetctl(&[
        "lnet",
        "configure",
        "--param",
        networks,
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
    // Exceed the write cache, so that bulk of 1 MiB flows in both directions.
    sh(&format!(
        "head -c 50000000 /dev/urandom > {0} && cp {0} {at}/f && cmp {0} {at}/f",
        site.path_str("random")
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
    sh(&format!("cmp {} {at}/f", site.path_str("random")));
    let routes = net.nacre("a", &["lctl", "--mount", &at, "get_param", "-n", "routes"]);
    assert!(routes.contains("up 10.231.78.1@tcp"), "{routes}");
    let nis = net.nacre("a", &["lctl", "--mount", &at, "get_param", "nis", "peers"]);
    assert!(
        nis.contains("10.231.78.2@tcp") && nis.contains("10.231.78.1@tcp"),
        "{nis}"
    );
    assert!(!nis.contains("@tcp1"), "the ends are not connected: {nis}");

    // Inspect and configure the router.
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
    let network = lnetctl(&["net", "show", "--net", "tcp5", "-v"]);
    assert!(
        network.contains("nid: 127.0.0.1@tcp5") && network.contains("peer_credits: 16"),
        "{network}"
    );
    let exported = site.path_str("lnet.yaml");
    lnetctl(&["export", &exported]);
    lnetctl(&["net", "del", "--net", "tcp5"]);
    sh(&format!(
        "sed -n '/net type: tcp5/,/CPT/p' {exported} | sed '1i net:' > {exported}.5"
    ));
    lnetctl(&["import", &format!("{exported}.5")]);
    let restored = lnetctl(&["net", "show", "--net", "tcp5", "-v"]);
    assert!(restored.contains("peer_credits: 16"), "{restored}");
    let answers = lnetctl(&["ping", "10.231.79.2@tcp1", "10.231.78.2@tcp"]);
    assert!(answers.contains("- primary nid: 10.231.79.2@tcp1"), "{answers}");
    assert_eq!(lnetctl(&["peer", "list"]).matches("- nid: ").count(), 2);

    net.nacre("a", &["umount", &at]);
    lnetctl(&["lnet", "unconfigure"]);
    fixture::nacre_ok(&["down", "--dir", &servers]);
}
