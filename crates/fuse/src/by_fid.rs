//! What is looked up beyond a directory's names: `.` and `..`, by which the kernel finds the files of file handles; and what
//! `.lustre/fid` leads to.

use crate::state::{State, ttl};
use client::{Cred, Found, KernelCache};
use fuser::{Errno, FileAttr, INodeNo};
use std::time::Duration;
use wire::Fid;

/// How long a change through an alias waits for the kernel to forget what it changed.
const KERNEL_WAIT: Duration = Duration::from_millis(500);

/// A file, as the kernel is told of it and given a reference.
pub(crate) struct Node {
    pub(crate) attr: FileAttr,
    pub(crate) attr_ttl: Duration,
    pub(crate) name_ttl: Duration,
}

impl State {
    /// The directory in which a name is looked up. The dots are asked of files that the kernel may have forgotten.
    pub(crate) fn dir_of_lookup(&self, dir: INodeNo, name: &[u8]) -> Result<Fid, Errno> {
        match name {
            b"." | b".." => self.nodes.fid_of_handle(dir.0).ok_or(Errno::ESTALE),
            _ => self.fid(dir),
        }
    }

    /// Finds a name in a directory, or the directory itself, or the one that it is in.
    pub(crate) async fn look_up(&self, cred: &Cred, dir: Fid, name: &[u8]) -> Result<Found, wire::Errno> {
        match name {
            b"." => self.client.getattr(cred, dir).await,
            b".." => {
                let parent = self.client.parent(cred, dir).await?;
                self.client.getattr(cred, parent).await
            }
            _ => self.client.lookup(cred, dir, name).await,
        }
    }

    /// A file that was found in this directory; the kernel is given a reference to it.
    pub(crate) fn node(&self, dir: INodeNo, found: &Found) -> Node {
        let fid = found.attr.fid;
        let (attr_ttl, name_ttl) = (ttl(found.attr_cached), ttl(found.name_cached));
        if !self.nodes.is_by_fid(dir.0) {
            return Node {
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
        Node {
            attr: self.nodes.attr(ino, found),
            attr_ttl: if is_dir { Duration::ZERO } else { attr_ttl },
            name_ttl: Duration::ZERO,
        }
    }

    /// A directory, or a name in it, was changed. Where the kernel did that through an alias, it goes on believing what it
    /// keeps under the directory's own number, so it is told.
    pub(crate) async fn changed(&self, dir: INodeNo, name: Option<&[u8]>) {
        if !self.nodes.is_alias(dir.0) {
            return;
        }
        let (Some(fid), Some(kernel)) = (self.nodes.fid(dir.0), self.kernel.get()) else {
            return;
        };
        kernel.inval_inode(fid, -1, 0).await;
        if let Some(name) = name {
            let forgotten = kernel.inval_entry(fid, name, Fid::ZERO);
            let _ = tokio::time::timeout(KERNEL_WAIT, forgotten).await;
        }
    }
}
