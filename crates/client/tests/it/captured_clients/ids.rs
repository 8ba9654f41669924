//! Maps captured identifiers to the identifiers of this run. The test learns a pair at its first
//! occurrence; each further occurrence must match the pair.

use std::collections::HashMap;
use wire::format::{Leaf, Value};
use wire::{FID_SEQ_NORMAL, Fid, LdlmResId, OstId};

/// Upper limit of sequences. A larger number where a sequence is expected is something else, such
/// as a part of a log name.
const SEQ_MAX: u64 = 1 << 40;

/// The kind of a field. Comparison and rewriting treat each kind differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Cookie of a lock, an open file or a connection.
    Handle,
    /// Identifier of a file, an object, or a lock resource.
    Identity,
    /// A sequence of FIDs.
    Sequence,
    /// Transaction number or version. Two of them match if both are zero or neither is.
    Transaction,
    /// Seconds since 1970.
    Time,
    /// Any other field, compared by value.
    Plain,
}

/// The kind of a field, by its name.
pub(crate) fn kind(leaf: &Leaf) -> Kind {
    match (leaf.name(), &leaf.value) {
        (_, Value::Fid(_) | Value::OstId(_) | Value::Resource(_)) => Kind::Identity,
        ("cookie" | "lock_handle", _) => Kind::Handle,
        ("o_parent_seq" | "lsr_start" | "lsr_end", _) => Kind::Sequence,
        ("pb_transno" | "pb_last_committed" | "pb_pre_versions" | "mbo_version", _) => Kind::Transaction,
        (
            "mbo_mtime" | "mbo_atime" | "mbo_ctime" | "mbo_btime" | "lvb_mtime" | "lvb_atime" | "lvb_ctime"
            | "o_mtime" | "o_atime" | "o_ctime",
            _,
        ) => Kind::Time,
        _ => Kind::Plain,
    }
}

/// The known pairs. Each map, except `captured_fids`, has this run's identifiers by the captured
/// identifiers.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    handles: HashMap<u64, u64>,
    sequences: HashMap<u64, u64>,
    fids: HashMap<Fid, Fid>,
    /// The reverse of `fids`.
    captured_fids: HashMap<Fid, Fid>,
    /// Log names.
    logs: HashMap<OstId, OstId>,
}

/// An identifier without a pair in the run so far.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnknownId(pub(crate) String);

impl Ids {
    /// Records that this run uses the captured handle unchanged, because the client chose it.
    pub(crate) fn map_to_itself(&mut self, handle: u64) {
        self.handles.insert(handle, handle);
    }

    /// The FID of this run for a captured FID.
    pub(crate) fn fid(&self, captured: Fid) -> Result<Fid, UnknownId> {
        if !captured.is_normal() || captured.f_seq > SEQ_MAX {
            return Ok(captured);
        }
        self.fids
            .get(&captured)
            .copied()
            .ok_or_else(|| UnknownId(format!("FID {captured}")))
    }

    /// Maps a FID that a client allocates from a granted sequence.
    pub(crate) fn allocate_fid(&mut self, captured: Fid) -> Result<Fid, UnknownId> {
        if let Ok(known) = self.fid(captured) {
            return Ok(known);
        }
        let seq = self.sequence(captured.f_seq)?;
        let fid = Fid {
            f_seq: seq,
            ..captured
        };
        self.learn_fid(captured, fid);
        Ok(fid)
    }

    /// The sequence of this run for a captured sequence.
    fn sequence(&self, captured: u64) -> Result<u64, UnknownId> {
        if !(FID_SEQ_NORMAL..SEQ_MAX).contains(&captured) {
            return Ok(captured);
        }
        self.sequences
            .get(&captured)
            .copied()
            .ok_or_else(|| UnknownId(format!("sequence {captured:#x}")))
    }

    /// Whether the two FIDs correspond; learns a new pair.
    fn learn_fid(&mut self, captured: Fid, ours: Fid) -> bool {
        if let Ok(known) = self.fid(captured) {
            return known == ours;
        }
        if self.captured_fids.contains_key(&ours) {
            return false;
        }
        self.fids.insert(captured, ours);
        self.captured_fids.insert(ours, captured);
        self.learn_sequence(captured.f_seq, ours.f_seq);
        true
    }

    fn learn_sequence(&mut self, captured: u64, ours: u64) -> bool {
        match self.sequence(captured) {
            Ok(known) => known == ours,
            Err(_) => {
                self.sequences.insert(captured, ours);
                true
            }
        }
    }

    fn learn_handle(&mut self, captured: u64, ours: u64) -> bool {
        if captured == 0 || ours == 0 {
            return captured == ours;
        }
        *self.handles.entry(captured).or_insert(ours) == ours
    }

    /// Whether our value corresponds to the captured one; learns a new pair.
    pub(crate) fn learn_pair(&mut self, kind: Kind, captured: &Value, ours: &Value) -> bool {
        match (kind, captured, ours) {
            (Kind::Handle, Value::Number(c), Value::Number(o)) => self.learn_handle(*c, *o),
            (Kind::Sequence, Value::Number(c), Value::Number(o)) => self.learn_sequence(*c, *o),
            (Kind::Transaction, Value::Number(c), Value::Number(o)) => (*c == 0) == (*o == 0),
            (_, Value::Fid(c), Value::Fid(o)) => self.learn_fid(*c, *o),
            (_, Value::OstId(c), Value::OstId(o)) => match (as_fid(*c), as_fid(*o)) {
                (Some((c, form)), Some((o, other))) => form == other && self.learn_fid(c, o),
                // An ID that is not a FID is a log name.
                _ if *c == OstId::default() || *o == OstId::default() => c == o,
                _ => *self.logs.entry(*c).or_insert(*o) == *o,
            },
            (_, Value::Resource(c), Value::Resource(o)) => {
                self.learn_fid(Fid::from_res_id(c), Fid::from_res_id(o)) && c.name[2..] == o.name[2..]
            }
            _ => captured == ours,
        }
    }

    /// The value to send instead of a captured value; `None`: the captured value itself.
    pub(crate) fn translate(&self, kind: Kind, captured: &Value) -> Result<Option<Value>, UnknownId> {
        Ok(Some(match (kind, captured) {
            (Kind::Handle, Value::Number(0)) => return Ok(None),
            (Kind::Handle, Value::Number(h)) => {
                let known = self
                    .handles
                    .get(h)
                    .ok_or_else(|| UnknownId(format!("handle {h:#x}")))?;
                Value::Number(*known)
            }
            (Kind::Sequence, Value::Number(seq)) => Value::Number(self.sequence(*seq)?),
            (_, Value::Fid(fid)) => Value::Fid(self.fid(*fid)?),
            (_, Value::OstId(id)) => match as_fid(*id) {
                None => Value::OstId(self.logs.get(id).copied().unwrap_or(*id)),
                Some((fid, false)) => Value::OstId(self.fid(fid)?.into()),
                Some((fid, true)) => {
                    let fid = self.fid(fid)?;
                    Value::OstId(OstId {
                        oi_id: fid.f_oid.into(),
                        oi_seq: fid.f_seq,
                    })
                }
            },
            (_, Value::Resource(res)) => {
                let fid = self.fid(Fid::from_res_id(res))?.res_id();
                Value::Resource(LdlmResId {
                    name: [fid.name[0], fid.name[1], res.name[2], res.name[3]],
                })
            }
            _ => return Ok(None),
        }))
    }
}

/// The FID in an object's ID, and whether its halves are swapped as in a layout's file ID.
fn as_fid(id: OstId) -> Option<(Fid, bool)> {
    if (FID_SEQ_NORMAL..SEQ_MAX).contains(&id.oi_id) {
        return Some((id.fid(), false));
    }
    (FID_SEQ_NORMAL..SEQ_MAX)
        .contains(&id.oi_seq)
        .then(|| (Fid::new(id.oi_seq, id.oi_id as u32, 0), true))
}

/// Encodes a value; a number in `len` bytes.
pub(crate) fn bytes_of(value: &Value, len: usize) -> Vec<u8> {
    use wire::WireStruct;
    match value {
        Value::Number(n) => n.to_le_bytes()[..len].to_vec(),
        Value::Fid(fid) => fid.to_bytes().to_vec(),
        Value::OstId(id) => id.to_bytes().to_vec(),
        Value::Resource(res) => res.to_bytes().to_vec(),
        Value::Text(bytes) | Value::Bytes(bytes) => bytes.clone(),
    }
}
