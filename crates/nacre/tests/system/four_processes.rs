//! MGS, MDT, OSTs and client as separate processes, over TCP on loopback addresses.

use crate::fixture::{Site, nacre_ok, sh};

/// A tree of source files to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

/// The servers of a file system, with addresses and a port that no other test uses.
pub(crate) struct Servers {
    pub(crate) net: u8,
    pub(crate) port: String,
}

impl Servers {
    /// Servers with addresses `127.0.{net}.*`; each test uses another `net`.
    pub(crate) fn new(net: u8) -> Servers {
        Servers {
            net,
            port: (17900 + u16::from(net)).to_string(),
        }
    }

    pub(crate) fn nid(&self, host: u8) -> String {
        format!("127.0.{}.{host}@tcp", self.net)
    }

    fn source(&self) -> String {
        format!("{}:/lus", self.nid(1))
    }

    pub(crate) fn serve(&self, site: &mut Site, name: &str, host: u8, mkfs: &[&str]) {
        let (nid, mgs) = (self.nid(host), self.nid(1));
        let target_options = ["--fsname", "lus", "--mgsnode", &mgs];
        let mkfs = if name == "mgs" {
            mkfs.to_vec()
        } else {
            [mkfs, &target_options].concat()
        };
        site.serve(name, &mkfs, &["--listen", &nid, "--port", &self.port]);
    }

    pub(crate) fn start(&self, site: &mut Site) {
        self.serve(site, "mgs", 1, &["--mgs"]);
        self.serve(site, "mdt", 2, &["--mdt"]);
        self.serve(site, "ost0", 3, &["--ost", "--index", "0"]);
        self.serve(site, "ost1", 4, &["--ost", "--index", "1"]);
    }

    pub(crate) fn mount(&self, site: &mut Site, name: &str) -> String {
        site.mount(&self.source(), name, &["--port", &self.port])
    }
}

#[test]
fn files_survive_a_restart_with_osts_before_the_mdt() {
    let (mut site, servers) = (Site::new(), Servers::new(41));
    servers.start(&mut site);
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!(
        "cp -a {TREE} {mount}/tree && diff -r {TREE} {mount}/tree"
    ));
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-c",
        "2",
        "-S",
        "64K",
        &format!("{mount}/wide"),
    ]);
    sh(&format!(
        "head -c 3000000 /dev/urandom > {mount}/wide && sha256sum < {mount}/wide > {}",
        site.path_str("sum")
    ));
    nacre_ok(&["umount", &mount]);
    for name in ["mgs", "mdt", "ost0", "ost1"] {
        site.down(name);
    }
    // Start the OSTs before the MDT: they connect to it once it runs.
    servers.serve(&mut site, "mgs", 1, &[]);
    servers.serve(&mut site, "ost1", 4, &[]);
    servers.serve(&mut site, "ost0", 3, &[]);
    servers.serve(&mut site, "mdt", 2, &[]);
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!(
        "diff -r {TREE} {mount}/tree && sha256sum < {mount}/wide | diff - {}",
        site.path_str("sum")
    ));
}

#[test]
fn two_clients_see_each_others_changes() {
    let (mut site, servers) = (Site::new(), Servers::new(42));
    servers.start(&mut site);
    let (a, b) = (servers.mount(&mut site, "a"), servers.mount(&mut site, "b"));
    sh(&format!(
        "for i in $(seq 50); do echo $i > {a}/f; test $(cat {b}/f) = $i; mv {b}/f {b}/g; mv {a}/g {a}/f; done"
    ));
    sh(&format!(
        "mkdir {a}/d && touch {b}/d/x && test -e {a}/d/x && rm {a}/d/x && test ! -e {b}/d/x && rmdir {b}/d"
    ));
    sh(&format!(
        "test ! -e {a}/d; chmod 640 {b}/f; test $(stat -c %a {a}/f) = 640"
    ));
    // Concurrent appends: no line is lost.
    let append = |at: &str| format!("for i in $(seq 100); do echo line >> {at}/log; done");
    sh(&format!(
        "({}) & A=$!; ({}) & B=$!; wait $A; wait $B",
        append(&a),
        append(&b)
    ));
    assert_eq!(sh(&format!("wc -l < {a}/log && wc -l < {b}/log")), "200\n200\n");
    // A lock on one mount excludes the other mount.
    sh(&format!(
        "exec 9> {a}/lock; flock -x 9; ! flock -n {b}/lock true; flock -u 9; flock -n {b}/lock true"
    ));
}

#[test]
fn client_survives_server_restarts() {
    let (mut site, servers) = (Site::new(), Servers::new(43));
    servers.start(&mut site);
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!("echo before > {mount}/f && sync -f {mount}"));
    for (name, host) in [("ost0", 3), ("ost1", 4), ("mdt", 2), ("mgs", 1)] {
        site.down(name);
        servers.serve(&mut site, name, host, &[]);
        // A request in progress when the server stops may fail once.
        let work = format!(
            "test $(cat {mount}/f) = before && echo x > {mount}/after-{name} && cat {mount}/after-{name}"
        );
        sh(&format!(
            "for i in $(seq 600); do if ({work}) 2>/dev/null; then exit 0; fi; sleep 0.1; done; {work}"
        ));
    }
}
