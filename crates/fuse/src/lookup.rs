//! Lookups of names. Two kinds are special: `.` and `..`, with which the kernel resolves file
//! handles, and FIDs in `.lustre/fid`, which give directories an alias ([`crate::nodes`]).

use crate::state::{State, cache_ttl};
use client::{Cred, FoundFile, KernelCache};
use fuser::{Errno, FileAttr, INodeNo};
use std::time::Duration;
use wire::Fid;

/// The longest time that a change through an alias waits for the kernel to invalidate a name.
const INVALIDATE_TIMEOUT: Duration = Duration::from_millis(500);

/// The attributes and cache lifetimes in a reply with a found or created file.
pub(crate) struct EntryAttr {
    pub(crate) attr: FileAttr,
    pub(crate) attr_ttl: Duration,
    pub(crate) name_ttl: Duration,
}

impl State {
    /// The FID of a lookup's directory. The kernel may resolve a file handle by a lookup of `.` or
    /// `..` in a directory that it has forgotten.
    pub(crate) fn lookup_dir(&self, dir: INodeNo, name: &[u8]) -> Result<Fid, Errno> {
        match name {
            b"." | b".." => self.nodes.fid_of_handle(dir.0).ok_or(Errno::ESTALE),
            _ => self.fid(dir),
        }
    }

    /// Looks up a name in a directory; `.` is the directory itself, `..` its parent.
    pub(crate) async fn lookup(&self, cred: &Cred, dir: Fid, name: &[u8]) -> Result<FoundFile, wire::Errno> {
        match name {
            b"." => self.client.getattr(cred, dir).await,
            b".." => {
                let parent = self.client.parent(cred, dir).await?;
                self.client.getattr(cred, parent).await
            }
            _ => self.client.lookup(cred, dir, name).await,
        }
    }

    /// The attributes to reply with for a file found in this directory. Adds a reference of the
    /// kernel to the file.
    pub(crate) fn entry_attr(&self, dir: INodeNo, found: &FoundFile) -> EntryAttr {
        let fid = found.attr.fid;
        let (attr_ttl, name_ttl) = (cache_ttl(found.attr_cached), cache_ttl(found.name_cached));
        if !self.nodes.gives_aliases(dir.0) {
            return EntryAttr {
                attr: self.nodes.attr(self.nodes.reference(fid), found),
                attr_ttl,
                name_ttl,
            };
        }
        let is_dir = found.attr.is_dir();
        let ino = match is_dir {
            true => self.nodes.reference_alias(fid),
            false => self.nodes.reference(fid),
        };
        EntryAttr {
            attr: self.nodes.attr(ino, found),
            attr_ttl: if is_dir { Duration::ZERO } else { attr_ttl },
            name_ttl: Duration::ZERO,
        }
    }

    /// After a change through an alias, invalidates the attributes of the directory, and the name
    /// `name` in the directory: the kernel caches both under the directory's own inode number. Does
    /// nothing if `dir` is no alias.
    pub(crate) async fn invalidate_alias(&self, dir: INodeNo, name: Option<&[u8]>) {
        if !self.nodes.is_alias(dir.0) {
            return;
        }
        let (Some(fid), Some(kernel)) = (self.nodes.fid(dir.0), self.kernel.get()) else {
            return;
        };
        kernel.inval_inode(fid, -1, 0).await;
        if let Some(name) = name {
            let invalidation = kernel.inval_entry(fid, name, Fid::ZERO);
            let _ = tokio::time::timeout(INVALIDATE_TIMEOUT, invalidation).await;
        }
    }
}
