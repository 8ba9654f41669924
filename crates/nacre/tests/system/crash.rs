//! Kills the process: synced data must survive, and the file system must be consistent.

use crate::fixture::{Site, nacre_ok, sh};

/// Stops the file system; a check must find nothing.
fn stop_and_check(site: &Site) {
    site.down("d");
    nacre_ok(&["fsck", &site.at("d")]);
}

const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

#[test]
fn synced_tree_survives_a_kill() {
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "2"]);
    sh(&format!(
        "cp -a {TREE} {at}/tree && mv {at}/tree {at}/moved && sync -f {at} && cp -r {TREE} {at}/later"
    ));
    site.kill("d");
    let up = nacre_ok(&["up", "--dir", &site.at("d")]);
    assert!(up.contains("had died"), "{up}");
    sh(&format!("test ! -e {at}/tree && diff -r {TREE} {at}/moved"));
    // Changes after the sync may be lost, but the remaining files must be usable.
    sh(&format!(
        "rm -rf {at}/later && cp -r {TREE} {at}/later && diff -r {TREE} {at}/later"
    ));
    stop_and_check(&site);
}

#[test]
fn fsynced_files_survive_a_kill() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    sh(&format!(
        "mkdir {at}/d; for i in $(seq 20); do head -c 70000 /dev/urandom | dd of={at}/d/$i conv=fsync status=none; done"
    ));
    let sums = format!("cd {at}/d && sha256sum *");
    let before = sh(&sums);
    site.kill("d");
    site.up("d", &[]);
    assert_eq!(sh(&sums), before);
    stop_and_check(&site);
}

#[test]
fn database_is_consistent_after_a_kill() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    sh(&format!(
        "sqlite3 {at}/db 'pragma journal_mode=wal; create table t(i)'"
    ));
    sh(&format!(
        "for i in $(seq 30); do sqlite3 {at}/db \"pragma synchronous=full; insert into t values($i)\"; done"
    ));
    sh(&format!("sync -f {at}"));
    site.kill("d");
    site.up("d", &[]);
    assert_eq!(
        sh(&format!(
            "sqlite3 {at}/db 'pragma integrity_check; select sum(i) from t'"
        )),
        "ok\n465\n"
    );
    stop_and_check(&site);
}

#[test]
fn new_files_after_a_kill_get_unused_objects() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    for round in 0..3 {
        sh(&format!(
            "for i in $(seq 40); do echo {round}-$i > {at}/{round}-$i; done; sync -f {at}"
        ));
        site.kill("d");
        site.up("d", &[]);
    }
    sh(&format!(
        "cd {at}; for f in *; do test $(cat $f) = $f; done; test $(ls | wc -l) = 120"
    ));
    stop_and_check(&site);
}
