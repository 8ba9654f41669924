//! The records of a target's clients, and the replies that the target keeps for them.
//!
//! After a restart the target waits for the clients that it knew, so that they can recover. A
//! client's record is on disk before the target's reply to the client's first connect. The record
//! gives the client a number, which is part of the keys of the client's kept replies. A reply is
//! kept in the batch of its operation, so a crash keeps both or neither. Each slot of a client
//! (`pb_tag`) has one kept reply: that of its last request which changed the target. The records of
//! what a client may hold are in [`holdings`].
//!
//! ```text
//! key    f0 'c' | the client's UUID
//! value  version u8 = 1 | number u32 | NID u64 | u8: 1 for a client of Lustre
//! key    f0 'r' | number u32 BE | slot u16 BE
//! value  version u8 = 1 | xid u64 | transaction u64 | status i32 | data u64 | 4 versions u64
//! ```
//!
//! The numbers in values are little-endian.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use cpt::HashMap;
use parking_lot::Mutex;
use rpc::{KeptReply, KnownClient};
use wire::{Nid, Transno, Xid};

use crate::{
    Batch, Index, KEY_RESERVED, OsdError,
    check::{Progress, for_each_entry},
    holdings,
};

/// Prefix of the keys of clients.
const CLIENT_PREFIX: [u8; 2] = [KEY_RESERVED, b'c'];
/// Prefix of the keys of kept replies.
const REPLY_PREFIX: [u8; 2] = [KEY_RESERVED, b'r'];
/// The key of the NIDs of the target's server.
const SERVER_KEY: [u8; 2] = [KEY_RESERVED, b's'];
const VERSION: u8 = 1;
const CLIENT_BYTES: usize = 1 + 4 + 8 + 1;
const REPLY_BYTES: usize = 1 + 8 + 8 + 4 + 8 + 4 * 8;

/// The records of the clients of one target.
pub struct ClientRecords {
    index: Arc<dyn Index>,
    numbers: Mutex<Numbers>,
}

/// The numbers of the clients that have records.
#[derive(Default)]
struct Numbers {
    by_uuid: HashMap<String, u32>,
    /// No client of this start has had this number or a higher one. A number is not given again:
    /// a request of a forgotten client may still keep a reply under it.
    next: u32,
}

impl ClientRecords {
    /// Reads the records from the target's index, and removes kept replies without a client.
    ///
    /// # Errors
    ///
    /// [`OsdError::Corrupt`] if a record is malformed, or an error of the index.
    pub async fn load(index: Arc<dyn Index>) -> Result<ClientRecords, OsdError> {
        let mut numbers = Numbers::default();
        for_each_client(&*index, |uuid, client| {
            numbers.next = numbers.next.max(client.number.saturating_add(1));
            numbers.by_uuid.insert(uuid, client.number);
        })
        .await?;
        let in_use: cpt::HashSet<u32> = numbers.by_uuid.values().copied().collect();
        let mut ownerless = Batch::new();
        for_each_reply(&*index, |number, reply| {
            if !in_use.contains(&number) {
                ownerless.delete(reply_key(number, reply.tag));
            }
        })
        .await?;
        holdings::load(&*index, |number| in_use.contains(&number), &mut ownerless).await?;
        if !ownerless.is_empty() {
            index.apply(ownerless)?;
        }
        Ok(ClientRecords {
            index,
            numbers: Mutex::new(numbers),
        })
    }

    /// The clients that have records, with their kept replies, in the order of their UUIDs.
    /// `server`: the NIDs of the target's server. If they are others than those of
    /// [`ClientRecords::record_server`], the target has moved, and its clients notice that late.
    ///
    /// # Errors
    ///
    /// As [`ClientRecords::load`].
    pub async fn known(&self, server: &[Nid]) -> Result<Vec<KnownClient>, OsdError> {
        let has_moved = self.has_moved_to(server).await?;
        let mut replies: HashMap<u32, Vec<KeptReply>> = HashMap::default();
        for_each_reply(&*self.index, |number, reply| {
            replies.entry(number).or_default().push(reply);
        })
        .await?;
        let mut holdings = holdings::load(&*self.index, |_| true, &mut Batch::new()).await?;
        let mut known = Vec::new();
        for_each_client(&*self.index, |uuid, client| {
            known.push(KnownClient {
                uuid,
                nid: client.nid,
                notices_late: client.is_lustre || has_moved,
                replies: replies.remove(&client.number).unwrap_or_default(),
                holdings: holdings.remove(&client.number).unwrap_or_default(),
            });
        })
        .await?;
        Ok(known)
    }

    /// Whether the recorded server had none of these NIDs.
    async fn has_moved_to(&self, nids: &[Nid]) -> Result<bool, OsdError> {
        let recorded = self.index.get(&SERVER_KEY).await?;
        let is_own = |nid: &[u8]| nids.iter().any(|own| own.0.to_le_bytes() == nid);
        Ok(recorded.is_some_and(|recorded| !recorded.chunks(size_of::<u64>()).any(is_own)))
    }

    /// Records the NIDs of the target's server. Call it when recovery has ended: if the server
    /// restarts before, the clients of the former server may still have to notice the move.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub async fn record_server(&self, nids: &[Nid]) -> Result<(), OsdError> {
        let value: Vec<u8> = nids.iter().flat_map(|nid| nid.0.to_le_bytes()).collect();
        if self.index.get(&SERVER_KEY).await?.as_deref() == Some(&value) {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.put(SERVER_KEY.to_vec(), value);
        self.index.apply(batch)
    }

    pub(crate) fn index(&self) -> &Arc<dyn Index> {
        &self.index
    }

    /// The number of a client that has a record.
    pub fn number(&self, uuid: &str) -> Option<u32> {
        self.numbers.lock().by_uuid.get(uuid).copied()
    }

    /// Makes a record of a client unless there is one. The record is on disk when this returns.
    ///
    /// # Errors
    ///
    /// An error of the index.
    pub async fn remember(&self, uuid: &str, nid: Nid, is_lustre: bool) -> Result<(), OsdError> {
        // The lock must end here: a failure below takes it again.
        let added = self.numbers.lock().add(uuid);
        if let Some(number) = added {
            let client = Client {
                number,
                nid,
                is_lustre,
            };
            let mut batch = Batch::new();
            batch.put_twice(client_key(uuid), client.to_bytes());
            if let Err(e) = self.index.apply(batch) {
                self.numbers.lock().by_uuid.remove(uuid);
                return Err(e);
            }
        }
        self.index.sync().await
    }

    /// Removes the record of a client, if it has one. A crash may bring it back. Returns the
    /// client's number, for [`ClientRecords::remove_traces`].
    ///
    /// # Errors
    ///
    /// An error of the index. The record then stays until the next start.
    pub fn forget(&self, uuid: &str) -> Result<Option<u32>, OsdError> {
        let Some(number) = self.numbers.lock().by_uuid.remove(uuid) else {
            return Ok(None);
        };
        let mut batch = Batch::new();
        batch.delete_twice(client_key(uuid));
        self.index.apply(batch)?;
        Ok(Some(number))
    }

    /// Removes the kept replies of a client that had this number and is forgotten, and the records
    /// of what it held.
    ///
    /// # Errors
    ///
    /// An error of the index. The records then stay until the next start.
    pub async fn remove_traces(&self, number: u32) -> Result<(), OsdError> {
        let mut batch = Batch::new();
        let of_client = [&REPLY_PREFIX[..], &number.to_be_bytes()].concat();
        for_each_entry(&*self.index, &of_client, &Progress::default(), |key, _| {
            batch.delete(key);
            Ok::<(), OsdError>(())
        })
        .await?;
        holdings::remove_all(&*self.index, number, &mut batch).await?;
        self.index.apply(batch)
    }
}

impl Numbers {
    /// Gives a client a number, unless it has one.
    fn add(&mut self, uuid: &str) -> Option<u32> {
        if self.by_uuid.contains_key(uuid) {
            return None;
        }
        while self.by_uuid.values().any(|&n| n == self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.by_uuid.insert(uuid.to_owned(), number);
        Some(number)
    }
}

/// Adds the reply to an operation to the operation's batch. `number` is that of the client
/// ([`ClientRecords::number`]).
pub fn keep_reply(batch: &mut Batch, number: u32, reply: &KeptReply) {
    batch.put(reply_key(number, reply.tag), reply_to_bytes(reply));
}

/// Describes the record with this key; `None` if the key is not one of this module's.
pub(crate) fn record_name(key: &[u8]) -> Option<String> {
    if let Some(uuid) = key.strip_prefix(&CLIENT_PREFIX) {
        return Some(format!("client {}", uuid.escape_ascii()));
    }
    if key == SERVER_KEY {
        return Some("NIDs of the server".into());
    }
    if let Some(name) = holdings::record_name(key) {
        return Some(name);
    }
    let (number, tag) = parse_reply_key(key)?;
    Some(format!("reply kept for slot {tag} of client number {number}"))
}

/// The contents of a record of this module as text. The error says why the record is malformed;
/// `None` if the key is not one of this module's.
pub(crate) fn contents(key: &[u8], value: &[u8]) -> Option<Result<String, String>> {
    if key.starts_with(&CLIENT_PREFIX) {
        return Some(Client::parse(value).map(|client| {
            let kind = if client.is_lustre { "Lustre" } else { "Nacre" };
            format!("number {}, at {}, {kind}", client.number, client.nid)
        }));
    }
    if holdings::record_name(key).is_some() {
        return Some(Ok(String::new()));
    }
    let (_, tag) = parse_reply_key(key)?;
    Some(parse_reply(tag, value).map(|reply| {
        format!(
            "request {:#x}, transaction {:#x}, status {}",
            reply.xid.0, reply.transno.0, reply.status
        )
    }))
}

/// The value of a client's record.
#[derive(Debug, PartialEq)]
struct Client {
    number: u32,
    nid: Nid,
    is_lustre: bool,
}

impl Client {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.nid.0.to_le_bytes());
        bytes.push(u8::from(self.is_lustre));
        bytes
    }

    fn parse(value: &[u8]) -> Result<Client, String> {
        let mut fields = Fields::of(value, CLIENT_BYTES)?;
        Ok(Client {
            number: fields.take_u32(),
            nid: Nid(fields.take_u64()),
            is_lustre: fields.take(1) != 0,
        })
    }
}

fn client_key(uuid: &str) -> Vec<u8> {
    [&CLIENT_PREFIX[..], uuid.as_bytes()].concat()
}

fn reply_key(number: u32, tag: u16) -> Vec<u8> {
    [&REPLY_PREFIX[..], &number.to_be_bytes(), &tag.to_be_bytes()].concat()
}

/// The client's number and the slot.
fn parse_reply_key(key: &[u8]) -> Option<(u32, u16)> {
    let (number, tag) = key.strip_prefix(&REPLY_PREFIX)?.split_first_chunk()?;
    Some((
        u32::from_be_bytes(*number),
        u16::from_be_bytes(tag.try_into().ok()?),
    ))
}

fn reply_to_bytes(reply: &KeptReply) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(REPLY_BYTES);
    bytes.push(VERSION);
    bytes.extend(reply.xid.0.to_le_bytes());
    bytes.extend(reply.transno.0.to_le_bytes());
    bytes.extend(reply.status.to_le_bytes());
    bytes.extend(reply.data.to_le_bytes());
    bytes.extend(reply.pre_versions.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

fn parse_reply(tag: u16, value: &[u8]) -> Result<KeptReply, String> {
    let mut fields = Fields::of(value, REPLY_BYTES)?;
    Ok(KeptReply {
        tag,
        xid: Xid(fields.take_u64()),
        transno: Transno(fields.take_u64()),
        status: fields.take_u32().cast_signed(),
        data: fields.take_u64(),
        pre_versions: std::array::from_fn(|_| fields.take_u64()),
    })
}

/// The rest of a value with the right length; each call takes the next number.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The fields after the version. The error says why the value is malformed.
    fn of(value: &'a [u8], bytes: usize) -> Result<Fields<'a>, String> {
        match value.split_first() {
            Some((&VERSION, rest)) if value.len() == bytes => Ok(Fields(rest)),
            Some((&VERSION, _)) => Err(format!("expected {bytes} bytes, found {}", value.len())),
            version => Err(format!(
                "expected version {VERSION}, found {:?}",
                version.map(|v| v.0)
            )),
        }
    }

    fn take(&mut self, bytes: usize) -> u64 {
        let (head, rest) = self.0.split_at(bytes);
        self.0 = rest;
        head.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
    }

    fn take_u32(&mut self) -> u32 {
        self.take(4) as u32
    }

    fn take_u64(&mut self) -> u64 {
        self.take(8)
    }
}

/// Calls `f` with each client that has a record.
async fn for_each_client(index: &dyn Index, mut f: impl FnMut(String, Client)) -> Result<(), OsdError> {
    for_each_entry(index, &CLIENT_PREFIX, &Progress::default(), |key, value| {
        let uuid = key.get(CLIENT_PREFIX.len()..).unwrap_or_default();
        let uuid = std::str::from_utf8(uuid).map_err(|e| corrupt(&key, e.to_string()))?;
        f(
            uuid.to_owned(),
            Client::parse(&value).map_err(|why| corrupt(&key, why))?,
        );
        Ok(())
    })
    .await
}

/// Calls `f` with each kept reply, and the number of its client.
async fn for_each_reply(index: &dyn Index, mut f: impl FnMut(u32, KeptReply)) -> Result<(), OsdError> {
    for_each_entry(index, &REPLY_PREFIX, &Progress::default(), |key, value| {
        let (number, tag) = parse_reply_key(&key).ok_or_else(|| {
            let why = format!("expected a key of 8 bytes, found {}", key.len());
            corrupt(&key, why)
        })?;
        f(
            number,
            parse_reply(tag, &value).map_err(|why| corrupt(&key, why))?,
        );
        Ok(())
    })
    .await
}

pub(crate) fn corrupt(key: &Bytes, why: String) -> OsdError {
    OsdError::Corrupt {
        path: Path::new("index").into(),
        record: record_name(key).unwrap_or_else(|| key.escape_ascii().to_string()),
        why,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{LocalConfig, LocalIndex, MemoryIndex};

    const NID: Nid = Nid::tcp(std::net::Ipv4Addr::new(192, 168, 1, 4), 3);
    const SERVER: [Nid; 2] = [NID, Nid(7)];

    fn reply(tag: u16, xid: u64) -> KeptReply {
        KeptReply {
            tag,
            xid: Xid(xid),
            transno: Transno(xid << 32),
            status: -17,
            data: 3,
            pre_versions: [1, 2, u64::MAX, 4],
        }
    }

    fn keep(index: &dyn Index, number: u32, reply: &KeptReply) {
        let mut batch = Batch::new();
        keep_reply(&mut batch, number, reply);
        index.apply(batch).unwrap();
    }

    /// Overwrites a record, and returns the error of loading the records.
    async fn load_with(key: Vec<u8>, value: &[u8]) -> String {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let mut batch = Batch::new();
        batch.put(key, value.to_vec());
        index.apply(batch).unwrap();
        let error = ClientRecords::load(index).await.err().unwrap();
        assert!(matches!(error, OsdError::Corrupt { .. }), "{error}");
        error.to_string()
    }

    #[tokio::test]
    async fn clients_of_a_target_that_moved_notice_late() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let records = ClientRecords::load(index).await.unwrap();
        records.remember("a", NID, false).await.unwrap();
        let cases: [(&[Nid], bool); 4] = [
            (&SERVER, false),
            // One NID has changed.
            (&[Nid(8), Nid(7)], false),
            // Another node.
            (&[NID], true),
            (&[NID], false),
        ];
        for (server, notices_late) in cases {
            // Restarts during recovery.
            for _ in 0..2 {
                let known = records.known(server).await.unwrap();
                assert_eq!(known[0].notices_late, notices_late, "{server:?}");
            }
            records.record_server(server).await.unwrap();
        }
    }

    #[tokio::test]
    async fn client_without_a_record_stays_without_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        drop(LocalIndex::open(&path, LocalConfig::default()).unwrap());
        let index = LocalIndex::open_read_only(&path, LocalConfig::default()).unwrap();
        let records = ClientRecords::load(Arc::new(index)).await.unwrap();
        for _ in 0..2 {
            assert!(records.remember("a", NID, false).await.is_err());
            assert_eq!(records.number("a"), None);
        }
    }

    #[tokio::test]
    async fn records_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index");
        let open = || Arc::new(LocalIndex::open(&path, LocalConfig::default()).unwrap());
        let numbers = {
            let index = open();
            let records = ClientRecords::load(index.clone()).await.unwrap();
            records.remember("a", NID, true).await.unwrap();
            records.remember("b", NID, false).await.unwrap();
            records.remember("a", Nid::LO, false).await.unwrap();
            let number = records.number("a").unwrap();
            keep(&*index, number, &reply(1, 8));
            keep(&*index, number, &reply(2, 6));
            keep(&*index, number, &reply(1, 9));
            ["a", "b"].map(|uuid| records.number(uuid))
        };
        let records = ClientRecords::load(open()).await.unwrap();
        assert_eq!(["a", "b"].map(|uuid| records.number(uuid)), numbers);
        assert_ne!(numbers[0], numbers[1]);
        let known = records.known(&SERVER).await.unwrap();
        assert_eq!(known.len(), 2);
        assert_eq!(
            (&known[0].uuid[..], known[0].nid, known[0].notices_late),
            ("a", NID, true)
        );
        assert_eq!(known[0].replies, [reply(1, 9), reply(2, 6)]);
        assert_eq!((known[1].notices_late, known[1].replies.len()), (false, 0));
    }

    #[tokio::test]
    async fn replies_of_a_forgotten_client_are_gone() {
        let index: Arc<dyn Index> = Arc::new(MemoryIndex::default());
        let records = ClientRecords::load(index.clone()).await.unwrap();
        for uuid in ["a", "b"] {
            records.remember(uuid, NID, false).await.unwrap();
            keep(&*index, records.number(uuid).unwrap(), &reply(1, 5));
        }
        let number = records.number("a").unwrap();
        let forgotten = records.forget("a").unwrap();
        assert_eq!(forgotten, Some(number));
        records.remove_traces(number).await.unwrap();
        assert_eq!(records.forget("unknown").unwrap(), None);
        assert_eq!(records.number("a"), None);
        // A request of the forgotten client ends late.
        keep(&*index, number, &reply(2, 6));
        records.remember("a", NID, false).await.unwrap();
        assert_ne!(records.number("a").unwrap(), number);
        for records in [records, ClientRecords::load(index.clone()).await.unwrap()] {
            let known = records.known(&SERVER).await.unwrap();
            assert_eq!(known.iter().map(|c| c.replies.len()).collect::<Vec<_>>(), [0, 1]);
        }
        let replies = index.scan(&REPLY_PREFIX, &[KEY_RESERVED, b's'], 9).await.unwrap();
        assert_eq!(replies.len(), 1);
    }

    #[tokio::test]
    async fn malformed_record_is_an_error_that_names_it() {
        let client = Client {
            number: 7,
            nid: NID,
            is_lustre: true,
        };
        let client = client.to_bytes();
        assert_eq!(client.len(), CLIENT_BYTES);
        let error = load_with(client_key("some-uuid"), &client[1..]).await;
        assert!(
            error.contains("bad record client some-uuid: expected version 1"),
            "{error}"
        );
        let error = load_with(client_key("x"), &client[..9]).await;
        assert!(error.contains("expected 14 bytes, found 9"), "{error}");
        load_with(vec![KEY_RESERVED, b'c', 0xff], &client).await;

        let reply = reply_to_bytes(&reply(1, 2));
        assert_eq!(reply.len(), REPLY_BYTES);
        let error = load_with(reply_key(4, 3), &reply[..60]).await;
        let expected = "reply kept for slot 3 of client number 4: expected 61 bytes, found 60";
        assert!(error.contains(expected), "{error}");
        let error = load_with(reply_key(4, 3)[..7].to_vec(), &reply).await;
        assert!(error.contains("expected a key of 8 bytes"), "{error}");
    }
}
