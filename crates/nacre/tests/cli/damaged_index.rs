//! Damage in the files of an index: reported by `nacre fsck`, refused at a start, and repaired.

#![allow(clippy::unwrap_used)]

use crate::fixture::{Site, nacre_ok, nacre_refuses, sh};
use crate::fsck::{TREE, fsck};

#[test]
fn damaged_index_is_reported_and_rebuilt() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!("cp -r {TREE} {mount}/tree"));
    site.down("d");
    let target = site.path_str("d/mdt0000");
    let journal = nacre_ok(&["debug", "journal", &target]);
    assert!(
        journal.contains("batch 1\n") && journal.contains("/Cargo.toml: [0x"),
        "{journal}"
    );
    let current = site.path("d/mdt0000/index/keyspaces/1/current");
    let mut bytes = std::fs::read(&current).unwrap();
    bytes[0] ^= 4;
    std::fs::write(&current, bytes).unwrap();
    let result = fsck(&site, &[]);
    assert_eq!(result.code, Some(1), "{}{}", result.out, result.err);
    assert!(
        result.out.contains("damaged index") && result.out.contains("its records are not checked"),
        "{}",
        result.out
    );
    assert!(
        result.out.contains("no MDT can be read: names are not checked"),
        "{}",
        result.out
    );
    let error = nacre_refuses(&["up", "--no-mount", "--dir", &site.path_str("d")]);
    assert!(
        error.contains("'nacre fsck --repair' rebuilds the index"),
        "{error}"
    );
    let repaired = fsck(&site, &["--repair"]);
    assert!(repaired.ok, "{}{}", repaired.out, repaired.err);
    assert!(site.path("d/mdt0000/index.damaged-0").is_dir());
    let mount = site.up("d", &[]);
    sh(&format!("diff -r {TREE} {mount}/tree"));
    site.down("d");
}
