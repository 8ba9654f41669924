//! A model of the kernel's side of a FUSE mount: entries and pages that stay until the client
//! invalidates them. Rules for keeping pages can be tested in this model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use client::{Client, KernelCache, OpenFile};
use cpt::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::Notify;
use wire::{Errno, Fid};

use crate::names::Kind;
use crate::workload::BLOCK;

/// Size of a page, bytes.
const PAGE: usize = 4096;

/// The page of a block, and the block's bytes in it.
fn place_of(block: u8) -> (u64, Range<usize>) {
    let start = usize::from(block) * BLOCK;
    ((start / PAGE) as u64, start % PAGE..start % PAGE + BLOCK)
}

/// A page of a mapping.
struct Page {
    data: Bytes,
    /// The open file through which the kernel writes the page back, if it is dirty.
    dirty: Option<Arc<OpenFile>>,
}

#[derive(Default)]
struct Caches {
    entries: BTreeMap<(Fid, Vec<u8>), (Fid, Kind)>,
    pages: BTreeMap<(Fid, u64), Page>,
    /// Files that a call is truncating.
    truncating: BTreeSet<Fid>,
}

/// The kernel of one client.
pub struct KernelModel {
    client: Weak<Client>,
    caches: Mutex<Caches>,
    /// Notified when a truncation ends.
    truncated: Notify,
}

impl KernelModel {
    /// Creates the kernel of a mount, and registers it with the client, which invalidates its
    /// caches.
    pub fn attach(client: &Arc<Client>) -> Arc<KernelModel> {
        let kernel = Arc::new(KernelModel {
            client: Arc::downgrade(client),
            caches: Mutex::default(),
            truncated: Notify::new(),
        });
        client.set_kernel(kernel.clone());
        kernel
    }

    /// A cached entry.
    pub fn entry(&self, parent: Fid, name: &str) -> Option<(Fid, Kind)> {
        let key = (parent, name.as_bytes().to_vec());
        self.caches.lock().entries.get(&key).copied()
    }

    /// Caches an entry. The caller must still hold the client's [`client::FoundFile`], whose locks
    /// keep the entry valid.
    pub fn keep_entry(&self, parent: Fid, name: &str, found: (Fid, Kind)) {
        let key = (parent, name.as_bytes().to_vec());
        self.caches.lock().entries.insert(key, found);
    }

    /// Drops an entry that a call of this mount changes, as the kernel does itself.
    pub fn drop_entry(&self, parent: Fid, name: &str) {
        let key = (parent, name.as_bytes().to_vec());
        self.caches.lock().entries.remove(&key);
    }

    /// Reads a block through a mapping.
    ///
    /// # Errors
    ///
    /// The client's error: the program gets SIGBUS.
    pub async fn load(&self, file: &Arc<OpenFile>, block: u8) -> Result<Bytes, Errno> {
        let (page, bytes) = place_of(block);
        if let Some(page) = self.caches.lock().pages.get(&(file.fid, page)) {
            return Ok(page.data.slice(bytes));
        }
        self.fault(file, page).await.map(|data| data.slice(bytes))
    }

    /// Reads a page from the client. Like the kernel, the model keeps the page locked during the
    /// read. The client knows this, and does not invalidate the page meanwhile.
    async fn fault(&self, file: &Arc<OpenFile>, page: u64) -> Result<Bytes, Errno> {
        let client = self.client.upgrade().ok_or(Errno::ENOTCONN)?;
        let data = client.read_mapped(file, page * PAGE as u64, PAGE).await?;
        let mut data = data.concat();
        data.resize(PAGE, 0);
        // There is no await point after the client's answer, so a later invalidation finds the
        // page.
        let clean = Page {
            data: Bytes::from(data),
            dirty: None,
        };
        let mut caches = self.caches.lock();
        let page = caches.pages.entry((file.fid, page)).or_insert(clean);
        Ok(page.data.clone())
    }

    /// Stores a block through a mapping.
    ///
    /// # Errors
    ///
    /// The client's error: the program gets SIGBUS.
    pub async fn store(&self, file: &Arc<OpenFile>, block: u8, data: Bytes) -> Result<(), Errno> {
        let (page, bytes) = place_of(block);
        let mut content = self.fault(file, page).await?.to_vec();
        content[bytes].copy_from_slice(&data);
        let dirty = Page {
            data: Bytes::from(content),
            dirty: Some(file.clone()),
        };
        self.caches.lock().pages.insert((file.fid, page), dirty);
        Ok(())
    }

    /// Writes dirty pages of a file back, and drops all its pages from `first` on.
    ///
    /// # Errors
    ///
    /// The client's error: the pages are lost, as in the kernel.
    pub async fn write_back_and_drop(&self, fid: Fid, first: u64) -> Result<(), Errno> {
        let pages: Vec<_> = {
            let mut caches = self.caches.lock();
            let keys: Vec<_> = caches
                .pages
                .range((fid, first)..=(fid, u64::MAX))
                .map(|(key, _)| *key)
                .collect();
            keys.into_iter()
                .filter_map(|key| Some((key, caches.pages.remove(&key)?)))
                .collect()
        };
        let Some(client) = self.client.upgrade() else {
            return Ok(());
        };
        let mut result = Ok(());
        for ((_, page), Page { data, dirty }) in pages {
            if let Some(file) = dirty {
                let written = client.write_mapped(&file, page * PAGE as u64, data).await;
                result = result.and(written.map(drop));
            }
        }
        result
    }

    /// Begins a truncation. Until its end the kernel writes no page of the file back, and an
    /// invalidation that finds dirty pages waits (`fuse_set_nowrite` in Linux).
    pub fn begin_truncate(&self, fid: Fid) {
        self.caches.lock().truncating.insert(fid);
    }

    /// Ends a truncation; `left`: the number of blocks left, `None` if it failed.
    pub fn end_truncate(&self, fid: Fid, left: Option<u8>) {
        let mut caches = self.caches.lock();
        caches.truncating.remove(&fid);
        if let Some(left) = left {
            let size = u64::from(left) * BLOCK as u64;
            caches
                .pages
                .retain(|(file, page), _| *file != fid || page * (PAGE as u64) < size);
            // The rest of the last page becomes zero.
            if let Some(page) = caches.pages.get_mut(&(fid, size / PAGE as u64)) {
                let mut content = page.data.to_vec();
                content[size as usize % PAGE..].fill(0);
                page.data = Bytes::from(content);
            }
        }
        drop(caches);
        self.truncated.notify_waiters();
    }

    async fn wait_for_truncation(&self, fid: Fid) {
        loop {
            let truncated = self.truncated.notified();
            {
                let caches = self.caches.lock();
                let mut pages = caches.pages.range((fid, 0)..=(fid, u64::MAX));
                if !caches.truncating.contains(&fid) || !pages.any(|(_, page)| page.dirty.is_some()) {
                    return;
                }
            }
            truncated.await;
        }
    }
}

impl KernelCache for KernelModel {
    fn inval_entry<'a>(&'a self, parent: Fid, name: &'a [u8], _child: Fid) -> BoxFuture<'a, ()> {
        self.caches.lock().entries.remove(&(parent, name.to_vec()));
        Box::pin(async {})
    }

    fn inval_inode(&self, fid: Fid, offset: i64, _len: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(offset) = u64::try_from(offset) {
                self.wait_for_truncation(fid).await;
                // The client itself reports data that it cannot write.
                let _ = self.write_back_and_drop(fid, offset / PAGE as u64).await;
            }
        })
    }
}
