//! A directory page of 4096 bytes: a header, then entries in ascending order of their hashes.
//!
//! An entry is a FID, a hash, a name and (if requested) a type, padded to 8 bytes; the last entry
//! states a length of 0. All fields are little-endian. The header has the first hash of the next
//! page, or [`MDS_DIR_END_OFF`](crate::MDS_DIR_END_OFF).

use crate::codec::{Reader, Result, WireError, Writer, round_up8};
use crate::consts::mdt::{LDF_EMPTY, LUDA_TYPE};
use crate::consts::ptlrpc::LU_PAGE_SIZE;
use crate::dir::{LuDirent, LuDirpage};
use crate::ids::Fid;
use crate::layout::WireStruct;
use bytes::Bytes;

/// Size of a page, in bytes.
pub const PAGE: usize = LU_PAGE_SIZE as usize;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The file's FID.
    pub fid: Fid,
    /// The hash of the name, which orders the entries of a directory.
    pub hash: u64,
    /// The name.
    pub name: Bytes,
    /// The file type as the bits `S_IFMT` of a mode, if the page has types. Servers may set other
    /// bits of the mode too.
    pub mode: Option<u16>,
    /// The `LUDA_*` flags without `LUDA_FID` and `LUDA_TYPE`.
    pub attrs: u32,
}

impl DirEntry {
    /// An entry with the file type in `mode`.
    pub fn new(fid: Fid, hash: u64, name: Bytes, mode: u16) -> DirEntry {
        DirEntry {
            fid,
            hash,
            name,
            mode: Some(mode),
            attrs: 0,
        }
    }

    /// Size of an entry with a name of this length, in bytes.
    pub const fn size_of(name_len: usize, with_type: bool) -> usize {
        // Lustre's servers count a NUL after the name in this size, but write the type, if any, at
        // the next even offset after the name.
        let end = LuDirent::SIZE + name_len + 1;
        round_up8(if with_type {
            end.next_multiple_of(2) + 2
        } else {
            end
        })
    }

    fn size(&self) -> usize {
        DirEntry::size_of(self.name.len(), self.mode.is_some())
    }

    fn write(&self, w: &mut Writer, last: bool) {
        let begin = w.len();
        LuDirent {
            lde_fid: self.fid,
            lde_hash: self.hash,
            lde_reclen: if last { 0 } else { self.size() as u16 },
            lde_namelen: self.name.len() as u16,
            lde_attrs: self.attrs | crate::LUDA_FID | self.mode.map_or(0, |_| LUDA_TYPE),
        }
        .write(w);
        w.put(&self.name);
        if let Some(mode) = self.mode {
            w.pad_to(begin + (LuDirent::SIZE + self.name.len()).next_multiple_of(2));
            w.u16(mode);
        }
        w.pad_to(begin + self.size());
    }
}

/// Builds a page.
#[derive(Clone, Debug, Default)]
pub struct PageBuilder {
    hash_start: u64,
    /// Size of the header and the entries, in bytes.
    used: usize,
    entries: Vec<DirEntry>,
}

impl PageBuilder {
    /// An empty page of entries from `hash_start` on.
    pub fn new(hash_start: u64) -> PageBuilder {
        PageBuilder {
            hash_start,
            used: LuDirpage::SIZE,
            entries: Vec::new(),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// Returns the entry if it does not fit into the rest of the page.
    pub fn push(&mut self, entry: DirEntry) -> std::result::Result<(), DirEntry> {
        if self.used + entry.size() > PAGE || entry.name.len() > usize::from(u16::MAX) {
            return Err(entry);
        }
        self.used += entry.size();
        self.entries.push(entry);
        Ok(())
    }

    /// Whether the page has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The hash of the last entry; `None` for an empty page.
    pub fn last_hash(&self) -> Option<u64> {
        self.entries.last().map(|e| e.hash)
    }

    /// Finishes the page. `hash_end`: the first hash of the next page, or `MDS_DIR_END_OFF`.
    /// `flags`: 0 or `LDF_COLLIDE`; an empty page also gets `LDF_EMPTY`.
    pub fn finish(self, hash_end: u64, flags: u32) -> Bytes {
        let flags = flags | if self.entries.is_empty() { LDF_EMPTY } else { 0 };
        DirPage {
            hash_start: self.hash_start,
            hash_end,
            flags,
            entries: self.entries,
        }
        .build()
    }
}

/// A parsed page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPage {
    /// The least hash that an entry of this page may have.
    pub hash_start: u64,
    /// The first hash of the next page, or `MDS_DIR_END_OFF`.
    pub hash_end: u64,
    /// Bits `LDF_*`.
    pub flags: u32,
    /// The entries.
    pub entries: Vec<DirEntry>,
}

impl DirPage {
    /// Parses one page.
    ///
    /// # Errors
    ///
    /// The header or an entry reaches beyond the page, or an entry states a length that ends inside
    /// its name.
    pub fn parse(page: &Bytes) -> Result<DirPage> {
        let head = LuDirpage::from_bytes(page)?;
        let mut entries = Vec::new();
        let mut offset = LuDirpage::SIZE;
        let mut more = head.ldp_flags & LDF_EMPTY == 0;
        while more {
            let rest = page.slice(offset.min(page.len())..);
            let ent = LuDirent::from_bytes(&rest)?;
            let name_end = LuDirent::SIZE + usize::from(ent.lde_namelen);
            let short = |expected| WireError::Short {
                what: "lu_dirent",
                expected,
                found: rest.len(),
            };
            if name_end > rest.len() {
                return Err(short(name_end));
            }
            let mode = match ent.lde_attrs & LUDA_TYPE {
                0 => None,
                _ => {
                    let from = name_end.next_multiple_of(2);
                    Some(Reader::new("luda_type", rest.get(from..).ok_or(short(from))?).u16()?)
                }
            };
            entries.push(DirEntry {
                fid: ent.lde_fid,
                hash: ent.lde_hash,
                name: rest.slice(LuDirent::SIZE..name_end),
                mode,
                attrs: ent.lde_attrs & !(crate::LUDA_FID | LUDA_TYPE),
            });
            match usize::from(ent.lde_reclen) {
                0 => more = false,
                len if len >= name_end => offset += len,
                found => {
                    return Err(WireError::Value {
                        what: "lde_reclen",
                        expected: "at least the size of the entry",
                        found: found as u64,
                    });
                }
            }
        }
        Ok(DirPage {
            hash_start: head.ldp_hash_start,
            hash_end: head.ldp_hash_end,
            flags: head.ldp_flags,
            entries,
        })
    }

    /// The page in wire format, cut off after 4096 bytes. A [`PageBuilder`] never has more entries
    /// than fit.
    pub fn build(&self) -> Bytes {
        let mut w = Writer::with_capacity(PAGE);
        LuDirpage {
            ldp_hash_start: self.hash_start,
            ldp_hash_end: self.hash_end,
            ldp_flags: self.flags,
            ldp_pad0: 0,
        }
        .write(&mut w);
        for (i, entry) in self.entries.iter().enumerate() {
            entry.write(&mut w, i + 1 == self.entries.len());
        }
        w.pad_to(PAGE);
        w.finish().slice(..PAGE)
    }

    /// Parses the pages of bulk data.
    ///
    /// # Errors
    ///
    /// The length of `bulk` is no multiple of 4096, or a page is malformed.
    pub fn parse_all(bulk: &Bytes) -> Result<Vec<DirPage>> {
        if !bulk.len().is_multiple_of(PAGE) {
            return Err(WireError::Value {
                what: "directory bulk",
                expected: "a multiple of 4096",
                found: bulk.len() as u64,
            });
        }
        (0..bulk.len() / PAGE)
            .map(|i| DirPage::parse(&bulk.slice(i * PAGE..(i + 1) * PAGE)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{DirEntry, DirPage, PAGE, PageBuilder};
    use crate::{Fid, LDF_EMPTY, MDS_DIR_END_OFF};
    use bytes::Bytes;
    use proptest::prelude::{any, prop, proptest};

    #[test]
    fn an_empty_page_has_the_empty_flag() {
        let page = PageBuilder::new(5).finish(MDS_DIR_END_OFF, 0);
        let read = DirPage::parse(&page).unwrap();
        assert_eq!(
            (read.flags, read.hash_end, read.entries.len()),
            (LDF_EMPTY, MDS_DIR_END_OFF, 0)
        );
    }

    #[test]
    fn a_full_page_refuses_entries() {
        let mut page = PageBuilder::new(0);
        let entry = DirEntry::new(Fid::ROOT, 1, Bytes::from(vec![b'x'; 255]), 0o40000);
        let count = (0..).take_while(|_| page.push(entry.clone()).is_ok()).count();
        assert_eq!(count, (PAGE - 24) / DirEntry::size_of(255, true));
        assert_eq!(page.finish(1, 0).len(), PAGE);
    }

    proptest! {
        #[test]
        fn a_page_survives_a_round_trip(names in prop::collection::vec(prop::collection::vec(1u8.., 1..60), 1..30), with_type: bool) {
            let mut builder = PageBuilder::new(0);
            let mut entries = Vec::new();
            for (i, name) in names.into_iter().enumerate() {
                let mode = with_type.then_some(0o100_644);
                let entry = DirEntry { fid: Fid::new(1, i as u32, 0), hash: i as u64, name: name.into(), mode, attrs: 0 };
                if builder.push(entry.clone()).is_ok() {
                    entries.push(entry);
                }
            }
            assert_eq!(DirPage::parse(&builder.finish(9, 0)).unwrap().entries, entries);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4200), len: u16) {
            let mut bytes = bytes;
            if bytes.len() > 56 {
                bytes[16] = 0;
                bytes[48..50].copy_from_slice(&len.to_le_bytes());
            }
            let _ = DirPage::parse(&Bytes::from(bytes));
        }
    }
}
