//! How commands find the process of an instance or mount after the removal of the process's
//! records; signals; destruction of an instance.

use crate::fixture::{Site, has_ended, is_root, nacre, nacre_ok, nacre_refuses, sh};

/// Root's run directory.
const RUN_DIR: &str = "/run/nacre";

/// Removes a process's files in the run directory, as a cleaner of temporary files may do.
fn remove_run_dir_entry(pid: u32) {
    sh(&format!("rm -f {RUN_DIR}/{pid}.json {RUN_DIR}/{pid}.sock"));
}

#[test]
fn instance_is_found_without_run_directory_entry() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let (dir, pid) = (site.path_str("d"), site.pid_in("d"));
    let remove_entry = || remove_run_dir_entry(pid);
    remove_entry();
    assert!(nacre_ok(&["status", "--dir", &dir]).contains(&mount));
    remove_entry();
    assert!(nacre_ok(&["up", "--dir", &dir]).contains("is up already"));
    remove_entry();
    nacre_ok(&["lctl", "--dir", &dir, "get_param", "version"]);
    // Without `--dir`, only the run directory leads to the process, which must publish its entry
    // again.
    remove_entry();
    assert!(nacre_ok(&["status"]).contains(&dir));
    remove_entry();
    nacre_ok(&["lfs", "df", &mount]);
    remove_entry();
    nacre_ok(&["down", "--dir", &dir]);
    assert_eq!(nacre(&["status", "--dir", &dir]).code, Some(3));
}

#[test]
fn umount_works_without_run_directory_entry() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let source = format!("{}:/nacre", site.nid("d"));
    let mount = site.mount(&source, "m", &[]);
    let status = nacre_ok(&["status", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    let has_mount =
        |r: &&serde_json::Value| r["record"]["mounts"][0]["mountpoint"].as_str() == Some(mount.as_str());
    let record = all
        .as_array()
        .and_then(|all| all.iter().find(has_mount))
        .expect("the mount");
    let pid = record["record"]["pid"].as_u64().expect("its process") as u32;
    remove_run_dir_entry(pid);
    nacre_ok(&["umount", &mount]);
    assert!(has_ended(pid), "its process has ended");
}

#[test]
fn instance_with_long_path_is_found() {
    let mut site = Site::new();
    // Longer than a Unix socket address.
    let name = ["0123456789012345678901234567890123456789"; 4].join("/");
    sh(&format!("mkdir -p {}", site.path_str(&name)));
    let mount = site.up(&name, &[]);
    remove_run_dir_entry(site.pid_in(&name));
    sh(&format!("echo x > {mount}/f"));
    nacre_ok(&["lctl", "--dir", &site.path_str(&name), "get_param", "version"]);
    site.down(&name);
}

#[test]
fn up_mounts_again_after_a_plain_umount() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let (dir, pid) = (site.path_str("d"), site.pid_in("d"));
    sh(&format!("echo kept > {mount}/f"));
    for unmount in ["umount", env!("CARGO_BIN_EXE_nacre")] {
        match unmount {
            "umount" => sh(&format!("umount {mount}")),
            nacre => sh(&format!("{nacre} umount {mount}")),
        };
        assert!(!std::path::Path::new(&format!("{mount}/f")).exists());
        let output = nacre_ok(&["up", "--dir", &dir]);
        assert!(
            output.contains("up already") && output.contains(&mount),
            "{output}"
        );
        sh(&format!("test $(cat {mount}/f) = kept && echo more >> {mount}/g"));
        assert_eq!(site.pid_in("d"), pid, "the process is the same");
    }
    let up = nacre_ok(&["up", "--dir", &dir]);
    assert!(
        up.contains("is up already") && up.contains(&format!("mounted on {mount}")),
        "{up}"
    );
    assert!(nacre_ok(&["up", "--dir", &dir, "--no-mount"]).contains("is up already"));
    assert!(nacre_refuses(&["up", "--dir", &dir, "--osts", "4"]).contains("is up already"));
    site.down("d");
    site.up("d", &[]);
    sh(&format!("test $(wc -l < {mount}/g) = 2"));
}

#[test]
fn unmounted_file_system_is_shown_without_mount_at_once() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let dir = site.path_str("d");
    let mount_again = format!("mount it again with nacre up --dir {dir}");
    for _ in 0..10 {
        nacre_ok(&["umount", &mount]);
        let status = nacre_ok(&["status", "--dir", &dir]);
        assert!(
            status.contains(&format!("none on {mount}: {mount_again}")),
            "{status}"
        );
        nacre_ok(&["up", "--dir", &dir]);
    }
    assert!(!nacre_ok(&["status", "--dir", &dir]).contains(&mount_again));
    sh(&format!("umount {mount}"));
    // The process notices an unmount by another program with a delay, through the kernel.
    sh(&format!(
        "for i in $(seq 600); do ! {} status --dir {dir} | grep -q '{mount_again}' || exit 0; sleep 0.1; done; exit 1",
        env!("CARGO_BIN_EXE_nacre")
    ));
    let health = nacre(&["health"]);
    assert!(
        health.out.contains("was unmounted") && health.out.contains(&mount_again),
        "{}{}",
        health.out,
        health.err
    );
}

#[test]
fn source_for_programs_is_printed() {
    let mut site = Site::new();
    let dir = site.directory("d");
    let up = nacre_ok(&["up", "--dir", &dir, "--no-mount"]);
    let source = format!("{}:/nacre", site.nid("d"));
    assert!(up.contains(&format!("programs: {source}\n")), "{up}");
    let status = nacre_ok(&["status", "--dir", &dir]);
    assert!(status.contains(&format!("source   {source}\n")), "{status}");
}

#[test]
fn server_keeps_its_address() {
    let mut site = Site::new();
    let place = ["--listen", "127.0.93.5@tcp", "--port", "17993"];
    site.serve("t", &["--mgs"], &place);
    site.down("t");
    site.serve("t", &["--mgs"], &["--port", "17993"]);
    assert_eq!(site.nid("t"), "127.0.93.5@tcp");
    site.down("t");
    // Another process has taken the address.
    let _listener = std::net::TcpListener::bind("127.0.93.5:17993").expect("a free address");
    let target = site.path_str("t");
    let served = nacre_ok(&["serve", &target, "--port", "17993"]);
    assert!(served.contains("until now at 127.0.93.5@tcp"), "{served}");
    site.down("t");
    nacre_ok(&["destroy", "--yes", &target]);
    assert!(!site.path("t").exists());
}

#[test]
fn sighup_reopens_the_log() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let (dir, pid) = (site.path_str("d"), site.pid_in("d"));
    sh(&format!("mv {dir}/nacre.log {dir}/nacre.log.1; kill -HUP {pid}"));
    sh(&format!(
        "until test -s {dir}/nacre.log; do kill -0 {pid}; sleep 0.01; done; echo x > {mount}/f; test $(cat {mount}/f) = x"
    ));
    site.down("d");
}

#[test]
fn down_works_after_removal_of_the_directory() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let (dir, pid) = (site.path_str("d"), site.pid_in("d"));
    // Stop the process during the removal: otherwise it would write its record into the directory
    // again.
    sh(&format!("kill -STOP {pid} && rm -rf {dir} && kill -CONT {pid}"));
    assert!(nacre_refuses(&["up", "--dir", &dir]).contains(&format!("process {pid}")));
    nacre_ok(&["down", "--dir", &dir]);
    assert!(has_ended(pid));
    assert!(nacre_refuses(&["down", "--dir", &dir]).contains("no nacre process runs in"));
}

#[test]
fn unresponsive_process_is_stopped_by_a_signal() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let (dir, pid) = (site.path_str("d"), site.pid_in("d"));
    // Remove the sockets. Keep the process stopped until SIGTERM is pending (signal 15, bit 14 of
    // ShdPnd), so that it cannot publish its sockets again.
    let pending = format!("grep -q '^ShdPnd:.*[4567cdef]...$' /proc/{pid}/status");
    let resume = format!("(until {pending}; do sleep 0.01; done; kill -CONT {pid}) > /dev/null 2>&1 &");
    sh(&format!(
        "kill -STOP {pid}; rm -f {RUN_DIR}/{pid}.sock {dir}/run.sock; {resume} {} down --dir {dir}",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert!(has_ended(pid));
}

#[test]
fn status_shows_mounts_of_dead_processes() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    site.kill("d");
    let status = nacre(&["status"]).out;
    let line = status.lines().find(|l| l.contains(&format!("on {mount} ")));
    assert!(
        line.is_some_and(
            |l| l.contains("died") && l.contains(&format!("nacre up --dir {}", site.path_str("d")))
        ),
        "{status}"
    );
    let restart = format!(
        "has died: start it again with `nacre up --dir {}`",
        site.path_str("d")
    );
    assert!(status.contains(&restart), "{status}");
    nacre_ok(&["umount", &mount]);
    assert!(!nacre(&["status"]).out.contains(&mount));
    site.up("d", &[]);
    assert!(!nacre(&["status"]).out.contains("has died"));
}

#[test]
fn root_sees_processes_of_other_users() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: switching to other users needs root");
        return;
    }
    let mut site = Site::new();
    let dir = site.directory("d");
    let binary = site.binary_for_all();
    sh(&format!("mkdir {dir} && chown 4713:4713 {dir}"));
    let as_user = format!(
        "env -u XDG_RUNTIME_DIR setpriv --reuid 4713 --regid 4713 --clear-groups --inh-caps=-all {binary}"
    );
    sh(&format!("{as_user} up --no-mount --dir {dir}"));
    let status = nacre_ok(&["status"]);
    assert!(
        status.contains(&dir) && status.contains(", user 4713)"),
        "{status}"
    );
    // Another login session of the user, with another environment, finds the process, too.
    sh(&format!(
        "XDG_RUNTIME_DIR={} {as_user} status | grep -q {dir}",
        site.path_str("")
    ));
    sh(&format!("rm -rf /tmp/nacre-4713; {as_user} status --dir {dir}"));
    sh(&format!("{as_user} down --dir {dir}; rm -rf /tmp/nacre-4713"));
}

#[test]
fn destroy_removes_all_files_of_nacre() {
    let mut site = Site::new();
    let mount = site.up("d", &["--osts", "2"]);
    let (dir, pid) = (site.path_str("d"), site.pid_in("d"));
    sh(&format!("echo x > {mount}/f; echo mine > {dir}/thesis"));
    let confirmation = nacre_refuses(&["destroy", &dir]);
    assert!(
        confirmation.contains("--yes") && confirmation.contains("ost0001"),
        "{confirmation}"
    );
    sh(&format!("test $(cat {mount}/f) = x"));
    let output = nacre_ok(&["destroy", "--yes", &dir]);
    assert!(output.contains("'thesis'"), "{output}");
    assert_eq!(sh(&format!("ls -A {dir}")), "thesis\n");
    assert!(has_ended(pid));
    let error = nacre_refuses(&["destroy", "--yes", &dir]);
    assert!(error.contains("nothing was removed"), "{error}");
    assert_eq!(sh(&format!("cat {dir}/thesis")), "mine\n");
}

#[test]
fn interrupted_destroy_can_be_completed() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    site.down("d");
    let dir = site.path_str("d");
    sh(&format!(
        "cd {dir}; mv instance.json instance.destroyed; rm -r mdt0000/index; mv mdt0000/target mdt0000/target.destroyed"
    ));
    let error = nacre_refuses(&["up", "--dir", &dir]);
    assert!(error.contains("half deleted"), "{error}");
    nacre_ok(&["destroy", "--yes", &dir]);
    assert!(!site.path("d").exists());
    let target = site.path_str("t");
    nacre_ok(&["mkfs", "--mgs", &target]);
    nacre_ok(&["destroy", "--yes", &target]);
    assert!(!site.path("t").exists());
}
