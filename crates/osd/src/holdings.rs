//! The records of the parts of a target in which clients may hold locks, open files or uncommitted
//! changes ([`rpc::Holdings`]).
//!
//! ```text
//! key    f0 'm' | client's number u32 BE | access u8 | group u64 BE | member u32 BE
//! value  version u8 = 1
//! ```
//!
//! `access` is 0 for reading and 1 for writing. `group` and `member` are all ones for all groups
//! and for all members.

use cpt::HashMap;
use rpc::{Access, Holdings, Mark};

use crate::{
    Batch, ClientRecords, Index, KEY_RESERVED, OsdError,
    check::{Progress, for_each_entry},
    clients::corrupt,
};

/// Prefix of the keys.
const PREFIX: [u8; 2] = [KEY_RESERVED, b'm'];
const VERSION: u8 = 1;

impl ClientRecords {
    /// Records a part in which a client may hold something, and removes the records for which this
    /// one stands. The record is on disk when this returns.
    ///
    /// # Errors
    ///
    /// [`OsdError::NotFound`] if the client has no record, or an error of the index.
    pub async fn add_holding(&self, uuid: &str, mark: Mark, replaced: &[Mark]) -> Result<(), OsdError> {
        let number = self.number(uuid).ok_or(OsdError::NotFound)?;
        let mut batch = Batch::new();
        batch.put(key(number, mark), vec![VERSION]);
        for mark in replaced {
            batch.delete(key(number, *mark));
        }
        self.index().apply(batch)?;
        self.index().sync().await
    }

    /// Replaces the records of the parts in which a client may hold something. A crash may bring
    /// the former records back.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub fn replace_holdings(&self, uuid: &str, before: &Holdings, now: &Holdings) -> Result<(), OsdError> {
        let Some(number) = self.number(uuid) else {
            return Ok(());
        };
        let (before, now) = (before.marks(), now.marks());
        let mut batch = Batch::new();
        for mark in before.iter().filter(|mark| now.binary_search(mark).is_err()) {
            batch.delete(key(number, *mark));
        }
        for mark in now.iter().filter(|mark| before.binary_search(mark).is_err()) {
            batch.put(key(number, *mark), vec![VERSION]);
        }
        self.index().apply(batch)
    }
}

/// Adds the removal of all records of a client to a batch.
pub(crate) async fn remove_all(index: &dyn Index, number: u32, batch: &mut Batch) -> Result<(), OsdError> {
    let of_client = [&PREFIX[..], &number.to_be_bytes()].concat();
    for_each_entry(index, &of_client, &Progress::default(), |key, _| {
        batch.delete(key);
        Ok(())
    })
    .await
}

/// The recorded parts by the number of the client. Adds the removal of records of clients that
/// `is_known` does not know to a batch.
pub(crate) async fn load(
    index: &dyn Index,
    is_known: impl Fn(u32) -> bool,
    ownerless: &mut Batch,
) -> Result<HashMap<u32, Holdings>, OsdError> {
    let mut all: HashMap<u32, Holdings> = HashMap::default();
    for_each_entry(index, &PREFIX, &Progress::default(), |key, value| {
        let (number, mark) = parse(&key).ok_or_else(|| {
            let why = format!("expected a key of 19 bytes, found {}", key.len());
            corrupt(&key, why)
        })?;
        if *value != [VERSION] {
            return Err(corrupt(
                &key,
                format!("expected version {VERSION}, found {value:?}"),
            ));
        }
        if is_known(number) {
            all.entry(number).or_default().add(mark);
        } else {
            ownerless.delete(key);
        }
        Ok(())
    })
    .await?;
    Ok(all)
}

/// Describes the record with this key; `None` if the key is not one of this module's.
pub(crate) fn record_name(key: &[u8]) -> Option<String> {
    let (number, mark) = parse(key)?;
    let access = match mark.access {
        Access::Read => "reads",
        Access::Write => "changes",
    };
    Some(format!(
        "client number {number} {access} group {:#x}, member {:#x}",
        mark.group, mark.member
    ))
}

fn key(number: u32, mark: Mark) -> Vec<u8> {
    let access = match mark.access {
        Access::Read => 0,
        Access::Write => 1,
    };
    [
        &PREFIX[..],
        &number.to_be_bytes(),
        &[access],
        &mark.group.to_be_bytes(),
        &mark.member.to_be_bytes(),
    ]
    .concat()
}

fn parse(key: &[u8]) -> Option<(u32, Mark)> {
    let (number, rest) = key.strip_prefix(&PREFIX)?.split_first_chunk()?;
    let (access, rest) = rest.split_first()?;
    let (group, member) = rest.split_first_chunk()?;
    let access = match access {
        0 => Access::Read,
        1 => Access::Write,
        _ => return None,
    };
    let mark = Mark {
        access,
        group: u64::from_be_bytes(*group),
        member: u32::from_be_bytes(member.try_into().ok()?),
    };
    Some((u32::from_be_bytes(*number), mark))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use rpc::{Access, Holdings, Mark, Part};
    use wire::Nid;

    use super::{PREFIX, record_name};
    use crate::{Batch, ClientRecords, Index, MemoryIndex, prefix_end};

    fn mark(access: Access, member: u32) -> Mark {
        let group = 0x2_0000_0401;
        Mark {
            access,
            group,
            member,
        }
    }

    async fn loaded(index: &Arc<dyn Index>) -> Vec<Vec<Mark>> {
        let records = ClientRecords::load(index.clone()).await.unwrap();
        let known = records.known(&[]).await.unwrap();
        known.iter().map(|client| client.holdings.marks()).collect()
    }

    #[tokio::test]
    async fn records_of_holdings_survive_until_they_are_replaced_or_the_client_is_forgotten() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let records = ClientRecords::load(index.clone()).await.unwrap();
        assert!(
            records
                .add_holding("a", mark(Access::Read, 1), &[])
                .await
                .is_err()
        );
        for uuid in ["a", "b"] {
            records.remember(uuid, Nid(5), false).await.unwrap();
        }
        let marks = [mark(Access::Read, 1), mark(Access::Write, 2)];
        records
            .add_holding("a", mark(Access::Write, 9), &[])
            .await
            .unwrap();
        records.add_holding("a", marks[0], &[]).await.unwrap();
        let replaced = [mark(Access::Write, 9)];
        records.add_holding("a", marks[1], &replaced).await.unwrap();
        records.add_holding("b", marks[0], &[]).await.unwrap();
        assert_eq!(loaded(&index).await, [marks.to_vec(), marks[..1].to_vec()]);
        let (mut before, mut now) = (Holdings::default(), Holdings::default());
        marks.into_iter().for_each(|mark| before.add(mark));
        let part = Part {
            group: marks[0].group,
            member: 3,
            is_new: false,
        };
        now.add_part(&part, Access::Write);
        records.replace_holdings("a", &before, &now).unwrap();
        assert_eq!(loaded(&index).await[0], [mark(Access::Write, 3)]);
        let number = records.forget("a").unwrap().unwrap();
        records.remove_traces(number).await.unwrap();
        let rows = index.scan(&PREFIX, &prefix_end(&PREFIX), 9).await.unwrap();
        assert_eq!(rows.len(), 1);
        // A crash between the removal of the client and that of its records.
        records.forget("b").unwrap();
        assert_eq!(loaded(&index).await, Vec::<Vec<Mark>>::new());
        assert!(
            index
                .scan(&PREFIX, &prefix_end(&PREFIX), 9)
                .await
                .unwrap()
                .is_empty()
        );
    }

    #[tokio::test]
    async fn malformed_record_is_an_error_that_names_it() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let mut batch = Batch::new();
        let key = super::key(7, mark(Access::Write, 2));
        batch.put(key.clone(), vec![9]);
        index.apply(batch).unwrap();
        let error = ClientRecords::load(index).await.err().unwrap().to_string();
        assert!(error.contains(&record_name(&key).unwrap()), "{error}");
        assert!(error.contains("expected version 1"), "{error}");
    }
}
