//! Captured traffic of Lustre clients and servers: every frame, message, buffer, log record and
//! directory page is parsed and built again, byte for byte. Prints statistics.
//!
//! The captures under `wire/tests/captures` are a part of a larger set. The environment variable
//! `NACRE_CAPTURES` names a directory with more of them.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use capture::flow::{Flows, StreamItem};
use capture::pcap::Capture;
use capture::trace::{MessageKind, Tracker};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use testbase::captured::{self, bytes_of};
use wire::acl::PosixAcl;
use wire::config::Config;
use wire::dirpage::{DirEntry, DirPage, PAGE};
use wire::format::Rmf;
use wire::frame::PingReply;
use wire::llog_file::{Log, records};
use wire::striping::{LmvLayout, LovLayout};
use wire::{LuDirent, LuDirpage, Message, SrpcMsg, WireStruct};

/// Statistics of the captures.
#[derive(Debug, Default)]
struct Counts {
    /// Connection requests.
    connections: usize,
    frames: usize,
    lost_bytes: usize,
    /// Messages with a known format, by name.
    messages: BTreeMap<String, usize>,
    buffers: usize,
    fields: usize,
    /// Messages with nonzero bytes between their buffers.
    nonzero_gaps: usize,
    log_records: usize,
    layouts: usize,
    pages: usize,
    pings: usize,
    selftest: usize,
    /// Messages without a known format, by name.
    unknown: BTreeMap<String, usize>,
    /// Parts that are not rebuilt byte for byte.
    differences: Vec<String>,
}

fn captures() -> Vec<PathBuf> {
    let mut dirs = vec![PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../wire/tests/captures"
    ))];
    dirs.extend(std::env::var_os("NACRE_CAPTURES").map(PathBuf::from));
    let files = dirs
        .iter()
        .flat_map(|d| std::fs::read_dir(d).unwrap())
        .map(|e| e.unwrap().path());
    let mut files: Vec<_> = files.filter(|p| p.to_string_lossy().contains(".pcap")).collect();
    files.sort();
    files
}

impl Counts {
    /// Records a difference if `built` is an error or differs from `original`.
    fn compare(&mut self, what: &str, built: Result<Bytes, wire::WireError>, original: &[u8]) {
        let why = match built {
            Ok(built) if built == original => return,
            Ok(built) => {
                let at = built.iter().zip(original).position(|(a, b)| a != b);
                format!(
                    "{} bytes for {}, first difference at {at:?}",
                    built.len(),
                    original.len()
                )
            }
            Err(e) => e.to_string(),
        };
        self.differences.push(format!("{what}: {why}"));
    }

    fn check_message(&mut self, what: &str, msg: &Message, formats: Option<&'static [Rmf]>, payload: &Bytes) {
        let opcode = msg.body().unwrap().pb_opc;
        let clean = self.with_zeroed_gaps(msg, payload);
        self.compare(what, Ok(msg.build()), &clean);
        let Some(formats) = formats else {
            *self.unknown.entry(what.to_owned()).or_default() += 1;
            return;
        };
        *self.messages.entry(what.to_owned()).or_default() += 1;
        for (i, buf) in msg.bufs.iter().enumerate() {
            // Buffers beyond the format must be empty.
            let Some(rmf) = formats.get(i) else {
                if !buf.is_empty() {
                    self.differences.push(format!(
                        "{what}: buffer {i} of {} bytes is not in the format",
                        buf.len()
                    ));
                }
                continue;
            };
            self.buffers += 1;
            self.compare(&format!("{what} {}", rmf.name()), rmf.codec().rebuild(buf), buf);
            self.check_contents(what, *rmf, buf);
        }
        self.fields += captured::fields(formats, opcode, &msg.bufs).len();
    }

    /// The message with zeros in the gaps behind its buffers: some senders leave old memory there.
    fn with_zeroed_gaps(&mut self, msg: &Message, payload: &Bytes) -> Vec<u8> {
        let mut clean = payload.to_vec();
        let mut at = wire::LustreMsgV2::size_of_header(msg.bufs.len());
        for buf in &msg.bufs {
            let (end, next) = (at + buf.len(), at + wire::round_up8(buf.len()));
            let end_of_message = clean.len();
            clean[end.min(end_of_message)..next.min(end_of_message)].fill(0);
            at = next;
        }
        self.nonzero_gaps += usize::from(clean != payload[..]);
        clean
    }

    /// Compares the content of an opaque buffer, if its format is known.
    fn check_contents(&mut self, what: &str, rmf: Rmf, buf: &Bytes) {
        let name = format!("{what} {}", rmf.name());
        match rmf {
            Rmf::Eadata if what.contains("LLOG") => self.check_log_block(&name, buf),
            Rmf::MdtMd | Rmf::DlmLvb | Rmf::Eadata | Rmf::DefaultMdtMd if LovLayout::is_layout(buf) => {
                self.layouts += 1;
                let built = LovLayout::parse(buf).map(|l| l.build());
                // A user's request may be longer than the layout in it.
                let len = built.as_ref().map_or(0, |b| b.len()).min(buf.len());
                let original = if rmf == Rmf::Eadata { &buf[..len] } else { &buf[..] };
                self.compare(&name, built, original);
            }
            Rmf::MdtMd if buf.starts_with(&wire::LMV_MAGIC_V1.to_le_bytes()) => {
                self.layouts += 1;
                self.compare(&name, LmvLayout::parse(buf).map(|l| l.build()), buf);
            }
            // Servers send zeros in the place of an unused ACL.
            Rmf::Acl if buf.iter().any(|b| *b != 0) => {
                self.compare(&name, PosixAcl::parse(buf).map(|a| a.build()), buf)
            }
            _ => {}
        }
    }

    fn check_log_block(&mut self, what: &str, block: &[u8]) {
        let mut w = wire::Writer::new();
        for record in records(block) {
            match record {
                Ok(record) => {
                    self.log_records += 1;
                    record.write(&mut w);
                    if record.kind == wire::OBD_CFG_REC {
                        self.compare(what, Config::parse(record.data).map(|c| c.build()), record.data);
                    }
                }
                Err(e) => self.differences.push(format!("{what}: {e}")),
            }
        }
        w.pad_to(block.len());
        self.compare(what, Ok(w.finish()), block);
    }

    fn check_capture(&mut self, file: Bytes) {
        let (mut flows, mut tracker) = (Flows::new(), Tracker::new());
        let events: Vec<_> = Capture::open(file).unwrap().flat_map(|s| flows.feed(s)).collect();
        for event in events {
            match &event.item {
                StreamItem::Connreq(request) => {
                    self.connections += 1;
                    self.compare("connreq", Ok(request.to_bytes()), &event.raw);
                }
                StreamItem::Hello(hello) => self.compare("hello", Ok(hello.to_bytes()), &event.raw),
                StreamItem::Lost(n) => self.lost_bytes += n,
                StreamItem::Frame(head, payload) => {
                    self.frames += 1;
                    self.compare(
                        "frame",
                        Ok(head.build()),
                        &event.raw[..event.raw.len() - payload.len()],
                    );
                    match tracker.classify(&event) {
                        Some(kind) => self.check_kind(kind, payload),
                        None => continue,
                    }
                }
            }
        }
    }

    fn check_kind(&mut self, kind: MessageKind, payload: &Bytes) {
        match kind {
            MessageKind::Request(r) => {
                let name = r
                    .format
                    .map_or(format!("opcode {}", r.body.pb_opc), |f| f.name.to_owned());
                self.check_message(
                    &format!("{name} request"),
                    &r.msg,
                    r.format.map(|f| f.request),
                    payload,
                );
            }
            MessageKind::Reply {
                body, msg, request, ..
            } => {
                let format = request
                    .as_ref()
                    .and_then(|r| r.format)
                    .or(wire::format::of_reply(body.pb_opc));
                let name = format.map_or(format!("opcode {}", body.pb_opc), |f| f.name.to_owned());
                self.check_message(&format!("{name} reply"), &msg, format.map(|f| f.reply), payload);
            }
            MessageKind::Bulk(Some(r), data) if r.body.pb_opc == wire::MDS_READPAGE && !data.is_empty() => {
                for page in data.chunks(PAGE) {
                    let page = Bytes::copy_from_slice(page);
                    self.pages += 1;
                    match DirPage::parse(&page) {
                        Ok(read) => self.compare(
                            "directory page",
                            Ok(read.build()),
                            &with_zeroed_padding(&read, &page),
                        ),
                        Err(e) => self.differences.push(format!("directory page: {e}")),
                    }
                }
            }
            MessageKind::Ping(data) if !data.is_empty() => {
                self.pings += 1;
                let built = PingReply::parse(&data).map(|p| p.build());
                let len = built.as_ref().map_or(0, |b| b.len()).min(data.len());
                self.compare("ping", built, &data[..len]);
            }
            MessageKind::Selftest(data) if data.len() == SrpcMsg::SIZE => {
                self.selftest += 1;
                self.compare("srpc", SrpcMsg::from_bytes(&data).map(|m| m.to_bytes()), &data);
            }
            _ => {}
        }
    }
}

/// The page with zeros in the padding of each entry and behind the last entry: a server may leave
/// removed entries there.
fn with_zeroed_padding(read: &DirPage, page: &[u8]) -> Vec<u8> {
    let mut clean = vec![0; PAGE];
    let mut at = LuDirpage::SIZE;
    clean[..at].copy_from_slice(&page[..at]);
    for entry in &read.entries {
        let end = match entry.mode {
            Some(_) => (at + LuDirent::SIZE + entry.name.len()).next_multiple_of(2) + 2,
            None => at + LuDirent::SIZE + entry.name.len(),
        };
        clean[at..end].copy_from_slice(&page[at..end]);
        at += DirEntry::size_of(entry.name.len(), entry.mode.is_some());
    }
    clean
}

#[test]
fn captured_messages_are_rebuilt_byte_for_byte() {
    let mut total = Counts::default();
    for path in captures() {
        let before = total.differences.len();
        total.check_capture(bytes_of(&path));
        for difference in &mut total.differences[before..] {
            *difference = format!("{}: {difference}", path.file_name().unwrap().to_string_lossy());
        }
    }
    let messages: usize = total.messages.values().sum();
    println!("{total:#?}");
    println!(
        "{messages} messages and {} buffers of {} fields rebuilt, {} frames, {} log records, {} layouts, {} pages",
        total.buffers, total.fields, total.frames, total.log_records, total.layouts, total.pages
    );
    assert!(total.differences.is_empty() && messages > 1000);
}

#[test]
fn log_files_of_a_real_server_are_rebuilt_byte_for_byte() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/llogs");
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let file = bytes_of(&path);
        let log = Log::parse(&file).unwrap();
        assert_eq!(log.build(), file, "{}", path.display());

        // Appending the same records one by one gives the same file.
        let header = log.header();
        let mut again = Log::new(header.llh_tgtuuid, header.llh_timestamp);
        for record in log.records() {
            let record = record.unwrap();
            assert_eq!(record.kind, wire::OBD_CFG_REC, "{}", path.display());
            assert_eq!(Config::parse(record.data).unwrap().build(), record.data);
            again.append(record.kind, record.id, record.data).unwrap();
        }
        assert!(again.build() == file, "{}", path.display());
    }
}
