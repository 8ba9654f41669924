//! One line of output: fixed columns, followed by named facts.

use serde_json::{Map, Value, json};
use std::fmt::Write;
use wire::{Errno, Nid};

/// The kind of message on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Reply,
    EarlyReply,
    Bulk,
    Other,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Request => "req",
            Kind::Reply => "rep",
            Kind::EarlyReply => "early",
            Kind::Bulk => "bulk",
            Kind::Other => "",
        }
    }
}

/// Named facts in output order.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts(pub(super) Vec<(&'static str, String)>);

impl Facts {
    pub(super) fn add(&mut self, name: &'static str, value: impl ToString) {
        self.0.push((name, value.to_string()));
    }

    /// Adds a fact unless it is empty or zero.
    pub(super) fn add_nonzero(&mut self, name: &'static str, value: impl ToString) {
        let value = value.to_string();
        if !value.is_empty() && value != "0" && value != "0x0" {
            self.0.push((name, value));
        }
    }
}

/// One line of output, for one message or other event of a connection.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// The capture time, in microseconds since 1970.
    pub(super) time_us: u64,
    pub(super) from: Nid,
    pub(super) to: Nid,
    pub(super) portal: Option<u32>,
    pub(super) xid: Option<u64>,
    pub(super) opcode: Option<u32>,
    /// Name of the opcode, of the LNet message, or of the event.
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) target: Option<String>,
    /// Status of a reply.
    pub(super) status: Option<i32>,
    /// Time from a request to its reply.
    pub(super) latency_us: Option<u64>,
    /// 0 if the message has none.
    pub(super) transno: u64,
    /// Length of the message's payload, or number of bytes that the capture lacks.
    pub(super) bytes: usize,
    pub(super) facts: Facts,
    /// A text for each buffer with all its fields; only in verbose output.
    pub(super) fields: Vec<String>,
}

impl Line {
    /// The line as text, with the time since `begin_us`.
    pub(super) fn text(&self, begin_us: u64) -> String {
        let since_us = self.time_us.saturating_sub(begin_us);
        let mut text = format!(
            "{:4}.{:06} {} > {}",
            since_us / 1_000_000,
            since_us % 1_000_000,
            self.from,
            self.to
        );
        if let Some(portal) = self.portal {
            let _ = write!(text, " p{portal}");
        }
        if let Some(xid) = self.xid {
            let _ = write!(text, " x{xid}");
        }
        let _ = write!(text, " {}", self.name);
        if self.kind != Kind::Other {
            let _ = write!(text, " {}", self.kind.word());
        }
        if let Some(target) = &self.target {
            let _ = write!(text, " {target}");
        }
        if let Some(status) = self.status {
            let _ = write!(text, " {}", status_text(self.opcode, status));
        }
        if let Some(latency) = self.latency_us {
            let _ = write!(text, " in {}", duration(latency));
        }
        if self.transno != 0 {
            let _ = write!(text, " transno={}", self.transno);
        }
        if matches!(self.kind, Kind::Bulk | Kind::Other) && self.bytes > 0 {
            let _ = write!(text, " {} bytes", self.bytes);
        }
        for (name, value) in &self.facts.0 {
            let quote = if value.is_empty() || value.contains(' ') {
                "\""
            } else {
                ""
            };
            let _ = write!(text, " {name}={quote}{value}{quote}");
        }
        for field in &self.fields {
            let _ = write!(text, "\n             {field}");
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let mut facts = Map::new();
        for (name, value) in &self.facts.0 {
            facts.insert((*name).to_owned(), Value::from(value.as_str()));
        }
        json!({
            "time_us": self.time_us,
            "from": self.from.to_string(),
            "to": self.to.to_string(),
            "portal": self.portal,
            "xid": self.xid,
            "opcode": self.opcode,
            "name": self.name,
            "kind": self.kind.word(),
            "target": self.target,
            "status": self.status,
            "error": self.status.and_then(Errno::from_status).and_then(Errno::name),
            "took_us": self.latency_us,
            "transno": self.transno,
            "bytes": self.bytes,
            "facts": facts,
            "fields": self.fields,
        })
    }
}

/// The text of a status: `ok`, the name of an errno, or in replies about locks the name of a lock
/// error (`ELDLM_*`). A status without a name stays a number.
pub(super) fn status_text(opcode: Option<u32>, status: i32) -> String {
    if let Some(errno) = Errno::from_status(status) {
        return errno.name().map_or(status.to_string(), |n| format!("-{n}"));
    }
    match (opcode, status) {
        (_, 0) => "ok".to_owned(),
        (Some(wire::LDLM_ENQUEUE | wire::LDLM_CONVERT | wire::LDLM_GL_CALLBACK), n) => {
            let known = super::names::value_name("ELDLM_", n as u64);
            known.unwrap_or_else(|| n.to_string())
        }
        (_, n) => n.to_string(),
    }
}

/// A duration in microseconds, milliseconds or seconds.
pub(super) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}us"),
        1_000..1_000_000 => format!("{:.1}ms", us as f64 / 1e3),
        _ => format!("{:.2}s", us as f64 / 1e6),
    }
}
