//! The record of an object's attributes in the index: fixed layout, little-endian, first byte is
//! the version.
//!
//! ```text
//! key    f1 | sequence u64 BE | object id u32 BE
//! value  version u8 = 2 or 3 | atime s,ns | mtime s,ns | ctime s,ns (i64, u32 each)
//!        | uid u32 | gid u32 | projid u32
//!        | parent seq u64, oid u32, ver u32 | layout_version u32 | data_version u64
//!        | file u8: 1 if a sync of the object's file is recorded
//!        | size u64: minimum size of the file on disk
//!        | generation u32, only in version 3: the file's generation, else 0
//! ```

use wire::{Fid, Time};

use crate::{KEY_RESERVED, ObjAttr};

const VERSION: u8 = 2;
const VERSION_WITH_GENERATION: u8 = 3;
const SIZE: usize = SIZE_1 + 1 + 8;
const SIZE_3: usize = SIZE + 4;
/// Version 1 lacks `file` and `size`.
const SIZE_1: usize = 1 + 3 * 12 + 3 * 4 + 16 + 4 + 8;

/// Prefix of the records' keys.
pub(crate) const PREFIX: [u8; 1] = [KEY_RESERVED + 1];

pub(crate) fn key(fid: &Fid) -> Vec<u8> {
    key_of(PREFIX, fid)
}

/// The key of an object in the table with this prefix.
pub(super) fn key_of(prefix: [u8; 1], fid: &Fid) -> Vec<u8> {
    [&prefix[..], &fid.f_seq.to_be_bytes(), &fid.f_oid.to_be_bytes()].concat()
}

/// The object of the record with this key; `None` if the key is malformed.
pub(crate) fn fid_of(key: &[u8]) -> Option<Fid> {
    parse_key(PREFIX, key)
}

/// The object of a key in the table with this prefix; `None` if the key is malformed.
pub(super) fn parse_key(prefix: [u8; 1], key: &[u8]) -> Option<Fid> {
    let (seq, oid) = key.strip_prefix(&prefix)?.split_first_chunk::<8>()?;
    let oid = u32::from_be_bytes(oid.try_into().ok()?);
    Some(Fid::new(u64::from_be_bytes(*seq), oid, 0))
}

/// The contents of an object's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    /// The attributes; size and blocks are not in the record.
    pub(crate) attr: ObjAttr,
    /// Minimum size of the file on disk, bytes; `None` if no sync of the file is recorded.
    pub(crate) durable_size: Option<u64>,
    /// The generation whose name the file has ([`crate::target::Fence`]).
    pub(crate) generation: u32,
}

/// Encodes an object's record.
pub(super) fn write(record: &ObjectRecord) -> Vec<u8> {
    let ObjectRecord {
        attr: a,
        durable_size,
        generation,
    } = record;
    let mut r = Vec::with_capacity(SIZE_3);
    r.push(match generation {
        0 => VERSION,
        _ => VERSION_WITH_GENERATION,
    });
    for t in [a.atime, a.mtime, a.ctime] {
        r.extend(t.sec.to_le_bytes());
        r.extend(t.ns.to_le_bytes());
    }
    for n in [a.uid, a.gid, a.projid] {
        r.extend(n.to_le_bytes());
    }
    r.extend(a.parent.f_seq.to_le_bytes());
    for n in [a.parent.f_oid, a.parent.f_ver, a.layout_version] {
        r.extend(n.to_le_bytes());
    }
    r.extend(a.data_version.to_le_bytes());
    r.push(u8::from(durable_size.is_some()));
    r.extend(durable_size.unwrap_or(0).to_le_bytes());
    if *generation > 0 {
        r.extend(generation.to_le_bytes());
    }
    r
}

/// Decodes a record. The error says why it is malformed.
pub(crate) fn read(record: &[u8]) -> Result<ObjectRecord, String> {
    match (record.first(), record.len()) {
        (Some(1), SIZE_1) | (Some(&VERSION), SIZE) | (Some(&VERSION_WITH_GENERATION), SIZE_3) => {}
        (Some(v @ 1..=VERSION_WITH_GENERATION), len) => {
            return Err(format!("found {len} bytes of version {v}"));
        }
        (v, _) => {
            return Err(format!(
                "expected version 1 to {VERSION_WITH_GENERATION}, found {v:?}"
            ));
        }
    }
    let mut rest = &record[1..];
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        head.iter().rev().fold(0u64, |v, &b| v << 8 | u64::from(b))
    };
    let mut time = || Time::new(take(8) as i64, take(4) as u32);
    let (atime, mtime, ctime) = (time(), time(), time());
    let attr = ObjAttr {
        size: 0,
        blocks: 0,
        atime,
        mtime,
        ctime,
        uid: take(4) as u32,
        gid: take(4) as u32,
        projid: take(4) as u32,
        parent: Fid {
            f_seq: take(8),
            f_oid: take(4) as u32,
            f_ver: take(4) as u32,
        },
        layout_version: take(4) as u32,
        data_version: take(8),
    };
    let (mut durable_size, mut generation) = (None, 0);
    if record.len() >= SIZE {
        let is_recorded = take(1) != 0;
        durable_size = Some(take(8)).filter(|_| is_recorded);
    }
    if record.len() == SIZE_3 {
        generation = take(4) as u32;
    }
    Ok(ObjectRecord {
        attr,
        durable_size,
        generation,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn record_round_trips() {
        let a = ObjAttr {
            atime: Time::new(-1, 2),
            mtime: Time::new(i64::MAX, 999_999_999),
            ctime: Time::new(5, 6),
            uid: 7,
            gid: 8,
            projid: 9,
            parent: Fid {
                f_seq: 0x2_0000_0400,
                f_oid: 3,
                f_ver: 1,
            },
            layout_version: 10,
            data_version: 11 << 32,
            ..ObjAttr::default()
        };
        let states = [None, Some(0), Some(u64::MAX - 1)]
            .map(|durable_size| [0, 1, u32::MAX].map(|g| (durable_size, g)));
        for (durable_size, generation) in states.into_iter().flatten() {
            let record = ObjectRecord {
                attr: a,
                durable_size,
                generation,
            };
            let r = write(&record);
            assert_eq!(r.len(), if generation == 0 { SIZE } else { SIZE_3 });
            assert_eq!(read(&r).unwrap(), record);
            for n in 0..r.len() {
                assert!(read(&r[..n]).is_err());
            }
            let mut old = r[..SIZE_1].to_vec();
            old[0] = 1;
            let old_record = ObjectRecord {
                attr: a,
                ..ObjectRecord::default()
            };
            assert_eq!(read(&old).unwrap(), old_record);
        }
    }
}
