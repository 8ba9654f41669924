//! What is open in a mount, by small numbers: the lowest that is free, as POSIX has it.

use crate::dirs::Dir;
use crate::files::File;
use crate::mount::Mount;
use parking_lot::RwLock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::c_int;
use std::sync::Arc;
use wire::{Errno, Fid};

/// The first number: those below are standard input, output and error to who mixes them up.
const FIRST: usize = 3;
/// So many can be open, as at the servers.
const OPEN_MAX: usize = 1 << 20;

/// Something that is open.
pub(crate) enum Open {
    File(File),
    Dir(Dir),
}

impl Open {
    /// Which it is.
    pub(crate) fn fid(&self) -> Fid {
        match self {
            Open::File(file) => file.open.fid,
            Open::Dir(dir) => dir.handle.fid,
        }
    }

    /// The file; a directory is none to read or write in.
    pub(crate) fn file(&self) -> Result<&File, Errno> {
        match self {
            Open::File(file) => Ok(file),
            Open::Dir(_) => Err(Errno::EISDIR),
        }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> Result<&Dir, Errno> {
        match self {
            Open::File(_) => Err(Errno::ENOTDIR),
            Open::Dir(dir) => Ok(dir),
        }
    }

    /// Closes it: what was written is at the servers then, or the caller learns that it is not.
    pub(crate) async fn close(&self, mount: &Mount) -> Result<(), Errno> {
        match self {
            Open::File(file) => file.close(mount).await,
            Open::Dir(_) => Ok(()),
        }
    }
}

/// All that is open in a mount.
#[derive(Default)]
pub(crate) struct Table(RwLock<Slots>);

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Arc<Open>>>,
    free: BinaryHeap<Reverse<usize>>,
}

impl Table {
    /// Gives it a number.
    pub(crate) fn insert(&self, open: Open) -> Result<c_int, (Open, Errno)> {
        let mut table = self.0.write();
        let slot = match table.free.pop() {
            Some(Reverse(slot)) => slot,
            None if table.slots.len() >= OPEN_MAX => return Err((open, Errno::EMFILE)),
            None => {
                table.slots.push(None);
                table.slots.len() - 1
            }
        };
        if let Some(place) = table.slots.get_mut(slot) {
            *place = Some(Arc::new(open));
        }
        Ok((slot + FIRST) as c_int)
    }

    fn slot(number: c_int) -> Result<usize, Errno> {
        let number = usize::try_from(number).map_err(|_| Errno::EBADF)?;
        number.checked_sub(FIRST).ok_or(Errno::EBADF)
    }

    /// What a number stands for.
    pub(crate) fn get(&self, number: c_int) -> Result<Arc<Open>, Errno> {
        let slot = Table::slot(number)?;
        let open = self.0.read().slots.get(slot).cloned().flatten();
        open.ok_or(Errno::EBADF)
    }

    /// Takes the number back.
    pub(crate) fn remove(&self, number: c_int) -> Result<Arc<Open>, Errno> {
        let slot = Table::slot(number)?;
        let mut table = self.0.write();
        let open = table.slots.get_mut(slot).and_then(Option::take);
        if open.is_some() {
            table.free.push(Reverse(slot));
        }
        open.ok_or(Errno::EBADF)
    }

    /// All of them, taken back.
    pub(crate) fn drain(&self) -> Vec<Arc<Open>> {
        let slots = std::mem::take(&mut *self.0.write()).slots;
        slots.into_iter().flatten().collect()
    }
}
