//! Mounts whose nodemap requires object capabilities keep working while capabilities expire, keys
//! are replaced and servers restart.

use crate::fixture::{Site, nacre_ok, sh};
use crate::four_processes::Servers;

/// A tree of source files to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

fn set_param(site: &Site, process: &str, param: &str) {
    nacre_ok(&["lctl", "--dir", &site.path_str(process), "set_param", param]);
}

/// Servers that require capabilities with a validity of one second, and two mounts.
fn start(net: u8) -> (Site, Servers, [String; 2]) {
    let (mut site, servers) = (Site::new(), Servers::new(net));
    servers.start(&mut site);
    let lctl = [
        "lctl",
        "--dir",
        &site.path_str("mgs"),
        "nodemap_modify",
        "--name",
        "default",
    ];
    nacre_ok(&[&lctl[..], &["--property", "capabilities", "--value", "1"]].concat());
    for process in ["mdt", "ost0", "ost1"] {
        let nacre = env!("CARGO_BIN_EXE_nacre");
        let get_param = format!(
            "{nacre} lctl --dir {} get_param -n nodemap.default.capabilities",
            site.path_str(process)
        );
        sh(&format!(
            "for i in $(seq 600); do test $({get_param}) = 1 && exit 0; sleep 0.1; done; exit 1"
        ));
    }
    set_param(&site, "mdt", "mdt.*.capa_timeout=1");
    let mounts = [servers.mount(&mut site, "a"), servers.mount(&mut site, "b")];
    (site, servers, mounts)
}

#[test]
fn mounts_with_capabilities_share_files() {
    let (site, _servers, [a, b]) = start(50);
    let key = site.path_str("mgs/capa-keys");
    assert_eq!(sh(&format!("stat -c %a {key}")), "600\n");
    sh(&format!("cp -a {TREE} {a}/tree && diff -r {TREE} {b}/tree"));
    nacre_ok(&["lfs", "setstripe", "-c", "2", "-S", "64K", &format!("{a}/wide")]);
    sh(&format!(
        "head -c 3000000 /dev/urandom > {}; cp {0} {a}/wide; cmp {0} {b}/wide",
        site.path_str("data")
    ));
    sh(&format!(
        "truncate -s 100000 {b}/wide; test $(stat -c %s {a}/wide) = 100000; cmp -n 100000 {a}/wide {}",
        site.path_str("data")
    ));
    sh(&format!(
        "cd {a}; echo 1 > f; echo 2 >> {b}/f; touch -d @1000 f; test $(stat -c %Y {b}/f) = 1000
         mv f g; test $(cat {b}/g | wc -l) = 2; chmod 400 g; cat {b}/g; rm -f {b}/g; test ! -e g"
    ));
    let paths = [a, b].map(|at| format!("{at}/fsx"));
    nacre_ok(&["bench", "fsx", "--mmap", "--ops", "500", &paths[0], &paths[1]]);
}

#[test]
fn open_file_survives_expiry_and_key_replacement() {
    let (site, _servers, [a, b]) = start(51);
    let nacre = env!("CARGO_BIN_EXE_nacre");
    let rotate = format!(
        "{nacre} lctl --dir {} set_param mgs.MGS.capa_keys=new",
        site.path_str("mgs")
    );
    // No operation may fail because of the key or the age of a capability.
    sh(&format!(
        "exec 8> {a}/log 9< {b}/log
         for i in $(seq 40); do
             echo $i >&8; tail -n 1 {b}/log | grep -qx $i; read -u 9 line; test $line = $i
             if test $((i % 8)) = 0; then {rotate}; fi; sleep 0.1
         done
         seq 40 | cmp - {b}/log"
    ));
}

#[test]
fn mounts_with_capabilities_survive_server_restarts() {
    let (mut site, servers, [a, b]) = start(52);
    sh(&format!("echo before > {a}/f && sync -f {a}"));
    for (name, host) in [("ost0", 3), ("ost1", 4), ("mdt", 2), ("mgs", 1)] {
        site.down(name);
        servers.serve(&mut site, name, host, &[]);
        // A request in progress when the server stops may fail once.
        let work = format!(
            "test $(cat {b}/f) = before && echo x > {a}/after-{name} && test $(cat {b}/after-{name}) = x && truncate -s 0 {b}/after-{name}"
        );
        sh(&format!(
            "for i in $(seq 600); do if ({work}) 2>/dev/null; then exit 0; fi; sleep 0.1; done; {work}"
        ));
    }
}
