//! `nacre health`: problems with remedies, and the exit status.

use std::time::Instant;

use serde_json::Value;

use crate::bench::WAIT_MAX;
use crate::fixture::{Site, nacre, nacre_ok};

/// The report, and the exit status.
fn health() -> (Value, Option<i32>) {
    let result = nacre(&["health", "--json"]);
    let report = serde_json::from_str(&result.out);
    (
        report.unwrap_or_else(|e| panic!("{e}: {}{}", result.out, result.err)),
        result.code,
    )
}

/// The problems of a report as `object problem: remedy`.
fn problems(report: &Value) -> Vec<String> {
    let text = |problem: &Value, field: &str| problem[field].as_str().unwrap_or_default().to_owned();
    let list = report["problems"].as_array().expect("a list");
    let line = |p: &Value| {
        format!(
            "{} {}: {}",
            text(p, "object"),
            text(p, "problem"),
            text(p, "remedy")
        )
    };
    list.iter()
        .filter(|p| p["level"] == "problem")
        .map(line)
        .collect()
}

/// The problems of the test's own file system. A process that was killed earlier on this host can
/// have left a mount behind, which is a problem too.
fn problems_of(report: &Value, site: &Site) -> Vec<String> {
    let mut all = problems(report);
    all.retain(|p| p.contains("lus-") || p.contains(&site.path_str("")));
    all
}

/// Waits for a report that passes the check. The exit status of each report matches its problems.
fn wait_for_report(mut check: impl FnMut(&Value) -> bool) -> Value {
    let start_time = Instant::now();
    loop {
        let (report, code) = health();
        let healthy = problems(&report).is_empty();
        let expected = (&healthy.into(), Some(i32::from(!healthy)));
        assert_eq!((&report["healthy"], code), expected, "{report}");
        if check(&report) {
            return report;
        }
        assert!(start_time.elapsed() < WAIT_MAX, "{report}");
    }
}

#[test]
fn healthy_file_system_has_no_problem_until_a_server_dies() {
    let mut site = Site::new();
    site.serve("mgs", &["--mgs"], &[]);
    let mgs = site.nid("mgs");
    let mgsnode = format!("--mgsnode={mgs}");
    for (name, kind) in [("mdt", "--mdt"), ("ost", "--ost")] {
        site.serve(name, &[kind, "--fsname=lus", "--index=0", &mgsnode], &[]);
    }
    let mount = site.mount(&format!("{mgs}:/lus"), "mnt", &[]);
    // The MDT connects to a new OST in the background.
    let healthy = wait_for_report(|report| problems_of(report, &site).is_empty());
    assert_eq!(healthy["processes"].as_array().map(Vec::len), Some(4));
    // A nearly full disk adds warnings, so check only the last line.
    let result = nacre(&["health"]);
    let ends_well = result.out.ends_with("processes checked: 4\n");
    assert_eq!(ends_well, result.ok, "{}", result.out);

    site.kill("ost");
    let of_mount = |report: &Value| {
        let mut all = problems(report).into_iter();
        all.find(|p| p.contains("lus-OST0000_UUID"))
    };
    let report = wait_for_report(|report| of_mount(report).is_some());
    let of_mount = of_mount(&report).unwrap_or_default();
    assert!(
        of_mount.contains("is not connected to lus-OST0000_UUID") && of_mount.contains("nacre lctl ping"),
        "{of_mount}"
    );
    let (report, _) = health();
    let (dir, all) = (site.path_str("ost"), problems(&report));
    assert!(
        all.iter()
            .any(|p| p.contains("has died") && p.contains("nacre serve --listen ") && p.contains(&dir)),
        "{all:?}"
    );
    let _ = nacre(&["umount", "--lazy", &mount]);
}

#[test]
fn mount_waits_for_a_dead_mdt_and_commands_do_not() {
    let mut site = Site::new();
    site.serve("mgs", &["--mgs"], &[]);
    let mgs = site.nid("mgs");
    let mgsnode = format!("--mgsnode={mgs}");
    for (name, kind) in [("mdt", "--mdt"), ("ost", "--ost")] {
        site.serve(name, &[kind, "--fsname=lus", "--index=0", &mgsnode], &[]);
    }
    let mount = site.mount(&format!("{mgs}:/lus"), "mnt", &[]);
    site.kill("mdt");
    for path in [Some(mount.as_str()), None] {
        let args: Vec<&str> = ["lfs", "df"].into_iter().chain(path).collect();
        let df = nacre_ok(&args);
        assert!(
            df.contains("lus-MDT0000_UUID    : inactive device") && df.contains("lus-OST0000_UUID "),
            "{df}"
        );
    }
    let (report, code) = health();
    assert_eq!(
        (code, &report["unchecked"]),
        (Some(1), &serde_json::json!([])),
        "{report}"
    );
    let all = problems(&report);
    let of_mount = all.iter().find(|p| p.contains(&format!("the mount on {mount}")));
    assert!(
        of_mount.is_some_and(|p| p.contains("waits for lus-MDT0000_UUID: start that server")),
        "{all:?}"
    );
    assert!(all.iter().all(|p| !p.contains("umount")), "{all:?}");
    assert!(
        all.iter().any(|p| p.contains(&format!(" --mount {mount}"))),
        "the ping selects the process: {all:?}"
    );
    let _ = nacre(&["umount", "--lazy", &mount]);
}

#[test]
fn killed_mount_is_a_problem_with_a_remedy() {
    let mut site = Site::new();
    let mount = site.up("d", &[]);
    site.kill("d");
    let (report, code) = health();
    assert_eq!(code, Some(1), "{report}");
    let all = problems(&report);
    let found = all.iter().find(|p| p.contains(&mount));
    assert!(
        found.is_some_and(|p| p.contains("process that died") && p.contains("nacre up --dir")),
        "{all:?}"
    );
    nacre_ok(&["umount", &mount]);
}
