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
    /// Whether an invalidation is writing the page back. It then removes the page, and others wait
    /// for this.
    is_writing: bool,
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
    me: Weak<KernelModel>,
    client: Weak<Client>,
    caches: Mutex<Caches>,
    /// Notified when a truncation ends.
    truncated: Notify,
    /// Notified when the write-back of a page ends.
    written: Notify,
}

impl KernelModel {
    /// Creates the kernel of a mount, and registers it with the client, which invalidates its
    /// caches.
    pub fn attach(client: &Arc<Client>) -> Arc<KernelModel> {
        let kernel = Arc::new_cyclic(|me| KernelModel {
            me: me.clone(),
            client: Arc::downgrade(client),
            caches: Mutex::default(),
            truncated: Notify::new(),
            written: Notify::new(),
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
        loop {
            self.wait_until_written(file.fid, page).await;
            if let Some(page) = self.caches.lock().pages.get(&(file.fid, page)) {
                return Ok(page.data.slice(bytes));
            }
            self.fault(file, page).await?;
        }
    }

    /// Reads a page from the client. Like the kernel, the model keeps the page locked during the
    /// read. The client knows this, and does not invalidate the page meanwhile.
    async fn fault(&self, file: &Arc<OpenFile>, page: u64) -> Result<(), Errno> {
        let client = self.client.upgrade().ok_or(Errno::ENOTCONN)?;
        let data = client.read_mapped(file, page * PAGE as u64, PAGE).await?;
        let mut data = data.concat();
        data.resize(PAGE, 0);
        // There is no await point after the client's answer, so a later invalidation finds the
        // page.
        let clean = Page {
            data: Bytes::from(data),
            dirty: None,
            is_writing: false,
        };
        let mut caches = self.caches.lock();
        let known = caches.pages.get(&(file.fid, page));
        if known.is_none_or(|known| known.dirty.is_none()) {
            caches.pages.insert((file.fid, page), clean);
        }
        Ok(())
    }

    /// Stores a block through a mapping.
    ///
    /// # Errors
    ///
    /// The client's error: the program gets SIGBUS.
    pub async fn store(&self, file: &Arc<OpenFile>, block: u8, data: Bytes) -> Result<(), Errno> {
        let (page, bytes) = place_of(block);
        loop {
            self.wait_until_written(file.fid, page).await;
            // The client's lock for the write-back of a dirty page is known.
            if !self.is_dirty(file.fid, page) {
                self.fault(file, page).await?;
            }
            let mut caches = self.caches.lock();
            let found = caches.pages.get_mut(&(file.fid, page));
            let Some(found) = found.filter(|found| !found.is_writing) else {
                continue;
            };
            let mut content = found.data.to_vec();
            content[bytes].copy_from_slice(&data);
            found.data = Bytes::from(content);
            found.dirty = Some(file.clone());
            return Ok(());
        }
    }

    fn is_dirty(&self, fid: Fid, page: u64) -> bool {
        let caches = self.caches.lock();
        caches
            .pages
            .get(&(fid, page))
            .is_some_and(|page| page.dirty.is_some())
    }

    async fn wait_until_written(&self, fid: Fid, page: u64) {
        loop {
            let written = self.written.notified();
            let is_writing = |page: &Page| page.is_writing;
            if !self.caches.lock().pages.get(&(fid, page)).is_some_and(is_writing) {
                return;
            }
            written.await;
        }
    }

    /// Writes dirty pages of a file back, and drops its pages. As in the kernel, this goes on if
    /// the caller stops waiting, and a second call waits for pages that the first one is writing.
    ///
    /// # Errors
    ///
    /// The client's error: the pages are lost, as in the kernel.
    pub async fn write_back_and_drop(&self, fid: Fid, pages: Range<u64>) -> Result<(), Errno> {
        let Some(kernel) = self.me.upgrade() else {
            return Ok(());
        };
        cpt::detach_on_drop(async move {
            let mut result = Ok(());
            let mut rest = pages;
            loop {
                kernel.wait_for_truncation(fid).await;
                let Some(page) = kernel.first_page(fid, rest.clone()) else {
                    return result;
                };
                kernel.wait_until_written(fid, page).await;
                result = result.and(kernel.drop_page(fid, page).await);
                rest.start = page + 1;
            }
        })
        .await
    }

    fn first_page(&self, fid: Fid, pages: Range<u64>) -> Option<u64> {
        let caches = self.caches.lock();
        let mut found = caches.pages.range((fid, pages.start)..(fid, pages.end));
        found.next().map(|((_, page), _)| *page)
    }

    /// Drops a page; writes it back first if it is dirty.
    async fn drop_page(&self, fid: Fid, page: u64) -> Result<(), Errno> {
        let key = (fid, page);
        let dirty = {
            let mut caches = self.caches.lock();
            let Some(found) = caches.pages.get_mut(&key) else {
                return Ok(());
            };
            found.is_writing = found.dirty.is_some();
            found.dirty.clone().map(|file| (file, found.data.clone()))
        };
        let written = match (dirty, self.client.upgrade()) {
            (Some((file, data)), Some(client)) => client.write_mapped(&file, page * PAGE as u64, data).await,
            _ => Ok(0),
        };
        self.caches.lock().pages.remove(&key);
        self.written.notify_waiters();
        written.map(drop)
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

    fn inval_inode(&self, fid: Fid, offset: i64, len: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(offset) = u64::try_from(offset) {
                let first = offset / PAGE as u64;
                let end = match u64::try_from(len) {
                    Ok(0) | Err(_) => u64::MAX,
                    Ok(len) => (offset + len).div_ceil(PAGE as u64),
                };
                // The client itself reports data that it cannot write.
                let _ = self.write_back_and_drop(fid, first..end).await;
            }
        })
    }
}
