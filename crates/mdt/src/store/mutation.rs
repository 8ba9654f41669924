//! A change of the store as data: a list of mutations.
//!
//! An operation reads what it needs, plans a [`Change`] from that, and applies it
//! ([`super::Store::apply_if_current`]). Only then does the change get its transaction number,
//! which becomes the version of each inode that the change creates or changes. This module alone
//! translates mutations into records.

use bytes::Bytes;
use osd::{Batch, ObjAttr};
use wire::{Errno, Fid, Reader, Transno, Writer};

use super::{DirChange, Entry, FileData, Inode, Origin, Work, data::encode_attr, keys};
use crate::layout::{self, StripeObject};

/// One mutation of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A name leads to this inode; it may have led to another one before.
    EntryAdded {
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
        /// The inode.
        entry: Entry,
    },
    /// A name is removed.
    EntryRemoved {
        /// The directory.
        dir: Fid,
        /// The name.
        name: Bytes,
    },
    /// An operation on names changes the record of their directory.
    DirChanged {
        /// The directory.
        dir: Fid,
        /// The difference.
        change: DirChange,
    },
    /// An inode is created.
    InodeMade {
        /// Its FID.
        fid: Fid,
        /// The inode. Its version becomes the transaction number.
        inode: Box<Inode>,
    },
    /// An inode changes.
    InodeChanged {
        /// Its FID.
        fid: Fid,
        /// The new contents. The version becomes the transaction number.
        inode: Box<Inode>,
    },
    /// An inode is destroyed.
    InodeDestroyed {
        /// Its FID.
        fid: Fid,
        /// Whether it is a directory.
        is_dir: bool,
    },
    /// An extended attribute that has its own record is set.
    XattrSet {
        /// The inode.
        fid: Fid,
        /// The attribute's name.
        name: Bytes,
        /// The new value.
        value: Bytes,
    },
    /// An extended attribute that has its own record is removed.
    XattrRemoved {
        /// The inode.
        fid: Fid,
        /// The attribute's name.
        name: Bytes,
    },
    /// The data of a file on this MDT changes.
    DataChanged {
        /// The file.
        fid: Fid,
        /// The new attributes.
        attr: Box<ObjAttr>,
        /// Blocks by number with their new contents; `None` removes a block.
        blocks: Vec<(u32, Option<Bytes>)>,
        /// Whether the content changes. The data version then becomes the transaction number.
        is_content: bool,
    },
    /// A record of a file's data is removed, because the file is destroyed.
    DataRemoved {
        /// Its key.
        key: Bytes,
    },
    /// The inode has no links any more and is open.
    OrphanAdded {
        /// The inode.
        fid: Fid,
    },
    /// The inode is no orphan any more.
    OrphanRemoved {
        /// The inode.
        fid: Fid,
    },
    /// An OST has to do work on an object once the transaction is on disk.
    ObjectQueued {
        /// The object.
        object: StripeObject,
        /// The work.
        work: Work,
    },
    /// A record of a kind that no other mutation sets gets this value.
    RecordSet {
        /// Its key.
        key: Bytes,
        /// The new value.
        value: Bytes,
    },
    /// A record of any kind is removed, for repairs.
    RecordRemoved {
        /// Its key.
        key: Bytes,
    },
    /// The MDT keeps the update record of an operation on several MDTs.
    UpdateKept {
        /// The key ([`keys::update`]).
        key: Bytes,
        /// The record.
        record: Bytes,
    },
}

/// The records of an inode besides the inode itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnRecords {
    /// The names of its extended attributes.
    pub xattrs: Vec<Bytes>,
    /// The keys of its data on this MDT.
    pub data: Vec<Bytes>,
}

/// A planned change: all its mutations are applied, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The mutations. No two of them change the same record.
    pub mutations: Vec<Mutation>,
    /// Whether the change adds data: then it may not use the space reserve.
    pub grows: bool,
    /// The request that makes the change.
    pub origin: Origin,
    /// `pb_pre_versions` of the reply. The first positions belong to the directories with changed
    /// names: they are set when the change is applied.
    pub pre_versions: [u64; 4],
}

impl Change {
    /// A change without mutations. Its transaction number orders an operation that changes only the
    /// state in memory, such as an open.
    pub fn new() -> Change {
        Change::default()
    }

    /// A change that adds data: it fails with `ENOSPC` if the space is used up to the reserve.
    pub fn growing() -> Change {
        Change {
            grows: true,
            ..Change::default()
        }
    }

    /// Adds the entry of a name, or replaces it.
    pub fn add_entry(&mut self, dir: Fid, name: &[u8], entry: Entry) {
        let name = Bytes::copy_from_slice(name);
        self.mutations.push(Mutation::EntryAdded { dir, name, entry });
    }

    /// Removes a name.
    pub fn remove_entry(&mut self, dir: Fid, name: &[u8]) {
        let name = Bytes::copy_from_slice(name);
        self.mutations.push(Mutation::EntryRemoved { dir, name });
    }

    /// Changes the record of a directory in which the change adds or removes names. A change has at
    /// most two such directories.
    pub fn change_dir(&mut self, dir: Fid, change: DirChange) {
        self.mutations.push(Mutation::DirChanged { dir, change });
    }

    /// Creates an inode.
    pub fn make_inode(&mut self, fid: Fid, inode: &Inode) {
        let inode = Box::new(inode.clone());
        self.mutations.push(Mutation::InodeMade { fid, inode });
    }

    /// Changes an inode.
    pub fn change_inode(&mut self, fid: Fid, inode: &Inode) {
        let inode = Box::new(inode.clone());
        self.mutations.push(Mutation::InodeChanged { fid, inode });
    }

    /// Destroys an inode with its other records, and its objects on OSTs.
    ///
    /// # Errors
    ///
    /// The error of a malformed layout.
    pub fn destroy_inode(&mut self, fid: Fid, inode: &Inode, own: OwnRecords) -> Result<(), Errno> {
        for name in own.xattrs {
            self.mutations.push(Mutation::XattrRemoved { fid, name });
        }
        for key in own.data {
            self.mutations.push(Mutation::DataRemoved { key });
        }
        if inode.is_file() {
            self.queue_work(&inode.lov, Work::Destroy)?;
        }
        let is_dir = inode.is_dir();
        self.mutations.push(Mutation::InodeDestroyed { fid, is_dir });
        Ok(())
    }

    /// Changes the data of a file. `is_content`: not only its times.
    pub fn change_data(&mut self, fid: Fid, data: FileData, is_content: bool) {
        let (attr, blocks) = data.into_changes();
        self.mutations.push(Mutation::DataChanged {
            fid,
            attr: Box::new(attr),
            blocks,
            is_content,
        });
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&mut self, fid: Fid, name: &[u8], value: Bytes) {
        let name = Bytes::copy_from_slice(name);
        self.mutations.push(Mutation::XattrSet { fid, name, value });
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&mut self, fid: Fid, name: &[u8]) {
        let name = Bytes::copy_from_slice(name);
        self.mutations.push(Mutation::XattrRemoved { fid, name });
    }

    /// Records that an inode is open and has no links.
    pub fn add_orphan(&mut self, fid: Fid) {
        self.mutations.push(Mutation::OrphanAdded { fid });
    }

    /// Removes the record of an orphan.
    pub fn remove_orphan(&mut self, fid: Fid) {
        self.mutations.push(Mutation::OrphanRemoved { fid });
    }

    /// Queues work on each object of a layout.
    ///
    /// # Errors
    ///
    /// The error of a malformed layout.
    pub fn queue_work(&mut self, lov: &[u8], work: Work) -> Result<(), Errno> {
        for object in layout::objects(lov)? {
            self.mutations.push(Mutation::ObjectQueued { object, work });
        }
        Ok(())
    }

    /// Queues the adoption ([`Work::Adopt`]) of the objects of a file's new layout.
    ///
    /// # Errors
    ///
    /// The error of a malformed layout.
    pub fn queue_set_parent(&mut self, file: Fid, inode: &Inode) -> Result<(), Errno> {
        for (place, object) in layout::placed_objects(&inode.lov)? {
            let work = Work::Adopt {
                file,
                stripe: place.stripe.into(),
                ownership: inode.ownership(),
            };
            self.mutations.push(Mutation::ObjectQueued { object, work });
        }
        Ok(())
    }

    /// Queues the destruction of an object that belongs to no file.
    pub fn queue_destroy(&mut self, object: StripeObject) {
        let work = Work::Destroy;
        self.mutations.push(Mutation::ObjectQueued { object, work });
    }

    /// Sets a record of a kind that no other method sets.
    pub fn set_record(&mut self, key: Bytes, value: Bytes) {
        self.mutations.push(Mutation::RecordSet { key, value });
    }

    /// Removes a record of any kind.
    pub fn remove_record(&mut self, key: Bytes) {
        self.mutations.push(Mutation::RecordRemoved { key });
    }

    /// Whether the change creates, changes or destroys this inode.
    pub(crate) fn puts_inode(&self, fid: Fid) -> bool {
        self.inodes().any(|inode| inode == fid)
    }

    /// The inodes that the change creates, changes or destroys.
    pub(super) fn inodes(&self) -> impl Iterator<Item = Fid> + '_ {
        self.mutations.iter().filter_map(Mutation::inode_of)
    }

    /// The existing directories whose records the change replaces or removes.
    pub(super) fn replaced_dirs(&self) -> impl Iterator<Item = Fid> + '_ {
        self.mutations.iter().filter_map(|mutation| match mutation {
            Mutation::InodeChanged { fid, inode } if inode.is_dir() => Some(*fid),
            Mutation::InodeDestroyed { fid, is_dir: true } => Some(*fid),
            _ => None,
        })
    }

    /// `pb_pre_versions` of the reply, given the versions of the directories with changed names.
    pub(crate) fn pre_versions_with(&self, dir_versions: &[u64]) -> [u64; 4] {
        let dirs = self.dirs_changed().min(dir_versions.len());
        let mut pre_versions = self.pre_versions;
        pre_versions[..dirs].copy_from_slice(&dir_versions[..dirs]);
        pre_versions
    }

    /// The number of directories in which the change adds or removes names.
    pub(crate) fn dirs_changed(&self) -> usize {
        self.dir_changes().count()
    }

    /// The directories in which the change adds or removes names, with the changes of their
    /// records.
    pub(super) fn dir_changes(&self) -> impl Iterator<Item = (Fid, DirChange)> + '_ {
        self.mutations.iter().filter_map(|mutation| match mutation {
            Mutation::DirChanged { dir, change } => Some((*dir, *change)),
            _ => None,
        })
    }
}

impl Mutation {
    /// The directory of the names or of the record that the mutation changes, if it changes names.
    pub(crate) fn names_of(&self) -> Option<Fid> {
        match self {
            Mutation::EntryAdded { dir, .. }
            | Mutation::EntryRemoved { dir, .. }
            | Mutation::DirChanged { dir, .. } => Some(*dir),
            _ => None,
        }
    }

    /// The inode that the mutation creates, changes or destroys.
    pub(crate) fn inode_of(&self) -> Option<Fid> {
        match self {
            Mutation::InodeMade { fid, .. }
            | Mutation::InodeChanged { fid, .. }
            | Mutation::InodeDestroyed { fid, .. } => Some(*fid),
            _ => None,
        }
    }

    /// Sets the version of the mutation's inode or data.
    pub(super) fn set_version(&mut self, transno: Transno) {
        match self {
            Mutation::InodeMade { inode, .. } | Mutation::InodeChanged { inode, .. } => {
                inode.version = transno.0;
            }
            Mutation::DataChanged {
                attr,
                is_content: true,
                ..
            } => attr.data_version = transno.0,
            _ => {}
        }
    }

    /// Adds the records to a batch, except the record of a directory with changed names
    /// ([`Mutation::DirChanged`]).
    pub(super) fn add_records(&self, transno: Transno, batch: &mut Batch) {
        match self {
            Mutation::EntryAdded { dir, name, entry } => {
                batch.put(keys::entry(*dir, name), encode_entry(*entry));
            }
            Mutation::EntryRemoved { dir, name } => {
                batch.delete(keys::entry(*dir, name));
            }
            Mutation::DirChanged { .. } => {}
            Mutation::InodeMade { fid, inode } | Mutation::InodeChanged { fid, inode } => {
                batch.put(keys::inode(*fid), inode.encode());
            }
            Mutation::InodeDestroyed { fid, .. } => {
                batch.delete(keys::inode(*fid));
            }
            Mutation::XattrSet { fid, name, value } => {
                batch.put(keys::xattr(*fid, name), value.clone());
            }
            Mutation::XattrRemoved { fid, name } => {
                batch.delete(keys::xattr(*fid, name));
            }
            Mutation::DataChanged {
                fid, attr, blocks, ..
            } => {
                batch.put(keys::data(*fid), encode_attr(attr));
                for (number, block) in blocks {
                    let key = keys::data_block(*fid, *number);
                    match block {
                        Some(block) => batch.put(key, block.clone()),
                        None => batch.delete(key),
                    };
                }
            }
            Mutation::DataRemoved { key } => {
                batch.delete(key.clone());
            }
            Mutation::OrphanAdded { fid } => {
                batch.put(keys::orphan(*fid), Bytes::new());
            }
            Mutation::OrphanRemoved { fid } => {
                batch.delete(keys::orphan(*fid));
            }
            Mutation::ObjectQueued { object, work } => {
                batch.put(keys::work(object.ost, transno, object.fid), work.encode());
            }
            Mutation::RecordSet { key, value } => {
                batch.put_twice(key.clone(), value.clone());
            }
            Mutation::RecordRemoved { key } => {
                batch.delete_twice(key.clone());
            }
            Mutation::UpdateKept { key, record } => {
                batch.put(key.clone(), record.clone());
            }
        }
    }
}

fn encode_entry(entry: Entry) -> Bytes {
    let mut writer = Writer::with_capacity(20);
    writer.u64(entry.fid.f_seq);
    writer.u32(entry.fid.f_oid);
    writer.u32(entry.fid.f_ver);
    writer.u32(entry.kind);
    writer.finish()
}

pub(crate) fn decode_entry(value: &[u8]) -> Result<Entry, Errno> {
    let mut reader = Reader::new("directory entry", value);
    Ok(Entry {
        fid: Fid::new(reader.u64()?, reader.u32()?, reader.u32()?),
        kind: reader.u32()?,
    })
}
