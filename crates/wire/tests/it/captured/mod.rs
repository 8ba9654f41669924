//! Captured traffic for tests that play one side of it: who said what to whom, in order, and a table of the differences
//! that are expected between what was captured and what is seen now.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // each test uses its part

pub mod differences;

use bytes::Bytes;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::Nid;
use wire::flow::{Flows, Said};
use wire::format::{Leaf, Rmf, leaves};
use wire::frame::{FrameHead, LnetMsg};
use wire::pcap::Capture;
use wire::trace::{Meaning, Request, Tracker};

/// Where the captures are.
pub fn dir() -> PathBuf {
    // Tests of other crates include this file, so that the manifest's directory is theirs.
    let wire = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/captures");
    wire.canonicalize().unwrap()
}

/// A capture file's bytes.
pub fn bytes_of(path: &Path) -> Bytes {
    let raw = std::fs::read(path).unwrap();
    if path.extension().is_some_and(|e| e == "gz") {
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(&raw[..])
            .read_to_end(&mut out)
            .unwrap();
        return out.into();
    }
    raw.into()
}

/// All captures.
pub fn labels() -> Vec<String> {
    let files = std::fs::read_dir(dir()).unwrap();
    let names = files.map(|f| f.unwrap().file_name().to_string_lossy().into_owned());
    let mut labels: Vec<_> = names
        .filter_map(|n| n.strip_suffix(".pcap.gz").map(str::to_owned))
        .collect();
    labels.sort();
    labels
}

/// One message that somebody sent.
#[derive(Clone, Debug)]
pub struct Step {
    /// When, microseconds since 1970.
    pub time_us: u64,
    /// Who.
    pub from: Nid,
    /// To whom.
    pub to: Nid,
    /// Its portal, if it was put or asked for at one.
    pub portal: Option<u32>,
    /// Its match bits.
    pub match_bits: u64,
    /// What it is about.
    pub meaning: Meaning,
}

/// The messages of a capture in order, by its label (`d1_mkdir`).
pub fn steps(label: &str) -> Vec<Step> {
    let file = bytes_of(&dir().join(format!("{label}.pcap.gz")));
    let (mut flows, mut tracker) = (Flows::new(), Tracker::new());
    let events = Capture::open(file)
        .unwrap()
        .flat_map(|s| flows.feed(s))
        .collect::<Vec<_>>();
    let steps = events.into_iter().filter_map(|event| {
        let meaning = tracker.meaning(&event)?;
        let Said::Frame(FrameHead::Lnet { header, msg, .. }, _) = &event.said else {
            return None;
        };
        let (portal, match_bits) = match msg {
            LnetMsg::Put(put) => (Some(put.ptl_index), put.match_bits),
            LnetMsg::Get(get) => (Some(get.ptl_index), get.match_bits),
            LnetMsg::Ack(_) | LnetMsg::Reply(_) => (None, 0),
        };
        Some(Step {
            time_us: event.time_us,
            from: header.src_nid,
            to: header.dest_nid,
            portal,
            match_bits,
            meaning,
        })
    });
    steps.collect()
}

/// The fields of a message whose buffers have this format, each with the number of its buffer.
pub fn fields(format: &[Rmf], opcode: u32, bufs: &[Bytes]) -> Vec<(usize, Leaf)> {
    let buffers = bufs.iter().zip(format).enumerate();
    let all = buffers.flat_map(|(i, (buf, rmf))| {
        let found = leaves(*rmf, opcode, buf).unwrap_or_else(|e| panic!("{} of {opcode}: {e}", rmf.name()));
        found.into_iter().map(move |leaf| (i, leaf))
    });
    all.collect()
}

/// A request's opcode and what tells it from others of that opcode: `MDS_REINT_CREATE`, `LDLM_INTENT_OPEN`, `OST_WRITE`.
pub fn name_of(request: &Arc<Request>) -> String {
    request.format.map_or_else(
        || format!("opcode {}", request.body.pb_opc),
        |f| f.name.trim_start_matches("RQF_").to_owned(),
    )
}
