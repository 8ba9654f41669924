//! Update records: an operation on several MDTs as data.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rpc::KeptReply;
use wire::{Errno, Fid, Reader, Time, Transno, Writer, Xid};

use super::ledger::Batchid;
use crate::{
    namespace::{Relink, Share},
    store::{Mutation, ReplySlot, get_fid, put_fid},
};

/// The version of the format.
const VERSION: u32 = 2;
/// The version that names two MDTs and has only mutations.
const VERSION_OF_PAIRS: u32 = 1;

/// An operation on several MDTs: the share of each, and the reply to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpdateRecord {
    /// Its identity.
    pub batchid: Batchid,
    /// The shares, by the index of the MDT; also the coordinator's.
    pub shares: BTreeMap<u32, Share>,
    /// The slot of the client at the coordinator, and the versions in the reply.
    pub reply: Option<(ReplySlot, [u64; 4])>,
}

impl UpdateRecord {
    /// The share of the MDT with this index, and the other MDTs; `None` if the record does not name
    /// the MDT.
    pub(crate) fn share_of(&self, index: u32) -> Option<(&Share, BTreeSet<u32>)> {
        let share = self.shares.get(&index)?;
        let others = self.shares.keys().copied().filter(|mdt| *mdt != index);
        Some((share, others.collect()))
    }

    /// The reply that the coordinator keeps for the client, under a number of the target's own.
    pub(crate) fn kept_reply(&self) -> Option<(u32, KeptReply)> {
        let (slot, pre_versions) = self.reply?;
        let reply = KeptReply {
            tag: slot.tag,
            xid: slot.xid,
            transno: Transno::NONE,
            status: slot.status,
            data: slot.data,
            pre_versions,
        };
        Some((slot.client, reply))
    }

    /// Encodes the record.
    pub(crate) fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(512);
        writer.u32(VERSION);
        writer.u32(self.batchid.coordinator);
        writer.u64(self.batchid.number);
        writer.u32(u32::from(self.reply.is_some()));
        if let Some((slot, pre_versions)) = self.reply {
            writer.u32(slot.client);
            writer.u32(slot.tag.into());
            writer.u64(slot.xid.0);
            writer.u32(slot.status as u32);
            writer.u64(slot.data);
            pre_versions.into_iter().for_each(|version| writer.u64(version));
        }
        writer.u32(self.shares.len() as u32);
        for (mdt, share) in &self.shares {
            writer.u32(*mdt);
            writer.u32(share.mutations.len() as u32);
            share
                .mutations
                .iter()
                .for_each(|mutation| mutation.encode(&mut writer));
            writer.u32(share.relinks.len() as u32);
            share
                .relinks
                .iter()
                .for_each(|relink| put_relink(&mut writer, relink));
        }
        writer.finish()
    }

    /// Decodes a record.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is malformed.
    pub(crate) fn decode(bytes: &Bytes) -> Result<UpdateRecord, Errno> {
        let mut reader = Reader::new("update record", bytes);
        let version = reader.u32()?;
        let batchid = Batchid {
            coordinator: reader.u32()?,
            number: reader.u64()?,
        };
        let participant = match version {
            VERSION => None,
            VERSION_OF_PAIRS => Some(reader.u32()?),
            _ => return Err(Errno::EPROTO),
        };
        let reply = match reader.u32()? {
            0 => None,
            _ => {
                let slot = ReplySlot {
                    client: reader.u32()?,
                    tag: reader.u32()? as u16,
                    xid: Xid(reader.u64()?),
                    status: reader.u32()? as i32,
                    data: reader.u64()?,
                };
                let versions = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
                Some((slot, versions))
            }
        };
        let mut shares = BTreeMap::new();
        match participant {
            Some(participant) => {
                for mdt in [batchid.coordinator, participant] {
                    let mutations = get_list(&mut reader, |reader| Mutation::decode(reader, bytes))?;
                    let relinks = Vec::new();
                    shares.insert(mdt, Share { mutations, relinks });
                }
            }
            None => {
                for _ in 0..reader.u32()? {
                    let mdt = reader.u32()?;
                    let mutations = get_list(&mut reader, |reader| Mutation::decode(reader, bytes))?;
                    let relinks = get_list(&mut reader, |reader| get_relink(reader, bytes))?;
                    shares.insert(mdt, Share { mutations, relinks });
                }
            }
        }
        match shares.contains_key(&batchid.coordinator) {
            true => Ok(UpdateRecord {
                batchid,
                shares,
                reply,
            }),
            false => Err(Errno::EPROTO),
        }
    }
}

fn get_list<T>(
    reader: &mut Reader<'_>,
    get: impl Fn(&mut Reader<'_>) -> Result<T, Errno>,
) -> Result<Vec<T>, Errno> {
    let count = reader.u32()?;
    (0..count).map(|_| get(reader)).collect()
}

fn put_relink(writer: &mut Writer, relink: &Relink) {
    put_fid(writer, relink.fid);
    writer.u64(relink.time.sec as u64);
    writer.u32(relink.time.ns);
    for name in [&relink.removed, &relink.added] {
        writer.u32(u32::from(name.is_some()));
        if let Some((dir, name)) = name {
            put_fid(writer, *dir);
            writer.u32(name.len() as u32);
            writer.put(name);
        }
    }
}

fn get_relink(reader: &mut Reader<'_>, bytes: &Bytes) -> Result<Relink, Errno> {
    let get_name = |reader: &mut Reader<'_>| -> Result<Option<(Fid, Bytes)>, Errno> {
        if reader.u32()? == 0 {
            return Ok(None);
        }
        let dir = get_fid(reader)?;
        let len = reader.u32()? as usize;
        Ok(Some((dir, bytes.slice_ref(reader.take(len)?))))
    };
    Ok(Relink {
        fid: get_fid(reader)?,
        time: Time::new(reader.u64()? as i64, reader.u32()?),
        removed: get_name(reader)?,
        added: get_name(reader)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::{BTreeMap, BTreeSet};

    use bytes::Bytes;
    use wire::{Fid, OstIndex, Time, Writer, Xid};

    use super::{Batchid, UpdateRecord};
    use crate::{
        layout::StripeObject,
        namespace::{Relink, Share},
        store::{Change, DirChange, Entry, Inode, Mutation, OwnRecords, ReplySlot, S_IFDIR, Work},
    };

    fn record() -> UpdateRecord {
        let (dir, fid) = (Fid::ROOT, Fid::new(0x2_0000_0401, 7, 0));
        let inode = Inode {
            mode: S_IFDIR | 0o755,
            nlink: 2,
            ..Inode::default()
        };
        let mut own = Change::new();
        own.make_inode(fid, &inode);
        own.change_inode(fid, &inode);
        let records = OwnRecords {
            xattrs: vec!["user.a".into()],
            data: vec![Bytes::from_static(b"a key")],
        };
        own.destroy_inode(fid, &inode, records).unwrap();
        own.mutations.push(Mutation::DataChanged {
            fid,
            attr: Box::default(),
            blocks: vec![(0, None), (3, Some(Bytes::from_static(b"block")))],
            is_content: true,
        });
        own.set_xattr(fid, b"user.x", Bytes::from_static(b"value"));
        own.add_orphan(fid);
        own.remove_orphan(fid);
        own.queue_destroy(StripeObject {
            ost: OstIndex(1),
            fid,
        });
        assert!(matches!(
            own.mutations.last(),
            Some(Mutation::ObjectQueued {
                work: Work::Destroy,
                ..
            })
        ));
        let mut name = Change::new();
        name.change_dir(dir, DirChange::at(Time::new(5, 6)).remove(b"a", S_IFDIR));
        name.remove_entry(dir, b"a");
        name.add_entry(dir, b"b", Entry { fid, kind: S_IFDIR });
        let own = Share {
            mutations: own.mutations,
            relinks: vec![Relink {
                fid,
                removed: Some((dir, "a".into())),
                added: None,
                time: Time::new(7, 8),
            }],
        };
        let name = Share {
            mutations: name.mutations,
            relinks: vec![Relink {
                fid,
                removed: None,
                added: Some((dir, "b".into())),
                time: Time::new(7, 8),
            }],
        };
        UpdateRecord {
            batchid: Batchid {
                coordinator: 1,
                number: 9,
            },
            shares: BTreeMap::from([(1, own), (0, name), (7, Share::default())]),
            reply: Some((
                ReplySlot {
                    client: 3,
                    tag: 2,
                    xid: Xid(77),
                    status: -1,
                    data: 5,
                },
                [1, 2, 3, 4],
            )),
        }
    }

    #[test]
    fn records_round_trip_and_damaged_ones_are_refused() {
        let record = record();
        let bytes = record.encode();
        assert_eq!(UpdateRecord::decode(&bytes).unwrap(), record);
        for len in 0..bytes.len() {
            assert!(UpdateRecord::decode(&bytes.slice(..len)).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn each_participant_finds_its_share() {
        let record = record();
        let others = BTreeSet::from;
        assert_eq!(record.share_of(1), Some((&record.shares[&1], others([0, 7]))));
        assert_eq!(record.share_of(0), Some((&record.shares[&0], others([1, 7]))));
        assert_eq!(record.share_of(2), None);
    }

    #[test]
    fn records_of_earlier_versions_are_read() {
        let mut record = record();
        record.reply = None;
        record.shares.remove(&7);
        record.shares.values_mut().for_each(|share| share.relinks.clear());
        let mut writer = Writer::new();
        writer.u32(1);
        writer.u32(1);
        writer.u64(9);
        [0, 0].into_iter().for_each(|value| writer.u32(value));
        for mdt in [1, 0] {
            let mutations = &record.shares[&mdt].mutations;
            writer.u32(mutations.len() as u32);
            mutations.iter().for_each(|mutation| mutation.encode(&mut writer));
        }
        assert_eq!(UpdateRecord::decode(&writer.finish()).unwrap(), record);
    }
}
