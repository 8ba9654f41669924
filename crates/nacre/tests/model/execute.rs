//! Executes steps on the model: computes their results and applies their effects. Checks for errors
//! in the same order as Linux.

use crate::model::{Cred, Handle, Ino, Inode, Kind, Lookup, Model, READ, ROOT, USER, WRITE, ensure};
use crate::outcome::{Answer, Attr, Bytes, Outcome};
use crate::step::{FallocateKind, Lock, Op, OpenHow, RenameMode, SetxattrMode, Step};
use rustix::io::Errno;
use std::collections::BTreeMap;

impl Model {
    /// Executes a step; returns the expected result.
    pub(crate) fn execute(&mut self, step: &Step, mount: usize) -> Outcome {
        let cred = Cred(if step.user { USER } else { 0 });
        match &step.op {
            Op::Open {
                slot,
                path,
                how,
                mode,
            } => {
                self.close(*slot);
                let handle = self.open(cred, path, *how, *mode)?;
                self.handles.insert(*slot, Handle { mount, ..handle });
                Ok(Answer::Done)
            }
            Op::Close { slot } => {
                ensure(self.close(*slot), Errno::BADF)?;
                Ok(Answer::Done)
            }
            Op::Mkdir { path, mode } => {
                let inode = Inode::new(Kind::Dir(BTreeMap::new()), mode & 0o1777, cred);
                self.create(cred, path, inode)
            }
            Op::Symlink { target, path } => {
                let inode = Inode::new(Kind::Symlink(target.clone()), 0o777, cred);
                self.create(cred, path, inode)
            }
            Op::Rmdir { path } => self.rmdir(cred, path),
            Op::Unlink { path } => self.unlink(cred, path),
            Op::Rename { from, to, flags } => self.rename(cred, from, to, *flags),
            Op::Link { from, to } => self.link(cred, from, to),
            Op::Readlink { path } => {
                let ino = self.find(cred, path, false)?;
                match &self.inode(ino).kind {
                    Kind::Symlink(target) => Ok(Answer::Text(target.clone())),
                    _ => Err(Errno::INVAL),
                }
            }
            Op::Stat { path, follow } => {
                let ino = self.find(cred, path, *follow)?;
                Ok(Answer::Attr(self.attr(ino)))
            }
            Op::Readdir { path } => {
                let ino = self.find(cred, path, true)?;
                ensure(self.inode(ino).is_dir(), Errno::NOTDIR)?;
                ensure(self.inode(ino).permits(cred, READ), Errno::ACCESS)?;
                Ok(Answer::Names(self.entries(ino).keys().cloned().collect()))
            }
            Op::Access { path, want } => {
                let ino = self.find(cred, path, true)?;
                ensure(self.inode(ino).permits(cred, *want), Errno::ACCESS)?;
                Ok(Answer::Done)
            }
            Op::Statfs => Ok(Answer::Done),
            Op::Truncate { .. } | Op::Chmod { .. } | Op::Chown { .. } | Op::Utimens { .. } => {
                self.set_attr(cred, &step.op)
            }
            Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. } => {
                self.xattr(cred, &step.op)
            }
            op => {
                let slot = op.slot().unwrap();
                let handle = *self.handles.get(&slot).ok_or(Errno::BADF)?;
                self.execute_on_handle(slot, handle, op)
            }
        }
    }

    pub(crate) fn attr(&self, ino: Ino) -> Attr {
        let inode = self.inode(ino);
        let (kind, size) = match &inode.kind {
            Kind::File(data) => ('f', data.len() as u64),
            Kind::Dir(_) => ('d', 0),
            Kind::Symlink(target) => ('l', target.len() as u64),
        };
        Attr {
            kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            nlink: inode.nlink,
            size,
        }
    }

    fn close(&mut self, slot: usize) -> bool {
        let Some(handle) = self.handles.remove(&slot) else {
            return false;
        };
        self.inode_mut(handle.ino).flocks.remove(&slot);
        self.release_fcntl_locks(handle.mount, handle.ino);
        self.drop_unused(handle.ino);
        true
    }

    fn open(&mut self, cred: Cred, path: &str, how: OpenHow, mode: u32) -> Result<Handle, Errno> {
        let follow = !how.nofollow && !how.exclusive;
        let place = self.walk(cred, path, follow)?;
        let ino = match place.ino {
            None if !how.create => return Err(Errno::NOENT),
            None => {
                self.may_create(cred, place.dir)?;
                self.create_inode(&place, Inode::new(Kind::File(Vec::new()), mode, cred))
            }
            Some(ino) => {
                self.may_open(cred, &place, ino, how)?;
                if how.truncate {
                    self.inode_mut(ino).mtime = None;
                    self.file_data(ino)?.clear();
                }
                ino
            }
        };
        Ok(Handle {
            ino,
            mount: 0,
            read: how.read,
            write: how.write,
            append: how.append,
        })
    }

    fn may_open(&self, cred: Cred, place: &Lookup, ino: Ino, how: OpenHow) -> Result<(), Errno> {
        let inode = self.inode(ino);
        ensure(!how.exclusive, Errno::EXIST)?;
        // With O_DIRECTORY, an unfollowed symbolic link gives ENOTDIR.
        ensure(!how.directory || inode.is_dir(), Errno::NOTDIR)?;
        ensure(!inode.is_symlink(), Errno::LOOP)?;
        ensure(!(inode.is_dir() && how.create), Errno::ISDIR)?;
        let dir = self.inode(place.dir);
        let shared =
            dir.mode & 0o002 != 0 || (dir.mode & 0o020 != 0 && self.behaviour.protected_regular >= 2);
        let protected = self.behaviour.protected_regular > 0 && dir.mode & 0o1000 != 0 && shared;
        let own = inode.uid == dir.uid || inode.uid == cred.0;
        ensure(!(how.create && protected && !own), Errno::ACCESS)?;
        ensure(!(inode.is_dir() && how.write), Errno::ISDIR)?;
        let want = if how.read { READ } else { 0 } | if how.write { WRITE } else { 0 };
        ensure(inode.permits(cred, want), Errno::ACCESS)
    }

    fn create(&mut self, cred: Cred, path: &str, inode: Inode) -> Outcome {
        let place = self.walk(cred, path, false)?;
        ensure(place.ino.is_none(), Errno::EXIST)?;
        self.may_create(cred, place.dir)?;
        self.create_inode(&place, inode);
        Ok(Answer::Done)
    }

    fn rmdir(&mut self, cred: Cred, path: &str) -> Outcome {
        let place = self.walk(cred, path, false)?;
        let ino = place.ino.ok_or(Errno::NOENT)?;
        self.may_delete(cred, place.dir, ino, true)?;
        ensure(self.entries(ino).is_empty(), Errno::NOTEMPTY)?;
        self.remove_entry(place.dir, &place.name);
        self.drop_link(ino);
        Ok(Answer::Done)
    }

    fn unlink(&mut self, cred: Cred, path: &str) -> Outcome {
        let place = self.walk(cred, path, false)?;
        let ino = place.ino.ok_or(Errno::NOENT)?;
        self.may_delete(cred, place.dir, ino, false)?;
        self.remove_entry(place.dir, &place.name);
        self.drop_link(ino);
        Ok(Answer::Done)
    }

    fn link(&mut self, cred: Cred, from: &str, to: &str) -> Outcome {
        let ino = self.find(cred, from, false)?;
        let place = self.walk(cred, to, false)?;
        ensure(place.ino.is_none(), Errno::EXIST)?;
        let inode = self.inode(ino);
        let safe = inode.is_file() && inode.permits(cred, READ | WRITE);
        let protected = self.behaviour.protected_hardlinks > 0;
        ensure(!protected || inode.may_act_as_owner(cred) || safe, Errno::PERM)?;
        self.may_create(cred, place.dir)?;
        ensure(!inode.is_dir(), Errno::PERM)?;
        self.inode_mut(ino).nlink += 1;
        self.insert_entry(place.dir, &place.name, ino);
        Ok(Answer::Done)
    }

    fn rename(&mut self, cred: Cred, from: &str, to: &str, flags: RenameMode) -> Outcome {
        let (old, new) = self.rename_places(cred, from, to)?;
        let ino = old.ino.ok_or(Errno::NOENT)?;
        let exchange = flags == RenameMode::Exchange;
        ensure(flags != RenameMode::NoReplace || new.ino.is_none(), Errno::EXIST)?;
        ensure(!exchange || new.ino.is_some(), Errno::NOENT)?;
        let within = |above: Option<Ino>, dir: Ino| above.is_some_and(|a| self.is_above(a, dir));
        if old.dir != new.dir {
            ensure(!within(Some(ino), new.dir), Errno::INVAL)?;
            let error = if exchange { Errno::INVAL } else { Errno::NOTEMPTY };
            ensure(!within(new.ino, old.dir), error)?;
        }
        if new.ino == Some(ino) {
            return Ok(Answer::Done);
        }
        let is_dir = self.inode(ino).is_dir();
        self.may_delete(cred, old.dir, ino, is_dir)?;
        match new.ino {
            None => self.may_create(cred, new.dir)?,
            Some(victim) => {
                let as_dir = if exchange {
                    self.inode(victim).is_dir()
                } else {
                    is_dir
                };
                self.may_delete(cred, new.dir, victim, as_dir)?;
            }
        }
        if old.dir != new.dir {
            let moved = [Some(ino), new.ino.filter(|_| exchange)];
            for dir in moved.into_iter().flatten().filter(|i| self.inode(*i).is_dir()) {
                ensure(self.inode(dir).permits(cred, WRITE), Errno::ACCESS)?;
            }
        }
        if let Some(victim) = new.ino.filter(|v| !exchange && self.inode(*v).is_dir()) {
            ensure(self.entries(victim).is_empty(), Errno::NOTEMPTY)?;
        }
        self.remove_entry(old.dir, &old.name);
        if let Some(victim) = new.ino {
            self.remove_entry(new.dir, &new.name);
            if exchange {
                self.insert_entry(old.dir, &old.name, victim);
            } else {
                self.drop_link(victim);
            }
        }
        self.insert_entry(new.dir, &new.name, ino);
        Ok(Answer::Done)
    }

    /// Resolves both paths before it checks their inodes, like Linux.
    fn rename_places(&self, cred: Cred, from: &str, to: &str) -> Result<(Lookup, Lookup), Errno> {
        let old = self.walk(cred, from, false)?;
        let new = self.walk(cred, to, false)?;
        Ok((old, new))
    }

    fn set_attr(&mut self, cred: Cred, op: &Op) -> Outcome {
        match op {
            Op::Truncate { path, size } => {
                let ino = self.find(cred, path, true)?;
                ensure(!self.inode(ino).is_dir(), Errno::ISDIR)?;
                ensure(self.inode(ino).permits(cred, WRITE), Errno::ACCESS)?;
                self.inode_mut(ino).mtime = None;
                self.file_data(ino)?.resize(*size as usize, 0);
            }
            Op::Chmod { path, mode } => {
                let ino = self.find(cred, path, true)?;
                ensure(self.inode(ino).may_act_as_owner(cred), Errno::PERM)?;
                self.inode_mut(ino).mode = *mode;
            }
            Op::Chown { path, uid, gid } => {
                let ino = self.find(cred, path, true)?;
                let inode = self.inode_mut(ino);
                let own = inode.uid == cred.0;
                let may_uid = uid.is_none_or(|uid| own && uid == inode.uid);
                let may_gid = gid.is_none_or(|gid| own && (gid == cred.0 || gid == inode.gid));
                ensure(cred.0 == 0 || (may_uid && may_gid), Errno::PERM)?;
                inode.uid = uid.unwrap_or(inode.uid);
                inode.gid = gid.unwrap_or(inode.gid);
            }
            Op::Utimens { path, mtime } => {
                let ino = self.find(cred, path, true)?;
                ensure(self.inode(ino).may_act_as_owner(cred), Errno::PERM)?;
                self.inode_mut(ino).mtime = Some(*mtime);
            }
            other => panic!("not an attribute operation: {other:?}"),
        }
        Ok(Answer::Done)
    }

    fn xattr(&mut self, cred: Cred, op: &Op) -> Outcome {
        match op {
            Op::Setxattr {
                path,
                name,
                value,
                how,
            } => {
                let ino = self.find(cred, path, true)?;
                self.may_set_xattr(cred, ino, name)?;
                let exists = self.inode(ino).xattrs.contains_key(name);
                ensure(*how != SetxattrMode::Create || !exists, Errno::EXIST)?;
                ensure(*how != SetxattrMode::Replace || exists, Errno::NODATA)?;
                self.inode_mut(ino).xattrs.insert(name.clone(), value.clone());
            }
            Op::Removexattr { path, name } => {
                let ino = self.find(cred, path, true)?;
                self.may_set_xattr(cred, ino, name)?;
                let removed = self.inode_mut(ino).xattrs.remove(name);
                ensure(removed.is_some(), Errno::NODATA)?;
            }
            Op::Getxattr { path, name } => {
                let ino = self.find(cred, path, true)?;
                let inode = self.inode(ino);
                if name.starts_with("trusted.") {
                    ensure(cred.0 == 0, Errno::NODATA)?;
                } else {
                    ensure(inode.permits(cred, READ), Errno::ACCESS)?;
                }
                let value = inode.xattrs.get(name).ok_or(Errno::NODATA)?;
                return Ok(Answer::Text(value.clone()));
            }
            Op::Listxattr { path } => {
                let ino = self.find(cred, path, true)?;
                let is_visible = |name: &&String| cred.0 == 0 || !name.starts_with("trusted.");
                let names = self.inode(ino).xattrs.keys().filter(is_visible);
                return Ok(Answer::Names(names.cloned().collect()));
            }
            other => panic!("not an xattr operation: {other:?}"),
        }
        Ok(Answer::Done)
    }

    fn may_set_xattr(&self, cred: Cred, ino: Ino, name: &str) -> Result<(), Errno> {
        let inode = self.inode(ino);
        if name.starts_with("trusted.") {
            return ensure(cred.0 == 0, Errno::PERM);
        }
        let sticky = inode.is_dir() && inode.mode & 0o1000 != 0;
        ensure(!sticky || inode.may_act_as_owner(cred), Errno::PERM)?;
        ensure(inode.permits(cred, WRITE), Errno::ACCESS)
    }

    /// The contents of a file.
    fn file_data(&mut self, ino: Ino) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.inode_mut(ino).kind {
            Kind::File(data) => Ok(data),
            _ => Err(Errno::INVAL),
        }
    }

    fn execute_on_handle(&mut self, slot: usize, handle: Handle, op: &Op) -> Outcome {
        let is_dir = self.inode(handle.ino).is_dir();
        match *op {
            Op::Pread { at, len, .. } => {
                ensure(handle.read, Errno::BADF)?;
                ensure(!is_dir, Errno::ISDIR)?;
                let data = self.file_data(handle.ino)?;
                let end = data.len().min(at as usize + len);
                let read = data[(at as usize).min(end)..end].to_vec();
                Ok(Answer::Bytes(Bytes(read)))
            }
            Op::Pwrite { at, len, fill, .. } => {
                ensure(handle.write, Errno::BADF)?;
                self.inode_mut(handle.ino).mtime = None;
                let data = self.file_data(handle.ino)?;
                // With O_APPEND, Linux ignores the offset of pwrite.
                let at = if handle.append { data.len() } else { at as usize };
                data.resize(data.len().max(at + len), 0);
                data[at..at + len].fill(fill);
                Ok(Answer::Count(len))
            }
            Op::Ftruncate { size, .. } => {
                ensure(handle.write, Errno::INVAL)?;
                self.inode_mut(handle.ino).mtime = None;
                self.file_data(handle.ino)?.resize(size as usize, 0);
                Ok(Answer::Done)
            }
            Op::Fallocate { kind, at, len, .. } => {
                ensure(handle.write, Errno::BADF)?;
                self.inode_mut(handle.ino).mtime = None;
                let data = self.file_data(handle.ino)?;
                let (at, end) = (at as usize, (at + len) as usize);
                match kind {
                    FallocateKind::Allocate => data.resize(data.len().max(end), 0),
                    FallocateKind::Keep => {}
                    FallocateKind::Punch => {
                        let end = end.min(data.len());
                        data[at.min(end)..end].fill(0);
                    }
                }
                Ok(Answer::Done)
            }
            Op::Fsync { .. } => Ok(Answer::Done),
            Op::Fstat { .. } => Ok(Answer::Attr(self.attr(handle.ino))),
            Op::Flock { kind, .. } => {
                // Release the old lock first: POSIX does not define whether a failed conversion
                // keeps it.
                self.inode_mut(handle.ino).flocks.remove(&slot);
                self.check_other_kind(&self.inode(handle.ino).fcntls, kind)?;
                lock(&mut self.inode_mut(handle.ino).flocks, slot, kind)
            }
            Op::Fcntl { kind, .. } => {
                ensure(kind != Lock::Shared || handle.read, Errno::BADF)?;
                ensure(kind != Lock::Exclusive || handle.write, Errno::BADF)?;
                let owner = self.lock_owner(handle.mount);
                self.check_other_kind(&self.inode(handle.ino).flocks, kind)?;
                lock(&mut self.inode_mut(handle.ino).fcntls, owner, kind)
            }
            ref other => panic!("not an operation on an open file: {other:?}"),
        }
    }

    /// Checks for conflicts between flock and fcntl locks, on a file system whose servers do not
    /// distinguish them. `others`: for each owner of a lock of the other kind, whether the lock is
    /// exclusive.
    fn check_other_kind<K>(&self, others: &BTreeMap<K, bool>, kind: Lock) -> Result<(), Errno> {
        let conflict = match kind {
            Lock::Shared => others.values().any(|exclusive| *exclusive),
            Lock::Exclusive => !others.is_empty(),
            Lock::Unlock => false,
        };
        ensure(!(self.behaviour.lock_kinds_conflict && conflict), Errno::AGAIN)
    }

    /// Looks up a path as root, without following a final symbolic link.
    pub(crate) fn find_as_root(&self, path: &str) -> Result<Ino, Errno> {
        self.find(Cred(0), path, false)
    }

    /// A path of an inode; `None` for the root and for an inode without a name.
    pub(crate) fn path_of(&self, ino: Ino) -> Option<String> {
        let all = self.tree().into_iter();
        all.filter(|(_, i)| *i == ino && *i != ROOT)
            .map(|(path, _)| path)
            .next()
    }
}

fn lock<K: Ord + Copy>(locks: &mut BTreeMap<K, bool>, owner: K, kind: Lock) -> Outcome {
    let exclusive = kind == Lock::Exclusive;
    if kind == Lock::Unlock {
        locks.remove(&owner);
        return Ok(Answer::Done);
    }
    let conflict = locks.iter().any(|(o, ex)| *o != owner && (*ex || exclusive));
    ensure(!conflict, Errno::AGAIN)?;
    locks.insert(owner, exclusive);
    Ok(Answer::Done)
}
