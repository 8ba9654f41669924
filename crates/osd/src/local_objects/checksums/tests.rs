//! Checksums of files on a disk that loses, tears and flips data.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, io, path::Path};

use bytes::Bytes;
use cpt::BoxFuture;
use proptest::prelude::*;

use super::*;
use crate::{
    Extent, ExtentData, FileSystem, LocalObjects, ObjectFile, Objects, Seek, SetAttr,
    local_objects::power_cut::PowerIndex,
};

/// Unit that reaches the disk atomically, bytes.
const SECTOR: usize = 512;
/// Largest size of a file.
const SIZE_MAX: u64 = 40_000;

/// Numbers that a test case chooses in advance, and how many were used.
struct Picks<'a>(&'a [usize], usize);

impl Picks<'_> {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.1 += 1;
        self.0[self.1 % self.0.len()].wrapping_mul(self.1 | 1) % end
    }
}

/// A file: its contents at the last sync and after each later change. Readers see the last one.
struct File(Mutex<Vec<Vec<u8>>>);

impl File {
    fn change<T>(&self, f: impl FnOnce(&mut Vec<u8>) -> T) -> io::Result<T> {
        let mut states = self.0.lock();
        let mut data = states.last().unwrap().clone();
        let result = f(&mut data);
        states.push(data);
        Ok(result)
    }

    /// Keeps for each sector one of its states since the last sync.
    fn tear(&self, picks: &mut Picks<'_>) {
        let mut states = self.0.lock();
        let mut torn = vec![0; states[picks.below(states.len())].len()];
        for (n, sector) in torn.chunks_mut(SECTOR).enumerate() {
            let state = &states[picks.below(states.len())];
            let data = state.get(n * SECTOR..).unwrap_or_default();
            let len = data.len().min(sector.len());
            sector[..len].copy_from_slice(&data[..len]);
        }
        *states = vec![torn];
    }
}

impl ObjectFile for File {
    fn measure(&self) -> io::Result<(u64, u64)> {
        let size = self.0.lock().last().unwrap().len() as u64;
        Ok((size, size.div_ceil(512)))
    }

    fn read(&self, offset: u64, len: u64, _: bool) -> io::Result<Option<Vec<Bytes>>> {
        let states = self.0.lock();
        let data = states.last().unwrap().get(offset as usize..).unwrap_or_default();
        Ok(Some(vec![Bytes::copy_from_slice(
            &data[..data.len().min(len as usize)],
        )]))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset as usize + data.len();
        self.change(|file| {
            file.resize(file.len().max(end), 0);
            file[offset as usize..end].copy_from_slice(data);
        })
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.change(|file| file.resize(size as usize, 0))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(|file| {
            let within = |n: u64| (n as usize).min(file.len());
            let range = within(offset)..within(offset + len);
            file[range].fill(0);
        })
    }

    fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> io::Result<()> {
        let end = (offset + len) as usize;
        self.change(|file| {
            file.resize(
                if keep_size {
                    file.len()
                } else {
                    file.len().max(end)
                },
                0,
            )
        })
    }

    fn seek(&self, offset: u64, kind: Seek) -> io::Result<u64> {
        let size = self.measure()?.0;
        match (offset < size, kind) {
            (false, _) => Err(io::Error::from_raw_os_error(libc::ENXIO)),
            (true, Seek::Data) => Ok(offset),
            (true, Seek::Hole) => Ok(size),
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut states = self.0.lock();
        let last = states.len() - 1;
        states.drain(..last);
        Ok(())
    }
}

/// Files by path. Names are durable at once.
#[derive(Default)]
struct Disk(Mutex<BTreeMap<std::path::PathBuf, Arc<File>>>);

impl FileSystem for Disk {
    fn open_files_max(&self) -> u64 {
        1024
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>> {
        let file = self.0.lock().get(path).cloned();
        Ok(file.ok_or(io::ErrorKind::NotFound)?)
    }

    fn create(&self, path: &Path) -> io::Result<Arc<dyn ObjectFile>> {
        let mut files = self.0.lock();
        let file = files
            .entry(path.into())
            .or_insert_with(|| Arc::new(File(Mutex::new(vec![Vec::new()]))));
        Ok(file.clone())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.0.lock().remove(path);
        Ok(removed.map(drop).ok_or(io::ErrorKind::NotFound)?)
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self, _: &Path) -> io::Result<()> {
        let files: Vec<_> = self.0.lock().values().cloned().collect();
        files.iter().try_for_each(|file| file.sync_data())
    }

    fn sync_delay(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

fn fid(oid: u32) -> Fid {
    Fid::new(0x2_4000_0400, oid, 0)
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        place: usize,
        ranges: Vec<(u64, usize)>,
        byte: u8,
    },
    Truncate {
        place: usize,
        size: u64,
    },
    Punch {
        place: usize,
        start: u64,
        len: u64,
    },
    Allocate {
        place: usize,
        start: u64,
        len: u64,
    },
    Destroy {
        place: usize,
    },
    Read {
        place: usize,
        offset: u64,
        len: u32,
    },
    Sync {
        place: Option<usize>,
    },
    Settle {
        all: bool,
    },
    SyncIndex,
    Scrub {
        place: usize,
    },
    Restart,
    PowerCut {
        picks: Vec<usize>,
    },
    Flip {
        place: usize,
        at: usize,
        bit: u8,
    },
}

const PLACES: usize = 2;

fn step() -> impl Strategy<Value = Step> {
    let place = || 0..PLACES;
    // Often at the edges of blocks.
    let offset = || {
        (0..9u64, prop_oneof![Just(0i64), -3..4i64, 0..4096i64])
            .prop_map(|(block, byte)| (block as i64 * 4096 + byte).max(0) as u64)
    };
    let len = || prop_oneof![1..10usize, 1..5000usize, Just(4096usize)];
    prop_oneof![
        8 => (place(), proptest::collection::vec((offset(), len()), 1..4), any::<u8>())
            .prop_map(|(place, ranges, byte)| Step::Write { place, ranges, byte }),
        3 => (place(), offset()).prop_map(|(place, size)| Step::Truncate { place, size }),
        2 => (place(), offset(), len()).prop_map(|(place, start, len)| Step::Punch { place, start, len: len as u64 }),
        1 => (place(), offset(), len()).prop_map(|(place, start, len)| Step::Allocate { place, start, len: len as u64 }),
        1 => place().prop_map(|place| Step::Destroy { place }),
        4 => (place(), offset(), 1..10_000u32).prop_map(|(place, offset, len)| Step::Read { place, offset, len }),
        4 => proptest::option::of(place()).prop_map(|place| Step::Sync { place }),
        2 => any::<bool>().prop_map(|all| Step::Settle { all }),
        1 => Just(Step::SyncIndex),
        1 => place().prop_map(|place| Step::Scrub { place }),
        1 => Just(Step::Restart),
        2 => proptest::collection::vec(any::<usize>(), 1..20).prop_map(|picks| Step::PowerCut { picks }),
        1 => (place(), any::<usize>(), 0..8u8).prop_map(|(place, at, bit)| Step::Flip { place, at, bit }),
    ]
}

fn unshared() -> crate::target::Fence {
    crate::target::Fence::unshared(Path::new("objects"))
}

struct Machine {
    disk: Arc<Disk>,
    index: Arc<PowerIndex>,
    objects: LocalObjects,
    /// The data of each object.
    model: BTreeMap<u32, Vec<u8>>,
    /// Ids of the objects that are not destroyed. The id of a destroyed object is never used again.
    live: [u32; PLACES],
}

impl Machine {
    fn new() -> Machine {
        let (disk, index) = (Arc::new(Disk::default()), Arc::new(PowerIndex::new()));
        let objects =
            LocalObjects::open_on(disk.clone(), Path::new("objects"), index.clone(), &unshared()).unwrap();
        Machine {
            disk,
            index,
            objects,
            model: BTreeMap::new(),
            live: std::array::from_fn(|place| place as u32 + 1),
        }
    }

    fn reopen(&mut self) {
        let objects = LocalObjects::open_on(
            self.disk.clone(),
            Path::new("objects"),
            self.index.clone(),
            &unshared(),
        );
        self.objects = objects.unwrap();
    }

    fn file(&self, oid: u32) -> Option<Arc<File>> {
        let path = crate::check::object_file(Path::new("objects"), &fid(oid), 0);
        self.disk.0.lock().get(&path).cloned()
    }

    async fn read(&self, oid: u32, offset: u64, len: u32) -> Result<Vec<u8>, OsdError> {
        Ok(self.objects.read(fid(oid), offset, len).await?.concat())
    }

    /// Reads all objects, and makes the model equal to what it finds.
    async fn read_all(&mut self) {
        for oid in self.live {
            let data = self.read(oid, 0, 2 * SIZE_MAX as u32).await.unwrap();
            self.model.insert(oid, data);
        }
    }

    async fn step(&mut self, step: Step) {
        let none = SetAttr::default();
        match step {
            Step::Write { place, ranges, byte } => {
                let file = self.model.entry(self.live[place]).or_default();
                let mut extents = Vec::new();
                for (n, (offset, len)) in ranges.into_iter().enumerate() {
                    let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i + n) as u8)).collect();
                    let end = offset as usize + len;
                    file.resize(file.len().max(end), 0);
                    file[offset as usize..end].copy_from_slice(&data);
                    let (head, tail) = data.split_at(len / 3);
                    let data = vec![Bytes::copy_from_slice(head), Bytes::copy_from_slice(tail)];
                    extents.push(ExtentData { offset, data });
                }
                let written = self
                    .objects
                    .write_extents(fid(self.live[place]), extents, none)
                    .await
                    .unwrap();
                assert!(written.iter().all(Result::is_ok), "{written:?}");
            }
            Step::Truncate { place, size } => {
                self.objects
                    .punch(fid(self.live[place]), size, u64::MAX, none)
                    .await
                    .unwrap();
                self.model
                    .entry(self.live[place])
                    .or_default()
                    .resize(size as usize, 0);
            }
            Step::Punch { place, start, len } => {
                let end = start + len;
                self.objects
                    .punch(fid(self.live[place]), start, end, none)
                    .await
                    .unwrap();
                let file = self.model.entry(self.live[place]).or_default();
                let within = |n: u64| (n as usize).min(file.len());
                let range = within(start)..within(end);
                file[range].fill(0);
            }
            Step::Allocate { place, start, len } => {
                self.objects
                    .fallocate(fid(self.live[place]), start, start + len, false)
                    .await
                    .unwrap();
                let file = self.model.entry(self.live[place]).or_default();
                file.resize(file.len().max((start + len) as usize), 0);
            }
            Step::Destroy { place } => {
                self.objects.destroy(fid(self.live[place])).await.unwrap();
                self.model.remove(&self.live[place]);
                self.live[place] += PLACES as u32;
            }
            Step::Read { place, offset, len } => {
                let read = self.read(self.live[place], offset, len).await.unwrap();
                let file = self
                    .model
                    .get(&self.live[place])
                    .map_or(&[][..], |file| &file[..]);
                let file = file.get(offset as usize..).unwrap_or_default();
                assert_eq!(read, file[..file.len().min(len as usize)]);
            }
            Step::Sync { place } => self
                .objects
                .sync(place.map(|place| fid(self.live[place])))
                .await
                .unwrap(),
            Step::Settle { all } => drop(self.objects.settle(all).await.unwrap()),
            Step::SyncIndex => self.index.sync().await.unwrap(),
            Step::Scrub { place } => {
                let scrubbed = self.objects.scrub(fid(self.live[place]), 0, true).await.unwrap();
                assert_eq!(scrubbed.damaged, []);
            }
            Step::Restart => {
                // The process is killed: the kernel and the index keep everything.
                self.disk.sync_all(Path::new("")).unwrap();
                self.reopen();
            }
            Step::PowerCut { picks } => {
                let mut picks = Picks(&picks, 0);
                self.index = Arc::new(self.index.after_power_cut(picks.below(1000)));
                let files: Vec<_> = self.disk.0.lock().values().cloned().collect();
                files.iter().for_each(|file| file.tear(&mut picks));
                self.reopen();
                self.read_all().await;
            }
            Step::Flip { place, at, bit } => self.flip(self.live[place], at, bit).await,
        }
    }

    /// Flips a bit of a synced file. Checks that reads and a scrub report the block, unless it has
    /// no checksum (after a power cut). Flips the bit back.
    async fn flip(&mut self, oid: u32, at: usize, bit: u8) {
        self.objects.sync(None).await.unwrap();
        let Some(file) = self.file(oid).filter(|file| file.measure().unwrap().0 > 0) else {
            return;
        };
        let at = at % file.measure().unwrap().0 as usize;
        let flip = || file.0.lock().last_mut().unwrap()[at] ^= 1 << bit;
        let block = at as u64 / BLOCK;
        let expected = self
            .objects
            .shared
            .checksums
            .expected(fid(oid), block..block + 1, false);
        let expected = expected.unwrap().unwrap();
        flip();
        let read = self.read(oid, at as u64, 1).await;
        let extent = Extent {
            offset: 0,
            len: at as u32 + 1,
        };
        let whole = self.objects.read_extents(fid(oid), vec![extent, extent]).await;
        let offset = (at as u64 / BLOCK) * BLOCK;
        let scrubbed = self.objects.scrub(fid(oid), 0, false).await.unwrap();
        match expected[0] {
            Expected::Sum(_) => {
                assert!(matches!(read, Err(OsdError::DamagedBlock { offset: o, .. }) if o == offset));
                assert!(matches!(whole, Err(OsdError::DamagedBlock { .. })));
                assert_eq!(scrubbed.damaged, [offset]);
                if !(at as u64).is_multiple_of(BLOCK) {
                    // A write to a part of the block must not record a checksum of the damaged
                    // rest.
                    let data = vec![Bytes::from_static(b"x")];
                    let written = self
                        .objects
                        .write(fid(oid), offset, data, SetAttr::default())
                        .await;
                    assert!(
                        matches!(written, Err(OsdError::DamagedBlock { .. })),
                        "{written:?}"
                    );
                    assert!(self.read(oid, at as u64, 1).await.is_err());
                }
            }
            Expected::Unchecked => assert!(read.is_ok()),
            Expected::Changing => panic!("nothing changes the block"),
        }
        flip();
        self.read(oid, at as u64, 1).await.unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn power_cuts_give_no_false_alarm_and_flipped_bits_are_found(
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut machine = Machine::new();
            for step in steps {
                machine.step(step).await;
            }
        });
    }
}

#[test]
fn synced_and_settled_data_has_checksums_after_a_restart() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let mut machine = Machine::new();
        let write = |byte| Step::Write {
            place: 0,
            ranges: vec![(0, 10_000)],
            byte,
        };
        machine.step(write(1)).await;
        machine.step(Step::Sync { place: None }).await;
        // The second write marks its window until it settles.
        machine.step(write(2)).await;
        machine.step(Step::Sync { place: None }).await;
        assert!(machine.objects.settle(false).await.unwrap());
        assert!(!machine.objects.settle(true).await.unwrap());
        machine.step(Step::SyncIndex).await;
        machine.reopen();
        let expected = machine.objects.shared.checksums.expected(fid(1), 0..3, false);
        assert!(
            expected
                .unwrap()
                .unwrap()
                .iter()
                .all(|e| matches!(e, Expected::Sum(_)))
        );
        // A window that is marked at a crash has no checksums until a scrub records them.
        machine.step(write(3)).await;
        machine.step(Step::Restart).await;
        let expected = || machine.objects.shared.checksums.expected(fid(1), 0..3, false);
        assert_eq!(expected().unwrap().unwrap(), [Expected::Unchecked; 3]);
        assert_eq!(machine.objects.scrub(fid(1), 0, true).await.unwrap().filled, 3);
        assert!(
            expected()
                .unwrap()
                .unwrap()
                .iter()
                .all(|e| matches!(e, Expected::Sum(_)))
        );
    });
}
