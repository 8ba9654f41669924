//! Decodes captures of real traffic; checks names, targets, xids and filters.

#![allow(clippy::unwrap_used)]

use super::{Options, print};
use crate::pcap::{Capture, unpack};
use std::collections::HashSet;
use std::path::Path;

fn decode(capture: &str, options: &Options) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../wire/tests/captures")
        .join(capture);
    let file = unpack(std::fs::read(path).unwrap()).unwrap();
    let mut out = Vec::new();
    print(Capture::open(file).unwrap(), options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn mkdir_shows_request_and_reply() {
    let text = decode(
        "d1_mkdir.pcap.gz",
        &Options {
            opcodes: HashSet::from([wire::MDS_REINT]),
            ..Options::default()
        },
    );
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains("MDS_REINT req") && lines[0].contains("op=CREATE") && lines[0].contains("mode=d"),
        "{text}"
    );
    assert!(
        lines[1].contains("MDS_REINT rep ok in ") && lines[1].contains("transno="),
        "{text}"
    );
}

#[test]
fn mount_shows_target_names() {
    let text = decode("z1_mount_single_server.pcap.gz", &Options::default());
    assert!(text.contains("MDS_CONNECT req testfs-MDT0000"), "{text}");
    assert!(text.contains("MDS_GET_ROOT rep testfs-MDT0000 ok"), "{text}");
    assert!(text.contains("name=testfs-client"), "{text}");
    assert!(!text.contains("unreadable"), "{text}");
}

#[test]
fn json_prints_one_object_per_line() {
    let text = decode(
        "f3_stat_one.pcap.gz",
        &Options {
            json: true,
            verbose: true,
            ..Options::default()
        },
    );
    for line in text.lines() {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(value["time_us"].is_u64());
    }
    assert!(text.lines().count() > 10);
}

#[test]
fn xid_filter_selects_request_and_reply() {
    let all = decode(
        "o1_fsync.pcap.gz",
        &Options {
            opcodes: HashSet::from([wire::OST_WRITE]),
            json: true,
            ..Options::default()
        },
    );
    let first: serde_json::Value = serde_json::from_str(all.lines().next().unwrap()).unwrap();
    let xid = first["xid"].as_u64().unwrap();
    let one = decode(
        "o1_fsync.pcap.gz",
        &Options {
            xids: HashSet::from([xid]),
            ..Options::default()
        },
    );
    assert!(
        one.lines().count() >= 2 && one.lines().all(|l| l.contains(&format!("x{xid} "))),
        "{one}"
    );
}

#[test]
fn all_captures_decode_without_unreadable_buffers() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let text = decode(
            &name,
            &Options {
                verbose: true,
                summary: true,
                ..Options::default()
            },
        );
        assert!(!text.contains("unreadable"), "{name}: {text}");
    }
}

#[test]
fn nid_filter_selects_messages_of_the_nid() {
    let text = decode(
        "b1_client_mount.pcap.gz",
        &Options {
            nids: HashSet::from(["10.88.0.12@tcp".parse().unwrap()]),
            ..Options::default()
        },
    );
    assert!(
        !text.is_empty() && text.lines().all(|l| l.contains("10.88.0.12@tcp")),
        "{text}"
    );
}
