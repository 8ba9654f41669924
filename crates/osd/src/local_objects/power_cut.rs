//! Simulates power cuts: random changes and syncs, then a random one of the states that the disk
//! can have. The store must never report damage of an object that was not destroyed.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, fs, ops::Bound};
use wire::Transno;

use proptest::prelude::*;

use super::*;
use crate::{IndexRead, Space, Transactions};

type Map = BTreeMap<Bytes, Bytes>;

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_4000_0400, oid, 0)
}

/// An index that loses some of its last unsynced batches in a power cut.
pub(super) struct PowerIndex {
    state: Mutex<IndexState>,
    space: Arc<Space>,
    transactions: Arc<Transactions>,
}

#[derive(Default)]
struct IndexState {
    on_disk: Map,
    /// The visible entries.
    visible: Map,
    /// Batches that are not on disk, in order.
    unsynced: Vec<Batch>,
    /// The power is off: nothing reaches the disk.
    off: bool,
}

/// Applies a batch to a map.
fn apply_to(map: &mut Map, batch: &Batch) {
    for key in &batch.deletes {
        map.remove(key);
    }
    map.extend(batch.puts.iter().cloned());
}

impl PowerIndex {
    pub(super) fn new() -> PowerIndex {
        PowerIndex::from_disk(Map::new())
    }

    fn from_disk(on_disk: Map) -> PowerIndex {
        let state = IndexState {
            visible: on_disk.clone(),
            on_disk,
            ..IndexState::default()
        };
        PowerIndex {
            state: Mutex::new(state),
            space: Space::of_memory(1 << 30),
            transactions: Transactions::restore(Transno::NONE, 0),
        }
    }

    /// Makes every later sync fail.
    pub(super) fn switch_off(&self) {
        self.state.lock().off = true;
    }

    /// The index after a power cut that keeps the first `keep % (unsynced + 1)` of the unsynced
    /// batches.
    pub(super) fn after_power_cut(&self, keep: usize) -> PowerIndex {
        let state = self.state.lock();
        let mut map = state.on_disk.clone();
        let kept = keep % (state.unsynced.len() + 1);
        state.unsynced[..kept]
            .iter()
            .for_each(|batch| apply_to(&mut map, batch));
        PowerIndex::from_disk(map)
    }
}

impl Index for PowerIndex {
    fn get(&self, key: &[u8]) -> IndexRead<'_, Option<Bytes>> {
        IndexRead::ready(Ok(self.state.lock().visible.get(key).cloned()))
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> IndexRead<'_, Vec<(Bytes, Bytes)>> {
        let state = self.state.lock();
        let range = (Bound::Included(from), Bound::Excluded(to));
        let rows = state.visible.range::<[u8], _>(range).take(limit);
        IndexRead::ready(Ok(rows.map(|(k, v)| (k.clone(), v.clone())).collect()))
    }

    fn apply(&self, batch: Batch) -> Result<(), OsdError> {
        let mut state = self.state.lock();
        apply_to(&mut state.visible, &batch);
        state.unsynced.push(batch);
        Ok(())
    }

    fn sync(&self) -> BoxFuture<'_, Result<(), OsdError>> {
        let mut state = self.state.lock();
        let power_on = !state.off;
        if power_on {
            let state = &mut *state;
            state
                .unsynced
                .drain(..)
                .for_each(|batch| apply_to(&mut state.on_disk, &batch));
        }
        Box::pin(async move { power_on.then_some(()).ok_or(OsdError::NoSpace) })
    }

    fn throttle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    fn space(&self) -> &Arc<Space> {
        &self.space
    }
}

/// A step; `place` is the position of an object in [`Machine::live`].
#[derive(Clone, Debug)]
enum Step {
    Write {
        place: usize,
        offset: u64,
        len: usize,
    },
    Truncate {
        place: usize,
        size: u64,
    },
    Destroy {
        place: usize,
    },
    /// The next stage of a sync that runs concurrently with the other steps: list dirty objects,
    /// sync the files, write the records.
    SyncStage,
    Sync {
        place: Option<usize>,
    },
    WriteRecords,
    SyncIndex,
    /// The power fails, perhaps during a truncate (place and size).
    PowerCut {
        truncate: Option<(usize, u64)>,
        /// Selects the number of unsynced batches that survive.
        batches: usize,
        /// Select the size of each file on disk.
        files: Vec<usize>,
    },
}

const PLACES: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let place = || 0..PLACES;
    let size = || 0..200u64;
    prop_oneof![
        5 => (place(), size(), 1..100usize)
            .prop_map(|(place, offset, len)| Step::Write { place, offset, len }),
        4 => (place(), size()).prop_map(|(place, size)| Step::Truncate { place, size }),
        1 => place().prop_map(|place| Step::Destroy { place }),
        6 => Just(Step::SyncStage),
        2 => proptest::option::of(place()).prop_map(|place| Step::Sync { place }),
        1 => Just(Step::WriteRecords),
        1 => Just(Step::SyncIndex),
        2 => (
            proptest::option::of((place(), size())),
            any::<usize>(),
            proptest::collection::vec(any::<usize>(), 1..8)
        )
            .prop_map(|(truncate, batches, files)| Step::PowerCut { truncate, batches, files }),
    ]
}

/// The last completed stage of the concurrent sync, with the dirty objects that it listed.
enum Stage {
    Idle,
    Listed(Vec<(Fid, DirtyState)>),
    Synced(Vec<(Fid, DirtyState)>),
}

struct Machine {
    dir: tempfile::TempDir,
    index: Arc<PowerIndex>,
    objects: LocalObjects,
    /// The possible sizes of each object's file on disk; `None` is no file.
    disk: BTreeMap<u32, Vec<Option<u64>>>,
    /// Ids of the objects that are not destroyed.
    live: [u32; PLACES],
    stage: Stage,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let index = Arc::new(PowerIndex::new());
        let objects = LocalObjects::open(&dir.path().join("objects"), index.clone()).unwrap();
        Machine {
            dir,
            index,
            objects,
            disk: BTreeMap::new(),
            live: std::array::from_fn(|place| place as u32 + 1),
            stage: Stage::Idle,
        }
    }

    fn path(&self, oid: u32) -> PathBuf {
        file_path(&self.dir.path().join("objects"), &fid(oid), 0)
    }

    fn current_size(&self, oid: u32) -> Option<u64> {
        fs::metadata(self.path(oid)).ok().map(|m| m.len())
    }

    /// Records the current file sizes: each may reach the disk at any time.
    fn record_sizes(&mut self) {
        for oid in self.live {
            let size = self.current_size(oid);
            self.disk.entry(oid).or_insert_with(|| vec![None]).push(size);
        }
    }

    /// Records that the files of these objects are on disk as they are now.
    fn record_synced(&mut self, dirty: &[(Fid, DirtyState)]) {
        for (fid, _) in dirty {
            let size = self.current_size(fid.f_oid);
            self.disk.insert(fid.f_oid, vec![size]);
        }
    }

    async fn truncate(&self, place: usize, size: u64) -> Result<(), OsdError> {
        let oid = self.live[place];
        self.objects
            .punch(fid(oid), size, u64::MAX, SetAttr::default())
            .await
    }

    async fn step(&mut self, step: Step) {
        let shared = self.objects.shared.clone();
        match step {
            Step::Write { place, offset, len } => {
                let data = vec![Bytes::from(vec![7; len])];
                let written = self
                    .objects
                    .write(fid(self.live[place]), offset, data, SetAttr::default());
                written.await.unwrap();
            }
            Step::Truncate { place, size } => self.truncate(place, size).await.unwrap(),
            Step::Destroy { place } => {
                let oid = self.live[place];
                self.objects.destroy(fid(oid)).await.unwrap();
                self.disk.entry(oid).or_default().push(None);
                self.live[place] += PLACES as u32;
            }
            Step::SyncStage => {
                self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
                    Stage::Idle => Stage::Listed(shared.cache.all_dirty()),
                    Stage::Listed(dirty) => {
                        shared.sync_files(&dirty, &[]).unwrap();
                        self.record_synced(&dirty);
                        Stage::Synced(dirty)
                    }
                    Stage::Synced(dirty) => {
                        shared.record_durable_sizes(&dirty);
                        shared.cache.mark_clean(&dirty);
                        Stage::Idle
                    }
                }
            }
            Step::Sync { place } => {
                let dirty = shared.cache.all_dirty();
                let one = place.map(|place| fid(self.live[place]));
                self.objects.sync(one).await.unwrap();
                let synced: Vec<_> = dirty
                    .into_iter()
                    .filter(|(f, _)| one.is_none_or(|one| one == *f))
                    .collect();
                self.record_synced(&synced);
                for (fid, _) in synced {
                    let record = self.index.get(&record::key(&fid)).wait().unwrap().unwrap();
                    assert_eq!(
                        record::read(&record).unwrap().durable_size,
                        self.current_size(fid.f_oid),
                        "size not recorded"
                    );
                }
            }
            Step::WriteRecords => shared
                .cache
                .stale_entries()
                .iter()
                .for_each(|e| shared.write_record(e).unwrap()),
            Step::SyncIndex => self.index.sync().await.unwrap(),
            Step::PowerCut {
                truncate,
                batches,
                files,
            } => {
                if let Some((place, size)) = truncate {
                    self.index.switch_off();
                    let _ = self.truncate(place, size).await;
                }
                self.record_sizes();
                self.power_cut(batches, &files).await;
            }
        }
        self.record_sizes();
    }

    async fn power_cut(&mut self, batches: usize, files: &[usize]) {
        for (n, (oid, sizes)) in self.disk.iter().enumerate() {
            let path = self.path(*oid);
            match sizes[files[n % files.len()] % sizes.len()] {
                Some(size) => {
                    fs::create_dir_all(path.parent().unwrap()).unwrap();
                    let mut options = files::options();
                    let file = options
                        .write(true)
                        .create(true)
                        .truncate(false)
                        .open(&path)
                        .unwrap();
                    file.set_len(size).unwrap();
                }
                None => {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        self.index = Arc::new(self.index.after_power_cut(batches));
        self.objects = LocalObjects::open(&self.dir.path().join("objects"), self.index.clone()).unwrap();
        self.stage = Stage::Idle;
        for oid in std::mem::take(&mut self.disk).into_keys() {
            if self.live.contains(&oid) {
                let found = self.objects.attr(fid(oid)).await.unwrap();
                assert_eq!(found.map_or(0, |a| a.size), self.current_size(oid).unwrap_or(0));
                self.objects.read(fid(oid), 0, 1000).await.unwrap();
                self.disk.insert(oid, vec![self.current_size(oid)]);
            } else {
                self.objects.destroy(fid(oid)).await.unwrap();
                assert_eq!(self.objects.attr(fid(oid)).await.unwrap(), None);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn power_cut_never_damages_an_object(steps in proptest::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut machine = Machine::new();
            for step in steps {
                machine.step(step).await;
            }
        });
    }
}
