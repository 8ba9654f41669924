//! Tar: archives and extracts a tree, and compares all its metadata and data.

use crate::file_system::Shape;
use crate::fixture::sh;
use crate::inventory::assert_same;
use crate::tree;
use crate::workload::{WorkDirs, Workload, run_workload};

/// Options to archive all metadata.
const ALL: &str =
    "--xattrs --xattrs-include=user.* --xattrs-include=trusted.* --acls --numeric-owner --same-owner -p";

const WORKLOAD: Workload = Workload { put, change, check };

fn put(place: &WorkDirs) {
    let WorkDirs { dir, aside } = place;
    tree::make(&format!("{aside}/tree"));
    sh(&format!(
        "mkdir {dir}/tree; tar -C {aside}/tree {ALL} -cf {aside}/in.tar . && tar -C {dir}/tree {ALL} -xf {aside}/in.tar"
    ));
}

/// Archives within the mount, and extracts there.
fn change(place: &WorkDirs) {
    let dir = &place.dir;
    sh(&format!(
        "cd {dir} && mv tree before && tar -C before {ALL} -cf archive.tar . && mkdir tree && \
         tar -C tree {ALL} -xf archive.tar && rm -r before archive.tar && test \"$(ls)\" = tree"
    ));
}

fn check(place: &WorkDirs) {
    let WorkDirs { dir, aside } = place;
    assert_same(&format!("{aside}/tree"), &format!("{dir}/tree"));
    sh(&format!(
        "mkdir {aside}/out && tar -C {dir}/tree {ALL} -cf - . | tar -C {aside}/out {ALL} -xf -"
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
