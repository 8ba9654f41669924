//! Mutations as bytes, for the update records of operations on several MDTs.

use bytes::Bytes;
use wire::{Errno, Fid, OstIndex, Reader, Time, Writer};

use super::{
    DirChange, Entry, Inode, Mutation, Work,
    data::{decode_attr, encode_attr},
};
use crate::layout::StripeObject;

const ENTRY_ADDED: u8 = 1;
const ENTRY_REMOVED: u8 = 2;
const DIR_CHANGED: u8 = 3;
const INODE_MADE: u8 = 4;
const INODE_CHANGED: u8 = 5;
const INODE_DESTROYED: u8 = 6;
const XATTR_SET: u8 = 7;
const XATTR_REMOVED: u8 = 8;
const ORPHAN_ADDED: u8 = 9;
const ORPHAN_REMOVED: u8 = 10;
const OBJECT_QUEUED: u8 = 11;
const RECORD_SET: u8 = 12;
const RECORD_REMOVED: u8 = 13;
const UPDATE_KEPT: u8 = 14;
const DATA_CHANGED: u8 = 15;
const DATA_REMOVED: u8 = 16;

impl Mutation {
    /// Appends the mutation to an update record.
    pub(crate) fn encode(&self, writer: &mut Writer) {
        match self {
            Mutation::EntryAdded { dir, name, entry } => {
                put_head(writer, ENTRY_ADDED, *dir);
                put_bytes(writer, name);
                put_fid(writer, entry.fid);
                writer.u32(entry.kind);
            }
            Mutation::EntryRemoved { dir, name } => {
                put_head(writer, ENTRY_REMOVED, *dir);
                put_bytes(writer, name);
            }
            Mutation::DirChanged { dir, change } => {
                put_head(writer, DIR_CHANGED, *dir);
                writer.u64(change.time.sec as u64);
                writer.u32(change.time.ns);
                writer.u32(change.links as u32);
                writer.u64(change.bytes as u64);
            }
            Mutation::InodeMade { fid, inode } => {
                put_head(writer, INODE_MADE, *fid);
                put_bytes(writer, &inode.encode());
            }
            Mutation::InodeChanged { fid, inode } => {
                put_head(writer, INODE_CHANGED, *fid);
                put_bytes(writer, &inode.encode());
            }
            Mutation::InodeDestroyed { fid, is_dir } => {
                put_head(writer, INODE_DESTROYED, *fid);
                writer.u8((*is_dir).into());
            }
            Mutation::XattrSet { fid, name, value } => {
                put_head(writer, XATTR_SET, *fid);
                put_bytes(writer, name);
                put_bytes(writer, value);
            }
            Mutation::XattrRemoved { fid, name } => {
                put_head(writer, XATTR_REMOVED, *fid);
                put_bytes(writer, name);
            }
            Mutation::DataChanged {
                fid,
                attr,
                blocks,
                is_content,
            } => {
                put_head(writer, DATA_CHANGED, *fid);
                put_bytes(writer, &encode_attr(attr));
                writer.u8((*is_content).into());
                writer.u32(blocks.len() as u32);
                for (block, content) in blocks {
                    writer.u32(*block);
                    writer.u8(content.is_some().into());
                    put_bytes(writer, content.as_deref().unwrap_or_default());
                }
            }
            Mutation::DataRemoved { key } => {
                writer.u8(DATA_REMOVED);
                put_bytes(writer, key);
            }
            Mutation::OrphanAdded { fid } => put_head(writer, ORPHAN_ADDED, *fid),
            Mutation::OrphanRemoved { fid } => put_head(writer, ORPHAN_REMOVED, *fid),
            Mutation::ObjectQueued { object, work } => {
                put_head(writer, OBJECT_QUEUED, object.fid);
                writer.u32(object.ost.0);
                put_bytes(writer, &work.encode());
            }
            Mutation::RecordSet { key, value } => {
                writer.u8(RECORD_SET);
                put_bytes(writer, key);
                put_bytes(writer, value);
            }
            Mutation::RecordRemoved { key } => {
                writer.u8(RECORD_REMOVED);
                put_bytes(writer, key);
            }
            Mutation::UpdateKept { key, record } => {
                writer.u8(UPDATE_KEPT);
                put_bytes(writer, key);
                put_bytes(writer, record);
            }
        }
    }

    /// Takes a mutation from an update record; `bytes` is the whole record.
    ///
    /// # Errors
    ///
    /// `EPROTO` if it is malformed.
    pub(crate) fn decode(reader: &mut Reader<'_>, bytes: &Bytes) -> Result<Mutation, Errno> {
        let tag = reader.u8()?;
        if matches!(tag, RECORD_SET | RECORD_REMOVED | UPDATE_KEPT | DATA_REMOVED) {
            let key = get_bytes(reader, bytes)?;
            return Ok(match tag {
                RECORD_REMOVED => Mutation::RecordRemoved { key },
                DATA_REMOVED => Mutation::DataRemoved { key },
                RECORD_SET => Mutation::RecordSet {
                    key,
                    value: get_bytes(reader, bytes)?,
                },
                _ => Mutation::UpdateKept {
                    key,
                    record: get_bytes(reader, bytes)?,
                },
            });
        }
        let fid = get_fid(reader)?;
        Ok(match tag {
            ENTRY_ADDED => Mutation::EntryAdded {
                dir: fid,
                name: get_bytes(reader, bytes)?,
                entry: Entry {
                    fid: get_fid(reader)?,
                    kind: reader.u32()?,
                },
            },
            ENTRY_REMOVED => Mutation::EntryRemoved {
                dir: fid,
                name: get_bytes(reader, bytes)?,
            },
            DIR_CHANGED => Mutation::DirChanged {
                dir: fid,
                change: DirChange {
                    time: Time::new(reader.u64()? as i64, reader.u32()?),
                    links: reader.u32()? as i32,
                    bytes: reader.u64()? as i64,
                },
            },
            INODE_MADE => Mutation::InodeMade {
                fid,
                inode: get_inode(reader, bytes)?,
            },
            INODE_CHANGED => Mutation::InodeChanged {
                fid,
                inode: get_inode(reader, bytes)?,
            },
            INODE_DESTROYED => Mutation::InodeDestroyed {
                fid,
                is_dir: reader.u8()? != 0,
            },
            XATTR_SET => Mutation::XattrSet {
                fid,
                name: get_bytes(reader, bytes)?,
                value: get_bytes(reader, bytes)?,
            },
            XATTR_REMOVED => Mutation::XattrRemoved {
                fid,
                name: get_bytes(reader, bytes)?,
            },
            DATA_CHANGED => {
                let attr = Box::new(decode_attr(&get_bytes(reader, bytes)?)?);
                let is_content = reader.u8()? != 0;
                let mut blocks = Vec::new();
                for _ in 0..reader.u32()? {
                    let (block, has_content) = (reader.u32()?, reader.u8()? != 0);
                    let content = get_bytes(reader, bytes)?;
                    blocks.push((block, has_content.then_some(content)));
                }
                Mutation::DataChanged {
                    fid,
                    attr,
                    blocks,
                    is_content,
                }
            }
            ORPHAN_ADDED => Mutation::OrphanAdded { fid },
            ORPHAN_REMOVED => Mutation::OrphanRemoved { fid },
            OBJECT_QUEUED => Mutation::ObjectQueued {
                object: StripeObject {
                    ost: OstIndex(reader.u32()?),
                    fid,
                },
                work: Work::decode(&get_bytes(reader, bytes)?)?,
            },
            _ => return Err(Errno::EPROTO),
        })
    }
}

fn put_head(writer: &mut Writer, tag: u8, fid: Fid) {
    writer.u8(tag);
    put_fid(writer, fid);
}

/// Appends a FID.
pub(crate) fn put_fid(writer: &mut Writer, fid: Fid) {
    writer.u64(fid.f_seq);
    writer.u32(fid.f_oid);
    writer.u32(fid.f_ver);
}

fn put_bytes(writer: &mut Writer, bytes: &[u8]) {
    writer.u32(bytes.len() as u32);
    writer.put(bytes);
}

/// Takes a FID.
///
/// # Errors
///
/// `EPROTO` if too few bytes are left.
pub(crate) fn get_fid(reader: &mut Reader<'_>) -> Result<Fid, Errno> {
    Ok(Fid::new(reader.u64()?, reader.u32()?, reader.u32()?))
}

fn get_bytes(reader: &mut Reader<'_>, bytes: &Bytes) -> Result<Bytes, Errno> {
    let len = reader.u32()? as usize;
    Ok(bytes.slice_ref(reader.take(len)?))
}

fn get_inode(reader: &mut Reader<'_>, bytes: &Bytes) -> Result<Box<Inode>, Errno> {
    Ok(Box::new(Inode::decode(&get_bytes(reader, bytes)?)?))
}
