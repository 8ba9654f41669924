//! Directories read: runs of entries, kept under the directory's UPDATE lock.
//!
//! A place in a directory is the hash of the entry that comes next. Several entries may have one hash: an open directory
//! remembers how many of them it has given out, so that a reader who stops between them gets each once. It also has the
//! run that it is reading: what came or went since it began may be seen or not, so that it need not ask again when the
//! directory changes. From the beginning it is as it is then.

use crate::atime::Atime;
use crate::client::Client;
use crate::cred::{Cred, Groups};
use crate::dircache::DirChunk;
use crate::mdc::Mdc;
use crate::mount::MDC_BRW_SIZE;
use crate::ops::open_dirs::OpenDirGuard;
use crate::pack;
use bytes::Bytes;
use ldlm::{Enqueue, LockMode, LockRef, Policy};
use parking_lot::Mutex;
use rpc::{Bulk, Request};
use std::sync::Arc;
use wire::dirpage::{DirEntry, DirPage};
use wire::{
    Errno, Fid, LDLM_FL_HAS_INTENT, LUDA_FID, LUDA_TYPE, MDS_DIR_END_OFF, MDS_INODELOCK_UPDATE, MDS_READPAGE,
    OBD_MD_FLATIME, Precision, Time, Timed, Times, WireStruct,
};

/// The place behind the last entry, as a reader sees it: the largest that a file offset can be.
const END: u64 = i64::MAX as u64;
/// Bytes that the first request of a directory asks for; one that has more is read in full requests.
const FIRST_LEN: u32 = 64 << 10;

/// Entries that one call gives out.
const ITEMS_MAX: usize = 1024;

/// An entry and the place behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirItem {
    /// The entry.
    pub entry: DirEntry,
    /// Where to go on after it.
    pub next: u64,
}

/// An open directory.
pub struct DirHandle {
    /// Which directory.
    pub fid: Fid,
    /// Who opened it, and may therefore read it, whoever asks later.
    opener: Cred,
    reader: Mutex<Reader>,
    _open: OpenDirGuard,
}

#[derive(Default)]
struct Reader {
    /// The hash at which it stopped, and how many entries of that hash it had by then.
    stopped: Option<(u64, usize)>,
    /// What it is reading.
    chunk: Option<Arc<DirChunk>>,
}

impl DirHandle {
    fn new(fid: Fid, opener: Cred, open: OpenDirGuard) -> DirHandle {
        DirHandle {
            fid,
            opener,
            reader: Mutex::default(),
            _open: open,
        }
    }

    /// Remembers where a reader of `items` stopped, who took the first `taken` of them.
    pub fn took(&self, items: &[DirItem], taken: usize) {
        let Some(last) = taken.checked_sub(1).and_then(|i| items.get(i)) else {
            return;
        };
        let same = items[..taken]
            .iter()
            .rev()
            .take_while(|i| i.entry.hash == last.next)
            .count();
        let mut reader = self.reader.lock();
        let before = match reader.stopped {
            Some((hash, count)) if same == taken && hash == last.next => count,
            _ => 0,
        };
        reader.stopped = Some((last.next, before + same));
        if last.next >= END {
            reader.chunk = None;
        }
    }

    /// How many entries of the hash `place` were given out already.
    fn skip(&self, place: u64) -> usize {
        let stopped = self.reader.lock().stopped;
        stopped
            .filter(|(hash, _)| *hash == place)
            .map_or(0, |(_, count)| count)
    }

    /// What it is reading, if that goes on at `hash`.
    fn chunk(&self, hash: u64) -> Option<Arc<DirChunk>> {
        let mut reader = self.reader.lock();
        if hash == 0 {
            reader.chunk = None;
        }
        reader.chunk.clone().filter(|chunk| chunk.spans(hash))
    }
}

impl Client {
    /// Opens a directory. It needs no open on the server: what is read is protected by locks, and who may read is checked
    /// here as for every access by the attributes that the server gave.
    pub async fn opendir(&self, cred: &Cred, fid: Fid) -> Result<Arc<DirHandle>, Errno> {
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
        Ok(Arc::new(DirHandle::new(fid, opener, open)))
    }

    /// Entries from `place` on (0: the beginning), some of those that are at hand; none: the end. A directory that was removed
    /// has none.
    pub async fn readdir(&self, dir: &DirHandle, place: u64) -> Result<Vec<DirItem>, Errno> {
        let mut at = place;
        while at < END {
            let chunk = match dir.chunk(at) {
                Some(chunk) => chunk,
                None => match self.dir_chunk(&dir.opener, dir.fid, at).await {
                    Err(Errno::ENOENT | Errno::ESTALE) => return Ok(Vec::new()),
                    chunk => chunk?,
                },
            };
            dir.reader.lock().chunk = Some(chunk.clone());
            let skip = if at == place { dir.skip(place) } else { 0 };
            let items = items(&chunk, at, skip);
            if !items.is_empty() {
                return Ok(items);
            }
            at = chunk.next;
        }
        Ok(Vec::new())
    }

    async fn dir_chunk(&self, cred: &Cred, fid: Fid, hash: u64) -> Result<Arc<DirChunk>, Errno> {
        let mdc = self.lmv.of(fid).await?;
        let kept = || {
            let _held = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_UPDATE)?;
            self.inodes.get(fid)?.state.lock().chunk(hash)
        };
        if let Some(chunk) = kept() {
            return Ok(chunk);
        }
        // The pages are read under the lock, but a lock is not held while another request runs: if it was called back in
        // between, they are used for this answer and not kept.
        let before = self.dir_lock(mdc, fid).await?.info().cookie;
        let asked = self.inodes.now();
        let read_at = self.reads_dir(mdc, fid);
        let chunk = Arc::new(self.read_pages(cred, mdc, fid, hash, read_at).await?);
        if let Some(lock) = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_UPDATE)
            && lock.info().cookie == before
        {
            self.inodes.keep_chunk(fid, chunk.clone(), asked);
        }
        Ok(chunk)
    }

    /// Lists some more of the names that a directory has, under its UPDATE lock with this cookie. What cannot be read is not
    /// listed.
    pub(crate) async fn list_on(&self, cred: &Cred, mdc: &Mdc, fid: Fid, cookie: u64, from: u64) {
        let Ok(part) = self.read_pages(cred, mdc, fid, from, None).await else {
            return;
        };
        if let Some(lock) = mdc.find(fid, LockMode::Pr, MDS_INODELOCK_UPDATE)
            && lock.info().cookie == cookie
        {
            self.inodes.add_listed(fid, cookie, &part, part.next >= END);
        }
    }

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

    /// The time of reading a directory now, if it counts. Only a target that knows nanoseconds is told: Lustre's learn it in
    /// another way, from who has opened the directory.
    fn reads_dir(&self, mdc: &Mdc, fid: Fid) -> Option<Time> {
        let rule = self.atime.directories();
        if rule == Atime::Never || mdc.precision() == Precision::Seconds {
            return None;
        }
        let now = self.now(mdc);
        let inode = self.inodes.get(fid)?;
        let known = inode.state.lock().md.as_ref()?.attr.times();
        rule.counts(known, now).then_some(now)
    }

    async fn read_pages(
        &self,
        cred: &Cred,
        mdc: &Mdc,
        fid: Fid,
        hash: u64,
        read_at: Option<Time>,
    ) -> Result<DirChunk, Errno> {
        let max = mdc.import.connect_data().ocd_brw_size.clamp(4096, MDC_BRW_SIZE);
        let len = if hash == 0 { FIRST_LEN.min(max) } else { max };
        let mut body = pack::body(cred, fid, Fid::ZERO, 0, self.suppgid(cred, fid).await);
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
            self.inodes.accessed(fid, at);
        }
        let data = reply.bulk.drain(..).next().ok_or(Errno::EPROTO)?.into_bytes();
        let pages = DirPage::parse_all(&data)?;
        let next = pages.last().ok_or(Errno::EPROTO)?.hash_end;
        let entries: Vec<_> = pages
            .into_iter()
            .flat_map(|p| p.entries)
            .filter(|e| !e.name.is_empty())
            .collect();
        if next != MDS_DIR_END_OFF && next <= hash && entries.iter().all(|e| e.hash <= hash) {
            return Err(Errno::EPROTO);
        }
        Ok(DirChunk {
            start: hash,
            entries,
            next: next.min(END),
        })
    }
}

/// Entries of a run from a hash on, less the first `skip` of that very hash, each with the place behind it.
fn items(chunk: &DirChunk, from: u64, skip: usize) -> Vec<DirItem> {
    let first = chunk.entries.partition_point(|e| e.hash < from);
    let same = chunk.entries[first..]
        .iter()
        .take_while(|e| e.hash == from)
        .count();
    let first = first + skip.min(same);
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
    use super::{DirHandle, items};
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
    fn each_entry_tells_the_place_of_the_next() {
        let got = items(&chunk(&[5, 9], 20), 0, 0);
        assert_eq!(got.iter().map(|i| i.next).collect::<Vec<_>>(), [9, 20]);
        assert_eq!(items(&chunk(&[5, 9], 20), 9, 0).len(), 1);
    }

    #[test]
    fn entries_of_one_hash_are_each_given_out_once_however_the_reader_stops() {
        let chunk = chunk(&[5, 7, 7, 7, 7, 9], 20);
        for step in 1..=6 {
            let open = Arc::<OpenDirs>::default().add(&Attr::default());
            let dir = DirHandle::new(Fid::ROOT, Cred::root(), open);
            let (mut place, mut seen) = (0, Vec::new());
            while place < 20 {
                let got = items(&chunk, place, dir.skip(place));
                let taken = step.min(got.len());
                dir.took(&got, taken);
                seen.extend(got[..taken].iter().map(|i| i.entry.fid.f_oid));
                place = got[taken - 1].next;
            }
            assert_eq!(seen, [0, 1, 2, 3, 4, 5], "in steps of {step}");
        }
    }
}
