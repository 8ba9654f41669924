//! `nacre top`: the load of known work, by job, user, target and service.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::fixture::{Site, nacre_ok, nacre_refuses, sh};

/// Bytes that [`write`] writes.
const WRITTEN: u64 = 1 << 20;

/// A file system with a mount that names the job `NAME.UID`; returns its directory and mount point.
fn file_system(site: &mut Site, name: &str) -> (String, String) {
    let (dir, mount) = (site.directory("d"), site.mount_point("m"));
    nacre_ok(&["up", "--dir", &dir, "--mount", &mount, "--fsname", "lus"]);
    set_param(&dir, "jobid_var=nodelocal");
    set_param(&dir, &format!("jobid_name={name}.%u"));
    (dir, mount)
}

fn set_param(dir: &str, setting: &str) {
    nacre_ok(&["lctl", "--dir", dir, "set_param", setting]);
}

/// Writes [`WRITTEN`] bytes to a new file.
fn write(mount: &str, name: &str) {
    sh(&format!(
        "dd if=/dev/zero of={mount}/{name} bs=64k count=16 conv=fsync status=none"
    ));
}

/// The uid in the names of this test's jobs.
fn uid() -> String {
    sh("id -u").trim().to_owned()
}

/// A process that is killed on drop.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.spawn().expect("the command starts"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `nacre top --json` until it is dropped.
struct Stream {
    process: Running,
    lines: BufReader<ChildStdout>,
}

impl Stream {
    /// Starts the command and waits for the end of its first interval.
    fn start(by: &str) -> Stream {
        let mut process = Running::start(
            Command::new(env!("CARGO_BIN_EXE_nacre"))
                .args(["top", "--json", "--by", by, "--interval", "0.2"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        let lines = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut stream = Stream { process, lines };
        stream.next();
        stream
    }

    /// The rates of the next interval; null at the end of the output.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        if line.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    /// The row with this key, from the next interval that contains it.
    fn next_row(&mut self, key: &str) -> Value {
        loop {
            let interval = self.next();
            assert_ne!(interval, Value::Null, "the command ended");
            if let Some(row) = row(&interval, key) {
                return row;
            }
        }
    }
}

fn row(interval: &Value, key: &str) -> Option<Value> {
    let rows = interval["rows"].as_array().expect("rows");
    rows.iter().find(|row| row["key"] == key).cloned()
}

#[test]
fn intervals_count_the_work_of_a_job_exactly() {
    let mut site = Site::new();
    let (dir, mount) = file_system(&mut site, "exact");
    let job = format!("exact.{}", uid());
    let mut stream = Stream::start("job");
    write(&mount, "f");
    let (mut written, mut metadata) = (0, 0);
    // The file is created, opened and closed.
    while written < WRITTEN || metadata < 2 {
        let row = stream.next_row(&job);
        let total = &row["operations"]["total"];
        written += total["written_bytes"].as_u64().expect("a number");
        metadata += total["metadata"].as_u64().expect("a number");
        assert!(row["operations"]["latency_usec"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!(written, WRITTEN);

    // The token bucket starts with three tokens: the fourth and later writes wait.
    set_param(&dir, "ost.OSS.ost_io.nrs_policies=tbf jobid");
    set_param(
        &dir,
        "ost.OSS.ost_io.nrs_tbf_rule=start slow jobid={exact.*} rate=10",
    );
    sh(&format!(
        "dd if=/dev/zero of={mount}/g bs=4k count=8 oflag=direct status=none"
    ));
    let throttled = loop {
        let row = stream.next_row(&job);
        if row["throttled"]["total"].as_u64() > Some(0) {
            break row;
        }
    };
    assert_eq!(throttled["rules"], serde_json::json!(["slow"]), "{throttled}");
    assert!(
        throttled["throttled"]["wait_usec"].as_f64() > Some(1000.0),
        "{throttled}"
    );

    // The rule does not apply to other jobs.
    set_param(&dir, "jobid_name=free.%u");
    sh(&format!(
        "dd if=/dev/zero of={mount}/h bs=4k count=8 oflag=direct status=none"
    ));
    let (job, mut written) = (format!("free.{}", uid()), 0);
    while written < 8 * 4096 {
        let row = stream.next_row(&job);
        written += row["operations"]["total"]["written_bytes"]
            .as_u64()
            .expect("a number");
        assert_eq!(row["throttled"], Value::Null, "{row}");
    }

    // The command ends when no process is left.
    nacre_ok(&["down", "--dir", &dir]);
    while stream.next() != Value::Null {}
    let status = stream.process.0.wait().expect("the command ends");
    let mut error = String::new();
    let mut stderr = stream.process.0.stderr.take().expect("a pipe");
    stderr.read_to_string(&mut error).expect("text");
    assert_eq!(status.code(), Some(1), "{error}");
    assert!(error.contains("start targets with nacre up"), "{error}");
}

#[test]
fn directories_have_the_operations_on_their_entries() {
    let mut site = Site::new();
    let (dir, mount) = file_system(&mut site, "job");
    sh(&format!("mkdir -p {mount}/deep/er {mount}/idle"));
    // The first read of the statistics starts their recording.
    let mut stream = Stream::start("directory");
    sh(&format!("cd {mount}/deep/er; touch a b c; mv a d; rm b c"));
    let mut operations = 0;
    // Three opens create files; then follow one rename and two unlinks.
    while operations < 6 {
        let row = stream.next_row("/deep/er");
        operations += row["operations"]["total"]["metadata"].as_u64().expect("a number");
    }
    let shown = nacre_ok(&["lctl", "--dir", &dir, "get_param", "-n", "mdt.*.dir_stats"]);
    assert!(shown.starts_with("dir_stats:\n- directory:"), "{shown}");
    let counts: Vec<&str> = shown
        .split("\n- directory:")
        .filter(|part| part.contains(" \"/deep/er\"\n"))
        .flat_map(str::lines)
        .filter(|line| ["open:", "unlink:", "rename:"].iter().any(|op| line.contains(op)))
        .collect();
    let [open, unlink, rename] = counts[..] else {
        panic!("{shown}");
    };
    for (line, samples) in [(open, 3), (unlink, 2), (rename, 1)] {
        assert!(line.contains(&format!("samples: {samples:>11},")), "{line}");
    }
    assert!(!shown.contains("/idle"), "{shown}");
}

#[test]
fn one_interval_shows_users_targets_and_services_at_work() {
    let mut site = Site::new();
    let error = nacre_refuses(&["top", "--once"]);
    assert!(error.contains("no process of nacre runs here"), "{error}");

    let (_, mount) = file_system(&mut site, "job");
    let uid = uid();
    let _work = Running::start(Command::new("bash").args([
        "-c",
        &format!("while true; do echo text > {mount}/f; sync {mount}/f; rm {mount}/f; done"),
    ]));
    // The load must have begun before the interval.
    Stream::start("job").next_row(&format!("job.{uid}"));
    let once = |by: &str| -> Value {
        let text = nacre_ok(&["top", "--once", "--json", "--interval", "0.5", "--by", by]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let users = once("uid");
    let user = row(&users, &uid).unwrap_or_else(|| panic!("no user {uid}: {users}"));
    assert!(
        user["operations"]["per_second"]["metadata"].as_f64() > Some(1.0),
        "{user}"
    );
    assert!(users["seconds"].as_f64() >= Some(0.5), "{users}");

    let targets = once("target");
    let mdt = row(&targets, "lus-MDT0000").unwrap_or_else(|| panic!("no MDT: {targets}"));
    assert!(mdt["operations"]["total"]["metadata"].as_u64() > Some(0), "{mdt}");
    assert!(mdt["locks"]["waiting"].is_u64(), "{mdt}");
    let services = once("service");
    let mdt = row(&services, "mdt").unwrap_or_else(|| panic!("no service: {services}"));
    assert!(mdt["queue"]["total"].as_u64() > Some(0), "{mdt}");

    let table = nacre_ok(&["top", "--once", "--interval", "0.1"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("TARGET "), "{table}");
    assert!(
        lines.iter().any(|line| line.starts_with("lus-OST0000 ")),
        "{table}"
    );
}
