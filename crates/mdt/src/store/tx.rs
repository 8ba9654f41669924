//! A transaction: one batch with one transaction number.
//!
//! The number is allocated while the inodes are held, so changes of one inode have numbers in the
//! order of the changes. Every inode that is put gets the number as its version.

use bytes::Bytes;
use osd::{Batch, TransactionGuard, SpacePurpose};
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
    /// Set the object's file, owner, group and project, after a swap of layouts.
    Adopt {
        /// The file.
        file: Fid,
        /// The index of the stripe in the file.
        stripe: u32,
        /// The owner, group and project.
        ownership: Ownership,
    },
}

impl Work {
    pub(crate) fn encode(self) -> Bytes {
        let mut w = Writer::with_capacity(33);
        match self {
            Work::Destroy => w.u8(0),
            Work::Chown(ownership) => {
                w.u8(1);
                encode_ownership(&mut w, ownership);
            }
            Work::Adopt {
                file,
                stripe,
                ownership,
            } => {
                w.u8(2);
                w.u64(file.f_seq);
                [file.f_oid, file.f_ver, stripe]
                    .into_iter()
                    .for_each(|v| w.u32(v));
                encode_ownership(&mut w, ownership);
            }
        }
        w.finish()
    }

    pub(crate) fn decode(value: &[u8]) -> Result<Work, Errno> {
        let mut r = Reader::new("work for an OST", value);
        match r.u8()? {
            0 => Ok(Work::Destroy),
            1 => Ok(Work::Chown(decode_ownership(&mut r)?)),
            2 => Ok(Work::Adopt {
                file: Fid::new(r.u64()?, r.u32()?, r.u32()?),
                stripe: r.u32()?,
                ownership: decode_ownership(&mut r)?,
            }),
            _ => Err(Errno::EIO),
        }
    }
}

fn encode_ownership(w: &mut Writer, Ownership { uid, gid, projid }: Ownership) {
    [uid, gid, projid].into_iter().for_each(|v| w.u32(v));
}

fn decode_ownership(r: &mut Reader<'_>) -> Result<Ownership, Errno> {
    Ok(Ownership {
        uid: r.u32()?,
        gid: r.u32()?,
        projid: r.u32()?,
    })
}

fn encode_entry(entry: Entry) -> Bytes {
    let mut w = Writer::with_capacity(20);
    w.u64(entry.fid.f_seq);
    w.u32(entry.fid.f_oid);
    w.u32(entry.fid.f_ver);
    w.u32(entry.kind);
    w.finish()
}

pub(crate) fn decode_entry(value: &[u8]) -> Result<Entry, Errno> {
    let mut r = Reader::new("directory entry", value);
    Ok(Entry {
        fid: Fid::new(r.u64()?, r.u32()?, r.u32()?),
        kind: r.u32()?,
    })
}

/// A transaction under construction.
pub struct Tx<'a> {
    store: &'a Store,
    batch: Batch,
    number: TransactionGuard,
    after: After,
}

/// Updates of caches and queues after the transaction was applied.
#[derive(Default)]
pub(super) struct After {
    /// Inodes after the transaction; `None`: destroyed.
    inodes: Vec<(Fid, Option<Inode>)>,
    /// Inodes that the transaction creates (true) or destroys (false).
    counted: Vec<(Fid, bool)>,
    /// Whether the transaction queues work for OSTs.
    has_work: bool,
}

/// The parts of a transaction, for committing it together with others.
pub(super) struct Parts<'a> {
    pub(super) store: &'a Store,
    pub(super) batch: Batch,
    /// In flight until the batch is applied.
    pub(super) number: TransactionGuard,
    pub(super) after: After,
}

impl Store {
    /// Begins a transaction that may use the space reserve. The caller holds the inodes that the
    /// transaction changes.
    pub fn begin(&self) -> Tx<'_> {
        let number = self.transactions().begin();
        Tx {
            store: self,
            batch: Batch::new(),
            number,
            after: After::default(),
        }
    }

    /// As [`Store::begin`], for a transaction that adds data: it may not use the space reserve.
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
        self.after.inodes.push((fid, Some(inode.clone())));
    }

    /// Puts a new inode. A new directory is not entered in the cache: as soon as it is visible,
    /// other operations may change it and enter the change, which a late entry of its creator would
    /// replace.
    pub fn put_new(&mut self, fid: Fid, inode: &mut Inode) {
        self.count(fid, true);
        match inode.is_dir() {
            true => self.put_record(fid, inode),
            false => self.put_inode(fid, inode),
        }
    }

    /// Counts an inode that this transaction creates (`exists`) or destroys.
    fn count(&mut self, fid: Fid, exists: bool) {
        self.store.count.announce(fid, !exists);
        self.after.counted.push((fid, exists));
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

    /// Queues the adoption of the objects of a file's new layout.
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
        self.after.has_work = true;
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
        self.after.inodes.push((fid, None));
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
        let Parts {
            store,
            batch,
            number,
            after,
        } = self.into_parts();
        store.index.apply(batch)?;
        after.applied(store, number.transno());
        Ok(number.transno())
    }
}

impl<'a> Tx<'a> {
    pub(super) fn into_parts(mut self) -> Parts<'a> {
        self.batch.transno = Some(self.transno());
        Parts {
            store: self.store,
            batch: self.batch,
            number: self.number,
            after: self.after,
        }
    }
}

impl After {
    /// Updates caches and queues; the transaction was applied.
    pub(super) fn applied(self, store: &Store, transno: Transno) {
        for (fid, inode) in self.inodes {
            store.inodes.changed(fid, inode);
        }
        for (fid, exists) in self.counted {
            store.count.applied(fid, exists);
        }
        if self.has_work {
            store.work.send_modify(|w| *w = transno.max(*w));
        }
    }
}
