//! Calls on names.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use client::{Cred, OpenFile, OpenFlags};
use wire::{Errno, LMV_USER_MAGIC, LmvUserMdV1, WireStruct};

use super::{OPEN_MAX, Workload, failed, name_of, target_of};
use crate::history::{Call, Outcome};
use crate::names::{self, Kind, Place};

/// The layout of the directory with this number. With several MDTs the directories are on different
/// ones, so that renames and links between them involve several MDTs.
pub fn layout_of_dir(dir: u8, mdts: u32) -> Bytes {
    match mdts {
        1 => Bytes::new(),
        _ => layout_on(u32::from(dir) % mdts),
    }
}

/// The layout of a directory on an MDT.
pub fn layout_on(mdt: u32) -> Bytes {
    let layout = LmvUserMdV1 {
        lum_magic: LMV_USER_MAGIC,
        lum_stripe_count: 1,
        lum_stripe_offset: mdt,
        ..LmvUserMdV1::default()
    };
    layout.to_bytes()
}

impl Workload {
    async fn name_call(
        &self,
        call: names::Call,
        work: impl Future<Output = Result<names::Outcome, Errno>>,
    ) -> Outcome {
        let recorded = async { work.await.map_or_else(failed, Outcome::Name) };
        self.history.call(self.id, Call::Name(call), recorded).await
    }

    /// Creates a file of this type; a directory on this MDT.
    pub(super) async fn make(&self, place: Place, kind: Kind, mdt: Option<u32>) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        let work = async {
            let found = match kind {
                Kind::Dir => {
                    let layout = mdt.map_or(Bytes::new(), layout_on);
                    let made = self
                        .client
                        .mkdir_with(&cred, parent, name.as_bytes(), 0o755, layout);
                    made.await?
                }
                Kind::File => {
                    let mode = libc::S_IFREG | 0o644;
                    self.client.mknod(&cred, parent, name.as_bytes(), mode, 0).await?
                }
                Kind::Fifo => {
                    let mode = libc::S_IFIFO | 0o644;
                    self.client.mknod(&cred, parent, name.as_bytes(), mode, 0).await?
                }
                Kind::Symlink(number) => {
                    let target = target_of(number);
                    let made = self
                        .client
                        .symlink(&cred, parent, name.as_bytes(), target.as_bytes());
                    made.await?
                }
            };
            Ok(names::Outcome::Found(found.attr.fid, kind))
        };
        self.name_call(names::Call::Make(place, kind), work).await;
        self.forget(&[place]);
    }

    /// Opens a name with random flags; creates the file if it is missing.
    pub(super) async fn open(&mut self, place: Place) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        let flags = match self.rng.u8(0..8) {
            0 | 1 => OpenFlags {
                append: true,
                ..OpenFlags::READ_WRITE
            },
            2 => OpenFlags {
                sync: true,
                ..OpenFlags::READ_WRITE
            },
            _ => OpenFlags::READ_WRITE,
        };
        let mut opened = None;
        let work = async {
            let (found, file) = self
                .client
                .create(&cred, parent, name.as_bytes(), 0o644, flags)
                .await?;
            let outcome = match file.was_created() {
                true => names::Outcome::Made(file.fid),
                false => names::Outcome::Found(file.fid, self.kind_of(&found.attr).await?),
            };
            opened = Some(file);
            Ok(outcome)
        };
        self.name_call(names::Call::Open(place), work).await;
        self.forget(&[place]);
        self.keep_open(opened).await;
    }

    /// Creates a file exclusively and opens it.
    pub(super) async fn open_new(&mut self, place: Place) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        let flags = OpenFlags {
            excl: true,
            ..OpenFlags::READ_WRITE
        };
        let mut opened = None;
        let work = async {
            let (_, file) = self
                .client
                .create(&cred, parent, name.as_bytes(), 0o644, flags)
                .await?;
            let outcome = names::Outcome::Found(file.fid, Kind::File);
            opened = Some(file);
            Ok(outcome)
        };
        self.name_call(names::Call::Make(place, Kind::File), work).await;
        self.forget(&[place]);
        self.keep_open(opened).await;
    }

    /// Keeps an open file for further calls. If too many are open, closes the oldest one.
    pub(super) async fn keep_open(&mut self, opened: Option<Arc<OpenFile>>) {
        self.files.extend(opened);
        if self.files.len() > OPEN_MAX {
            let file = self.files.remove(0);
            self.close(file).await;
        }
    }

    pub(super) async fn lookup(&mut self, place: Place) {
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
            let answer = (found.attr.fid, self.kind_of(&found.attr).await?);
            if let Some(kernel) = self.kernel.as_ref().filter(|_| found.name_cached) {
                kernel.keep_entry(parent, &name, answer);
            }
            Ok(names::Outcome::Found(answer.0, answer.1))
        };
        let outcome = self.name_call(names::Call::Lookup(place), work).await;
        if let Outcome::Name(names::Outcome::Found(fid, kind)) = outcome {
            self.found = Some((fid, kind));
        }
    }

    pub(super) async fn remove(&self, place: Place, kind: Kind) {
        let (cred, parent, name) = (Cred::root(), self.dirs[usize::from(place.0)], name_of(place));
        self.forget(&[place]);
        let work = async {
            match kind {
                Kind::Dir => self.client.rmdir(&cred, parent, name.as_bytes()).await?,
                _ => self.client.unlink(&cred, parent, name.as_bytes()).await?,
            }
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::Remove(place, kind), work).await;
        self.forget(&[place]);
    }

    pub(super) async fn rename(&self, from: Place, to: Place) {
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

    pub(super) async fn link(&self, place: Place) {
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

    pub(super) async fn link_dir(&self, place: Place) {
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
            let (mut entries, mut offset) = (BTreeMap::new(), 0);
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

    pub(super) async fn sync(&self, dir: u8) {
        let fid = self.dirs[usize::from(dir)];
        let work = async {
            self.client.fsyncdir(fid).await?;
            Ok(names::Outcome::Done)
        };
        self.name_call(names::Call::Sync, work).await;
    }
}
