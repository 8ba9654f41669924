//! The data of one file: mapped to its objects by the layout, with the size merged from the
//! objects, and sequential read-ahead. An operation locks only the objects that its range touches.

mod changes;

use super::change_seq::ChangeSeq;
use super::held_locks::HeldLocks;
use super::object::{CapabilityUser, Object, OpenedData};
use super::objects::{DataWatch, UsedObject};
use super::ranged_ops::Seek;
use super::read_ahead::ReadAhead;
use super::striped_io::StripedRead;
use crate::atime::AtimeTracker;
use crate::attr::DataAttr;
use crate::kernel::Kernel;
use crate::layout::{FileLayout, ObjectIndex};
use bytes::Bytes;
use cpt::JoinSet;
use ldlm::LockMode;
use parking_lot::{Mutex, MutexGuard};
use rpc::job;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::RwLock;
use wire::{Errno, Fid, OBD_OBJECT_EOF};

/// Longest wait for object targets in an operation that must answer the kernel soon: the wait for a
/// file's size, or for the write lock of a new file.
const SIZE_WAIT_MAX: Duration = Duration::from_millis(500);

/// The data of one file.
#[derive(Debug)]
pub struct DataFile {
    fid: Fid,
    layout: Arc<FileLayout>,
    /// By [`ObjectIndex`]; `None` if the target is unknown to this client.
    objects: Vec<Option<UsedObject>>,
    ahead: Mutex<ReadAhead>,
    /// Whether the objects know that they belong to this file ([`DataFile::adopt_objects`]).
    has_adopted_objects: AtomicBool,
    atime_tracker: Mutex<AtimeTracker>,
    /// Taken exclusively by appends, truncates, fallocates and repeated reads, and shared by other
    /// writes. Writes of mappings do not take it.
    change_lock: RwLock<()>,
    /// Writes by this mount. A read detects an overlapping write.
    writes: ChangeSeq,
    /// Truncates and fallocates by this mount. A read detects an overlapping one.
    space_changes: ChangeSeq,
}

impl DataFile {
    pub(super) fn new(fid: Fid, layout: Arc<FileLayout>, objects: Vec<Option<UsedObject>>) -> DataFile {
        DataFile {
            fid,
            layout,
            objects,
            ahead: Mutex::default(),
            has_adopted_objects: AtomicBool::new(false),
            atime_tracker: Mutex::default(),
            change_lock: RwLock::new(()),
            writes: ChangeSeq::default(),
            space_changes: ChangeSeq::default(),
        }
    }

    /// The file's access time as this client's reads set it.
    pub(crate) fn atime_tracker(&self) -> MutexGuard<'_, AtimeTracker> {
        self.atime_tracker.lock()
    }

    /// The layout of this data.
    pub fn layout(&self) -> &Arc<FileLayout> {
        &self.layout
    }

    /// Tells the objects that they belong to this file. After a swap of layouts they still name
    /// their former file. The caller must know that this is the file's current layout, and must
    /// keep it current during the call. The first call suffices: an old layout never returns,
    /// because each swap creates new layout generations.
    pub(crate) fn adopt_objects(&self) {
        if self.has_adopted_objects() {
            return;
        }
        for ((stripe, _), object) in self.layout.objects().zip(&self.objects) {
            if let Some(object) = object {
                object.set_file(self.fid, stripe);
            }
        }
        self.has_adopted_objects.store(true, Ordering::Release);
    }

    /// Whether [`DataFile::adopt_objects`] was called.
    pub(crate) fn has_adopted_objects(&self) -> bool {
        self.has_adopted_objects.load(Ordering::Acquire)
    }

    /// Whether the targets of all objects are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.objects.iter().all(Option::is_some)
    }

    /// An object. `ENODEV`: its target is unknown.
    fn object(&self, object: ObjectIndex) -> Result<&Arc<Object>, Errno> {
        self.objects
            .get(object.0 as usize)
            .and_then(Option::as_deref)
            .ok_or(Errno::ENODEV)
    }

    /// The mount's kernel caches; `None` if the file has no objects.
    fn kernel(&self) -> Option<&Kernel> {
        let first = self.objects.iter().flatten().next()?;
        Some(first.osc().kernel())
    }

    /// All objects.
    fn all(&self) -> impl Iterator<Item = (ObjectIndex, ())> + use<> {
        (0..self.objects.len() as u32).map(|i| (ObjectIndex(i), ()))
    }

    /// Locks a range of the file in the objects that have bytes of it.
    async fn lock(&self, mode: LockMode, start: u64, end: u64) -> Result<HeldLocks, Errno> {
        self.lock_range(mode, start, end, false).await
    }

    /// As [`DataFile::lock`]; with `even_revoked` by [`Object::lock_including_revoked`].
    async fn lock_range(
        &self,
        mode: LockMode,
        start: u64,
        end: u64,
        even_revoked: bool,
    ) -> Result<HeldLocks, Errno> {
        let to_end = |(object, range): (ObjectIndex, Range<u64>)| match end {
            // Also in a component that ends within the file: only a lock up to the end of an object
            // proves the object's size.
            OBD_OBJECT_EOF => (object, range.start..OBD_OBJECT_EOF),
            _ => (object, range),
        };
        let ranges = self.layout.objects_in(start..end).map(to_end);
        self.lock_objects(mode, ranges, even_revoked).await
    }

    /// Locks ranges of objects, which come in ascending order, so that concurrent callers cannot
    /// deadlock.
    async fn lock_objects(
        &self,
        mode: LockMode,
        ranges: impl Iterator<Item = (ObjectIndex, Range<u64>)>,
        even_revoked: bool,
    ) -> Result<HeldLocks, Errno> {
        let mut locks = HeldLocks::new();
        for (index, range) in ranges {
            let object = self.object(index)?;
            let lock = match even_revoked {
                true => object.lock_including_revoked(mode, range).await?,
                false => object.lock(mode, range).await?,
            };
            locks.push(index, lock);
        }
        Ok(locks)
    }

    /// The largest file size that the targets' limits of object sizes allow.
    fn size_max(&self) -> u64 {
        let object = |object: &UsedObject| object.osc().object_bytes_max();
        let smallest = self.objects.iter().flatten().map(object).min();
        let size = self.layout.size_max(smallest.unwrap_or(u64::MAX));
        size.min(i64::MAX as u64)
    }

    /// The part of a range that a write may reach, if it first needs objects. Beyond the largest
    /// size the write fails. A file without any layout needs an open for write instead.
    pub(crate) fn range_without_objects(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let range = range.start..range.end.min(self.size_max());
        let has_layout = !self.layout.components().is_empty();
        (has_layout && !self.layout.has_objects(range.clone())).then_some(range)
    }

    /// Checks that the file may have this size.
    pub(crate) fn check_size(&self, end: u64) -> Result<(), Errno> {
        if end > self.size_max() {
            return Err(Errno::EFBIG);
        }
        Ok(())
    }

    /// Reads through the cache; short at the end of the file.
    ///
    /// # Errors
    ///
    /// `EIO`: an object or a lock was lost; `ENODEV`: an unknown target; or an error of an OST.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let end = offset.saturating_add(len as u64);
        let read = |even_revoked| async move {
            let locks = self.lock_range(LockMode::Pr, offset, end, even_revoked).await?;
            self.read_locked(locks, offset, len).await
        };
        self.read_consistently(read).await
    }

    /// Runs `read` so that its bytes match the file size. If a write by this mount was concurrent,
    /// the zeros that the client has added up to the size may be wrong. If a truncate or fallocate
    /// was concurrent, all bytes may be wrong. Then `read` runs again under `change_lock`, which
    /// excludes changes. As in a write, the task takes `change_lock` before the extent locks. A
    /// lock cancellation may wait for a truncate, and the truncate for `change_lock`. So the second
    /// read also uses revoked locks (the argument of `read`): a new lock would wait for that
    /// cancellation, a deadlock.
    async fn read_consistently<F>(&self, read: impl Fn(bool) -> F) -> Result<Vec<Bytes>, Errno>
    where
        F: Future<Output = Result<StripedRead, Errno>>,
    {
        let (writes, space_changes) = (self.writes.watch(), self.space_changes.watch());
        let out = read(false).await?;
        if space_changes.saw_no_change() && (writes.saw_no_change() || !out.has_added_zeros) {
            return Ok(out.data);
        }
        let _no_changes = self.change_lock.write().await;
        Ok(read(true).await?.data)
    }

    /// Reads pages for a mapping. The kernel does not report writes to a writable mapping, so the
    /// client locks its pages for writing at once (`may_change`). The later write-back then has its
    /// lock, and overwrites no other client's bytes of the same page.
    ///
    /// # Errors
    ///
    /// As [`DataFile::read`].
    pub async fn read_pages(&self, offset: u64, len: usize, may_change: bool) -> Result<Vec<Bytes>, Errno> {
        let mode = if may_change { LockMode::Pw } else { LockMode::Pr };
        let end = offset.saturating_add(len as u64);
        let pending_read = self
            .kernel()
            .map(|kernel| kernel.begin_read(self.fid, offset..end));
        let locks = self.lock(mode, offset, end).await?;
        drop(pending_read);
        // `read_consistently` could deadlock: the kernel holds these pages, and a change may wait
        // for the kernel to drop them. A change invalidates the kernel's pages at its end.
        Ok(self.read_locked(locks, offset, len).await?.data)
    }

    /// Reads a locked range.
    async fn read_locked(&self, locks: HeldLocks, offset: u64, len: usize) -> Result<StripedRead, Errno> {
        let end = offset.saturating_add(len as u64);
        if self.objects.is_empty() || len == 0 {
            return Ok(StripedRead::default());
        }
        let extents = || self.layout.extents(offset, len as u64);
        if extents().nth(1).is_some() {
            for extent in extents() {
                self.object(extent.object)?.prefetch(extent.object_range());
            }
        }
        self.read_ahead(offset, len as u64);
        let mut out = StripedRead::default();
        for extent in extents() {
            let object = self.object(extent.object)?;
            let data = object
                .read(extent.object_range(), locks.on(extent.object)?)
                .await?;
            out.push(extent.file_offset - offset, data);
        }
        let read = self.fill_to_size(out, offset, end).await;
        drop(locks);
        read
    }

    /// Fills the missing end of a read with zeros up to the file's size: an object ends at its last
    /// written byte, but the file may continue in this or another object. The caller holds a lock
    /// on the range, so no other client can write there meanwhile.
    async fn fill_to_size(&self, mut out: StripedRead, offset: u64, end: u64) -> Result<StripedRead, Errno> {
        if out.len < end - offset {
            let size = self.attr().await?.size;
            out.fill_to(size.min(end).saturating_sub(offset));
        }
        Ok(out)
    }

    /// Reads from the servers without the cache; short at the end of the file.
    ///
    /// # Errors
    ///
    /// As [`DataFile::read`].
    pub async fn read_direct(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        self.read_consistently(|even_revoked| self.read_direct_once(offset, len, even_revoked))
            .await
    }

    async fn read_direct_once(
        &self,
        offset: u64,
        len: usize,
        even_revoked: bool,
    ) -> Result<StripedRead, Errno> {
        let end = offset.saturating_add(len as u64);
        let _locks = self.lock_range(LockMode::Pr, offset, end, even_revoked).await?;
        let mut out = StripedRead::default();
        for extent in self.layout.extents(offset, len as u64) {
            let object = self.object(extent.object)?;
            let data = object.read_direct(extent.object_range()).await?;
            out.push(extent.file_offset - offset, data);
        }
        self.fill_to_size(out, offset, end).await
    }

    /// Starts read-ahead for sequential reads.
    fn read_ahead(&self, offset: u64, len: u64) {
        let Some(ahead) = self.ahead.lock().record_read(offset, len) else {
            return;
        };
        for (object, range) in self.layout.objects_in(ahead) {
            if let Ok(object) = self.object(object) {
                object.prefetch(range);
            }
        }
    }

    /// Runs an operation on objects, concurrently if there are several; each has its argument.
    /// Returns the results in ascending order of the objects.
    async fn for_each<A, T, F>(
        &self,
        objects: impl Iterator<Item = (ObjectIndex, A)>,
        act: impl Fn(Arc<Object>, ObjectIndex, A) -> F,
    ) -> Result<Vec<(ObjectIndex, T)>, Errno>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Errno>> + Send + 'static,
    {
        let mut objects = objects.peekable();
        let Some((index, arg)) = objects.next() else {
            return Ok(Vec::new());
        };
        let first = act(self.object(index)?.clone(), index, arg);
        if objects.peek().is_none() {
            return Ok(vec![(index, first.await?)]);
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(job::inherit(async move { (index, first.await) }));
        for (index, arg) in objects {
            let task = act(self.object(index)?.clone(), index, arg);
            tasks.spawn(job::inherit(async move { (index, task.await) }));
        }
        let mut results = Vec::with_capacity(tasks.len());
        while let Some(result) = tasks.join_next().await {
            results.push(result.map_err(|_| Errno::EINTR)?);
        }
        // Of several errors, the caller gets that of the first object.
        results.sort_by_key(|(index, _)| *index);
        let unwrap = |(index, result): (ObjectIndex, Result<T, Errno>)| Ok((index, result?));
        results.into_iter().map(unwrap).collect()
    }

    /// Writes dirty pages to the servers and waits. Records lost data without returning its error.
    ///
    /// # Errors
    ///
    /// `ENODEV`: an unknown target.
    pub async fn flush(&self) -> Result<(), Errno> {
        self.for_each(self.all(), |object, _, ()| async move {
            object.flush(0..u64::MAX).await;
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// As [`DataFile::flush`], and waits until the data is on the targets' disks.
    ///
    /// # Errors
    ///
    /// As [`DataFile::flush`]; or an error of an OST.
    pub async fn fsync(&self) -> Result<(), Errno> {
        self.for_each(self.all(), |object, _, ()| async move { object.sync().await })
            .await?;
        Ok(())
    }

    /// Merges the size, blocks and times of the file's objects into the file's.
    fn merge(&self, attrs: impl IntoIterator<Item = (ObjectIndex, DataAttr)>) -> DataAttr {
        let mut all = DataAttr::default();
        for (object, attr) in attrs {
            all.size = all.size.max(self.layout.file_size(object, attr.size));
            all.blocks += attr.blocks;
            all.times = all.times.latest(attr.times);
        }
        all
    }

    /// Size, blocks and times: from the cache if locks cover them, else by glimpses.
    ///
    /// # Errors
    ///
    /// `EIO`: an object was lost; `ENODEV`: an unknown target; or an error of an OST.
    pub async fn attr(&self) -> Result<DataAttr, Errno> {
        if let Some(known) = self.cached_attr() {
            return Ok(known);
        }
        let attrs = self
            .for_each(self.all(), |object, _, ()| async move { object.attr().await })
            .await?;
        Ok(self.merge(attrs))
    }

    /// Size, blocks and times if the targets answer within [`SIZE_WAIT_MAX`]; `None` otherwise, and
    /// after an error other than `ENOENT` and `ESTALE`. Does not wait for a target that is known to
    /// be silent.
    pub(crate) async fn attr_with_timeout(&self) -> Result<Option<DataAttr>, Errno> {
        if self.has_silent_target() {
            return Ok(None);
        }
        match tokio::time::timeout(SIZE_WAIT_MAX, self.attr()).await {
            Ok(Err(e @ (Errno::ENOENT | Errno::ESTALE))) => Err(e),
            Ok(prompt_attr) => Ok(prompt_attr.ok()),
            Err(_) => Ok(None),
        }
    }

    /// Whether one of the file's targets has been silent for [`SIZE_WAIT_MAX`].
    fn has_silent_target(&self) -> bool {
        let is_silent = |object: &UsedObject| {
            object
                .osc()
                .import()
                .silence()
                .is_some_and(|silence| silence >= SIZE_WAIT_MAX)
        };
        self.objects.iter().flatten().any(is_silent)
    }

    /// Size, blocks and times if locks exclude changes by other clients.
    pub fn cached_attr(&self) -> Option<DataAttr> {
        let known = |(index, ())| Some((index, self.object(index).ok()?.known_attr()?));
        let attrs: Option<Vec<_>> = self.all().map(known).collect();
        Some(self.merge(attrs?))
    }

    /// Takes the data that came with the reply to an open; `watch` began before the request.
    pub(crate) fn take_opened(&self, opened: &OpenedData<'_>, watch: &DataWatch) {
        let mut objects = self.objects.iter().flatten();
        if let Some(object) = objects.find(|object| object.osc().is_mdt()) {
            object.take_opened(opened, watch.changes());
        }
    }

    /// Takes the write lock of a new file with one object in advance; the file's size is then known
    /// too. Ignores errors and timeouts: the write reports them.
    pub(crate) async fn lock_for_writing(&self) {
        if let [Some(object)] = &self.objects[..]
            && !self.has_silent_target()
        {
            let lock = object.lock(LockMode::Pw, 0..OBD_OBJECT_EOF);
            let _ = tokio::time::timeout(SIZE_WAIT_MAX, lock).await;
        }
    }

    /// Requests capabilities for a user's change of data or attributes (`rights`: one of
    /// `CAPA_OPC_*`) from the metadata target, if the object targets require them. For changes
    /// without an open file.
    pub(crate) async fn authorize(&self, rights: u64, user: &CapabilityUser) -> Result<(), Errno> {
        self.for_each(self.all(), |object, _, ()| {
            let user = user.clone();
            async move { object.authorize(rights, user).await }
        })
        .await?;
        Ok(())
    }

    /// The next data or hole at or after `offset`.
    ///
    /// # Errors
    ///
    /// `ENXIO`: no more data, or `offset` is beyond the end; or an error of an OST.
    pub async fn seek(&self, op: Seek, offset: u64) -> Result<u64, Errno> {
        let size = self.attr().await?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let objects = self.layout.objects_in(offset..OBD_OBJECT_EOF);
        let offsets = self
            .for_each(objects, |object, _, range| async move {
                object.seek(range.start, op == Seek::Hole).await
            })
            .await?;
        let offsets = offsets.into_iter();
        let nearest = offsets
            .filter_map(|(object, at)| self.layout.file_offset(object, at?))
            .min();
        match op {
            Seek::Hole => {
                let nearest = nearest
                    .into_iter()
                    .chain(self.layout.first_without_object(offset));
                Ok(nearest.min().unwrap_or(size).clamp(offset, size))
            }
            Seek::Data => nearest
                .filter(|&at| at < size)
                .map(|at| at.max(offset))
                .ok_or(Errno::ENXIO),
        }
    }
}
