//! Unprivileged users: one runs a private file system; none can access the file systems of others.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fixture::{self, CommandOutput, Site, is_root, nacre_ok, run, sh};

/// The uid of `nobody`.
const USER: &str = "65534";

/// Runs a shell command as an unprivileged user.
fn run_as(user: &str, runtime_dir: &str, line: &str) -> CommandOutput {
    run(Command::new("setpriv")
        .args([
            "--reuid",
            user,
            "--regid",
            user,
            "--clear-groups",
            "--inh-caps=-all",
            "bash",
            "-ec",
            line,
        ])
        .env("XDG_RUNTIME_DIR", runtime_dir))
}

/// Checks that a command on another user's file system fails quickly with the reason.
fn assert_refused(user: &str, line: &str) {
    let start_time = Instant::now();
    let result = run_as(user, "/nowhere", line);
    assert!(!result.ok, "{line}: {}", result.out);
    assert!(
        result
            .err
            .contains("accepts connections from this host only if root or that user makes them"),
        "{line}: {}",
        result.err
    );
    assert!(
        start_time.elapsed() < Duration::from_secs(60),
        "{line}: {:?}",
        start_time.elapsed()
    );
}

#[test]
fn servers_of_root_reject_other_local_users() {
    if !is_root() {
        return;
    }
    let mut site = Site::new();
    let binary = site.binary_for_all();
    let mount = site.up("d", &[]);
    let attack = format!(
        "{binary} bench mdtest --mgs {}:/nacre -C -n 1 -d /owned",
        site.nid("d")
    );
    assert_refused(USER, &attack);
    assert_refused(USER, &format!("unshare -Ur {attack}"));
    assert_eq!(sh(&format!("ls -A {mount}")), "");
    let log = std::fs::read_to_string(site.path("d").join("nacre.log")).unwrap();
    assert!(log.contains("its socket belongs to user 65534"), "{log}");
    // The same command works for root.
    nacre_ok(&[
        "bench",
        "mdtest",
        "--mgs",
        &format!("{}:/nacre", site.nid("d")),
        "-C",
        "-n",
        "1",
        "-d",
        "/owned",
    ]);
    assert_eq!(sh(&format!("ls -A {mount}")), "owned\n");
}

#[test]
fn suid_and_dev_are_off_unless_root_enables_them() {
    if !is_root() {
        return;
    }
    let mut site = Site::new();
    let mnt = site.up("d", &[]);
    let source = format!("{}:/nacre", site.nid("d"));
    let suid_mount = site.mount(&source, "with", &["-o", "suid,dev"]);
    let noexec_mount = site.mount(&source, "without", &["-o", "noexec,nofail"]);
    sh(&format!(
        "chmod 755 {0} {1}; cp /usr/bin/id {mnt}/id; chmod 4755 {mnt}/id; mknod -m 666 {mnt}/null c 1 3",
        site.path_str("."),
        site.path_str("d")
    ));
    let id = |mnt: &str| run_as(USER, "/nowhere", &format!("{mnt}/id -u"));
    assert_eq!((id(&mnt).out.trim(), id(&suid_mount).out.trim()), (USER, "0"));
    assert!(!id(&noexec_mount).ok, "noexec");
    let write = |mnt: &str| run(Command::new("bash").args(["-c", &format!("echo x > {mnt}/null")])).ok;
    assert_eq!(
        (write(&mnt), write(&suid_mount), write(&noexec_mount)),
        (false, true, false)
    );
    let options = |mnt: &str| sh(&format!("findmnt -no VFS-OPTIONS {mnt}"));
    assert!(options(&mnt).contains("nosuid,nodev"), "{}", options(&mnt));

    // Without a server: an error, or a warning with nofail.
    let nobody = site.mount_point("nobody");
    let mount = ["mount", "--port", "17779", "127.0.0.97@tcp:/fs", &nobody, "-o"];
    let failure = fixture::nacre(&[&mount[..], &["ro"]].concat());
    assert!(
        !failure.ok && failure.err.contains("127.0.0.97@tcp"),
        "{}",
        failure.err
    );
    let success = fixture::nacre(&[&mount[..], &["ro,nofail"]].concat());
    assert!(
        success.ok && success.err.contains("nofail allows"),
        "{}",
        success.err
    );
}

#[test]
fn unprivileged_user_can_run_a_file_system() {
    if !is_root() {
        // Without root, all other tests of this binary run as an ordinary user.
        return;
    }
    let fuse = std::fs::metadata("/dev/fuse").expect("/dev/fuse");
    if fuse.mode() & 0o006 != 0o006 {
        eprintln!("!!! NOT TESTED: /dev/fuse is for root alone here, so that ordinary users cannot mount");
        return;
    }
    let mut site = Site::new();
    let dir = site.path_str("d");
    let binary = site.binary_for_all();
    sh(&format!("mkdir {dir} && chown {USER}:{USER} {dir}"));
    let as_user = |line: &str| {
        let result = run_as(USER, &dir, line);
        assert!(result.ok, "{line}: {}{}", result.out, result.err);
        result.out
    };
    // Skip this where net.ipv4.ip_unprivileged_port_start was lowered.
    let lowest = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if lowest.trim() == "1024" {
        let failure = as_user(&format!(
            "! {binary} up --dir {dir} --port 988 --listen 127.0.0.200@tcp 2>&1"
        ));
        assert!(
            failure.contains("port 988") && failure.contains("are for root"),
            "{failure}"
        );
        assert_eq!(sh(&format!("ls -A {dir}")), "", "nothing is created");
    }
    as_user(&format!("{binary} up --dir {dir} --osts 2"));
    as_user(&format!(
        "cd {dir}/mnt; cp -r /usr/include/linux . && diff -r /usr/include/linux linux; test $(stat -c %u linux) = {USER}"
    ));
    let options = as_user(&format!(
        "mkdir {dir}/noatime; {binary} mount -o noatime {}:/nacre {dir}/noatime > /dev/null; \
         findmnt -no VFS-OPTIONS {dir}/noatime; {binary} umount {dir}/noatime > /dev/null",
        site.nid("d")
    ));
    assert!(options.contains("noatime"), "{options}");
    // Root may use the file system, other users may not, and options reserved for root fail.
    let (nid, port) = (site.nid("d"), "7988");
    let by_root = site.mount(&format!("{nid}:/nacre"), "by-root", &["--port", port]);
    sh(&format!("diff -r /usr/include/linux {by_root}/linux"));
    nacre_ok(&["umount", &by_root]);
    assert_refused(
        "4711",
        &format!("{binary} mount --port {port} {nid}:/nacre $(mktemp -d)"),
    );
    let failure = run_as(
        USER,
        &dir,
        &format!("{binary} mount -o suid {nid}:/nacre {dir}/other"),
    );
    assert!(failure.err.contains("'suid' needs root"), "{}", failure.err);
    as_user(&format!(
        "{binary} lfs path2fid {dir}/mnt/linux; {binary} down --dir {dir}"
    ));
    as_user(&format!(
        "{binary} up --dir {dir}; diff -r /usr/include/linux {dir}/mnt/linux; {binary} down --dir {dir}"
    ));
}
