//! Runs the MPI example program with several processes.

#![allow(clippy::unwrap_used)]

use crate::site::{TestSite, package_dir};
use std::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_ranks_share_a_directory_and_read_each_others_files() {
    let site = TestSite::start(2).await;
    let source = package_dir().join("examples/mpi/nacre_mpi.c");
    let program = site.build(&source, &["mpicc", "-std=c99", "-D_XOPEN_SOURCE=700"]);
    let [source_arg, options] = site.mount_args();
    let mut mpirun = Command::new("mpirun");
    // Open MPI 4.1 sometimes fails, even for trivial programs, because it learns of a rank's exit
    // before the rank's `MPI_Finalize`. So this test checks the output of rank 0, which prints
    // `done` after all ranks have unmounted, not the exit status.
    mpirun.args(["--mca", "orte_allowed_exit_without_sync", "1"]);
    // There may be fewer CPUs than ranks, and tests may run as root.
    mpirun.args([
        "--oversubscribe",
        "--allow-run-as-root",
        "--bind-to",
        "none",
        "-np",
        "4",
    ]);
    mpirun.arg(program).args([
        "-n",
        "25",
        "-b",
        "3000k",
        "-t",
        "700k",
        "-o",
        &options,
        &source_arg,
    ]);
    let output = site.output_of(mpirun).await;
    let steps: Vec<&str> = output
        .lines()
        .skip(1)
        .filter_map(|l| l.split_whitespace().next())
        .collect();
    assert_eq!(
        steps,
        ["create", "stat", "remove", "write", "read", "done"],
        "{output}"
    );
    site.stop().await;
}
