//! Tests of every operation on a store in memory: the cases of POSIX one by one, then random
//! operations against a model.

#![allow(clippy::unwrap_used)]

mod check;
mod concurrent;
mod crash;
mod model;
mod rename_flags;
mod slow_store;
mod times;
mod visibility;
mod xattrs;

use std::sync::{Arc, atomic::Ordering::Relaxed};

use bytes::Bytes;
use osd::MemoryIndex;
use testbase::Wait;
use wire::{
    Errno, Fid, LuSeqRange, MDS_ATTR_GID, MDS_ATTR_MODE, MDS_ATTR_MTIME, MDS_ATTR_SIZE, MDS_ATTR_UID,
    MDS_FMODE_EXEC, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_OPEN_DIRECTORY, MDS_OPEN_TRUNC, MdtRecSetattr,
    OstIndex, RenameFlags, Time, Transno, WireStruct,
};

use super::{
    ChangeResult, NewInode, OpenMode, RenameArgs, SetattrArgs, UnlinkArgs, close, create, destroy_orphan,
    link, lookup, make_root, open, release_handle, rename, setattr, unlink,
    xattr::{SetxattrArgs, setxattr},
};
use crate::{
    cred::Cred,
    layout::{self, StripeObject},
    store::{Change, Inode, Store, keys, shard_of},
};

/// A user of a store with a root directory, and a source of new FIDs.
pub(crate) struct Fixture {
    pub(crate) store: Arc<Store>,
    /// Object id of the last FID; also the id of the last file's object.
    last_id: u32,
    cred: Cred,
    /// The time of the last operation; each operation is a second later.
    time: Time,
    /// Whether the FIDs of all new inodes belong to one shard of the store.
    uses_one_shard: bool,
}

impl Fixture {
    pub(crate) fn new() -> Fixture {
        Fixture::with_store(Store::new(Arc::new(MemoryIndex::default())))
    }

    fn with_store(store: Store) -> Fixture {
        make_root(&store, (0, 0), Time::default()).wait().unwrap();
        let mut change = Change::new();
        let sequences = LuSeqRange {
            lsr_start: 0x2_0000_0400,
            lsr_end: 0x2_4000_0400,
            lsr_index: 0,
            lsr_flags: wire::LU_SEQ_RANGE_MDT,
        };
        change.set_record(keys::location(sequences.lsr_start), sequences.to_bytes());
        store.apply(change).wait().unwrap();
        Fixture {
            store: Arc::new(store),
            last_id: 0,
            cred: Cred::root(),
            time: Time::secs(1000),
            uses_one_shard: false,
        }
    }

    /// A store that caches only two of the inodes that the fixture creates.
    pub(super) fn with_two_cached_inodes() -> Fixture {
        let f = Fixture::new();
        f.store.inode_cache().max().store(0, Relaxed);
        Fixture {
            uses_one_shard: true,
            ..f
        }
    }

    /// Another user of the same store, with FIDs and objects after `last_id`.
    fn another_user(&self, last_id: u32) -> Fixture {
        Fixture {
            store: self.store.clone(),
            last_id,
            cred: self.cred.clone(),
            time: self.time,
            uses_one_shard: self.uses_one_shard,
        }
    }

    fn new_fid(&mut self) -> Fid {
        loop {
            self.last_id += 1;
            let fid = Fid::new(0x2_0000_0401, self.last_id, 0);
            if !self.uses_one_shard || shard_of(fid) == 7 {
                return fid;
            }
        }
    }

    /// Creates an inode; a file has one object, on OST 0.
    fn make(&mut self, dir: Fid, name: &str, mode: u32) -> Result<Fid, Errno> {
        let fid = self.new_fid();
        self.time = self.time.later(1);
        let symlink = if mode & 0o170000 == 0o120000 {
            Bytes::from_static(b"target")
        } else {
            Bytes::new()
        };
        let object = StripeObject {
            ost: OstIndex(0),
            fid: Fid::new(0x2_4000_0400, self.last_id, 0),
        };
        let lov = layout::build(fid, 0, wire::Text::default(), &[object]);
        let lov = if mode & 0o170000 == 0o100000 {
            lov
        } else {
            Bytes::new()
        };
        let node = NewInode {
            fid,
            mode,
            time: self.time,
            symlink,
            lov,
            ..NewInode::default()
        };
        create(&self.store, &self.cred, dir, name.as_bytes(), &node)
            .wait()
            .map(|d| d.fid)
    }

    pub(crate) fn file(&mut self, dir: Fid, name: &str) -> Fid {
        self.make(dir, name, 0o100644).unwrap()
    }

    pub(crate) fn dir(&mut self, dir: Fid, name: &str) -> Fid {
        self.make(dir, name, 0o040755).unwrap()
    }

    pub(crate) fn unlink(&mut self, dir: Fid, name: &str) -> Result<ChangeResult, Errno> {
        self.time = self.time.later(1);
        let args = UnlinkArgs {
            parent: dir,
            name: name.as_bytes(),
            is_rmdir: false,
            time: self.time,
        };
        unlink(&self.store, &self.cred, args).wait()
    }

    fn rmdir(&mut self, dir: Fid, name: &str) -> Result<ChangeResult, Errno> {
        self.time = self.time.later(1);
        let args = UnlinkArgs {
            parent: dir,
            name: name.as_bytes(),
            is_rmdir: true,
            time: self.time,
        };
        unlink(&self.store, &self.cred, args).wait()
    }

    fn rename(&mut self, src: (Fid, &str), dst: (Fid, &str)) -> Result<ChangeResult, Errno> {
        self.rename_with(src, dst, RenameFlags::NONE)
    }

    fn rename_with(
        &mut self,
        src: (Fid, &str),
        dst: (Fid, &str),
        flags: RenameFlags,
    ) -> Result<ChangeResult, Errno> {
        self.time = self.time.later(1);
        let args = RenameArgs {
            src_dir: src.0,
            src_name: src.1.as_bytes(),
            dst_dir: dst.0,
            dst_name: dst.1.as_bytes(),
            time: self.time,
            flags,
            whiteout: self.new_fid(),
        };
        rename(&self.store, &self.cred, args).wait()
    }

    pub(crate) fn link(&mut self, file: Fid, dir: Fid, name: &str) -> Result<ChangeResult, Errno> {
        self.time = self.time.later(1);
        link(&self.store, &self.cred, file, dir, name.as_bytes(), self.time).wait()
    }

    pub(crate) fn open(&self, fid: Fid, mode: u64) -> Result<Inode, Errno> {
        open(&self.store, &self.cred, fid, OpenMode(mode), None)
            .wait()
            .map(|(inode, _)| inode)
    }

    fn close(&self, fid: Fid, mode: u64) {
        close(&self.store, fid, OpenMode(mode), None).wait().unwrap();
    }

    fn setattr(&self, fid: Fid, valid: u64, rec: MdtRecSetattr) -> Result<Inode, Errno> {
        let rec = MdtRecSetattr {
            sa_fid: fid,
            sa_valid: valid,
            ..rec
        };
        let set = SetattrArgs {
            rec: &rec,
            open_for_write: false,
        };
        setattr(&self.store, &self.cred, set).wait().map(|d| d.inode)
    }

    fn setxattr(
        &self,
        fid: Fid,
        name: &[u8],
        value: Option<&[u8]>,
        flags: u32,
    ) -> Result<ChangeResult, Errno> {
        let value = value.map(Bytes::copy_from_slice);
        setxattr(
            &self.store,
            &self.cred,
            &SetxattrArgs {
                fid,
                name,
                value,
                flags,
                time: self.time,
            },
        )
        .wait()
    }

    fn inode(&self, fid: Fid) -> Inode {
        self.store.inode(fid).wait().unwrap()
    }

    fn lookup(&self, dir: Fid, name: &str) -> Option<Fid> {
        lookup(&self.store, &self.cred, dir, name.as_bytes())
            .wait()
            .unwrap()
            .map(|e| e.fid)
    }

    fn become_user(&mut self, uid: u32) {
        self.cred = Cred {
            fsuid: uid,
            fsgid: uid,
            cap: 0,
            ..Cred::root()
        };
    }

    /// Number of entries in the queue of work for OST 0.
    fn queued_work(&self) -> usize {
        let index = self.store.index();
        index
            .scan(
                &keys::work_from(OstIndex(0), Transno(0)),
                &keys::work_from(OstIndex(1), Transno(0)),
                1000,
            )
            .wait()
            .unwrap()
            .len()
    }
}

const ROOT: Fid = Fid::ROOT;

#[test]
fn create_adds_an_entry_and_updates_the_parent() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "a");
    assert_eq!(f.lookup(ROOT, "a"), Some(file));
    assert_eq!(f.lookup(ROOT, "b"), None);
    assert_eq!(f.lookup(ROOT, "."), Some(ROOT));
    let root = f.inode(ROOT);
    assert_eq!((root.mtime, root.ctime, root.nlink), (f.time, f.time, 2));
    let dir = f.dir(ROOT, "d");
    assert_eq!((f.inode(ROOT).nlink, f.inode(dir).nlink), (3, 2));
    assert_eq!(f.lookup(dir, ".."), Some(ROOT));
    assert_eq!(f.make(ROOT, "a", 0o100644), Err(Errno::EEXIST));
    assert_eq!(f.make(file, "x", 0o100644), Err(Errno::ENOTDIR));
    assert_eq!(f.make(ROOT, &"n".repeat(256), 0o100644), Err(Errno::ENAMETOOLONG));
    assert_eq!(f.make(ROOT, "a/b", 0o100644), Err(Errno::EINVAL));
    check::assert_consistent(&f.store);
}

#[test]
fn create_fails_for_a_used_or_reserved_fid() {
    let mut f = Fixture::new();
    f.file(ROOT, "a");
    f.last_id -= 1;
    assert_eq!(f.make(ROOT, "b", 0o100644), Err(Errno::EEXIST));
    let node = NewInode {
        fid: Fid::new(0x2_0000_0007, 5, 0),
        mode: 0o100644,
        ..NewInode::default()
    };
    assert_eq!(
        create(&f.store, &f.cred, ROOT, b"c", &node).wait().unwrap_err(),
        Errno::EINVAL
    );
}

#[test]
fn new_inodes_in_a_set_group_id_directory_get_its_group() {
    let mut f = Fixture::new();
    let dir = f.dir(ROOT, "d");
    f.setattr(
        dir,
        MDS_ATTR_GID | MDS_ATTR_MODE,
        MdtRecSetattr {
            sa_gid: 7,
            sa_mode: 0o2777,
            ..Default::default()
        },
    )
    .unwrap();
    f.become_user(5);
    let sub = f.dir(dir, "sub");
    let file = f.make(dir, "file", 0o102755).unwrap();
    assert_eq!((f.inode(sub).gid, f.inode(sub).mode), (7, 0o042755));
    assert_eq!((f.inode(file).gid, f.inode(file).mode), (7, 0o100755));
}

#[test]
fn last_unlink_destroys_the_objects() {
    let mut f = Fixture::new();
    let (d, file) = (f.dir(ROOT, "d"), f.file(ROOT, "a"));
    assert_eq!(f.link(file, d, "b").unwrap().inode.nlink, 2);
    assert_eq!(f.link(file, d, "b").unwrap_err(), Errno::EEXIST);
    assert_eq!(f.link(d, ROOT, "e").unwrap_err(), Errno::EPERM);
    check::assert_consistent(&f.store);
    assert_eq!(f.unlink(ROOT, "a").unwrap().inode.nlink, 1);
    assert_eq!(f.queued_work(), 0);
    assert_eq!(f.unlink(d, "b").unwrap().inode.nlink, 0);
    assert_eq!((f.queued_work(), f.store.find(file).wait().unwrap()), (1, None));
    assert_eq!(f.unlink(d, "b").unwrap_err(), Errno::ENOENT);
    check::assert_consistent(&f.store);
}

#[test]
fn unlink_and_rmdir_check_the_type() {
    let mut f = Fixture::new();
    let d = f.dir(ROOT, "d");
    f.file(d, "x");
    assert_eq!(f.unlink(ROOT, "d").unwrap_err(), Errno::EISDIR);
    assert_eq!(f.rmdir(d, "x").unwrap_err(), Errno::ENOTDIR);
    assert_eq!(f.rmdir(ROOT, "d").unwrap_err(), Errno::ENOTEMPTY);
    assert_eq!(f.rmdir(d, "..").unwrap_err(), Errno::ENOTEMPTY);
    assert_eq!(f.rmdir(d, ".").unwrap_err(), Errno::EINVAL);
    f.unlink(d, "x").unwrap();
    f.rmdir(ROOT, "d").unwrap();
    assert_eq!(f.inode(ROOT).nlink, 2);
    check::assert_consistent(&f.store);
}

#[test]
fn open_file_outlives_its_last_name() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "a");
    f.open(file, MDS_FMODE_READ).unwrap();
    f.open(file, MDS_FMODE_WRITE).unwrap();
    f.unlink(ROOT, "a").unwrap();
    assert_eq!((f.inode(file).nlink, f.queued_work()), (0, 0));
    assert_eq!(f.store.orphans(None).wait().unwrap(), [file]);
    assert_eq!(f.link(file, ROOT, "again").unwrap_err(), Errno::ENOENT);
    f.close(file, MDS_FMODE_READ);
    assert!(f.store.find(file).wait().unwrap().is_some());
    f.close(file, MDS_FMODE_WRITE);
    assert_eq!((f.store.find(file).wait().unwrap(), f.queued_work()), (None, 1));
    assert!(f.store.orphans(None).wait().unwrap().is_empty());
}

#[test]
fn releasing_the_last_handle_destroys_a_removed_file() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "a");
    f.open(file, MDS_FMODE_READ).unwrap();
    f.unlink(ROOT, "a").unwrap();
    release_handle(&f.store, file, OpenMode(MDS_FMODE_READ))
        .wait()
        .unwrap();
    assert_eq!((f.store.find(file).wait().unwrap(), f.queued_work()), (None, 1));
    assert!(f.store.orphans(None).wait().unwrap().is_empty());
}

#[test]
fn stale_orphan_record_is_removed() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "f");
    for fid in [file, Fid::new(0x2_0000_0401, 99, 0)] {
        let mut change = Change::new();
        change.add_orphan(fid);
        f.store.apply(change).wait().unwrap();
        destroy_orphan(&f.store, fid).wait().unwrap();
    }
    assert!(f.store.orphans(None).wait().unwrap().is_empty() && f.lookup(ROOT, "f") == Some(file));
}

#[test]
fn create_in_a_removed_open_directory_is_enoent() {
    let mut f = Fixture::new();
    let d = f.dir(ROOT, "d");
    f.open(d, MDS_FMODE_READ | MDS_OPEN_DIRECTORY).unwrap();
    f.rmdir(ROOT, "d").unwrap();
    assert_eq!(f.make(d, "x", 0o100644), Err(Errno::ENOENT));
    f.close(d, MDS_FMODE_READ);
    assert_eq!(f.store.find(d).wait().unwrap(), None);
}

#[test]
fn writing_and_executing_exclude_each_other() {
    let mut f = Fixture::new();
    let file = f.make(ROOT, "prog", 0o100755).unwrap();
    f.open(file, MDS_FMODE_EXEC).unwrap();
    for flags in [MDS_FMODE_WRITE, MDS_FMODE_READ | MDS_OPEN_TRUNC] {
        assert_eq!(f.open(file, flags).unwrap_err(), Errno::ETXTBSY);
    }
    let truncate = |f: &Fixture| {
        let rec = MdtRecSetattr {
            sa_fid: file,
            sa_valid: MDS_ATTR_SIZE,
            ..MdtRecSetattr::default()
        };
        let open_for_write = false;
        setattr(
            &f.store,
            &f.cred,
            SetattrArgs {
                rec: &rec,
                open_for_write,
            },
        )
        .wait()
    };
    assert_eq!(truncate(&f).map(drop), Err(Errno::ETXTBSY));
    f.close(file, MDS_FMODE_EXEC);
    truncate(&f).unwrap();
    f.open(file, MDS_FMODE_WRITE).unwrap();
    assert_eq!(f.open(file, MDS_FMODE_EXEC).unwrap_err(), Errno::ETXTBSY);
    let d = f.dir(ROOT, "d");
    assert_eq!(f.open(d, MDS_FMODE_WRITE).unwrap_err(), Errno::EISDIR);
    assert_eq!(f.open(file, MDS_OPEN_DIRECTORY).unwrap_err(), Errno::ENOTDIR);
}

#[test]
fn rename_moves_files_and_directories() {
    let mut f = Fixture::new();
    let (a, b) = (f.dir(ROOT, "a"), f.dir(ROOT, "b"));
    let (x, sub) = (f.file(a, "x"), f.dir(a, "sub"));
    f.rename((a, "x"), (a, "y")).unwrap();
    assert_eq!((f.lookup(a, "x"), f.lookup(a, "y")), (None, Some(x)));
    f.rename((a, "y"), (b, "x")).unwrap();
    f.rename((a, "sub"), (b, "sub2")).unwrap();
    assert_eq!((f.inode(a).nlink, f.inode(b).nlink), (2, 3));
    assert_eq!(f.lookup(sub, ".."), Some(b));
    assert_eq!(f.rename((a, "none"), (b, "z")).unwrap_err(), Errno::ENOENT);
    check::assert_consistent(&f.store);
}

#[test]
fn rename_replaces_only_the_same_type() {
    let mut f = Fixture::new();
    let (d, e) = (f.dir(ROOT, "d"), f.dir(ROOT, "e"));
    let (x, y) = (f.file(ROOT, "x"), f.file(ROOT, "y"));
    f.rename((ROOT, "x"), (ROOT, "y")).unwrap();
    assert_eq!(
        (f.lookup(ROOT, "y"), f.store.find(y).wait().unwrap()),
        (Some(x), None)
    );
    assert_eq!(f.rename((ROOT, "y"), (ROOT, "d")).unwrap_err(), Errno::EISDIR);
    assert_eq!(f.rename((ROOT, "d"), (ROOT, "y")).unwrap_err(), Errno::ENOTDIR);
    f.file(e, "inside");
    assert_eq!(f.rename((ROOT, "d"), (ROOT, "e")).unwrap_err(), Errno::ENOTEMPTY);
    f.rename((ROOT, "e"), (ROOT, "d")).unwrap();
    assert_eq!(
        (f.lookup(ROOT, "d"), f.store.find(d).wait().unwrap()),
        (Some(e), None)
    );
    assert_eq!(f.inode(ROOT).nlink, 3);
    check::assert_consistent(&f.store);
}

#[test]
fn rename_of_two_names_of_one_file_does_nothing() {
    let mut f = Fixture::new();
    let x = f.file(ROOT, "x");
    f.link(x, ROOT, "y").unwrap();
    f.rename((ROOT, "x"), (ROOT, "y")).unwrap();
    f.rename((ROOT, "x"), (ROOT, "x")).unwrap();
    assert_eq!(
        (f.lookup(ROOT, "x"), f.lookup(ROOT, "y"), f.inode(x).nlink),
        (Some(x), Some(x), 2)
    );
    check::assert_consistent(&f.store);
}

#[test]
fn rename_of_a_directory_below_itself_is_einval() {
    let mut f = Fixture::new();
    let a = f.dir(ROOT, "a");
    let b = f.dir(a, "b");
    let c = f.dir(b, "c");
    assert_eq!(f.rename((ROOT, "a"), (c, "a")).unwrap_err(), Errno::EINVAL);
    assert_eq!(f.rename((ROOT, "a"), (a, "a")).unwrap_err(), Errno::EINVAL);
    assert_eq!(f.rename((b, "c"), (ROOT, "a")).unwrap_err(), Errno::ENOTEMPTY);
    check::assert_consistent(&f.store);
}

#[test]
fn rename_over_an_open_file_keeps_the_orphan() {
    let mut f = Fixture::new();
    let (_, y) = (f.file(ROOT, "x"), f.file(ROOT, "y"));
    f.open(y, MDS_FMODE_READ).unwrap();
    f.rename((ROOT, "x"), (ROOT, "y")).unwrap();
    assert_eq!(f.store.orphans(None).wait().unwrap(), [y]);
    f.close(y, MDS_FMODE_READ);
    assert_eq!(f.store.find(y).wait().unwrap(), None);
}

#[test]
fn changing_names_needs_permission_on_the_directory() {
    let mut f = Fixture::new();
    let (d, tmp) = (f.dir(ROOT, "d"), f.make(ROOT, "tmp", 0o041777).unwrap());
    f.file(d, "x");
    f.file(tmp, "roots");
    f.become_user(5);
    assert_eq!(f.make(d, "y", 0o100644), Err(Errno::EACCES));
    assert_eq!(f.unlink(d, "x").unwrap_err(), Errno::EACCES);
    assert_eq!(f.unlink(tmp, "roots").unwrap_err(), Errno::EPERM);
    let mine = f.file(tmp, "mine");
    assert_eq!(f.inode(mine).uid, 5);
    assert_eq!(f.rename((tmp, "mine"), (tmp, "roots")).unwrap_err(), Errno::EPERM);
    f.unlink(tmp, "mine").unwrap();
}

#[test]
fn only_the_owner_changes_the_mode_and_only_root_the_owner() {
    let mut f = Fixture::new();
    let tmp = f.make(ROOT, "tmp", 0o040777).unwrap();
    f.become_user(5);
    let file = f.make(tmp, "x", 0o100755).unwrap();
    let mode = MdtRecSetattr {
        sa_mode: 0o104755,
        ..Default::default()
    };
    assert_eq!(f.setattr(file, MDS_ATTR_MODE, mode).unwrap().mode, 0o104755);
    let uid = MdtRecSetattr {
        sa_uid: 6,
        ..Default::default()
    };
    assert_eq!(f.setattr(file, MDS_ATTR_UID, uid).unwrap_err(), Errno::EPERM);
    let gid = MdtRecSetattr {
        sa_gid: 6,
        ..Default::default()
    };
    assert_eq!(f.setattr(file, MDS_ATTR_GID, gid).unwrap_err(), Errno::EPERM);
    f.cred = Cred::root();
    let changed = f.setattr(file, MDS_ATTR_UID, uid).unwrap();
    assert_eq!((changed.uid, changed.mode), (6, 0o100755));
    assert_eq!(f.queued_work(), 1);
    f.become_user(5);
    assert_eq!(f.setattr(file, MDS_ATTR_MODE, mode).unwrap_err(), Errno::EPERM);
    assert_eq!(
        f.setattr(file, MDS_ATTR_MTIME, MdtRecSetattr::default())
            .unwrap_err(),
        Errno::EACCES
    );
    assert_eq!(
        f.setattr(file, MDS_ATTR_SIZE, MdtRecSetattr::default())
            .unwrap_err(),
        Errno::EACCES
    );
}

#[test]
fn each_change_has_a_higher_transaction_number() {
    let mut f = Fixture::new();
    let file = f.file(ROOT, "x");
    let first = f.inode(file).version;
    let change = f.link(file, ROOT, "y").unwrap();
    assert!(change.transno.0 > first && change.pre_versions[1] == first);
    assert_eq!(f.inode(file).version, change.transno.0);
}
