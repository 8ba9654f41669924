//! A user without any privilege runs a file system of their own.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::fixture::{Site, is_root, run, sh};

/// "nobody", by number.
const USER: &str = "65534";

#[test]
fn an_ordinary_user_brings_up_uses_and_stops_a_file_system() {
    if !is_root() {
        // Then every other test of this crate is this one.
        return;
    }
    let fuse = std::fs::metadata("/dev/fuse").expect("/dev/fuse");
    if fuse.mode() & 0o006 != 0o006 {
        eprintln!("!!! NOT TESTED: /dev/fuse is for root alone here, so that ordinary users cannot mount");
        return;
    }
    let site = Site::new();
    let dir = site.at("d");
    sh(&format!(
        "chmod 711 {0} && mkdir {dir} && chown {USER}:{USER} {dir}",
        site.at(".")
    ));
    // The test's own binary may be where only root can look.
    let binary = site.at("nacre");
    sh(&format!(
        "cp {} {binary} && chmod 755 {binary}",
        env!("CARGO_BIN_EXE_nacre")
    ));
    let as_user = |line: &str| {
        let ended = run(Command::new("setpriv")
            .args([
                "--reuid",
                USER,
                "--regid",
                USER,
                "--clear-groups",
                "--inh-caps=-all",
                "bash",
                "-ec",
                line,
            ])
            .env("XDG_RUNTIME_DIR", &dir));
        assert!(ended.ok, "{line}: {}{}", ended.out, ended.err);
        ended.out
    };
    // As everywhere but where somebody has lowered net.ipv4.ip_unprivileged_port_start.
    let lowest = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if lowest.trim() == "1024" {
        let refused = as_user(&format!(
            "! {binary} up --dir {dir} --port 988 --listen 127.0.0.200@tcp 2>&1"
        ));
        assert!(
            refused.contains("port 988") && refused.contains("are for root"),
            "{refused}"
        );
        assert_eq!(sh(&format!("ls -A {dir}")), "", "nothing is made");
    }
    as_user(&format!("{binary} up --dir {dir} --osts 2"));
    as_user(&format!(
        "cd {dir}/mnt; cp -r /usr/include/linux . && diff -r /usr/include/linux linux; test $(stat -c %u linux) = {USER}"
    ));
    as_user(&format!(
        "{binary} lfs path2fid {dir}/mnt/linux; {binary} down --dir {dir}"
    ));
    as_user(&format!(
        "{binary} up --dir {dir}; diff -r /usr/include/linux {dir}/mnt/linux; {binary} down --dir {dir}"
    ));
}
