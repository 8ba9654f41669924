//! `nacre fsck` reports nothing for an intact file system and does not modify it. It finds and
//! repairs deliberate damage.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::fixture::{CommandOutput, Site, is_root, nacre, nacre_ok, nacre_refuses, sh};
use mdt::layout::{self, StripeObject};
use mdt::store::{Change, Store, keys};
use osd::{Batch, Index, LocalStores, SetAttr, Stores as _};
use serde_json::Value;
use testbase::Wait;
use wire::Fid;

/// A tree of source files to copy.
pub(crate) const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

/// Stores of a stopped file system with two OSTs. Tests damage the stores through it.
struct Stores {
    mdt: Store,
    osts: Vec<Arc<dyn Index>>,
    dir: std::path::PathBuf,
}

impl Stores {
    async fn open(dir: &Path) -> Stores {
        let open = |name: &str| LocalStores::in_dir(dir.join(name));
        let mdt = Store::new(open("mdt0000").open_index().await.unwrap());
        let mut osts = Vec::new();
        for name in ["ost0000", "ost0001"] {
            osts.push(open(name).open_index().await.unwrap());
        }
        let dir = dir.to_owned();
        Stores { mdt, osts, dir }
    }

    fn fid(&self, path: &str) -> Fid {
        let mut fid = Fid::ROOT;
        for name in path.split('/') {
            fid = self.mdt.entry(fid, name.as_bytes()).wait().unwrap().unwrap().fid;
        }
        fid
    }

    fn objects(&self, path: &str) -> Vec<StripeObject> {
        layout::objects(&self.mdt.inode(self.fid(path)).wait().unwrap().lov).unwrap()
    }

    fn change(&self, damage: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        damage(&mut batch);
        self.mdt.index().apply(batch).unwrap();
    }

    fn set_lov(&self, path: &str, objects: &[StripeObject]) {
        let fid = self.fid(path);
        let mut inode = self.mdt.inode(fid).wait().unwrap();
        inode.lov = layout::build(fid, 0, wire::Text::default(), objects);
        let mut change = Change::new();
        change.change_inode(fid, &inode);
        self.mdt.apply(change).wait().unwrap();
    }

    async fn set_parent(&self, object: StripeObject, parent: Fid) {
        let name = format!("ost{:04x}", object.ost);
        let index = &self.osts[object.ost.0 as usize];
        let objects = LocalStores::in_dir(self.dir.join(name))
            .open_objects(index)
            .await
            .unwrap();
        let attr = SetAttr {
            parent: Some(parent),
            ..SetAttr::default()
        };
        objects.setattr(object.fid, attr).await.unwrap();
        objects.sync(None).await.unwrap();
    }
}

/// Applies damage to the stopped file system in `dir`.
fn damage<F: Future<Output = ()>>(dir: &Path, change: impl FnOnce(Arc<Stores>) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { change(Arc::new(Stores::open(dir).await)).await });
}

pub(crate) fn fsck(site: &Site, options: &[&str]) -> CommandOutput {
    nacre(&[&["fsck", &site.path_str("d")], options].concat())
}

/// Kinds of the findings of a check, sorted.
fn findings(site: &Site) -> Vec<String> {
    let result = fsck(site, &["--data", "--json"]);
    let kinds = kinds(&serde_json::from_str(&result.out).unwrap());
    assert_eq!(
        result.code,
        Some(i32::from(!kinds.is_empty())),
        "{}{}",
        result.out,
        result.err
    );
    kinds
}

/// Kinds of the findings in a report, sorted.
fn kinds(report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap();
    let mut kinds: Vec<String> = findings
        .iter()
        .map(|f| f["what"].as_str().unwrap().to_owned())
        .collect();
    kinds.sort();
    kinds
}

fn assert_repaired(site: &Site) {
    let repaired = fsck(site, &["--repair"]);
    assert!(
        repaired.ok && repaired.out.contains("all repaired"),
        "{}{}",
        repaired.out,
        repaired.err
    );
    assert!(fsck(site, &[]).out.ends_with("no errors\n"));
}

/// Contents of all files below a directory, except the lock files.
fn bytes_below(dir: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut pending = vec![dir.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.is_file() && path.file_name().unwrap() != "lock" {
                let bytes = std::fs::read(&path).unwrap();
                all.insert(path, bytes);
            }
        }
    }
    all
}

fn create_files(mount: &str) {
    let nacre = env!("CARGO_BIN_EXE_nacre");
    sh(&format!(
        "{nacre} lfs setstripe -c 2 -S 64K {mount}/wide && head -c 1000000 /dev/urandom > {mount}/wide
         cp -a {TREE} {mount}/tree && cp -r {TREE} {mount}/again && rm -rf {mount}/again/src
         mkdir -p {mount}/a/b/c && mv {mount}/again {mount}/a/b/ && ln {mount}/wide {mount}/a/hard && ln -s ../wide {mount}/a/soft
         setfattr -n user.color -v red {mount}/wide && setfacl -m u:1234:r {mount}/wide && setfacl -d -m u:1234:rx {mount}/a
         for i in $(seq 300); do ln {mount}/a/hard {mount}/a/b/c/a-name-of-some-length-$i; done
         mkfifo {mount}/fifo; truncate -s 5M {mount}/sparse; touch {mount}/empty"
    ));
}

#[test]
fn check_of_an_intact_tree_finds_and_changes_nothing() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    create_files(&mount);
    site.down("d");
    let before = bytes_below(&site.path("d"));
    let result = fsck(&site, &[]);
    assert!(result.ok, "{}{}", result.out, result.err);
    assert!(result.out.ends_with("no errors\n"), "{}", result.out);
    let after = bytes_below(&site.path("d"));
    let names = |all: &BTreeMap<_, _>| all.keys().cloned().collect::<Vec<std::path::PathBuf>>();
    assert_eq!(names(&before), names(&after));
    let changed: Vec<_> = before
        .iter()
        .filter(|(path, bytes)| after[*path] != **bytes)
        .collect();
    assert!(
        changed.is_empty(),
        "{:?}",
        changed.iter().map(|(p, _)| p).collect::<Vec<_>>()
    );
    // A repair without findings does not modify anything, either.
    assert!(fsck(&site, &["--repair"]).out.ends_with("no errors\n"));
    assert!(bytes_below(&site.path("d")) == before);
}

/// Files that were changed, added or removed since `before`.
fn changed_files(before: &BTreeMap<std::path::PathBuf, Vec<u8>>, dir: &Path) -> Vec<std::path::PathBuf> {
    let after = bytes_below(dir);
    let all = before.keys().chain(after.keys());
    let differs = all.filter(|path| before.get(*path) != after.get(*path));
    differs.cloned().collect()
}

/// The largest journal of a target, and the length of its used part.
fn journal_of(target: &Path) -> (std::path::PathBuf, usize) {
    let files = std::fs::read_dir(target.join("index")).unwrap();
    let journals = files.map(|e| e.unwrap().path());
    let journals = journals.filter(|p| p.extension().is_some_and(|e| e == "jnl"));
    let path = journals
        .max_by_key(|p| std::fs::metadata(p).unwrap().len())
        .unwrap();
    let used = std::fs::read(&path)
        .unwrap()
        .iter()
        .rposition(|b| *b != 0)
        .unwrap()
        + 1;
    (path, used)
}

#[test]
fn check_keeps_torn_or_damaged_journal_and_server_rejects_damage() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!(
        "for i in $(seq 200); do echo $i > {mount}/$i; done; sync -f {mount}; chmod 600 {mount}/1; sync -f {mount}"
    ));
    site.kill("d");
    nacre(&["umount", "--lazy", &mount]);
    let (journal, used) = journal_of(&site.path("d/mdt0000"));
    let whole = std::fs::read(&journal).unwrap();
    // Torn: the last batch is incomplete.
    std::fs::write(&journal, &whole[..used - 3]).unwrap();
    let before = bytes_below(&site.path("d"));
    let check = fsck(&site, &[]);
    assert!(check.ok, "{}{}", check.out, check.err);
    assert_eq!(changed_files(&before, &site.path("d")), [] as [&Path; 0]);

    // Damaged in the first third; most of the rest is intact.
    let mut damaged = whole.clone();
    damaged[used / 3] ^= 0x10;
    std::fs::write(&journal, &damaged).unwrap();
    let before = bytes_below(&site.path("d"));
    let result = fsck(&site, &[]);
    assert_eq!(result.code, Some(1), "{}{}", result.out, result.err);
    assert!(
        result.out.contains("damaged journal") && result.out.contains(journal.to_str().unwrap()),
        "{}",
        result.out
    );
    assert!(
        result
            .out
            .contains("are lost; a copy of the journal is kept in the target's directory as"),
        "{}",
        result.out
    );
    assert_eq!(changed_files(&before, &site.path("d")), [] as [&Path; 0]);
    let error = nacre_refuses(&["up", "--no-mount", "--dir", &site.path_str("d")]);
    assert!(
        error.contains("damaged from byte") && error.contains(journal.to_str().unwrap()),
        "{error}"
    );
    assert_eq!(std::fs::read(&journal).unwrap(), damaged);

    let repaired = fsck(&site, &["--repair"]);
    assert!(repaired.ok, "{}{}", repaired.out, repaired.err);
    let kept = sh(&format!("ls {}/mdt0000/damaged-*", site.path_str("d")));
    assert_eq!(std::fs::read(kept.trim()).unwrap(), damaged);
    let mount = site.up("d", &[]);
    let remaining: usize = sh(&format!("ls -R {mount} | wc -l")).trim().parse().unwrap();
    assert!(remaining > 150, "{remaining}");
    site.down("d");
    assert!(fsck(&site, &[]).ok);
}

#[test]
fn check_works_on_a_read_only_disk() {
    if !is_root() {
        return;
    }
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    sh(&format!("echo contents > {mount}/f"));
    site.down("d");
    let (dir, nacre) = (site.path_str("d"), env!("CARGO_BIN_EXE_nacre"));
    let checked = sh(&format!(
        "unshare -m sh -ec 'mount --bind {dir} {dir}; mount -o remount,ro,bind {dir}; {nacre} fsck {dir}'"
    ));
    assert!(checked.ends_with("no errors\n"), "{checked}");
}

#[test]
fn damaged_object_file_is_found_and_fails_its_file_only() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "1"]);
    sh(&format!(
        "cd {mount}; for f in lost short good; do echo contents of $f > $f; done; sync -f {mount}"
    ));
    site.down("d");
    // Find object files by contents, since object ids are arbitrary.
    let file_of = |name: &str| {
        let objects = site.path_str("d/ost0000/objects");
        sh(&format!("grep -rlx 'contents of {name}' {objects}"))
            .trim()
            .to_owned()
    };
    let (lost, short) = (file_of("lost"), file_of("short"));
    sh(&format!("rm {lost}; truncate -s -1 {short}"));
    assert_eq!(findings(&site), ["missing object file", "short object file"]);
    assert!(!fsck(&site, &["--repair"]).ok);
    let mount = site.up("d", &[]);
    for name in ["lost", "short"] {
        for command in ["cat", "stat", "wc -c"] {
            let error = sh(&format!("{command} {mount}/{name} 2>&1 && echo no error || true"));
            assert!(error.contains("Input/output error"), "{command} {name}: {error}");
        }
    }
    assert_eq!(sh(&format!("cat {mount}/good")), "contents of good\n");
    let log = std::fs::read_to_string(site.path("d/nacre.log")).unwrap();
    assert!(
        log.contains(&format!("object file {lost}: file is missing")),
        "{log}"
    );
    sh(&format!(
        "rm {mount}/lost {mount}/short; echo again > {mount}/lost; grep -x again {mount}/lost"
    ));
    site.down("d");
    assert_eq!(findings(&site), [] as [&str; 0]);
}

#[test]
fn flipped_bit_in_data_is_found_and_never_read() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "1"]);
    sh(&format!(
        "cd {mount}; for f in flipped good; do {{ echo contents of $f; head -c 20000 /dev/zero; }} > $f; done
         sync -f {mount}"
    ));
    site.down("d");
    let objects = site.path_str("d/ost0000/objects");
    let file = sh(&format!("grep -rla 'contents of flipped' {objects}"));
    let file = file.trim();
    let mut data = std::fs::read(file).unwrap();
    data[9000] ^= 4;
    std::fs::write(file, data).unwrap();
    assert_eq!(findings(&site), ["wrong data"]);
    assert!(fsck(&site, &[]).ok, "without --data no data is read");
    let mount = site.up("d", &[]);
    // Programs can read the intact blocks. They can neither read the damaged block nor overwrite
    // a part of it.
    sh(&format!(
        "head -c 8192 {mount}/flipped | grep -a 'contents of flipped'; cat {mount}/good > /dev/null
         (cp {mount}/flipped {mount}/copy 2>&1 || true) | grep 'Input/output error'
         (dd if=/dev/zero of={mount}/flipped bs=100 seek=82 count=1 conv=notrunc,fsync 2>&1 || true) |
             grep 'Input/output error'"
    ));
    let log = std::fs::read_to_string(site.path("d/nacre.log")).unwrap();
    let message = format!("object file {file}: the 4096 bytes at offset 8192 do not match their checksum");
    assert!(log.contains(&message), "{log}");
    // A write of the whole block replaces the damaged data.
    sh(&format!(
        "dd if=/dev/zero of={mount}/flipped bs=4096 seek=2 count=1 conv=notrunc,fsync; cat {mount}/flipped > /dev/null"
    ));
    site.down("d");
    assert_eq!(findings(&site), [] as [&str; 0]);
}

#[test]
fn repair_reports_each_finding_once() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!("touch {mount}/nameless; sync -f {mount}"));
    site.down("d");
    // A repair keeps a stray file, so this finding remains in each round.
    std::fs::write(site.path("d/ost0000/objects/stray"), "").unwrap();
    damage(&site.path("d"), async |stores| {
        stores.change(|batch| {
            batch.delete(keys::entry(Fid::ROOT, b"nameless"));
        });
    });
    let expected = ["no name", "stray file"];
    assert_eq!(findings(&site), expected);
    let report: Value = serde_json::from_str(&fsck(&site, &["--repair", "--json"]).out).unwrap();
    assert_eq!(kinds(&report), expected);
    assert_eq!((&report["found"], &report["left"]), (&2.into(), &1.into()));
}

#[test]
fn lost_store_is_not_replaced_by_an_empty_one() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!(
        "for i in $(seq 20); do echo $i > {mount}/$i; done; sync -f {mount}"
    ));
    site.down("d");
    let dir = site.path_str("d");
    for (lost, replacement) in [
        ("ost0000", "mkdir"),
        ("ost0001/objects", "mkdir"),
        ("ost0001/objects", "true"),
        ("mdt0000/index", "true"),
        ("mdt0000/index", "mkdir"),
        ("mdt0000", "true"),
    ] {
        sh(&format!("mv {dir}/{lost} {dir}.kept; {replacement} {dir}/{lost}"));
        let error = nacre_refuses(&["up", "--no-mount", "--dir", &dir]);
        assert!(
            error.contains("Is its disk mounted?") && error.contains(lost),
            "{lost}: {error}"
        );
        assert!(!fsck(&site, &[]).ok, "{lost}");
        sh(&format!("rm -rf {dir}/{lost}; mv {dir}.kept {dir}/{lost}"));
    }
    // A start does not recreate the root directory, even if the journal contains nothing but a
    // commit record.
    let (journal, _) = journal_of(&site.path("d/mdt0000"));
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &whole[..100]).unwrap();
    let error = nacre_refuses(&["up", "--no-mount", "--dir", &dir]);
    assert!(error.contains("the root directory is missing"), "{error}");
    std::fs::write(&journal, &whole).unwrap();
    damage(&site.path("d"), async |stores| {
        stores.change(|batch| {
            batch.delete(keys::inode(Fid::ROOT));
        });
    });
    let error = nacre_refuses(&["up", "--no-mount", "--dir", &dir]);
    assert!(error.contains("the root directory is missing"), "{error}");
    assert!(!fsck(&site, &[]).ok);
    assert_repaired(&site);
    let mount = site.up("d", &[]);
    sh(&format!("test $(cat {mount}/[0-9]* | wc -l) = 20"));
}

#[test]
fn lost_files_are_readable_in_lost_and_found() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    create_files(&mount);
    sh(&format!(
        "echo nameless > {mount}/a/nameless; echo forgotten > {mount}/forgotten; echo dangling > {mount}/dangling; sync -f {mount}"
    ));
    site.down("d");
    damage(&site.path("d"), async |stores| {
        stores.change(|batch| {
            // Leaves an inode without a name, an object without an inode, and a name without an
            // inode.
            batch.delete(keys::entry(stores.fid("a"), b"nameless"));
            batch
                .delete(keys::inode(stores.fid("forgotten")))
                .delete(keys::entry(Fid::ROOT, b"forgotten"));
            batch.delete(keys::inode(stores.fid("dangling")));
        });
    });
    assert_eq!(
        findings(&site),
        ["dangling name", "no name", "orphan object", "orphan object"]
    );
    assert_repaired(&site);
    site.up("d", &[]);
    sh(&format!(
        "cd {mount}; test ! -e dangling; test ! -e forgotten; ls lost+found | wc -l | grep -x 3
         cat lost+found/* | sort | tr '\\n' ' ' | grep -x 'dangling forgotten nameless '
         echo more >> lost+found/$(ls lost+found | head -1); rm -r lost+found; test -e a/soft"
    ));
    site.down("d");
    assert_eq!(findings(&site), [] as [&str; 0]);
}

#[test]
fn layouts_and_objects_agree_after_a_repair() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!(
        "mkdir {mount}/d; for f in one two three four; do echo $f > {mount}/d/$f; done; for i in $(seq 40); do echo $i > {mount}/$i; done"
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
        "head -c 1000000 /dev/urandom > {mount}/wide; sha256sum < {mount}/wide > {}",
        site.path_str("sum")
    ));
    site.down("d");
    damage(&site.path("d"), async |stores| {
        // Two files share an object; the object's own parent record names the first file.
        stores.set_lov("d/two", &stores.objects("d/one"));
        // An object's parent record names another file.
        stores
            .set_parent(stores.objects("wide")[1], stores.fid("d/three"))
            .await;
        // An object in use is queued for destruction.
        let four = stores.objects("d/four")[0];
        stores.change(|batch| {
            batch.put(keys::work(four.ost, wire::Transno(1), four.fid), &b"\0"[..]);
        });
        // The MDT's and the OST's last ids of the sequence are too low.
        let seq = stores.objects("1")[0].fid.f_seq;
        let ost = stores.objects("1")[0].ost;
        let mark = [&seq.to_le_bytes()[..], &2u32.to_le_bytes()].concat();
        stores.change(|batch| {
            batch.put(keys::objects(ost), mark);
        });
        let mut batch = Batch::new();
        batch.put(
            [b"sl", &seq.to_be_bytes()[..]].concat(),
            2u64.to_le_bytes().to_vec(),
        );
        stores.osts[ost.0 as usize].apply(batch).unwrap();
    });
    assert_eq!(
        findings(&site),
        [
            "object in use is queued for destruction",
            "object of two stripes",
            "objects in use above the MDT's last used id",
            "objects in use above the OST's last created id",
            // The former object of the second file.
            "orphan object",
            "wrong parent"
        ]
    );
    assert_repaired(&site);
    site.up("d", &[]);
    sh(&format!(
        "cd {mount}; test $(cat d/one) = one; test ! -s d/two; test $(cat d/three) = three; test $(cat d/four) = four
         sha256sum < wide | diff - {}; test $(cat lost+found/*) = two
         for i in $(seq 40); do test $(cat $i) = $i; done
         for i in $(seq 41 400); do echo $i > $i; done; for i in $(seq 400); do test $(cat $i) = $i; done
         echo new > d/two; test $(cat d/one) = one",
        site.path_str("sum")
    ));
    site.down("d");
    assert_eq!(findings(&site), [] as [&str; 0]);
}

#[test]
fn missing_targets_are_named() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    sh(&format!("for i in $(seq 10); do echo $i > {mount}/$i; done"));
    site.down("d");
    let target = |name: &str| site.path_str(&format!("d/{name}"));
    let partial = nacre_ok(&["fsck", &target("mdt0000"), &target("ost0001")]);
    assert!(
        partial.contains("not checked: nacre-OST0000 was not given"),
        "{partial}"
    );
    let ost = nacre_ok(&["fsck", &target("ost0001")]);
    assert!(ost.contains("not checked: no MDT was given"), "{ost}");
    let all = nacre_ok(&[
        "fsck",
        &target("ost0001"),
        &target("mgs"),
        &target("ost0000"),
        &target("mdt0000"),
    ]);
    assert!(!all.contains("not checked"), "{all}");
}

#[test]
fn invalid_check_arguments_are_rejected() {
    let mut site = Site::new();
    site.up("d", &[]);
    let d = site.path_str("d");
    assert!(nacre_refuses(&["fsck", &d]).contains("is up (process"));
    assert!(nacre_refuses(&["fsck", &format!("{d}/mdt0000")]).contains("in use by another process"));
    assert!(nacre_refuses(&["fsck", &format!("{d}/mnt")]).contains("not a Nacre target"));
    assert!(nacre_refuses(&["fsck", &site.path_str("nowhere")]).contains("no such directory"));
    site.down("d");
    let mdt = format!("{d}/mdt0000");
    assert!(nacre_refuses(&["fsck", &mdt, &mdt]).contains("in use"));
    sh(&format!("cp -r {mdt} {d}/copy"));
    assert!(nacre_refuses(&["fsck", &mdt, &format!("{d}/copy")]).contains("another nacre-MDT0000"));
    sh(&format!("sed -i 's/^fsname.*/fsname = other/' {d}/copy/target"));
    assert!(nacre_refuses(&["fsck", &mdt, &format!("{d}/copy")]).contains("'other'"));
    sh(&format!(
        "sed -i 's/^format_version.*/format_version = 99/' {d}/copy/target"
    ));
    assert!(nacre_refuses(&["fsck", &format!("{d}/copy")]).contains("format 99"));
    site.up("memory", &["--store", "memory"]);
    site.down("memory");
    assert!(nacre_refuses(&["fsck", &site.path_str("memory")]).contains("in memory"));
}
