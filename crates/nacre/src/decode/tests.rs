//! Decodes captures of real traffic; checks names, targets, xids and filters.

#![allow(clippy::unwrap_used)]

use super::{Args, Capture, print_capture};
use std::io::Read;
use std::path::Path;

fn decode(capture: &str, args: Args) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../wire/tests/captures")
        .join(capture);
    let mut file = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap())
        .read_to_end(&mut file)
        .unwrap();
    let mut out = Vec::new();
    print_capture(&args, Capture::open(file.into()).unwrap(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn args() -> Args {
    Args {
        file: "-".into(),
        verbose: false,
        json: false,
        nid: vec![],
        opcode: vec![],
        xid: vec![],
        summary: false,
    }
}

#[test]
fn mkdir_shows_request_and_reply() {
    let text = decode(
        "d1_mkdir.pcap.gz",
        Args {
            opcode: vec![wire::MDS_REINT],
            ..args()
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
    let text = decode("z1_mount_single_server.pcap.gz", args());
    assert!(text.contains("MDS_CONNECT req testfs-MDT0000"), "{text}");
    assert!(text.contains("MDS_GET_ROOT rep testfs-MDT0000 ok"), "{text}");
    assert!(text.contains("name=testfs-client"), "{text}");
    assert!(!text.contains("unreadable"), "{text}");
}

#[test]
fn json_prints_one_object_per_line() {
    let text = decode(
        "f3_stat_one.pcap.gz",
        Args {
            json: true,
            verbose: true,
            ..args()
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
        Args {
            opcode: vec![wire::OST_WRITE],
            json: true,
            ..args()
        },
    );
    let first: serde_json::Value = serde_json::from_str(all.lines().next().unwrap()).unwrap();
    let xid = first["xid"].as_u64().unwrap();
    let one = decode(
        "o1_fsync.pcap.gz",
        Args {
            xid: vec![xid],
            ..args()
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
            Args {
                verbose: true,
                summary: true,
                ..args()
            },
        );
        assert!(!text.contains("unreadable"), "{name}: {text}");
    }
}

#[test]
fn nid_filter_selects_messages_of_the_nid() {
    let text = decode(
        "b1_client_mount.pcap.gz",
        Args {
            nid: vec!["10.88.0.12@tcp".parse().unwrap()],
            ..args()
        },
    );
    assert!(
        !text.is_empty() && text.lines().all(|l| l.contains("10.88.0.12@tcp")),
        "{text}"
    );
}

#[test]
fn opcode_filter_accepts_name_or_number() {
    assert_eq!(super::parse_opcode("mds_reint").unwrap(), wire::MDS_REINT);
    assert_eq!(super::parse_opcode("0x24").unwrap(), wire::MDS_REINT);
    let error = super::parse_opcode("MDS_NONSENSE").unwrap_err().to_string();
    assert!(error.contains("is not an opcode"), "{error}");
}
