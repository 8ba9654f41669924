//! The files of a simulated file system. A sync makes a file or the entries of a directory durable.
//! Before that, the kernel may write any page, size or entry back at any time. A power cut decides
//! at random which ones it has written.
//!
//! After a power cut, the disk has the whole of a page that no sync covered, or its first half, or
//! nothing of it, independently of other pages. A file's size on disk is one that it had since its
//! last sync. A truncation is on disk before any page that was allocated after it, as in file
//! systems with a journal.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use osd::SparseData;
use xxhash_rust::xxh3::Xxh3;

const PAGE: u64 = SparseData::PAGE;

/// Number of a file that no other file of the disk ever has.
pub(super) type FileId = u64;

/// All files of a disk.
#[derive(Default)]
pub(super) struct Files {
    files: BTreeMap<FileId, File>,
    next: FileId,
    /// The directory entries that readers see.
    visible: BTreeMap<PathBuf, FileId>,
    on_disk: BTreeMap<PathBuf, FileId>,
}

/// One file.
#[derive(Default)]
pub(super) struct File {
    visible: SparseData,
    on_disk: SparseData,
    /// Pages of `visible` that differ from those on disk.
    dirty: BTreeSet<u64>,
    /// The size changed since it was written back.
    size_dirty: bool,
    /// The smallest size since the size was written back, bytes.
    size_min: u64,
    /// The file has no visible entry.
    is_removed: bool,
}

/// The share of unsynced changes that survives a power cut.
#[derive(Clone, Copy)]
enum Survival {
    All,
    Nothing,
    Half,
}

impl Survival {
    fn draw(rng: &mut Rng) -> Survival {
        match rng.u8(0..4) {
            0 => Survival::All,
            1 => Survival::Nothing,
            _ => Survival::Half,
        }
    }

    fn is_kept(self, rng: &mut Rng) -> bool {
        match self {
            Survival::All => true,
            Survival::Nothing => false,
            Survival::Half => rng.bool(),
        }
    }
}

/// Numbers of the pages that a range of bytes touches.
fn pages_of(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE)
}

impl File {
    /// The bytes that readers see.
    pub(super) fn data(&self) -> &SparseData {
        &self.visible
    }

    fn is_clean(&self) -> bool {
        self.dirty.is_empty() && !self.size_dirty
    }

    /// Marks pages dirty. The kernel may have written an earlier content of a dirty page back.
    fn mark_dirty(&mut self, pages: impl Iterator<Item = u64>, rng: &mut Rng) {
        for page in pages {
            if self.dirty.contains(&page) && rng.u8(0..4) == 0 {
                self.write_back_page(page);
            }
            self.dirty.insert(page);
        }
    }

    /// Records a change of the size. The kernel may have written the earlier size back.
    fn before_size_change(&mut self, size: u64, rng: &mut Rng) {
        if self.size_dirty && rng.u8(0..4) == 0 {
            self.write_back_size();
        }
        self.size_min = self.size_min.min(size);
        self.size_dirty = true;
    }

    /// Writes bytes.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], rng: &mut Rng) {
        let range = offset..offset + data.len() as u64;
        self.mark_dirty(pages_of(&range), rng);
        if range.end > self.visible.size() {
            self.before_size_change(range.end, rng);
        }
        self.visible.write(offset, data);
    }

    /// Truncates or extends the file.
    pub(super) fn set_size(&mut self, size: u64, rng: &mut Rng) {
        let before = self.visible.size();
        if size == before {
            return;
        }
        if size < before {
            // The rest of the last page becomes zero.
            let last = (!size.is_multiple_of(PAGE)).then_some(size / PAGE);
            self.mark_dirty(last.into_iter(), rng);
            self.dirty.retain(|page| page * PAGE < size);
        }
        self.before_size_change(size, rng);
        self.visible.set_size(size);
    }

    /// Frees a range.
    pub(super) fn punch(&mut self, range: Range<u64>, rng: &mut Rng) {
        let pages: Vec<u64> = self.visible.pages(range.clone()).map(|(page, _)| page).collect();
        self.mark_dirty(pages.into_iter(), rng);
        self.visible.free(range);
    }

    /// Allocates a range.
    pub(super) fn allocate(&mut self, range: Range<u64>, keep_size: bool, rng: &mut Rng) {
        self.mark_dirty(pages_of(&range), rng);
        self.visible.allocate(&range);
        if !keep_size && range.end > self.visible.size() {
            self.set_size(range.end, rng);
        }
    }

    fn write_back_size(&mut self) {
        if self.size_min < self.on_disk.size() {
            self.on_disk.set_size(self.size_min);
        }
        self.on_disk.set_size(self.visible.size());
        self.size_min = self.visible.size();
        self.size_dirty = false;
    }

    /// Whether the page was allocated after a truncation that is not on disk.
    fn needs_size(&self, page: u64) -> bool {
        self.size_dirty && (page + 1) * PAGE > self.size_min
    }

    fn write_back_page(&mut self, page: u64) {
        if self.needs_size(page) {
            self.write_back_size();
        }
        self.on_disk.copy_page(&self.visible, page);
    }

    /// Makes the file durable.
    pub(super) fn sync(&mut self) {
        if self.size_dirty {
            self.write_back_size();
        }
        // The last page first, so that holes free their space on disk ([`SparseData::copy_page`]).
        while let Some(page) = self.dirty.pop_last() {
            self.write_back_page(page);
        }
    }

    /// A sync that fails: a random part of the changes is on disk. The kernel counts all pages as
    /// written, so no later sync writes the other part, and readers see it until the power is cut.
    pub(super) fn fail_sync(&mut self, rng: &mut Rng) {
        self.write_back_some(rng);
        self.dirty.clear();
        self.size_dirty = false;
    }

    /// Writes a random part of the changes back.
    fn write_back_some(&mut self, rng: &mut Rng) {
        let survival = Survival::draw(rng);
        if self.size_dirty && survival.is_kept(rng) {
            self.write_back_size();
        }
        for page in std::mem::take(&mut self.dirty).into_iter().rev() {
            if survival.is_kept(rng) && !self.needs_size(page) {
                match rng.u8(0..8) {
                    0 => self.tear_page(page),
                    _ => self.write_back_page(page),
                }
            }
        }
    }

    /// Writes the first half of a page back, as if a power cut interrupted the write.
    fn tear_page(&mut self, page: u64) {
        let (start, half) = (page * PAGE, PAGE / 2);
        // Write nothing beyond the size on disk: a later, larger size must not expose such data.
        if start + half <= self.on_disk.size() {
            let bytes = self.visible.read(start, half).concat();
            self.on_disk.write(start, &bytes);
        }
    }

    fn power_cut(&mut self, rng: &mut Rng) {
        self.write_back_some(rng);
        self.visible = self.on_disk.clone();
        self.is_removed = false;
        self.size_dirty = false;
        self.size_min = self.visible.size();
    }
}

impl Files {
    /// The file with this path.
    pub(super) fn find(&self, path: &Path) -> Option<FileId> {
        self.visible.get(path).copied()
    }

    /// The file with this path, created if missing.
    pub(super) fn find_or_create(&mut self, path: &Path) -> FileId {
        if let Some(id) = self.find(path) {
            return id;
        }
        self.next += 1;
        self.files.insert(self.next, File::default());
        self.visible.insert(path.to_owned(), self.next);
        self.next
    }

    /// The file with this id, unless it is removed.
    pub(super) fn file(&mut self, id: FileId) -> Option<&mut File> {
        self.files.get_mut(&id).filter(|file| !file.is_removed)
    }

    /// Removes an entry. Returns the space that readers no longer see as used, bytes.
    pub(super) fn remove(&mut self, path: &Path) -> Option<u64> {
        let id = self.visible.remove(path)?;
        let file = self.files.get_mut(&id)?;
        file.is_removed = true;
        let freed = file.visible.allocated();
        if self.on_disk.get(path) != Some(&id) {
            self.files.remove(&id);
        }
        Some(freed)
    }

    /// Each visible file with its size, bytes.
    pub(super) fn sizes(&self) -> impl Iterator<Item = (&Path, u64)> {
        let files = self.visible.iter();
        files.filter_map(|(path, id)| Some((path.as_path(), self.files.get(id)?.visible.size())))
    }

    /// Space of all visible files, bytes.
    pub(super) fn allocated(&self) -> u64 {
        let files = self.visible.values().filter_map(|id| self.files.get(id));
        files.map(|file| file.visible.allocated()).sum()
    }

    /// Makes the entries of a directory durable.
    pub(super) fn sync_dir(&mut self, dir: &Path) {
        for path in self.changed_entries(dir) {
            self.write_back_entry(path);
        }
    }

    /// Makes everything durable.
    pub(super) fn sync_all(&mut self) {
        self.files.values_mut().for_each(File::sync);
        self.sync_dir(Path::new(""));
    }

    /// Fails a sync of all files.
    pub(super) fn fail_sync_all(&mut self, rng: &mut Rng) {
        self.files.values_mut().for_each(|file| file.fail_sync(rng));
    }

    /// Paths below a directory with other entries on disk than the visible ones.
    fn changed_entries(&self, dir: &Path) -> Vec<PathBuf> {
        let below = |map: &BTreeMap<PathBuf, FileId>| -> BTreeSet<PathBuf> {
            let from_dir = map.range::<Path, _>((Bound::Included(dir), Bound::Unbounded));
            let inside = from_dir.take_while(|(path, _)| path.starts_with(dir));
            inside.map(|(path, _)| path.clone()).collect()
        };
        let (visible, on_disk) = (below(&self.visible), below(&self.on_disk));
        let paths = visible.union(&on_disk);
        paths
            .filter(|path| self.visible.get(*path) != self.on_disk.get(*path))
            .cloned()
            .collect()
    }

    fn write_back_entry(&mut self, path: PathBuf) {
        let replaced = match self.visible.get(&path) {
            Some(&id) => self.on_disk.insert(path, id),
            None => self.on_disk.remove(&path),
        };
        if let Some(id) = replaced {
            self.files.remove(&id);
        }
    }

    /// Whether everything is on disk.
    pub(super) fn is_clean(&self) -> bool {
        self.visible == self.on_disk && self.files.values().all(File::is_clean)
    }

    /// Loses a random part of what is not on disk.
    pub(super) fn power_cut(&mut self, rng: &mut Rng) {
        let survival = Survival::draw(rng);
        for path in self.changed_entries(Path::new("")) {
            if survival.is_kept(rng) {
                self.write_back_entry(path);
            } else if let Some(id) = self.visible.remove(&path) {
                self.files.remove(&id);
            }
        }
        self.visible.clone_from(&self.on_disk);
        self.files.values_mut().for_each(|file| file.power_cut(rng));
    }

    /// Loses the end of a file, as a fault of the disk does.
    pub(super) fn damage(&mut self, path: &Path, size: u64) {
        if let Some(file) = self.find(path).and_then(|id| self.files.get_mut(&id)) {
            file.visible.set_size(size);
            file.sync();
            file.on_disk.set_size(size);
            file.size_min = size;
        }
    }

    /// Adds the files on disk to a hash. Holes and pages of zeros count the same.
    pub(super) fn hash_on_disk(&self, hash: &mut Xxh3) {
        for (path, id) in &self.on_disk {
            let Some(file) = self.files.get(id) else { continue };
            let path = path.as_os_str().as_encoded_bytes();
            hash.update(&path.len().to_le_bytes());
            hash.update(path);
            let data = &file.on_disk;
            hash.update(&data.size().to_le_bytes());
            for (page, bytes) in data.pages(0..data.size()) {
                if bytes.iter().any(|b| *b != 0) {
                    hash.update(&page.to_le_bytes());
                    hash.update(bytes);
                }
            }
        }
    }
}
