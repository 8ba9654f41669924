//! Turns events on connections into lines of output: finds the request of each reply, and the
//! target of each handle.

use super::buffers;
use super::line::{Facts, Kind, Line};
use super::names;
use crate::flow::{Event, StreamItem};
use crate::trace::{MessageKind, Request, Tracker};
use std::collections::HashMap;
use wire::format::{self, Rmf};
use wire::frame::{FrameHead, LnetOp, PingReply};
use wire::{LustreHandle, Message, Nid, PtlrpcBody, SrpcMsg, WireStruct};

/// Makes lines from events. Keeps state from message to message.
pub(super) struct Interpreter {
    tracker: Tracker,
    /// Names of targets, by the handle in requests to the target, and by the handle in its
    /// callbacks.
    targets: HashMap<u64, String>,
    /// Whether to show all fields, acknowledgements and keepalives.
    verbose: bool,
}

impl Interpreter {
    pub(super) fn new(verbose: bool) -> Interpreter {
        Interpreter {
            tracker: Tracker::new(),
            targets: HashMap::new(),
            verbose,
        }
    }

    /// The line of an event; `None` for events that only verbose output shows.
    pub(super) fn line(&mut self, event: &Event) -> Option<Line> {
        let (from, to) = (Nid::tcp(*event.from.ip(), 0), Nid::tcp(*event.to.ip(), 0));
        let mut line = Line {
            time_us: event.time_us,
            from,
            to,
            portal: None,
            xid: None,
            opcode: None,
            name: String::new(),
            kind: Kind::Other,
            target: None,
            status: None,
            latency_us: None,
            transno: 0,
            bytes: 0,
            facts: Facts::default(),
            fields: Vec::new(),
        };
        match &event.item {
            StreamItem::Lost(bytes) => {
                line.name = "lost".to_owned();
                line.bytes = *bytes;
            }
            StreamItem::Connreq(request) => {
                line.name = "connect".to_owned();
                line.facts.add("to", request.acr_nid);
                line.facts.add("from_port", event.from.port());
            }
            StreamItem::Hello(hello) => {
                line.name = "hello".to_owned();
                (line.from, line.to) = (hello.kshm_src_nid, hello.kshm_dst_nid);
                // SOCKLND_CONN_*
                let kind = match hello.kshm_ctype {
                    1 => "CONTROL".to_owned(),
                    2 => "BULK_IN".to_owned(),
                    3 => "BULK_OUT".to_owned(),
                    -1 => "NONE".to_owned(),
                    other => other.to_string(),
                };
                line.facts.add("type", kind);
                line.facts.add("version", hello.kshm_version);
                line.facts
                    .add("incarnation", format!("{:#x}", hello.kshm_src_incarnation));
            }
            StreamItem::Frame(FrameHead::Noop { cookies }, _) => {
                if !self.verbose {
                    return None;
                }
                // SOCKNAL_KEEPALIVE_PING
                line.name = if cookies[1] == 1 {
                    "keepalive".to_owned()
                } else {
                    "zc-ack".to_owned()
                };
                line.facts.add("cookies", format!("{cookies:x?}"));
            }
            StreamItem::Frame(FrameHead::Lnet { header, msg, .. }, payload) => {
                (line.from, line.to) = (header.src_nid, header.dest_nid);
                line.bytes = payload.len();
                line.portal = match msg {
                    LnetOp::Put(put) => Some(put.ptl_index),
                    LnetOp::Get(get) => Some(get.ptl_index),
                    _ => None,
                };
                let kind = self.tracker.classify(event)?;
                self.fill_lnet_message(&mut line, msg, kind)?;
            }
        }
        Some(line)
    }

    /// Completes the line of an LNet message; `None` if only verbose output shows the message.
    fn fill_lnet_message(&mut self, line: &mut Line, msg: &LnetOp, kind: MessageKind) -> Option<()> {
        match kind {
            MessageKind::Request(request) => self.fill_request(line, &request),
            MessageKind::Reply {
                body,
                msg,
                request,
                early,
            } => self.fill_reply(line, &body, &msg, request.as_deref(), early),
            MessageKind::Bulk(request, data) => {
                line.kind = Kind::Bulk;
                line.name = "unknown".to_owned();
                if let Some(r) = &request {
                    line.xid = Some(r.xid);
                    line.opcode = Some(r.body.pb_opc);
                    line.name = opcode_name(r.body.pb_opc);
                    line.target = self.target_of(&r.body);
                }
                line.facts.add("lnet", lnet_op_name(msg));
                if request.is_some_and(|r| r.body.pb_opc == wire::MDS_READPAGE) {
                    buffers::add_directory_pages(&data, &mut line.facts);
                }
            }
            MessageKind::Ping(data) => {
                line.name = format!("LNET_{}", lnet_op_name(msg));
                line.facts.add(
                    "ping",
                    if matches!(msg, LnetOp::Put(_)) {
                        "push"
                    } else {
                        "ping"
                    },
                );
                if let Ok(reply) = PingReply::parse(&data) {
                    let nids: Vec<_> = reply.nis.iter().map(|n| n.ns_nid.to_string()).collect();
                    line.facts.add("nids", nids.join(","));
                    line.facts.add(
                        "features",
                        names::flags(&["LNET_PING_FEAT_"], reply.features.into()),
                    );
                }
            }
            MessageKind::Selftest(data) => {
                line.name = "selftest".to_owned();
                match SrpcMsg::from_bytes(&data) {
                    Ok(srpc) if srpc.msg_magic == wire::SRPC_MSG_MAGIC => {
                        line.name = names::value_name("SRPC_MSG_", srpc.msg_type.into())
                            .map_or("selftest".to_owned(), |n| format!("SRPC_{n}"));
                    }
                    _ => line.kind = Kind::Bulk,
                }
                line.facts.add("lnet", lnet_op_name(msg));
            }
            MessageKind::Ack if !self.verbose => return None,
            MessageKind::Ack | MessageKind::Other(_) => line.name = format!("LNET_{}", lnet_op_name(msg)),
        }
        Some(())
    }

    fn fill_request(&mut self, line: &mut Line, request: &Request) {
        line.kind = Kind::Request;
        line.xid = Some(request.xid);
        line.opcode = Some(request.body.pb_opc);
        line.name = opcode_name(request.body.pb_opc);
        line.target = self.target_of(&request.body);
        line.transno = request.body.pb_transno;
        line.facts
            .add_nonzero("flags", resend_flags(request.body.pb_flags));
        line.facts.add_nonzero("job", request.body.pb_jobid);
        let Some(format) = request.format else {
            return;
        };
        if let Some(i) = format.request_index(Rmf::Tgtuuid) {
            let name = target_name(&request.msg, i);
            // Callbacks from this target will carry the client's handle.
            if let Some(conn) = format
                .request_index(Rmf::Conn)
                .and_then(|c| request.msg.get::<LustreHandle>(c).ok())
            {
                self.targets.insert(conn.cookie, name.clone());
            }
            line.target = Some(name);
        }
        self.add_buffers(line, &request.msg, format.request, request.body.pb_opc);
    }

    fn fill_reply(
        &mut self,
        line: &mut Line,
        body: &PtlrpcBody,
        msg: &Message,
        request: Option<&Request>,
        early: bool,
    ) {
        line.kind = if early { Kind::EarlyReply } else { Kind::Reply };
        line.opcode = Some(body.pb_opc);
        line.name = opcode_name(body.pb_opc);
        line.status = Some(body.pb_status);
        line.transno = body.pb_transno;
        if body.pb_type == wire::PTL_RPC_MSG_ERR {
            line.facts.add("type", "ERR");
        }
        if self.verbose {
            line.facts.add_nonzero("last_committed", body.pb_last_committed);
        }
        let format = match request {
            Some(r) => {
                line.xid = Some(r.xid);
                line.latency_us = Some(line.time_us.saturating_sub(r.time_us));
                line.target = self.target_of(&r.body);
                if let Some(i) = r.format.and_then(|f| f.request_index(Rmf::Tgtuuid)) {
                    let name = target_name(&r.msg, i);
                    self.targets.insert(body.pb_handle.cookie, name.clone());
                    line.facts
                        .add_nonzero("handle", format!("{:#x}", body.pb_handle.cookie));
                    line.facts.add_nonzero(
                        "op_flags",
                        names::flags(&["MSG_CONNECT_"], body.pb_op_flags.into()),
                    );
                    line.target = Some(name);
                }
                r.format
            }
            None => format::of_reply(body.pb_opc),
        };
        if early {
            line.facts.add("timeout", body.pb_timeout);
        } else if let Some(format) = format {
            self.add_buffers(line, msg, format.reply, body.pb_opc);
        }
    }

    fn add_buffers(&self, line: &mut Line, msg: &Message, format: &[Rmf], opcode: u32) {
        for (i, rmf) in format.iter().enumerate() {
            let buf = msg.buf(i);
            if buf.is_empty() {
                continue;
            }
            buffers::describe(*rmf, buf, opcode, line.kind == Kind::Request, &mut line.facts);
            if self.verbose {
                let text = rmf
                    .codec()
                    .show(buf)
                    .unwrap_or_else(|e| format!("unreadable: {e}"));
                line.fields
                    .push(format!("[{i}] {} ({} bytes): {text}", rmf.name(), buf.len()));
            }
        }
    }

    fn target_of(&self, body: &PtlrpcBody) -> Option<String> {
        self.targets.get(&body.pb_handle.cookie).cloned()
    }
}

fn target_name(msg: &Message, i: usize) -> String {
    let uuid = String::from_utf8_lossy(msg.name(i));
    uuid.strip_suffix("_UUID").unwrap_or(&uuid).to_owned()
}

fn opcode_name(opcode: u32) -> String {
    format::opcode_name(opcode).map_or_else(|| format!("opcode {opcode}"), str::to_owned)
}

/// The names of the flags that mark resent and replayed requests.
fn resend_flags(flags: u32) -> String {
    let names = [
        (wire::MSG_RESENT, "RESENT"),
        (wire::MSG_REPLAY, "REPLAY"),
        (wire::MSG_REQ_REPLAY_DONE, "REQ_REPLAY_DONE"),
        (wire::MSG_LOCK_REPLAY_DONE, "LOCK_REPLAY_DONE"),
    ];
    let set = names
        .iter()
        .filter(|(bit, _)| flags & bit != 0)
        .map(|(_, name)| *name);
    set.collect::<Vec<_>>().join("|")
}

fn lnet_op_name(msg: &LnetOp) -> &'static str {
    match msg {
        LnetOp::Ack(_) => "ACK",
        LnetOp::Put(_) => "PUT",
        LnetOp::Get(_) => "GET",
        LnetOp::Reply(_) => "REPLY",
    }
}
