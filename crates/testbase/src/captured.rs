//! Captured traffic for tests that replay one side of a capture and compare the answers with those
//! of the capture. This module gives the messages in order, with sender and receiver, and a table
//! of the differences that a test expects.

pub mod differences;

use bytes::Bytes;
use capture::flow::{Flows, StreamItem};
use capture::pcap::{Capture, unpack};
use capture::trace::{MessageKind, Request, Tracker};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::Nid;
use wire::format::{Leaf, Rmf, leaves};
use wire::frame::{FrameHead, LnetOp};

/// The directory of the captures.
pub fn dir() -> PathBuf {
    let wire = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    wire.canonicalize().unwrap()
}

/// The content of a capture file, decompressed if needed.
pub fn bytes_of(path: &Path) -> Bytes {
    unpack(std::fs::read(path).unwrap()).unwrap()
}

/// The labels of all captures, such as `d1_mkdir`.
pub fn labels() -> Vec<String> {
    let files = std::fs::read_dir(dir()).unwrap();
    let names = files.map(|f| f.unwrap().file_name().to_string_lossy().into_owned());
    let mut labels: Vec<_> = names
        .filter_map(|n| n.strip_suffix(".pcap.gz").map(str::to_owned))
        .collect();
    labels.sort();
    labels
}

/// One LNet message of a capture.
#[derive(Clone, Debug)]
pub struct Step {
    /// The capture time, in microseconds since 1970.
    pub time_us: u64,
    /// The sender.
    pub from: Nid,
    /// The receiver.
    pub to: Nid,
    /// The portal of a PUT or GET.
    pub portal: Option<u32>,
    /// The match bits of a PUT or GET; 0 for other messages.
    pub match_bits: u64,
    /// The kind of the message.
    pub kind: MessageKind,
}

/// The LNet messages of the capture `label`, in order.
pub fn steps(label: &str) -> Vec<Step> {
    let file = bytes_of(&dir().join(format!("{label}.pcap.gz")));
    let (mut flows, mut tracker) = (Flows::new(), Tracker::new());
    let events = Capture::open(file)
        .unwrap()
        .flat_map(|s| flows.feed(s))
        .collect::<Vec<_>>();
    let steps = events.into_iter().filter_map(|event| {
        let kind = tracker.classify(&event)?;
        let StreamItem::Frame(FrameHead::Lnet { header, msg, .. }, _) = &event.item else {
            return None;
        };
        let (portal, match_bits) = match msg {
            LnetOp::Put(put) => (Some(put.ptl_index), put.match_bits),
            LnetOp::Get(get) => (Some(get.ptl_index), get.match_bits),
            LnetOp::Ack(_) | LnetOp::Reply(_) => (None, 0),
        };
        Some(Step {
            time_us: event.time_us,
            from: header.src_nid,
            to: header.dest_nid,
            portal,
            match_bits,
            kind,
        })
    });
    steps.collect()
}

/// The fields of a message with this format, each with the index of its buffer.
pub fn fields(format: &[Rmf], opcode: u32, bufs: &[Bytes]) -> Vec<(usize, Leaf)> {
    let buffers = bufs.iter().zip(format).enumerate();
    let all = buffers.flat_map(|(i, (buf, rmf))| {
        let found = leaves(*rmf, opcode, buf).unwrap_or_else(|e| panic!("{} of {opcode}: {e}", rmf.name()));
        found.into_iter().map(move |leaf| (i, leaf))
    });
    all.collect()
}

/// The name of a request's format without `RQF_`, such as `LDLM_INTENT_OPEN` or `OST_BRW_WRITE`.
pub fn name_of(request: &Arc<Request>) -> String {
    request.format.map_or_else(
        || format!("opcode {}", request.body.pb_opc),
        |f| f.name.trim_start_matches("RQF_").to_owned(),
    )
}
