//! The classes of requests that the token bucket filter distinguishes.

use std::fmt;
use wire::{Nid, PtlrpcBody, Text};

/// The field that distinguishes classes: the argument of `tbf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    /// All fields.
    Generic,
    Nid,
    Jobid,
    Uid,
    Gid,
    Opcode,
}

impl KeyKind {
    /// The kinds of one field, with their names.
    const ALL: [(&'static str, KeyKind); 5] = [
        ("nid", KeyKind::Nid),
        ("jobid", KeyKind::Jobid),
        ("uid", KeyKind::Uid),
        ("gid", KeyKind::Gid),
        ("opcode", KeyKind::Opcode),
    ];

    /// Parses the argument; an empty one means `generic`.
    pub(crate) fn parse(text: &str) -> Result<KeyKind, String> {
        let by_name = |(name, kind): &(&str, KeyKind)| (*name == text).then_some(*kind);
        match text {
            "" | "generic" => Ok(KeyKind::Generic),
            _ => KeyKind::ALL.iter().find_map(by_name).ok_or_else(|| {
                format!("expected nid, jobid, uid, gid, opcode, or nothing after tbf, found '{text}'")
            }),
        }
    }

    /// The name of the kind.
    pub(crate) fn name(self) -> &'static str {
        let by_kind = |(name, kind): &(&'static str, KeyKind)| (*kind == self).then_some(*name);
        KeyKind::ALL.iter().find_map(by_kind).unwrap_or("generic")
    }

    /// Whether rules can use `field`.
    pub(super) fn allows_field(self, field: &str) -> bool {
        let is_field = KeyKind::ALL.iter().any(|(name, _)| *name == field);
        is_field && (self == KeyKind::Generic || self.name() == field)
    }

    /// The fields that rules can use.
    pub(super) fn fields(self) -> &'static str {
        match self {
            KeyKind::Generic => "nid, jobid, uid, gid, opcode",
            one => one.name(),
        }
    }

    /// The class of a request.
    pub(crate) fn key(self, from: Nid, body: &PtlrpcBody) -> Key {
        let selected = |kind| self == kind || self == KeyKind::Generic;
        Key {
            nid: selected(KeyKind::Nid).then_some(from),
            jobid: selected(KeyKind::Jobid).then_some(body.pb_jobid),
            uid: selected(KeyKind::Uid).then_some(body.pb_uid),
            gid: selected(KeyKind::Gid).then_some(body.pb_gid),
            opcode: selected(KeyKind::Opcode).then_some(body.pb_opc),
        }
    }
}

/// A class of requests: the values of the fields that distinguish classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Key {
    pub(crate) nid: Option<Nid>,
    pub(crate) jobid: Option<Text<32>>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) opcode: Option<u32>,
}

impl fmt::Display for Key {
    /// Formats the class like a rule's condition; the shared class of the filter as `others`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            ("nid", self.nid.map(|n| n.to_string())),
            ("jobid", self.jobid.map(|j| j.as_str().to_owned())),
            ("uid", self.uid.map(|n| n.to_string())),
            ("gid", self.gid.map(|n| n.to_string())),
            ("opcode", self.opcode.map(|o| crate::opname::name(o).to_string())),
        ];
        let parts = fields
            .iter()
            .filter_map(|(name, v)| Some(format!("{name}={{{}}}", v.as_ref()?)));
        match parts.collect::<Vec<_>>() {
            parts if parts.is_empty() => f.write_str("others"),
            parts => f.write_str(&parts.join("&")),
        }
    }
}
