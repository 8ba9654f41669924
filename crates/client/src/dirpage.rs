//! Directory pages as `MDS_READPAGE` brings them: 4096 bytes each, entries in order of their hash.
//!
//! Pure. Whatever a page claims, reading it never goes past its bytes.

use bytes::Bytes;
use wire::{Errno, Fid, LUDA_TYPE, LuDirent, LuDirpage, WireStruct};

/// Bytes of a page, whatever the host's page size.
pub(crate) const LU_PAGE_SIZE: usize = 4096;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// What it names.
    pub fid: Fid,
    /// Its name.
    pub name: Bytes,
    /// Type bits of a mode (`S_IFMT`); 0 when the server did not tell.
    pub mode: u32,
    /// Its place in the directory's order.
    pub hash: u64,
}

/// A page, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirPage {
    pub(crate) hash_end: u64,
    pub(crate) entries: Vec<DirEntry>,
}

impl DirPage {
    /// Reads one page; `bytes` has exactly its 4096.
    pub(crate) fn parse(bytes: &Bytes) -> Result<DirPage, Errno> {
        let head = LuDirpage::from_bytes(bytes)?;
        let mut entries = Vec::new();
        let mut at = LuDirpage::SIZE;
        let empty = head.ldp_flags & wire::LDF_EMPTY != 0;
        while !empty && at + LuDirent::SIZE <= bytes.len() {
            let ent = LuDirent::from_bytes(&bytes[at..])?;
            let name_at = at + LuDirent::SIZE;
            let name_end = name_at + usize::from(ent.lde_namelen);
            if ent.lde_namelen == 0 || name_end > bytes.len() {
                return Err(Errno::EPROTO);
            }
            entries.push(DirEntry {
                fid: ent.lde_fid,
                name: bytes.slice(name_at..name_end),
                mode: type_of(&ent, bytes, name_end),
                hash: ent.lde_hash,
            });
            let reclen = usize::from(ent.lde_reclen);
            if reclen == 0 {
                break;
            }
            if reclen < LuDirent::SIZE {
                return Err(Errno::EPROTO);
            }
            at += reclen;
        }
        Ok(DirPage { hash_end: head.ldp_hash_end, entries })
    }
}

/// The type lies behind the name, at an even place.
fn type_of(ent: &LuDirent, bytes: &Bytes, name_end: usize) -> u32 {
    if ent.lde_attrs & LUDA_TYPE == 0 {
        return 0;
    }
    let at = name_end + usize::from(ent.lde_namelen) % 2;
    bytes.get(at..at + 2).map_or(0, |b| u32::from(u16::from_le_bytes([b[0], b[1]]))) & 0o170_000
}

/// Reads what one `MDS_READPAGE` brought: a whole number of pages.
pub(crate) fn parse_pages(data: &Bytes) -> Result<Vec<DirPage>, Errno> {
    if data.is_empty() || data.len() % LU_PAGE_SIZE != 0 {
        return Err(Errno::EPROTO);
    }
    (0..data.len() / LU_PAGE_SIZE).map(|i| DirPage::parse(&data.slice(i * LU_PAGE_SIZE..(i + 1) * LU_PAGE_SIZE))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{DirPage, LU_PAGE_SIZE, parse_pages};
    use bytes::Bytes;
    use wire::{Errno, Fid, LUDA_FID, LUDA_TYPE, LuDirent, LuDirpage, WireStruct};

    fn page(names: &[&str], hash_end: u64) -> Bytes {
        let mut out = LuDirpage { ldp_hash_end: hash_end, ..LuDirpage::default() }.to_bytes().to_vec();
        for (i, name) in names.iter().enumerate() {
            let raw = 32 + name.len() + name.len() % 2 + 2;
            let reclen = raw.div_ceil(8) * 8;
            let ent = LuDirent {
                lde_fid: Fid::new(0x400, i as u32 + 1, 0),
                lde_hash: i as u64 + 10,
                lde_reclen: if i + 1 == names.len() { 0 } else { reclen as u16 },
                lde_namelen: name.len() as u16,
                lde_attrs: LUDA_FID | LUDA_TYPE,
            };
            let start = out.len();
            out.extend_from_slice(&ent.to_bytes());
            out.extend_from_slice(name.as_bytes());
            out.resize(start + 32 + name.len() + name.len() % 2, 0);
            out.extend_from_slice(&0o100_000u16.to_le_bytes());
            out.resize(start + reclen, 0);
        }
        out.resize(LU_PAGE_SIZE, 0);
        out.into()
    }

    #[test]
    fn entries_have_names_types_and_hashes() {
        let p = DirPage::parse(&page(&["a", "hello"], 99)).unwrap();
        assert_eq!(p.hash_end, 99);
        assert_eq!(p.entries.len(), 2);
        assert_eq!(&p.entries[1].name[..], b"hello");
        assert_eq!(p.entries[1].mode, 0o100_000);
        assert_eq!((p.entries[0].hash, p.entries[1].hash), (10, 11));
    }

    #[test]
    fn a_page_that_points_outside_of_itself_is_an_error() {
        let mut bad = page(&["a", "b"], 0).to_vec();
        bad[24 + 26..24 + 28].copy_from_slice(&0xffffu16.to_le_bytes());
        assert_eq!(DirPage::parse(&bad.into()), Err(Errno::EPROTO));
        let mut tight = page(&["a", "b"], 0).to_vec();
        tight[24 + 24..24 + 26].copy_from_slice(&8u16.to_le_bytes());
        assert_eq!(DirPage::parse(&tight.into()), Err(Errno::EPROTO));
        assert_eq!(parse_pages(&Bytes::from_static(&[0; 100])), Err(Errno::EPROTO));
    }
}
