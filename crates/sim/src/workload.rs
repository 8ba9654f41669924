//! Random calls of one client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Client, Cred, FlockRange, FlockType, OpenFile, OpenFlags, SetAttr};
use fastrand::Rng;
use wire::{Errno, Fid};

use crate::data::ClientId;
use crate::history::{Call, History, Outcome};
use crate::kernel::KernelModel;
use crate::names::{self, Kind, Place};

/// Size of a block, bytes: a page.
pub const BLOCK: usize = 4096;
/// Number of blocks of a file.
pub const BLOCKS: u8 = 4;
/// Number of directories.
pub const DIRS: u8 = 2;
/// Number of names in a directory.
pub const NAMES: u8 = 4;
/// Number of files that a client has open.
const OPEN_MAX: usize = 3;

/// Errors that say that a call has changed nothing.
const DEFINITE: [Errno; 8] = [
    Errno::EDEADLK,
    Errno::EPERM,
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::ENOTDIR,
    Errno::EISDIR,
    Errno::ENOTEMPTY,
    Errno::ENOSPC,
];

/// One client's calls.
pub struct Workload {
    /// The caller.
    pub id: ClientId,
    /// The mount.
    pub client: Arc<Client>,
    /// FIDs of the directories.
    pub dirs: Vec<Fid>,
    /// Where the calls are recorded.
    pub history: History,
    /// The kernel of the mount; `None` for a program that uses the client's library.
    pub kernel: Option<Arc<KernelModel>>,
    /// Determines the calls.
    seed: u64,
    /// Decides the parts of the current call.
    rng: Rng,
    files: Vec<Arc<OpenFile>>,
}

fn name_of(place: Place) -> String {
    format!("n{}", place.1)
}

/// The name of a directory.
pub fn dir_name(dir: u8) -> String {
    format!("d{dir}")
}

/// A block with one value.
pub fn block_of(value: u64) -> Bytes {
    Bytes::from(value.to_le_bytes().repeat(BLOCK / 8))
}

/// The value of a block that a call returned; shorter at the end of the file.
fn value_of(data: &[u8]) -> Outcome {
    let mut padded = data.to_vec();
    padded.resize(BLOCK, 0);
    let (words, _) = padded.as_chunks::<8>();
    let value = u64::from_le_bytes(words[0]);
    match words.iter().position(|word| u64::from_le_bytes(*word) != value) {
        None => Outcome::Value(value),
        Some(word) => Outcome::Torn(format!(
            "{value:#x} until byte {}, then {:02x?}",
            word * 8,
            words[word]
        )),
    }
}

fn failed(errno: Errno) -> Outcome {
    Outcome::Name(match DEFINITE.contains(&errno) {
        true => names::Outcome::Failed(errno),
        false => names::Outcome::Unclear(errno),
    })
}

fn kind_of(attr: &client::Attr) -> Kind {
    match attr.is_dir() {
        true => Kind::Dir,
        false => Kind::File,
    }
}

impl Workload {
    /// The calls of a client.
    pub fn new(
        id: ClientId,
        client: Arc<Client>,
        kernel: Option<Arc<KernelModel>>,
        dirs: Vec<Fid>,
        history: History,
        seed: u64,
    ) -> Workload {
        Workload {
            id,
            client,
            kernel,
            dirs,
            history,
            seed,
            rng: Rng::with_seed(seed),
            files: Vec::new(),
        }
    }

    /// Makes `calls` random calls, except those with the numbers `skipped`. Each call has random
    /// numbers of its own, so that a call stays the same if others are skipped.
    pub async fn run(mut self, calls: u32, skipped: BTreeSet<u32>) {
        for call in 0..calls {
            self.rng = Rng::with_seed(self.seed ^ u64::from(call).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let pause = match self.rng.u32(0..10) {
                0 => Duration::from_millis(self.rng.u64(0..3_000)),
                _ => Duration::from_micros(self.rng.u64(0..20_000)),
            };
            tokio::time::sleep(pause).await;
            if !skipped.contains(&call) {
                self.one_call().await;
            }
        }
        while let Some(file) = self.files.pop() {
            self.close(file).await;
        }
    }

    async fn one_call(&mut self) {
        let place = (self.rng.u8(0..DIRS), self.rng.u8(0..NAMES));
        let kind = match self.rng.u8(0..4) {
            0 => Kind::Dir,
            _ => Kind::File,
        };
        match self.rng.u32(0..100) {
            0..8 => self.make(place, kind).await,
            8..28 => self.open(place).await,
            28..36 => self.lookup(place).await,
            36..44 => self.remove(place, kind).await,
            44..50 => {
                let to = (self.rng.u8(0..DIRS), self.rng.u8(0..NAMES));
                self.rename(place, to).await;
            }
            50..54 => self.link(place).await,
            54..57 => self.list(place.0).await,
            57 => self.link_dir(place).await,
            58..61 => self.sync(place.0).await,
            61..98 => self.use_file().await,
            _ => {
                if !self.files.is_empty() {
                    let file = self.files.swap_remove(self.rng.usize(..self.files.len()));
                    self.close(file).await;
                }
            }
        }
    }

    /// Lets the kernel forget names that a call of this mount changes.
    fn forget(&self, places: &[Place]) {
        if let Some(kernel) = &self.kernel {
            for place in places {
                kernel.drop_entry(self.dirs[usize::from(place.0)], &name_of(*place));
            }
        }
    }

    async fn name_call(&self, call: names::Call, work: impl Future<Output = Result<names::Outcome, Errno>>) {
        let recorded = async { work.await.map_or_else(failed, Outcome::Name) };
        self.history.call(self.id, Call::Name(call), recorded).await;
    }

    async fn make(&self, place: Place, kind: Kind) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        let work = async {
            let found = match kind {
                Kind::Dir => self.client.mkdir(&cred, parent, name.as_bytes(), 0o755).await?,
                Kind::File => {
                    let mode = libc::S_IFREG | 0o644;
                    self.client.mknod(&cred, parent, name.as_bytes(), mode, 0).await?
                }
            };
            Ok(names::Outcome::Found(found.attr.fid, kind))
        };
        self.name_call(names::Call::Make(place, kind), work).await;
        self.forget(&[place]);
    }

    async fn open(&mut self, place: Place) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        let mut opened = None;
        let work = async {
            let create = self
                .client
                .create(&cred, parent, name.as_bytes(), 0o644, OpenFlags::READ_WRITE);
            let (found, file) = create.await?;
            let outcome = match file.was_created() {
                true => names::Outcome::Made(file.fid),
                false => names::Outcome::Found(file.fid, kind_of(&found.attr)),
            };
            opened = Some(file);
            Ok(outcome)
        };
        self.name_call(names::Call::Open(place), work).await;
        self.forget(&[place]);
        self.files.extend(opened);
        if self.files.len() > OPEN_MAX {
            let file = self.files.remove(0);
            self.close(file).await;
        }
    }

    async fn lookup(&self, place: Place) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        let work = async {
            if let Some((fid, kind)) = self
                .kernel
                .as_ref()
                .and_then(|kernel| kernel.entry(parent, &name))
            {
                return Ok(names::Outcome::Found(fid, kind));
            }
            let found = self.client.lookup(&cred, parent, name.as_bytes()).await?;
            let answer = (found.attr.fid, kind_of(&found.attr));
            if let Some(kernel) = self.kernel.as_ref().filter(|_| found.name_cached) {
                kernel.keep_entry(parent, &name, answer);
            }
            Ok(names::Outcome::Found(answer.0, answer.1))
        };
        self.name_call(names::Call::Lookup(place), work).await;
    }

    async fn remove(&self, place: Place, kind: Kind) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        self.forget(&[place]);
        let work = async {
            match kind {
                Kind::Dir => self.client.rmdir(&cred, parent, name.as_bytes()).await?,
                Kind::File => self.client.unlink(&cred, parent, name.as_bytes()).await?,
            }
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::Remove(place, kind), work).await;
        self.forget(&[place]);
    }

    async fn rename(&self, from: Place, to: Place) {
        let dir = |place: Place| self.dirs[usize::from(place.0)];
        let (source, target) = (name_of(from), name_of(to));
        let work = async {
            let (from, to) = ((dir(from), source.as_bytes()), (dir(to), target.as_bytes()));
            self.client.rename(&Cred::root(), from, to).await?;
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::Rename(from, to), work).await;
        self.forget(&[from, to]);
    }

    async fn link(&self, place: Place) {
        let Some(file) = self.files.first().map(|file| file.fid) else {
            return;
        };
        let (parent, name) = (self.dirs[usize::from(place.0)], name_of(place));
        let work = async {
            self.client
                .link(&Cred::root(), file, parent, name.as_bytes())
                .await?;
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::Link(file, place), work).await;
        self.forget(&[place]);
    }

    async fn link_dir(&self, place: Place) {
        let (dir, name) = (self.dirs[usize::from(place.0)], name_of(place));
        let work = async {
            self.client.link(&Cred::root(), dir, dir, name.as_bytes()).await?;
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::LinkDir(place), work).await;
    }

    /// Lists a directory.
    pub async fn list(&self, dir: u8) {
        let fid = self.dirs[usize::from(dir)];
        let work = async {
            let handle = self.client.opendir(&Cred::root(), fid).await?;
            let (mut entries, mut offset) = (std::collections::BTreeMap::new(), 0);
            loop {
                let items = self.client.readdir(&handle, offset).await?;
                let Some(last) = items.last() else { break };
                offset = last.next;
                for item in &items {
                    let number = item.entry.name.strip_prefix(b"n").and_then(|n| n.first());
                    if let Some(digit) = number {
                        entries.insert(digit - b'0', item.entry.fid);
                    }
                }
                handle.advance(&items, items.len());
            }
            Ok(names::Outcome::Entries(entries))
        };
        self.name_call(names::Call::List(dir), work).await;
    }

    async fn sync(&self, dir: u8) {
        let fid = self.dirs[usize::from(dir)];
        let work = async {
            self.client.fsyncdir(fid).await?;
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::Sync, work).await;
    }

    async fn use_file(&mut self) {
        let Some(file) = self.rng.choice(&self.files).cloned() else {
            return;
        };
        let block = self.rng.u8(0..BLOCKS);
        if let Some(kernel) = self.kernel.clone().filter(|_| self.rng.bool()) {
            return match self.rng.bool() {
                true => self.store(&kernel, &file, block).await,
                false => self.load(&kernel, &file, block).await,
            };
        }
        match self.rng.u32(0..12) {
            10 => return self.flock(&file, true).await,
            11 => return self.flock(&file, false).await,
            _ => {}
        }
        match self.rng.u32(0..10) {
            0..4 => self.write(&file, block).await,
            4..8 => self.read(&file, block).await,
            8 => self.truncate(&file, block).await,
            _ => self.fsync(&file).await,
        }
    }

    async fn write(&mut self, file: &Arc<OpenFile>, block: u8) {
        let value = self.new_value();
        let offset = u64::from(block) * BLOCK as u64;
        let work = async {
            let written = async {
                self.drop_pages(file.fid).await?;
                self.client.write(file, offset, block_of(value)).await
            };
            match written.await {
                Ok(_) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        let call = Call::Write(file.fid, block, value);
        self.history.call(self.id, call, work).await;
    }

    /// A value that no other call writes. 0 is a hole.
    fn new_value(&mut self) -> u64 {
        self.rng.u64(1..=u64::MAX)
    }

    /// Writes the dirty pages of mappings back and drops all pages of a file, as the kernel does
    /// before direct I/O.
    async fn drop_pages(&self, fid: Fid) -> Result<(), Errno> {
        match &self.kernel {
            Some(kernel) => kernel.write_back_and_drop(fid, 0).await,
            None => Ok(()),
        }
    }

    async fn store(&mut self, kernel: &KernelModel, file: &Arc<OpenFile>, block: u8) {
        let value = self.new_value();
        let work = async {
            match kernel.store(file, block, block_of(value)).await {
                Ok(()) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        let call = Call::Write(file.fid, block, value);
        self.history.call(self.id, call, work).await;
    }

    async fn load(&self, kernel: &KernelModel, file: &Arc<OpenFile>, block: u8) {
        let work = async {
            match kernel.load(file, block).await {
                Ok(data) => value_of(&data),
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history
            .call(self.id, Call::Read(file.fid, block), work)
            .await;
    }

    /// Reads a block of a file.
    pub async fn read(&self, file: &Arc<OpenFile>, block: u8) {
        let offset = u64::from(block) * BLOCK as u64;
        let work = async {
            let read = async {
                self.drop_pages(file.fid).await?;
                self.client.read(file, offset, BLOCK).await
            };
            match read.await {
                Ok(data) => value_of(&data.concat()),
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history
            .call(self.id, Call::Read(file.fid, block), work)
            .await;
    }

    async fn truncate(&self, file: &Arc<OpenFile>, blocks: u8) {
        let work = async {
            let set = SetAttr {
                size: Some(u64::from(blocks) * BLOCK as u64),
                ..SetAttr::default()
            };
            let cred = Cred::root();
            if let Some(kernel) = &self.kernel {
                kernel.begin_truncate(file.fid);
            }
            let result = self.client.setattr(&cred, file.fid, &set, Some(file)).await;
            if let Some(kernel) = &self.kernel {
                kernel.end_truncate(file.fid, result.is_ok().then_some(blocks));
            }
            match result {
                Ok(_) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        let call = Call::Truncate(file.fid, blocks);
        self.history.call(self.id, call, work).await;
    }

    async fn flock(&self, file: &Arc<OpenFile>, lock: bool) {
        let ty = match lock {
            true => FlockType::Write,
            false => FlockType::Unlock,
        };
        let range = FlockRange {
            ty,
            start: 0,
            end: FlockRange::END,
            owner: 1,
            pid: 1,
        };
        let work = async {
            match self.client.setlk(&Cred::root(), file.fid, range, false).await {
                Ok(()) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        let call = Call::Flock(file.fid, lock);
        self.history.call(self.id, call, work).await;
    }

    async fn fsync(&self, file: &Arc<OpenFile>) {
        let work = async {
            let synced = async {
                self.drop_pages(file.fid).await?;
                self.client.fsync(file, false).await
            };
            match synced.await {
                Ok(()) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::Fsync(file.fid), work).await;
    }

    async fn close(&self, file: Arc<OpenFile>) {
        let work = async {
            let written = self.drop_pages(file.fid).await;
            match written.and(self.client.release(&file).await) {
                Ok(()) => Outcome::Done,
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::Close(file.fid), work).await;
    }
}

impl Workload {
    /// Reads all names and all data.
    pub async fn observe(mut self) {
        for dir in 0..DIRS {
            self.list(dir).await;
            for name in 0..NAMES {
                self.lookup((dir, name)).await;
                let (parent, name) = (self.dirs[usize::from(dir)], name_of((dir, name)));
                let cred = Cred::root();
                let Ok(found) = self.client.lookup(&cred, parent, name.as_bytes()).await else {
                    continue;
                };
                if found.attr.is_dir() {
                    continue;
                }
                let fid = found.attr.fid;
                drop(found);
                if let Ok(file) = self.client.open(&cred, fid, OpenFlags::READ).await {
                    for block in 0..BLOCKS {
                        self.read(&file, block).await;
                    }
                    self.close(file).await;
                }
            }
        }
        self.files.clear();
    }
}
