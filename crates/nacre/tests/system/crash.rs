//! Kills the process: synced data must survive, and the file system must be consistent.

use crate::fixture::{Site, nacre_ok, sh};

/// Stops the file system; `nacre fsck` must find no error.
fn stop_and_check(site: &Site) {
    site.down("d");
    nacre_ok(&["fsck", &site.path_str("d")]);
}

/// A tree of source files to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

#[test]
fn synced_tree_survives_a_kill() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!(
        "cp -a {TREE} {mount}/tree && mv {mount}/tree {mount}/moved && sync -f {mount} && cp -r {TREE} {mount}/later"
    ));
    site.kill("d");
    let up = nacre_ok(&["up", "--dir", &site.path_str("d")]);
    assert!(up.contains("had died"), "{up}");
    sh(&format!("test ! -e {mount}/tree && diff -r {TREE} {mount}/moved"));
    // Changes after the sync may be lost, but the remaining files must be usable.
    sh(&format!(
        "rm -rf {mount}/later && cp -r {TREE} {mount}/later && diff -r {TREE} {mount}/later"
    ));
    stop_and_check(&site);
}

#[test]
fn fsynced_files_survive_a_kill() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!(
        "mkdir {mount}/d; for i in $(seq 20); do head -c 70000 /dev/urandom | dd of={mount}/d/$i conv=fsync status=none; done"
    ));
    let sums = format!("cd {mount}/d && sha256sum *");
    let before = sh(&sums);
    site.kill("d");
    site.up("d", &[]);
    assert_eq!(sh(&sums), before);
    stop_and_check(&site);
}

#[test]
fn database_is_consistent_after_a_kill() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!(
        "sqlite3 {mount}/db 'pragma journal_mode=wal; create table t(i)'"
    ));
    sh(&format!(
        "for i in $(seq 30); do sqlite3 {mount}/db \"pragma synchronous=full; insert into t values($i)\"; done"
    ));
    sh(&format!("sync -f {mount}"));
    site.kill("d");
    site.up("d", &[]);
    assert_eq!(
        sh(&format!(
            "sqlite3 {mount}/db 'pragma integrity_check; select sum(i) from t'"
        )),
        "ok\n465\n"
    );
    stop_and_check(&site);
}

#[test]
fn new_files_after_a_kill_get_unused_objects() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    for round in 0..3 {
        sh(&format!(
            "for i in $(seq 40); do echo {round}-$i > {mount}/{round}-$i; done; sync -f {mount}"
        ));
        site.kill("d");
        site.up("d", &[]);
    }
    sh(&format!(
        "cd {mount}; for f in *; do test $(cat $f) = $f; done; test $(ls | wc -l) = 120"
    ));
    stop_and_check(&site);
}
