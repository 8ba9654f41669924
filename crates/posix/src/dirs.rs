//! Open directories and their entries.

use crate::mount::Mount;
use client::{DirHandle, DirItem};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{Errno, Fid};

/// An open directory.
pub struct Dir {
    /// The client's handle.
    pub handle: Arc<DirHandle>,
    position: Mutex<ReadPosition>,
}

/// The read position of an open directory.
#[derive(Default)]
struct ReadPosition {
    /// The offset of the next entries to request.
    offset: u64,
    /// Entries read from the server and not yet returned.
    items: VecDeque<DirItem>,
}

impl Dir {
    /// Opens a directory.
    ///
    /// # Errors
    ///
    /// `ENOTDIR`, `EACCES`; or an error of a server.
    pub async fn open(mount: &Mount, fid: Fid) -> Result<Dir, Errno> {
        Ok(Dir {
            handle: mount.client.opendir(&mount.cred, fid).await?,
            position: Mutex::default(),
        })
    }

    /// The next entry; `None` at the end.
    ///
    /// # Errors
    ///
    /// An error of a server.
    pub async fn next(&self, mount: &Mount) -> Result<Option<DirItem>, Errno> {
        let mut position = self.position.lock().await;
        if position.items.is_empty() {
            position.items = self.fetch(mount, &mut position.offset).await?.into();
        }
        Ok(position.items.pop_front())
    }

    /// The entries that are already read, or else those of one request; empty at the end.
    ///
    /// # Errors
    ///
    /// An error of a server.
    pub async fn next_many(&self, mount: &Mount) -> Result<Vec<DirItem>, Errno> {
        let mut position = self.position.lock().await;
        if position.items.is_empty() {
            return self.fetch(mount, &mut position.offset).await;
        }
        Ok(std::mem::take(&mut position.items).into())
    }

    /// Requests the entries at an offset and advances it.
    async fn fetch(&self, mount: &Mount, offset: &mut u64) -> Result<Vec<DirItem>, Errno> {
        let items = mount.client.readdir(&self.handle, *offset).await?;
        if let Some(last) = items.last() {
            *offset = last.next;
            self.handle.advance(&items, items.len());
        }
        Ok(items)
    }

    /// Restarts at the beginning.
    pub async fn rewind(&self) {
        *self.position.lock().await = ReadPosition::default();
    }
}
