//! Repairs problems. Unreachable inodes get a name in `/lost+found`. If a repair is interrupted,
//! the next check finds the remaining problem.

use std::sync::Arc;

use bytes::Bytes;
use osd::{Batch, prefix_end};
use wire::{
    Errno, Fid, LU_SEQ_RANGE_MDT, LUSTRE_ORPHAN_FL, LuSeqRange, OstIndex, Time, Transno, WireStruct,
    striping::LovLayout,
};

use super::{Problem, problem::InodePart};
use crate::{
    cred::Cred,
    layout::{self, StripeObject, StripePlace},
    namespace::{NewInode, create, lookup, make_root, set_layout},
    osp::pool::LastUsedId,
    sequences::{SUPER_SEQUENCE, Sequences},
    store::{Change, DIR_BLOCK, Entry, Inode, NameHash, S_IFDIR, S_IFREG, Store, Work, keys, links},
    target::wall_clock,
};

/// The directory for unreachable inodes.
const LOST_FOUND: &[u8] = b"lost+found";
/// Maximum number of records removed in one batch.
const ROWS_MAX: usize = 1024;

/// Repairs a store.
pub struct Repairer {
    store: Arc<Store>,
    mdt_index: u32,
    /// The last FID allocated for a new inode.
    last_fid: Option<Fid>,
    /// The time of the repair, for new inodes and links.
    now: Time,
}

impl Repairer {
    /// Creates a repairer for the store of the MDT with index `mdt_index`.
    pub fn new(store: Arc<Store>, mdt_index: u32) -> Repairer {
        Repairer {
            store,
            mdt_index,
            last_fid: None,
            now: wall_clock(),
        }
    }

    /// Repairs a problem. Does nothing if the problem has no repair.
    ///
    /// # Errors
    ///
    /// The error of reading or changing the store.
    pub async fn repair(&mut self, problem: &Problem) -> Result<(), Errno> {
        self.store.index().throttle().await;
        let store = self.store.clone();
        match problem {
            Problem::BadRecord { key, .. } => self.remove(key.clone()).await,
            Problem::BadName { key, .. } => self.remove(key.clone()).await,
            Problem::UnknownRecord { .. } | Problem::UnknownSequence { owner: Some(_), .. } => Ok(()),
            Problem::NoRoot => make_root(&store, (0, 0), self.now).await,
            Problem::EntriesWithoutDirectory { dir, kind: None } => {
                let mut inode = Inode {
                    mode: S_IFDIR | 0o700,
                    nlink: 2,
                    ..self.new_dir_inode()
                };
                self.name_in_lost_found(*dir, &mut inode).await
            }
            Problem::EntriesWithoutDirectory { dir, .. } => {
                self.remove_all(&keys::entries_from(*dir, NameHash(0))[..keys::FID_KEY_BYTES])
                    .await
            }
            Problem::MisplacedEntry { dir, key, entry } => {
                let (_, name) = keys::entry_name(key).ok_or(Errno::EINVAL)?;
                let mut change = Change::new();
                change.remove_record(key.clone());
                if store.entry(*dir, &name).await?.is_none() {
                    change.add_entry(*dir, &name, *entry);
                }
                self.apply(change).await
            }
            Problem::DanglingName { dir, name, .. }
            | Problem::ExtraName { dir, name, .. }
            | Problem::DirectoryCycle { dir, name, .. } => self.remove(keys::entry(*dir, name)).await,
            Problem::WrongType {
                dir,
                name,
                entry,
                kind,
            } => {
                let mut change = Change::new();
                change.add_entry(
                    *dir,
                    name,
                    Entry {
                        kind: *kind,
                        ..*entry
                    },
                );
                self.apply(change).await
            }
            Problem::UnnamedInode { fid, .. } => {
                let mut inode = store.inode(*fid).await?;
                self.name_in_lost_found(*fid, &mut inode).await
            }
            Problem::MissingOrphanRecord { fid } => {
                let inode = store.inode(*fid).await?;
                let mut change = Change::new();
                change.remove_orphan(*fid);
                change.destroy_inode(*fid, &inode, store.own_records(*fid, &inode).await?)?;
                self.apply(change).await
            }
            Problem::StaleOrphanRecord { fid, .. } => self.remove(keys::orphan(*fid)).await,
            Problem::WrongLinkCount { fid, expected, .. } => {
                self.change(*fid, |inode| {
                    inode.nlink = *expected;
                    inode.flags &= !LUSTRE_ORPHAN_FL;
                })
                .await
            }
            Problem::WrongLinks { fid, names } => {
                self.change(*fid, |inode| {
                    inode.links = names.iter().fold(Bytes::new(), |ea, (dir, name)| {
                        links::add(&ea, *dir, name, self.now.sec)
                    });
                })
                .await
            }
            Problem::XattrsWithoutInode { fid } => self.remove_all(&keys::xattr(*fid, b"")).await,
            Problem::UnflaggedXattrs { fid } => self.change(*fid, |inode| inode.has_xattrs = true).await,
            Problem::DataWithoutFile { fid } => self.remove_all(&keys::data(*fid)).await,
            Problem::WrongData { fid, .. } => {
                let mut change = Change::new();
                change.change_data(*fid, store.repaired_data(*fid).await?, false);
                self.apply(change).await
            }
            Problem::BadPart { fid, part, .. } => {
                self.change(*fid, |inode| {
                    *match part {
                        InodePart::Layout => &mut inode.lov,
                        InodePart::AccessAcl => &mut inode.acl_access,
                        InodePart::DefaultAcl => &mut inode.acl_default,
                        InodePart::DefaultDirLayout => &mut inode.default_lmv,
                    } = Bytes::new();
                })
                .await
            }
            Problem::UnknownSequence { seq, owner: None } => self.add_fldb_entry(LuSeqRange {
                lsr_start: *seq,
                lsr_end: seq.saturating_add(1),
                lsr_index: self.mdt_index,
                lsr_flags: LU_SEQ_RANGE_MDT,
            }),
            Problem::UnallocatedSequence { seq } => {
                let own = keys::setting(SUPER_SEQUENCE);
                let value = store.index().get(&own).await?.ok_or(Errno::ENOENT)?;
                let range = LuSeqRange::from_bytes(&value)?;
                let lsr_start = range.lsr_start.max(seq.saturating_add(1)).min(range.lsr_end);
                self.put(own, LuSeqRange { lsr_start, ..range }.to_bytes())
            }
        }
    }

    /// Replaces the object of a stripe.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the file has no such stripe, or the error of reading or changing the store.
    pub async fn replace_object(
        &self,
        file: Fid,
        place: StripePlace,
        object: StripeObject,
    ) -> Result<(), Errno> {
        let inode = self.store.inode(file).await?;
        let mut layout = LovLayout::parse(&inode.lov)?;
        let plain = match &mut layout {
            LovLayout::Plain(plain) => Some(plain),
            LovLayout::Composite(composite) => {
                let component = composite.components.get_mut(usize::from(place.component));
                component.map(|(_, plain)| plain)
            }
            LovLayout::Foreign(..) => None,
        };
        let plain = plain.ok_or(Errno::EINVAL)?;
        let old = plain
            .objects
            .get_mut(usize::from(place.stripe))
            .ok_or(Errno::EINVAL)?;
        (old.l_ost_oi, old.l_ost_idx) = (object.fid.into(), object.ost.0);
        let lov = layout.build();
        self.change(file, |inode| inode.lov = lov).await
    }

    /// Creates a file of this user and group in `lost+found`, with an orphan object as its only
    /// stripe; returns the file's FID.
    ///
    /// # Errors
    ///
    /// `ENOTDIR` if `lost+found` is no directory, or the error of changing the store.
    pub async fn create_lost_file(
        &mut self,
        object: StripeObject,
        (uid, gid): (u32, u32),
        name: &str,
    ) -> Result<Fid, Errno> {
        let dir = self.lost_found().await?;
        let fid = self.new_fid().await?;
        let node = NewInode {
            fid,
            mode: S_IFREG | 0o600,
            time: self.now,
            ..NewInode::default()
        };
        let cred = Cred {
            fsuid: uid,
            fsgid: gid,
            ..Cred::root()
        };
        create(&self.store, &cred, dir, name.as_bytes(), &node).await?;
        let lov = layout::build(fid, 0, wire::Text::default(), &[object]);
        set_layout(&self.store, fid, lov).await?;
        Ok(fid)
    }

    /// The sequence of an OST's objects and the recorded bound of the used ids; `None` without a
    /// record.
    ///
    /// # Errors
    ///
    /// The error of reading the store.
    pub async fn last_used(&self, ost: OstIndex) -> Result<Option<(u64, u32)>, Errno> {
        let value = self.store.index().get(&keys::objects(ost)).await?;
        Ok(value
            .map(|value| LastUsedId::decode(&value))
            .transpose()?
            .map(|record| (record.seq, record.used)))
    }

    /// Records the sequence of an OST's objects and the bound of the used ids.
    ///
    /// # Errors
    ///
    /// The error of changing the store.
    pub fn set_last_used(&self, ost: OstIndex, (seq, used): (u64, u32)) -> Result<(), Errno> {
        self.put(keys::objects(ost), LastUsedId { seq, used }.encode())
    }

    /// Removes the record of an OST's objects, so that the MDT requests a new sequence.
    ///
    /// # Errors
    ///
    /// The error of changing the store.
    pub async fn reset_sequence(&self, ost: OstIndex) -> Result<(), Errno> {
        self.remove(keys::objects(ost)).await
    }

    /// Adds a range of sequences to the FLDB.
    ///
    /// # Errors
    ///
    /// The error of changing the store.
    pub fn add_fldb_entry(&self, range: LuSeqRange) -> Result<(), Errno> {
        self.put(keys::location(range.lsr_start), range.to_bytes())
    }

    /// Removes all destroys of an object from the OST's queue of work.
    ///
    /// # Errors
    ///
    /// The error of reading or changing the store.
    pub async fn cancel_destroy(&self, ost: OstIndex, object: Fid) -> Result<(), Errno> {
        let from = keys::work_from(ost, Transno::NONE);
        let mut keys_to_remove = Vec::new();
        let progress = Default::default();
        osd::check::for_each_entry(
            &**self.store.index(),
            &from[..keys::OST_KEY_BYTES],
            &progress,
            |key, value| {
                if keys::work_object(&key) == Some(object) && Work::decode(&value) == Ok(Work::Destroy) {
                    keys_to_remove.push(key);
                }
                Ok::<(), osd::OsdError>(())
            },
        )
        .await?;
        for key in keys_to_remove {
            self.remove(key).await?;
        }
        Ok(())
    }

    /// Stores an inode without names under a name in `lost+found`.
    async fn name_in_lost_found(&mut self, fid: Fid, inode: &mut Inode) -> Result<(), Errno> {
        let dir = self.lost_found().await?;
        let name = format!("{:#x}:{:#x}:{:#x}", fid.f_seq, fid.f_oid, fid.f_ver);
        inode.links = links::add(b"", dir, name.as_bytes(), self.now.sec);
        inode.flags &= !LUSTRE_ORPHAN_FL;
        if !inode.is_dir() {
            inode.nlink = 1;
        }
        let mut parent = self.store.inode(dir).await?;
        parent.nlink += u32::from(inode.is_dir());
        let kind = inode.kind();
        let mut change = Change::new();
        change.add_entry(dir, name.as_bytes(), Entry { fid, kind });
        change.change_inode(fid, inode);
        change.change_inode(dir, &parent);
        change.remove_orphan(fid);
        self.apply(change).await
    }

    /// The directory `lost+found`, created if missing.
    async fn lost_found(&mut self) -> Result<Fid, Errno> {
        if self.mdt_index != 0 {
            // MDT0000 has the only root directory.
            return Err(Errno::EOPNOTSUPP);
        }
        let root = Cred::root();
        if self.store.find(Fid::ROOT).await?.is_none() {
            make_root(&self.store, (0, 0), self.now).await?;
        }
        match lookup(&self.store, &root, Fid::ROOT, LOST_FOUND).await? {
            Some(entry) if entry.kind == S_IFDIR => Ok(entry.fid),
            Some(_) => Err(Errno::ENOTDIR),
            None => {
                let node = NewInode {
                    fid: self.new_fid().await?,
                    mode: S_IFDIR | 0o700,
                    time: self.now,
                    ..NewInode::default()
                };
                create(&self.store, &root, Fid::ROOT, LOST_FOUND, &node).await?;
                Ok(node.fid)
            }
        }
    }

    /// Allocates a new FID.
    async fn new_fid(&mut self) -> Result<Fid, Errno> {
        let fid = match self.last_fid {
            Some(last) => Fid::new(last.f_seq, last.f_oid + 1, 0),
            None => {
                let sequences = Sequences::load(self.store.clone(), self.mdt_index, None).await?;
                Fid::new(sequences.allocate_meta().await?.lsr_start, 1, 0)
            }
        };
        self.last_fid = Some(fid);
        Ok(fid)
    }

    /// An inode with the size and times of a new directory.
    fn new_dir_inode(&self) -> Inode {
        let now = self.now;
        Inode {
            size: DIR_BLOCK,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            ..Inode::default()
        }
    }

    /// Changes an inode in its own transaction.
    async fn change(&self, fid: Fid, edit: impl FnOnce(&mut Inode)) -> Result<(), Errno> {
        let mut inode = self.store.inode(fid).await?;
        edit(&mut inode);
        let mut change = Change::new();
        change.change_inode(fid, &inode);
        self.apply(change).await
    }

    /// Applies a change; no other operation runs on the store.
    async fn apply(&self, change: Change) -> Result<(), Errno> {
        self.store.apply(change).await?;
        Ok(())
    }

    fn put(&self, key: Bytes, value: Bytes) -> Result<(), Errno> {
        let mut batch = Batch::new();
        batch.put_twice(key, value);
        Ok(self.store.index().apply(batch)?)
    }

    async fn remove(&self, key: Bytes) -> Result<(), Errno> {
        let mut change = Change::new();
        change.remove_record(key);
        self.apply(change).await
    }

    /// Removes all records with this prefix.
    async fn remove_all(&self, prefix: &[u8]) -> Result<(), Errno> {
        loop {
            let rows = self
                .store
                .index()
                .scan(prefix, &prefix_end(prefix), ROWS_MAX)
                .await?;
            if rows.is_empty() {
                return Ok(());
            }
            let mut batch = Batch::new();
            for (key, _) in rows {
                batch.delete(key);
            }
            self.store.index().apply(batch)?;
        }
    }
}
