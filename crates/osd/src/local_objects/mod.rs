//! Objects as files of the local file system, in a hashed directory tree.
//!
//! `<sequence>/<low byte of the object id>/<object id>`, all in hexadecimal; the file is made with the first data. What
//! the file cannot tell (owner, times as the client set them, parent, version) is a small record in the target's index,
//! so that nothing is asked of the local file system but sparse files. All file I/O runs on threads for blocking work,
//! except a read of what the kernel has cached. Attributes that change with each write are kept in the entry of the open
//! object and go to the index when it leaves the cache or is synced. After a failed sync every later sync fails.
//! [`settled`] keeps in the record which files are on disk, with which size, so that a lost one is noticed.

mod cache;
#[cfg(test)]
mod power;
pub(crate) mod record;
mod settled;
#[cfg(test)]
mod tests;

use foldhash::HashSet;
use std::{
    fs, io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use cpt::BoxFuture;
use parking_lot::Mutex;
use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::ReadWriteFlags,
};
use wire::Fid;

use crate::{Batch, Index, ObjAttr, Objects, OsdError, READ_PIECE, Seek, SetAttr, blocking, files};
use cache::{Cache, Dirty, Entry, State};

/// Above so many files the whole file system is synced at once instead of file by file.
const SYNC_EACH_MAX: usize = 64;

/// Objects on the local file system.
pub struct LocalObjects {
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    index: Arc<dyn Index>,
    cache: Cache,
    failed: Mutex<Option<String>>,
}

impl LocalObjects {
    /// Opens the tree in `root`, or makes an empty one. Waits for the disk: not for a runtime's worker.
    pub fn open(root: &Path, index: Arc<dyn Index>) -> Result<LocalObjects, OsdError> {
        make_dir(root)?;
        let shared = Shared {
            root: root.into(),
            index,
            cache: Cache::new(),
            failed: Mutex::new(None),
        };
        Ok(LocalObjects {
            shared: Arc::new(shared),
        })
    }

    async fn entry(&self, fid: Fid) -> Result<Arc<Entry>, OsdError> {
        if let Some(entry) = self.shared.cache.find(&fid) {
            return Ok(entry);
        }
        let shared = self.shared.clone();
        blocking(move || shared.load(fid)).await
    }

    /// Runs `f` with the object's entry on a thread for blocking work.
    fn with<T: Send + 'static>(
        &self,
        fid: Fid,
        f: impl FnOnce(&Shared, &Entry) -> Result<T, OsdError> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, OsdError>> {
        let shared = self.shared.clone();
        Box::pin(blocking(move || {
            let entry = match shared.cache.find(&fid) {
                Some(entry) => entry,
                None => shared.load(fid)?,
            };
            f(&shared, &entry)
        }))
    }
}

/// The file of an object, below the directory of objects.
pub(crate) fn file_path(root: &Path, fid: &Fid) -> PathBuf {
    root.join(format!("{:x}", fid.f_seq))
        .join(format!("{:02x}", fid.f_oid & 0xff))
        .join(format!("{:x}", fid.f_oid))
}

/// Makes a directory, durable in its parent.
fn make_dir(path: &Path) -> Result<(), OsdError> {
    match files::create_dir(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(e) => return Err(OsdError::io("make directory", path)(e)),
    }
    sync_dir(&files::parent(path))
}

fn sync_dir(path: &Path) -> Result<(), OsdError> {
    files::sync_dir(path).map_err(OsdError::io("sync", path))
}

impl Shared {
    fn load(&self, fid: Fid) -> Result<Arc<Entry>, OsdError> {
        if fid.f_ver != 0 {
            return Err(OsdError::Invalid("an object's FID has version 0"));
        }
        let path = file_path(&self.root, &fid);
        let mut state = State::default();
        if let Some(r) = self.index.get(&record::key(&fid))? {
            (state.attr, state.on_disk) = record::read(&r).map_err(|why| OsdError::Corrupt {
                path: self.root.clone(),
                what: format!("of object {:x}:{:x}", fid.f_seq, fid.f_oid),
                why,
            })?;
            state.exists = true;
        }
        match fs::OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => {
                state.file = Some(Arc::new(file));
                state.exists = true;
                state.measure(&path)?;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(OsdError::io("open", path)(e)),
        }
        state.look_for_damage(&path);
        let entry = Entry {
            fid,
            path,
            state: Mutex::new(state),
            making: Mutex::new(()),
            writing: Arc::default(),
        };
        let (entry, stale) = self.cache.add(Arc::new(entry));
        if let Some(old) = stale {
            self.write_record(&old)?;
            let fid = old.fid;
            drop(old);
            self.cache.evict(&fid);
        }
        Ok(entry)
    }

    /// Puts the attributes into the index if they changed since.
    fn write_record(&self, entry: &Entry) -> Result<(), OsdError> {
        let mut state = entry.state.lock();
        if !state.record_stale || state.destroyed {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.put(record::key(&entry.fid), record::write(&state.attr, state.on_disk));
        self.index.apply(batch)?;
        state.record_stale = false;
        Ok(())
    }

    /// The object's file, made if there is none; true when it is new.
    fn file(&self, entry: &Entry) -> Result<(Arc<fs::File>, bool), OsdError> {
        self.not_failed()?;
        entry.check()?;
        if let Some(file) = &entry.state.lock().file {
            return Ok((file.clone(), false));
        }
        let _making = entry.making.lock();
        {
            let state = entry.state.lock();
            match &state.file {
                _ if state.destroyed => return Err(OsdError::NotFound),
                Some(file) => return Ok((file.clone(), false)),
                None => {}
            }
        }
        self.index.space().check_file()?;
        let open = || {
            files::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&entry.path)
        };
        let file = match open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let dir = entry.path.parent().unwrap_or(&self.root);
                make_dir(dir.parent().unwrap_or(&self.root))?;
                make_dir(dir)?;
                open()
            }
            other => other,
        };
        let file = Arc::new(file.map_err(OsdError::io("make", &entry.path))?);
        let mut state = entry.state.lock();
        state.file = Some(file.clone());
        state.exists = true;
        Ok((file, true))
    }

    fn write(&self, entry: &Entry, offset: u64, data: &[Bytes], attr: &SetAttr) -> Result<(), OsdError> {
        let (file, new) = self.file(entry)?;
        let mut at = offset;
        let written = data.iter().try_for_each(|piece| {
            file.write_all_at(piece, at)
                .map_err(OsdError::io("write", &entry.path))?;
            at += piece.len() as u64;
            Ok(())
        });
        // Also when only a part was written.
        self.changed(entry, new, attr)?;
        written
    }

    /// After a change of the file, or an attempt: sizes anew, attributes, and the object is not on disk any more.
    fn changed(&self, entry: &Entry, new: bool, attr: &SetAttr) -> Result<(), OsdError> {
        let measured = {
            let mut state = entry.state.lock();
            if state.destroyed {
                return Err(OsdError::NotFound);
            }
            let measured = state.measure(&entry.path);
            state.set(attr);
            state.record_stale |= new;
            self.cache.mark_dirty(&entry.fid, new, state.attr.size);
            measured
        };
        // Who owns an object is in the index as soon as there is one; times may wait.
        if new {
            self.write_record(entry)?;
        }
        measured
    }

    fn not_failed(&self) -> Result<(), OsdError> {
        match self.failed.lock().clone() {
            Some(why) => Err(OsdError::Failed {
                path: self.root.clone(),
                why,
            }),
            None => Ok(()),
        }
    }

    fn fail(&self, e: OsdError) -> OsdError {
        tracing::error!(store = %self.root.display(), "sync failed, nothing more is promised: {e}");
        self.failed.lock().get_or_insert_with(|| e.to_string());
        e
    }

    fn sync(&self, dirty: &[(Fid, Dirty)], removed_in: &[(PathBuf, u64)]) -> Result<(), OsdError> {
        if let Some(why) = self.failed.lock().clone() {
            return Err(OsdError::Failed {
                path: self.root.clone(),
                why,
            });
        }
        self.sync_files(dirty, removed_in).map_err(|e| self.fail(e))?;
        self.settle(dirty);
        self.cache.clean(dirty);
        self.cache.clean_removed(removed_in);
        Ok(())
    }

    fn sync_host(&self) -> Result<(), OsdError> {
        let root = fs::File::open(&self.root).map_err(OsdError::io("open", &self.root))?;
        rustix::fs::syncfs(&root).map_err(|e| OsdError::io("sync", &self.root)(e.into()))
    }

    fn sync_files(&self, dirty: &[(Fid, Dirty)], removed_in: &[(PathBuf, u64)]) -> Result<(), OsdError> {
        if dirty.len() + removed_in.len() > SYNC_EACH_MAX {
            return self.sync_host();
        }
        let mut dirs: HashSet<PathBuf> = removed_in.iter().map(|(dir, _)| dir.clone()).collect();
        for (fid, dirty) in dirty {
            let entry = self.cache.find(fid).map_or_else(|| self.load(*fid), Ok)?;
            let file = entry.state.lock().file.clone();
            if let Some(file) = file {
                file.sync_data().map_err(OsdError::io("sync", &entry.path))?;
                dirs.extend(entry.path.parent().filter(|_| dirty.new).map(PathBuf::from));
            }
        }
        dirs.iter().try_for_each(|dir| sync_dir(dir))
    }
}

impl State {
    fn set(&mut self, attr: &SetAttr) {
        let before = self.attr;
        attr.apply_to(&mut self.attr);
        self.exists = true;
        self.record_stale |= self.attr != before;
    }

    /// Size and space, from the file.
    fn measure(&mut self, path: &Path) -> Result<(), OsdError> {
        if let Some(file) = &self.file {
            let m = file.metadata().map_err(OsdError::io("stat", path))?;
            (self.attr.size, self.attr.blocks) = (m.size(), m.blocks());
        }
        Ok(())
    }
}

fn bytes_of(pieces: &[Bytes]) -> u64 {
    pieces.iter().map(|p| p.len() as u64).sum()
}

/// Reads at most `len` bytes, in pieces; with `NOWAIT` only what is cached: `None` when that is not all.
fn read_pieces(
    file: &fs::File,
    offset: u64,
    len: u64,
    flags: ReadWriteFlags,
) -> io::Result<Option<Vec<Bytes>>> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < len {
        let mut piece = vec![0; (len - done).min(READ_PIECE) as usize];
        let mut filled = 0;
        while filled < piece.len() {
            let into = io::IoSliceMut::new(&mut piece[filled..]);
            match rustix::io::preadv2(file, &mut [into], offset + done + filled as u64, flags) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) if !flags.is_empty() => {
                    return Ok(None);
                }
                Err(e) => return Err(e.into()),
            }
        }
        let short = filled < piece.len();
        piece.truncate(filled);
        done += filled as u64;
        if filled > 0 {
            pieces.push(Bytes::from(piece));
        }
        if short {
            break;
        }
    }
    Ok(Some(pieces))
}

impl Objects for LocalObjects {
    fn read(&self, fid: Fid, offset: u64, len: u32) -> BoxFuture<'_, Result<Vec<Bytes>, OsdError>> {
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            entry.check()?;
            let Some((file, len)) = entry.to_read(offset, len) else {
                return Ok(Vec::new());
            };
            let cached = read_pieces(&file, offset, len, ReadWriteFlags::NOWAIT);
            if let Some(pieces) = cached.map_err(OsdError::io("read", &entry.path))?
                && bytes_of(&pieces) == len
            {
                return Ok(pieces);
            }
            let read = move |entry: &Entry| -> Result<(Vec<Bytes>, bool), OsdError> {
                let Some((file, len)) = entry.to_read(offset, len as u32) else {
                    return Ok((Vec::new(), true));
                };
                let pieces = read_pieces(&file, offset, len, ReadWriteFlags::empty());
                let pieces = pieces.map_err(OsdError::io("read", &entry.path))?;
                let pieces = pieces.unwrap_or_default();
                let whole = bytes_of(&pieces) == len;
                Ok((pieces, whole))
            };
            let first = entry.clone();
            let (pieces, whole) = blocking(move || read(&first)).await?;
            if whole {
                return Ok(pieces);
            }
            // The file ends too early. It may be being cut just now; whoever does that has the turn to write.
            let turn = entry.writing.clone().lock_owned().await;
            blocking(move || {
                let _turn = turn;
                let (pieces, whole) = read(&entry)?;
                match whole {
                    true => Ok(pieces),
                    false => Err(entry.ended_early(offset, bytes_of(&pieces))),
                }
            })
            .await
        })
    }

    fn write(
        &self,
        fid: Fid,
        offset: u64,
        data: Vec<Bytes>,
        attr: SetAttr,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            let turn = entry.writing.clone().lock_owned().await;
            blocking(move || {
                let _turn = turn;
                shared.write(&entry, offset, &data, &attr)
            })
            .await
        })
    }

    fn punch(&self, fid: Fid, start: u64, end: u64, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        let cuts = end == u64::MAX;
        self.in_turn(fid, cuts.then_some(start), move |shared, entry| {
            entry.check()?;
            if entry.state.lock().file.is_none() && (start == 0 || !cuts) {
                entry.state.lock().set(&attr);
                return shared.write_record(entry);
            }
            let (file, new) = shared.file(entry)?;
            let punched = if cuts {
                file.set_len(start).map_err(OsdError::io("truncate", &entry.path))
            } else if end > start {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&*file, how, start, end - start)
                    .map_err(|e| OsdError::io("punch", &entry.path)(e.into()))
            } else {
                Ok(())
            };
            let attr = if punched.is_ok() { attr } else { SetAttr::default() };
            shared.changed(entry, new, &attr)?;
            punched
        })
    }

    fn fallocate(
        &self,
        fid: Fid,
        start: u64,
        end: u64,
        keep_size: bool,
    ) -> BoxFuture<'_, Result<(), OsdError>> {
        self.in_turn(fid, None, move |shared, entry| {
            let len = end
                .checked_sub(start)
                .filter(|l| *l > 0)
                .ok_or(OsdError::Invalid("empty range"))?;
            let (file, new) = shared.file(entry)?;
            let how = if keep_size {
                FallocateFlags::KEEP_SIZE
            } else {
                FallocateFlags::empty()
            };
            let allocated = rustix::fs::fallocate(&*file, how, start, len)
                .map_err(|e| OsdError::io("allocate", &entry.path)(e.into()));
            shared.changed(entry, new, &SetAttr::default())?;
            allocated
        })
    }

    fn seek(&self, fid: Fid, offset: u64, what: Seek) -> BoxFuture<'_, Result<u64, OsdError>> {
        self.with(fid, move |_, entry| {
            entry.check()?;
            let (file, size) = {
                let state = entry.state.lock();
                (state.file.clone(), state.attr.size)
            };
            let file = file.filter(|_| offset < size).ok_or(OsdError::NotFound)?;
            let to = match what {
                Seek::Data => SeekFrom::Data(offset),
                Seek::Hole => SeekFrom::Hole(offset),
            };
            match rustix::fs::seek(&*file, to) {
                Err(rustix::io::Errno::NXIO) => Err(OsdError::NotFound),
                found => found.map_err(|e| OsdError::io("seek", &entry.path)(e.into())),
            }
        })
    }

    fn attr(&self, fid: Fid) -> BoxFuture<'_, Result<Option<ObjAttr>, OsdError>> {
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            entry.check()?;
            let state = entry.state.lock();
            Ok(state.exists.then_some(state.attr))
        })
    }

    fn attr_now(&self, fid: Fid, new: bool) -> Option<Option<ObjAttr>> {
        if let Some(entry) = self.shared.cache.find(&fid) {
            let state = entry.state.lock();
            // What is being removed may still be there, if that fails; and what is not there yet somebody may be about to
            // write, who is to be told that it is removed.
            return (!state.destroyed && state.exists && state.damage.is_none()).then_some(Some(state.attr));
        }
        // What was made since has a record before it leaves the cache.
        let nothing = new && matches!(self.shared.index.get(&record::key(&fid)), Ok(None));
        nothing.then_some(None)
    }

    fn setattr(&self, fid: Fid, attr: SetAttr) -> BoxFuture<'_, Result<(), OsdError>> {
        Box::pin(async move {
            let entry = self.entry(fid).await?;
            entry.state.lock().set(&attr);
            self.shared.write_record(&entry)
        })
    }

    fn destroy(&self, fid: Fid) -> BoxFuture<'_, Result<bool, OsdError>> {
        self.with(fid, move |shared, entry| {
            let _making = entry.making.lock();
            let existed = {
                let mut state = entry.state.lock();
                state.destroyed = true;
                state.file = None;
                state.attr = ObjAttr::default();
                (state.on_disk, state.damage) = (None, None);
                std::mem::take(&mut state.exists)
            };
            match fs::remove_file(&entry.path) {
                Ok(()) => shared
                    .cache
                    .mark_removed(entry.path.parent().unwrap_or(&shared.root)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(OsdError::io("remove", &entry.path)(e)),
            }
            if existed {
                let mut batch = Batch::new();
                batch.delete(record::key(&entry.fid));
                shared.index.apply(batch)?;
            }
            shared.cache.remove(&entry.fid);
            Ok(existed)
        })
    }

    fn sync_left(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        let shared = self.shared.clone();
        Box::pin(blocking(move || shared.sync_host()))
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
                            .stale()
                            .iter()
                            .try_for_each(|e| shared.write_record(e))
                    })
                    .await?;
                }
            }
            let shared = self.shared.clone();
            let files = blocking(move || {
                let cache = &shared.cache;
                let (dirty, removed_in) = match fid {
                    Some(fid) => (
                        cache.dirty(&fid).map(|d| (fid, d)).into_iter().collect(),
                        Vec::new(),
                    ),
                    None => (cache.all_dirty(), cache.removed_in()),
                };
                shared.sync(&dirty, &removed_in)
            });
            // Records and data are on disk in any order: a size is never told by a record.
            let (files, records) = tokio::join!(files, self.shared.index.sync());
            files.and(records)
        })
    }
}
