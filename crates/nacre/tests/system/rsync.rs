//! Rsync: copies a tree, and finds no difference in a second run.

use crate::file_system::Shape;
use crate::fixture::sh;
use crate::inventory::assert_same;
use crate::tree;
use crate::workload::{WorkDirs, Workload, run_workload};

/// Compares times to the nanosecond, which is not rsync's default.
const RSYNC: &str = "rsync -aHAX --modify-window=-1 --checksum --delete --numeric-ids --itemize-changes";

const WORKLOAD: Workload = Workload {
    create,
    change,
    check,
};

fn create(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    tree::create(&format!("{aside}/tree"));
    let output = sh(&format!("{RSYNC} {aside}/tree {dir}"));
    assert!(output.lines().count() > 100, "{output}");
}

/// Changes the tree in every way that rsync reports.
fn change(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    sh(&format!(
        "cd {aside}/tree/special && echo more >> three-megabytes && echo other > mode-0641 && rm hard2 'odd names/hard3' && \
         ln mode-4755 hard2 && mv sparse moved && chmod 751 sticky && chown 77:88 empty && ln -sfn elsewhere soft && \
         setfattr -n user.comment -v 'another comment' hard1 && setfattr -x user.binary mode-0641 && \
         setfacl -b mode-0400 && rmdir inherits && echo file > inherits && rm fifo && mkdir fifo && \
         {RSYNC} {aside}/tree {dir}"
    ));
}

fn check(dirs: &WorkDirs) {
    let WorkDirs { dir, aside } = dirs;
    assert_eq!(sh(&format!("{RSYNC} {aside}/tree {dir}")), "");
    assert_same(&format!("{aside}/tree"), &format!("{dir}/tree"));
}

#[test]
fn rsync_workload_in_one_process() {
    run_workload(Shape::OneProcess, &WORKLOAD);
}

#[test]
fn rsync_workload_in_four_processes() {
    run_workload(Shape::FourProcesses, &WORKLOAD);
}
