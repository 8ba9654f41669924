//! A complete file system in one process with a real mount: common programs, restarts, and errors.

use crate::fixture::{Site, nacre, nacre_ok, nacre_refuses, sh};

/// A source tree of this project to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn copied_tree_survives_a_restart() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!(
        "cp -a {TREE} {mount}/tree && diff -r {TREE} {mount}/tree"
    ));
    sh(&format!(
        "mkdir {mount}/x && mv {mount}/tree {mount}/x/moved && ln -s x/moved {mount}/link && diff -r {TREE} {mount}/link/"
    ));
    site.down("d");
    assert!(
        !std::path::Path::new(&format!("{mount}/x")).exists(),
        "the file system is unmounted"
    );
    site.up("d", &[]);
    sh(&format!(
        "diff -r {TREE} {mount}/link/ && rm -r {mount}/x && test -z \"$(ls -A {mount} | grep -v link)\""
    ));
}

#[test]
fn git_repository_can_be_cloned_and_used() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let source = site.path_str("source");
    // Create a repository: the checkout of this test may be shallow or missing.
    sh(&format!(
        "git init -q {source} && cp -r {ROOT}/crates/wire/src {source}/ && cd {source} && git add . && \
         git -c user.name=t -c user.email=t@t commit -qm first"
    ));
    sh(&format!(
        "git clone -q --no-hardlinks {source} {mount}/clone && cd {mount}/clone && git fsck --strict --no-progress"
    ));
    sh(&format!(
        "cd {mount}/clone && git checkout -qb other && echo more >> src/lib.rs && git mv src/lib.rs src/moved.rs && \
         git -c user.name=t -c user.email=t@t commit -qam second && git checkout -q - && git merge -q other && \
         git gc -q && git fsck --strict --no-progress && test -z \"$(git status --porcelain)\""
    ));
}

#[test]
fn second_rsync_finds_no_difference() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let source = site.path_str("source");
    sh(&format!(
        "cp -r {TREE} {source} && cd {source} && ln Cargo.toml hard && ln -s Cargo.toml soft && mkfifo fifo && \
         setfattr -n user.colour -v blue Cargo.toml && chmod 2751 src && touch -d '2001-02-03 04:05:06' src/lib.rs"
    ));
    let rsync = format!("rsync -aHAX --checksum --itemize-changes {source}/ {mount}/copy/");
    assert!(!sh(&rsync).is_empty());
    assert_eq!(sh(&rsync), "");
    site.down("d");
    site.up("d", &[]);
    assert_eq!(sh(&rsync), "", "after down and up");
    assert_eq!(
        sh(&format!(
            "stat -c %h {mount}/copy/hard && getfattr --only-values -n user.colour {mount}/copy/hard"
        )),
        "2\nblue"
    );
}

#[test]
fn two_processes_write_a_database() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let insert = |writer: &str| {
        format!(
            "for i in $(seq 40); do sqlite3 -cmd '.timeout 60000' {mount}/db \"insert into t values('{writer}', $i)\"; done"
        )
    };
    sh(&format!(
        "sqlite3 {mount}/db 'pragma journal_mode=wal; create table t(who, i)'"
    ));
    sh(&format!(
        "({}) & A=$!; ({}) & B=$!; wait $A; wait $B",
        insert("a"),
        insert("b")
    ));
    let sum = format!(
        "sqlite3 {mount}/db 'pragma integrity_check; select who, count(*), sum(i) from t group by who'"
    );
    let expected = "ok\na|40|820\nb|40|820\n";
    assert_eq!(sh(&sum), expected);
    site.down("d");
    site.up("d", &[]);
    assert_eq!(sh(&sum), expected);
}

#[test]
fn tar_archive_round_trips() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "3"]);
    sh(&format!(
        "cd {TREE} && tar cf {mount}/a.tar . && mkdir {mount}/out && tar xpf {mount}/a.tar -C {mount}/out"
    ));
    let sums = |dir: &str| {
        sh(&format!(
            "cd {dir} && find . -type f -print0 | sort -z | xargs -0 sha256sum"
        ))
    };
    assert_eq!(sums(TREE), sums(&format!("{mount}/out")));
    let meta = |dir: &str| {
        sh(&format!(
            "cd {dir} && find . -mindepth 1 -printf '%p %m %U %G %Ts %y\\n' | sort"
        ))
    };
    assert_eq!(meta(TREE), meta(&format!("{mount}/out")));
}

#[test]
fn two_instances_run_side_by_side() {
    let mut site = Site::new();
    let (a, b) = (site.up("a", &[]), site.up("b", &["--store", "memory"]));
    sh(&format!(
        "echo a > {a}/f; echo b > {b}/f; test $(cat {a}/f) = a; test $(cat {b}/f) = b"
    ));
    let status = nacre_ok(&["status", "--dir", &site.path_str("b"), "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let record = &status[0]["record"];
    assert_eq!(record["targets"].as_array().map(Vec::len), Some(3));
    assert_eq!(record["mounts"][0]["mountpoint"].as_str(), Some(b.as_str()));
    site.down("a");
    sh(&format!("test $(cat {b}/f) = b"));
    site.down("b");
    assert_eq!(nacre(&["status", "--dir", &site.path_str("b")]).code, Some(3));
}

#[test]
fn memory_store_is_empty_after_a_restart() {
    let mut site = Site::new();
    let mount = site.up("d", &["--store", "memory", "--osts", "2"]);
    sh(&format!(
        "cp -r {TREE} {mount}/tree && diff -r {TREE} {mount}/tree"
    ));
    site.down("d");
    site.up("d", &[]);
    assert_eq!(sh(&format!("ls -A {mount}")), "");
}

#[test]
fn osts_can_be_added_later() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!("echo old > {mount}/old"));
    site.down("d");
    site.up("d", &["--osts", "3"]);
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-c",
        "3",
        "-S",
        "64K",
        &format!("{mount}/wide"),
    ]);
    sh(&format!(
        "head -c 1000000 /dev/urandom > {mount}/wide; test $(cat {mount}/old) = old"
    ));
    assert_eq!(
        nacre_ok(&["lfs", "getstripe", "-c", &format!("{mount}/wide")]).trim(),
        "3"
    );
    assert!(nacre_ok(&["up", "--dir", &site.path_str("d")]).contains("is up already"));
}

#[test]
fn down_fails_while_the_mount_is_in_use() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let mut user = std::process::Command::new("sleep")
        .arg("600")
        .current_dir(&mount)
        .spawn()
        .expect("sleep");
    let error = nacre_refuses(&["down", "--dir", &site.path_str("d")]);
    assert!(
        error.starts_with(&format!("nacre: {mount} is in use by sleep ({})", user.id())),
        "{error}"
    );
    sh(&format!("echo still > {mount}/f; cat {mount}/f"));
    let _ = user.kill();
    let _ = user.wait();
    site.down("d");
}
