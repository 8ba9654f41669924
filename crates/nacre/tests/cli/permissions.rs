//! Who may do what, through a mount: other users, and root where it is squashed.

use std::process::Command;

use crate::fixture::{Ended, Site, is_root, nacre_ok, nacre_refuses, run, sh};

/// Runs a line of shell as a user that owns nothing.
fn as_user(line: &str) -> Ended {
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
fn other_users_and_a_squashed_root_are_held_to_their_rights() {
    if !is_root() {
        eprintln!("!!! NOT TESTED: taking on other users needs root");
        return;
    }
    let mut site = Site::new();
    let at = site.up("d", &["--osts", "1"]);
    sh(&format!("chmod 711 {}", site.at("")));
    let dir = site.at("d");
    sh(&format!(
        "chmod 711 {dir}; cd {at}; echo secret > s; chmod 600 s; mkdir -m 1777 tmp; touch tmp/roots; mkdir -m 700 own; touch own/x"
    ));
    for refused in [
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
        let ended = as_user(&format!("cd {at}; {refused}"));
        assert!(!ended.ok, "{refused}: {}", ended.out);
    }
    let done = as_user(&format!(
        "cd {at}/tmp; echo mine > u; chmod 600 u; cat u; mkdir d; mv u d; stat -c %u:%g d/u"
    ));
    assert_eq!(done.out, "mine\n4711:4712\n", "{}", done.err);

    // Kept for all nodes, and for the next time.
    nacre_ok(&[
        "lctl",
        "--dir",
        &dir,
        "set_param",
        "-P",
        "mdt.*.root_squash=99:98",
    ]);
    let squashed = |by: &str| {
        nacre_ok(&["lctl", "--dir", &dir, "get_param", "-n", by])
            .trim()
            .to_owned()
    };
    sh(&format!(
        "for i in $(seq 600); do touch {at}/probe$i 2>/dev/null || break; sleep 0.1; done; ! touch {at}/probe"
    ));
    assert_eq!(squashed("mdt.*.root_squash"), "99:98");
    assert_eq!(squashed("mdt.*.nosquash_nids"), "NONE");
    sh(&format!(
        "cd {at}/tmp; ! rm -f roots; ! chmod 777 roots; touch nobodys; test $(stat -c %u:%g nobodys) = 99:98"
    ));
    nacre_ok(&[
        "lctl",
        "--dir",
        &dir,
        "set_param",
        "mdt.*.nosquash_nids=10.0.0.*@tcp 0@lo",
    ]);
    sh(&format!(
        "cd {at}; touch tmp/roots; chmod 644 tmp/roots; rm tmp/nobodys; cat s"
    ));
    site.down("d");
    let at = site.up("d", &[]);
    sh(&format!("! touch {at}/probe"));
    nacre_ok(&["lctl", "--dir", &dir, "set_param", "mdt.*.root_squash=0:0"]);
    sh(&format!("touch {at}/probe"));
    let why = nacre_refuses(&["lctl", "--dir", &dir, "set_param", "mdt.*.root_squash=nobody"]);
    assert!(why.contains("UID:GID"), "{why}");
}
