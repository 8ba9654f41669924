//! Opening and closing: permission, who denies whom, leases, and the last handle of what has no name any more.

use wire::{
    Errno, Fid, MDS_FMODE_EXEC, MDS_FMODE_READ, MDS_FMODE_WRITE, MDS_OPEN_APPEND, MDS_OPEN_DIRECTORY,
    MDS_OPEN_LEASE, MDS_OPEN_OWNEROVERRIDE, MDS_OPEN_TRUNC, Time, Transno,
};

use super::{APPEND, Closing, Done, IMMUTABLE, close_attrs};
use crate::{
    cred::{Cred, MAY_EXEC, MAY_READ, MAY_WRITE},
    store::{Held, Inode, Opens, Store},
};

/// How a file is to be opened: `MDS_FMODE_*` and `MDS_OPEN_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenMode(pub u64);

impl OpenMode {
    /// Whether any of these flags is set.
    pub fn has(self, flags: u64) -> bool {
        self.0 & flags != 0
    }

    /// Whether data may be changed through the handle.
    pub fn writes(self) -> bool {
        self.has(MDS_FMODE_WRITE)
    }

    /// Whether the open asks for a lease.
    pub(crate) fn is_lease(self) -> bool {
        self.has(MDS_OPEN_LEASE)
    }

    /// Whether it changes the file or asks for the right to.
    pub(crate) fn changes(self) -> bool {
        self.has(MDS_FMODE_WRITE | MDS_OPEN_TRUNC | MDS_OPEN_APPEND)
    }

    fn wants(self) -> u32 {
        let mut want = 0;
        if self.has(MDS_FMODE_READ) {
            want |= MAY_READ;
        }
        if self.changes() {
            want |= MAY_WRITE;
        }
        if self.has(MDS_FMODE_EXEC) {
            want = MAY_EXEC;
        }
        want
    }

    fn check(self, cred: &Cred, inode: &Inode, created: bool) -> Result<(), Errno> {
        if inode.is_dir() {
            if self.writes() || self.has(MDS_OPEN_TRUNC) {
                return Err(Errno::EISDIR);
            }
        } else if self.has(MDS_OPEN_DIRECTORY) {
            return Err(Errno::ENOTDIR);
        }
        if inode.is_symlink() {
            return Err(Errno::ELOOP);
        }
        if inode.flags & IMMUTABLE != 0 && self.writes() && !created {
            return Err(Errno::EPERM);
        }
        if inode.flags & APPEND != 0
            && (self.has(MDS_OPEN_TRUNC) || (self.writes() && !self.has(MDS_OPEN_APPEND)))
        {
            return Err(Errno::EPERM);
        }
        // Whoever creates a file gets what was asked for, whatever the mode is. An override is given to servers of
        // other protocols, for the owner.
        let own = self.has(MDS_OPEN_OWNEROVERRIDE) && cred.fsuid == inode.uid;
        if created || own {
            return Ok(());
        }
        cred.check(inode, self.wants())
    }
}

impl Opens {
    /// Without one handle of this mode.
    fn less(self, mode: OpenMode) -> Opens {
        Opens {
            total: self.total.saturating_sub(1),
            writers: self.writers.saturating_sub(mode.writes().into()),
            executors: self.executors.saturating_sub(mode.has(MDS_FMODE_EXEC).into()),
            leases: self.leases.saturating_sub(mode.is_lease().into()),
        }
    }

    /// With one handle of this mode more.
    fn more(self, mode: OpenMode) -> Opens {
        Opens {
            total: self.total + 1,
            writers: self.writers + u32::from(mode.writes()),
            executors: self.executors + u32::from(mode.has(MDS_FMODE_EXEC)),
            leases: self.leases + u32::from(mode.is_lease()),
        }
    }
}

/// Counts one more handle of an inode, or says why it may not be opened. `created` is the transaction that made the
/// file just now; else the open is a transaction of its own that changes nothing, so that it can be replayed. An inode
/// without links may be opened by whoever knows its FID, as long as somebody has it open.
pub fn open(
    store: &Store,
    cred: &Cred,
    fid: Fid,
    mode: OpenMode,
    created: Option<Transno>,
) -> Result<(Inode, Transno), Errno> {
    let mut held = store.hold_files(&[fid]);
    open_held(store, &mut held, cred, fid, mode, created)
}

/// The same for a client that asks for a lease: as long as it has that, the target asks it before a file is opened for writing or
/// changes its size. `own` is how the client has the file open already. `EBUSY`: somebody else writes to the file, or has a lease.
pub fn lease(
    store: &Store,
    cred: &Cred,
    fid: Fid,
    mode: OpenMode,
    own: Option<OpenMode>,
) -> Result<(Inode, Transno), Errno> {
    let mut held = store.hold_files(&[fid]);
    let opens = held.opens(fid);
    let others = own.map_or(opens, |own| opens.less(own));
    if opens.leases > 0 || others.writers > 0 {
        return Err(Errno::EBUSY);
    }
    open_held(store, &mut held, cred, fid, mode, None)
}

fn open_held(
    store: &Store,
    held: &mut Held<'_>,
    cred: &Cred,
    fid: Fid,
    mode: OpenMode,
    created: Option<Transno>,
) -> Result<(Inode, Transno), Errno> {
    let inode = store.inode(fid)?;
    let opens = held.opens(fid);
    if inode.nlink == 0 && opens.total == 0 {
        return Err(Errno::ENOENT);
    }
    mode.check(cred, &inode, created.is_some())?;
    if inode.is_file() {
        let changes = mode.writes() || mode.has(MDS_OPEN_TRUNC);
        let denied = (changes && opens.executors > 0) || (mode.has(MDS_FMODE_EXEC) && opens.writers > 0);
        if denied {
            return Err(Errno::ETXTBSY);
        }
    }
    let transno = match created {
        Some(transno) => transno,
        None => store.begin().commit()?,
    };
    held.set_opens(fid, opens.more(mode));
    Ok((inode, transno))
}

/// Whether a client has the file open to execute it.
pub fn is_executed(store: &Store, fid: Fid) -> bool {
    store.hold_files(&[fid]).opens(fid).executors > 0
}

/// Whether a client has a lease on the file, or had one and has not closed its handle yet.
pub fn is_leased(store: &Store, fid: Fid) -> bool {
    store.hold_files(&[fid]).opens(fid).leases > 0
}

/// A directory was read, at a time that its reader tells.
pub fn accessed(store: &Store, fid: Fid, at: Time) -> Result<(), Errno> {
    let _held = store.hold(&[fid]);
    let mut inode = store.inode(fid)?;
    if at <= inode.atime || at < inode.ctime {
        return Ok(());
    }
    inode.atime = at;
    let mut tx = store.begin();
    tx.put_inode(fid, &mut inode);
    tx.commit().map(drop)
}

/// Counts one handle less; whether none is left.
fn less(held: &mut Held<'_>, fid: Fid, mode: OpenMode) -> bool {
    let opens = held.opens(fid).less(mode);
    held.set_opens(fid, opens);
    opens.total == 0
}

/// Takes one handle away, with what the client says about times and size; an orphan goes with its last handle.
pub fn close(store: &Store, fid: Fid, mode: OpenMode, attrs: Option<Closing<'_>>) -> Result<Done, Errno> {
    // A directory is changed by what its reader tells, and only so.
    let mut held = match mode.writes() || attrs.is_none() {
        true => store.hold_files(&[fid]),
        false => store.hold(&[fid]),
    };
    let last = less(&mut held, fid, mode);
    let mut inode = store.inode(fid)?;
    let pre_versions = [inode.version, 0, 0, 0];
    let mut tx = store.begin();
    let changed = attrs.is_some_and(|a| close_attrs(&mut inode, a, mode.writes()));
    if inode.nlink == 0 && last {
        tx.destroy_orphan(fid, &inode)?;
    } else if changed {
        tx.put_inode(fid, &mut inode);
    }
    let transno = tx.commit()?;
    Ok(Done {
        transno,
        fid,
        inode,
        pre_versions,
    })
}

/// Takes one handle away of which there is nothing to tell: a transaction only where an orphan goes with it.
pub fn let_go(store: &Store, fid: Fid, mode: OpenMode) -> Result<(), Errno> {
    let mut held = store.hold_files(&[fid]);
    if !less(&mut held, fid, mode) {
        return Ok(());
    }
    let inode = store.inode(fid)?;
    if inode.nlink == 0 {
        let mut tx = store.begin();
        tx.destroy_orphan(fid, &inode)?;
        tx.commit()?;
    }
    Ok(())
}
