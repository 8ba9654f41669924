//! The disk of one target, its crashes and faults, and the factory of its stores.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cpt::BoxFuture;
use fastrand::Rng;
use osd::target::Fence;
use osd::{
    BootId, Index, LocalConfig, LocalObjects, MemoryIndex, Objects, OsdError, Space, SpacePurpose, Stores,
    Transactions,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use wire::{Fid, Transno};
use xxhash_rust::xxh3::Xxh3;

use super::file_system::SimFileSystem;
use super::files::Files;
use super::index::SimIndex;
use super::journal::Journal;

/// Keys from this one on belong to the index's store, not to the target.
const TARGET_KEYS_END: [u8; 1] = [osd::KEY_RESERVED];

/// The fixed properties of a disk.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Name in messages, such as the target's.
    pub name: String,
    /// Capacity, bytes.
    pub capacity: u64,
    /// Range of the time that a commit or a sync takes. Virtual time has a resolution of 1 ms.
    pub sync_time: RangeInclusive<Duration>,
    /// Longest time of a read of the index; zero: memory answers all reads. Local objects read
    /// their index on threads that may block, which a simulated node does not have, so only the
    /// index of a target without objects may be slow.
    pub read_time_max: Duration,
}

/// One of this number of reads of a slow index waits.
const SLOW_READS: u32 = 8;

impl Default for DiskConfig {
    fn default() -> DiskConfig {
        DiskConfig {
            name: "disk".into(),
            capacity: 1 << 30,
            sync_time: Duration::from_millis(1)..=Duration::from_millis(8),
            read_time_max: Duration::ZERO,
        }
    }
}

/// One target's disk. It survives restarts of its node; a clone is the same disk.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<Disk>>);

/// The state of a disk.
pub(super) struct Disk {
    pub(super) config: DiskConfig,
    /// The capacity of the new disk, bytes.
    first_capacity: u64,
    pub(super) rng: Rng,
    /// Added to the time of each commit and sync.
    delay: Duration,
    /// Commits and syncs fail.
    pub(super) is_failing: bool,
    /// Number of changes of objects' files that fail, per thousand.
    failing_changes: u32,
    /// Number of changes of objects' files that failed.
    failed_changes: u64,
    /// Number of crashes.
    crashes: u64,
    /// Counts the openings of the index and the crashes. A handle with a lower count is dead.
    opening: u64,
    boot_id: BootId,
    /// The transactions of the last opening.
    pub(super) transactions: Option<Arc<Transactions>>,
    /// The last transaction that is on disk.
    pub(super) durable_transno: Transno,
    /// Messages about transactions that the store reported as durable before they were.
    false_commit_reports: Vec<String>,
    /// The space of the last opening.
    pub(super) space: Arc<Space>,
    pub(super) journal: Journal,
    pub(super) files: Files,
}

/// The right to use a disk from an opening of its index until the next opening or crash.
#[derive(Clone)]
pub(super) struct Handle {
    disk: SimDisk,
    opening: u64,
}

impl Handle {
    /// The disk; `None` if the handle is dead.
    pub(super) fn lock(&self) -> Option<MutexGuard<'_, Disk>> {
        let disk = self.disk.0.lock();
        (disk.opening == self.opening).then_some(disk)
    }

    /// Waits as long as a commit or sync takes.
    pub(super) async fn sync_delay(&self) {
        let time = self.lock().map(|mut disk| disk.draw_sync_time());
        tokio::time::sleep(time.unwrap_or_default()).await;
    }

    /// The time of a read of the index; `None` if memory answers it.
    pub(super) fn read_time(&self) -> Option<Duration> {
        self.lock()?.draw_read_time()
    }
}

impl Disk {
    fn draw_sync_time(&mut self) -> Duration {
        let micros = |d: &Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        let range = &self.config.sync_time;
        let (least, most) = (micros(range.start()), micros(range.end()));
        self.delay + Duration::from_micros(self.rng.u64(least..=most.max(least)))
    }

    fn draw_read_time(&mut self) -> Option<Duration> {
        let most = self.config.read_time_max.as_millis() as u64;
        let waits = most > 0 && self.rng.u32(0..SLOW_READS) == 0;
        waits.then(|| Duration::from_millis(self.rng.u64(1..=most)))
    }

    /// Whether the next change of an object's file fails.
    pub(super) fn draw_failure(&mut self) -> bool {
        let fails = self.failing_changes > 0 && self.rng.u32(0..1_000) < self.failing_changes;
        self.failed_changes += u64::from(fails);
        fails
    }

    /// Counts a change of an object's file that failed for lack of space.
    pub(super) fn count_failure(&mut self) {
        self.failed_changes += 1;
    }

    /// The disk's name as a path, for errors.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(&self.config.name)
    }

    fn draw_boot_id(&mut self) {
        self.boot_id = BootId(self.rng.u128(1..).to_be_bytes());
    }
}

impl SimDisk {
    /// An empty disk. The seed determines all its choices.
    pub fn new(config: DiskConfig, seed: u64) -> SimDisk {
        let mut disk = Disk {
            space: Space::of_memory(config.capacity),
            first_capacity: config.capacity,
            config,
            rng: Rng::with_seed(seed),
            delay: Duration::ZERO,
            is_failing: false,
            failing_changes: 0,
            failed_changes: 0,
            crashes: 0,
            opening: 0,
            boot_id: BootId::default(),
            transactions: None,
            durable_transno: Transno::NONE,
            false_commit_reports: Vec::new(),
            journal: Journal::default(),
            files: Files::default(),
        };
        disk.draw_boot_id();
        SimDisk(Arc::new(Mutex::new(disk)))
    }

    /// The stores for one start of the node. After a crash they cannot be opened.
    pub fn stores(&self) -> SimStores {
        SimStores {
            disk: self.clone(),
            crashes: self.0.lock().crashes,
        }
    }

    /// The machine loses power. A random prefix of the batches that are not on disk survives, and a
    /// random part of the objects' changes that are not on disk.
    ///
    /// All handles of the stores are dead from now on: they change nothing, and each call fails
    /// with [`OsdError::Stopping`] or, on objects, [`OsdError::Io`]. A sync in progress fails when
    /// its task runs again. So call this after the death of the node's scope and before
    /// [`cpt::NodeScope::abort`], whose destructors would otherwise commit.
    pub fn power_cut(&self) {
        let disk = &mut *self.0.lock();
        let kept = disk.rng.usize(0..=disk.journal.pending()) as u64;
        disk.journal.sync_to(disk.journal.durable() + kept);
        disk.journal.lose(usize::MAX);
        disk.files.power_cut(&mut disk.rng);
        disk.draw_boot_id();
        disk.end_opening();
        disk.crashes += 1;
    }

    /// The node's process ends, and its machine keeps running. The kernel has all changes of
    /// objects, and all batches except a random number of those that the process applied in the
    /// last millisecond. They are not on disk before the next opening. The handles of the stores
    /// are dead as after a power cut. Call this inside of the runtime, because it reads the time.
    pub fn process_kill(&self) {
        let disk = &mut *self.0.lock();
        let recent = Instant::now().checked_sub(LocalConfig::KERNEL_INTERVAL);
        let recent = recent.map_or(usize::MAX, |since| disk.journal.pending_since(since));
        let lost = disk.rng.usize(0..=recent.min(disk.journal.pending()));
        disk.journal.lose(lost);
        disk.end_opening();
        disk.crashes += 1;
    }

    /// Lets each commit and sync take longer by `delay`.
    pub fn set_delay(&self, delay: Duration) {
        self.0.lock().delay = delay;
    }

    /// Lets commits and syncs fail, or succeed again. A store whose commit or sync failed takes no
    /// more changes until it is opened again.
    pub fn set_failing(&self, failing: bool) {
        self.0.lock().is_failing = failing;
    }

    /// Lets `share` of 1000 changes of objects' files fail. A failed write may have written a part
    /// of its data.
    pub fn set_failing_changes(&self, share: u32) {
        self.0.lock().failing_changes = share;
    }

    /// Number of changes of objects' files that failed, including those that failed for lack of
    /// space.
    pub fn failed_changes(&self) -> u64 {
        self.0.lock().failed_changes
    }

    /// The objects that have a file, by sequence and id, with the size of the file in bytes.
    pub fn object_files(&self) -> BTreeMap<(u64, u32), u64> {
        let disk = self.0.lock();
        let sizes = disk.files.sizes();
        let object = |path: &Path| {
            let mut parts = path.strip_prefix(osd::target::OBJECTS).ok()?.iter();
            let (seq, _, id) = (parts.next()?, parts.next()?, parts.next()?);
            let seq = u64::from_str_radix(seq.to_str()?, 16).ok()?;
            Some((seq, u32::from_str_radix(id.to_str()?, 16).ok()?))
        };
        sizes
            .filter_map(|(path, size)| Some((object(path)?, size)))
            .collect()
    }

    /// Whether commits and syncs fail.
    pub fn is_failing(&self) -> bool {
        self.0.lock().is_failing
    }

    /// Restores the capacity of the new disk.
    pub fn reset_capacity(&self) {
        let first = self.0.lock().first_capacity;
        self.set_capacity(first);
    }

    /// Changes the capacity, bytes. Changes fail while less space than their purpose needs is free.
    pub fn set_capacity(&self, bytes: u64) {
        let mut disk = self.0.lock();
        disk.config.capacity = bytes;
        disk.space.set_size_bytes(bytes);
    }

    /// Used space of index and objects, as readers see them: bytes, rounded up to whole blocks.
    pub fn used_bytes(&self) -> u64 {
        let disk = self.0.lock();
        let free = disk.space.statfs().map_or(0, |s| s.bfree * u64::from(s.bsize));
        disk.config.capacity.saturating_sub(free)
    }

    /// Loses the end of an object's file on the disk, as a fault of the disk does: only the first
    /// `size` bytes stay.
    pub fn damage_object(&self, fid: Fid, size: u64) {
        let path = osd::check::object_file(Path::new(osd::target::OBJECTS), &fid, 0);
        self.0.lock().files.damage(&path, size);
    }

    /// Messages about transactions that the store reported as durable before they were, since the
    /// last call. Makes all handles dead.
    pub fn take_broken_promises(&self) -> Vec<String> {
        let mut disk = self.0.lock();
        disk.end_opening();
        std::mem::take(&mut disk.false_commit_reports)
    }

    /// Whether everything that the stores passed to the disk is durable. Attributes of objects that
    /// wait in memory for the next sync do not count.
    pub fn is_idle(&self) -> bool {
        let disk = self.0.lock();
        disk.journal.pending() == 0 && disk.files.is_clean()
    }

    /// A hash of everything on disk. The same contents give the same hash on each machine.
    pub fn digest(&self) -> u64 {
        let disk = self.0.lock();
        let mut hash = Xxh3::new();
        for bytes in disk
            .journal
            .on_disk()
            .iter()
            .flat_map(|(key, value)| [key, value])
        {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        }
        disk.files.hash_on_disk(&mut hash);
        hash.digest()
    }
}

impl Disk {
    /// Makes all handles dead.
    fn end_opening(&mut self) {
        let reported = self
            .transactions
            .take()
            .map(|transactions| transactions.committed());
        if let Some(reported) = reported.filter(|reported| *reported > self.durable_transno) {
            self.false_commit_reports.push(format!(
                "{}: transaction {:#x} was reported as durable, but only {:#x} is",
                self.config.name, reported.0, self.durable_transno.0
            ));
        }
        self.opening += 1;
    }
}

/// The stores of one start of a node.
#[derive(Clone)]
pub struct SimStores {
    disk: SimDisk,
    /// [`Disk::crashes`] at the start.
    crashes: u64,
}

impl SimStores {
    /// The disk, unless it crashed since this start.
    fn lock(&self) -> Result<MutexGuard<'_, Disk>, OsdError> {
        let disk = self.disk.0.lock();
        match disk.crashes == self.crashes {
            true => Ok(disk),
            false => Err(OsdError::Stopping),
        }
    }

    /// The visible entries in memory, in a space that also counts the objects.
    fn load(disk: &Disk) -> Result<MemoryIndex, OsdError> {
        let space = Space::of_memory(u64::MAX);
        space.reserve(disk.files.allocated())?;
        let memory = MemoryIndex::new(space.clone());
        let all = osd::Batch {
            puts: disk.journal.visible().into_iter().collect(),
            ..osd::Batch::default()
        };
        memory.apply(all)?;
        space.set_size_bytes(disk.config.capacity);
        Ok(memory)
    }
}

impl Stores for SimStores {
    /// Whether a record of the target is on disk: a target syncs its first records before it counts
    /// as started.
    fn has_run(&self) -> bool {
        let disk = self.disk.0.lock();
        let first = disk.journal.on_disk().keys().next();
        first.is_some_and(|key| key[..] < TARGET_KEYS_END[..])
    }

    /// The id changes with each power cut.
    fn boot_id(&self) -> BootId {
        self.disk.0.lock().boot_id
    }

    /// Everything visible is on disk when this returns. Ends an earlier opening.
    fn open_index(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async move {
            let (handle, memory) = {
                let mut disk = self.lock()?;
                let memory = SimStores::load(&disk)?;
                let space = memory.space();
                space.check(SpacePurpose::Upkeep).map_err(|_| OsdError::Full {
                    path: disk.path(),
                    needed_mib: (space.upkeep_reserve_bytes() >> 20) + 1,
                })?;
                disk.end_opening();
                disk.space = space.clone();
                let handle = Handle {
                    disk: self.disk.clone(),
                    opening: disk.opening,
                };
                (handle, memory)
            };
            Ok(Arc::new(SimIndex::open(handle, memory).await?) as Arc<dyn Index>)
        })
    }

    fn open_index_read_only(&self) -> BoxFuture<'_, Result<Arc<dyn Index>, OsdError>> {
        Box::pin(async move {
            let disk = self.lock()?;
            let handle = Handle {
                disk: self.disk.clone(),
                opening: disk.opening,
            };
            let index = SimIndex::read_only(handle, SimStores::load(&disk)?, &disk.path())?;
            Ok(Arc::new(index) as Arc<dyn Index>)
        })
    }

    fn open_objects<'a>(
        &'a self,
        index: &'a Arc<dyn Index>,
    ) -> BoxFuture<'a, Result<Arc<dyn Objects>, OsdError>> {
        Box::pin(async move {
            let handle = Handle {
                disk: self.disk.clone(),
                opening: self.lock()?.opening,
            };
            let file_system = Arc::new(SimFileSystem::new(handle));
            let fence = Fence::unshared(Path::new(osd::target::OBJECTS));
            let objects = LocalObjects::open_on(
                file_system,
                Path::new(osd::target::OBJECTS),
                index.clone(),
                &fence,
            )?;
            Ok(Arc::new(objects) as Arc<dyn Objects>)
        })
    }
}
