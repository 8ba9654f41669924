//! Objects as files of the local file system, in a hashed directory tree.
//!
//! The path is `<sequence>/<low byte of the object id>/<object id>`, all in hexadecimal, followed
//! by `.<generation>` if the file's generation is not 0 ([`crate::target::Fence`]). The first
//! write, allocation or extending truncate creates the file. Attributes that the file does not have
//! (owner, the client's times, parent, versions) are in a small record in the target's index, so
//! the local file system only needs sparse files. Attributes that change with each write stay in
//! the cache entry until its eviction or a sync.
//!
//! File I/O runs on threads for blocking work, except reads of data in the page cache, and small
//! work while the disk is fast ([`worker_io`]). After a failed sync every later sync fails, and
//! files cannot be changed. [`durable_size`] detects lost and truncated files; [`checksums`]
//! detects wrong data.

mod adopt;
mod cache;
mod checked_io;
pub(crate) mod checksums;
mod durable_size;
mod file_system;
pub(crate) mod object_marks;
#[cfg(test)]
mod power_cut;
pub(crate) mod record;
#[cfg(test)]
mod tests;
mod worker_io;

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use cpt::BoxFuture;
use parking_lot::Mutex;
use wire::Fid;

use crate::{
    Batch, CachedAttr, Extent, ExtentData, Failure, Index, ObjAttr, Objects, OsdError, Scrubbed, Seek,
    SetAttr, blocking, files,
    target::{self, Fence},
};
use cache::{Cache, DirtyState, Entry, State};
use checksums::{BlockChange, Checksums};
pub use file_system::{FileSystem, ObjectFile};
use object_marks::ObjectMarks;
use record::ObjectRecord;
use worker_io::WorkerIo;

/// Above this number of dirty files and directories, one `syncfs` replaces a sync of each.
const SYNC_EACH_MAX: usize = 64;

/// Objects on the local file system.
pub struct LocalObjects {
    shared: Arc<Shared>,
}

struct Shared {
    file_system: Arc<dyn FileSystem>,
    root: PathBuf,
    index: Arc<dyn Index>,
    cache: Cache,
    checksums: Arc<Checksums>,
    marks: Arc<ObjectMarks>,
    fence: Fence,
    worker_io: WorkerIo,
    /// The files that a start of a new generation copied.
    copied: Mutex<Vec<PathBuf>>,
    /// The first failure of a sync.
    sync_failure: Mutex<Option<Failure>>,
}

impl LocalObjects {
    /// Opens the tree in `root`, or creates an empty one. Blocks on the disk: do not call it on a
    /// worker of the runtime.
    ///
    /// # Errors
    ///
    /// [`OsdError::Io`] if the directory cannot be created, or an error of the index.
    pub fn open(root: &Path, index: Arc<dyn Index>) -> Result<LocalObjects, OsdError> {
        LocalObjects::open_on(
            Arc::new(file_system::HostFiles),
            root,
            index,
            &Fence::unshared(root),
        )
    }

    /// Opens the tree of a target in the generation of its index.
    ///
    /// # Errors
    ///
    /// As [`LocalObjects::open_on`].
    pub(crate) fn open_fenced(
        root: &Path,
        index: Arc<dyn Index>,
        fence: &Fence,
    ) -> Result<LocalObjects, OsdError> {
        LocalObjects::open_on(Arc::new(file_system::HostFiles), root, index, fence)
    }

    /// Opens the tree in `root` of a file system; `fence` is that of the index.
    ///
    /// # Errors
    ///
    /// As [`LocalObjects::open`]; [`OsdError::Io`] or [`OsdError::NoSpace`] if an object cannot be
    /// copied after a takeover.
    pub fn open_on(
        file_system: Arc<dyn FileSystem>,
        root: &Path,
        index: Arc<dyn Index>,
        fence: &Fence,
    ) -> Result<LocalObjects, OsdError> {
        let copied = adopt::adopt_objects(&*file_system, root, &index, fence.generation())?;
        let shared = Shared {
            cache: Cache::new(file_system.open_files_max()),
            checksums: Arc::new(Checksums::open(index.clone())?),
            marks: Arc::new(ObjectMarks::new(index.clone(), fence)),
            fence: fence.clone(),
            worker_io: WorkerIo::default(),
            copied: Mutex::new(copied),
            file_system,
            root: root.into(),
            index,
            sync_failure: Mutex::new(None),
        };
        shared.make_dir(root)?;
        Ok(LocalObjects {
            shared: Arc::new(shared),
        })
    }

    /// Removes the files of which the start of a new generation made copies, once the records of
    /// the copies are durable. Without this, they stay until a check.
    ///
    /// # Errors
    ///
    /// An error of syncing the index.
    pub(crate) async fn remove_copied(&self) -> Result<(), OsdError> {
        if self.shared.copied.lock().is_empty() {
            return Ok(());
        }
        self.shared.index.sync().await?;
        let shared = self.shared.clone();
        blocking(move || {
            for path in std::mem::take(&mut *shared.copied.lock()) {
                if let Err(e) = shared.file_system.remove(&path) {
                    tracing::warn!("cannot remove {}: {e}", path.display());
                }
            }
            Ok(())
        })
        .await
    }

    /// Runs `f`, which changes an object's file, on a thread for blocking work with the object's
    /// write lock.
    fn with_write_lock<T: Send + 'static>(
        &self,
        fid: Fid,
        f: impl FnOnce(&Shared, &Entry) -> Result<T, OsdError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, OsdError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            let write_lock = entry.write_lock.clone().lock_owned().await;
            blocking(move || {
                let _write_lock = write_lock;
                f(&shared, &entry)
            })
            .await
        })
    }

    /// Runs `f` with the object's entry on a thread for blocking work.
    fn with_entry<T: Send + 'static>(
        &self,
        fid: Fid,
        f: impl FnOnce(&Shared, &Entry) -> Result<T, OsdError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, OsdError>> {
        let shared = self.shared.clone();
        Box::pin(blocking(move || {
            let entry = match shared.cache.find(&fid) {
                Some(entry) => entry,
                None => shared.load(fid, None)?,
            };
            f(&shared, &entry)
        }))
    }
}

/// The path of an object's file of a generation, below the directory of objects.
pub(crate) fn file_path(root: &Path, fid: &Fid, generation: u32) -> PathBuf {
    root.join(format!("{:x}", fid.f_seq))
        .join(format!("{:02x}", fid.f_oid & 0xff))
        .join(target::name_in(&format!("{:x}", fid.f_oid), generation))
}

impl Shared {
    fn make_dir(&self, path: &Path) -> Result<(), OsdError> {
        match self.file_system.create_dir(path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            Err(e) => return Err(OsdError::io("make directory", path)(e)),
        }
        self.sync_dir(&files::parent(path))
    }

    fn sync_dir(&self, path: &Path) -> Result<(), OsdError> {
        self.file_system
            .sync_dir(path)
            .map_err(OsdError::io("sync", path))
    }

    /// Reads an object's record and file into the cache. Blocks on the disk. `record`: the record,
    /// if the caller has just read it.
    fn load(&self, fid: Fid, record: Option<Option<Bytes>>) -> Result<Arc<Entry>, OsdError> {
        if fid.f_ver != 0 {
            return Err(OsdError::Invalid("the version in an object's FID must be 0"));
        }
        let mut state = State::default();
        let mut generation = self.fence.generation();
        let record = match record {
            Some(record) => record,
            None => self.index.get(&record::key(&fid)).wait()?,
        };
        if let Some(r) = record {
            let found = record::read(&r).map_err(|why| OsdError::Corrupt {
                path: self.root.clone(),
                record: format!("of object {:x}:{:x}", fid.f_seq, fid.f_oid),
                why,
            })?;
            (state.attr, state.durable_size) = (found.attr, found.durable_size);
            generation = found.generation;
            state.exists = true;
        }
        let mut path = file_path(&self.root, &fid, generation);
        match self.file_system.open(&path) {
            Ok(file) => {
                state.file = Some(file);
                state.exists = true;
                state.measure(&path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(OsdError::io("open", path)(e)),
        }
        state.check_durable_size(&path);
        if state.file.is_none() {
            // A new file gets a name that the servers of earlier generations do not use.
            generation = self.fence.generation();
            path = file_path(&self.root, &fid, generation);
        }
        let entry = Entry {
            fid,
            path,
            generation,
            state: Mutex::new(state),
            create_lock: Mutex::new(()),
            write_lock: Arc::default(),
        };
        let (entry, stale) = self.cache.add(Arc::new(entry));
        if let Some(evicted) = stale {
            self.write_record(&evicted)?;
            let fid = evicted.fid;
            drop(evicted);
            self.cache.evict(&fid);
        }
        Ok(entry)
    }

    /// Writes the attributes to the index if the record is stale.
    fn write_record(&self, entry: &Entry) -> Result<(), OsdError> {
        let mut state = entry.state.lock();
        if !state.record_stale || state.destroyed {
            return Ok(());
        }
        let mut batch = Batch::new();
        let record = ObjectRecord {
            attr: state.attr,
            durable_size: state.durable_size,
            generation: entry.generation,
        };
        batch.put(record::key(&entry.fid), record::write(&record));
        if state.is_new {
            self.marks.add_new(entry.fid, &mut batch);
        }
        self.index.apply(batch)?;
        state.record_stale = false;
        Ok(())
    }

    /// The object's file, created if missing; true if it is new.
    fn open_or_create(&self, entry: &Entry) -> Result<(Arc<dyn ObjectFile>, bool), OsdError> {
        self.check_syncs()?;
        entry.check_undamaged()?;
        if let Some(file) = &entry.state.lock().file {
            return Ok((file.clone(), false));
        }
        let _create_lock = entry.create_lock.lock();
        {
            let state = entry.state.lock();
            match &state.file {
                _ if state.destroyed => return Err(OsdError::NotFound),
                Some(file) => return Ok((file.clone(), false)),
                None => {}
            }
        }
        self.index.space().check_file()?;
        let file = match self.file_system.create(&entry.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let dir = entry.path.parent().unwrap_or(&self.root);
                self.make_dir(dir.parent().unwrap_or(&self.root))?;
                self.make_dir(dir)?;
                self.file_system.create(&entry.path)
            }
            other => other,
        };
        let file = file.map_err(OsdError::io("make", &entry.path))?;
        self.worker_io.add_dir(&entry.fid);
        let mut state = entry.state.lock();
        state.file = Some(file.clone());
        (state.exists, state.is_new) = (true, true);
        Ok((file, true))
    }

    /// Ends a change of the file, successful or not: measures the size, sets attributes, marks the
    /// object dirty, and writes the record of a new file.
    fn finish_change(&self, entry: &Entry, new: bool, attr: &SetAttr) -> Result<(), OsdError> {
        let measured = {
            let mut state = entry.state.lock();
            if state.destroyed {
                return Err(OsdError::NotFound);
            }
            let measured = state.measure(&entry.path);
            state.set_attr(attr);
            state.record_stale |= new;
            self.cache.mark_dirty(&entry.fid, new, state.attr.size);
            measured
        };
        // The record of a new object, with its owner, goes to the index at once; later changes of
        // its times may wait.
        if new {
            self.write_record(entry)?;
            entry.state.lock().is_new = false;
        }
        measured
    }

    /// Fails if a sync has failed.
    fn check_syncs(&self) -> Result<(), OsdError> {
        match self.sync_failure.lock().clone() {
            Some(failure) => Err(failure.of_sync(&self.root)),
            None => Ok(()),
        }
    }

    /// Logs and records the failure of a sync.
    fn record_sync_failure(&self, e: OsdError) -> OsdError {
        let (store, failure) = (self.root.display(), Failure::of("sync", &e));
        let advice = match failure {
            Failure::Disk(_) => ". Check the disk and restart the target",
            Failure::TakenOver(_) => "",
        };
        tracing::error!(%store, "sync failed, every later sync fails too: {e}{advice}");
        self.sync_failure.lock().get_or_insert(failure);
        self.index.space().set_failure(&e.to_string());
        e
    }

    fn sync(&self, dirty: &[(Fid, DirtyState)], removed_in: &[(PathBuf, u64)]) -> Result<(), OsdError> {
        self.check_syncs()?;
        let now = self.checksums.now();
        self.sync_files(dirty, removed_in)
            .and_then(|()| self.fence.check())
            .map_err(|e| self.record_sync_failure(e))?;
        self.record_durable_sizes(dirty);
        self.settle_checksums(dirty, now);
        self.cache.mark_clean(dirty);
        self.cache.mark_dirs_clean(removed_in);
        Ok(())
    }

    fn sync_file_system(&self) -> Result<(), OsdError> {
        self.file_system
            .sync_all(&self.root)
            .map_err(OsdError::io("sync", &self.root))
    }

    fn sync_files(&self, dirty: &[(Fid, DirtyState)], removed_in: &[(PathBuf, u64)]) -> Result<(), OsdError> {
        if dirty.len() + removed_in.len() > SYNC_EACH_MAX {
            return self.sync_file_system();
        }
        let mut dirs: BTreeSet<PathBuf> = removed_in.iter().map(|(dir, _)| dir.clone()).collect();
        for (fid, dirty) in dirty {
            let entry = self.cache.find(fid).map_or_else(|| self.load(*fid, None), Ok)?;
            let file = entry.state.lock().file.clone();
            if let Some(file) = file {
                file.sync_data().map_err(OsdError::io("sync", &entry.path))?;
                dirs.extend(entry.path.parent().filter(|_| dirty.new).map(PathBuf::from));
            }
        }
        dirs.iter().try_for_each(|dir| self.sync_dir(dir))
    }
}

impl Objects for LocalObjects {
    fn read_extents(
        &self,
        fid: Fid,
        extents: Vec<Extent>,
    ) -> BoxFuture<'_, Result<Vec<Vec<Bytes>>, OsdError>> {
        Box::pin(self.read_checked(fid, extents))
    }

    fn write_extents(
        &self,
        fid: Fid,
        extents: Vec<ExtentData>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<Vec<Result<(), OsdError>>, OsdError>> {
        Box::pin(self.write_checked(fid, extents, attr))
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(self.punch_checked(fid, start, end, attr))
    }

    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        let Some(len) = end.checked_sub(start).filter(|len| *len > 0) else {
            return Box::pin(async { Err(OsdError::Invalid("empty range")) });
        };
        let begin = move |shared: &Shared, _: &Entry| {
            Ok((BlockChange::begin(&shared.checksums, fid, Vec::new())?, false))
        };
        Box::pin(self.change_file(fid, begin, move |shared, entry, _| {
            let (file, new) = shared.open_or_create(entry)?;
            let allocated = file
                .allocate(start, len, keep_size)
                .map_err(OsdError::io("allocate", &entry.path));
            shared.finish_change(entry, new, &SetAttr::default())?;
            allocated
        }))
    }

    fn seek(&self, fid: Fid, offset: u64, kind: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        self.with_entry(fid, move |_, entry| {
            entry.check_undamaged()?;
            let (file, size) = {
                let state = entry.state.lock();
                (state.file.clone(), state.attr.size)
            };
            let file = file.filter(|_| offset < size).ok_or(OsdError::NotFound)?;
            match file.seek(offset, kind) {
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Err(OsdError::NotFound),
                found => found.map_err(OsdError::io("seek", &entry.path)),
            }
        })
    }

    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>> {
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            entry.check_undamaged()?;
            let state = entry.state.lock();
            Ok(state.exists.then_some(state.attr))
        })
    }

    fn cached_attr(&self, fid: Fid, new: bool) -> CachedAttr {
        if let Some(entry) = self.shared.cache.find(&fid) {
            let state = entry.state.lock();
            // A destroy in progress can still fail, and a write in progress may be about to create
            // a missing object: both are `Unknown`.
            return match !state.destroyed && state.exists && state.damage.is_none() {
                true => CachedAttr::Present(state.attr),
                false => CachedAttr::Unknown,
            };
        }
        // An object created since the start has a record before it leaves the cache.
        match new && matches!(self.shared.index.get(&record::key(&fid)).now(), Ok(Ok(None))) {
            true => CachedAttr::Absent,
            false => CachedAttr::Unknown,
        }
    }

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            entry.state.lock().set_attr(&attr);
            self.shared.write_record(&entry)
        })
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        self.with_entry(fid, move |shared, entry| {
            let _create_lock = entry.create_lock.lock();
            let (existed, size) = {
                let mut state = entry.state.lock();
                state.destroyed = true;
                state.file = None;
                let size = std::mem::take(&mut state.attr).size;
                (state.durable_size, state.damage) = (None, None);
                (std::mem::take(&mut state.exists), size)
            };
            match shared.file_system.remove(&entry.path) {
                Ok(()) => shared
                    .cache
                    .mark_removed(entry.path.parent().unwrap_or(&shared.root)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(OsdError::io("remove", &entry.path)(e)),
            }
            if existed {
                let mut batch = Batch::new();
                batch.delete(record::key(&entry.fid));
                shared.marks.remove(&entry.fid, &mut batch);
                let regions = shared.checksums.remove(entry.fid, size, &mut batch)?;
                shared.index.apply(batch)?;
                shared.checksums.forget_object(entry.fid, &regions);
            }
            shared.cache.remove(&entry.fid);
            Ok(existed)
        })
    }

    fn settle(&self, all: bool) -> BoxFuture<'_, Result<bool, OsdError>> {
        let shared = self.shared.clone();
        Box::pin(blocking(move || {
            let marks = shared
                .marks
                .settle(all, |fid| shared.cache.dirty(fid).is_some())?;
            Ok(shared.checksums.settle_marks(all)? + marks > 0)
        }))
    }

    fn scrub(&self, fid: Fid, offset: u64, fill: bool) -> BoxFuture<'_, Result<Scrubbed, OsdError>> {
        self.with_write_lock(fid, move |shared, entry| shared.scrub(entry, offset, fill))
    }

    fn sync_file_system(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.file_system.sync_delay().await;
            blocking(move || shared.sync_file_system()).await
        })
    }

    fn sync(&self, fid: Option<Fid>) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            match fid {
                Some(fid) => self
                    .shared
                    .cache
                    .find(&fid)
                    .map_or(Ok(()), |e| self.shared.write_record(&e))?,
                None => {
                    let shared = self.shared.clone();
                    blocking(move || {
                        shared
                            .cache
                            .stale_entries()
                            .iter()
                            .try_for_each(|e| shared.write_record(e))
                    })
                    .await?;
                }
            }
            let shared = self.shared.clone();
            let files = async move {
                let cache = &shared.cache;
                let (dirty, removed_in) = match fid {
                    Some(fid) => (
                        cache.dirty(&fid).map(|d| (fid, d)).into_iter().collect(),
                        Vec::new(),
                    ),
                    None => (cache.all_dirty(), cache.removed_in()),
                };
                if !dirty.is_empty() || !removed_in.is_empty() {
                    shared.file_system.sync_delay().await;
                }
                blocking(move || shared.sync(&dirty, &removed_in)).await
            };
            // Records and data may reach the disk in any order, because a record states at most the
            // size that is on disk.
            let (files, records) = tokio::join!(files, self.shared.index.sync());
            files.and(records)
        })
    }
}
