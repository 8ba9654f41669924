//! File systems with several MDTs: in one process and in several, after kills, with an MDT that
//! joins, and checked by `nacre fsck`.

use crate::fixture::{Site, nacre, nacre_ok, sh};
use crate::four_processes::Servers;

/// A tree of source files to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

/// Checks targets, which must have no problem; returns the output.
fn fsck(dirs: &[String]) -> String {
    let mut args = vec!["fsck", "--data"];
    args.extend(dirs.iter().map(String::as_str));
    let result = nacre(&args);
    assert!(result.ok, "{}{}", result.out, result.err);
    result.out
}

/// Repeats a shell command until it succeeds, for at most a minute.
fn retry_until_ok(line: &str) {
    sh(&format!(
        "for i in $(seq 600); do if ({line}) >/dev/null 2>&1; then exit 0; fi; sleep 0.1; done; {line}"
    ));
}

#[test]
fn up_adds_mdts_and_restarts_with_them_after_a_kill() {
    let mut site = Site::new();
    site.up("d", &["--fsname", "lus", "--osts", "2"]);
    site.down("d");
    let mount = site.up("d", &["--mdts", "3"]);
    let dir = site.path_str("d");
    let df = nacre_ok(&["lfs", "df", &mount]);
    for mdt in 0..3 {
        assert!(df.contains(&format!("lus-MDT000{mdt}_UUID ")), "{df}");
    }
    let mdts = nacre_ok(&["lfs", "mdts", &mount]);
    assert!(mdts.contains("2: lus-MDT0002_UUID ACTIVE"), "{mdts}");
    let nacre_bin = env!("CARGO_BIN_EXE_nacre");
    retry_until_ok(&format!(
        "{nacre_bin} lctl --dir {dir} get_param -n 'osp.lus-MDT*.active' | sort | uniq -c | grep ' 6 1'"
    ));
    let devices = nacre_ok(&["lctl", "--dir", &dir, "dl"]);
    for device in [
        "mdt lus-MDT0002 lus-MDT0002_UUID",
        "osp lus-MDT0000-osp-MDT0002 lus-MDT0002-mdtlov_UUID",
        "osp lus-MDT0002-osp-MDT0001 lus-MDT0001-mdtlov_UUID",
        "osp lus-OST0001-osc-MDT0001 lus-MDT0001-mdtlov_UUID",
        "mdc lus-MDT0002-mdc-",
    ] {
        assert!(devices.contains(device), "{device}: {devices}");
    }
    let status = nacre_ok(&["status", "--dir", &dir]);
    assert!(
        status.contains("lus-MDT0000 lus-MDT0001 lus-MDT0002") && !status.contains("problem"),
        "{status}"
    );
    sh(&format!("cp -a {TREE} {mount}/tree && sync {mount}/tree"));
    site.kill("d");
    let mount = site.up("d", &[]);
    sh(&format!("diff -r {TREE} {mount}/tree && echo x > {mount}/new"));
    site.down("d");
    let checked = fsck(std::slice::from_ref(&dir));
    assert!(!checked.contains("was not given"), "{checked}");
    let fewer = nacre(&["up", "--dir", &dir, "--mdts", "2"]);
    assert!(fewer.err.contains("has 3 MDTs"), "{}", fewer.err);
    nacre_ok(&["destroy", "--yes", &dir]);
    assert!(!site.path("d").exists());
}

#[test]
fn an_mdt_joins_other_servers_and_its_death_stops_only_its_part() {
    let (mut site, servers) = (Site::new(), Servers::new(59));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, "mdt", 2, &["--mdt"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site, "mnt");
    sh(&format!("echo first > {mount}/f"));
    servers.serve(&mut site, "mdt1", 5, &["--mdt", "--index", "1"]);
    nacre_ok(&["umount", &mount]);
    let mount = servers.mount(&mut site, "mnt");
    let both = "test $(nacre lfs df MOUNT | grep -c '^lus-MDT000._UUID *[0-9]') = 2"
        .replace("nacre", env!("CARGO_BIN_EXE_nacre"))
        .replace("MOUNT", &mount);
    retry_until_ok(&both);
    site.kill("mdt1");
    // The OST recovers without MDT0001.
    site.kill("ost0");
    servers.serve(&mut site, "ost0", 3, &[]);
    sh(&format!(
        "test $(cat {mount}/f) = first && cp -a {TREE} {mount}/tree && diff -r {TREE} {mount}/tree"
    ));
    let health = nacre(&["health"]);
    assert!(
        !health.ok
            && health
                .out
                .contains("lus-MDT0001-osp-MDT0000 is not connected to its MDT: start the MDT"),
        "{}",
        health.out
    );
    servers.serve(&mut site, "mdt1", 5, &[]);
    retry_until_ok(&both);
    nacre_ok(&["umount", &mount]);
    let names = ["mgs", "mdt", "mdt1", "ost0"];
    names.iter().for_each(|name| site.down(name));
    let dirs = names.map(|name| site.path_str(name));
    fsck(&dirs);
    // Without an MDT the check does not call its objects orphans.
    let without = fsck(&[dirs[1].clone(), dirs[3].clone()]);
    assert!(without.contains("lus-MDT0001 was not given"), "{without}");
    let without = fsck(&[dirs[2].clone(), dirs[3].clone()]);
    assert!(without.contains("lus-MDT0000 was not given"), "{without}");
}

#[test]
fn remote_directories_survive_kills_of_either_mdt() {
    const NACRE: &str = env!("CARGO_BIN_EXE_nacre");
    let (mut site, servers) = (Site::new(), Servers::new(60));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, "mdt", 2, &["--mdt"]);
    servers.serve(&mut site, "mdt1", 5, &["--mdt", "--index", "1"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site, "mnt");
    retry_until_ok(&format!("{NACRE} lfs mkdir -i 1 {mount}/remote"));
    sh(&format!(
        "test $({NACRE} lfs getdirstripe -i {mount}/remote) = 1 && cp -a {TREE} {mount}/remote/tree"
    ));
    let work = format!(
        "for i in $(seq 40); do {NACRE} lfs mkdir -i 1 {mount}/d$i && mkdir {mount}/d$i/sub && echo $i > {mount}/d$i/f || exit 1; \
         if [ $((i % 2)) = 1 ]; then rm -r {mount}/d$i || exit 1; fi; done"
    );
    std::thread::scope(|scope| {
        let working = scope.spawn(|| sh(&work));
        for (name, host) in [("mdt1", 5), ("mdt", 2), ("mdt1", 5)] {
            std::thread::sleep(std::time::Duration::from_millis(400));
            site.kill(name);
            servers.serve(&mut site, name, host, &[]);
        }
        working.join().unwrap();
    });
    sh(&format!(
        "diff -r {TREE} {mount}/remote/tree && test $(cat {mount}/d*/f | wc -l) = 20 && test $(ls {mount} | wc -l) = 21"
    ));
    sh(&format!(
        "mv {mount}/remote/tree {mount}/tree && diff -r {TREE} {mount}/tree && rmdir {mount}/remote"
    ));
    nacre_ok(&["umount", &mount]);
    let names = ["mgs", "mdt", "mdt1", "ost0"];
    names.iter().for_each(|name| site.down(name));
    fsck(&names.map(|name| site.path_str(name)));
}
