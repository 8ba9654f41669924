//! Open directories and their entries.

use crate::mount::Mount;
use client::{DirHandle, DirItem};
use std::collections::VecDeque;
use std::ffi::c_char;
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{Errno, Fid};

/// Size of the longest name with its NUL, in bytes.
const NAME_SIZE: usize = 256;

/// `struct nacre_dirent` of `nacre.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DirEntry {
    d_ino: libc::ino_t,
    d_type: u8,
    d_name: [c_char; NAME_SIZE],
}

/// An open directory.
pub(crate) struct Dir {
    pub(crate) handle: Arc<DirHandle>,
    position: Mutex<ReadPosition>,
}

/// The read position of an open directory.
#[derive(Default)]
struct ReadPosition {
    /// The offset of the next entries to request.
    offset: u64,
    /// Entries read from the server and not yet returned.
    items: VecDeque<DirItem>,
}

impl Dir {
    pub(crate) async fn open(mount: &Mount, fid: Fid) -> Result<Dir, Errno> {
        Ok(Dir {
            handle: mount.client.opendir(&mount.cred, fid).await?,
            position: Mutex::default(),
        })
    }

    /// The next entry; `None` at the end.
    pub(crate) async fn next(&self, mount: &Mount) -> Result<Option<DirEntry>, Errno> {
        let mut position = self.position.lock().await;
        if position.items.is_empty() {
            let items = mount.client.readdir(&self.handle, position.offset).await?;
            let Some(last) = items.last() else {
                return Ok(None);
            };
            position.offset = last.next;
            self.handle.advance(&items, items.len());
            position.items = items.into();
        }
        position
            .items
            .pop_front()
            .map(|item| to_c_entry(&item))
            .transpose()
    }

    /// Restarts at the beginning.
    pub(crate) async fn rewind(&self) {
        *self.position.lock().await = ReadPosition::default();
    }
}

/// Converts an entry to `struct nacre_dirent`. `EPROTO`: the name is too long.
fn to_c_entry(item: &DirItem) -> Result<DirEntry, Errno> {
    let entry = &item.entry;
    if entry.name.len() >= NAME_SIZE {
        return Err(Errno::EPROTO);
    }
    let mut d_name = [0; NAME_SIZE];
    for (to, byte) in d_name.iter_mut().zip(entry.name.iter()) {
        *to = byte.cast_signed() as c_char;
    }
    Ok(DirEntry {
        d_ino: entry.fid.flatten(),
        // `DT_*` is the type in the mode, shifted right by 12 bits.
        d_type: (entry.mode.unwrap_or(0) >> 12) as u8,
        d_name,
    })
}
