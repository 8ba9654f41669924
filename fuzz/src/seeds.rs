//! Initial inputs of the fuzz targets: captured traffic, divided by target, and sequences built by
//! hand (such as creating, opening, writing and closing a file).

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    path::Path,
};

use bytes::Bytes;
use capture::{
    flow::{Flows, StreamItem},
    pcap::Capture,
    trace::{MessageKind, Tracker},
};
use wire::{Fid, Message, WireStruct};

use crate::cluster::Cluster;
use crate::requests::FIDS;
use crate::steps::{Step, options};

mod scenarios;

/// Inputs by target.
#[derive(Default)]
pub struct Seeds {
    inputs: BTreeMap<&'static str, Vec<Vec<u8>>>,
    /// Kinds of captured messages and frames seen: opcode, buffer lengths rounded up to 16, first
    /// byte of the first buffer that is not empty.
    kinds: BTreeSet<(u32, Vec<usize>, u8)>,
    /// The FIDs of inputs.
    fids: [Fid; FIDS],
}

/// Number of captured requests in a sequence: longer ones slow the servers' targets down.
const SEQUENCE: usize = 6;
/// Maximum length of a seed, bytes: longer inputs slow fuzzing down without benefit.
const LEN_MAX: usize = 16 << 10;

impl Seeds {
    fn add(&mut self, target: &'static str, input: Vec<u8>) {
        if !input.is_empty() && input.len() <= LEN_MAX {
            self.inputs.entry(target).or_default().push(input);
        }
    }

    /// Creates seeds from the test files of the `wire` crate in `tests`, from scenarios, and from a
    /// few texts and messages.
    ///
    /// # Errors
    ///
    /// A test file cannot be read.
    pub fn all(tests: &Path) -> std::io::Result<Seeds> {
        let mut seeds = Seeds {
            fids: Cluster::start().fids(),
            ..Seeds::default()
        };
        for entry in std::fs::read_dir(tests.join("captures"))? {
            seeds.add_capture(read_unzipped(&entry?.path())?);
        }
        for entry in std::fs::read_dir(tests.join("llogs"))? {
            let file = read_unzipped(&entry?.path())?;
            seeds.add("llog", file.to_vec());
            file.chunks(wire::llog_file::CHUNK)
                .for_each(|chunk| seeds.add("llog", chunk.to_vec()));
        }
        for (target, input) in scenarios::all() {
            seeds.add(target, input);
        }
        for text in ["10.0.0.1@tcp", "0@lo", "10.1.2.3@o2ib7"] {
            seeds.add("lnet", text.into());
        }
        seeds.add("selftest", selftest_session());
        seeds.add("layout", b"[0x200000402:0x1:0x0]".to_vec());
        Ok(seeds)
    }

    /// Writes the seeds of each target to a directory of its own. Returns the number of seeds of
    /// each target.
    ///
    /// # Errors
    ///
    /// A directory or a seed cannot be written.
    pub fn write(mut self, corpus: &Path) -> std::io::Result<Vec<(&'static str, usize)>> {
        let mut counts = Vec::new();
        for (target, inputs) in &mut self.inputs {
            inputs.sort();
            inputs.dedup();
            let dir = corpus.join(target);
            std::fs::create_dir_all(&dir)?;
            for old in std::fs::read_dir(&dir)? {
                let old = old?;
                if old.file_name().to_string_lossy().starts_with("seed-") {
                    std::fs::remove_file(old.path())?;
                }
            }
            for (i, input) in inputs.iter().enumerate() {
                std::fs::write(dir.join(format!("seed-{i:04}")), input)?;
            }
            counts.push((*target, inputs.len()));
        }
        Ok(counts)
    }

    /// Adds a capture, and its frames and messages.
    fn add_capture(&mut self, file: Bytes) {
        let mut flows = Flows::new();
        let mut tracker = Tracker::new();
        self.add("lnet", file.to_vec());
        let Ok(capture) = Capture::open(file) else { return };
        let mut sequences = Sequences::default();
        let events: Vec<_> = capture.flat_map(|segment| flows.feed(segment)).collect();
        for event in events {
            match &event.item {
                StreamItem::Frame(..) if !self.add_kind(u32::MAX, [&event.raw]) => {}
                StreamItem::Connreq(_) | StreamItem::Hello(_) | StreamItem::Frame(..) => {
                    self.add("socklnd", event.raw.to_vec())
                }
                StreamItem::Lost(_) => {}
            }
            match tracker.classify(&event) {
                Some(MessageKind::Request(r)) => {
                    self.add_request(r.portal, r.body.pb_opc, &r.msg, &mut sequences);
                }
                Some(MessageKind::Reply { msg, .. }) => {
                    self.add_contents(&msg);
                    if self.add_kind(0, &msg.bufs) {
                        self.add("ptlrpc", msg.build().to_vec());
                    }
                }
                Some(MessageKind::Bulk(Some(r), data)) if r.body.pb_opc == wire::MDS_READPAGE => {
                    self.add("layout", data.to_vec());
                }
                Some(MessageKind::Ping(data)) => self.add("lnet", data.to_vec()),
                _ => {}
            }
        }
    }

    /// Records a kind of message; true if it is new. Captures contain many similar messages; one of
    /// each kind is enough.
    fn add_kind<'a>(&mut self, opc: u32, bufs: impl IntoIterator<Item = &'a Bytes>) -> bool {
        let (mut lens, mut first_byte) = (Vec::new(), None);
        for buf in bufs {
            lens.push(buf.len().next_multiple_of(16));
            first_byte = first_byte.or(buf.first().copied());
        }
        self.kinds.insert((opc, lens, first_byte.unwrap_or(0)))
    }

    /// Adds a message as input of the parsers, and as a request to the server of its portal: alone,
    /// and in a sequence of the capture's requests to that server.
    fn add_request(&mut self, portal: u32, opc: u32, msg: &Message, sequences: &mut Sequences) {
        self.add_contents(msg);
        let is_new = self.add_kind(opc, msg.bufs.iter().skip(1));
        if is_new {
            self.add("ptlrpc", msg.build().to_vec());
        }
        let to_ost = matches!(
            portal,
            wire::OST_REQUEST_PORTAL | wire::OST_IO_PORTAL | wire::OST_CREATE_PORTAL
        );
        let is_lock = matches!(opc, wire::LDLM_ENQUEUE..=wire::LDLM_SET_INFO) && msg.buf(2).is_empty();
        let message = sequences.with_fids_of_inputs(&msg.build(), &self.fids);
        if message.len() >= LEN_MAX || is_connection(opc) {
            return;
        }
        let step = Step::raw(to_ost, portal as u8, message);
        let target = match (is_lock, to_ost) {
            (true, _) => "ldlm",
            (false, true) => "ost",
            (false, false) => "mdt",
        };
        if is_new {
            for options in [0, options::KEEP_BODY] {
                self.add(target, Step::write_all(&[step.clone().by(options)]));
            }
        }
        let steps = sequences.by_target.entry(target).or_default();
        steps.push((step, is_new));
        if steps.len() == SEQUENCE {
            let (steps, news): (Vec<_>, Vec<_>) = std::mem::take(steps).into_iter().unzip();
            if news.contains(&true) {
                self.add(target, Step::write_all(&steps));
            }
        }
    }

    /// Adds the buffers that parse as layouts, links or ACLs.
    fn add_contents(&mut self, msg: &Message) {
        for buf in msg.bufs.iter().skip(1).filter(|b| (16..4096).contains(&b.len())) {
            let is_layout = wire::striping::LovLayout::is_layout(buf)
                || wire::acl::PosixAcl::parse(buf).is_ok()
                || wire::striping::LmvLayout::parse(buf).is_ok()
                || wire::linkea::LinkEa::parse(buf).is_ok();
            if is_layout {
                self.add("layout", buf.to_vec());
            }
        }
    }
}

/// Whether an operation opens, closes or keeps a connection. Inputs have separate steps for these.
fn is_connection(opc: u32) -> bool {
    matches!(
        opc,
        wire::MDS_CONNECT
            | wire::MDS_DISCONNECT
            | wire::OST_CONNECT
            | wire::OST_DISCONNECT
            | wire::MGS_CONNECT
            | wire::OBD_PING
    )
}

/// The requests of one capture.
#[derive(Default)]
struct Sequences {
    /// The next steps of each target, and whether each is of a new kind.
    by_target: BTreeMap<&'static str, Vec<(Step, bool)>>,
    /// The captured FIDs, in the order of their appearance.
    fids: Vec<[u8; 16]>,
}

impl Sequences {
    /// Replaces the captured FIDs in a message by FIDs of the inputs. Equal FIDs stay equal.
    fn with_fids_of_inputs(&mut self, message: &[u8], fids: &[Fid]) -> Bytes {
        /// FIDs of the first client's sequence.
        const OWN: usize = 6;
        let mut message = message.to_vec();
        for at in (0..message.len().saturating_sub(15)).step_by(8) {
            let Ok(bytes) = <[u8; 16]>::try_from(&message[at..at + 16]) else {
                continue;
            };
            let Ok(fid) = Fid::from_bytes(&bytes) else {
                continue;
            };
            let slot = if fid == Fid::ROOT {
                0
            } else if (0x2_0000_0400..0x2_4000_0000).contains(&fid.f_seq) && fid.f_ver == 0 {
                let known = self.fids.iter().position(|known| *known == bytes);
                let index = known.unwrap_or_else(|| {
                    self.fids.push(bytes);
                    self.fids.len() - 1
                });
                1 + index % OWN
            } else {
                continue;
            };
            message[at..at + 16].copy_from_slice(&fids[slot].to_bytes());
        }
        message.into()
    }
}

/// Reads a file, and decompresses it if its name ends with `.gz`.
fn read_unzipped(path: &Path) -> std::io::Result<Bytes> {
    let raw = std::fs::read(path)?;
    if path.extension().is_none_or(|e| e != "gz") {
        return Ok(raw.into());
    }
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(&raw[..]).read_to_end(&mut out)?;
    Ok(out.into())
}

/// A complete LNet selftest session.
fn selftest_session() -> Vec<u8> {
    let sid = wire::LstSid {
        ses_nid: wire::Nid(0x0002_0000_0a00_0001),
        ses_stamp: 1,
    };
    let test = |service, client: u8| wire::SrpcTestReqst {
        tsr_bulkid: 7,
        tsr_sid: sid,
        tsr_service: service,
        tsr_loop: 2,
        tsr_concur: 1,
        tsr_is_client: client,
        tsr_ndest: client.into(),
        tsr_u: [1, 0, 3, 0, 0, 16, 0, 0, 0, 0, 0, 0],
        ..wire::SrpcTestReqst::default()
    };
    let batch = |bar_opc| wire::SrpcBatchReqst {
        bar_sid: sid,
        bar_opc,
        ..wire::SrpcBatchReqst::default()
    };
    let mksn = wire::SrpcMksnReqst {
        mksn_sid: sid,
        ..wire::SrpcMksnReqst::default()
    };
    let stat = wire::SrpcStatReqst {
        str_sid: sid,
        ..wire::SrpcStatReqst::default()
    };
    let rmsn = wire::SrpcRmsnReqst {
        rmsn_sid: sid,
        ..wire::SrpcRmsnReqst::default()
    };
    let brw = wire::SrpcBrwReqst {
        brw_bulkid: 7,
        brw_rw: 2,
        brw_len: 4096,
        brw_flags: 3,
        ..wire::SrpcBrwReqst::default()
    };
    let all: [wire::SrpcBody; 11] = [
        mksn.into(),
        test(wire::SRPC_SERVICE_PING, 0).into(),
        test(wire::SRPC_SERVICE_BRW, 1).into(),
        batch(1).into(),
        batch(3).into(),
        stat.into(),
        brw.into(),
        wire::SrpcPingReqst {
            pnr_magic: 0xbabe_face,
            ..Default::default()
        }
        .into(),
        wire::SrpcDebugReqst::default().into(),
        batch(2).into(),
        rmsn.into(),
    ];
    all.into_iter()
        .flat_map(|body| wire::Selftest::new(1, body).build())
        .collect()
}
