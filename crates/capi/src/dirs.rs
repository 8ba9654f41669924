//! Directory entries in C's structure.

use client::DirItem;
use std::ffi::c_char;
use wire::Errno;

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

/// Converts an entry to `struct nacre_dirent`. `EPROTO`: the name is too long.
pub(crate) fn to_c_entry(item: &DirItem) -> Result<DirEntry, Errno> {
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
