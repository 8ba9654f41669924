//! Directories listed.

use crate::mount::Mount;
use client::{DirHandle, DirItem};
use std::collections::VecDeque;
use std::ffi::c_char;
use std::sync::Arc;
use tokio::sync::Mutex;
use wire::{Errno, Fid};

/// Bytes of the longest name, with the NUL behind it.
const NAME_SIZE: usize = 256;

/// `struct nacre_dirent`.
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
    reader: Mutex<Reader>,
}

/// Where its reader is.
#[derive(Default)]
struct Reader {
    place: u64,
    /// What was brought and not given out yet.
    items: VecDeque<DirItem>,
}

impl Dir {
    pub(crate) async fn open(mount: &Mount, fid: Fid) -> Result<Dir, Errno> {
        Ok(Dir {
            handle: mount.client.opendir(&mount.cred, fid).await?,
            reader: Mutex::default(),
        })
    }

    /// The next entry; `None` at the end.
    pub(crate) async fn next(&self, mount: &Mount) -> Result<Option<DirEntry>, Errno> {
        let mut reader = self.reader.lock().await;
        if reader.items.is_empty() {
            let items = mount.client.readdir(&self.handle, reader.place).await?;
            let Some(last) = items.last() else {
                return Ok(None);
            };
            reader.place = last.next;
            self.handle.advance(&items, items.len());
            reader.items = items.into();
        }
        reader.items.pop_front().map(|item| entry(&item)).transpose()
    }

    /// Goes back to the beginning.
    pub(crate) async fn rewind(&self) {
        *self.reader.lock().await = Reader::default();
    }
}

fn entry(item: &DirItem) -> Result<DirEntry, Errno> {
    let of = &item.entry;
    if of.name.len() >= NAME_SIZE {
        return Err(Errno::EPROTO);
    }
    let mut d_name = [0; NAME_SIZE];
    for (to, byte) in d_name.iter_mut().zip(of.name.iter()) {
        *to = byte.cast_signed() as c_char;
    }
    Ok(DirEntry {
        d_ino: of.fid.flatten(),
        // The type's bits of a mode are the type's number times 4096.
        d_type: (of.mode.unwrap_or(0) >> 12) as u8,
        d_name,
    })
}
