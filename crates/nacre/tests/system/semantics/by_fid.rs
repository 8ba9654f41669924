//! `.lustre/fid`, FID commands of `nacre lfs`, and mounts of subdirectories.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::file_system::{FileSystem, Shape, text};
use crate::fixture::{nacre_ok, nacre_refuses, sh};
use crate::semantics::two_mounts::{TwoMounts, run_script_in};

/// The FID of a file.
fn fid_of(path: &Path) -> String {
    nacre_ok(&["lfs", "path2fid", text(path)]).trim().to_owned()
}

#[test]
fn files_and_directories_are_accessible_by_fid() {
    let env = TwoMounts::new();
    env.sh("mkdir -p d/e; echo content > d/e/f; ln d/e/f g");
    let (dir, file) = (fid_of(&env.a.join("d/e")), fid_of(&env.a.join("g")));
    let root = fid_of(&env.a);
    let dot = fid_of(&env.a.join(".lustre"));
    let script = format!(
        "test -z \"$(ls -A | grep lustre)\"
         cd .lustre/fid
         cat '{file}' | grep -q content; echo more >> '{file}'; test $(stat -c %h '{file}') = 2
         test \"$(ls '{dir}')\" = f; touch '{dir}/new'; mkdir '{dir}/sub'; mv '{dir}/new' '{dir}/sub/moved'
         stat '{root}' '{dot}' '{root}/d/e' > /dev/null; ls '{root}/d/e/sub' | grep -q moved
         cd '{dir}/sub' && test -f moved"
    );
    env.sh(&script);
    env.sh("test \"$(cat g)\" = $'content\\nmore'; cd d/e; ls; test -f sub/moved; test ! -e new");
    // A process that entered the directory by its path keeps that path.
    env.sh(&format!(
        "cd d/e/sub; (cd ../../../.lustre/fid/'{dir}'; ls > /dev/null); cd ..; test \"$(pwd -P)\" = {}/d/e",
        text(&env.a)
    ));
    let by_path = fs::metadata(env.a.join("d/e")).unwrap();
    let by_fid = fs::metadata(env.a.join(format!(".lustre/fid/{dir}"))).unwrap();
    assert_eq!(by_path.ino(), by_fid.ino());
    for command in [
        "rmdir .lustre".to_owned(),
        "mv .lustre other".to_owned(),
        "mkdir .lustre/x".to_owned(),
        "touch .lustre/fid/x".to_owned(),
        "rmdir .lustre/fid".to_owned(),
        format!("rm .lustre/fid/'{file}'"),
        format!("mv .lustre/fid/'{file}' x"),
        "stat '.lustre/fid/[0x200000400:0x77777:0x0]'".to_owned(),
        "stat '.lustre/fid/[0x1:0x2:0x0]'".to_owned(),
    ] {
        env.sh(&format!("if {command} 2> /dev/null; then exit 1; fi"));
    }
    env.sh_as_user_fails("", &format!("cat .lustre/fid/'{file}'"));
}

#[test]
fn changes_by_fid_are_visible_by_path() {
    let env = TwoMounts::new();
    env.sh("mkdir d; echo 1 > d/one; echo 2 > d/two; mkdir d/sub");
    let dir = fid_of(&env.a.join("d"));
    // The kernel caches these names and the attributes of the directory.
    env.sh("stat d d/one d/two d/sub > /dev/null");
    env.sh(&format!(
        "cd .lustre/fid/'{dir}'; rm one; mv two three; rmdir sub; chmod 700 ."
    ));
    env.sh(
        "test \"$(ls d)\" = three; test ! -e d/one; test ! -e d/two; test ! -e d/sub; test $(stat -c %a d) = 700",
    );
    // Changes by path are visible by FID.
    env.sh(&format!(
        "exec 3< .lustre/fid/'{dir}'; ls .lustre/fid/'{dir}' > /dev/null; mv d/three d/four
         test \"$(ls .lustre/fid/'{dir}')\" = four; cat .lustre/fid/'{dir}'/four > /dev/null"
    ));
}

#[test]
fn lfs_shows_and_removes_files_by_fid() {
    let env = TwoMounts::new();
    env.sh("mkdir d; echo x > d/f; ln d/f d/g; touch d/h; chmod 777 d");
    let path_of = |name: &str| text(&env.a.join(name)).to_owned();
    let (dir, file, single) = (
        fid_of(&env.a.join("d")),
        fid_of(&env.a.join("d/f")),
        fid_of(&env.a.join("d/h")),
    );
    let parents = nacre_ok(&["lfs", "path2fid", "--parents", &path_of("d/f")]);
    assert_eq!(parents, format!("{dir}/f\n{dir}/g\n"));
    assert_eq!(nacre_ok(&["lfs", "path2fid", "--parents", &path_of("")]), "");
    let paths = nacre_ok(&["lfs", "fid2path", &path_of(""), &file]);
    assert_eq!(paths, format!("{}\n{}\n", path_of("d/f"), path_of("d/g")));
    let nacre = env.fs.site.binary_for_all();
    let error = env.sh_as_user_fails("", &format!("{nacre} lfs fid2path . '{file}'"));
    assert!(error.contains("user_fid2path"), "{error}");
    env.sh_as_user_fails("", &format!("{nacre} lfs rmfid . '{file}'"));
    let missing = "[0x200000400:0x77777:0x0]";
    let error = nacre_refuses(&["lfs", "rmfid", &path_of(""), &file, missing]);
    assert!(
        error.contains(missing) && error.contains("no such file"),
        "{error}"
    );
    env.sh("test ! -e d/f; test ! -e d/g; test -e d/h");
    let error = nacre_refuses(&["lfs", "rmfid", &path_of(""), "nonsense"]);
    assert!(error.contains("nonsense"), "{error}");
    let error = nacre_refuses(&["lfs", "rm_entry", &path_of("d/h")]);
    assert!(error.contains("rm or rmdir"), "{error}");
    nacre_ok(&["lfs", "rmfid", &path_of(""), &single]);
    env.sh("test ! -e d/h");
}

#[test]
fn user_fid2path_lets_users_remove_files_by_fid() {
    let mut env = TwoMounts::new();
    let third_mount = env.fs.add_mount_with("third", 11, "user_fid2path");
    env.sh("mkdir d; chmod 777 d");
    env.sh_as_user("", "touch d/own");
    env.sh("touch d/roots");
    let (own, roots) = (
        fid_of(&third_mount.join("d/own")),
        fid_of(&third_mount.join("d/roots")),
    );
    let nacre = env.fs.site.binary_for_all();
    let mount = text(&third_mount);
    env.sh_as_user(
        "",
        &format!("{nacre} lfs fid2path {mount} '{own}'; {nacre} lfs rmfid {mount} '{own}'"),
    );
    env.sh_as_user_fails("", &format!("{nacre} lfs rmfid {mount} '{roots}'"));
    env.sh("test ! -e d/own; test -e d/roots");
}

#[test]
fn subdirectory_can_be_mounted() {
    let mut fs = FileSystem::new(Shape::OneProcess);
    let a = fs.mount_point();
    run_script_in(
        &a,
        "mkdir -p sub/dir; echo outside > out; echo inside > sub/dir/file",
    );
    let subdir_mount = fs.add_subdir_mount("sub/dir", "second", 9);
    run_script_in(
        &subdir_mount,
        "test \"$(ls -A)\" = file; grep -q inside file; echo new > made; cd ..; ! test -e dir",
    );
    run_script_in(&a, "grep -q new sub/dir/made");
    run_script_in(&subdir_mount, "! stat .lustre 2> /dev/null");
    let df = sh(&format!("df {}", text(&subdir_mount)));
    assert!(df.contains(":/lus/sub/dir"), "{df}");
    assert!(nacre_ok(&["lfs", "df", text(&subdir_mount)]).contains("lus-OST0001"));
    let file = fid_of(&subdir_mount.join("file"));
    assert_eq!(
        nacre_ok(&["lfs", "fid2path", text(&subdir_mount), &file]).trim(),
        text(&subdir_mount.join("file"))
    );
    let outside = fid_of(&a.join("out"));
    nacre_refuses(&["lfs", "fid2path", text(&subdir_mount), &outside]);
    nacre_refuses(&["lfs", "rmfid", text(&subdir_mount), &outside]);
    let error = fs.subdir_mount_error("sub/none", 11);
    assert!(error.contains("/sub/none"), "{error}");
    let error = fs.subdir_mount_error("out", 11);
    assert!(error.contains("Not a directory"), "{error}");
    let error = fs.subdir_mount_error("sub/../sub", 11);
    assert!(error.contains("'..'"), "{error}");
    nacre_ok(&["umount", text(&subdir_mount)]);
}
