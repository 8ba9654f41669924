//! The metadata benchmarks and the comparison with other file systems: on a mount, with library
//! clients, under `mpirun`, and interrupted.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use crate::bench::{processes_in, wait_until};
use crate::fixture::{CommandOutput, Site, nacre, nacre_ok, run, sh};

/// Number of files of a run that the test interrupts; too large for the run to complete.
const ENDLESS_FILE_COUNT: &str = "100000000";

/// Starts a file system; returns its mount point and its source for clients.
fn start_file_system(site: &mut Site) -> [String; 2] {
    let mount = site.up("d", &["--osts", "2"]);
    [mount, format!("{}:/nacre", site.nid("d"))]
}

/// The lines of a CSV file as maps, with the header's names as keys.
fn rows(csv: &str) -> Vec<HashMap<String, String>> {
    let text = fs::read_to_string(csv).expect("a CSV file");
    let mut lines = text
        .lines()
        .map(|l| l.split(',').map(str::to_owned).collect::<Vec<_>>());
    let names = lines.next().expect("a header");
    lines
        .map(|values| {
            assert_eq!(values.len(), names.len(), "{text}");
            names.iter().cloned().zip(values).collect()
        })
        .collect()
}

/// Operation counts of all rows with this operation and window.
fn operation_counts(rows: &[HashMap<String, String>], operation: &str, window: &str) -> Vec<u64> {
    rows.iter()
        .filter(|r| r["operation"] == operation && r["window"] == window)
        .map(|r| r["operations"].parse().expect("a number"))
        .collect()
}

/// The contents of a mount's root, and the number of clients of its MDT.
fn contents_and_exports(site: &Site, mount: &str) -> (String, String) {
    let clients = nacre_ok(&[
        "lctl",
        "--dir",
        &site.path_str("d"),
        "get_param",
        "-n",
        "mdt.*.num_exports",
    ]);
    (sh(&format!("ls {mount}")), clients)
}

/// A command that runs nacre under mpirun. Open MPI 4.1 sometimes fails after its programs have
/// succeeded, so tests check the output instead of the exit status.
fn mpirun(processes: &str, args: &[&str]) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"])
        .args(["--mca", "orte_allowed_exit_without_sync", "1"])
        .args(["-np", processes, env!("CARGO_BIN_EXE_nacre")])
        .args(args);
    command
}

#[test]
fn mdtest_works_on_a_mount_and_with_library_clients() {
    let mut site = Site::new();
    let [mount, source] = start_file_system(&mut site);
    let before = contents_and_exports(&site, &mount);
    let (csv, out) = (site.path_str("csv"), format!("{mount}/out"));
    let output = nacre_ok(&[
        "bench",
        "mdtest",
        "--np",
        "3",
        "-n",
        "6",
        "-b",
        "2",
        "-z",
        "1",
        "-u",
        "-i",
        "2",
        "-w",
        "5000",
        "-e",
        "5000",
        "-X",
        "-R",
        "-d",
        &out,
        "--csv",
        &csv,
        "--windows",
        "4",
    ]);
    assert!(output.contains("3 tasks, 18 files/directories"), "{output}");
    assert!(
        output.contains("SUMMARY rate (in ops/sec): (of 2 iterations)") && output.contains("WINDOWS"),
        "{output}"
    );
    let run_rows = rows(&csv);
    for operation in ["Directory stat", "File creation", "File read", "File removal"] {
        assert_eq!(
            operation_counts(&run_rows, operation, "0"),
            [18, 18],
            "{operation}"
        );
        let in_windows: u64 = (1..=4)
            .flat_map(|w| operation_counts(&run_rows, operation, &w.to_string()))
            .sum();
        assert!((34..=38).contains(&in_windows), "{operation}: {in_windows}");
    }
    assert!(run_rows.iter().all(|r| r["resident_kib"] != "0"));

    let output = nacre_ok(&[
        "bench",
        "mdtest",
        "--np",
        "4",
        "--mounts",
        "2",
        "--mgs",
        &source,
        "-F",
        "-n",
        "5",
        "-d",
        "a@b",
        "-u",
        "--seconds",
        "1",
        "--json",
    ]);
    let figures: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    let figures = figures.as_array().expect("a list");
    let stats = figures.iter().filter(|f| f["operation"] == "File stat");
    assert!(stats.clone().count() >= 1, "{output}");
    assert!(
        stats
            .clone()
            .all(|f| f["operations"] == 20 && f["p99_9_us"].is_f64()),
        "{output}"
    );
    assert_eq!(contents_and_exports(&site, &mount), before);
}

#[test]
fn ior_works_on_a_mount_and_with_library_clients() {
    let mut site = Site::new();
    let [mount, source] = start_file_system(&mut site);
    let before = contents_and_exports(&site, &mount);
    let (csv, file) = (site.path_str("csv"), format!("{mount}/f"));
    let ior = |more: &[&str]| {
        let sizes = ["-b", "512k", "-t", "64k", "-s", "2", "-W", "-R", "-C"];
        nacre_ok(&[&["bench", "ior"][..], &sizes, more].concat())
    };
    let on_mount = ["--np", "2", "-e", "-i", "2", "-o", &file, "--csv", &csv];
    let output = ior(&on_mount);
    assert!(
        output.contains("single-shared-file") && output.contains("aggregate filesize  : 2 MiB"),
        "{output}"
    );
    let run_rows = rows(&csv);
    for operation in ["write", "check write", "read"] {
        assert_eq!(operation_counts(&run_rows, operation, "0"), [32, 32], "{output}");
    }
    for direct in [false, true] {
        let clients = [
            "--np", "4", "--mounts", "2", "--mgs", &source, "-F", "-z", "-o", "f", "--json",
        ];
        let output = ior(&[&clients[..], if direct { &["-B"] } else { &[] }].concat());
        let figures: serde_json::Value = serde_json::from_str(&output).expect("JSON");
        let figures = figures.as_array().expect("a list");
        assert_eq!(figures.len(), 3, "{output}");
        assert!(figures.iter().all(|f| f["operations"] == 64), "{output}");
    }
    assert_eq!(contents_and_exports(&site, &mount), before);

    let refused = nacre(&["bench", "ior", "-b", "100k", "-t", "64k", "-o", &file]);
    assert!(
        !refused.ok && refused.err.contains("-b must be a multiple of -t"),
        "{}",
        refused.err
    );
    let missing = nacre(&["bench", "ior", "-o", "/nonexistent/f"]);
    assert!(
        !missing.ok && missing.err.contains("/nonexistent"),
        "{}",
        missing.err
    );
}

#[test]
fn mdtest_works_in_several_processes_under_mpirun() {
    let mut site = Site::new();
    let [mount, source] = start_file_system(&mut site);
    let before = contents_and_exports(&site, &mount);
    let csv = site.path_str("csv");
    let dir = format!("{mount}/out");
    for place in [&["-d", &dir][..], &["-d", "out", "--mgs", &source]] {
        let _ = fs::remove_file(&csv);
        let args = [
            &["bench", "mdtest", "-n", "20", "-S", "--np", "2", "--csv", &csv],
            place,
        ]
        .concat();
        let result = run(&mut mpirun("3", &args));
        let output = format!("{}{}", result.out, result.err);
        assert!(output.contains("6 task(s) on 1 node(s)"), "{output}");
        assert_eq!(operation_counts(&rows(&csv), "File stat", "0"), [120], "{output}");
        assert_eq!(
            output.matches("SUMMARY").count(),
            1,
            "only one process prints results: {output}"
        );
    }
    // An mpirun that fails after the results kills its processes, perhaps before they have
    // unmounted. The server evicts such clients after six pings, 150 s.
    wait_until("not all clients have left", || {
        contents_and_exports(&site, &mount) == before
    });
}

#[test]
fn mdsrate_and_mds_survey_count_operations() {
    let mut site = Site::new();
    let [mount, source] = start_file_system(&mut site);
    let csv = site.path_str("csv");
    let dirs = format!("{mount}/d%d");
    let mdsrate = |options: &[&str]| {
        let all = [
            "bench", "mdsrate", "--np", "4", "--ndirs", "2", "--nfiles", "10", "--csv", &csv,
        ];
        let output = nacre_ok(&[&all[..], options].concat());
        assert!(output.contains("avg client"), "{output}");
        rows(&csv)[0]["operations"].clone()
    };
    let on_mount = |options: &[&str]| mdsrate(&[&["--dirfmt", &dirs], options].concat());
    let with_library =
        |options: &[&str]| mdsrate(&[&["--dirfmt", "d%d", "--mgs", &source], options].concat());
    assert_eq!(on_mount(&["--mknod"]), "20");
    assert_eq!(with_library(&["--stat", "--mntcount", "2"]), "20");
    assert_eq!(with_library(&["--lookup", "--iters", "7"]), "28");
    assert_eq!(on_mount(&["--unlink"]), "20");
    assert_eq!(with_library(&["--create", "--stripes", "2", "--setxattr"]), "20");
    assert_eq!(
        nacre_ok(&["lfs", "getstripe", "-c", &format!("{mount}/d0/f3")]).trim(),
        "2"
    );
    assert_eq!(on_mount(&["--open", "--iters", "5", "--readdir_order"]), "20");
    assert_eq!(with_library(&["--unlink"]), "20");
    assert_eq!(sh(&format!("find {mount} -type f")), "");

    let store = site.path_str("store");
    fs::create_dir(&store).expect("a directory");
    let output = nacre_ok(&[
        "bench",
        "mds-survey",
        "--dir",
        &store,
        "--thrlo",
        "1",
        "--thrhi",
        "2",
        "--file_count",
        "50",
        "--csv",
        &csv,
    ]);
    assert!(
        output.contains("mdt 1 file      50 dir    1 thr    2 create"),
        "{output}"
    );
    assert_eq!(operation_counts(&rows(&csv), "md_getattr", "0"), [50, 50]);
    assert_eq!(sh(&format!("ls -A {store}")), "");
}

/// The file for a command's standard error.
fn stderr_path(out: &str) -> String {
    format!("{out}.err")
}

/// Starts a long-running command, waits until `makes_progress` returns true, and interrupts it.
fn interrupt(command: Command, out: &str, makes_progress: impl FnMut() -> bool) -> CommandOutput {
    end_by_signal("-INT", |pid| format!("echo {pid}"), command, out, makes_progress)
}

/// Like [`interrupt`], but sends a signal to the processes that a shell command prints.
fn end_by_signal(
    signal: &str,
    processes: fn(u32) -> String,
    mut command: Command,
    out: &str,
    mut makes_progress: impl FnMut() -> bool,
) -> CommandOutput {
    let mut child: Child = command
        .stdin(Stdio::null())
        .stdout(fs::File::create(out).expect("a file"))
        .stderr(fs::File::create(stderr_path(out)).expect("a file"))
        .spawn()
        .expect("the command runs");
    wait_until("the command does not make progress", || {
        let exit = child.try_wait().expect("its status");
        assert!(exit.is_none(), "the command ended early: {exit:?}");
        makes_progress()
    });
    sh(&format!("kill {signal} $({})", processes(child.id())));
    let status = child.wait().expect("ended");
    assert_eq!(status.signal(), None, "the command was killed by the signal");
    CommandOutput {
        ok: status.success(),
        code: status.code(),
        out: fs::read_to_string(out).expect("the output"),
        err: fs::read_to_string(stderr_path(out)).expect("the output"),
    }
}

#[test]
fn interrupted_benchmark_reports_and_cleans_up() {
    let mut site = Site::new();
    let [mount, source] = start_file_system(&mut site);
    let before = contents_and_exports(&site, &mount);
    let (out, csv) = (site.path_str("output"), site.path_str("csv"));
    let bench = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nacre"));
        command.arg("bench").args(args);
        command
    };
    let files = || {
        sh(&format!("find {mount} -type f 2>/dev/null | head -n 60 || true"))
            .lines()
            .count()
    };
    let dir = format!("{mount}/out");
    let endless = ["mdtest", "--np", "2", "-F", "-n", ENDLESS_FILE_COUNT];
    for place in [&["-d", &dir][..], &["-d", "out", "--mgs", &source]] {
        let result = interrupt(bench(&[&endless[..], place].concat()), &out, || files() >= 60);
        assert_eq!(result.code, Some(130));
        assert!(
            result.out.contains("SUMMARY") && result.out.contains("File creation"),
            "{}",
            result.out
        );
        assert_eq!(contents_and_exports(&site, &mount), before, "{place:?}");
    }
    // Send SIGTERM to the processes, as mpirun does to end them. Unlike mpirun, the test does not
    // kill them a second later.
    let all = [&["bench"], &endless[..], &["-d", &dir, "--csv", &csv]].concat();
    let processes = |mpirun: u32| format!("pgrep -P {mpirun}");
    end_by_signal("-TERM", processes, mpirun("2", &all), &out, || files() >= 60);
    assert!(operation_counts(&rows(&csv), "File creation", "0")[0] >= 60);
    assert_eq!(contents_and_exports(&site, &mount), before);

    sh(&format!("mkdir {dir}"));
    let dirs = format!("{dir}/d%d");
    let rate = [
        "mdsrate", "--np", "2", "--create", "--dirfmt", &dirs, "--time", "600",
    ];
    let result = interrupt(bench(&rate), &out, || files() >= 60);
    assert!(
        result.code == Some(130) && result.out.contains("Rate: "),
        "{}",
        result.out
    );
    assert_eq!(files(), 0);

    let store = site.path_str("store");
    fs::create_dir(&store).expect("a directory");
    let survey = [
        "mds-survey",
        "--dir",
        &store,
        "--thrlo",
        "2",
        "--file_count",
        ENDLESS_FILE_COUNT,
    ];
    let store_has_data = || {
        sh(&format!("du -sk {store} | cut -f1"))
            .trim()
            .parse::<u64>()
            .expect("KiB")
            > 200
    };
    let result = interrupt(bench(&survey), &out, store_has_data);
    assert!(
        result.code == Some(130) && result.out.contains("create"),
        "{}",
        result.out
    );

    let compare = [
        "--dir",
        &store,
        "--tasks",
        "1,2",
        "--shared",
        "--files",
        "50",
        "--runs",
        "1000",
        "--only",
        "create,stat",
    ];
    let in_second_run =
        || fs::read_to_string(stderr_path(&out)).is_ok_and(|output| output.contains("run 2 of"));
    let result = interrupt(bench(&compare), &out, in_second_run);
    assert_eq!(result.code, Some(130));
    assert!(
        result.out.contains("| create/s | 1 | private | disk |"),
        "{}",
        result.out
    );
    assert_eq!(
        sh(&format!("ls -A {store}; grep {store} /proc/self/mounts || true")),
        ""
    );
    assert!(processes_in(&store).is_empty());
}

#[test]
fn comparison_and_inodes_report_the_requested_rows() {
    let site = Site::new();
    let (store, csv) = (site.path_str("store"), site.path_str("csv"));
    fs::create_dir(&store).expect("a directory");
    let output = nacre_ok(&[
        "bench",
        "--dir",
        &store,
        "--tasks",
        "1,4",
        "--shared",
        "--only",
        "create,stat,unlink",
        "--files",
        "20",
        "--runs",
        "2",
        "--csv",
        &csv,
    ]);
    for subject in ["disk", "bindfs", "nacre mount", "nacre library"] {
        let row = format!("| unlink/s | 4 | shared | {subject} |");
        assert!(output.contains(&row), "{row}: {output}");
    }
    assert!(output.contains("| ratio | of bindfs |"), "{output}");
    // 2 runs, 3 phases, 2 task counts, 2 directory modes, 4 subjects.
    assert_eq!(rows(&csv).len(), 2 * 3 * 2 * 2 * 4);
    let output = nacre_ok(&["bench", "inodes", "--dir", &store, "--files", "100", "--json"]);
    let rounds: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!(rounds.as_array().map(Vec::len), Some(2), "{output}");
    assert!(
        rounds[0]["kept"].as_u64() >= Some(100) && rounds[1]["lu_cache_nr"] == 10,
        "{output}"
    );
    assert_eq!(sh(&format!("ls -A {store}")), "");
    let failure = nacre(&["bench", "--dir", &store, "--only", "rename"]);
    assert!(
        failure.code == Some(2) && failure.err.contains("expected create"),
        "{}",
        failure.err
    );
}
