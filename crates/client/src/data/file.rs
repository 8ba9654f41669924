//! The data of one file: its bytes spread over objects as the layout says, with the size that the objects
//! together prove, and read-ahead for who reads in order.

use super::assembled::Assembled;
use super::change_seq::ChangeSeq;
use super::object::{Object, User};
use super::read_ahead::ReadAhead;
use crate::atime::Access;
use crate::attr::DataAttr;
use crate::layout::LovLayout;
use bytes::Bytes;
use ldlm::{LockMode, LockRef};
use parking_lot::{Mutex, MutexGuard};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use wire::{Errno, OBD_OBJECT_EOF, Time};

/// How long an answer about a name waits for the size of its file: the kernel holds the directory meanwhile.
const SOON: Duration = Duration::from_millis(500);

/// What to do with a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Give it space; `keep_size`: without making the file longer.
    Allocate {
        /// Do not make the file longer.
        keep_size: bool,
    },
    /// Take its space: it reads as zeros.
    PunchHole,
    /// Make it read as zeros.
    ZeroRange {
        /// Do not make the file longer.
        keep_size: bool,
    },
}

impl Fallocate {
    /// fallocate(2)'s mode bits.
    fn mode(self) -> u32 {
        const KEEP_SIZE: u32 = 0x1;
        const PUNCH_HOLE: u32 = 0x2;
        const ZERO_RANGE: u32 = 0x10;
        let keep = if self.keeps_size() { KEEP_SIZE } else { 0 };
        keep | match self {
            Fallocate::Allocate { .. } => 0,
            Fallocate::PunchHole => PUNCH_HOLE,
            Fallocate::ZeroRange { .. } => ZERO_RANGE,
        }
    }

    fn keeps_size(self) -> bool {
        match self {
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => keep_size,
            Fallocate::PunchHole => true,
        }
    }
}

/// What to look for from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that is data.
    Data,
    /// The next byte that is in a hole; the end of the file is one.
    Hole,
}

/// See the module.
#[derive(Debug)]
pub struct DataFile {
    layout: Arc<LovLayout>,
    /// In the layout's order; none where the target is not known to this client.
    objects: Vec<Option<Arc<Object>>>,
    ahead: Mutex<ReadAhead>,
    access: Mutex<Access>,
    /// Appends and changes of the space exclude each other and other writes.
    appending: RwLock<()>,
    /// Writes by this mount, so that a read notices one that overlaps it.
    writes: ChangeSeq,
    /// The same for changes that remove data: truncate and fallocate.
    removals: ChangeSeq,
}

impl DataFile {
    pub(super) fn new(layout: Arc<LovLayout>, objects: Vec<Option<Arc<Object>>>) -> DataFile {
        DataFile {
            layout,
            objects,
            ahead: Mutex::default(),
            access: Mutex::default(),
            appending: RwLock::new(()),
            writes: ChangeSeq::default(),
            removals: ChangeSeq::default(),
        }
    }

    /// When it was read.
    pub(crate) fn access(&self) -> MutexGuard<'_, Access> {
        self.access.lock()
    }

    /// The layout that it goes by.
    pub fn layout(&self) -> &Arc<LovLayout> {
        &self.layout
    }

    /// Whether the targets of all stripes were known when this was made.
    pub(crate) fn is_complete(&self) -> bool {
        self.objects.iter().all(Option::is_some)
    }

    /// The object of a stripe. `ENODEV`: its target is not known.
    fn object(&self, stripe: usize) -> Result<&Arc<Object>, Errno> {
        self.objects
            .get(stripe)
            .and_then(Option::as_ref)
            .ok_or(Errno::ENODEV)
    }

    /// The part of object `stripe` that a range of the file touches.
    fn object_range(&self, stripe: usize, start: u64, end: u64) -> Option<Range<u64>> {
        let from = self.layout.object_size(stripe, start);
        let to = if end == OBD_OBJECT_EOF {
            OBD_OBJECT_EOF
        } else {
            self.layout.object_size(stripe, end)
        };
        (from < to).then_some(from..to)
    }

    /// Locks a range of the file in all objects that it touches, in the layout's order (so that two who lock
    /// the same objects wait for each other in one place).
    async fn lock(&self, mode: LockMode, start: u64, end: u64) -> Result<Vec<LockRef>, Errno> {
        let mut locks = Vec::with_capacity(1);
        for stripe in 0..self.objects.len() {
            if let Some(range) = self.object_range(stripe, start, end) {
                locks.push(self.object(stripe)?.lock(mode, range).await?);
            }
        }
        Ok(locks)
    }

    /// Where the file must end, so that none of its objects becomes longer than its target allows.
    fn size_max(&self) -> u64 {
        let object = |object: &Arc<Object>| object.osc().object_bytes_max();
        let shortest = self.objects.iter().flatten().map(object).min();
        let size = shortest.map_or(u64::MAX, |bytes| self.layout.file_size(0, bytes));
        size.min(i64::MAX as u64)
    }

    /// The length that a write at `offset` may have, of the one that it wants.
    fn fit(&self, offset: u64, len: usize) -> Result<usize, Errno> {
        match self.size_max().checked_sub(offset) {
            None | Some(0) if len > 0 => Err(Errno::EFBIG),
            room => Ok(len.min(room.unwrap_or(0).try_into().unwrap_or(usize::MAX))),
        }
    }

    /// Whether the file may end there.
    pub(crate) fn may_end_at(&self, end: u64) -> Result<(), Errno> {
        if end > self.size_max() {
            return Err(Errno::EFBIG);
        }
        Ok(())
    }

    /// Reads; short at the end of the file.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        let end = offset.saturating_add(len as u64);
        let read = || async {
            let locks = self.lock(LockMode::Pr, offset, end).await?;
            self.read_locked(locks, offset, len).await
        };
        self.read_consistently(read).await
    }

    /// Runs `read` such that its bytes and the size that it ends at belong together. When a write by this mount overlaps
    /// it, the zeros that it adds may be wrong; when a truncation does, so may be all of it. Then it runs once more, with
    /// changes excluded. The lock that excludes changes comes before extent locks, as in a write.
    async fn read_consistently<F>(&self, read: impl Fn() -> F) -> Result<Vec<Bytes>, Errno>
    where
        F: Future<Output = Result<Assembled, Errno>>,
    {
        let (writes, removals) = (self.writes.watch(), self.removals.watch());
        let out = read().await?;
        if removals.is_quiet() && (writes.is_quiet() || !out.has_added_zeros) {
            return Ok(out.data);
        }
        let _no_changes = self.appending.write().await;
        Ok(read().await?.data)
    }

    /// Reads pages of the kernel's, for a mapping. Of one that may be written to nobody says when it is, so that it is
    /// locked as if it were: what the kernel then writes back has its lock already, and nobody else's bytes of the same
    /// page are lost.
    pub async fn read_pages(&self, offset: u64, len: usize, may_change: bool) -> Result<Vec<Bytes>, Errno> {
        let mode = if may_change { LockMode::Pw } else { LockMode::Pr };
        let end = offset.saturating_add(len as u64);
        let first = self.objects.iter().flatten().next();
        let awaited = first.map(|object| object.osc().kernel().await_pages(object.file(), offset..end));
        let locks = self.lock(mode, offset, end).await?;
        drop(awaited);
        // Without `read_consistently`: the kernel holds these pages, and a change may wait for them to be dropped. A
        // change invalidates the kernel's pages at its end.
        Ok(self.read_locked(locks, offset, len).await?.data)
    }

    /// Reads what is locked.
    async fn read_locked(&self, locks: Vec<LockRef>, offset: u64, len: usize) -> Result<Assembled, Errno> {
        let end = offset.saturating_add(len as u64);
        if self.objects.is_empty() || len == 0 {
            return Ok(Assembled::default());
        }
        let pieces: Vec<_> = self.layout.extents(offset, len as u64).collect();
        if pieces.len() > 1 {
            for p in &pieces {
                self.object(p.stripe)?
                    .prefetch(p.object_offset..p.object_offset + p.len);
            }
        }
        self.read_ahead(offset, len as u64);
        let mut out = Assembled::default();
        for p in &pieces {
            let object = self.object(p.stripe)?;
            let range = p.object_offset..p.object_offset + p.len;
            let data = object.read(range, lock_on(&locks, object)?).await?;
            out.push(data, p.len);
        }
        let read = self.end_at_size(out, offset, end).await;
        drop(locks);
        read
    }

    /// A piece ends where its object was last written, as far as locks prove it; the file may go on, here or in another
    /// object. Call with a lock on the range: what is missing of it is then zeros, and stays so.
    async fn end_at_size(&self, mut out: Assembled, offset: u64, end: u64) -> Result<Assembled, Errno> {
        if out.missing > 0 {
            let size = self.size().await?.size;
            out.fill_to(size.min(end).saturating_sub(offset));
        }
        Ok(out)
    }

    /// Reads past the cache; short at the end of the file.
    pub async fn read_direct(&self, offset: u64, len: usize) -> Result<Vec<Bytes>, Errno> {
        self.read_consistently(|| self.read_direct_once(offset, len))
            .await
    }

    async fn read_direct_once(&self, offset: u64, len: usize) -> Result<Assembled, Errno> {
        let end = offset.saturating_add(len as u64);
        let _locks = self.lock(LockMode::Pr, offset, end).await?;
        let mut out = Assembled::default();
        for p in self.layout.extents(offset, len as u64) {
            let data = self
                .object(p.stripe)?
                .read_direct(p.object_offset..p.object_offset + p.len)
                .await?;
            out.push(data, p.len);
        }
        self.end_at_size(out, offset, end).await
    }

    /// Has what follows read before it is asked for, when reads come in order.
    fn read_ahead(&self, offset: u64, len: u64) {
        let Some(ahead) = self.ahead.lock().next(offset, len) else {
            return;
        };
        for (stripe, object) in self.objects.iter().enumerate() {
            if let (Some(object), Some(range)) = (object, self.object_range(stripe, ahead.start, ahead.end)) {
                object.prefetch(range);
            }
        }
    }

    /// Writes into the cache.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<usize, Errno> {
        let _writing = self.appending.read().await;
        let locks = self
            .lock(LockMode::Pw, offset, offset.saturating_add(data.len() as u64))
            .await?;
        self.write_locked(offset, data, &locks).await
    }

    /// Writes pages of a mapping. They are within the file, wherever somebody appends: he is not waited for. What has become
    /// of pages that were read before an eviction nobody can know: they are refused. The kernel drops what is refused, so it
    /// is lost.
    pub async fn write_mapped(&self, offset: u64, data: Bytes) -> Result<usize, Errno> {
        let (end, bytes) = (offset.saturating_add(data.len() as u64), data.len());
        let written = self.write_pages(offset..end, data).await;
        if let (Err(error), Some(object)) = (written, self.objects.iter().flatten().next()) {
            let (osc, file) = (object.osc(), object.file());
            if osc.lost(file, error) > 0 {
                tracing::error!(ost = osc.name(), %file, %error, bytes,
                    "what a program changed in a mapping could not be written and is lost; the descriptors that have the file open fail with EIO");
            }
        }
        written
    }

    async fn write_pages(&self, range: Range<u64>, data: Bytes) -> Result<usize, Errno> {
        let mut locks = Vec::with_capacity(1);
        for stripe in 0..self.objects.len() {
            if let Some(range) = self.object_range(stripe, range.start, range.end) {
                let object = self.object(stripe)?;
                let tenure = object.page_tenure()?;
                locks.push(object.lock_page(range).await?);
                if object.osc().evictions() != tenure {
                    return Err(Errno::EIO);
                }
            }
        }
        self.write_locked(range.start, data, &locks).await
    }

    /// Writes into the cache under locks that the caller holds. (Asking for them again could wait for ever: a lock that
    /// the server wants back is not found in the cache, and a new one waits for it to go.)
    async fn write_locked(&self, offset: u64, data: Bytes, locks: &[LockRef]) -> Result<usize, Errno> {
        let len = self.fit(offset, data.len())?;
        let _write = self.writes.begin();
        let mut written = Written::default();
        for p in self.layout.extents(offset, len as u64) {
            let from = (p.file_offset - offset) as usize;
            let part = data.slice(from..from + p.len as usize);
            let object = self.object(p.stripe)?;
            let done = object.write(p.object_offset, part, lock_on(locks, object)?).await;
            if !written.all_of(p.len, done) {
                break;
            }
        }
        written.result()
    }

    /// Writes at the end, wherever another client may have put it; says where that was and how much.
    pub async fn append(&self, data: Bytes) -> Result<(u64, usize), Errno> {
        let _appending = self.appending.write().await;
        let locks = self.lock(LockMode::Pw, 0, OBD_OBJECT_EOF).await?;
        let attrs = (0..self.objects.len())
            .map(|i| Ok(self.object(i)?.locked_attr()))
            .collect::<Result<Vec<_>, Errno>>()?;
        let end = self.merge(&attrs).size;
        Ok((end, self.write_locked(end, data, &locks).await?))
    }

    /// Writes past the cache.
    pub async fn write_direct(&self, offset: u64, data: Bytes) -> Result<usize, Errno> {
        let _writing = self.appending.read().await;
        let len = self.fit(offset, data.len())?;
        let _write = self.writes.begin();
        let mut written = Written::default();
        for p in self.layout.extents(offset, len as u64) {
            let from = (p.file_offset - offset) as usize;
            let part = data.slice(from..from + p.len as usize);
            let done = self.object(p.stripe)?.write_direct(p.object_offset, part).await;
            if !written.all_of(p.len, done) {
                break;
            }
        }
        written.result()
    }

    /// Does something to every object, all at once when there are several.
    async fn each<T, F>(&self, act: impl Fn(usize, Arc<Object>) -> F) -> Result<Vec<T>, Errno>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Errno>> + Send + 'static,
    {
        if self.objects.len() == 1 {
            return Ok(vec![act(0, self.object(0)?.clone()).await?]);
        }
        let mut tasks = JoinSet::new();
        for stripe in 0..self.objects.len() {
            let task = act(stripe, self.object(stripe)?.clone());
            tasks.spawn(async move { (stripe, task.await) });
        }
        let mut results = Vec::with_capacity(self.objects.len());
        while let Some(ended) = tasks.join_next().await {
            results.push(ended.map_err(|_| Errno::EINTR)?);
        }
        results.sort_by_key(|(stripe, _)| *stripe);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Writes dirty pages back and waits.
    pub async fn flush(&self) -> Result<(), Errno> {
        self.each(|_, object| async move {
            object.flush(0..u64::MAX).await;
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// `flush`, and waits until it is on the targets' disks.
    pub async fn fsync(&self) -> Result<(), Errno> {
        self.each(|_, object| async move { object.sync().await }).await?;
        Ok(())
    }

    fn merge(&self, attrs: &[DataAttr]) -> DataAttr {
        let mut all = DataAttr::default();
        for (stripe, attr) in attrs.iter().enumerate() {
            all.size = all.size.max(self.layout.file_size(stripe, attr.size));
            all.blocks += attr.blocks;
            all.times = all.times.latest(attr.times);
        }
        all
    }

    /// Size and times: from locks and cache when they cover them, else by a glimpse.
    pub async fn size(&self) -> Result<DataAttr, Errno> {
        if let Some(known) = self.cached_size() {
            return Ok(known);
        }
        let attrs = self.each(|_, object| async move { object.attr().await }).await?;
        Ok(self.merge(&attrs))
    }

    /// Size and times, if the targets answer soon. A target that has not answered for a while is not waited for.
    pub(crate) async fn size_soon(&self) -> Result<Option<DataAttr>, Errno> {
        if self.waits_for_silent_target() {
            return Ok(None);
        }
        match tokio::time::timeout(SOON, self.size()).await {
            Ok(Err(e @ (Errno::ENOENT | Errno::ESTALE))) => Err(e),
            Ok(told) => Ok(told.ok()),
            Err(_) => Ok(None),
        }
    }

    /// Whether one of its targets has not answered for a while.
    fn waits_for_silent_target(&self) -> bool {
        let silent = |object: &Arc<Object>| object.osc().import().silence().is_some_and(|s| s >= SOON);
        self.objects.iter().flatten().any(silent)
    }

    /// Size and times, when a lock says that nobody else can have changed them.
    pub fn cached_size(&self) -> Option<DataAttr> {
        let attrs: Option<Vec<DataAttr>> = self
            .objects
            .iter()
            .map(|object| object.as_ref()?.known_attr())
            .collect();
        Some(self.merge(&attrs?))
    }

    /// Takes the lock that writing will need, of a file just made that has one object: so its size is known, too. An
    /// error is returned again by the write, and so is a target that does not answer soon.
    pub(crate) async fn claim(&self) {
        if let [Some(object)] = &self.objects[..]
            && !self.waits_for_silent_target()
        {
            let claimed = object.lock(LockMode::Pw, 0..OBD_OBJECT_EOF);
            let _ = tokio::time::timeout(SOON, claimed).await;
        }
    }

    /// Has this user's right to change the objects' data or attributes (one of `CAPA_OPC_*`) confirmed by the metadata target,
    /// where their targets require that: for changes that need no open file.
    pub(crate) async fn authorize(&self, rights: u64, user: &User) -> Result<(), Errno> {
        self.each(|_, object| {
            let user = user.clone();
            async move { object.authorize(rights, user).await }
        })
        .await?;
        Ok(())
    }

    /// Cuts or extends it.
    pub async fn truncate(&self, size: u64) -> Result<(), Errno> {
        let _writing = self.appending.write().await;
        let _removal = self.removals.begin();
        self.each(|stripe, object| {
            let size = self.layout.object_size(stripe, size);
            async move { object.truncate(size).await }
        })
        .await?;
        Ok(())
    }

    /// Allocates, punches or zeroes a range.
    pub async fn fallocate(&self, what: Fallocate, offset: u64, len: u64) -> Result<(), Errno> {
        let _alone = self.appending.write().await;
        let _removal = self.removals.begin();
        let end = offset.saturating_add(len);
        self.may_end_at(end)?;
        for stripe in 0..self.objects.len() {
            if let Some(range) = self.object_range(stripe, offset, end) {
                self.object(stripe)?
                    .fallocate(what.mode(), range, what.keeps_size())
                    .await?;
            }
        }
        Ok(())
    }

    /// The next data or hole from `offset` on; `ENXIO` at or beyond the end.
    pub async fn seek(&self, what: Seek, offset: u64) -> Result<u64, Errno> {
        let size = self.size().await?.size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        let found = self
            .each(|stripe, object| {
                let from = self.layout.object_size(stripe, offset);
                async move { object.seek(from, what == Seek::Hole).await }
            })
            .await?;
        let nearest = found
            .into_iter()
            .enumerate()
            .filter_map(|(stripe, at)| at.map(|at| self.layout.file_offset(stripe, at)))
            .min();
        match what {
            Seek::Hole => Ok(nearest.unwrap_or(size).clamp(offset, size)),
            Seek::Data => nearest
                .filter(|&at| at < size)
                .map(|at| at.max(offset))
                .ok_or(Errno::ENXIO),
        }
    }

    /// Sets the objects' times, after the metadata target has.
    pub async fn set_times(
        &self,
        atime: Option<Time>,
        mtime: Option<Time>,
        ctime: Time,
    ) -> Result<(), Errno> {
        if atime.is_some() {
            *self.access() = Access::default();
        }
        self.each(|_, object| async move { object.set_times(mtime, atime, ctime).await })
            .await?;
        Ok(())
    }
}

impl Drop for DataFile {
    fn drop(&mut self) {
        for object in std::mem::take(&mut self.objects).into_iter().flatten() {
            let osc = object.osc().clone();
            osc.unused(object);
        }
    }
}

/// The one of these locks that is on an object.
fn lock_on<'a>(locks: &'a [LockRef], object: &Object) -> Result<&'a LockRef, Errno> {
    let mut locks = locks.iter();
    locks
        .find(|l| l.info().res == *object.resource())
        .ok_or(Errno::EIO)
}

/// How far a write came. Who wrote a part is told how much; the error comes with the next write.
#[derive(Default)]
struct Written {
    bytes: u64,
    error: Option<Errno>,
}

impl Written {
    /// Takes in what became of a part; whether all of it was written.
    fn all_of(&mut self, len: u64, done: Result<u64, Errno>) -> bool {
        match done {
            Ok(bytes) => self.bytes += bytes,
            Err(e) => self.error = Some(e),
        }
        self.error.is_none() && done == Ok(len)
    }

    fn result(self) -> Result<usize, Errno> {
        match self.error {
            Some(e) if self.bytes == 0 => Err(e),
            _ => Ok(self.bytes as usize),
        }
    }
}
