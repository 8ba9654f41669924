//! Calls on open files.

use std::sync::Arc;

use client::{Cred, Fallocate, FlockRange, FlockType, OpenFile, OpenFlags, SetAttr};
use wire::{Errno, Fid};

use super::{BLOCK, BLOCKS, Workload, block_of, value_of};
use crate::history::{Call, Outcome};
use crate::kernel::KernelModel;

/// Offset at which calls allocate space, beyond all data, bytes.
const ALLOCATION_START: u64 = 1 << 20;
/// The largest allocation of a call, bytes.
const ALLOCATION_MAX: u32 = 512 << 10;

impl Workload {
    pub(super) async fn use_file(&mut self) {
        let Some(file) = self.rng.choice(&self.files).cloned() else {
            return;
        };
        let block = self.rng.u8(0..BLOCKS);
        let is_appending = file.flags.append;
        if let Some(kernel) = self.kernel.clone().filter(|_| !is_appending && self.rng.bool()) {
            return match self.rng.bool() {
                true => self.store(&kernel, &file, block).await,
                false => self.load(&kernel, &file, block).await,
            };
        }
        match self.rng.u32(0..60) {
            0..20 if is_appending => self.append(&file).await,
            0..18 => self.write(&file, block).await,
            18..36 => self.read(&file, block).await,
            36..40 => {
                let blocks = self.rng.u8(0..=BLOCKS + 1);
                self.truncate(&file, blocks).await;
            }
            40..42 => self.open_empty(file.fid).await,
            42..44 => self.punch(&file, block).await,
            44..46 => {
                let bytes = self.rng.u32(1..=ALLOCATION_MAX);
                self.allocate(&file, bytes).await;
            }
            46..50 => self.fsync(&file).await,
            50..55 => self.flock(&file, true).await,
            _ => self.flock(&file, false).await,
        }
    }

    async fn append(&mut self, file: &Arc<OpenFile>) {
        let value = self.new_value();
        let work = async {
            let written = async {
                self.drop_pages(file.fid).await?;
                self.client.write_with_offset(file, 0, block_of(value)).await
            };
            match written.await {
                Ok((at, _)) => Outcome::At(at),
                Err(errno) => Outcome::Failed(errno),
            }
        };
        let call = Call::Append(file.fid, value);
        self.history.call(self.id, call, work).await;
    }

    /// Opens a file and truncates it to 0 bytes (`O_TRUNC`).
    async fn open_empty(&mut self, fid: Fid) {
        let flags = OpenFlags {
            truncate: true,
            ..OpenFlags::READ_WRITE
        };
        let mut opened = None;
        let work = async {
            if let Some(kernel) = &self.kernel {
                kernel.begin_truncate(fid);
            }
            let result = self.client.open(&Cred::root(), fid, flags).await;
            if let Some(kernel) = &self.kernel {
                kernel.end_truncate(fid, result.is_ok().then_some(0));
            }
            match result {
                Ok(file) => {
                    opened = Some(file);
                    Outcome::Done
                }
                Err(errno) => Outcome::Failed(errno),
            }
        };
        self.history.call(self.id, Call::Truncate(fid, 0), work).await;
        self.keep_open(opened).await;
    }

    async fn punch(&self, file: &Arc<OpenFile>, block: u8) {
        let (offset, len) = (u64::from(block) * BLOCK as u64, BLOCK as u64);
        let work = self.change_range(file, Fallocate::PunchHole, offset, len);
        self.history
            .call(self.id, Call::Punch(file.fid, block), work)
            .await;
    }

    async fn allocate(&self, file: &Arc<OpenFile>, bytes: u32) {
        let op = Fallocate::Allocate { keep_size: true };
        let work = self.change_range(file, op, ALLOCATION_START, bytes.into());
        self.history
            .call(self.id, Call::Allocate(file.fid, bytes), work)
            .await;
    }

    async fn change_range(&self, file: &Arc<OpenFile>, op: Fallocate, offset: u64, len: u64) -> Outcome {
        let changed = async {
            self.drop_pages(file.fid).await?;
            self.client.fallocate(file, op, offset, len).await
        };
        match changed.await {
            Ok(()) => Outcome::Done,
            Err(errno) => Outcome::Failed(errno),
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
            Some(kernel) => kernel.write_back_and_drop(fid, 0..u64::MAX).await,
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
        let call = Call::Store(file.fid, block, value);
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

    pub(super) async fn close(&self, file: Arc<OpenFile>) {
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
