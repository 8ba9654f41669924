//! Statistics and metrics. The tests parse statistics as strictly as the public exporter for Lustre
//! does.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::fixture::{Site, nacre, nacre_ok, nacre_refuses, sh};

/// A file system with requests of a named job; returns its directory and the
/// address of its metrics.
fn used_file_system(site: &mut Site) -> (String, String) {
    let (dir, mount) = (site.directory("d"), site.mount_point("m"));
    let up = nacre_ok(&[
        "up",
        "--dir",
        &dir,
        "--mount",
        &mount,
        "--fsname",
        "lus",
        "--osts",
        "2",
        "--metrics",
        "127.0.0.1:0",
    ]);
    let addr = up
        .lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix("metrics at http://")?
                .strip_suffix("/metrics")
        })
        .unwrap_or_else(|| panic!("no address: {up}"));
    nacre_ok(&[
        "lctl",
        "--dir",
        &dir,
        "set_param",
        "jobid_var=nodelocal",
        "jobid_name=job.%u",
    ]);
    sh(&format!(
        "cd {mount} && mkdir d && echo one > d/a && cat d/a && mv d/a d/b && ls -l d && rm d/b && rmdir d && df . && sync"
    ));
    (dir, addr.to_owned())
}

fn get_param(dir: &str, pattern: &str) -> String {
    nacre_ok(&["lctl", "--dir", dir, "get_param", pattern])
}

/// Names and values in the output of `lctl get_param`: `name=value`, or `name=` and lines.
fn params(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        match line.split_once('=') {
            Some((name, value)) if !name.contains(' ') => {
                last = name.to_owned();
                let values = all.entry(last.clone()).or_default();
                values.extend((!value.is_empty()).then(|| value.to_owned()));
            }
            _ => all.entry(last.clone()).or_default().push(line.to_owned()),
        }
    }
    all
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Checks a line with a time: name, seconds and nanoseconds.
fn check_time(line: &str, name: &str) {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [found, time, "secs.nsecs"] = fields[..] else {
        panic!("{line}")
    };
    let (secs, nanos) = time.split_once('.').unwrap_or_else(|| panic!("{line}"));
    assert!(
        found == name && is_number(secs) && is_number(nanos) && nanos.len() == 9,
        "{line}"
    );
}

/// Checks a `stats` file; returns the number of samples by row.
fn check_stats(name: &str, lines: &[String]) -> BTreeMap<String, u64> {
    assert!(lines.len() >= 3, "{name}: {lines:?}");
    for (line, time) in lines.iter().zip(["snapshot_time", "start_time", "elapsed_time"]) {
        check_time(line, time);
    }
    let row = |line: &String| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [row, count, "samples", unit, min, max, sum, squares] = fields[..] else {
            panic!("{name}: {line}")
        };
        let unit = unit
            .strip_prefix('[')
            .and_then(|u| u.strip_suffix(']'))
            .unwrap_or_default();
        let numbers = [count, min, max, sum, squares].into_iter().all(is_number);
        assert!(is_word(row) && is_word(unit) && numbers, "{name}: {line}");
        (row.to_owned(), count.parse().unwrap_or_default())
    };
    lines[3..].iter().map(row).collect()
}

/// Checks a `job_stats` file; returns the number of samples by job and row.
fn check_jobs(name: &str, lines: &[String]) -> BTreeMap<(String, String), u64> {
    let mut samples = BTreeMap::new();
    assert_eq!(
        lines.first().map(String::as_str),
        Some("job_stats:"),
        "{name}: {lines:?}"
    );
    let mut lines = lines[1..].iter().peekable();
    while let Some(line) = lines.next() {
        let job = line
            .strip_prefix("- job_id:")
            .unwrap_or_else(|| panic!("{name}: {line}"))
            .trim();
        for time in ["snapshot_time:", "start_time:", "elapsed_time:"] {
            check_time(lines.next().unwrap_or_else(|| panic!("{name}: no {time}")), time);
        }
        while let Some(line) = lines.next_if(|line| line.starts_with("  ")) {
            let (row, rest) = line
                .trim()
                .split_once(':')
                .unwrap_or_else(|| panic!("{name}: {line}"));
            let rest = rest.trim().strip_prefix('{').and_then(|r| r.strip_suffix('}'));
            let fields: Vec<(&str, &str)> = rest
                .unwrap_or_else(|| panic!("{name}: {line}"))
                .split(',')
                .map(|field| field.split_once(':').unwrap_or_else(|| panic!("{name}: {line}")))
                .map(|(key, value)| (key.trim(), value.trim()))
                .collect();
            let [
                ("samples", count),
                ("unit", unit),
                ("min", min),
                ("max", max),
                ("sum", sum),
                ("sumsq", squares),
            ] = fields[..]
            else {
                panic!("{name}: {line}")
            };
            let numbers = [count, min, max, sum, squares].into_iter().all(is_number);
            assert!(is_word(row) && is_word(unit) && numbers, "{name}: {line}");
            samples.insert(
                (job.to_owned(), row.to_owned()),
                count.parse().unwrap_or_default(),
            );
        }
    }
    samples
}

#[test]
fn statistics_have_the_grammar_of_lustre() {
    let mut site = Site::new();
    let (dir, _) = used_file_system(&mut site);
    let mut rows: BTreeMap<String, u64> = BTreeMap::new();
    for pattern in [
        "obdfilter.*OST*.stats",
        "mdt.*.md_stats",
        "mdt.*.exports.*.stats",
        "obdfilter.*OST*.exports.*.stats",
        "mds.MDS.*.stats",
        "ost.OSS.*.stats",
        "mgs.*.mgs.stats",
        "ldlm.services.*.stats",
    ] {
        for (name, lines) in params(&get_param(&dir, pattern)) {
            for (row, count) in check_stats(&name, &lines) {
                *rows.entry(format!("{pattern} {row}")).or_default() += count;
            }
        }
    }
    for row in [
        "obdfilter.*OST*.stats write_bytes",
        "obdfilter.*OST*.stats write",
        "mdt.*.md_stats mkdir",
        "mdt.*.md_stats rename",
        "mdt.*.exports.*.stats unlink",
        "obdfilter.*OST*.exports.*.stats write_bytes",
        "mds.MDS.*.stats req_waittime",
    ] {
        assert!(rows.get(row).is_some_and(|count| *count > 0), "{row}: {rows:?}");
    }
    for name in ["num_exports", "tot_dirty", "tot_granted", "tot_pending"] {
        for (name, lines) in params(&get_param(&dir, &format!("obdfilter.*OST*.{name}"))) {
            assert!(lines.len() == 1 && is_number(&lines[0]), "{name}: {lines:?}");
        }
    }
    for (name, uuids) in params(&get_param(&dir, "mdt.*.exports.*.uuid")) {
        let is_uuid = |uuid: &String| uuid.split(['-', '_']).all(is_word);
        assert!(
            !uuids.is_empty() && uuids.iter().all(is_uuid),
            "{name}: {uuids:?}"
        );
    }
    assert_eq!(get_param(&dir, "health_check"), "health_check=healthy\n");
}

#[test]
fn requests_of_a_named_job_count_for_the_job() {
    let mut site = Site::new();
    let (dir, _) = used_file_system(&mut site);
    let user = sh("id -u");
    let job = format!("job.{}", user.trim());
    let mut samples = BTreeMap::new();
    for pattern in ["mdt.*.job_stats", "obdfilter.*.job_stats"] {
        for (name, lines) in params(&get_param(&dir, pattern)) {
            for ((found, row), count) in check_jobs(&name, &lines) {
                assert_eq!(found, job, "{name}");
                *samples.entry(row).or_insert(0) += count;
            }
        }
    }
    for row in ["mkdir", "rename", "unlink", "close", "write_bytes", "write"] {
        assert!(
            samples.get(row).is_some_and(|count| *count > 0),
            "{row}: {samples:?}"
        );
    }
    nacre_ok(&["lctl", "--dir", &dir, "set_param", "*.*.job_stats=clear"]);
    assert!(!get_param(&dir, "*.*.job_stats").contains("job_id"));
}

#[test]
fn metrics_are_printed_and_served() {
    let mut site = Site::new();
    let (dir, addr) = used_file_system(&mut site);
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&addr).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").expect("a request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        response
    };
    let (served, printed) = (get("/metrics"), nacre_ok(&["metrics", "--dir", &dir]));
    for text in [&served, &printed] {
        for metric in [
            "lustre_write_bytes_total{component=\"ost\",operation=\"write\",target=\"lus-OST000",
            "lustre_stats_total{component=\"mdt\",operation=\"mkdir\",target=\"lus-MDT0000\"} 1",
            "lustre_capacity_kilobytes{component=\"ost\",target=\"lus-OST0000\"}",
            "lustre_connected_clients{component=\"mdt\",target=\"lus-MDT0000\"} 1",
            "lustre_job_write_bytes_total{",
            "lustre_client_export_stats_total{",
            "lustre_health_healthy 1",
            "nacre_operation_duration_seconds_bucket{component=\"mdt\",operation=\"rename\"",
            "nacre_service_queue_duration_seconds_count{service=\"mdt\"}",
            "nacre_evictions_total{component=\"mdt\",target=\"lus-MDT0000\"} 0",
            "nacre_client_grant_bytes{",
        ] {
            assert!(text.contains(&format!("\n{metric}")), "{metric}\n{text}");
        }
    }
    assert!(get("/health").ends_with("healthy\n"));
    // The address is free again once the process has stopped.
    site.down("d");
    assert!(TcpStream::connect(&addr).is_err());
    let refused = nacre_refuses(&["up", "--dir", &dir, "--no-mount", "--metrics", "nowhere:1"]);
    assert!(refused.contains("--metrics nowhere:1"), "{refused}");
    assert_eq!(
        nacre(&["status", "--dir", &dir]).code,
        Some(3),
        "nothing runs after the refusal"
    );
}

#[test]
fn get_param_shows_what_it_finds_and_fails_for_the_rest() {
    let mut site = Site::new();
    site.up("d", &["--no-mount"]);
    let dir = site.path_str("d");
    let output = nacre(&[
        "lctl",
        "--dir",
        &dir,
        "get_param",
        "memused",
        "version",
        "no.such",
        "health_check",
    ]);
    assert_eq!(output.code, Some(1));
    assert_eq!(output.out.lines().count(), 2, "{}", output.out);
    for pattern in ["'memused'", "'no.such'"] {
        assert!(output.err.contains(pattern), "{}", output.err);
    }
}
