//! Tar: a tree in and out again, with all that can be seen of it.

use crate::file_system::Shape;
use crate::fixture::sh;
use crate::inventory::assert_same;
use crate::life::{Place, Workload, live};
use crate::tree;

/// Everything of a file goes along.
const ALL: &str =
    "--xattrs --xattrs-include=user.* --xattrs-include=trusted.* --acls --numeric-owner --same-owner -p";

const WORKLOAD: Workload = Workload { put, change, check };

fn put(place: &Place) {
    let Place { dir, aside } = place;
    tree::make(&format!("{aside}/tree"));
    sh(&format!(
        "mkdir {dir}/tree; tar -C {aside}/tree {ALL} -cf {aside}/in.tar . && tar -C {dir}/tree {ALL} -xf {aside}/in.tar"
    ));
}

/// From the mount into the mount, by way of an archive that is there, too.
fn change(place: &Place) {
    let dir = &place.dir;
    sh(&format!(
        "cd {dir} && mv tree before && tar -C before {ALL} -cf archive.tar . && mkdir tree && \
         tar -C tree {ALL} -xf archive.tar && rm -r before archive.tar && test \"$(ls)\" = tree"
    ));
}

fn check(place: &Place) {
    let Place { dir, aside } = place;
    assert_same(&format!("{aside}/tree"), &format!("{dir}/tree"));
    sh(&format!(
        "mkdir {aside}/out && tar -C {dir}/tree {ALL} -cf - . | tar -C {aside}/out {ALL} -xf -"
    ));
    assert_same(&format!("{aside}/tree"), &format!("{aside}/out"));
    sh(&format!("rm -r {aside}/out"));
}

#[test]
fn a_tree_goes_in_and_out_of_one_process() {
    live(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn a_tree_goes_in_and_out_of_four_processes() {
    live(Shape::FourProcesses, &WORKLOAD);
}
