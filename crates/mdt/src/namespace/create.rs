//! Creates inodes and names, and sets layouts.

use bytes::Bytes;
use wire::{Errno, Fid, Time};

use super::{
    APPEND, Attempts, ChangeResult, ENOENT_VERSION, IMMUTABLE, Plan, Resolved, check_may_add, check_name,
    check_not_dot_lustre, check_searchable, searchable_dir,
};
use crate::{
    acl,
    cred::Cred,
    dir_layout,
    store::{
        Change, DIR_BLOCK, DirChange, Entry, FileData, Inode, RequestStore, S_IFBLK, S_IFCHR, S_IFDIR,
        S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, UnusedFid, links,
    },
};

/// Maximum length of a symlink's target, bytes.
const SYMLINK_MAX: usize = 4095;

/// A new inode.
#[derive(Clone, Debug, Default)]
pub struct NewInode {
    /// The FID. The client chooses it, or the target for an inode that the target itself creates.
    pub fid: Fid,
    /// Type and permissions, before umask or default ACL.
    pub mode: u32,
    /// Device number of a special file.
    pub rdev: u64,
    /// The client's time.
    pub time: Time,
    /// A symlink's target.
    pub symlink: Bytes,
    /// A file's layout, or the default layout of a directory in the root.
    pub lov: Bytes,
    /// Initial extended attributes.
    pub xattrs: Vec<(Bytes, Bytes)>,
}

/// Checks that a client may choose a FID. `EINVAL` if its sequence is not a normal one, or if its
/// object id is 0.
pub(crate) fn check_fid(fid: Fid) -> Result<(), Errno> {
    match fid.is_normal() && fid.f_oid != 0 {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

impl NewInode {
    /// Checks FID, type and symlink target, and the permission to create a device.
    pub(crate) fn check(&self, cred: &Cred) -> Result<(), Errno> {
        check_fid(self.fid)?;
        match self.mode & S_IFMT {
            S_IFREG | S_IFDIR | S_IFIFO | S_IFSOCK => Ok(()),
            // Device 0:0 is an overlay's whiteout: any user may create it.
            S_IFCHR if self.rdev == 0 => Ok(()),
            S_IFCHR | S_IFBLK if cred.may_make_devices() => Ok(()),
            S_IFCHR | S_IFBLK => Err(Errno::EPERM),
            S_IFLNK if self.symlink.is_empty() => Err(Errno::ENOENT),
            S_IFLNK if self.symlink.len() > SYMLINK_MAX => Err(Errno::ENAMETOOLONG),
            S_IFLNK => Ok(()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The inode to create in this parent; the caller records its name.
    pub(super) fn inode(&self, cred: &Cred, parent: &Inode, parent_is_root: bool) -> Inode {
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
            inode.lov = self.lov.clone();
            if !parent_is_root {
                inode.lov = parent.lov.clone();
                inode.default_lmv = dir_layout::inherited(&parent.default_lmv);
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

/// The view of a create.
pub(super) struct CreateView<'a> {
    /// The parent.
    pub(super) dir: &'a Inode,
    pub(super) name_in_use: bool,
    pub(super) fid_in_use: bool,
}

/// Creates a file, directory, symlink or special file with a name.
///
/// # Errors
///
/// `EEXIST` if the name or the FID is in use; `EACCES`, `EPERM` without permission; `ENOTDIR`,
/// `ENOENT` for a bad parent; `EINVAL`, `ENAMETOOLONG` for a bad name; `ENOSPC`.
pub async fn create<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    parent: Fid,
    name: &[u8],
    node: &NewInode,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    check_name(name)?;
    node.check(cred)?;
    let unused = store.unused_fid(node.fid).await?;
    let resolved = Resolved::read(&store, cred, parent, name).await?;
    create_resolved(store, cred, (parent, name), resolved, unused, node).await
}

/// Like [`create`], for a caller that has locked the name and then looked it up (`resolved`), and
/// that has looked up the new FID (`unused`; `None` if the FID is in use).
pub(crate) async fn create_resolved(
    store: RequestStore<'_>,
    cred: &Cred,
    (parent, name): (Fid, &[u8]),
    resolved: Resolved,
    mut unused: Option<UnusedFid>,
    node: &NewInode,
) -> Result<ChangeResult, Errno> {
    check_not_dot_lustre(parent)?;
    check_searchable(cred, &resolved.dir)?;
    let mut attempts = Attempts::new(store);
    loop {
        let view = CreateView {
            dir: &resolved.dir,
            name_in_use: resolved.entry.is_some(),
            fid_in_use: unused.is_none(),
        };
        let plan = plan_create(&view, cred, parent, name, node)?;
        let UnusedFid { mut stamp } = unused.ok_or(Errno::EEXIST)?;
        attempts.read_dirs(&mut stamp).await?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
        unused = store.unused_fid(node.fid).await?;
    }
}

pub(super) fn plan_create(
    view: &CreateView<'_>,
    cred: &Cred,
    parent: Fid,
    name: &[u8],
    node: &NewInode,
) -> Result<Plan, Errno> {
    if view.name_in_use {
        return Err(Errno::EEXIST);
    }
    check_may_add(cred, view.dir)?;
    if view.fid_in_use {
        lnet::warn_rate_limited!(
            "create of {} in {parent}: the FID chosen by the client is in use",
            node.fid
        );
        return Err(Errno::EEXIST);
    }
    let mut inode = node.inode(cred, view.dir, parent.is_root());
    inode.links = links::add(&inode.links, parent, name, node.time.sec);
    inode.has_xattrs = !node.xattrs.is_empty();
    let (fid, kind) = (node.fid, inode.kind());

    let mut change = Change::growing();
    change.change_dir(parent, DirChange::at(node.time).add(name, kind));
    change.add_entry(parent, name, Entry { fid, kind });
    change.make_inode(fid, &inode);
    for (name, value) in &node.xattrs {
        change.set_xattr(fid, name, value.clone());
    }
    Ok(Plan::new(change, fid, inode, [0, ENOENT_VERSION, 0, 0]))
}

/// Creates a file without a name (`MDS_OPEN_VOLATILE`), as an orphan. The caller opens the file;
/// the last close destroys the file.
///
/// # Errors
///
/// `EEXIST` if the FID is in use; `EACCES`, `EPERM` without permission; `ENOTDIR`, `ENOENT` for a
/// bad parent; `ENOSPC`.
pub async fn create_volatile<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    parent: Fid,
    node: &NewInode,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    node.check(cred)?;
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[node.fid]).await?;
        let view = CreateView {
            dir: &searchable_dir(&store, cred, parent).await?,
            name_in_use: false,
            fid_in_use: store.find(node.fid).await?.is_some(),
        };
        let plan = plan_create_volatile(&view, cred, parent, node)?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

fn plan_create_volatile(
    view: &CreateView<'_>,
    cred: &Cred,
    parent: Fid,
    node: &NewInode,
) -> Result<Plan, Errno> {
    check_may_add(cred, view.dir)?;
    if view.fid_in_use {
        return Err(Errno::EEXIST);
    }
    let mut inode = node.inode(cred, view.dir, parent.is_root());
    inode.nlink = 0;
    let mut change = Change::growing();
    change.make_inode(node.fid, &inode);
    change.add_orphan(node.fid);
    let pre_versions = [view.dir.version, ENOENT_VERSION, 0, 0];
    Ok(Plan::new(change, node.fid, inode, pre_versions))
}

/// The view of a link.
pub(super) struct LinkView {
    /// The parent.
    pub(super) dir: Inode,
    /// The file.
    pub(super) inode: Inode,
    pub(super) name_in_use: bool,
}

/// Adds a name to a file.
///
/// # Errors
///
/// `EEXIST` if the name is in use; `EPERM` for a directory, or an immutable or append-only file;
/// `ENOENT` if the file has no name left; `EMLINK`; or an error of the parent or the name as in
/// [`create`].
pub async fn link<'a>(
    store: impl Into<RequestStore<'a>>,
    cred: &Cred,
    file: Fid,
    parent: Fid,
    name: &[u8],
    time: Time,
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    check_name(name)?;
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[file]).await?;
        let view = LinkView {
            dir: searchable_dir(&store, cred, parent).await?,
            inode: store.inode(file).await?,
            name_in_use: store.entry(parent, name).await?.is_some(),
        };
        let plan = plan_link(view, cred, file, parent, name, time)?;
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}

pub(super) fn plan_link(
    view: LinkView,
    cred: &Cred,
    file: Fid,
    parent: Fid,
    name: &[u8],
    time: Time,
) -> Result<Plan, Errno> {
    let mut inode = view.inode;
    if inode.is_dir() {
        return Err(Errno::EPERM);
    }
    if view.name_in_use {
        return Err(Errno::EEXIST);
    }
    check_may_add(cred, &view.dir)?;
    if inode.nlink == 0 {
        return Err(Errno::ENOENT);
    }
    if inode.flags & (IMMUTABLE | APPEND) != 0 {
        return Err(Errno::EPERM);
    }
    let pre_versions = [0, inode.version, ENOENT_VERSION, 0];
    inode.nlink = inode.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
    inode.record_change(time);
    inode.links = links::add(&inode.links, parent, name, time.sec);
    let (fid, kind) = (file, inode.kind());

    let mut change = Change::growing();
    change.change_dir(parent, DirChange::at(time).add(name, kind));
    change.add_entry(parent, name, Entry { fid, kind });
    change.change_inode(fid, &inode);
    Ok(Plan::new(change, fid, inode, pre_versions))
}

/// Sets the layout of a file without one. If the file has a layout, returns `None` and changes
/// nothing.
///
/// # Errors
///
/// `EINVAL` if the inode is no regular file; `ENOENT` if it is gone; `ENOSPC`.
pub async fn set_layout<'a>(
    store: impl Into<RequestStore<'a>>,
    file: Fid,
    lov: Bytes,
) -> Result<Option<ChangeResult>, Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[file]).await?;
        let Some(plan) = plan_set_layout(store.inode(file).await?, file, lov.clone())? else {
            return Ok(None);
        };
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(Some(result));
        }
    }
}

fn plan_set_layout(mut inode: Inode, file: Fid, lov: Bytes) -> Result<Option<Plan>, Errno> {
    if !inode.is_file() {
        return Err(Errno::EINVAL);
    }
    if !inode.lov.is_empty() {
        return Ok(None);
    }
    let pre_versions = [inode.version, 0, 0, 0];
    inode.lov = lov;
    let mut change = Change::growing();
    change.change_inode(file, &inode);
    if let Some(max) = inode.data_max().filter(|_| inode.size > 0) {
        let mut data = FileData::default();
        data.truncate(inode.size.min(max));
        change.change_data(file, data, true);
    }
    Ok(Some(Plan::new(change, file, inode, pre_versions)))
}

/// Replaces the layout `old` of a file by a layout `new` that has more objects. The caller has
/// revoked the clients' locks on the layout.
///
/// # Errors
///
/// `ESTALE` if the file has another layout than `old`; `ENOENT` if it is gone; `ENOSPC`.
pub async fn replace_layout<'a>(
    store: impl Into<RequestStore<'a>>,
    file: Fid,
    (old, new): (&Bytes, Bytes),
) -> Result<ChangeResult, Errno> {
    let store = store.into();
    let mut attempts = Attempts::new(store);
    loop {
        let stamp = attempts.begin(&[file]).await?;
        let mut inode = store.inode(file).await?;
        if inode.lov != *old {
            return Err(Errno::ESTALE);
        }
        let pre_versions = [inode.version, 0, 0, 0];
        inode.lov = new.clone();
        let mut change = Change::growing();
        change.change_inode(file, &inode);
        let plan = Plan::new(change, file, inode, pre_versions);
        if let Some(result) = attempts.apply(plan, &stamp)? {
            return Ok(result);
        }
    }
}
