//! Changes of the store's own records as text, for `nacre debug journal`.

use std::fmt;

use bytes::Bytes;

use crate::{
    Transactions, clients,
    index::KEY_COPY,
    local_objects::{
        checksums::{MARK_PREFIX, REGION_PREFIX, parse_key},
        object_marks, record,
    },
};

/// Describes a change of a record that this crate keeps in the index; `value` is `None` if the
/// record is removed. `None` for a record of the index's user.
pub fn describe(key: &Bytes, value: Option<&Bytes>) -> Option<String> {
    let record = record_name(key)?;
    Some(describe_change(&record, value.map(|value| contents(key, value))))
}

/// The text of a change: the record, and its new contents or the reason why they are malformed;
/// `None` if the record is removed.
pub fn describe_change<E: fmt::Display>(record: &str, contents: Option<Result<String, E>>) -> String {
    match contents {
        None => format!("remove {record}"),
        Some(Ok(contents)) => format!("set {record}: {contents}"),
        Some(Err(why)) => format!("set {record}: malformed: {why}"),
    }
}

fn record_name(key: &Bytes) -> Option<String> {
    if key[..] == Transactions::KEY {
        return Some("transactions".into());
    }
    if let Some(name) = clients::record_name(key) {
        return Some(name);
    }
    if let Some(fid) = record::fid_of(key) {
        return Some(format!("attributes of object {fid}"));
    }
    if let Some((fid, region)) = parse_key(REGION_PREFIX, key) {
        return Some(format!("checksums of MiB {region} of object {fid}"));
    }
    if let Some(fid) = object_marks::fid_of(key) {
        return Some(format!("mark of change of object {fid}"));
    }
    if let Some((fid, window)) = parse_key(MARK_PREFIX, key) {
        return Some(format!("mark of change of window {window} of object {fid}"));
    }
    let copied = key.strip_prefix(&[KEY_COPY])?;
    Some(format!("copy of record {}", copied.escape_ascii()))
}

fn contents(key: &Bytes, value: &Bytes) -> Result<String, String> {
    if key[..] == Transactions::KEY {
        let (committed, epoch) = Transactions::parse_record(value)?;
        return Ok(format!("committed {:#x}, epoch {epoch}", committed.0));
    }
    if let Some(contents) = clients::contents(key, value) {
        return contents;
    }
    if record::fid_of(key).is_none() {
        return Ok(format!("{} bytes", value.len()));
    }
    let record::ObjectRecord {
        attr,
        durable_size,
        generation,
    } = record::read(value)?;
    let generation = match generation {
        0 => String::new(),
        n => format!(", file of generation {n}"),
    };
    Ok(format!(
        "uid {}, gid {}, modified {}, stripe {} of {}, at least {} bytes on disk{generation}",
        attr.uid,
        attr.gid,
        attr.mtime.sec,
        attr.parent.f_ver,
        attr.parent,
        durable_size.unwrap_or(0)
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use wire::{Fid, Transno, Xid};

    use super::describe;
    use crate::{Batch, Transactions, clients, local_objects::record};

    #[test]
    fn own_records_have_descriptions_and_others_none() {
        let transactions = Transactions::restore(Transno(0x1_0000_0005), 2);
        let epoch = transactions.epoch();
        let value = transactions.record(transactions.committed()).to_vec().into();
        assert_eq!(
            describe(&Bytes::from_static(&Transactions::KEY), Some(&value)).unwrap(),
            format!("set transactions: committed 0x100000005, epoch {epoch}")
        );
        let object = Bytes::from(record::key(&Fid::new(0x2_8000_0400, 5, 0)));
        assert_eq!(
            describe(&object, None).unwrap(),
            "remove attributes of object [0x280000400:0x5:0x0]"
        );
        let mut kept = Batch::new();
        let reply = rpc::KeptReply {
            tag: 3,
            xid: Xid(0x80),
            transno: Transno(0x1_0000_0006),
            status: -17,
            data: 0,
            pre_versions: [0; 4],
        };
        clients::keep_reply(&mut kept, 9, &reply);
        let (key, value) = &kept.puts[0];
        assert_eq!(
            describe(key, Some(value)).unwrap(),
            "set reply kept for slot 3 of client number 9: request 0x80, transaction 0x100000006, status -17"
        );
        let client = Bytes::from_static(b"\xf0csome-uuid");
        assert_eq!(describe(&client, None).unwrap(), "remove client some-uuid");
        let malformed = describe(&object, Some(&"?".into())).unwrap();
        assert!(
            malformed.contains("malformed: expected version 1 to 3"),
            "{malformed}"
        );
        assert_eq!(describe(&"zebra".into(), None), None);
    }
}
