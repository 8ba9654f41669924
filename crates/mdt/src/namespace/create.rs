//! New inodes and new names.

use bytes::Bytes;
use wire::{Errno, Fid, Time};

use super::{APPEND, Done, ENOENT_VERSION, IMMUTABLE, check_name, may_add, searched};
use crate::{
    acl,
    cred::Cred,
    store::{DIR_BLOCK, DirChange, Entry, Inode, S_IFMT, S_IFREG, S_ISGID, Store, links},
};

/// The longest target of a symlink.
const SYMLINK_MAX: usize = 4095;

/// What to create.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// The FID, which the client chose from its sequence.
    pub fid: Fid,
    /// Type and permissions, before umask or default ACL.
    pub mode: u32,
    /// Device number.
    pub rdev: u64,
    /// The client's time.
    pub time: Time,
    /// A symlink's target.
    pub symlink: Bytes,
    /// A file's layout.
    pub lov: Bytes,
    /// Extended attributes that it begins with.
    pub xattrs: Vec<(Bytes, Bytes)>,
}

/// Checks that something may be made by this FID: one that clients were given, never one of the target's own objects.
pub(crate) fn check_fid(fid: Fid) -> Result<(), Errno> {
    match fid.is_normal() && fid.f_oid != 0 {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

impl Node {
    pub(crate) fn check(&self, cred: &Cred) -> Result<(), Errno> {
        check_fid(self.fid)?;
        match self.mode & S_IFMT {
            S_IFREG | 0o040000 | 0o010000 | 0o140000 => Ok(()),
            // A device that is no device marks what an overlay has removed: anybody may make it.
            0o020000 if self.rdev == 0 => Ok(()),
            0o020000 | 0o060000 if cred.may_make_devices() => Ok(()),
            0o020000 | 0o060000 => Err(Errno::EPERM),
            0o120000 if self.symlink.is_empty() => Err(Errno::ENOENT),
            0o120000 if self.symlink.len() > SYMLINK_MAX => Err(Errno::ENAMETOOLONG),
            0o120000 => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn inode(&self, cred: &Cred, parent: &Inode, parent_is_root: bool) -> Inode {
        let time = self.time;
        let mut inode = Inode {
            mode: self.mode & (S_IFMT | 0o7777),
            uid: cred.fsuid,
            gid: cred.fsgid,
            projid: if parent.flags & wire::LUSTRE_PROJINHERIT_FL != 0 {
                parent.projid
            } else {
                0
            },
            nlink: 1,
            rdev: self.rdev,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            symlink: self.symlink.clone(),
            size: self.symlink.len() as u64,
            ..Inode::default()
        };
        if inode.is_dir() {
            inode.nlink = 2;
            inode.size = DIR_BLOCK;
            inode.flags = parent.flags & wire::LUSTRE_PROJINHERIT_FL;
            if !parent_is_root {
                inode.lov = parent.lov.clone();
            }
        } else if inode.is_file() {
            inode.lov = self.lov.clone();
        }
        if parent.mode & S_ISGID != 0 {
            inode.gid = parent.gid;
            if inode.is_dir() {
                inode.mode |= S_ISGID;
            } else if inode.mode & S_ISGID != 0 && inode.mode & 0o010 != 0 && !cred.may_keep_sgid(inode.gid) {
                inode.mode &= !S_ISGID;
            }
        }
        acl::inherit(&mut inode, parent, cred.umask);
        inode
    }
}

/// Creates a file, directory, symlink or special file under a name.
pub fn create(store: &Store, cred: &Cred, parent: Fid, name: &[u8], node: &Node) -> Result<Done, Errno> {
    check_name(name)?;
    node.check(cred)?;
    let held = store.hold_files(&[node.fid]);
    let dir = searched(store, cred, parent)?;
    if store.entry(parent, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    may_add(cred, &dir)?;
    if store.find(node.fid)?.is_some() {
        lnet::warn_seldom!("create of {} in {parent}: the client's FID is in use", node.fid);
        return Err(Errno::EEXIST);
    }
    let mut inode = node.inode(cred, &dir, parent.is_root());
    inode.links = links::add(&inode.links, parent, name, node.time.sec);
    inode.has_xattrs = !node.xattrs.is_empty();
    let change = DirChange::at(node.time).add(name, inode.kind());

    let mut tx = store.begin_growth()?;
    tx.put_entry(
        parent,
        name,
        Entry {
            fid: node.fid,
            kind: inode.kind(),
        },
    );
    tx.put_new(node.fid, &mut inode);
    for (name, value) in &node.xattrs {
        tx.put_xattr(node.fid, name, value.clone());
    }
    let (transno, dir_version) = tx.commit_in(&held, parent, change)?;
    Ok(Done {
        transno,
        fid: node.fid,
        inode,
        pre_versions: [dir_version, ENOENT_VERSION, 0, 0],
    })
}

/// Gives a file one name more.
pub fn link(
    store: &Store,
    cred: &Cred,
    file: Fid,
    parent: Fid,
    name: &[u8],
    time: Time,
) -> Result<Done, Errno> {
    check_name(name)?;
    let held = store.hold_files(&[file]);
    let dir = searched(store, cred, parent)?;
    let mut inode = store.inode(file)?;
    if inode.is_dir() {
        return Err(Errno::EPERM);
    }
    if store.entry(parent, name)?.is_some() {
        return Err(Errno::EEXIST);
    }
    may_add(cred, &dir)?;
    if inode.nlink == 0 {
        return Err(Errno::ENOENT);
    }
    if inode.flags & (IMMUTABLE | APPEND) != 0 {
        return Err(Errno::EPERM);
    }
    let version = inode.version;
    inode.nlink = inode.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
    inode.changed(time);
    inode.links = links::add(&inode.links, parent, name, time.sec);

    let mut tx = store.begin_growth()?;
    tx.put_entry(
        parent,
        name,
        Entry {
            fid: file,
            kind: inode.kind(),
        },
    );
    tx.put_inode(file, &mut inode);
    let (transno, dir_version) = tx.commit_in(&held, parent, DirChange::at(time).add(name, inode.kind()))?;
    Ok(Done {
        transno,
        fid: file,
        inode,
        pre_versions: [dir_version, version, ENOENT_VERSION, 0],
    })
}

/// Gives a file that has none its layout; a file that has one keeps it, and `None` is returned.
pub fn set_layout(store: &Store, file: Fid, lov: Bytes) -> Result<Option<Done>, Errno> {
    let _held = store.hold_files(&[file]);
    let mut inode = store.inode(file)?;
    if !inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !inode.lov.is_empty() {
        return Ok(None);
    }
    let pre_versions = [inode.version, 0, 0, 0];
    inode.lov = lov;
    let mut tx = store.begin_growth()?;
    tx.put_inode(file, &mut inode);
    let transno = tx.commit()?;
    Ok(Some(Done {
        transno,
        fid: file,
        inode,
        pre_versions,
    }))
}
