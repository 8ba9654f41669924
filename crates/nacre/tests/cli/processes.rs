//! How commands find the process of an instance or a mount, whatever was removed meanwhile; signals; and the end of an instance.

use crate::fixture::{Site, has_ended, is_root, nacre, nacre_ok, nacre_refuses, sh};

/// The run directory of root; for other users it is elsewhere.
const RUN_DIR: &str = "/run/nacre";

/// Removes what a process has published in the run directory, as a cleaner of temporary files does.
fn lose_index(pid: u32) {
    sh(&format!("rm -f {RUN_DIR}/{pid}.json {RUN_DIR}/{pid}.sock"));
}

#[test]
fn an_instance_is_found_when_the_run_directory_has_lost_it() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    let (dir, pid) = (site.at("d"), site.pid_in("d"));
    let lost = || lose_index(pid);
    lost();
    assert!(nacre_ok(&["status", "--dir", &dir]).contains(&at));
    lost();
    assert!(nacre_refuses(&["up", "--dir", &dir]).contains("is up already"));
    lost();
    nacre_ok(&["lctl", "--dir", &dir, "get_param", "version"]);
    // Nothing but the mount table leads to it now: the process publishes again.
    lost();
    assert!(nacre_ok(&["status"]).contains(&dir));
    lost();
    nacre_ok(&["lfs", "df", &at]);
    lost();
    nacre_ok(&["down", "--dir", &dir]);
    assert_eq!(nacre(&["status", "--dir", &dir]).code, Some(3));
}

#[test]
fn a_mount_is_unmounted_when_the_run_directory_has_lost_it() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let source = format!("{}:/nacre", site.nid("d"));
    let at = site.mount(&source, "m", &[]);
    let status = nacre_ok(&["status", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let of_mount =
        |r: &&serde_json::Value| r["record"]["mounts"][0]["mountpoint"].as_str() == Some(at.as_str());
    let record = all
        .as_array()
        .and_then(|all| all.iter().find(of_mount))
        .expect("the mount");
    let pid = record["record"]["pid"].as_u64().expect("its process") as u32;
    lose_index(pid);
    nacre_ok(&["umount", &at]);
    assert!(has_ended(pid), "its process has ended");
}

#[test]
fn an_instance_in_a_deep_directory_is_found() {
    let mut site = Site::new();
    // Longer than the address of a Unix socket.
    let name = ["0123456789012345678901234567890123456789"; 4].join("/");
    sh(&format!("mkdir -p {}", site.at(&name)));
    let at = site.up(&name, &[]);
    lose_index(site.pid_in(&name));
    sh(&format!("echo x > {at}/f"));
    nacre_ok(&["lctl", "--dir", &site.at(&name), "get_param", "version"]);
    site.down(&name);
}

#[test]
fn up_mounts_again_after_a_plain_umount() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    let (dir, pid) = (site.at("d"), site.pid_in("d"));
    sh(&format!("echo kept > {at}/f"));
    for unmount in ["umount", env!("CARGO_BIN_EXE_nacre")] {
        match unmount {
            "umount" => sh(&format!("umount {at}")),
            nacre => sh(&format!("{nacre} umount {at}")),
        };
        assert!(!std::path::Path::new(&format!("{at}/f")).exists());
        let said = nacre_ok(&["up", "--dir", &dir]);
        assert!(said.contains("up already") && said.contains(&at), "{said}");
        sh(&format!("test $(cat {at}/f) = kept && echo more >> {at}/g"));
        assert_eq!(site.pid_in("d"), pid, "it is the same process");
    }
    assert!(nacre_refuses(&["up", "--dir", &dir]).contains("is up already"));
    assert!(nacre_refuses(&["up", "--dir", &dir, "--osts", "4"]).contains("is up already"));
    site.down("d");
    site.up("d", &[]);
    sh(&format!("test $(wc -l < {at}/g) = 2"));
}

#[test]
fn a_hangup_reopens_the_log_and_ends_nothing() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    let (dir, pid) = (site.at("d"), site.pid_in("d"));
    sh(&format!("mv {dir}/nacre.log {dir}/nacre.log.1; kill -HUP {pid}"));
    sh(&format!(
        "until test -s {dir}/nacre.log; do kill -0 {pid}; sleep 0.01; done; echo x > {at}/f; test $(cat {at}/f) = x"
    ));
    site.down("d");
}

#[test]
fn down_works_after_the_directory_was_removed() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let (dir, pid) = (site.at("d"), site.pid_in("d"));
    sh(&format!("rm -rf {dir}"));
    assert!(nacre_refuses(&["up", "--dir", &dir]).contains(&format!("process {pid}")));
    nacre_ok(&["down", "--dir", &dir]);
    assert!(has_ended(pid));
    assert!(nacre_refuses(&["down", "--dir", &dir]).contains("no nacre process runs in"));
}

#[test]
fn a_process_that_does_not_answer_is_stopped_by_a_signal() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let (dir, pid) = (site.at("d"), site.pid_in("d"));
    // The sockets go, and the process is kept from making them again until the signal (15, of which the kernel shows bit 14) waits.
    let pending = format!("grep -q '^ShdPnd:.*[4567cdef]...$' /proc/{pid}/status");
    let go_on = format!("(until {pending}; do sleep 0.01; done; kill -CONT {pid}) > /dev/null 2>&1 &");
    sh(&format!(
        "kill -STOP {pid}; rm -f {RUN_DIR}/{pid}.sock {dir}/run.sock; {go_on} {} down --dir {dir}",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert!(has_ended(pid));
}

#[test]
fn status_shows_the_mount_of_a_process_that_died() {
    let mut site = Site::new();
    let at = site.up("d", &[]);
    site.kill("d");
    let status = nacre(&["status"]).out;
    let line = status.lines().find(|l| l.contains(&format!("on {at} ")));
    assert!(
        line.is_some_and(|l| l.contains("died") && l.contains(&format!("nacre umount {at}"))),
        "{status}"
    );
    nacre_ok(&["umount", &at]);
    assert!(!nacre(&["status"]).out.contains(&at));
}

#[test]
fn root_sees_what_runs_for_other_users() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: taking on other users needs root");
        return;
    }
    let mut site = Site::new();
    let dir = site.directory("d");
    sh(&format!(
        "chmod 711 {0} && mkdir {dir} && chown 4713:4713 {dir}; cp {1} {0}/nacre && chmod 755 {0}/nacre",
        site.at(""),
        env!("CARGO_BIN_EXE_nacre")
    ));
    let as_user = format!(
        "env -u XDG_RUNTIME_DIR setpriv --reuid 4713 --regid 4713 --clear-groups --inh-caps=-all {}",
        site.at("nacre")
    );
    sh(&format!("{as_user} up --no-mount --dir {dir}"));
    let status = nacre_ok(&["status"]);
    assert!(
        status.contains(&dir) && status.contains(", user 4713)"),
        "{status}"
    );
    // Another session of the user, with another environment, finds it too.
    sh(&format!(
        "XDG_RUNTIME_DIR={} {as_user} status | grep -q {dir}",
        site.at("")
    ));
    sh(&format!("rm -rf /tmp/nacre-4713; {as_user} status --dir {dir}"));
    sh(&format!("{as_user} down --dir {dir}; rm -rf /tmp/nacre-4713"));
}

#[test]
fn a_file_system_is_destroyed_with_all_that_nacre_made() {
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "2"]);
    let (dir, pid) = (site.at("d"), site.pid_in("d"));
    sh(&format!("echo x > {at}/f; echo mine > {dir}/thesis"));
    let asked = nacre_refuses(&["destroy", &dir]);
    assert!(asked.contains("--yes") && asked.contains("ost0001"), "{asked}");
    sh(&format!("test $(cat {at}/f) = x"));
    let done = nacre_ok(&["destroy", "--yes", &dir]);
    assert!(done.contains("'thesis'"), "{done}");
    assert_eq!(sh(&format!("ls -A {dir}")), "thesis\n");
    assert!(has_ended(pid));
    let refused = nacre_refuses(&["destroy", "--yes", &dir]);
    assert!(refused.contains("nothing was removed"), "{refused}");
    assert_eq!(sh(&format!("cat {dir}/thesis")), "mine\n");
}

#[test]
fn an_interrupted_destruction_is_known_and_goes_on() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    site.down("d");
    let dir = site.at("d");
    sh(&format!(
        "cd {dir}; mv instance.json instance.destroyed; rm -r mdt0000/index; mv mdt0000/target mdt0000/target.destroyed"
    ));
    let refused = nacre_refuses(&["up", "--dir", &dir]);
    assert!(refused.contains("half deleted"), "{refused}");
    nacre_ok(&["destroy", "--yes", &dir]);
    assert!(!site.path("d").exists());
    let target = site.at("t");
    nacre_ok(&["mkfs", "--mgs", &target]);
    nacre_ok(&["destroy", "--yes", &target]);
    assert!(!site.path("t").exists());
}
