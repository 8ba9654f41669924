//! Update records: an operation on several MDTs as data.

use bytes::Bytes;
use rpc::KeptReply;
use wire::{Errno, Reader, Transno, Writer, Xid};

use super::ledger::Batchid;
use crate::store::{Mutation, ReplySlot};

/// The version of the format.
const VERSION: u32 = 1;

/// An operation on two MDTs: the share of each, and the reply to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpdateRecord {
    /// Its identity.
    pub batchid: Batchid,
    /// The index of the other MDT.
    pub participant: u32,
    /// The coordinator's share.
    pub own_share: Vec<Mutation>,
    /// The participant's share.
    pub participant_share: Vec<Mutation>,
    /// The slot of the client at the coordinator, and the versions in the reply.
    pub reply: Option<(ReplySlot, [u64; 4])>,
}

impl UpdateRecord {
    /// The share of the MDT with this index, and the other MDT; `None` if the record does not name
    /// the MDT.
    pub(crate) fn share_of(&self, index: u32) -> Option<(&[Mutation], u32)> {
        match index {
            _ if index == self.batchid.coordinator => Some((&self.own_share, self.participant)),
            _ if index == self.participant => Some((&self.participant_share, self.batchid.coordinator)),
            _ => None,
        }
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
        writer.u32(self.participant);
        writer.u32(u32::from(self.reply.is_some()));
        if let Some((slot, pre_versions)) = self.reply {
            writer.u32(slot.client);
            writer.u32(slot.tag.into());
            writer.u64(slot.xid.0);
            writer.u32(slot.status as u32);
            writer.u64(slot.data);
            pre_versions.into_iter().for_each(|version| writer.u64(version));
        }
        for share in [&self.own_share, &self.participant_share] {
            writer.u32(share.len() as u32);
            share.iter().for_each(|mutation| mutation.encode(&mut writer));
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
        if reader.u32()? != VERSION {
            return Err(Errno::EPROTO);
        }
        let batchid = Batchid {
            coordinator: reader.u32()?,
            number: reader.u64()?,
        };
        let participant = reader.u32()?;
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
        let mut share = || -> Result<Vec<Mutation>, Errno> {
            let count = reader.u32()?;
            (0..count).map(|_| Mutation::decode(&mut reader, bytes)).collect()
        };
        Ok(UpdateRecord {
            batchid,
            participant,
            own_share: share()?,
            participant_share: share()?,
            reply,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use wire::{Fid, OstIndex, Time, Xid};

    use super::{Batchid, UpdateRecord};
    use crate::{
        layout::StripeObject,
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
        UpdateRecord {
            batchid: Batchid {
                coordinator: 1,
                number: 9,
            },
            participant: 0,
            own_share: own.mutations,
            participant_share: name.mutations,
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
        assert_eq!(record.share_of(1), Some((&record.own_share[..], 0)));
        assert_eq!(record.share_of(0), Some((&record.participant_share[..], 1)));
        assert_eq!(record.share_of(2), None);
    }
}
