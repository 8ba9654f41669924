//! Compatibility with Lustre's tools: links with the tools' names, the helper of mount(8),
//! mkfs.lustre, and the subcommands that Nacre refuses.

use std::path::Path;
use std::process::Command;

use crate::fixture::{self, Site, nacre, nacre_ok, nacre_refuses, sh};

#[test]
fn links_make_the_binary_act_as_lustres_tools() {
    let mut site = Site::new();
    std::fs::create_dir(site.path("bin")).expect("a directory");
    let bin = site.path_str("bin");
    let first = nacre_ok(&["install-links", &bin]);
    assert_eq!(first.matches("(new)").count(), 7, "{first}");
    let second = nacre_ok(&["install-links", &bin]);
    assert_eq!(second.matches("(unchanged)").count(), 7, "{second}");

    let target = site.directory("mgs");
    sh(&format!("{bin}/mkfs.lustre --mgs --reformat {target}"));
    sh(&format!(
        "{bin}/lctl --help && {bin}/lnetctl --help && {bin}/lst --help"
    ));
    assert!(sh(&format!("{bin}/lfs --help")).contains("Usage: lfs <COMMAND>"));
    let version = sh(&format!("{bin}/mount.lustre --version"));
    assert_eq!(
        version,
        nacre_ok(&["--version"]).replacen("nacre", "mount.lustre", 1)
    );
    let mount = site.up("d", &["--fsname", "lus"]);
    assert!(sh(&format!("{bin}/lfs df {mount}")).contains("lus-OST0000_UUID"));

    // mount(8) calls its helpers with the arguments in this order.
    let source = format!("{}:/lus", site.nid("d"));
    let other = site.mount_point("other");
    let helper = format!("{bin}/mount.lustre {source} {other}");
    sh(&format!("{helper} -f -o rw"));
    assert!(!sh("cat /proc/mounts").contains(&other), "-f mounts nothing");
    // mount(8) is silent on success, so its helpers are too, except with -v.
    let silent = sh(&format!("{helper} -n -s -o rw,noatime,no_such_option 2>&1"));
    assert_eq!(silent, "");
    assert!(sh("cat /proc/mounts").contains(&other));
    sh(&format!("touch {mount}/seen && ls {other}/seen"));
    assert_eq!(sh(&format!("{helper} -o remount,ro 2>&1")), "");
    nacre_ok(&["umount", &other]);
    assert!(sh(&format!("{helper} -v")).contains(&format!("is mounted on {other}")));
}

#[test]
fn install_links_keeps_files_of_other_programs() {
    let site = Site::new();
    std::fs::create_dir(site.path("bin")).expect("a directory");
    let bin = site.path_str("bin");
    sh(&format!("echo lustre > {bin}/lst; ln -s /old/nacre {bin}/lfs"));
    let error = nacre_refuses(&["install-links", &bin]);
    assert!(error.contains("/lst belongs to another program"), "{error}");
    assert_eq!(sh(&format!("ls {bin}")), "lfs\nlst\n");
    sh(&format!("rm {bin}/lst"));
    let output = nacre_ok(&["install-links", &bin]);
    assert!(output.contains("(replaced)"), "{output}");
    assert_ne!(sh(&format!("readlink {bin}/lfs")), "/old/nacre\n");
    assert!(nacre_refuses(&["install-links", &site.path_str("none")]).contains("create it first"));
}

#[test]
fn install_links_replaces_links_to_a_versioned_binary() {
    let site = Site::new();
    std::fs::create_dir(site.path("bin")).expect("a directory");
    let (bin, versioned) = (site.path_str("bin"), site.path_str("nacre-0.1"));
    sh(&format!("cp {} {versioned}", env!("CARGO_BIN_EXE_nacre")));
    let first = sh(&format!("{versioned} install-links {bin}"));
    assert_eq!(first.matches("(new)").count(), 7, "{first}");
    let output = nacre_ok(&["install-links", &bin]);
    assert_eq!(output.matches("(replaced)").count(), 7, "{output}");
}

#[test]
fn install_links_needs_the_file_of_the_running_binary() {
    let site = Site::new();
    std::fs::create_dir(site.path("bin")).expect("a directory");
    let (bin, copy) = (site.path_str("bin"), site.path_str("nacre"));
    let error = sh(&format!(
        "cp {} {copy}; exec 3<{copy}; rm {copy}; ! /proc/self/fd/3 install-links {bin} 2>&1",
        env!("CARGO_BIN_EXE_nacre")
    ));
    assert!(error.contains("was removed or replaced"), "{error}");
    assert_eq!(sh(&format!("ls {bin}")), "");
}

#[test]
fn mkfs_overwrites_nothing() {
    let site = Site::new();
    let dir = site.path_str("t");
    nacre_ok(&["mkfs", "--mgs", "--quiet", &dir]);
    let error = nacre_refuses(&["mkfs", "--mgs", "--reformat", &dir]);
    assert!(error.contains("nacre destroy --yes"), "{error}");
    let error = nacre_refuses(&["mkfs", "--mgs", "--mdt", "--fsname", "lus", &site.path_str("two")]);
    assert!(error.contains("one target"), "{error}");
    assert!(!Path::new(&site.path_str("two")).exists());
    assert!(nacre_refuses(&["mkfs", "--mgs", "/dev/null"]).contains("not on a device"));
    assert!(nacre_refuses(&["mkfs", "--mgs", "--backfstype=zfs", "x"]).contains("--backfstype"));
    assert!(nacre_refuses(&["mount", &dir, "/mnt"]).contains("nacre serve"));
}

#[test]
fn missing_subcommands_of_lustre_are_refused_with_an_alternative() {
    let error = nacre_refuses(&["lfs", "setquota", "-u", "ada", "-B", "1G", "/mnt"]);
    assert!(
        error.starts_with("nacre: lfs setquota: Nacre has no quotas; "),
        "{error}"
    );
    let link = tempfile::tempdir().expect("a directory");
    let lctl = link.path().join("lctl");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nacre"), &lctl).expect("a link");
    let result = fixture::run(Command::new(&lctl).args(["lfsck_start", "-A"]));
    assert!(!result.ok && result.err.contains("nacre fsck"), "{}", result.err);

    let result = nacre(&["lfs", "setstrip"]);
    assert_eq!(result.code, Some(2));
    assert_eq!(
        result.err,
        "nacre: lfs has no subcommand 'setstrip': `nacre lfs --help` lists all\n"
    );
    assert!(nacre(&["stats"]).err.contains("similar"));
}
