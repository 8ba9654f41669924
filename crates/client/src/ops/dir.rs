//! Directory reading: chunks of entries, cached under the directory's UPDATE lock.
//!
//! An offset in a directory is the hash of the next entry. Several entries may have one hash, so an
//! open directory counts the returned entries of the last hash. A reader that stops between them
//! still gets each entry once. An open directory also keeps the chunk that is being read, so a
//! change of the directory causes no new request: entries added or removed since the reader's start
//! may appear or not. A read from the beginning shows the current state.

use crate::atime::Atime;
use crate::client::Client;
use crate::cred::{Cred, Groups};
use crate::dircache::DirChunk;
use crate::mdc::Mdc;
use crate::mdc_builder::MDC_BRW_SIZE;
use crate::ops::OpenFlags;
use crate::ops::name_dir::NameDir;
use crate::ops::open_dirs::OpenDirGuard;
use crate::pack;
use crate::stats::Operation;
use bytes::Bytes;
use ldlm::LockCookie;
use ldlm::{Enqueue, LockMode, LockRef, Policy};
use parking_lot::Mutex;
use rpc::{Bulk, Request};
use std::sync::Arc;
use wire::dirpage::{DirEntry, DirPage};
use wire::{
    Errno, Fid, HasTimes, LDLM_FL_HAS_INTENT, LUDA_FID, LUDA_TYPE, MDS_DIR_END_OFF, MDS_INODELOCK_UPDATE,
    MDS_READPAGE, OBD_MD_FLATIME, Precision, Time, Times, WireStruct,
};

/// The offset after the last entry: the largest file offset.
pub(super) const END_OFFSET: u64 = i64::MAX as u64;
/// Largest size of the first bulk of a directory, in bytes. The other bulks have the size agreed
/// with the MDT.
const FIRST_BULK_LEN: u32 = 64 << 10;

/// Largest number of entries that one call returns.
const ITEMS_MAX: usize = 1024;

/// An entry and the offset after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The entry.
    pub entry: DirEntry,
    /// The offset at which to continue.
    pub next: u64,
}

/// An open directory.
pub struct DirHandle {
    /// FID of the directory.
    pub fid: Fid,
    /// The caller that opened the directory. The requests of all readers carry these credentials.
    opener: Cred,
    /// Whether reads leave the access time as it is (`O_NOATIME`).
    no_atime: bool,
    pub(super) position: Mutex<ReadPosition>,
    _open: OpenDirGuard,
}

#[derive(Default)]
pub(super) struct ReadPosition {
    /// The hash at which the reader continues, and the number of entries of that hash already
    /// returned.
    resume: Option<(u64, usize)>,
    /// The chunk that is being read.
    chunk: Option<Arc<DirChunk>>,
    /// The chunks of a striped directory's stripes from which `chunk` was merged.
    pub(super) stripes: Vec<Option<Arc<DirChunk>>>,
}

impl DirHandle {
    fn new(fid: Fid, opener: Cred, no_atime: bool, open: OpenDirGuard) -> DirHandle {
        DirHandle {
            fid,
            opener,
            no_atime,
            position: Mutex::default(),
            _open: open,
        }
    }

    /// Records that a reader took the first `taken` of `items`.
    pub fn advance(&self, items: &[DirItem], taken: usize) {
        let Some(last) = taken.checked_sub(1).and_then(|i| items.get(i)) else {
            return;
        };
        let same_hash = items[..taken]
            .iter()
            .rev()
            .take_while(|i| i.entry.hash == last.next)
            .count();
        let mut position = self.position.lock();
        let returned_before = match position.resume {
            Some((hash, count)) if same_hash == taken && hash == last.next => count,
            _ => 0,
        };
        position.resume = Some((last.next, returned_before + same_hash));
        if last.next >= END_OFFSET {
            position.chunk = None;
            position.stripes.clear();
        }
    }

    /// Number of entries with this hash that were already returned.
    fn returned_at(&self, hash: u64) -> usize {
        let resume = self.position.lock().resume;
        resume
            .filter(|(resume_hash, _)| *resume_hash == hash)
            .map_or(0, |(_, count)| count)
    }

    /// The chunk that is being read, if it spans `hash`. A read from the beginning (hash 0) drops
    /// the chunk.
    fn chunk(&self, hash: u64) -> Option<Arc<DirChunk>> {
        let mut position = self.position.lock();
        if hash == 0 {
            position.chunk = None;
            position.stripes.clear();
        }
        position.chunk.clone().filter(|chunk| chunk.spans(hash))
    }
}

impl Client {
    /// Opens a directory. The server has no open handle: locks protect the entries, and the client
    /// checks the read permission by the directory's attributes.
    ///
    /// # Errors
    ///
    /// `ENOTDIR`, `EACCES`, `ESTALE`; or an error of the MDT.
    pub async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Arc<DirHandle>, Errno> {
        self.opendir_with(cred, fid, OpenFlags::READ).await
    }

    /// Opens a directory with these flags; only [`OpenFlags::no_atime`] has a meaning for
    /// directories.
    ///
    /// # Errors
    ///
    /// As [`Client::opendir`].
    pub async fn opendir_with(
        &self,
        cred: &Cred,
        fid: Fid,
        flags: OpenFlags,
    ) -> Result<Arc<DirHandle>, Errno> {
        let md = self.md(cred, fid).await?;
        if !md.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        crate::perm::check(cred, &md, crate::perm::READ)?;
        let group = self.suppgid(cred, fid).await;
        let opener = Cred {
            groups: Groups::Known(Arc::from([group])),
            ..cred.clone()
        };
        let open = self.open_dirs.add(&md.attr);
        Ok(Arc::new(DirHandle::new(fid, opener, flags.no_atime, open)))
    }

    /// Entries from `offset` on (0: the beginning): the rest of a chunk, at most 1024 entries.
    /// Empty: no entries follow, or the directory was removed.
    ///
    /// # Errors
    ///
    /// An error of the MDT.
    pub async fn readdir(&self, dir: &DirHandle, offset: u64) -> Result<Vec<DirItem>, Errno> {
        let _timer = self.stats.time(Operation::Readdir);
        let mut hash = offset;
        while hash < END_OFFSET {
            let chunk = match dir.chunk(hash) {
                Some(chunk) => chunk,
                None => match self.chunk_at(dir, hash).await {
                    Err(Errno::ENOENT | Errno::ESTALE) => return Ok(Vec::new()),
                    chunk => chunk?,
                },
            };
            dir.position.lock().chunk = Some(chunk.clone());
            let skip = if hash == offset {
                dir.returned_at(offset)
            } else {
                0
            };
            let items = dir_items(&chunk, hash, skip);
            if !items.is_empty() {
                return Ok(items);
            }
            hash = chunk.next;
        }
        Ok(Vec::new())
    }

    /// The chunk of entries that spans `hash`: from the directory, or merged from its stripes.
    async fn chunk_at(&self, dir: &DirHandle, hash: u64) -> Result<Arc<DirChunk>, Errno> {
        match self.stripes(&dir.opener, dir.fid).await? {
            None => self.dir_chunk(dir, &self.plain_dir(dir.fid).await?, hash).await,
            Some(layout) => self.merged_chunk(dir, &layout, hash).await,
        }
    }

    /// The chunk of a directory's or stripe's entries that spans `hash`: cached, or requested.
    pub(super) async fn dir_chunk(
        &self,
        handle: &DirHandle,
        dir: &NameDir<'_>,
        hash: u64,
    ) -> Result<Arc<DirChunk>, Errno> {
        let (fid, mdc) = (dir.fid, dir.mdc);
        let cached = || {
            let _held = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_UPDATE)?;
            self.inodes.get(fid)?.state.lock().chunk(hash)
        };
        if let Some(chunk) = cached() {
            return Ok(chunk);
        }
        // Keeps no reference to the lock while the request runs, so the server can revoke the lock.
        // The chunk then serves this reader only and is not cached.
        let cookie = self.dir_lock(mdc, fid).await?.info().cookie;
        let sent_at = self.inodes.change_stamp();
        let due_atime = self.due_dir_atime(mdc, fid);
        let read_at = due_atime.filter(|_| !handle.no_atime);
        let chunk = Arc::new(self.read_pages(&handle.opener, dir, hash, read_at).await?);
        // While an access time update is due, the chunk of a reader with `O_NOATIME` is not cached:
        // another reader must send its own request to report the time.
        if due_atime == read_at
            && let Some(lock) = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_UPDATE)
            && lock.info().cookie == cookie
        {
            self.inodes.add_chunk(fid, chunk.clone(), sent_at);
        }
        Ok(chunk)
    }

    /// Reads the next part of a directory's names into its [`DirNameSet`](crate::inode), under the
    /// UPDATE lock with this cookie. Ignores errors: a later failed lookup lists the part.
    pub(crate) async fn list_more_names(
        &self,
        cred: &Cred,
        dir: &NameDir<'_>,
        cookie: LockCookie,
        from: u64,
    ) {
        let Ok(part) = self.read_pages(cred, dir, from, None).await else {
            return;
        };
        if let Some(lock) = dir.mdc.find(dir.fid, LockMode::Pr, MDS_INODELOCK_UPDATE)
            && lock.info().cookie == cookie
        {
            self.inodes
                .add_listed(dir.fid, cookie, &part, part.next >= END_OFFSET);
        }
    }

    /// The directory's UPDATE lock: a held one, or a new one from the MDT.
    async fn dir_lock(&self, mdc: &Mdc, fid: Fid) -> Result<LockRef, Errno> {
        if let Some(lock) = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_UPDATE) {
            return Ok(lock);
        }
        let enqueue = Enqueue {
            flags: LDLM_FL_HAS_INTENT,
            ..Enqueue::new(fid.res_id(), LockMode::Pr, Policy::ibits(MDS_INODELOCK_UPDATE))
        };
        mdc.locks.enqueue(enqueue).await?.lock.ok_or(Errno::EPROTO)
    }

    /// The access time to report with a read now; `None`: no update is due, the directory's times
    /// are not cached, or the MDT is a Lustre server, which learns the time from the clients that
    /// have the directory open.
    fn due_dir_atime(&self, mdc: &Mdc, fid: Fid) -> Option<Time> {
        let rule = self.atime.directories();
        if rule == Atime::Never || mdc.precision() == Precision::Seconds {
            return None;
        }
        let now = self.now(mdc);
        let inode = self.inodes.get(fid)?;
        let known = inode.state.lock().md.as_ref()?.attr.times();
        rule.updates(known, now).then_some(now)
    }

    /// Requests a directory's entries from `hash` on. `read_at`: the access time to report.
    async fn read_pages(
        &self,
        cred: &Cred,
        dir: &NameDir<'_>,
        hash: u64,
        read_at: Option<Time>,
    ) -> Result<DirChunk, Errno> {
        let (fid, mdc) = (dir.fid, dir.mdc);
        let max = mdc.import.connect_data().ocd_brw_size.clamp(4096, MDC_BRW_SIZE);
        let len = if hash == 0 { FIRST_BULK_LEN.min(max) } else { max };
        let mut body = pack::body(cred, fid, Fid::ZERO, 0, self.suppgid(cred, dir.shown).await);
        body.mbo_size = hash;
        body.mbo_nlink = len;
        body.mbo_mode = LUDA_FID | LUDA_TYPE;
        if let Some(at) = read_at {
            body.mbo_valid |= OBD_MD_FLATIME;
            body.set_times(Times {
                atime: at,
                ..Times::default()
            });
        }
        let req =
            Request::new(MDS_READPAGE, vec![body.to_bytes(), Bytes::new()]).with_bulk(Bulk::Sink(vec![len]));
        let mut reply = mdc.import.call(req).await?;
        if let Some(at) = read_at {
            self.inodes.raise_atime(fid, at);
        }
        let data = reply.bulk.drain(..).next().ok_or(Errno::EPROTO)?.into_bytes();
        let pages = DirPage::parse_all(&data)?;
        let next = pages.last().ok_or(Errno::EPROTO)?.hash_end;
        let entries: Vec<_> = pages
            .into_iter()
            .flat_map(|p| p.entries)
            .filter(|e| !e.name.is_empty())
            .collect();
        if next != MDS_DIR_END_OFF && next <= hash {
            return Err(Errno::EPROTO);
        }
        Ok(DirChunk {
            start: hash,
            entries,
            next: next.min(END_OFFSET),
        })
    }
}

/// The entries of a chunk from a hash on, without the first `skip` entries of that hash.
fn dir_items(chunk: &DirChunk, from: u64, skip: usize) -> Vec<DirItem> {
    let first = chunk.entries.partition_point(|e| e.hash < from);
    let same_hash = chunk.entries[first..]
        .iter()
        .take_while(|e| e.hash == from)
        .count();
    let first = first + skip.min(same_hash);
    let next = |i: usize| chunk.entries.get(i + 1).map_or(chunk.next, |e| e.hash);
    (first..chunk.entries.len())
        .take(ITEMS_MAX)
        .map(|i| DirItem {
            entry: chunk.entries[i].clone(),
            next: next(i),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{DirHandle, dir_items};
    use crate::attr::Attr;
    use crate::cred::Cred;
    use crate::dircache::DirChunk;
    use crate::ops::OpenDirs;
    use bytes::Bytes;
    use std::sync::Arc;
    use wire::Fid;
    use wire::dirpage::DirEntry;

    fn chunk(hashes: &[u64], next: u64) -> DirChunk {
        let entry = |(i, h): (usize, &u64)| {
            DirEntry::new(
                Fid::new(0x400, i as u32, 0),
                *h,
                Bytes::from(format!("f{i}")),
                0o100_000,
            )
        };
        DirChunk {
            start: 0,
            entries: hashes.iter().enumerate().map(entry).collect(),
            next,
        }
    }

    #[test]
    fn each_entry_has_the_offset_of_the_next() {
        let returned = dir_items(&chunk(&[5, 9], 20), 0, 0);
        assert_eq!(returned.iter().map(|i| i.next).collect::<Vec<_>>(), [9, 20]);
        assert_eq!(dir_items(&chunk(&[5, 9], 20), 9, 0).len(), 1);
    }

    #[test]
    fn entries_of_one_hash_are_each_returned_once_wherever_the_reader_stops() {
        let chunk = chunk(&[5, 7, 7, 7, 7, 9], 20);
        for step in 1..=6 {
            let open = Arc::<OpenDirs>::default().add(&Attr::default());
            let dir = DirHandle::new(Fid::ROOT, Cred::root(), false, open);
            let (mut offset, mut seen) = (0, Vec::new());
            while offset < 20 {
                let returned = dir_items(&chunk, offset, dir.returned_at(offset));
                let taken = step.min(returned.len());
                dir.advance(&returned, taken);
                seen.extend(returned[..taken].iter().map(|i| i.entry.fid.f_oid));
                offset = returned[taken - 1].next;
            }
            assert_eq!(seen, [0, 1, 2, 3, 4, 5], "in steps of {step}");
        }
    }
}
