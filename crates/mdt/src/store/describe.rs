//! Changes of an MDT's records as text, for `nacre debug journal`.

use bytes::Bytes;
use wire::{Errno, LuSeqRange, WireStruct as _};

use super::{Inode, Work, data::decode_attr, decode_entry, keys};
use crate::osp::pool::LastUsedId;

/// Describes a change of a record; `value` is `None` if the record is removed. `None` for a key of
/// an unknown form.
pub fn describe(key: &Bytes, value: Option<&Bytes>) -> Option<String> {
    let record = record_name(key)?;
    let contents = value.map(|value| contents(key, value));
    Some(osd::describe_change(&record, contents))
}

/// The record with this key.
fn record_name(key: &Bytes) -> Option<String> {
    Some(match *key.first()? {
        b'i' => format!("inode {}", keys::fid(key)?),
        b'd' => {
            let (_, name) = keys::entry_name(key)?;
            format!("entry {}/{}", keys::fid(key)?, name.escape_ascii())
        }
        b'x' => {
            let name = keys::xattr_name(key);
            format!("attribute {} of {}", name.escape_ascii(), keys::fid(key)?)
        }
        b'b' => match keys::block(key) {
            Some(block) => format!("data of {}, block {block}", keys::fid(key)?),
            None => format!("data of {}", keys::fid(key)?),
        },
        b'o' => format!("orphan {}", keys::fid(key)?),
        b'q' => {
            let (ost, object) = keys::work_parts(key)?;
            format!("work of OST{:04x} on object {object}", ost.0)
        }
        b'u' => format!("objects of OST{:04x}", keys::objects_ost(key)?.0),
        b'f' => format!("sequences from {:#x}", number(key.get(1..)?)?),
        b'm' => format!("setting {}", key.get(1..)?.escape_ascii()),
        b'r' => {
            let (coordinator, number) = keys::update_parts(key)?;
            format!("update {number:#x} of MDT{coordinator:04x}")
        }
        _ => return None,
    })
}

fn number(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

fn contents(key: &Bytes, value: &Bytes) -> Result<String, Errno> {
    Ok(match key.first() {
        Some(b'i') => describe_inode(&Inode::decode(value)?),
        Some(b'd') => {
            let entry = decode_entry(value)?;
            format!("{}, type {:o}", entry.fid, entry.kind)
        }
        Some(b'q') => format!("{:?}", Work::decode(value)?),
        Some(b'u') => {
            let id = LastUsedId::decode(value)?;
            format!("sequence {:#x}, last used id {:#x}", id.seq, id.used)
        }
        Some(b'f') => {
            let range = LuSeqRange::from_bytes(value)?;
            format!("to {:#x}, of target {}", range.lsr_end, range.lsr_index)
        }
        Some(b'b') if keys::block(key).is_none() => {
            let attr = decode_attr(value)?;
            format!("transaction {:#x}, size {}", attr.data_version, attr.size)
        }
        _ => format!("{} bytes", value.len()),
    })
}

fn describe_inode(inode: &Inode) -> String {
    format!(
        "transaction {:#x}, mode {:o}, uid {}, gid {}, links {}, size {}, layout of {} bytes",
        inode.version,
        inode.mode,
        inode.uid,
        inode.gid,
        inode.nlink,
        inode.size,
        inode.lov.len()
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use osd::Batch;
    use wire::{Fid, OstIndex, Time, Transno};

    use super::describe;
    use crate::layout::StripeObject;
    use crate::store::{Change, Entry, Inode, S_IFREG};

    #[test]
    fn each_mutation_has_a_description() {
        let (dir, fid) = (Fid::ROOT, Fid::new(0x2_0000_0401, 7, 0));
        let object = StripeObject {
            ost: OstIndex(1),
            fid: Fid::new(0x2_8000_0401, 9, 0),
        };
        let inode = Inode {
            mode: S_IFREG | 0o644,
            nlink: 1,
            mtime: Time::secs(5),
            ..Inode::default()
        };
        let mut change = Change::new();
        change.make_inode(fid, &inode);
        change.add_entry(dir, b"a\n", Entry { fid, kind: S_IFREG });
        change.remove_entry(dir, b"b");
        change.set_xattr(fid, b"user.x", "value".into());
        change.add_orphan(fid);
        change.queue_destroy(object);
        let mut batch = Batch::new();
        for mutation in &mut change.mutations {
            mutation.set_version(Transno(17));
            mutation.add_records(Transno(17), &mut batch);
        }
        let puts = batch.puts.iter().map(|(key, value)| (key, Some(value)));
        let deletes = batch.deletes.iter().map(|key| (key, None));
        let lines: Vec<String> = puts
            .chain(deletes)
            .map(|(k, v)| describe(k, v).unwrap())
            .collect();
        assert_eq!(
            lines,
            [
                "set inode [0x200000401:0x7:0x0]: transaction 0x11, mode 100644, uid 0, gid 0, links 1, size 0, layout of 0 bytes",
                "set entry [0x200000007:0x1:0x0]/a\\n: [0x200000401:0x7:0x0], type 100000",
                "set attribute user.x of [0x200000401:0x7:0x0]: 5 bytes",
                "set orphan [0x200000401:0x7:0x0]: 0 bytes",
                "set work of OST0001 on object [0x280000401:0x9:0x0]: Destroy",
                "remove entry [0x200000007:0x1:0x0]/b",
            ]
        );
    }

    #[test]
    fn malformed_and_unknown_records_are_described() {
        let key = super::keys::inode(Fid::ROOT);
        let text = describe(&key, Some(&"?".into())).unwrap();
        assert!(
            text.starts_with("set inode [0x200000007:0x1:0x0]: malformed: "),
            "{text}"
        );
        assert_eq!(describe(&"zebra".into(), None), None);
        assert_eq!(describe(&"i".into(), None), None);
    }
}
