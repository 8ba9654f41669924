//! Random calls of one client.

mod attrs;
mod data;
mod names;

pub use names::{layout_of_dir, layout_on};

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Attr, Client, Cred, OpenFile, OpenFlags};
use fastrand::Rng;
use wire::{Errno, Fid};

use crate::data::ClientId;
use crate::history::{History, Outcome};
use crate::kernel::KernelModel;
use crate::names::{Kind, Place};

/// Size of a block, bytes: half a page.
pub const BLOCK: usize = 2048;
/// Number of blocks of a file that calls use, except by appends.
pub const BLOCKS: u8 = 4;
/// Number of directories.
pub const DIRS: u8 = 2;
/// Number of names in a directory.
pub const NAMES: u8 = 4;
/// Maximum number of files that a client has open.
const OPEN_MAX: usize = 3;

/// Errors after which a call has certainly changed nothing.
const DEFINITE: [Errno; 10] = [
    Errno::EDEADLK,
    Errno::EXDEV,
    Errno::EPERM,
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::ENOTDIR,
    Errno::EISDIR,
    Errno::ENOTEMPTY,
    Errno::ENOSPC,
    Errno::EOPNOTSUPP,
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
    /// Number of MDTs.
    pub mdts: u32,
    /// The kernel of the mount; `None` for a program that uses the client's library.
    pub kernel: Option<Arc<KernelModel>>,
    /// Determines the calls.
    seed: u64,
    /// Random numbers for the current call.
    rng: Rng,
    files: Vec<Arc<OpenFile>>,
    /// The file of the last lookup. Another call may have removed it.
    found: Option<(Fid, Kind)>,
}

fn name_of(place: Place) -> String {
    format!("n{}", place.1)
}

/// The name of a directory.
pub fn dir_name(dir: u8) -> String {
    format!("d{dir}")
}

/// A block filled with one value.
pub fn block_of(value: u64) -> Bytes {
    Bytes::from(value.to_le_bytes().repeat(BLOCK / 8))
}

/// The value of a block that a call read. `data` may be shorter at the end of the file.
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
        true => crate::names::Outcome::Failed(errno),
        false => crate::names::Outcome::Unclear(errno),
    })
}

/// The target of a symbolic link.
fn target_of(number: u16) -> String {
    format!("target-{number}")
}

impl Workload {
    /// Creates the workload of a client.
    pub fn new(
        id: ClientId,
        client: Arc<Client>,
        kernel: Option<Arc<KernelModel>>,
        (dirs, mdts): (Vec<Fid>, u32),
        history: History,
        seed: u64,
    ) -> Workload {
        Workload {
            id,
            client,
            mdts,
            kernel,
            dirs,
            history,
            seed,
            rng: Rng::with_seed(seed),
            files: Vec::new(),
            found: None,
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
        let kind = match self.rng.u8(0..8) {
            0 | 1 => Kind::Dir,
            2 => Kind::Fifo,
            3 => Kind::Symlink(self.rng.u16(..)),
            _ => Kind::File,
        };
        match self.rng.u32(0..120) {
            0..8 => {
                let mdt = (self.mdts > 1).then(|| self.rng.u32(0..self.mdts));
                self.make(place, kind, mdt).await;
            }
            8..26 => self.open(place).await,
            26..28 => self.open_new(place).await,
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
            98..118 => self.use_attributes().await,
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
}

impl Workload {
    /// Type of a file that was found. Reads the target of a symbolic link.
    async fn kind_of(&self, attr: &Attr) -> Result<Kind, Errno> {
        Ok(match attr.mode & libc::S_IFMT {
            libc::S_IFDIR => Kind::Dir,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFLNK => {
                let target = self.client.readlink(&Cred::root(), attr.fid).await?;
                let text = std::str::from_utf8(&target).ok();
                let number = text.and_then(|text| text.strip_prefix("target-")?.parse().ok());
                Kind::Symlink(number.ok_or(Errno::EBADMSG)?)
            }
            _ => Kind::File,
        })
    }

    /// Reads all names, attributes and data.
    pub async fn observe(mut self) {
        for dir in 0..DIRS {
            self.read_attributes(self.dirs[usize::from(dir)], Kind::Dir).await;
            self.list(dir).await;
            for name in 0..NAMES {
                self.lookup((dir, name)).await;
                let (parent, name) = (self.dirs[usize::from(dir)], name_of((dir, name)));
                let cred = Cred::root();
                let Ok(found) = self.client.lookup(&cred, parent, name.as_bytes()).await else {
                    continue;
                };
                let (fid, kind) = (found.attr.fid, self.kind_of(&found.attr).await);
                drop(found);
                if let Ok(kind) = kind {
                    self.read_attributes(fid, kind).await;
                }
                if kind != Ok(Kind::File) {
                    continue;
                }
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
