//! `nacre lfs mkdir`, `setdirstripe` and `getdirstripe` on a file system with one MDT.

use crate::fixture::{Site, nacre_ok, nacre_refuses, sh};

#[test]
fn directories_on_a_chosen_mdt_are_made_and_shown() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let path = |name: &str| format!("{mount}/{name}");
    nacre_ok(&["lfs", "mkdir", "-i", "0", "-o", "2750", &path("a")]);
    sh(&format!(
        "cd {mount}; umask 027; {} lfs setdirstripe -i -1 b",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert_eq!(
        sh(&format!("cd {mount}; stat -c '%n %a %F' a b")),
        "a 2750 directory\nb 750 directory\n"
    );
    let layout = "lmv_stripe_count: 0 lmv_stripe_offset: 0 lmv_hash_type: none\n";
    assert_eq!(nacre_ok(&["lfs", "getdirstripe", &path("a")]), layout);
    assert_eq!(nacre_ok(&["lfs", "getdirstripe", "-m", &path("b")]), "0\n");
    sh(&format!("touch {mount}/a/file; mkdir {mount}/a/sub"));
    let shown = nacre_ok(&["lfs", "getdirstripe", "-r", &path("a")]);
    assert_eq!(shown, format!("{mount}/a\n{layout}{mount}/a/sub\n{layout}"));
    let none = nacre_ok(&["lfs", "getdirstripe", "-D", &path("a")]);
    assert!(
        none.starts_with("lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none"),
        "{none}"
    );
    assert_eq!(nacre_ok(&["lfs", "getdirstripe", "-D", "-R", &path("a")]), "");
    nacre_ok(&[
        "lfs",
        "setdirstripe",
        "-D",
        "-i",
        "-1",
        "-X",
        "3",
        "--max-inherit-rr",
        "2",
        &path("a"),
    ]);
    sh(&format!("mkdir {mount}/a/new"));
    let default = |levels, in_turn| {
        format!(
            "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: {levels} \
             lmv_max_inherit_rr: {in_turn}\n"
        )
    };
    assert_eq!(
        nacre_ok(&["lfs", "getdirstripe", "-D", &path("a")]),
        default(3, 2)
    );
    assert_eq!(
        nacre_ok(&["lfs", "getdirstripe", "-D", &path("a/new")]),
        default(2, 1)
    );
    assert_eq!(nacre_ok(&["lfs", "getdirstripe", "-D", "-R", &path("a/sub")]), "");
    nacre_ok(&["lfs", "setdirstripe", "-d", &path("a")]);
    assert_eq!(nacre_ok(&["lfs", "getdirstripe", "-D", "-R", &path("a")]), "");
    let error = nacre_refuses(&["lfs", "setdirstripe", "-D", "-i", "7", &path("a")]);
    assert!(error.contains("does the MDT exist"), "{error}");
}

#[test]
fn impossible_directories_are_refused_with_a_reason() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    let path = |name: &str| format!("{mount}/{name}");
    for (args, reason) in [
        (&["-i", "3"][..], "no such MDT"),
        (&["-i", "x"], "not an MDT"),
        (&["-c", "5000"], "number of MDTs"),
        (&["-H", "md5"], "not a hash function"),
        (&["-o", "9"], "not a mode"),
    ] {
        let dir = path("new");
        let command = [&["lfs", "mkdir"][..], args, &[dir.as_str()][..]].concat();
        let error = nacre_refuses(&command);
        assert!(error.contains(reason), "{args:?}: {error}");
    }
    nacre_ok(&["lfs", "mkdir", "-i", "0", &path("a")]);
    let error = nacre_refuses(&["lfs", "mkdir", "-i", "0", &path("a")]);
    assert!(error.contains("exists"), "{error}");
    sh(&format!("touch {mount}/file"));
    let error = nacre_refuses(&["lfs", "getdirstripe", &path("file")]);
    assert!(error.contains("not a directory"), "{error}");
}
