//! Tests of the records of processes.

#![allow(clippy::unwrap_used)]
use super::*;

fn record(dir: &Path, pid: u32, start_ticks: u64) -> ProcessRecord {
    ProcessRecord {
        role: "up".to_owned(),
        pid,
        start_ticks,
        boot_id: boot_id(),
        dirs: vec![dir.to_owned()],
        control: PathBuf::new(),
        owner: uid(),
        nids: vec!["127.0.0.1@tcp".to_owned()],
        port: 988,
        targets: vec!["MGS".to_owned()],
        mounts: Vec::new(),
        mountpoint: None,
        session: None,
        log: dir.join("log"),
    }
}

fn write(dir: &Path, record: &ProcessRecord) {
    let text = serde_json::to_string(record).unwrap();
    fs::write(dir.join(RECORD_IN_DIR), text).unwrap();
}

#[test]
fn record_of_another_process_or_boot_is_not_alive() {
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let own = record(dir.path(), pid, start_ticks(pid).unwrap());
    assert!(own.is_alive());
    assert!(!record(dir.path(), pid, 1).is_alive());
    let of_another_boot = ProcessRecord {
        boot_id: "another".to_owned(),
        ..own
    };
    assert!(!of_another_boot.is_alive());
}

#[test]
fn record_is_found_until_cleared() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(in_dir(dir.path()).unwrap(), None);
    let dead = record(dir.path(), 1, 1);
    write(dir.path(), &dead);
    let found = in_dir(dir.path()).unwrap().unwrap();
    assert_eq!(
        (found.pid, found.control),
        (1, dir.path().join(SOCKET_IN_DIR)),
        "the socket is beside the record"
    );
    record(dir.path(), 2, 1).clear();
    assert!(
        in_dir(dir.path()).unwrap().is_some(),
        "the record belongs to another process"
    );
    dead.clear();
    assert_eq!(in_dir(dir.path()).unwrap(), None);
}

#[test]
fn damaged_record_is_ignored_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(RECORD_IN_DIR);
    for damaged in [&b""[..], b"{", b"\0\0\0\0", b"\xff\xfe"] {
        fs::write(&path, damaged).unwrap();
        assert_eq!(in_dir(dir.path()).unwrap(), None);
        write_atomically(&path, &serde_json::to_string(&record(dir.path(), 1, 1)).unwrap()).unwrap();
        assert_eq!(in_dir(dir.path()).unwrap().map(|r| r.pid), Some(1));
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn record_with_reused_pid_is_not_signalled() {
    let dir = tempfile::tempdir().unwrap();
    // The record of this test process with another start time, as after its id was reused.
    let pid = std::process::id();
    let error = record(dir.path(), pid, 1).terminate().unwrap_err();
    assert!(error.to_string().contains("not the one"), "{error}");
}
