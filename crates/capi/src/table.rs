//! The table of a mount's open files. As in POSIX, a new file gets the lowest free number.

use parking_lot::RwLock;
use posix::Open;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ffi::c_int;
use std::sync::Arc;
use wire::Errno;

/// The first number. Programs could confuse smaller numbers with standard input, output and error.
const FIRST_NUMBER: usize = 3;
/// Largest number of open files of a mount; the MDT has the same limit for a client.
const OPEN_MAX: usize = 1 << 20;

/// The open files of a mount.
#[derive(Default)]
pub(crate) struct OpenTable(RwLock<Slots>);

#[derive(Default)]
struct Slots {
    /// Open files; the index is the number minus [`FIRST_NUMBER`].
    slots: Vec<Option<Arc<Open>>>,
    /// Indexes of the free slots.
    free: BinaryHeap<Reverse<usize>>,
}

impl OpenTable {
    /// Adds an entry; returns its number. If [`OPEN_MAX`] files are open, returns `EMFILE` and
    /// gives the entry back.
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
        if let Some(entry) = table.slots.get_mut(slot) {
            *entry = Some(Arc::new(open));
        }
        Ok((slot + FIRST_NUMBER) as c_int)
    }

    /// The index of a number's slot.
    fn slot(number: c_int) -> Result<usize, Errno> {
        let number = usize::try_from(number).map_err(|_| Errno::EBADF)?;
        number.checked_sub(FIRST_NUMBER).ok_or(Errno::EBADF)
    }

    /// The entry of a number; `EBADF`: no open file has it.
    pub(crate) fn get(&self, number: c_int) -> Result<Arc<Open>, Errno> {
        let slot = OpenTable::slot(number)?;
        let open = self.0.read().slots.get(slot).cloned().flatten();
        open.ok_or(Errno::EBADF)
    }

    /// Removes and returns the entry of a number; `EBADF`: no open file has it.
    pub(crate) fn remove(&self, number: c_int) -> Result<Arc<Open>, Errno> {
        let slot = OpenTable::slot(number)?;
        let mut table = self.0.write();
        let open = table.slots.get_mut(slot).and_then(Option::take);
        if open.is_some() {
            table.free.push(Reverse(slot));
        }
        open.ok_or(Errno::EBADF)
    }

    /// Removes and returns all entries.
    pub(crate) fn drain(&self) -> Vec<Arc<Open>> {
        let slots = std::mem::take(&mut *self.0.write()).slots;
        slots.into_iter().flatten().collect()
    }
}
