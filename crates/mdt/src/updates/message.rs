//! The messages between MDTs (`OUT_UPDATE`): one buffer in the request and one in the reply.
//!
//! The messages belong to Nacre: Lustre's servers and Nacre's do not mix in a file system.

use bytes::Bytes;
use wire::{Errno, Fid, Reader, Writer};

use super::ledger::Batchid;
use crate::store::{Entry, Inode, get_fid, put_fid};

/// Maximum length of a name, bytes.
const NAME_MAX: usize = 255;
/// Maximum number of sessions or MDTs in a message.
const LIST_MAX: u32 = 64;

/// The change of names that a coordinator prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// A new name, or a rename.
    Set,
    /// The removal of a name.
    Remove,
}

/// The change of an inode that a coordinator prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InodeChange {
    /// The inode gets a name.
    Link,
    /// The inode loses a name, or changes it.
    Unlink,
}

/// A thing that a coordinator locks on another MDT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// One or two names of a directory.
    Names {
        /// The directory.
        dir: Fid,
        /// The names.
        names: Vec<Bytes>,
        /// The planned change.
        change: NameChange,
    },
    /// An inode, or the locks of clients on an inode that another MDT has.
    Inode {
        /// The inode.
        fid: Fid,
        /// The planned change.
        change: InodeChange,
    },
    /// The rename lock of the file system.
    Renames,
}

/// A request of one MDT to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Locks an item, and reads it ([`View`]). `EBUSY`: other requests hold its locks; the
    /// coordinator asks again.
    Prepare {
        /// The number of the session, chosen by the coordinator.
        session: u64,
        /// The item.
        item: Item,
        /// Whether a client replays the operation.
        is_replay: bool,
    },
    /// The operation of these sessions is about to be decided, and has these participants. Then the
    /// end of the coordinator does not end the sessions. `ESTALE`: the receiver lacks a session.
    Join {
        /// The sessions.
        sessions: Vec<u64>,
        /// All MDTs of the operation.
        mdts: Vec<u32>,
    },
    /// Applies the receiver's share of a record, and ends the sessions. `ESTALE`: the receiver has
    /// neither the sessions nor the record.
    Apply {
        /// The sessions.
        sessions: Vec<u64>,
        /// Whether another MDT has applied its share: then the receiver applies its own, too.
        is_decided: bool,
        /// The record.
        record: Bytes,
    },
    /// Ends a session without a change.
    Release {
        /// The session.
        session: u64,
    },
    /// Asks for the records that name the sender.
    Pull {
        /// The last record that the sender knows; zero at first.
        after: Batchid,
        /// Whether the sender asks for the second time since its start. `EAGAIN`: the receiver has
        /// not asked its own partners once.
        is_second: bool,
    },
    /// Forgets records that the sender coordinates, and syncs the receiver's store.
    Forget {
        /// The number of the last record to forget.
        number: u64,
    },
    /// Applies the receiver's share of a record of the sender's earlier start, if the receiver
    /// lacks it.
    Redo {
        /// The record.
        record: Bytes,
    },
    /// The receiver has all records of the sender's earlier starts: it ends the sessions of these.
    Resolve {
        /// The last number that a session of an earlier start can have.
        last_session: u64,
    },
    /// Asks for a directory and those above it that the receiver has ([`Above`]).
    FindAbove {
        /// The directory.
        fid: Fid,
    },
}

const PREPARE_NAMES: u32 = 1;
const APPLY: u32 = 2;
const RELEASE: u32 = 3;
const PULL: u32 = 4;
const FORGET: u32 = 5;
const PREPARE_INODE: u32 = 6;
const PREPARE_RENAMES: u32 = 7;
const JOIN: u32 = 8;
const REDO: u32 = 9;
const RESOLVE: u32 = 10;
const FIND_ABOVE: u32 = 11;

impl Message {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(64);
        match self {
            Message::Prepare {
                session,
                item,
                is_replay,
            } => put_prepare(&mut writer, *session, item, *is_replay),
            Message::Join { sessions, mdts } => {
                writer.u32(JOIN);
                put_sessions(&mut writer, sessions);
                writer.u32(mdts.len() as u32);
                mdts.iter().for_each(|mdt| writer.u32(*mdt));
            }
            Message::Apply {
                sessions,
                is_decided,
                record,
            } => {
                writer.u32(APPLY);
                writer.u32(u32::from(*is_decided));
                put_sessions(&mut writer, sessions);
                writer.put(record);
            }
            Message::Release { session } => {
                writer.u32(RELEASE);
                writer.u64(*session);
            }
            Message::Pull { after, is_second } => {
                writer.u32(PULL);
                writer.u32(after.coordinator);
                writer.u64(after.number);
                writer.u32(u32::from(*is_second));
            }
            Message::Forget { number } => {
                writer.u32(FORGET);
                writer.u64(*number);
            }
            Message::Redo { record } => {
                writer.u32(REDO);
                writer.put(record);
            }
            Message::Resolve { last_session } => {
                writer.u32(RESOLVE);
                writer.u64(*last_session);
            }
            Message::FindAbove { fid } => {
                writer.u32(FIND_ABOVE);
                put_fid(&mut writer, *fid);
            }
        }
        writer.finish()
    }

    /// Decodes a message.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is malformed or unknown.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Message, Errno> {
        let mut reader = Reader::new("message between MDTs", bytes);
        Ok(match reader.u32()? {
            kind @ (PREPARE_NAMES | PREPARE_INODE | PREPARE_RENAMES) => {
                get_prepare(kind, &mut reader, bytes)?
            }
            JOIN => Message::Join {
                sessions: get_sessions(&mut reader)?,
                mdts: get_list(&mut reader, |reader| Ok(reader.u32()?))?,
            },
            APPLY => Message::Apply {
                is_decided: reader.u32()? != 0,
                sessions: get_sessions(&mut reader)?,
                record: bytes.slice_ref(reader.rest()),
            },
            RELEASE => Message::Release {
                session: reader.u64()?,
            },
            PULL => Message::Pull {
                after: Batchid {
                    coordinator: reader.u32()?,
                    number: reader.u64()?,
                },
                is_second: reader.u32()? != 0,
            },
            FORGET => Message::Forget {
                number: reader.u64()?,
            },
            REDO => Message::Redo {
                record: bytes.slice_ref(reader.rest()),
            },
            RESOLVE => Message::Resolve {
                last_session: reader.u64()?,
            },
            FIND_ABOVE => Message::FindAbove {
                fid: get_fid(&mut reader)?,
            },
            _ => return Err(Errno::EPROTO),
        })
    }
}

fn put_prepare(writer: &mut Writer, session: u64, item: &Item, is_replay: bool) {
    writer.u32(match item {
        Item::Names { .. } => PREPARE_NAMES,
        Item::Inode { .. } => PREPARE_INODE,
        Item::Renames => PREPARE_RENAMES,
    });
    writer.u64(session);
    writer.u32(u32::from(is_replay));
    match item {
        Item::Names { dir, names, change } => {
            writer.u32(u32::from(*change == NameChange::Remove));
            put_fid(writer, *dir);
            writer.u32(names.len() as u32);
            for name in names {
                writer.u32(name.len() as u32);
                writer.put(name);
            }
        }
        Item::Inode { fid, change } => {
            writer.u32(u32::from(*change == InodeChange::Unlink));
            put_fid(writer, *fid);
        }
        Item::Renames => {}
    }
}

fn get_prepare(kind: u32, reader: &mut Reader<'_>, bytes: &Bytes) -> Result<Message, Errno> {
    let (session, is_replay) = (reader.u64()?, reader.u32()? != 0);
    let item = match kind {
        PREPARE_NAMES => {
            let change = match reader.u32()? {
                0 => NameChange::Set,
                _ => NameChange::Remove,
            };
            let dir = get_fid(reader)?;
            let names = get_list(reader, |reader| {
                let len = reader.u32()? as usize;
                Ok(bytes.slice_ref(reader.take(len)?))
            })?;
            let is_valid = |name: &Bytes| !name.is_empty() && name.len() <= NAME_MAX;
            if names.is_empty() || !names.iter().all(is_valid) {
                return Err(Errno::EPROTO);
            }
            Item::Names { dir, names, change }
        }
        PREPARE_INODE => {
            let change = match reader.u32()? {
                0 => InodeChange::Link,
                _ => InodeChange::Unlink,
            };
            let fid = get_fid(reader)?;
            Item::Inode { fid, change }
        }
        _ => Item::Renames,
    };
    Ok(Message::Prepare {
        session,
        item,
        is_replay,
    })
}

fn put_sessions(writer: &mut Writer, sessions: &[u64]) {
    writer.u32(sessions.len() as u32);
    sessions.iter().for_each(|session| writer.u64(*session));
}

fn get_sessions(reader: &mut Reader<'_>) -> Result<Vec<u64>, Errno> {
    get_list(reader, |reader| Ok(reader.u64()?))
}

fn get_list<T>(
    reader: &mut Reader<'_>,
    get: impl Fn(&mut Reader<'_>) -> Result<T, Errno>,
) -> Result<Vec<T>, Errno> {
    match reader.u32()? {
        count @ ..=LIST_MAX => (0..count).map(|_| get(reader)).collect(),
        _ => Err(Errno::EPROTO),
    }
}

/// An item as its MDT sees it, in the reply to [`Message::Prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// Names.
    Names(NamesView),
    /// An inode.
    Inode(InodeView),
    /// The rename lock.
    Renames,
}

/// Names of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamesView {
    /// The directory.
    pub dir: Inode,
    /// The entries of the names; `None` if there is none.
    pub entries: Vec<Option<Entry>>,
}

impl NamesView {
    /// The entry of the first name.
    pub(crate) fn first(&self) -> Option<Entry> {
        self.entries.first().copied().flatten()
    }
}

/// An inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InodeView {
    /// The inode; `None` if another MDT has it.
    pub inode: Option<Inode>,
    /// Whether it is a directory with entries.
    pub has_entries: bool,
}

impl View {
    /// Encodes the view.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(256);
        match self {
            View::Names(NamesView { dir, entries }) => {
                writer.u32(PREPARE_NAMES);
                writer.u32(entries.len() as u32);
                for entry in entries {
                    let entry = entry.unwrap_or(Entry {
                        fid: Fid::ZERO,
                        kind: 0,
                    });
                    put_fid(&mut writer, entry.fid);
                    writer.u32(entry.kind);
                }
                writer.put(&dir.encode());
            }
            View::Inode(InodeView { inode, has_entries }) => {
                writer.u32(PREPARE_INODE);
                writer.u32(u32::from(*has_entries));
                writer.u32(u32::from(inode.is_some()));
                if let Some(inode) = inode {
                    writer.put(&inode.encode());
                }
            }
            View::Renames => writer.u32(PREPARE_RENAMES),
        }
        writer.finish()
    }

    /// Decodes a view.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is malformed.
    pub(crate) fn decode(bytes: &Bytes) -> Result<View, Errno> {
        let mut reader = Reader::new("view of another MDT", bytes);
        Ok(match reader.u32()? {
            PREPARE_NAMES => {
                let entries = get_list(&mut reader, |reader| {
                    let entry = Entry {
                        fid: get_fid(reader)?,
                        kind: reader.u32()?,
                    };
                    Ok((!entry.fid.is_zero()).then_some(entry))
                })?;
                let dir = Inode::decode(&bytes.slice_ref(reader.rest()))?;
                View::Names(NamesView { dir, entries })
            }
            PREPARE_INODE => {
                let (has_entries, exists) = (reader.u32()? != 0, reader.u32()? != 0);
                let inode = match exists {
                    true => Some(Inode::decode(&bytes.slice_ref(reader.rest()))?),
                    false => None,
                };
                View::Inode(InodeView { inode, has_entries })
            }
            PREPARE_RENAMES => View::Renames,
            _ => return Err(Errno::EPROTO),
        })
    }
}

/// A directory and those above it on one MDT, in the reply to [`Message::FindAbove`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Above {
    /// The directories from below to above. The last one is the root, or on another MDT.
    pub chain: Vec<Fid>,
    /// Whether the root is the last one.
    pub is_whole: bool,
}

impl Above {
    /// Encodes the answer.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u32(u32::from(self.is_whole));
        self.chain.iter().for_each(|fid| put_fid(&mut writer, *fid));
        writer.finish()
    }

    /// Decodes the answer.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is malformed.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Above, Errno> {
        let mut reader = Reader::new("directories of another MDT", bytes);
        let is_whole = reader.u32()? != 0;
        let mut chain = Vec::new();
        while !reader.is_empty() {
            chain.push(get_fid(&mut reader)?);
        }
        Ok(Above { chain, is_whole })
    }
}

/// Encodes the records in the reply to [`Message::Pull`].
pub(crate) fn encode_records(records: &[Bytes]) -> Bytes {
    let mut writer = Writer::new();
    for record in records {
        writer.u32(record.len() as u32);
        writer.put(record);
    }
    writer.finish()
}

/// Decodes the records in the reply to [`Message::Pull`].
///
/// # Errors
///
/// `EPROTO` if the reply is malformed.
pub(crate) fn decode_records(bytes: &Bytes) -> Result<Vec<Bytes>, Errno> {
    let mut reader = Reader::new("records of another MDT", bytes);
    let mut records = Vec::new();
    while !reader.is_empty() {
        let len = reader.u32()? as usize;
        records.push(bytes.slice_ref(reader.take(len)?));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use wire::{Errno, Fid};

    use super::{
        Above, InodeChange, InodeView, Item, Message, NameChange, NamesView, View, decode_records,
        encode_records,
    };
    use crate::{
        store::{Entry, Inode, S_IFDIR},
        updates::ledger::Batchid,
    };

    #[test]
    fn messages_round_trip() {
        let prepare = |item| Message::Prepare {
            session: 5,
            item,
            is_replay: true,
        };
        let record = Bytes::from_static(b"record");
        let messages = [
            prepare(Item::Names {
                change: NameChange::Remove,
                dir: Fid::ROOT,
                names: vec!["a".into(), "bc".into()],
            }),
            prepare(Item::Inode {
                fid: Fid::ROOT,
                change: InodeChange::Unlink,
            }),
            prepare(Item::Renames),
            Message::Join {
                sessions: vec![1, 2],
                mdts: vec![0, 3, 4],
            },
            Message::Apply {
                sessions: vec![6, 7],
                is_decided: true,
                record: record.clone(),
            },
            Message::Release { session: 7 },
            Message::Pull {
                after: Batchid {
                    coordinator: 1,
                    number: 8,
                },
                is_second: true,
            },
            Message::Forget { number: 9 },
            Message::Redo { record },
            Message::Resolve { last_session: 7 },
            Message::FindAbove { fid: Fid::ROOT },
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }
        let nameless = prepare(Item::Names {
            change: NameChange::Set,
            dir: Fid::ROOT,
            names: vec![Bytes::new()],
        });
        for malformed in [Bytes::new(), Bytes::from_static(&[99; 4]), nameless.encode()] {
            assert_eq!(Message::decode(&malformed).unwrap_err(), Errno::EPROTO);
        }
    }

    #[test]
    fn views_and_lists_round_trip() {
        let entry = Entry {
            fid: Fid::ROOT,
            kind: S_IFDIR,
        };
        let dir = Inode {
            mode: S_IFDIR | 0o711,
            ..Inode::default()
        };
        let views = [
            View::Names(NamesView {
                dir: dir.clone(),
                entries: vec![None, Some(entry)],
            }),
            View::Inode(InodeView {
                inode: Some(dir),
                has_entries: true,
            }),
            View::Inode(InodeView::default()),
            View::Renames,
        ];
        for view in views {
            assert_eq!(View::decode(&view.encode()).unwrap(), view);
        }
        assert!(View::decode(&Bytes::new()).is_err());
        let above = Above {
            chain: vec![Fid::ROOT, Fid::ZERO],
            is_whole: true,
        };
        assert_eq!(Above::decode(&above.encode()).unwrap(), above);
        let records = vec![Bytes::from_static(b"a"), Bytes::new(), Bytes::from_static(b"bc")];
        let encoded = encode_records(&records);
        assert_eq!(decode_records(&encoded).unwrap(), records);
        assert!(decode_records(&encoded.slice(..encoded.len() - 1)).is_err());
    }
}
