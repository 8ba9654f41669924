//! A transaction: one batch with one transaction number.
//!
//! The caller holds the inodes before the transaction gets its number, so the changes of one inode
//! have increasing numbers. Each inode that the transaction puts gets the number as its version.

use bytes::Bytes;
use osd::{Batch, SpacePurpose, TransactionGuard};
use wire::{Errno, Fid, Reader, Transno, Writer};

use super::{Entry, Inode, Ownership, Store, keys};
use crate::layout::{self, StripeObject};

/// Work on an object, sent to its OST once the transaction is on disk.
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

/// A transaction under construction.
pub struct Tx<'a> {
    store: &'a Store,
    batch: Batch,
    number: TransactionGuard,
    effects: CommitEffects,
}

/// The updates of caches, counts and queues to run after the transaction was applied.
#[derive(Default)]
pub(super) struct CommitEffects {
    /// Changed inodes, for the cache; `None`: destroyed.
    inodes: Vec<(Fid, Option<Inode>)>,
    /// Inodes that the transaction creates (true) or destroys (false).
    counted: Vec<(Fid, bool)>,
    /// Whether the transaction queues work for OSTs.
    has_work: bool,
}

/// The parts of a transaction, for committing it together with others.
pub(super) struct TxParts<'a> {
    pub(super) store: &'a Store,
    pub(super) batch: Batch,
    /// In flight until the batch is applied.
    pub(super) number: TransactionGuard,
    pub(super) effects: CommitEffects,
}

impl Store {
    /// Begins a transaction that may use the space reserve. The caller holds the inodes to change.
    pub fn begin(&self) -> Tx<'_> {
        let number = self.transactions().begin();
        Tx {
            store: self,
            batch: Batch::new(),
            number,
            effects: CommitEffects::default(),
        }
    }

    /// Like [`Store::begin`], for a transaction that adds data: it may not use the space reserve.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the space is used up to the reserve.
    pub fn begin_growth(&self) -> Result<Tx<'_>, Errno> {
        self.index.space().check(SpacePurpose::Growth)?;
        Ok(self.begin())
    }
}

impl Tx<'_> {
    /// The transaction number.
    pub fn transno(&self) -> Transno {
        self.number.transno()
    }

    /// Puts an inode, with the transaction number as its version.
    pub fn put_inode(&mut self, fid: Fid, inode: &mut Inode) {
        self.put_record(fid, inode);
        self.effects.inodes.push((fid, Some(inode.clone())));
    }

    /// Puts a new inode. Does not cache a new directory: other operations may change it as soon as
    /// it is visible, and the creator's late update of the cache would replace their changes.
    pub fn put_new_inode(&mut self, fid: Fid, inode: &mut Inode) {
        self.count(fid, true);
        match inode.is_dir() {
            true => self.put_record(fid, inode),
            false => self.put_inode(fid, inode),
        }
    }

    /// Counts an inode that this transaction creates (`exists`) or destroys.
    fn count(&mut self, fid: Fid, exists: bool) {
        self.store.count.announce(fid, !exists);
        self.effects.counted.push((fid, exists));
    }

    fn put_record(&mut self, fid: Fid, inode: &mut Inode) {
        inode.version = self.transno().0;
        self.batch.put(keys::inode(fid), inode.encode());
    }

    /// Puts an entry.
    pub fn put_entry(&mut self, dir: Fid, name: &[u8], entry: Entry) {
        self.batch.put(keys::entry(dir, name), encode_entry(entry));
    }

    /// Removes an entry.
    pub fn delete_entry(&mut self, dir: Fid, name: &[u8]) {
        self.batch.delete(keys::entry(dir, name));
    }

    /// Puts an extended attribute.
    pub fn put_xattr(&mut self, fid: Fid, name: &[u8], value: Bytes) {
        self.batch.put(keys::xattr(fid, name), value);
    }

    /// Removes an extended attribute.
    pub fn delete_xattr(&mut self, fid: Fid, name: &[u8]) {
        self.batch.delete(keys::xattr(fid, name));
    }

    /// Puts a record of another kind.
    pub fn put(&mut self, key: Bytes, value: Bytes) {
        self.batch.put(key, value);
    }

    /// Removes a record of another kind.
    pub fn delete(&mut self, key: Bytes) {
        self.batch.delete(key);
    }

    /// Puts the orphan record of an inode without links that is open.
    pub fn put_orphan(&mut self, fid: Fid) {
        self.batch.put(keys::orphan(fid), Bytes::new());
    }

    /// Queues work on each object of a layout.
    ///
    /// # Errors
    ///
    /// The error of a malformed layout.
    pub fn put_work(&mut self, lov: &[u8], work: Work) -> Result<(), Errno> {
        for object in layout::objects(lov)? {
            self.put_work_on(object, work);
        }
        Ok(())
    }

    /// Queues the adoption ([`Work::Adopt`]) of the objects of a file's new layout.
    ///
    /// # Errors
    ///
    /// The error of a malformed layout.
    pub fn put_adoption(&mut self, file: Fid, inode: &Inode) -> Result<(), Errno> {
        for (stripe, object) in (0..).zip(layout::objects(&inode.lov)?) {
            let work = Work::Adopt {
                file,
                stripe,
                ownership: inode.ownership(),
            };
            self.put_work_on(object, work);
        }
        Ok(())
    }

    /// Queues the destruction of an object that belongs to no file.
    pub fn put_destroy(&mut self, object: StripeObject) {
        self.put_work_on(object, Work::Destroy);
    }

    fn put_work_on(&mut self, StripeObject { ost, fid }: StripeObject, work: Work) {
        self.batch
            .put(keys::work(ost, self.transno(), fid), work.encode());
        self.effects.has_work = true;
    }

    /// Destroys an inode with its extended attributes and its objects on OSTs.
    ///
    /// # Errors
    ///
    /// The error of a malformed layout or of the index.
    pub fn destroy(&mut self, fid: Fid, inode: &Inode) -> Result<(), Errno> {
        if inode.has_xattrs {
            for (name, _) in self.store.xattrs(fid)? {
                self.delete_xattr(fid, &name);
            }
        }
        if inode.is_file() {
            self.put_work(&inode.lov, Work::Destroy)?;
        }
        self.batch.delete(keys::inode(fid));
        self.count(fid, false);
        self.effects.inodes.push((fid, None));
        Ok(())
    }

    /// Destroys an inode that has an orphan record.
    ///
    /// # Errors
    ///
    /// The same as [`Tx::destroy`].
    pub fn destroy_orphan(&mut self, fid: Fid, inode: &Inode) -> Result<(), Errno> {
        self.batch.delete(keys::orphan(fid));
        self.destroy(fid, inode)
    }

    /// Applies the transaction; its changes are visible when this function returns.
    ///
    /// # Errors
    ///
    /// `ENOSPC` or another error of the index; then nothing is changed.
    pub fn commit(self) -> Result<Transno, Errno> {
        let TxParts {
            store,
            batch,
            number,
            effects,
        } = self.into_parts();
        store.index.apply(batch)?;
        effects.run(store, number.transno());
        Ok(number.transno())
    }
}

impl<'a> Tx<'a> {
    pub(super) fn into_parts(mut self) -> TxParts<'a> {
        self.batch.transno = Some(self.transno());
        TxParts {
            store: self.store,
            batch: self.batch,
            number: self.number,
            effects: self.effects,
        }
    }
}

impl CommitEffects {
    /// Runs the updates.
    pub(super) fn run(self, store: &Store, transno: Transno) {
        for (fid, inode) in self.inodes {
            store.inode_cache.update(fid, inode);
        }
        for (fid, exists) in self.counted {
            store.count.count_applied(fid, exists);
        }
        if self.has_work {
            store.work.send_modify(|last| *last = transno.max(*last));
        }
    }
}
