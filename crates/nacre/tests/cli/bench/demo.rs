//! `nacre bench demo` writes rows and a page. It removes everything else, even after an
//! interruption. After a kill, the next run stops the remaining servers.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::bench::{processes_in, wait_until};
use crate::fixture::{self, Site, kill, nacre_ok, nacre_refuses};

/// Creates a directory for servers; returns the paths of the directory, the CSV file and the page.
fn demo_paths(site: &Site) -> [String; 3] {
    let paths = ["work", "rows.csv", "page.html"].map(|name| site.path_str(name));
    fs::create_dir(&paths[0]).expect("a directory");
    paths
}

/// Starts a run that would take minutes, and waits for its first rows.
fn start_demo([dir, csv, page]: &[String; 3]) -> Child {
    let _ = fs::remove_file(csv);
    let mut child = Command::new(env!("CARGO_BIN_EXE_nacre"))
        .args([
            "bench", "demo", "smp", "--only", "mounts", "--runs", "100", "--osts", "1",
        ])
        .args(["--dir", dir, "--csv", csv, "--page", page])
        .stdout(Stdio::null())
        .spawn()
        .expect("nacre runs");
    // Wait for the header and the rows of at least one measurement.
    wait_until("no rows", || {
        let exit = child.try_wait().expect("its status");
        assert!(exit.is_none(), "the run ended early: {exit:?}");
        let rows = fs::read_to_string(csv).unwrap_or_default();
        rows.lines().filter(|l| !l.starts_with('#')).count() > 3
    });
    child
}

#[test]
fn demo_writes_rows_and_page() {
    let site = Site::new();
    let [dir, csv, page] = demo_paths(&site);
    let output = nacre_ok(&[
        "bench",
        "demo",
        "smp",
        "--size",
        "tiny",
        "--only",
        "lnet-clients,mdtest",
        "--seconds",
        "0.05",
        "--store",
        "memory",
        "--osts",
        "1",
        "--dir",
        &dir,
        "--csv",
        &csv,
        "--page",
        &page,
    ]);
    assert!(
        output.contains("| mdtest | create, shared directory, 1 stripe | 1 (1:1) | 2x2 |"),
        "{output}"
    );
    let rows = fs::read_to_string(&csv).expect("rows");
    for load in [
        "lnet-clients,ping,",
        "lnet-clients,4K write,",
        "mdtest,stat,",
        "mdtest,unlink,",
    ] {
        assert!(rows.lines().any(|l| l.starts_with(load)), "{load}: {rows}");
    }
    let html = fs::read_to_string(&page).expect("the page");
    assert!(
        html.contains("4K read") && html.contains("at least"),
        "plots and published figures"
    );
    // The `page` command draws the same page from the rows.
    fs::remove_file(&page).expect("removed");
    nacre_ok(&["bench", "demo", "page", &csv, "--page", &page]);
    assert_eq!(fs::read_to_string(&page).expect("the page"), html);
    assert_eq!(fs::read_dir(&dir).expect("the directory").count(), 0);
    assert!(processes_in(&dir).is_empty());
}

#[test]
fn interrupted_demo_keeps_its_rows_and_leaves_no_server() {
    let site = Site::new();
    let paths = demo_paths(&site);
    let [dir, _, page] = &paths;
    // A killed run leaves its servers running; the next run stops them.
    let mut first = start_demo(&paths);
    kill(first.id());
    first.wait().expect("ended");
    let left_servers = processes_in(dir);
    assert!(!left_servers.is_empty() && !Path::new(page).exists());
    let mut second = start_demo(&paths);
    assert!(left_servers.iter().all(|pid| !processes_in(dir).contains(pid)));

    fixture::sh(&format!("kill -INT {}", second.id()));
    assert_eq!(second.wait().expect("ended").code(), Some(130));
    let html = fs::read_to_string(page).expect("the page");
    assert!(html.contains("the run ended early (interrupted)") && html.contains("<polyline"));
    assert_eq!(fs::read_dir(dir).expect("the directory").count(), 0);
    assert!(processes_in(dir).is_empty());
}

#[test]
fn demo_of_several_metadata_servers_limits_their_cpu_time() {
    let site = Site::new();
    let [dir, csv, page] = demo_paths(&site);
    let output = nacre_ok(&[
        "bench",
        "demo",
        "dne",
        "--size",
        "tiny",
        "--osts",
        "1",
        "--mds-cpus",
        "0.2",
        "--dir",
        &dir,
        "--csv",
        &csv,
        "--page",
        &page,
    ]);
    for expected in [
        "| dne-1 | create, directory per thread, 1 stripe | 1 MDT on each MDS, 4 in all | 2x4 |",
        "| dne-2 | unlink, directory per thread, 1 stripe | 2 MDTs on each MDS, 2 in all | 2x4 |",
    ] {
        assert!(output.contains(expected), "{output}");
    }
    let html = fs::read_to_string(&page).expect("the page");
    assert!(html.contains("which may use 0.2 CPUs") && html.contains("<td>55496</td>"));
    assert_eq!(fs::read_dir(&dir).expect("the directory").count(), 0);
    assert!(processes_in(&dir).is_empty());
    let groups = fixture::sh("find /sys/fs/cgroup -maxdepth 3 -name 'nacre-bench-*' | wc -l");
    assert_eq!(groups.trim(), "0", "control groups are left");
}

#[test]
fn experiment_of_another_demo_is_rejected() {
    let error = nacre_refuses(&["bench", "demo", "pdo", "--only", "cpt"]);
    assert!(error.contains("not an experiment of pdo"), "{error}");
}
