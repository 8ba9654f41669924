//! Mistakes of users and leftovers of crashes: the message of the command names the object and the
//! problem, and a refused command changes nothing.

use std::fs;

use crate::fixture::{Site, nacre, nacre_ok, nacre_refuses, sh};

#[test]
fn directory_with_foreign_files_is_not_touched() {
    let site = Site::new();
    fs::write(site.path("file"), "mine").unwrap_or_default();
    sh(&format!(
        "mkdir {0} && echo mine > {0}/thesis",
        site.path_str("full")
    ));
    let error = nacre_refuses(&["up", "--dir", &site.path_str("full")]);
    assert!(error.contains("thesis") && error.contains("--dir"), "{error}");
    assert!(nacre_refuses(&["up", "--dir", &site.path_str("file")]).contains("not a directory"));
    for kind in ["--mgs", "--ost"] {
        let full = site.path_str("full");
        let all = [
            "mkfs",
            kind,
            "--index",
            "0",
            "--fsname",
            "fs",
            "--mgsnode",
            "127.0.0.1@tcp",
            &full,
        ];
        assert!(nacre_refuses(&all).contains("thesis"));
    }
    assert_eq!(sh(&format!("ls -A {}", site.path_str("full"))), "thesis\n");
    assert!(nacre_refuses(&["serve", &site.path_str("full")]).contains("not a Nacre target"));
    assert!(nacre_refuses(&["serve", &site.path_str("nowhere")]).contains("no such directory"));
}

#[test]
fn wrong_command_for_a_directory_names_the_right_one() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    site.down("d");
    let (dir, target) = (site.path_str("d"), site.path_str("d/mgs"));
    let error = nacre_refuses(&["serve", &dir]);
    assert!(error.contains(&format!("nacre up --dir {dir}")), "{error}");
    let error = nacre_refuses(&["up", "--dir", &target]);
    assert!(error.contains(&format!("nacre serve {target}")), "{error}");
}

#[test]
fn start_parameters_are_described_without_a_process() {
    let help = nacre_ok(&["lctl", "help_param", "module.*"]);
    assert!(
        help.contains("cpu_npartitions: number of CPU partitions"),
        "{help}"
    );
    assert!(nacre_refuses(&["lctl", "help_param", "osc.*"]).contains("no nacre process is running"));
}

#[test]
fn mount_warns_of_the_files_that_it_hides() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let source = format!("{}:/nacre", site.nid("d"));
    let at = site.mount_point("m");
    sh(&format!("touch {at}/hidden"));
    let mounted = nacre(&["mount", &source, &at]);
    assert!(
        mounted.ok && mounted.err.contains("hides its files"),
        "{}",
        mounted.err
    );
    nacre_ok(&["umount", &at]);
    sh(&format!("rm {at}/hidden"));
    let mounted = nacre(&["mount", &source, &at]);
    assert!(mounted.ok && mounted.err.is_empty(), "{}", mounted.err);
    nacre_ok(&["umount", &at]);
}

#[test]
fn incomplete_or_newer_store_is_rejected() {
    let mut site = Site::new();
    sh(&format!(
        "mkdir {0} && echo '{{}}' > {0}/instance.new",
        site.path_str("half")
    ));
    assert!(nacre_refuses(&["up", "--dir", &site.path_str("half")]).contains("is incomplete"));
    sh(&format!("mkdir {0} && touch {0}/target.new", site.path_str("t")));
    assert!(nacre_refuses(&["serve", &site.path_str("t")]).contains("incomplete target"));

    site.up("new", &["--no-mount"]);
    site.down("new");
    sh(&format!(
        "sed -i 's/\"format_version\": 1/\"format_version\": 99/' {}/instance.json",
        site.path_str("new")
    ));
    let error = nacre_refuses(&["up", "--dir", &site.path_str("new")]);
    assert!(error.contains("newer Nacre (format 99"), "{error}");
    sh(&format!(
        "sed -i 's/format_version = .*/format_version = 77/' {}/mgs/target",
        site.path_str("new")
    ));
    assert!(nacre_refuses(&["serve", &site.path_str("new/mgs")]).contains("format 77"));
}

#[test]
fn port_in_use_and_foreign_address_are_explained() {
    let site = Site::new();
    let taken = std::net::TcpListener::bind("127.7.7.7:0").map(|l| (l.local_addr().map(|a| a.port()), l));
    let Ok((Ok(port), _listener)) = taken else {
        panic!("no port to take")
    };
    let port = port.to_string();
    let dir = site.path_str("d");
    let up = |nid: &str| nacre_refuses(&["up", "--dir", &dir, "--listen", nid, "--port", &port]);
    let error = up("127.7.7.7@tcp");
    assert!(
        error.contains(&format!("127.7.7.7@tcp port {port}")) && error.contains("another process"),
        "{error}"
    );
    assert!(up("192.0.2.7@tcp").contains("no interface"));
    assert!(!site.path("d").exists(), "nothing is left behind");
}

#[test]
fn invalid_mount_point_is_rejected() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let other = site.path_str("other");
    let error = nacre_refuses(&["up", "--dir", &other, "--mount", &mount]);
    assert!(error.contains("is busy") && error.contains(&mount), "{error}");
    let file = format!("{}/../file", mount);
    sh(&format!("touch {file}"));
    assert!(nacre_refuses(&["up", "--dir", &other, "--mount", &file]).contains("not a directory"));
    let missing = site.path_str("missing");
    assert!(nacre_refuses(&["mount", "127.0.0.1@tcp:/nacre", &missing]).contains("create it first"));
    assert!(nacre_refuses(&["umount", &missing]).contains("not a mount point"));
}

#[test]
fn leftovers_of_a_crash_are_explained_and_cleaned_up() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    site.kill("d");
    let dir = site.path_str("d");
    let error = nacre_refuses(&["up", "--dir", &site.path_str("other"), "--mount", &mount]);
    assert!(
        error.contains("a process that has ended") && error.contains("nacre umount"),
        "{error}"
    );
    let down = nacre_ok(&["down", "--dir", &dir]);
    assert!(down.contains("had died") && down.contains("unmounted"), "{down}");
    assert!(nacre_refuses(&["down", "--dir", &dir]).contains("no nacre process runs in"));
    site.up("d", &[]);
}

#[test]
fn unreachable_server_is_named() {
    let site = Site::new();
    let mount_point = site.path_str("mnt");
    sh(&format!("mkdir {mount_point}"));
    let mount = ["mount", "--port", "17777", "127.0.0.99@tcp:/fs", &mount_point];
    let error = nacre_refuses(&mount);
    assert!(
        error.contains("127.0.0.99@tcp") && error.contains("fs"),
        "{error}"
    );
    let ost = site.path_str("ost");
    nacre_ok(&[
        "mkfs",
        "--ost",
        "--index",
        "0",
        "--fsname",
        "fs",
        "--mgsnode",
        "127.0.0.99@tcp",
        &ost,
    ]);
    let failure = nacre(&["serve", "--wait", "3", "--port", "17777", &ost]);
    let lines: Vec<&str> = failure.err.lines().collect();
    assert!(!failure.ok && lines.len() == 2, "{}", failure.err);
    let waiting = "fs-OST0000: waiting at most 3 s (--wait) for the MGS to register it: ";
    let reason = lines[0].strip_prefix(waiting).unwrap_or_default();
    assert!(
        reason.contains("127.0.0.99@tcp") && reason.contains("refused"),
        "the first line names the reason for the wait: {}",
        failure.err
    );
    assert!(
        lines[1].contains("127.0.0.99@tcp") && lines[1].contains("fs-OST0000"),
        "{}",
        failure.err
    );
    assert_eq!(sh(&format!("ls -A {mount_point}")), "", "nothing is mounted");
}

#[test]
fn unknown_file_system_is_named() {
    let mut site = Site::new();
    site.serve(
        "mgs",
        &["--mgs"],
        &["--listen", "127.0.0.98@tcp", "--port", "17778"],
    );
    let mount_point = site.path_str("mnt");
    sh(&format!("mkdir {mount_point}"));
    let error = nacre_refuses(&["mount", "--port", "17778", "127.0.0.98@tcp:/nofs", &mount_point]);
    assert!(error.contains("nofs"), "{error}");
    assert!(nacre_refuses(&["serve", &site.path_str("mgs")]).contains("in use"));
}

#[test]
fn invalid_names_and_paths_are_rejected() {
    let site = Site::new();
    let dir = site.path_str("d");
    assert!(nacre_refuses(&["up", "--dir", &dir, "--fsname", "muchtoolong"]).contains("muchtoolong"));
    assert!(nacre_refuses(&["mount", "nonsense", &dir]).contains("MGSNID:/FSNAME"));
    assert!(nacre_refuses(&["lfs", "getstripe", "/tmp"]).contains("not on a mounted Nacre"));
    assert!(nacre_refuses(&["lfs", "df", "/tmp"]).contains("not in a mount"));
}

#[test]
fn damaged_run_json_does_not_break_commands() {
    let mut site = Site::new();
    let dir = site.path_str("d");
    for content in ["", "{\\\"role\\\"", "\\0\\0\\0\\0"] {
        site.up("d", &["--no-mount"]);
        site.kill("d");
        sh(&format!("printf \"{content}\" > {dir}/run.json"));
        let status = nacre(&["status", "--dir", &dir]);
        assert_eq!(status.code, Some(3), "{}{}", status.out, status.err);
        assert!(
            status.out.contains(&format!("no nacre process runs in {dir}")),
            "{}",
            status.out
        );
        assert!(
            status.err.contains("run.json is empty or damaged"),
            "{}",
            status.err
        );
        assert!(
            nacre(&["down", "--dir", &dir])
                .err
                .contains("no nacre process runs in")
        );
        nacre_ok(&["fsck", &dir]);
        let up = nacre(&["up", "--no-mount", "--dir", &dir]);
        assert!(up.ok && up.err.contains("ignored"), "{}{}", up.out, up.err);
        site.down("d");
    }
    let target = site.path_str("t");
    site.serve(
        "t",
        &["--mgs"],
        &["--listen", "127.0.91.1@tcp", "--port", "17991"],
    );
    site.kill("t");
    sh(&format!(": > {target}/run.json"));
    nacre_ok(&["serve", &target, "--listen", "127.0.91.1@tcp", "--port", "17991"]);
}
