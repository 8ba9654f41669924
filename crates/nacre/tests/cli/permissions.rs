//! Permissions through a mount: other users, squashed root, nodemaps; and permissions of the
//! stores.

use std::process::Command;

use crate::fixture::{CommandOutput, Site, is_root, nacre, nacre_ok, nacre_refuses, run, sh};

/// Runs a shell command as an unprivileged user, which at first owns no files.
fn run_as_user(line: &str) -> CommandOutput {
    run(Command::new("setpriv").args([
        "--reuid",
        "4711",
        "--regid",
        "4712",
        "--clear-groups",
        "--inh-caps=-all",
        "bash",
        "-ec",
        line,
    ]))
}

#[test]
fn permissions_apply_to_other_users_and_squashed_root() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: switching to other users needs root");
        return;
    }
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "1"]);
    sh(&format!("chmod 711 {}", site.path_str("")));
    let dir = site.path_str("d");
    sh(&format!(
        "chmod 711 {dir}; cd {mount}; echo secret > s; chmod 600 s; mkdir -m 1777 tmp; touch tmp/roots; mkdir -m 700 own; touch own/x"
    ));
    for command in [
        "cat s",
        "echo > s",
        "rm -f s",
        "chmod 666 s",
        "chown 4711 s",
        "touch new",
        "ls own",
        "cat own/x",
        "mv tmp/roots tmp/mine",
        "truncate -s 0 s",
        "setfattr -n user.a -v b s",
        "mknod tmp/disk b 7 0",
    ] {
        let result = run_as_user(&format!("cd {mount}; {command}"));
        assert!(!result.ok, "{command}: {}", result.out);
    }
    let allowed = run_as_user(&format!(
        "cd {mount}/tmp; echo mine > u; chmod 600 u; cat u; mkdir d; mv u d; stat -c %u:%g d/u"
    ));
    assert_eq!(allowed.out, "mine\n4711:4712\n", "{}", allowed.err);

    // `set_param -P` applies to all nodes and to later starts.
    nacre_ok(&[
        "lctl",
        "--dir",
        &dir,
        "set_param",
        "-P",
        "mdt.*.root_squash=99:98",
    ]);
    let param = |name: &str| {
        nacre_ok(&["lctl", "--dir", &dir, "get_param", "-n", name])
            .trim()
            .to_owned()
    };
    sh(&format!(
        "for i in $(seq 600); do touch {mount}/probe$i 2>/dev/null || break; sleep 0.1; done; ! touch {mount}/probe"
    ));
    assert_eq!(param("mdt.*.root_squash"), "99:98");
    assert_eq!(param("mdt.*.nosquash_nids"), "NONE");
    sh(&format!(
        "cd {mount}/tmp; ! rm -f roots; ! chmod 777 roots; touch nobodys; test $(stat -c %u:%g nobodys) = 99:98"
    ));
    nacre_ok(&[
        "lctl",
        "--dir",
        &dir,
        "set_param",
        "mdt.*.nosquash_nids=10.0.0.*@tcp 0@lo",
    ]);
    sh(&format!(
        "cd {mount}; touch tmp/roots; chmod 644 tmp/roots; rm tmp/nobodys; cat s"
    ));
    site.down("d");
    let mount = site.up("d", &[]);
    sh(&format!("! touch {mount}/probe"));
    nacre_ok(&["lctl", "--dir", &dir, "set_param", "mdt.*.root_squash=0:0"]);
    sh(&format!("touch {mount}/probe"));
    let error = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "mdt.*.root_squash=nobody"]);
    assert!(error.contains("UID:GID"), "{error}");
}

/// Time limit for a change at the MGS to reach the targets, on a loaded machine.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(120);

/// Repeats a shell command until it succeeds (`ok`) or fails, because changes at the MGS reach the
/// targets with a delay.
fn run_until(line: &str, ok: bool) -> CommandOutput {
    let start_time = std::time::Instant::now();
    loop {
        let result = run(Command::new("bash").args(["-ec", line]));
        if result.ok == ok {
            return result;
        }
        assert!(
            start_time.elapsed() < WAIT_MAX,
            "{line}: {}{}",
            result.out,
            result.err
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn nodemaps_restrict_mounts_by_nid() {
    let mut site = Site::new();
    let (dir, port) = (site.directory("d"), "17945");
    let net = ["--port", port, "--listen"];
    nacre_ok(
        &[
            &["up", "--dir", &dir, "--no-mount"],
            &net[..],
            &["127.0.45.1@tcp"],
        ]
        .concat(),
    );
    let source = "127.0.45.1@tcp:/nacre";
    let mnt = site.mount(source, "mnt", &[&net[..], &["127.0.45.2@tcp"]].concat());
    sh(&format!("echo data > {mnt}/f"));
    let lctl = |args: &[&str]| nacre_ok(&[&["lctl", "--dir", &dir], args].concat());
    let modify = |name: &str, property: &str, value: &str| {
        let options = ["--name", name, "--property", property, "--value", value];
        lctl(&[&["nodemap_modify"], &options[..]].concat())
    };
    lctl(&["nodemap_add", "lab"]);
    modify("lab", "trusted", "1");
    modify("lab", "admin", "1");
    modify("lab", "readonly_mount", "1");
    lctl(&[
        "nodemap_add_range",
        "--name",
        "lab",
        "--range",
        "127.0.45.[2-3]@tcp",
    ]);
    // Do not overwrite `f`: writes succeed until the servers learn about the range.
    let failure = run_until(&format!("echo x > {mnt}/other"), false);
    assert!(failure.err.contains("Read-only file system"), "{}", failure.err);
    sh(&format!("test $(cat {mnt}/f) = data"));
    modify("lab", "readonly_mount", "0");
    run_until(&format!("echo more > {mnt}/f"), true);
    let error = nacre_refuses(&["lctl", "--dir", &dir, "nodemap_add", "lab"]);
    assert!(error.contains("nodemap 'lab' exists already"), "{error}");

    // Only clients in a range may mount.
    modify("default", "deny_mount", "1");
    let outside = site.mount_point("other");
    let mount = [&["mount", source, &outside], &net[..], &["127.0.45.9@tcp"]].concat();
    let mount_until = |succeeds: bool| {
        let start_time = std::time::Instant::now();
        while nacre(&mount).ok != succeeds {
            assert!(
                start_time.elapsed() < WAIT_MAX,
                "the mount still {}",
                if succeeds { "fails" } else { "succeeds" }
            );
            if !succeeds {
                nacre_ok(&["umount", &outside]);
            }
        }
    };
    mount_until(false);
    sh(&format!("test $(cat {mnt}/f) = more"));
    modify("lab", "deny_mount", "1");
    run_until(&format!("touch {mnt}/f"), false);
    // The servers no longer tell this mount that its last changes are on disk.
    let ended = nacre(&["umount", "--lazy", &mnt]);
    assert!(
        ended.ok || ended.err.contains("unmounted, but not everything is saved"),
        "{}",
        ended.err
    );

    // Nodemaps survive a restart.
    site.down("d");
    nacre_ok(
        &[
            &["up", "--dir", &dir, "--no-mount"],
            &net[..],
            &["127.0.45.1@tcp"],
        ]
        .concat(),
    );
    let shown = lctl(&["get_param", "nodemap.*.deny_mount", "nodemap.lab.ranges"]);
    let expected =
        "nodemap.default.deny_mount=1\nnodemap.lab.deny_mount=1\nnodemap.lab.ranges=127.0.45.[2-3]@tcp\n";
    assert_eq!(shown, expected);
    nacre_refuses(&mount);
    modify("default", "deny_mount", "0");
    mount_until(true);
    sh(&format!("test $(cat {outside}/f) = more"));
}

/// Files in a directory that other users can access, except the directory itself, its mount point
/// and sockets.
fn files_open_to_others(dir: &str) -> String {
    sh(&format!(
        "find {dir} -mindepth 1 -path {dir}/mnt -prune -o ! -type s -perm /077 -print"
    ))
}

#[test]
fn store_is_private_with_any_umask() {
    let mut site = Site::new();
    let dir = site.directory("d");
    let mount = site.up_after("umask 0", "d", "--osts 1");
    sh(&format!(
        "mkdir {mount}/a; for i in $(seq 40); do echo secret > {mount}/a/$i; done; sync -f {mount}"
    ));
    assert_eq!(files_open_to_others(&dir), "");
    site.down("d");
    assert_eq!(files_open_to_others(&dir), "");

    // The next start restricts a store that is open to other users, as an earlier version left it,
    // and logs this once for each directory.
    sh(&format!("chmod -R a+rX {dir}"));
    site.up("d", &[]);
    let open = sh(&format!(
        "find {dir} -mindepth 1 -path {dir}/mnt -prune -o -path '*/objects/*/*/*' -prune -o ! -type s -perm /077 -print"
    ));
    assert_eq!(open, "");
    let log = sh(&format!("cat {dir}/nacre.log"));
    let warnings = |directory: &str| {
        log.lines()
            .filter(|l| l.contains("were accessible to other users") && l.contains(directory))
            .count()
    };
    for part in ["/mgs:", "/mdt0000:", "/ost0000:", "/d:"] {
        assert_eq!(warnings(part), 1, "{part}\n{log}");
    }
    if is_root() {
        sh(&format!("chmod 711 {} {dir}", site.path_str("")));
        for command in ["ls", "cat", "grep -r secret"] {
            assert!(
                !run_as_user(&format!("{command} {dir}/ost0000/objects")).ok,
                "{command}"
            );
        }
        assert!(!run_as_user(&format!("cat {dir}/run.json")).ok);
    }
}

#[test]
fn mkfs_restricts_an_open_directory() {
    let site = Site::new();
    let (new, old) = (site.path_str("new"), site.path_str("old"));
    sh(&format!("mkdir -m 777 {old}"));
    let nacre = env!("CARGO_BIN_EXE_nacre");
    for dir in [&new, &old] {
        sh(&format!("umask 0; {nacre} mkfs --mgs {dir}"));
        assert_eq!(sh(&format!("stat -c %a {dir}")), "700\n");
        assert_eq!(files_open_to_others(dir), "");
    }
}
