//! Full targets: errors, continued service, and reuse of released space.

use std::process::Command;

use super::disk::Disk;
use super::{Servers, assert_fails, available_bytes, get_param, wait_until};
use crate::fixture::{self, Site, nacre, nacre_ok, run, sh};

/// A source tree of this project to copy.
const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../wire");

/// Creates an empty file with one stripe on this OST.
fn create_on_ost(mount: &str, name: &str, ost: u32) {
    nacre_ok(&[
        "lfs",
        "setstripe",
        "-c",
        "1",
        "-i",
        &ost.to_string(),
        &format!("{mount}/{name}"),
    ]);
}

#[test]
fn full_ost_returns_enospc_and_recovers() {
    let disk = Disk::new("1G", "");
    let (mut site, servers) = (Site::new(), Servers::new(51));
    let ost0 = disk.target("ost0");
    servers.start_mgs_and_mdt(&mut site);
    servers.serve(&mut site, &ost0, 3, &["--ost", "--index", "0"]);
    servers.serve(&mut site, "ost1", 4, &["--ost", "--index", "1"]);
    let mount = servers.mount(&mut site);
    for name in ["ballast", "buffered", "synced", "direct", "kept", "half"] {
        create_on_ost(&mount, name, 0);
    }
    create_on_ost(&mount, "elsewhere", 1);
    sh(&format!(
        "head -c 5000000 /dev/urandom > {mount}/kept && sync -f {mount}/kept && sha256sum < {mount}/kept > {}",
        site.path_str("sum")
    ));
    // Allocate most of the space without writing; fill the rest by several kinds of writes.
    let kib: u64 = get_param(&site, &ost0, "obdfilter.*.kbytesavail")
        .parse()
        .unwrap();
    let ballast_bytes = (kib << 10) - (60 << 20);
    sh(&format!("fallocate -l {ballast_bytes} {mount}/ballast"));
    assert_fails(&format!("fallocate -l 200M {mount}/half"), "No space left");
    assert_fails(
        &format!("dd if=/dev/zero of={mount}/buffered bs=1M count=300 conv=fsync"),
        "No space left",
    );
    assert_fails(
        &format!("dd if=/dev/zero of={mount}/synced bs=64K count=3000 oflag=sync"),
        "No space left",
    );
    assert_fails(
        &format!("dd if=/dev/zero of={mount}/direct bs=1M count=300 oflag=direct"),
        "No space left",
    );
    // Data reported as written is present.
    let lines = sh(&format!(
        "stat -c %s {mount}/buffered {mount}/synced {mount}/direct"
    ));
    let sizes: Vec<u64> = lines.lines().map(|l| l.parse().unwrap()).collect();
    assert!(sizes.iter().sum::<u64>() <= 62 << 20, "{sizes:?}");
    assert!(sizes[0] > 40 << 20, "{sizes:?}");
    sh(&format!(
        "cmp -n {} {mount}/buffered /dev/zero && sha256sum < {mount}/kept | diff - {}",
        sizes[0],
        site.path_str("sum")
    ));
    // The reserve is intact; it serves operations that release space or need none.
    assert!(available_bytes(&disk.root()) >= 128 << 20);
    sh(&format!(
        "dd if=/dev/urandom of={mount}/kept bs=1M count=2 conv=notrunc,fsync && chmod 600 {mount}/kept && touch -d 2001-02-03 {mount}/kept"
    ));
    sh(&format!(
        "dd if=/dev/zero of={mount}/elsewhere bs=1M count=20 conv=fsync"
    ));
    // New files are created on the OST with space; an explicit request for the full OST fails.
    let mut count = 0;
    let mut create_on_ost0 = |prefix: &str| {
        count += 1;
        nacre(&[
            "lfs",
            "setstripe",
            "-c",
            "1",
            "-i",
            "0",
            &format!("{mount}/{prefix}{count}"),
        ])
    };
    wait_until("the MDT knows that the OST is full", || {
        !create_on_ost0("full").ok
    });
    assert!(create_on_ost0("full").err.contains("No space left"));
    sh(&format!(
        "mkdir {mount}/new && cd {mount}/new && for i in 1 2 3 4 5 6; do echo x > $i; done"
    ));
    for i in 1..=6 {
        let index = nacre_ok(&["lfs", "getstripe", "-i", &format!("{mount}/new/{i}")]);
        assert_eq!(index.trim(), "1");
    }
    let df = nacre_ok(&["lfs", "df", &mount]);
    assert!(
        df.lines().any(|l| l.contains("OST0000") && l.contains("100%")),
        "{df}"
    );
    // Removing files releases their space on the host and for users.
    sh(&format!(
        "rm {mount}/ballast {mount}/buffered && : > {mount}/direct"
    ));
    wait_until("the space is available again", || {
        available_bytes(&disk.root()) > ballast_bytes
    });
    wait_until("new files are created on the OST again", || {
        create_on_ost0("again").ok
    });
    sh(&format!(
        "dd if=/dev/zero of=$(ls -d {mount}/again* | tail -n 1) bs=1M count=100 conv=fsync"
    ));
    let log = sh(&format!(
        "cat {ost0}/nacre.log {}/nacre.log",
        site.path_str("mdt")
    ));
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn full_mdt_returns_enospc_and_recovers() {
    let disk = Disk::new("1G", "");
    let (mut site, servers) = (Site::new(), Servers::new(52));
    let mdt = disk.target("mdt");
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, &mdt, 2, &["--mdt"]);
    servers.serve(&mut site, "ost0", 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site);
    sh(&format!(
        "mkdir -p {mount}/d/e {mount}/attrs && cd {mount}/d && for i in $(seq 50); do echo $i > f$i; done && ln f1 hard"
    ));
    // Another file on the disk leaves 150 MiB, which extended attributes fill.
    let others = format!("{}/others", disk.root());
    let kib: u64 = get_param(&site, &mdt, "osd-local.*.kbytesavail").parse().unwrap();
    let before = available_bytes(&disk.root());
    sh(&format!("fallocate -l {} {others}", (kib << 10) - (150 << 20)));
    let fill = format!(
        "cd {mount}/attrs && touch {{1..3000}} && setfattr -n user.x -v 0s$(head -c 60000 /dev/urandom | base64 -w 0) *"
    );
    assert_fails(&fill, "No space left");
    for change in [
        "touch new",
        "mkdir new",
        "ln -s x new",
        "ln f2 new",
        "mknod new p",
    ] {
        assert_fails(&format!("cd {mount}/d && {change}"), "No space left");
    }
    assert_fails(&format!("setfattr -n user.y -v 1 {mount}/d/f3"), "No space left");
    let df = nacre_ok(&["lfs", "df", &mount]);
    assert!(
        df.lines().any(|l| l.contains("MDT0000") && l.contains("100%")),
        "{df}"
    );
    // Operations that release or replace space succeed, even many times.
    sh(&format!(
        "cd {mount}/d && rm f1 f2 hard && rmdir e && mv f4 f5 && mv f6 elsewhere && chmod 600 f7 && truncate -s 0 f8 && \
         touch -d 2001-02-03 f9 && echo more >> f10 && dd if=/dev/zero of=f11 bs=1M count=3 conv=fsync && \
         for i in $(seq 40); do mv f12 f13 && mv f13 f12 && chmod $((600 + i % 2)) f12; done"
    ));
    assert_eq!(sh(&format!("ls {mount}/d | wc -l")).trim(), "46");
    let bytes = sh(&format!(
        "cd {mount}/attrs && (getfattr --only-values -n user.x * 2> /dev/null || true) | wc -c"
    ));
    assert!(bytes.trim().parse::<u64>().unwrap() > 50 << 20, "{bytes}");
    // All space returns, to users and to the local file system.
    sh(&format!("rm -r {mount}/attrs"));
    // The index needs space to release space, so the free space first varies.
    let create = format!("mkdir -p {mount}/d/again && touch {mount}/d/new {mount}/d/again/{{1..200}}");
    wait_until("directories and files can be created again", || {
        run(Command::new("bash").args(["-c", &create])).ok
    });
    assert_eq!(sh(&format!("ls {mount}/d/again | wc -l")).trim(), "200");
    sh(&format!("rm {others}"));
    wait_until("the local file system has its space again", || {
        available_bytes(&disk.root()) + (80 << 20) > before
    });
    sh(&format!("ls -l {mount}/d > /dev/null"));
    let log = sh(&format!("cat {mdt}/nacre.log"));
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn full_local_file_system_fails_changes_without_damage() {
    let disk = Disk::new("1G", "");
    let (mut site, servers) = (Site::new(), Servers::new(53));
    let (mdt, ost0) = (disk.target("mdt"), disk.target("ost0"));
    servers.serve(&mut site, "mgs", 1, &["--mgs"]);
    servers.serve(&mut site, &mdt, 2, &["--mdt"]);
    servers.serve(&mut site, &ost0, 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site);
    let others = format!("{}/others", disk.root());
    sh(&format!(
        "mkdir {mount}/d && cp -r {TREE} {mount}/d/ && diff -r {TREE} {mount}/d/wire && sync -f {mount}"
    ));
    // Fill the whole file system: changes fail, and nothing breaks.
    sh(&format!(
        "fallocate -l $(($(stat -fc %a {0}) * 4096 - 4000000)) {others}",
        disk.root()
    ));
    for change in ["touch new", "rm -r wire", "mv wire x", "chmod 700 wire"] {
        assert_fails(&format!("cd {mount}/d && {change}"), "No space left");
    }
    assert_fails(
        &format!(
            "dd if=/dev/zero of={mount}/d/wire/Cargo.toml oflag=append conv=notrunc,fsync bs=1M count=1"
        ),
        "No space left",
    );
    sh(&format!("diff -r {TREE} {mount}/d/wire"));
    // A target that starts on the full disk reports the reason of its failure.
    site.down(&ost0);
    let error = fixture::nacre_refuses(&[
        "serve",
        &ost0,
        "--listen",
        &servers.nid(3),
        "--port",
        &servers.port,
    ]);
    assert!(error.contains("is full") && error.contains("MiB"), "{error}");
    sh(&format!("rm {others}"));
    servers.serve(&mut site, &ost0, 3, &[]);
    wait_until("the OST serves again", || {
        run(std::process::Command::new("bash").args(["-c", &format!("echo x > {mount}/d/x")])).ok
    });
    sh(&format!(
        "diff -r {TREE} {mount}/d/wire && chmod 700 {mount}/d && rm -r {mount}/d/wire"
    ));
    let log = sh(&format!("cat {mdt}/nacre.log {ost0}/nacre.log"));
    assert!(!log.contains("read-only"), "{log}");
}

#[test]
fn ost_without_inodes_gets_no_new_files() {
    let disk = Disk::new("2G", "-N 2048");
    let (mut site, servers) = (Site::new(), Servers::new(54));
    let ost0 = disk.target("ost0");
    servers.start_mgs_and_mdt(&mut site);
    servers.serve(&mut site, &ost0, 3, &["--ost", "--index", "0"]);
    let mount = servers.mount(&mut site);
    let free = || -> u64 { sh(&format!("stat -fc %d {mount}")).trim().parse().unwrap() };
    let before = free();
    assert!((1000..2048).contains(&before), "{before}");
    sh(&format!(
        "mkdir {mount}/d && cd {mount}/d && for i in {{1..200}}; do echo $i > f$i; done && sync -f {mount}/d"
    ));
    wait_until("the OST reports the used inodes", || free() + 200 <= before);
    // Other files on the disk leave only 64 inodes, half of the reserve. Changes of existing files
    // can use these.
    sh(&format!(
        "mkdir {0}/others && cd {0}/others && seq $(($(stat -fc %d .) - 64)) | xargs touch",
        disk.root()
    ));
    sh(&format!(
        "cd {mount}/d && cat f* | sort -n | cmp - <(seq 200) && echo more >> f1 && sync -f f1"
    ));
    wait_until("the MDT knows that the OST has no inodes", || {
        !run(std::process::Command::new("touch").arg(format!("{mount}/d/new"))).ok || {
            sh(&format!("echo x > {mount}/d/new; rm {mount}/d/new"));
            false
        }
    });
    assert_fails(&format!("touch {mount}/d/new"), "No space left");
    wait_until("no free inodes are reported", || free() == 0);
    sh(&format!(
        "cd {mount}/d && mkdir sub && mv f2 sub && rm f3 && truncate -s 0 f4"
    ));
    sh(&format!("rm -r {}/others", disk.root()));
    wait_until("files can be created again", || {
        run(std::process::Command::new("touch").arg(format!("{mount}/d/new"))).ok
    });
    sh(&format!(
        "cd {mount}/d && echo new > new && sync -f new && test $(cat new) = new"
    ));
}

#[test]
fn up_on_a_full_disk_names_the_space_or_starts_without_new_files() {
    let disk = Disk::new("1G", "");
    let mut site = Site::new();
    let (dir, others) = (disk.target("d"), format!("{}/others", disk.root()));
    let leave = |mib: u64| {
        sh(&format!(
            "rm -f {others}; fallocate -l $(($(stat -fc '%a * %S' {0}) - ({mib} << 20))) {others}",
            disk.root()
        ));
    };
    leave(20);
    let error = fixture::nacre_refuses(&["up", "--dir", &dir, "--no-mount"]);
    assert!(error.contains(" MiB free, and Nacre keeps"), "{error}");
    let missing = error
        .split("free ")
        .last()
        .and_then(|rest| rest.split(' ').next());
    assert_eq!(sh(&format!("ls -A {dir}")), "", "nothing is created");
    // The named space is enough.
    leave(21 + missing.unwrap().parse::<u64>().unwrap());
    nacre_ok(&["up", "--dir", &dir, "--no-mount"]);
    nacre_ok(&["destroy", "--yes", &dir]);

    sh(&format!("rm {others}"));
    let mount = site.up(&dir, &[]);
    sh(&format!("echo kept > {mount}/f"));
    site.down(&dir);
    leave(20);
    let up = nacre_ok(&["up", "--dir", &dir]);
    assert!(up.contains("too full for new files: OST0000"), "{up}");
    sh(&format!("test $(cat {mount}/f) = kept && rm {mount}/f"));
    site.down(&dir);

    // Without any space the command names the needed space.
    sh(&format!(
        "cd {}; cat /dev/zero > rest 2> /dev/null || true; stat -fc %a .",
        disk.root()
    ));
    let error = fixture::nacre_refuses(&["up", "--dir", &dir]);
    assert!(
        error.contains("is full: starting needs") && error.contains("MiB free"),
        "{error}"
    );
    sh(&format!("rm {0}/rest {others}", disk.root()));
    nacre_ok(&["up", "--dir", &dir]);
}
