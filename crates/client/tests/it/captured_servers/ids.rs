//! Identifiers that each side chooses itself: FIDs of new files, handles of locks, connections and
//! open files. Maps the identifiers of this run to the captured identifiers.

use bytes::Bytes;
use wire::format::{Rqf, Value, leaves};
use wire::{Fid, LdlmResId, Message, OstId, WireStruct};

/// Pairs of identifiers: ours (this run's), and theirs (the captured client's or server's).
#[derive(Debug, Default)]
pub struct Ids {
    fids: Vec<(Fid, Fid)>,
    handles: Vec<(u64, u64)>,
}

/// The side for which a message is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Our client.
    Ours,
    /// The captured nodes.
    Theirs,
}

impl Ids {
    pub fn learn_fid(&mut self, ours: Fid, theirs: Fid) {
        if !ours.is_zero() && ours != theirs {
            self.fids.retain(|(o, t)| *o != ours && *t != theirs);
            self.fids.push((ours, theirs));
        }
    }

    pub fn learn_handle(&mut self, ours: u64, theirs: u64) {
        if ours != 0 && theirs != 0 && ours != theirs {
            self.handles.retain(|(o, _)| *o != ours);
            self.handles.push((ours, theirs));
        }
    }

    fn fid(&self, to: Side, fid: Fid) -> Option<Fid> {
        match to {
            Side::Theirs => self.fids.iter().rev().find(|p| p.0 == fid).map(|p| p.1),
            Side::Ours => self.fids.iter().rev().find(|p| p.1 == fid).map(|p| p.0),
        }
    }

    /// The corresponding handle on side `to`. If one of their handles corresponds to several of
    /// ours, the newest.
    pub fn handle(&self, to: Side, handle: u64) -> Option<u64> {
        match to {
            Side::Theirs => self.handles.iter().rev().find(|p| p.0 == handle).map(|p| p.1),
            Side::Ours => self.handles.iter().rev().find(|p| p.1 == handle).map(|p| p.0),
        }
    }

    /// A message with the identifiers of side `to`. The `ptlrpc_body` stays as it is.
    pub fn message(&self, to: Side, format: &Rqf, is_reply: bool, msg: &Message) -> Message {
        let bufs = if is_reply { format.reply } else { format.request };
        let mut out = msg.clone();
        for (rmf, buf) in bufs.iter().zip(&mut out.bufs).skip(1) {
            let mut bytes = buf.to_vec();
            let Ok(leaves) = leaves(*rmf, format.opcode, buf) else {
                continue;
            };
            for leaf in &leaves {
                let Some(field) = bytes.get_mut(leaf.at.clone()) else {
                    continue;
                };
                match &leaf.value {
                    Value::Fid(fid) => {
                        if let Some(other) = self.fid(to, *fid) {
                            field.copy_from_slice(&other.to_bytes());
                        }
                    }
                    Value::Resource(res) => {
                        if let Some(other) = self.fid(to, Fid::from_res_id(res)) {
                            let name = other.res_id().name;
                            let name = [name[0], name[1], res.name[2], res.name[3]];
                            field.copy_from_slice(&LdlmResId { name }.to_bytes());
                        }
                    }
                    Value::OstId(id) => {
                        // A layout has the file's FID with its halves swapped.
                        let fid = Fid::new(id.oi_seq, id.oi_id as u32, 0);
                        if let Some(other) = self.fid(to, fid) {
                            let (oi_id, oi_seq) = (u64::from(other.f_oid), other.f_seq);
                            field.copy_from_slice(&OstId { oi_id, oi_seq }.to_bytes());
                        }
                    }
                    Value::Number(n) if field.len() == 8 => {
                        if let Some(other) = self.handle(to, *n) {
                            field.copy_from_slice(&other.to_le_bytes());
                        }
                    }
                    _ => {}
                }
            }
            self.replace_parent_fid(to, &leaves, &mut bytes);
            *buf = bytes.into();
        }
        out
    }

    /// Replaces the FID of an object's file, which is spread over three fields.
    fn replace_parent_fid(&self, to: Side, leaves: &[wire::format::Leaf], bytes: &mut [u8]) {
        let number = |name: &str| {
            let leaf = leaves.iter().find(|l| l.name() == name)?;
            match leaf.value {
                Value::Number(n) => Some((leaf.at.clone(), n)),
                _ => None,
            }
        };
        let parts = (
            number("o_parent_seq"),
            number("o_parent_oid"),
            number("o_parent_ver"),
        );
        if let (Some(seq), Some(oid), Some(ver)) = parts
            && let Some(other) = self.fid(to, Fid::new(seq.1, oid.1 as u32, ver.1 as u32))
        {
            bytes[seq.0].copy_from_slice(&other.f_seq.to_le_bytes());
            bytes[oid.0].copy_from_slice(&other.f_oid.to_le_bytes());
            bytes[ver.0].copy_from_slice(&other.f_ver.to_le_bytes());
        }
    }

    /// Directory pages with our FIDs.
    pub fn pages(&self, pages: &Bytes) -> Bytes {
        let mut out = pages.to_vec();
        for at in (0..out.len().saturating_sub(15)).step_by(8) {
            let candidate = &mut out[at..at + 16];
            if let Some(ours) = Fid::from_bytes(candidate)
                .ok()
                .and_then(|fid| self.fid(Side::Ours, fid))
            {
                candidate.copy_from_slice(&ours.to_bytes());
            }
        }
        out.into()
    }
}
