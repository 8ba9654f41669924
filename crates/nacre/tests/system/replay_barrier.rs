//! Barriers (`lctl notransno`, `lctl readonly`): a restarted server has lost the changes behind
//! them, and gets them again from the clients that recover. And a fault of `fail_loc` in a process.

use std::fs;
use std::path::Path;

use crate::crash_matrix::{SLACK, holds_within};
use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{Site, nacre_ok, nacre_refuses, sh};

/// Sets a barrier in front of a target, as `replay_barrier` of Lustre's tests does.
fn set_barrier(fs: &FileSystem, server: &str, target: &str) {
    let dir = fs.site.path_str(server);
    for command in ["notransno", "readonly"] {
        nacre_ok(&["lctl", "--dir", &dir, "--device", target, command]);
    }
    let shown = nacre_ok(&["lctl", "--dir", &dir, "get_param", "-n", "*.*.barrier"]);
    assert_eq!(shown.trim(), "readonly");
}

/// A file system with files on disk, and barriers in front of both targets.
fn start_with_barriers() -> FileSystem {
    let fs = FileSystem::new(Shape::FourProcesses);
    let mount = fs.mount_point();
    sh(&format!(
        "cd {} && mkdir old && for f in renamed removed changed truncated; do echo $f > $f; done && sync -f .",
        text(&mount)
    ));
    set_barrier(&fs, "mdt", "lus-MDT0000");
    set_barrier(&fs, "ost", "lus-OST0000");
    fs
}

/// Changes the file system. All programs succeed, also those that ask for durable changes.
fn change(mount: &Path) {
    sh(&format!(
        "cd {} && mv renamed old/name && rm removed && echo more >> changed && truncate -s 4 truncated && \
         mkdir new && ln -s target new/symlink && ln changed new/link && \
         for i in $(seq 50); do echo $i > new/f$i; done && chmod 700 new && sync -f . && cat new/f50",
        text(mount)
    ));
}

/// The names below the mount, with the contents of files.
fn contents(mount: &Path) -> String {
    sh(&format!(
        "cd {} && find . -mindepth 1 | sort && find . -type f | sort | xargs tail -n +1",
        text(mount)
    ))
}

#[test]
fn client_replays_the_changes_behind_barriers() {
    replays_after(Site::kill);
}

#[test]
fn client_replays_the_changes_behind_barriers_after_an_ordinary_stop() {
    replays_after(Site::down);
}

/// Ends both servers, one after the other, and starts each again.
fn replays_after(end: fn(&Site, &str)) {
    let mut fs = start_with_barriers();
    let mount = fs.mount_point();
    change(&mount);
    let before = contents(&mount);
    for server in ["mdt", "ost"] {
        end(&fs.site, server);
        fs.start_server(server);
    }
    assert_eq!(contents(&mount), before);
    // The client reads from its cache, so the OST may not have all replays yet.
    for server in ["mdt", "ost"] {
        let dir = fs.site.path_str(server);
        let status = || nacre_ok(&["lctl", "--dir", &dir, "get_param", "-n", "*.*.recovery_status"]);
        let recovered = || status().contains("status: COMPLETE");
        assert!(holds_within(SLACK, recovered), "{server}: {}", status());
        assert!(
            status().contains("completed_clients: 1/1"),
            "{server}: {}",
            status()
        );
    }
    fs.stop();
    fs.start();
    assert_eq!(contents(&fs.mount_point()), before);
    fs.stop();
    fs.check_consistency();
}

#[test]
fn changes_behind_barriers_are_lost_without_the_client() {
    let mut fs = start_with_barriers();
    let before = contents(&fs.mount_point());
    change(&fs.mount_point());
    assert_ne!(contents(&fs.mount_point()), before);
    // All processes die, so nobody can replay anything.
    fs.kill();
    fs.start();
    assert_eq!(contents(&fs.mount_point()), before);
    fs.stop();
    fs.check_consistency();
}

#[test]
fn stop_behind_a_barrier_loses_the_changes_too() {
    let mut fs = start_with_barriers();
    let before = contents(&fs.mount_point());
    change(&fs.mount_point());
    let mount = fs.mount_point();
    let error = nacre_refuses(&["umount", &mount.to_string_lossy()]);
    assert!(error.contains("has not committed the last"), "{error}");
    fs.stop_servers();
    fs.start();
    assert_eq!(contents(&fs.mount_point()), before);
    fs.stop();
    fs.check_consistency();
}

#[test]
fn lost_reply_of_fail_loc_only_delays_a_program() {
    let fs = FileSystem::new(Shape::FourProcesses);
    let (mdt, mount) = (fs.site.path_str("mdt"), fs.mount_point());
    let param = |name: &str| nacre_ok(&["lctl", "--dir", &mdt, "get_param", "-n", name]);
    let set = |setting: &str| nacre_ok(&["lctl", "--dir", &mdt, "set_param", setting]);
    let refused = nacre_refuses(&["lctl", "--dir", &mdt, "set_param", "fail_loc=0x1701"]);
    assert!(
        refused.contains("does not implement the number 0x1701"),
        "{refused}"
    );
    set("fail_loc=0x80000119");
    assert_eq!(param("fail_loc").trim(), (0x8000_0119_u32).to_string());
    fs::create_dir(mount.join("made_once")).unwrap();
    assert_eq!(param("fail_loc").trim(), (0xc000_0119_u32).to_string());
    set("fail_loc=0");
    assert!(holds_within(SLACK, || fs::remove_dir(mount.join("made_once")).is_ok()));
    fs.stop();
}
