//! The messages between MDTs (`OUT_UPDATE`): one buffer in the request and one in the reply.
//!
//! The messages belong to Nacre: Lustre's servers and Nacre's do not mix in a file system.

use bytes::Bytes;
use wire::{Errno, Fid, Reader, Writer};

use super::ledger::Batchid;
use crate::store::{Entry, Inode, get_fid, put_fid};

/// Maximum length of a name, bytes.
const NAME_MAX: usize = 255;

/// The change of a name that a coordinator prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// A new name.
    Add,
    /// The removal of a name.
    Remove,
}

/// A request of one MDT to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Locks a name, and reads its directory and its entry ([`View`]).
    Prepare {
        /// The number of the session, chosen by the coordinator.
        session: u64,
        /// The planned change.
        change: NameChange,
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// Whether a client replays the operation.
        is_replay: bool,
    },
    /// Applies the receiver's share of a record, and ends the session. `ESTALE`: the receiver has
    /// neither the session nor the record.
    Apply {
        /// The session.
        session: u64,
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
    },
    /// Forgets records that the sender coordinates, and syncs the receiver's store.
    Forget {
        /// The number of the last record to forget.
        number: u64,
    },
}

const PREPARE: u32 = 1;
const APPLY: u32 = 2;
const RELEASE: u32 = 3;
const PULL: u32 = 4;
const FORGET: u32 = 5;

impl Message {
    /// Encodes the message.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(64);
        match self {
            Message::Prepare {
                session,
                change,
                dir,
                name,
                is_replay,
            } => {
                writer.u32(PREPARE);
                writer.u64(*session);
                writer.u32(u32::from(*change == NameChange::Add));
                put_fid(&mut writer, *dir);
                writer.u32(u32::from(*is_replay));
                writer.put(name);
            }
            Message::Apply { session, record } => {
                writer.u32(APPLY);
                writer.u64(*session);
                writer.put(record);
            }
            Message::Release { session } => {
                writer.u32(RELEASE);
                writer.u64(*session);
            }
            Message::Pull { after } => {
                writer.u32(PULL);
                writer.u32(after.coordinator);
                writer.u64(after.number);
            }
            Message::Forget { number } => {
                writer.u32(FORGET);
                writer.u64(*number);
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
            PREPARE => {
                let session = reader.u64()?;
                let change = match reader.u32()? {
                    0 => NameChange::Remove,
                    _ => NameChange::Add,
                };
                let (dir, is_replay) = (get_fid(&mut reader)?, reader.u32()? != 0);
                let name = bytes.slice_ref(reader.rest());
                if name.is_empty() || name.len() > NAME_MAX {
                    return Err(Errno::EPROTO);
                }
                Message::Prepare {
                    session,
                    change,
                    dir,
                    name,
                    is_replay,
                }
            }
            APPLY => Message::Apply {
                session: reader.u64()?,
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
            },
            FORGET => Message::Forget {
                number: reader.u64()?,
            },
            _ => return Err(Errno::EPROTO),
        })
    }
}

/// A name as its MDT sees it, in the reply to [`Message::Prepare`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// The directory.
    pub dir: Inode,
    /// The entry of the name; `None` if there is none.
    pub entry: Option<Entry>,
}

impl View {
    /// Encodes the view.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(256);
        let entry = self.entry.unwrap_or(Entry {
            fid: Fid::ZERO,
            kind: 0,
        });
        put_fid(&mut writer, entry.fid);
        writer.u32(entry.kind);
        writer.put(&self.dir.encode());
        writer.finish()
    }

    /// Decodes a view.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is malformed.
    pub(crate) fn decode(bytes: &Bytes) -> Result<View, Errno> {
        let mut reader = Reader::new("name of another MDT", bytes);
        let entry = Entry {
            fid: get_fid(&mut reader)?,
            kind: reader.u32()?,
        };
        Ok(View {
            dir: Inode::decode(&bytes.slice_ref(reader.rest()))?,
            entry: (!entry.fid.is_zero()).then_some(entry),
        })
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

    use super::{Message, NameChange, View, decode_records, encode_records};
    use crate::{
        store::{Entry, Inode, S_IFDIR},
        updates::ledger::Batchid,
    };

    #[test]
    fn messages_round_trip() {
        let prepare = Message::Prepare {
            session: 5,
            change: NameChange::Remove,
            dir: Fid::ROOT,
            name: "a".into(),
            is_replay: true,
        };
        let record = Bytes::from_static(b"record");
        let messages = [
            prepare,
            Message::Apply { session: 6, record },
            Message::Release { session: 7 },
            Message::Pull {
                after: Batchid {
                    coordinator: 1,
                    number: 8,
                },
            },
            Message::Forget { number: 9 },
        ];
        for message in messages {
            assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }
        assert_eq!(Message::decode(&Bytes::new()).unwrap_err(), Errno::EPROTO);
        assert_eq!(
            Message::decode(&Bytes::from_static(&[9; 4])).unwrap_err(),
            Errno::EPROTO
        );
    }

    #[test]
    fn views_and_lists_of_records_round_trip() {
        let entry = Entry {
            fid: Fid::ROOT,
            kind: S_IFDIR,
        };
        for entry in [None, Some(entry)] {
            let dir = Inode {
                mode: S_IFDIR | 0o711,
                ..Inode::default()
            };
            let view = View { dir, entry };
            assert_eq!(View::decode(&view.encode()).unwrap(), view);
        }
        let records = vec![Bytes::from_static(b"a"), Bytes::new(), Bytes::from_static(b"bc")];
        let encoded = encode_records(&records);
        assert_eq!(decode_records(&encoded).unwrap(), records);
        assert!(decode_records(&encoded.slice(..encoded.len() - 1)).is_err());
    }
}
