//! Work for OSTs. The store keeps a record of each piece of work until the OST has committed it.

use bytes::Bytes;
use wire::{Errno, Fid, Reader, Writer};

use super::Ownership;

/// Work on an object. The MDT sends it to the object's OST once the transaction that queued it is
/// on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Destroy the object.
    Destroy,
    /// Change the object's owner, group and project.
    Chown(Ownership),
    /// After a swap of layouts: set the object's file, owner, group and project.
    Adopt {
        /// The file.
        file: Fid,
        /// The index of the stripe in the file.
        stripe: u32,
        /// The owner, group and project.
        ownership: Ownership,
    },
}

// Tags of the stored kinds of work.
const TAG_DESTROY: u8 = 0;
const TAG_CHOWN: u8 = 1;
const TAG_ADOPT: u8 = 2;

impl Work {
    pub(crate) fn encode(self) -> Bytes {
        let mut writer = Writer::with_capacity(33);
        match self {
            Work::Destroy => writer.u8(TAG_DESTROY),
            Work::Chown(ownership) => {
                writer.u8(TAG_CHOWN);
                encode_ownership(&mut writer, ownership);
            }
            Work::Adopt {
                file,
                stripe,
                ownership,
            } => {
                writer.u8(TAG_ADOPT);
                writer.u64(file.f_seq);
                [file.f_oid, file.f_ver, stripe]
                    .into_iter()
                    .for_each(|value| writer.u32(value));
                encode_ownership(&mut writer, ownership);
            }
        }
        writer.finish()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Work, Errno> {
        let mut reader = Reader::new("work for an OST", value);
        match reader.u8()? {
            TAG_DESTROY => Ok(Work::Destroy),
            TAG_CHOWN => Ok(Work::Chown(decode_ownership(&mut reader)?)),
            TAG_ADOPT => Ok(Work::Adopt {
                file: Fid::new(reader.u64()?, reader.u32()?, reader.u32()?),
                stripe: reader.u32()?,
                ownership: decode_ownership(&mut reader)?,
            }),
            _ => Err(Errno::EIO),
        }
    }
}

fn encode_ownership(writer: &mut Writer, Ownership { uid, gid, projid }: Ownership) {
    [uid, gid, projid].into_iter().for_each(|value| writer.u32(value));
}

fn decode_ownership(reader: &mut Reader<'_>) -> Result<Ownership, Errno> {
    Ok(Ownership {
        uid: reader.u32()?,
        gid: reader.u32()?,
        projid: reader.u32()?,
    })
}
