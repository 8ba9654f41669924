//! The example of an MPI program, on several processes.

#![allow(clippy::unwrap_used)]

use crate::site::{Site, here};
use std::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_ranks_make_files_in_one_directory_and_read_what_another_wrote() {
    let site = Site::start(2).await;
    let source = here().join("examples/mpi/nacre_mpi.c");
    let program = site.build(&source, &["mpicc", "-std=c99", "-D_XOPEN_SOURCE=700"]);
    let [what, how] = site.told();
    let mut mpirun = Command::new("mpirun");
    // Open MPI 4.1 now and then hears of a rank's end before it hears that the rank has finalized, also of one that does
    // nothing else, and fails. So what counts is what rank 0 says when all have unmounted.
    mpirun.args(["--mca", "orte_allowed_exit_without_sync", "1"]);
    // More ranks than there may be CPUs, and root where tests run so.
    mpirun.args([
        "--oversubscribe",
        "--allow-run-as-root",
        "--bind-to",
        "none",
        "-np",
        "4",
    ]);
    mpirun
        .arg(program)
        .args(["-n", "25", "-b", "3000k", "-t", "700k", "-o", &how, &what]);
    let said = site.said(mpirun).await;
    let steps: Vec<&str> = said
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert_eq!(
        steps,
        ["create", "stat", "remove", "write", "read", "done"],
        "{said}"
    );
    site.stop().await;
}
