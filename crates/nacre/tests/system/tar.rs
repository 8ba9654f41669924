//! Tar: archives and extracts a tree, and compares all its metadata and data.

use crate::file_system::Shape;
use crate::fixture::sh;
use crate::inventory::assert_same;
use crate::tree;
use crate::workload::{WorkDirs, Workload, run_workload};

/// Options to archive all metadata.
const ALL_METADATA: &str =
    "--xattrs --xattrs-include=user.* --xattrs-include=trusted.* --acls --numeric-owner --same-owner -p";

const WORKLOAD: Workload = Workload {
    create,
    change,
    check,
};

fn create(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    tree::create(&format!("{aside}/tree"));
    sh(&format!(
        "mkdir {dir}/tree; tar -C {aside}/tree {ALL_METADATA} -cf {aside}/in.tar . && tar -C {dir}/tree {ALL_METADATA} -xf {aside}/in.tar"
    ));
}

/// Archives within the mount, and extracts there.
fn change(dirs: &WorkDirs) {
    let dir = &dirs.dir;
    sh(&format!(
        "cd {dir} && mv tree before && tar -C before {ALL_METADATA} -cf archive.tar . && mkdir tree && \
         tar -C tree {ALL_METADATA} -xf archive.tar && rm -r before archive.tar && test \"$(ls)\" = tree"
    ));
}

fn check(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    assert_same(&format!("{aside}/tree"), &format!("{dir}/tree"));
    sh(&format!(
        "mkdir {aside}/out && tar -C {dir}/tree {ALL_METADATA} -cf - . | tar -C {aside}/out {ALL_METADATA} -xf -"
    ));
    assert_same(&format!("{aside}/tree"), &format!("{aside}/out"));
    sh(&format!("rm -r {aside}/out"));
}

#[test]
fn tar_workload_in_one_process() {
    run_workload(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn tar_workload_in_four_processes() {
    run_workload(Shape::FourProcesses, &WORKLOAD);
}
