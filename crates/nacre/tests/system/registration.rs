//! Registration of new, moved and replaced targets, and starts in any order and without the MGS.

use crate::fixture::{Site, nacre, nacre_ok, sh};
use crate::four_processes::Servers;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

/// Repeats a shell command until it succeeds. A request in progress when a server stops may fail
/// once.
fn retry_until_ok(line: &str) {
    sh(&format!(
        "for i in $(seq 600); do if ({line}) 2>/dev/null; then exit 0; fi; sleep 0.1; done; {line}"
    ));
}

#[test]
fn existing_mounts_use_new_and_moved_osts() {
    let (mut site, servers) = (Site::new(), Servers::new(44));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, "mdt", 2, &["--mdt"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!("mkdir {mount}/d && echo first > {mount}/d/f"));
    servers.serve(&mut site, "ost1", 4, &["--ost", "--index", "1"]);
    // Every new file is usable; after some time the MDT creates one on the new OST.
    let work = format!(
        "for i in $(seq 1000); do
             echo $i > {mount}/d/$i; test $(cat {mount}/d/$i) = $i
             if test $(nacre lfs getstripe -i {mount}/d/$i) = 1; then exit 0; fi
             sleep 0.05
         done; exit 1"
    );
    sh(&work.replace("nacre lfs", &format!("{} lfs", env!("CARGO_BIN_EXE_nacre"))));
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-i",
        "1",
        "-c",
        "1",
        &format!("{mount}/there"),
    ]);
    sh(&format!("echo moved > {mount}/there && sync {mount}/there"));
    site.down("ost1");
    servers.serve(&mut site, "ost1", 5, &[]);
    retry_until_ok(&format!("test $(cat {mount}/there) = moved"));
    retry_until_ok(&format!("echo again > {mount}/there"));
    let new_mount = servers.mount(&mut site, "fresh");
    sh(&format!("test $(cat {new_mount}/there) = again"));
}

#[test]
fn index_belongs_to_one_store_until_replaced() {
    let (mut site, servers) = (Site::new(), Servers::new(45));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, "mdt", 2, &["--mdt"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let mgs = servers.nid(1);
    let mkfs = |name: &str, options: &[&str]| {
        let target_options = ["mkfs", "--fsname", "lus", "--mgsnode", &mgs];
        nacre(&[&target_options, options, &[&site.path_str(name)]].concat())
    };
    assert!(mkfs("twin", &["--ost", "--index", "0"]).ok);
    assert!(mkfs("heir", &["--ost", "--index", "0", "--replace"]).ok);
    let nid = servers.nid(6);
    let serve = |name: &str| {
        nacre(&[
            "serve",
            &site.path_str(name),
            "--listen",
            &nid,
            "--port",
            &servers.port,
        ])
    };
    let failure = serve("twin");
    assert!(!failure.ok, "{}", failure.out);
    let owner = "the MGS has another store of lus-OST0000 (uuid ";
    assert!(
        failure.err.contains(owner)
            && failure
                .err
                .contains("with another --index. If that store is lost"),
        "{}",
        failure.err
    );
    // The present target keeps working.
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!("echo kept > {mount}/f && test $(cat {mount}/f) = kept"));
    nacre_ok(&["umount", &mount]);
    site.down("ost0");
    // The new target replaces the old one, also after a restart. Reads of files on the old target
    // fail; they do not return empty data.
    for name in ["new", "newer"] {
        servers.serve(&mut site, "heir", 6, &[]);
        let mount = servers.mount(&mut site, name);
        sh(&format!(
            "! cat {mount}/f && echo x > {mount}/{name} && test $(cat {mount}/{name}) = x"
        ));
        nacre_ok(&["umount", &mount]);
        site.down("heir");
    }
    servers.serve(&mut site, "heir", 6, &[]);
    let old = site.path_str("ost0");
    let old = nacre(&[
        "serve",
        &old,
        "--listen",
        &servers.nid(3),
        "--port",
        &servers.port,
    ]);
    assert!(!old.ok && old.err.contains(owner), "{}{}", old.out, old.err);
}

#[test]
fn replaced_target_stops_serving() {
    let (mut site, servers) = (Site::new(), Servers::new(47));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, "mdt", 2, &["--mdt"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!("echo lost > {mount}/f"));
    servers.serve(&mut site, "heir", 6, &["--ost", "--index", "0", "--replace"]);
    retry_until_ok(&format!(
        "grep -q 'lus-OST0000 stops serving' {}/nacre.log",
        site.path_str("ost0")
    ));
    // A file created before the MDT knew about the replacement has no object.
    retry_until_ok(&format!(
        "rm -f {mount}/new && echo x > {mount}/new && test $(cat {mount}/new) = x && ! cat {mount}/f && rm {mount}/f"
    ));
    site.down("ost0");
    sh(&format!("echo y > {mount}/more && test $(cat {mount}/more) = y"));
}

/// All permutations of four items.
fn permutations() -> Vec<[usize; 4]> {
    let codes = (0..256usize).map(|code| [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6]);
    codes.filter(|order| (0..4).all(|i| order.contains(&i))).collect()
}

#[test]
fn servers_start_in_any_order() {
    // CI runs some of the 24 permutations.
    let rounds = std::env::var("NACRE_START_ROUNDS").map_or(3, |n| n.parse().unwrap());
    let servers = Servers::new(46);
    let parts = [
        ("mgs", 1, &["--mgs"][..]),
        ("mdt", 2, &["--mdt"]),
        ("ost0", 3, &["--ost", "--index", "0"]),
        ("ost1", 4, &["--ost", "--index", "1"]),
    ];
    for order in permutations()
        .iter()
        .rev()
        .step_by(24 / rounds.min(24))
        .take(rounds)
    {
        let mut site = Site::new();
        let mgs = servers.nid(1);
        for (name, _, mkfs) in parts {
            let target_options = ["--fsname", "lus", "--mgsnode", &mgs];
            let target_options = if name == "mgs" { &[][..] } else { &target_options };
            let dir = site.directory(name);
            nacre_ok(&[&["mkfs"], mkfs, target_options, &[&dir]].concat());
        }
        let start = |site: &Site, count: usize| {
            let start = |i: &usize| {
                let (name, host, _) = parts[*i];
                let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
                command.args(["serve", &site.path_str(name), "--listen", &servers.nid(host)]);
                command.args(["--port", &servers.port]).stdout(Stdio::null());
                command.spawn().unwrap()
            };
            let children: Vec<Child> = order[..count].iter().map(start).collect();
            for (mut child, i) in children.into_iter().zip(order) {
                assert!(child.wait().unwrap().success(), "{} in {order:?}", parts[*i].0);
            }
        };
        // At the first start, all targets need each other.
        start(&site, 4);
        let mount = servers.mount(&mut site, "mnt");
        sh(&format!("echo a > {mount}/a && echo b > {mount}/b"));
        nacre_ok(&["umount", &mount]);
        order.iter().for_each(|i| site.down(parts[*i].0));
        // At later starts, the first three start without the fourth, which may be the MGS.
        start(&site, 3);
        let (last, host, _) = parts[order[3]];
        servers.serve(&mut site, last, host, &[]);
        let mount = servers.mount(&mut site, "mnt");
        sh(&format!(
            "test $(cat {mount}/a {mount}/b | tr -d '\\n') = ab && echo c > {mount}/c"
        ));
        nacre_ok(&["umount", &mount]);
        order.iter().for_each(|i| site.down(parts[*i].0));
    }
}

#[test]
fn target_needs_a_valid_saved_config_to_start_without_its_mgs() {
    let (mut site, servers) = (Site::new(), Servers::new(48));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, "mdt", 2, &["--mdt"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let (mgs, ost) = (site.path_str("mgs"), site.path_str("ost0"));
    nacre_ok(&[
        "lctl",
        "--dir",
        &mgs,
        "nodemap_modify",
        "--name",
        "default",
        "--property",
        "readonly_mount",
        "--value",
        "1",
    ]);
    let copy = format!("{ost}/config.json");
    retry_until_ok(&format!("grep -q 'readonly_mount\":\"1\"' {copy}"));
    let mode = std::fs::metadata(&copy).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    for name in ["ost0", "mdt", "mgs"] {
        site.down(name);
    }
    servers.serve(&mut site, "ost0", 3, &[]);
    let value = nacre_ok(&[
        "lctl",
        "--dir",
        &ost,
        "get_param",
        "nodemap.default.readonly_mount",
    ]);
    assert!(value.contains("readonly_mount=1"), "{value}");
    site.down("ost0");
    let nid = servers.nid(3);
    for damage in [
        format!("sed -i 's/readonly_mount\":\"1/readonly_mount\":\"0/' {copy}"),
        format!("truncate -s 100 {copy}"),
        format!("rm {copy}"),
    ] {
        sh(&damage);
        let failure = nacre(&[
            "serve",
            &ost,
            "--wait",
            "1",
            "--listen",
            &nid,
            "--port",
            &servers.port,
        ]);
        assert!(
            !failure.ok && failure.err.contains(&servers.nid(1)),
            "{damage}: {}",
            failure.err
        );
    }
    servers.serve(&mut site, "mgs", 1, &[]);
    servers.serve(&mut site, "ost0", 3, &[]);
}
