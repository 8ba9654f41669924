//! Tests that each page and the size of an object after a crash are ones that the object had since
//! its last sync.

use std::collections::BTreeMap;

use bytes::Bytes;
use osd::{OsdError, Seek, SetAttr};
use proptest::prelude::*;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::{Crash, Node, fid, millis, simulate};

const PAGE: usize = 4096;
/// Number of objects that are in use at the same time.
const PLACES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Write {
        place: usize,
        offset: usize,
        len: usize,
    },
    Truncate {
        place: usize,
        size: usize,
    },
    Punch {
        place: usize,
        start: usize,
        len: usize,
    },
    Allocate {
        place: usize,
        end: usize,
    },
    Destroy {
        place: usize,
    },
    Sync {
        place: Option<usize>,
    },
    /// A sync of all objects begins; it ends at the next sync.
    BeginSync,
    Wait(u64),
    Crash(Crash),
    /// A crash, some time after the begin of a truncation.
    CrashInTruncate {
        place: usize,
        size: usize,
        wait_ms: u64,
        crash: Crash,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let place = || 0..PLACES;
    let offset = || prop_oneof![0..5 * PAGE, (0..5usize).prop_map(|page| page * PAGE)];
    prop_oneof![
        6 => (place(), offset(), 1..3 * PAGE)
            .prop_map(|(place, offset, len)| Step::Write { place, offset, len }),
        3 => (place(), offset()).prop_map(|(place, size)| Step::Truncate { place, size }),
        2 => (place(), offset(), 0..3 * PAGE)
            .prop_map(|(place, start, len)| Step::Punch { place, start, len }),
        1 => (place(), offset()).prop_map(|(place, end)| Step::Allocate { place, end: end + 1 }),
        1 => place().prop_map(|place| Step::Destroy { place }),
        2 => proptest::option::of(place()).prop_map(|place| Step::Sync { place }),
        2 => Just(Step::BeginSync),
        2 => (0..70u64).prop_map(Step::Wait),
        1 => Just(Step::Crash(Crash::PowerCut)),
        1 => Just(Step::Crash(Crash::ProcessKill)),
        1 => (place(), offset(), 0..10u64, any::<bool>()).prop_map(|(place, size, wait_ms, cut)| {
            let crash = if cut { Crash::PowerCut } else { Crash::ProcessKill };
            Step::CrashInTruncate { place, size, wait_ms, crash }
        }),
    ]
}

/// An object, and the states that it may have after a crash.
#[derive(Default)]
struct Object {
    oid: u32,
    data: Vec<u8>,
    /// The data without the last change, if that is a truncation.
    data_before_truncate: Vec<u8>,
    version: u64,
    /// Contents of each page since the last sync, without the zeros at the end.
    pages: BTreeMap<usize, Vec<Vec<u8>>>,
    /// Sizes since the last sync.
    sizes: Vec<usize>,
    /// Versions since the last sync.
    versions: Vec<u64>,
}

/// A position in the histories of an object's pages, sizes and versions.
struct Mark {
    oid: u32,
    pages: BTreeMap<usize, usize>,
    states: usize,
}

/// A sync of all objects that has begun.
struct BegunSync {
    task: JoinHandle<Result<(), OsdError>>,
    marks: Vec<Mark>,
    destroyed: Vec<u32>,
}

fn trimmed(page: &[u8]) -> Vec<u8> {
    let len = page.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    page[..len].to_vec()
}

impl Object {
    /// An object that does not exist.
    fn new(oid: u32) -> Object {
        let mut object = Object {
            oid,
            ..Object::default()
        };
        object.record();
        object
    }

    /// Adds the present state to those that may be on disk.
    fn record(&mut self) {
        self.data_before_truncate.clone_from(&self.data);
        let pages = self.data.len().div_ceil(PAGE).max(16);
        for page in 0..pages {
            let content = self.data.chunks(PAGE).nth(page).map(trimmed).unwrap_or_default();
            let contents = self.pages.entry(page).or_default();
            if contents.last() != Some(&content) {
                contents.push(content);
            }
        }
        self.sizes.push(self.data.len());
        self.versions.push(self.version);
    }

    /// A truncation can reach the disk before the writes that precede it.
    fn truncate(&mut self, size: usize) {
        let before = self.data.clone();
        self.data.resize(size, 0);
        for (page, contents) in &mut self.pages {
            let len = size.saturating_sub(page * PAGE);
            let is_longer = |content: &&Vec<u8>| content.len() > len;
            let cut: Vec<_> = contents
                .iter()
                .filter(is_longer)
                .map(|c| trimmed(&c[..len]))
                .collect();
            contents.extend(cut);
        }
        self.record();
        self.data_before_truncate = before;
    }

    /// The state that a sync which begins now makes durable, as lengths of the histories.
    fn mark(&self) -> Mark {
        Mark {
            oid: self.oid,
            pages: self.pages.iter().map(|(page, c)| (*page, c.len() - 1)).collect(),
            states: self.sizes.len() - 1,
        }
    }

    /// Drops the states before the mark, which are no longer on disk.
    fn set_durable(&mut self, mark: &Mark) {
        for (page, contents) in &mut self.pages {
            contents.drain(..mark.pages.get(page).copied().unwrap_or(0));
        }
        self.sizes.drain(..mark.states);
        self.versions.drain(..mark.states);
    }

    /// Checks the state after a crash, and continues with it.
    fn check(&mut self, found: Vec<u8>, version: u64) {
        assert!(
            self.sizes.contains(&found.len()),
            "{} of {:?}",
            found.len(),
            self.sizes
        );
        for (page, bytes) in found.chunks(PAGE).enumerate() {
            // A power cut may write only the first half of a page.
            for half in 0..2 {
                let half_of = |data: &[u8]| {
                    let data = &data[..data.len().min(bytes.len())];
                    let half = data.chunks(PAGE / 2).nth(half).unwrap_or_default();
                    trimmed(half).to_vec()
                };
                assert!(
                    self.pages[&page]
                        .iter()
                        .any(|known| half_of(known) == half_of(bytes)),
                    "object {}: page {page} has unknown contents",
                    self.oid
                );
            }
        }
        assert!(
            self.versions.contains(&version),
            "{version} of {:?}",
            self.versions
        );
        self.data = found;
        self.version = version;
    }
}

struct Machine {
    node: Option<Node>,
    live: Vec<Object>,
    /// Destroyed objects; true if the destruction is on disk for certain.
    destroyed: BTreeMap<u32, bool>,
    begun_sync: Option<BegunSync>,
    changes: u64,
    digests: Vec<u64>,
}

impl Machine {
    async fn new(seed: u64) -> Machine {
        Machine {
            node: Some(Node::new(seed).await),
            live: (0..PLACES).map(|place| Object::new(place as u32)).collect(),
            destroyed: BTreeMap::new(),
            begun_sync: None,
            changes: 0,
            digests: Vec::new(),
        }
    }

    fn node(&self) -> &Node {
        self.node.as_ref().unwrap()
    }

    /// The attributes of the next change.
    fn next_attr(&mut self) -> SetAttr {
        self.changes += 1;
        SetAttr {
            data_version: Some(self.changes),
            ..SetAttr::default()
        }
    }

    async fn state(node: &Node, oid: u32) -> (Vec<u8>, u64) {
        let read = node.objects.read(fid(oid), 0, 1 << 20).await.unwrap().concat();
        let attr = node.objects.attr(fid(oid)).await.unwrap().unwrap_or_default();
        assert_eq!(attr.size, read.len() as u64);
        (read, attr.data_version)
    }

    async fn step(&mut self, step: &Step) {
        let objects = self.node().objects.clone();
        let attr = self.next_attr();
        let byte = self.changes as u8 | 1;
        match *step {
            Step::Write { place, offset, len } => {
                let object = &mut self.live[place];
                let end = offset + len;
                object.data.resize(object.data.len().max(end), 0);
                object.data[offset..end].fill(byte);
                let data = vec![Bytes::from(vec![byte; len])];
                let written = objects.write(fid(object.oid), offset as u64, data, attr);
                written.await.unwrap();
                object.version = self.changes;
                object.record();
            }
            Step::Truncate { place, size } => {
                let object = &mut self.live[place];
                let truncated = objects.punch(fid(object.oid), size as u64, u64::MAX, attr);
                truncated.await.unwrap();
                object.version = self.changes;
                object.truncate(size);
            }
            Step::Punch { place, start, len } => {
                let object = &mut self.live[place];
                let in_file = |at: usize| at.min(object.data.len());
                let range = in_file(start)..in_file(start + len);
                object.data[range].fill(0);
                let end = (start + len) as u64;
                objects
                    .punch(fid(object.oid), start as u64, end, attr)
                    .await
                    .unwrap();
                object.version = self.changes;
                object.record();
            }
            Step::Allocate { place, end } => {
                let object = &mut self.live[place];
                object.data.resize(object.data.len().max(end), 0);
                let allocated = objects.fallocate(fid(object.oid), 0, end as u64, false);
                allocated.await.unwrap();
                object.record();
                let data = objects.seek(fid(object.oid), 0, Seek::Data).await.unwrap();
                assert_eq!(data, 0);
            }
            Step::Destroy { place } => {
                let oid = self.live[place].oid;
                objects.destroy(fid(oid)).await.unwrap();
                self.destroyed.insert(oid, false);
                self.live[place] = Object::new(oid + PLACES as u32);
            }
            Step::Sync { place } => {
                self.end_sync().await;
                match place {
                    Some(place) => {
                        let object = &mut self.live[place];
                        objects.sync(Some(fid(object.oid))).await.unwrap();
                        object.set_durable(&object.mark());
                    }
                    None => {
                        self.begin_sync().await;
                        self.end_sync().await;
                    }
                }
            }
            Step::BeginSync => {
                self.end_sync().await;
                self.begin_sync().await;
            }
            Step::Wait(ms) => sleep(millis(ms)).await,
            Step::Crash(crash) => self.crash(crash).await,
            Step::CrashInTruncate {
                place,
                size,
                wait_ms,
                crash,
            } => {
                let object = &mut self.live[place];
                let (fid, size_bytes) = (fid(object.oid), size as u64);
                object.version = self.changes;
                object.truncate(size);
                let truncate = async move { objects.punch(fid, size_bytes, u64::MAX, attr).await };
                self.node().begin(truncate).await;
                sleep(millis(wait_ms)).await;
                self.crash(crash).await;
            }
        }
        self.digests.push(self.node().disk.digest());
    }

    async fn begin_sync(&mut self) {
        let objects = self.node().objects.clone();
        let task = self.node().begin(async move { objects.sync(None).await });
        self.begun_sync = Some(BegunSync {
            task: task.await,
            marks: self.live.iter().map(Object::mark).collect(),
            destroyed: self.destroyed.keys().copied().collect(),
        });
    }

    async fn end_sync(&mut self) {
        let Some(sync) = self.begun_sync.take() else {
            return;
        };
        sync.task.await.unwrap().unwrap();
        for mark in sync.marks {
            if let Some(object) = self.live.iter_mut().find(|object| object.oid == mark.oid) {
                object.set_durable(&mark);
            }
        }
        for oid in sync.destroyed {
            self.destroyed.insert(oid, true);
        }
    }

    async fn crash(&mut self, crash: Crash) {
        self.begun_sync = None;
        let node = self.node.take().unwrap().crash_and_start(crash).await;
        if crash == Crash::ProcessKill {
            // An OST does this at its start if its machine kept running.
            node.objects.sync_file_system().await.unwrap();
        }
        for object in &mut self.live {
            let (data, version) = Machine::state(&node, object.oid).await;
            if crash == Crash::ProcessKill {
                let is_kept = data == object.data || data == object.data_before_truncate;
                assert!(is_kept, "the kernel lost data of object {}", object.oid);
            }
            object.check(data, version);
            object.record();
            object.set_durable(&object.mark());
        }
        for (oid, is_durable) in std::mem::take(&mut self.destroyed) {
            if is_durable {
                assert_eq!(node.objects.attr(fid(oid)).await.unwrap(), None);
            } else {
                node.objects.destroy(fid(oid)).await.unwrap();
            }
        }
        self.node = Some(node);
    }
}

fn run(seed: u64, steps: &[Step]) -> Vec<u64> {
    simulate(async {
        let mut machine = Machine::new(seed).await;
        for step in steps {
            machine.step(step).await;
        }
        for object in &machine.live {
            let (data, _) = Machine::state(machine.node(), object.oid).await;
            assert_eq!(data, object.data);
        }
        machine.digests
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn crash_loses_no_synced_page(
        seed in any::<u64>(),
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let digests = run(seed, &steps);
        prop_assert_eq!(digests, run(seed, &steps), "the same seed gives another result");
    }
}

#[test]
fn power_cut_keeps_some_pages_of_an_unsynced_write() {
    simulate(async {
        let (mut kept_all, mut kept_none, mut kept_some, mut torn) = (0, 0, 0, 0);
        for seed in 0..50 {
            let node = Node::new(seed).await;
            let write = async |byte| {
                let data = vec![Bytes::from(vec![byte; 8 * PAGE])];
                let written = node.objects.write(fid(1), 0, data, SetAttr::default());
                written.await.unwrap();
            };
            write(1).await;
            node.objects.sync(None).await.unwrap();
            write(2).await;
            let node = node.crash_and_start(Crash::PowerCut).await;
            let (data, _) = Machine::state(&node, 1).await;
            let pages = data.chunks(PAGE);
            let mut halves = data.chunks(PAGE / 2);
            assert!(halves.all(|half| half.iter().all(|b| *b == half[0])));
            torn += pages.clone().filter(|page| page[0] != page[PAGE - 1]).count();
            match pages.filter(|page| page[0] == 2).count() {
                0 => kept_none += 1,
                8 => kept_all += 1,
                _ => kept_some += 1,
            }
        }
        assert!(kept_all > 0 && kept_none > 0 && kept_some > 0 && torn > 0);
    });
}
