//! `nacre health`: problems with remedies, and the exit status.

use serde_json::Value;

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
    let healthy = loop {
        let (report, code) = health();
        if code == Some(0) {
            break report;
        }
        assert_eq!(code, Some(1), "{report}");
    };
    assert_eq!(
        (&healthy["healthy"], problems(&healthy)),
        (&true.into(), Vec::new())
    );
    assert_eq!(healthy["processes"].as_array().map(Vec::len), Some(4));
    // A nearly full disk adds warnings, so check only the last line.
    let text = nacre_ok(&["health"]);
    assert!(text.ends_with("processes checked: 4\n"), "{text}");

    site.kill("ost");
    let of_mount = loop {
        let (report, code) = health();
        let found = problems(&report)
            .into_iter()
            .find(|p| p.contains("lus-OST0000_UUID"));
        if let Some(found) = found {
            assert_eq!(code, Some(1), "{report}");
            break found;
        }
    };
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
